//! Packets through virtual servers, and what pods see of their clients.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ferrule_testbed::{Answer, EXTERNAL, KINDS, Kind, Protocol, SIDES, Side, local};

use crate::support::*;

/// Asks over every protocol; all pods that answer, and what they see.
fn asked(lab: &Lab, from: Side, kind: Kind, number: u8) -> BTreeSet<Answer> {
    let asks = Protocol::ALL.map(|protocol| lab.ask(protocol, kind, number));
    let each = asks.into_iter();
    each.flat_map(|ask| lab.answers(lab.side(from), ask, 4))
        .collect()
}

fn scene(lab: &Lab, endpoints: &[u8]) -> Scene {
    let mut scene = Scene::new(lab);
    scene
        .service(lab.full("all", 1))
        .slice(lab.pods("all", endpoints))
        .service(local(lab.full("local", 2)))
        .slice(lab.pods("local", endpoints));
    scene.whole();
    scene
}

fn by(lab: &Lab, pod: u8, masqueraded: bool, client: std::net::IpAddr) -> Answer {
    let seen = if masqueraded {
        lab.masqueraded(pod)
    } else {
        client
    };
    Answer::Served { by: pod, seen }
}

#[test]
fn ipvs_036_ipvs_038_ipvs_039_ipvs_040_a_cluster_ip_balances_for_pods_node_and_clients_outside() {
    everywhere(|lab| {
        let _scene = scene(lab, &[1, 2]);
        for from in SIDES {
            let masqueraded = from != Side::Pod;
            let expected = [1, 2].map(|pod| by(lab, pod, masqueraded, lab.pod_ip()));
            let answers = asked(lab, from, Kind::ClusterIp, 1);
            assert_eq!(answers, BTreeSet::from(expected), "{from:?}");
        }
    });
}

#[test]
fn ipvs_043_ipvs_047_ipvs_048_external_addresses_masquerade_and_those_of_policy_local_do_not() {
    everywhere(|lab| {
        let _scene = scene(lab, &[1, 2]);
        for kind in EXTERNAL {
            let all = [1, 2].map(|pod| by(lab, pod, true, lab.out_ip()));
            assert_eq!(
                asked(lab, Side::Out, kind, 1),
                BTreeSet::from(all),
                "{kind:?}"
            );
            let here = by(lab, 1, false, lab.out_ip());
            assert_eq!(
                asked(lab, Side::Out, kind, 2),
                BTreeSet::from([here]),
                "{kind:?}"
            );
        }
    });
}

#[test]
fn ipvs_037_a_pod_that_reaches_itself_is_masqueraded() {
    everywhere(|lab| {
        let _scene = scene(lab, &[1]);
        let seen = lab.masqueraded(1);
        for kind in KINDS {
            for protocol in Protocol::ALL {
                let answer = lab.ask(protocol, kind, 1).put(&lab.here);
                assert_eq!(
                    answer,
                    Answer::Served { by: 1, seen },
                    "{kind:?} {protocol:?}"
                );
            }
        }
    });
}

#[test]
fn ipvs_041_without_endpoints_connections_are_refused() {
    everywhere(|lab| {
        let _scene = scene(lab, &[]);
        for (from, kind) in [
            (Side::Pod, Kind::ClusterIp),
            (Side::Node, Kind::ClusterIp),
            (Side::Out, Kind::ExternalIp),
            (Side::Out, Kind::LoadBalancerIp),
            (Side::Out, Kind::NodePort),
        ] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let answer = lab.ask(protocol, kind, 1).put(lab.side(from));
                assert_eq!(answer, Answer::Refused, "{from:?} {kind:?} {protocol:?}");
            }
        }
    });
}

#[test]
fn ipvs_055_ipvs_056_without_local_endpoints_clients_outside_are_dropped_and_those_inside_served() {
    everywhere(|lab| {
        let _scene = scene(lab, &[2]);
        for kind in EXTERNAL {
            let far = by(lab, 2, false, lab.pod_ip());
            assert_eq!(
                asked(lab, Side::Pod, kind, 2),
                BTreeSet::from([far]),
                "{kind:?}"
            );
            let masqueraded = by(lab, 2, true, lab.pod_ip());
            let node = asked(lab, Side::Node, kind, 2);
            assert_eq!(node, BTreeSet::from([masqueraded]), "{kind:?}");
        }
        let outside = EXTERNAL.map(|kind| (&lab.out, lab.ask(Protocol::Tcp, kind, 2)));
        let cluster_ip = lab.ask(Protocol::Tcp, Kind::ClusterIp, 2);
        let mut asks = outside.to_vec();
        asks.push((&lab.pod, cluster_ip));
        let answered = ferrule_testbed::Ask::unanswered(&asks);
        assert!(answered.is_empty(), "{answered:?}");
        // The node itself hears at once.
        assert_eq!(cluster_ip.put(&lab.node), Answer::Refused);
    });
}

#[test]
fn ipvs_059_ipvs_060_an_open_connection_outlives_its_endpoint_and_then_the_destination_goes() {
    everywhere(|lab| {
        let mut scene = scene(lab, &[1, 2]);
        let (address, port) = lab.target(Kind::ClusterIp, 1);
        let connect = move || std::net::TcpStream::connect((address, port)).unwrap();
        let connection = lab.pod.run(connect);
        let busy = |scene: &Scene| {
            let servers = scene.servers();
            let (_, (_, destinations)) = servers
                .iter()
                .find(|(key, _)| (key.address, key.port, key.protocol) == (address, port, 6))
                .unwrap();
            destinations.clone()
        };
        let with = busy(&scene).into_iter().find(|d| d.active == 1).unwrap();
        let is_far = with.destination.address == lab.far_ip();
        let stays = if is_far { 1 } else { 2 };
        // It shuts down, and is still listed.
        let mut slice = lab.pods("all", &[1, 2]);
        for endpoint in &mut slice.endpoints {
            if endpoint.ip == with.destination.address {
                *endpoint = endpoint.clone().drain();
            }
        }
        scene.slice(slice).step();
        let weights = |scene: &Scene| {
            let all = busy(scene).into_iter();
            all.map(|d| (d.destination.address, d.destination.weight))
                .collect::<std::collections::BTreeMap<_, _>>()
        };
        assert_eq!(weights(&scene)[&with.destination.address], 0);
        for answer in lab.answers(&lab.pod, lab.ask(Protocol::Tcp, Kind::ClusterIp, 1), 6) {
            assert!(
                matches!(answer, Answer::Served { by, .. } if by == stays),
                "{answer:?}"
            );
        }
        let now = Instant::now();
        assert!(scene.tick(now + Duration::from_mins(1)).is_some());
        assert_eq!(weights(&scene).len(), 2, "it is still connected");
        drop(connection);
        // What ended is remembered a while by the kernel, and does not keep it.
        let mut later = now + Duration::from_mins(2);
        for _ in 0..200 {
            later += Duration::from_mins(1);
            if scene.tick(later).is_none() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(weights(&scene).len(), 1);
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn ipvs_042_other_ports_of_an_address_are_refused() {
    everywhere(|lab| {
        let _scene = scene(lab, &[1, 2]);
        for kind in [Kind::ClusterIp, Kind::LoadBalancerIp] {
            let mut ask = lab.ask(Protocol::Tcp, kind, 1);
            ask.port = 22;
            assert_eq!(ask.put(&lab.pod), Answer::Refused, "{kind:?}");
        }
    });
}

#[test]
fn who_is_connected_goes_on_when_a_policy_keeps_others_out() {
    everywhere(|lab| {
        let mut scene = scene(lab, &[2]);
        let to = lab.target(Kind::LoadBalancerIp, 1);
        let mut stream = lab.out.run(move || TcpStream::connect(to).unwrap());
        let mut byte = [0];
        while byte != *b"\n" {
            stream.read_exact(&mut byte).unwrap();
        }
        scene.service(local(lab.full("all", 1))).step();
        let ask = lab.ask(Protocol::Tcp, Kind::LoadBalancerIp, 1);
        let answered = ferrule_testbed::Ask::unanswered(&[(&lab.out, ask)]);
        assert!(answered.is_empty(), "{answered:?}");
        stream.write_all(b"?").unwrap();
        stream.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"?");
    });
}
