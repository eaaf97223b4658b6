//! Who is served by whom, and whom the pod sees: every kind of address, both policies, every
//! protocol, from every side.
//!
//! Service 1 is for everybody, Service 2 for traffic that stays on the node. Each has every kind of
//! address, and its two endpoints are a pod here and one far away.

use ferrule_core::model::Protocol as Port;
use ferrule_testbed::Side::{Node, Out, Pod};
use ferrule_testbed::cluster::{Objects, slice_key};
use ferrule_testbed::{Answer, EXTERNAL, KINDS, Kind, Protocol, SIDES, local};

use crate::modes::IPVS;
use crate::scene::Scene;
use crate::table::{Refused, Row, Served, Source};
use crate::world::{World, everywhere};

const CLUSTER_IP: &[Kind] = &[Kind::ClusterIp];

/// What comes of packets to Service 1, whose policies are Cluster.
const TO_EVERYBODY: [Row; 4] = [
    (&[Pod], CLUSTER_IP, Served(&[1, 2], Source::Client)),
    (&[Node, Out], CLUSTER_IP, Served(&[1, 2], Source::Node)),
    (&[Pod, Out], &EXTERNAL, Served(&[1, 2], Source::Node)),
    (&[Node], &EXTERNAL, Served(&[1, 2], Source::Node)),
];

/// What comes of packets to Service 2, whose policies are Local.
const TO_THE_NODE: [Row; 5] = to_the_node(&[1, 2]);

/// The same in mode ipvs (docs/decisions/0008-one-server-per-address.md).
const TO_THE_NODE_IN_IPVS: [Row; 5] = to_the_node(&[1]);

/// Who is inside the cluster is not bound by a policy about outside traffic, and is led to these.
const fn to_the_node(inside: &'static [u8]) -> [Row; 5] {
    [
        (&[Pod], CLUSTER_IP, Served(&[1], Source::Client)),
        (&[Node, Out], CLUSTER_IP, Served(&[1], Source::Node)),
        (&[Pod], &EXTERNAL, Served(inside, Source::Client)),
        (&[Node], &EXTERNAL, Served(inside, Source::Node)),
        (&[Out], &EXTERNAL, Served(&[1], Source::Client)),
    ]
}

fn rows_to_the_node(world: &World) -> [Row; 5] {
    if world.mode.like == IPVS {
        TO_THE_NODE_IN_IPVS
    } else {
        TO_THE_NODE
    }
}

/// A scene with both Services.
fn scene(world: &World, endpoints: &[u8]) -> Scene {
    let mut scene = world.scene(world.by_pod_net());
    scene
        .service(world.full("all", 1))
        .slice(world.pods("all", endpoints))
        .service(local(world.full("local", 2)))
        .slice(world.pods("local", endpoints));
    scene.whole();
    scene
}

#[test]
fn nft_026_a_cluster_ip_follows_the_internal_policy() {
    everywhere(|world| {
        let _scene = scene(world, &[1, 2]);
        world.expect(1, &TO_EVERYBODY[..2]);
        world.expect(2, &rows_to_the_node(world)[..2]);
    });
}

#[test]
fn nft_032_outside_traffic_to_all_endpoints_is_masqueraded() {
    everywhere(|world| {
        let _scene = scene(world, &[1, 2]);
        world.expect(1, &TO_EVERYBODY[2..]);
    });
}

#[test]
fn nft_033_outside_traffic_bound_to_the_node_spares_pods_and_node() {
    everywhere(|world| {
        let _scene = scene(world, &[1, 2]);
        world.expect(2, &rows_to_the_node(world)[2..]);
    });
}

#[test]
fn nft_078_a_pod_reaches_all_endpoints_of_an_address_bound_to_the_node() {
    everywhere(|world| {
        let _scene = scene(world, &[1, 2]);
        world.expect(2, &rows_to_the_node(world)[2..3]);
    });
}

#[test]
fn nft_079_the_node_reaches_all_endpoints_of_an_address_bound_to_it_masqueraded() {
    everywhere(|world| {
        let _scene = scene(world, &[1, 2]);
        world.expect(2, &rows_to_the_node(world)[3..4]);
    });
}

#[test]
fn nft_080_outside_clients_of_an_address_bound_to_the_node_keep_their_address() {
    everywhere(|world| {
        let _scene = scene(world, &[1, 2]);
        let row = (&[Out][..], &EXTERNAL[..], Served(&[1], Source::Client));
        world.expect(2, &[row]);
    });
}

#[test]
fn nft_077_a_pod_that_reaches_itself_is_masqueraded() {
    everywhere(|world| {
        let _scene = scene(world, &[1]);
        let seen = world.masqueraded(1);
        for ask in [world.asks(&KINDS, 1), world.asks(&KINDS, 2)].concat() {
            let answer = ask.put(&world.here);
            assert_eq!(answer, Answer::Served { by: 1, seen }, "{ask:?}");
        }
    });
}

/// Whether these answer while there are endpoints, and refuse when there are none any more.
fn comes_and_goes(world: &World, kinds: &'static [Kind]) {
    let mut scene = scene(world, &[1, 2]);
    for endpoints in [&[1, 2][..], &[], &[1, 2]] {
        scene
            .slice(world.pods("all", endpoints))
            .slice(world.pods("local", endpoints))
            .step();
        let [all, local] = if endpoints.is_empty() {
            [Refused; 2]
        } else {
            [Served(&[1, 2], Source::Node), Served(&[1], Source::Client)]
        };
        world.expect(1, &[(&[Out], kinds, all)]);
        world.expect(2, &[(&[Out], kinds, local)]);
    }
}

#[test]
fn nft_027_external_and_load_balancer_ips_answer_while_there_are_endpoints() {
    everywhere(|world| comes_and_goes(world, &[Kind::ExternalIp, Kind::LoadBalancerIp]));
}

#[test]
fn nft_028_node_ports_answer_while_there_are_endpoints() {
    everywhere(|world| comes_and_goes(world, &[Kind::NodePort]));
}

#[test]
fn nft_049_protocols_on_one_port_are_independent() {
    everywhere(|world| {
        let mut scene = world.scene(world.by_pod_net());
        scene.service(world.full("all", 1));
        // TCP here, UDP far away, SCTP nowhere.
        for (number, protocol) in [(1, Port::Tcp), (2, Port::Udp)] {
            let mut slice = world.pods("all", &[number]).over(&[protocol]);
            slice.key = slice_key(protocol.lower());
            scene.slice(slice);
        }
        scene.whole();
        for (protocol, outcome) in [
            (Protocol::Tcp, Served(&[1], Source::Node)),
            (Protocol::Udp, Served(&[2], Source::Node)),
            (Protocol::Sctp, Refused),
        ] {
            world.expect_over(&[protocol], 1, &[(&[Out], &KINDS, outcome)]);
        }
    });
}

#[test]
fn nft_082_every_endpoint_is_drawn_equally_often() {
    everywhere(|world| {
        let _scene = scene(world, &[1, 2]);
        for kind in KINDS {
            let ask = world.ask(Protocol::Udp, kind, 1);
            let by = |answer| matches!(answer, Answer::Served { by: 1, .. });
            let here = (0..200).filter(|_| by(ask.put(&world.out))).count();
            // Six standard deviations from the middle.
            assert!((58..=142).contains(&here), "{kind:?}: {here} of 200");
        }
    });
}

#[test]
fn every_side_is_in_the_table() {
    for rows in [&TO_EVERYBODY[..], &TO_THE_NODE] {
        let asked = rows.iter().flat_map(|(sides, kinds, _)| {
            let each = kinds.iter();
            each.flat_map(|kind| sides.iter().map(move |side| (*side, *kind)))
        });
        assert_eq!(asked.count(), SIDES.len() * KINDS.len());
    }
}
