//! Who is served by whom, and whom the pod sees: every kind of address, both policies, every
//! protocol, from every side.
//!
//! One Service has every kind of address; its two endpoints are a pod here and one far away. What
//! is expected is written down once, in [`expected`].

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferrule_core::facts::{DetectLocal, Settings};
use ferrule_core::model::{Family, Service, TrafficPolicy};
use ferrule_testbed::{Answer, Ask, Lab, Place, Protocol};

use crate::support::*;

pub const NODE_PORT: i64 = 30001;

/// Kinds of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    ClusterIp,
    ExternalIp,
    LoadBalancerIp,
    NodePort,
}

pub const KINDS: [Kind; 4] = [
    Kind::ClusterIp,
    Kind::ExternalIp,
    Kind::LoadBalancerIp,
    Kind::NodePort,
];

/// Kinds of address that clients outside are to use.
pub const EXTERNAL: [Kind; 3] = [Kind::ExternalIp, Kind::LoadBalancerIp, Kind::NodePort];

/// Where the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Pod,
    Node,
    Out,
}

pub const SIDES: [Side; 3] = [Side::Pod, Side::Node, Side::Out];

impl Side {
    pub fn place(self, lab: &Lab) -> &Place {
        match self {
            Self::Pod => &lab.pod,
            Self::Node => &lab.node,
            Self::Out => &lab.out,
        }
    }
}

/// Where a Service of this number answers.
pub fn target(lab: &Lab, kind: Kind, number: u8) -> (IpAddr, u16) {
    let a = |x| ferrule_testbed::address(lab.family, x, number);
    match kind {
        Kind::ClusterIp => (a(96), 80),
        Kind::ExternalIp => (a(8), 80),
        Kind::LoadBalancerIp => (a(9), 80),
        Kind::NodePort => (
            lab.node_ip(),
            u16::try_from(NODE_PORT).unwrap() + u16::from(number) - 1,
        ),
    }
}

pub fn ask(lab: &Lab, protocol: Protocol, kind: Kind, number: u8) -> Ask {
    let (to, port) = target(lab, kind, number);
    Ask::new(protocol, to, port)
}

/// A Service with every kind of address, over every protocol.
pub fn full(family: Family, name: &str, number: u8) -> Service {
    let vip = address(family, 9, number);
    let service = with_load_balancer(service(family, name, number), vip, &[]);
    let node_port = NODE_PORT + i64::from(number) - 1;
    let mut service = over_all(with_node_port(service, node_port));
    service.external_ips = [address(family, 8, number)].into();
    service
}

/// The same for traffic that stays on the node.
pub fn local(mut service: Service) -> Service {
    service.internal_policy = TrafficPolicy::Local;
    service.external_policy_field = TrafficPolicy::Local;
    service
}

/// Both pods of a lab, or some of them.
pub fn pods(lab: &Lab, name: &str, numbers: &[u8]) -> ferrule_core::model::Slice {
    let family = if lab.here_ip().is_ipv4() {
        Family::V4
    } else {
        Family::V6
    };
    let all = [(1, (lab.here_ip(), true)), (2, (lab.far_ip(), false))];
    let chosen = all
        .into_iter()
        .filter(|(number, _)| numbers.contains(number));
    let chosen: Vec<_> = chosen.map(|(_, pod)| pod).collect();
    slice_over_all(slice(family, name, &chosen))
}

pub fn by_pod_net(lab: &Lab) -> Settings {
    Settings {
        detect_local: DetectLocal::ClusterCidr([lab.pod_net().parse().unwrap()].into()),
        ..Settings::default()
    }
}

/// A scene with one Service of each policy, 1 for everybody and 2 for this node.
fn scene(lab: &Lab, endpoints: &[u8]) -> Scene {
    let mut scene = Scene::at(lab, by_pod_net(lab));
    let family = scene.family;
    scene
        .service(full(family, "all", 1))
        .slice(pods(lab, "all", endpoints))
        .service(local(full(family, "local", 2)))
        .slice(pods(lab, "local", endpoints));
    scene.whole();
    scene
}

/// Who may answer a client on this side, and whom they see, if pods are told by their network.
fn expected(lab: &Lab, kind: Kind, is_local: bool, side: Side) -> BTreeSet<Answer> {
    let bound = match kind {
        Kind::ClusterIp => is_local,
        // Who is inside the cluster is not bound by a policy about outside traffic.
        _ => is_local && side == Side::Out,
    };
    let pods: &[u8] = if bound { &[1] } else { &[1, 2] };
    let masqueraded = match (kind, side) {
        (Kind::ClusterIp, Side::Pod) => false,
        (Kind::ClusterIp, _) | (_, Side::Node) => true,
        _ => !is_local,
    };
    pods.iter()
        .map(|pod| Answer::Served {
            by: *pod,
            seen: match side {
                _ if masqueraded => lab.masqueraded(*pod),
                Side::Pod => lab.pod_ip(),
                _ => lab.out_ip(),
            },
        })
        .collect()
}

/// Asks until everything expected was seen, and a few times more; nothing else may be seen.
pub fn assert_served(place: &Place, ask: Ask, expected: &BTreeSet<Answer>) {
    let mut seen = BTreeSet::new();
    for _ in 0..60 {
        let answer = ask.put(place);
        assert!(
            expected.contains(&answer),
            "{ask:?}: {answer:?} is none of {expected:?}"
        );
        seen.insert(answer);
        if expected.len() > 1 && seen == *expected {
            return;
        }
        if expected.len() == 1 {
            break;
        }
    }
    // One pod of two would be missed by ten draws once in a thousand times.
    if expected.len() == 1 {
        for _ in 0..10 {
            assert_eq!(Some(&ask.put(place)), expected.first(), "{ask:?}");
        }
        return;
    }
    assert_eq!(seen, *expected, "{ask:?}");
}

fn check(lab: &Lab, kinds: &[Kind], policies: &[bool], sides: &[Side]) {
    let _scene = scene(lab, &[1, 2]);
    for kind in kinds {
        for is_local in policies {
            for side in sides {
                for protocol in Protocol::ALL {
                    let ask = ask(lab, protocol, *kind, if *is_local { 2 } else { 1 });
                    let expected = expected(lab, *kind, *is_local, *side);
                    assert_served(side.place(lab), ask, &expected);
                }
            }
        }
    }
}

#[test]
fn nft_026_a_cluster_ip_follows_the_internal_policy() {
    Lab::both(|lab| check(lab, &[Kind::ClusterIp], &[false, true], &SIDES));
}

#[test]
fn nft_032_outside_traffic_to_all_endpoints_is_masqueraded() {
    Lab::both(|lab| check(lab, &EXTERNAL, &[false], &SIDES));
}

#[test]
fn nft_033_outside_traffic_bound_to_the_node_spares_pods_and_node() {
    Lab::both(|lab| check(lab, &EXTERNAL, &[true], &SIDES));
}

#[test]
fn nft_078_a_pod_reaches_all_endpoints_of_an_address_bound_to_the_node() {
    Lab::both(|lab| check(lab, &EXTERNAL, &[true], &[Side::Pod]));
}

#[test]
fn nft_079_the_node_reaches_all_endpoints_of_an_address_bound_to_it_masqueraded() {
    Lab::both(|lab| check(lab, &EXTERNAL, &[true], &[Side::Node]));
}

#[test]
fn nft_080_outside_clients_of_an_address_bound_to_the_node_keep_their_address() {
    Lab::both(|lab| check(lab, &EXTERNAL, &[true], &[Side::Out]));
}

#[test]
fn nft_077_a_pod_that_reaches_itself_is_masqueraded() {
    Lab::both(|lab| {
        let _scene = scene(lab, &[1]);
        let seen = lab.masqueraded(1);
        for kind in KINDS {
            for (protocol, number) in Protocol::ALL.into_iter().flat_map(|p| [(p, 1), (p, 2)]) {
                let answer = ask(lab, protocol, kind, number).put(&lab.here);
                assert_eq!(answer, Answer::Served { by: 1, seen }, "{kind:?} {number}");
            }
        }
    });
}

/// Whether these answer while there are endpoints, and refuse when there are none any more.
fn comes_and_goes(lab: &Lab, kinds: &[Kind]) {
    let mut scene = scene(lab, &[1, 2]);
    let refused = BTreeSet::from([Answer::Refused]);
    for endpoints in [&[1, 2][..], &[], &[1, 2]] {
        scene
            .slice(pods(lab, "all", endpoints))
            .slice(pods(lab, "local", endpoints))
            .step();
        for kind in kinds {
            for (protocol, number) in Protocol::ALL.into_iter().flat_map(|p| [(p, 1), (p, 2)]) {
                let expected = match endpoints {
                    [] => refused.clone(),
                    _ => expected(lab, *kind, number == 2, Side::Out),
                };
                assert_served(&lab.out, ask(lab, protocol, *kind, number), &expected);
            }
        }
    }
}

#[test]
fn nft_027_external_and_load_balancer_ips_answer_while_there_are_endpoints() {
    Lab::both(|lab| comes_and_goes(lab, &[Kind::ExternalIp, Kind::LoadBalancerIp]));
}

#[test]
fn nft_028_node_ports_answer_while_there_are_endpoints() {
    Lab::both(|lab| comes_and_goes(lab, &[Kind::NodePort]));
}

#[test]
fn nft_049_protocols_on_one_port_are_independent() {
    Lab::both(|lab| {
        let mut scene = Scene::at(lab, by_pod_net(lab));
        let family = scene.family;
        scene.service(full(family, "all", 1));
        // TCP here, UDP far away, SCTP nowhere.
        for (number, protocol) in (1..=2).zip(PROTOCOLS) {
            let mut slice = pods(lab, "all", &[number]);
            slice.key = ferrule_core::model::SliceKey::new("demo", protocol.lower());
            slice.ports = slice
                .ports
                .iter()
                .filter(|port| port.protocol == protocol)
                .cloned()
                .collect();
            scene.slice(slice);
        }
        scene.whole();
        for kind in KINDS {
            for (number, protocol) in (1..=2).zip(Protocol::ALL) {
                let seen = lab.masqueraded(number);
                let served = BTreeSet::from([Answer::Served { by: number, seen }]);
                assert_served(&lab.out, ask(lab, protocol, kind, 1), &served);
            }
            let sctp = ask(lab, Protocol::Sctp, kind, 1);
            assert_eq!(sctp.put(&lab.out), Answer::Refused);
        }
    });
}

#[test]
fn nft_082_every_endpoint_is_drawn_equally_often() {
    Lab::both(|lab| {
        let _scene = scene(lab, &[1, 2]);
        for kind in KINDS {
            let ask = ask(lab, Protocol::Udp, kind, 1);
            let by = |answer| matches!(answer, Answer::Served { by: 1, .. });
            let here = (0..200).filter(|_| by(ask.put(&lab.out))).count();
            // Six standard deviations from the middle.
            assert!((58..=142).contains(&here), "{kind:?}: {here} of 200");
        }
    });
}
