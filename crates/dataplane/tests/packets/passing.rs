//! The life of one Service, seen by a client outside: packets that only pass through the node.

use ferrule_core::model::Service;
use ferrule_testbed::Side::Out;
use ferrule_testbed::cluster::Objects;
use ferrule_testbed::{Answer, KINDS, Kind, Protocol, net};

use crate::table::{Dropped, Refused, Row, Served, Source};
use crate::world::{World, everywhere};

/// A Service of a load balancer that serves these networks.
fn exposed(world: &World, x: u8) -> Service {
    world
        .full("web", 1)
        .source_ranges(&[&net(world.family, x, 8)])
}

const CLUSTER_IP: &[Kind] = &[Kind::ClusterIp];
const VIP: &[Kind] = &[Kind::LoadBalancerIp];
const NODE_PORT: &[Kind] = &[Kind::NodePort];
const GUARDED: &[Kind] = &[Kind::ClusterIp, Kind::LoadBalancerIp, Kind::NodePort];
const OUTER: &[Kind] = &[Kind::LoadBalancerIp, Kind::NodePort];

const fn masqueraded(kinds: &'static [Kind]) -> Row {
    (&[Out], kinds, Served(&[1, 2], Source::Node))
}

#[test]
fn packets_of_others_are_led_to_pods() {
    everywhere(|world| {
        let mut scene = world.scene(world.by_pod_net());
        // The client's network is 3.
        scene
            .service(exposed(world, 3))
            .slice(world.pods("web", &[1]));
        scene.whole();
        // A pod that reaches itself sees the node; else it would answer itself directly.
        let ask = world.ask(Protocol::Tcp, Kind::ClusterIp, 1);
        let seen = world.masqueraded(1);
        assert_eq!(ask.put(&world.here), Answer::Served { by: 1, seen });
        scene.slice(world.pods("web", &[1, 2])).step();
        world.expect(1, &[masqueraded(GUARDED)]);
        scene.service(exposed(world, 4)).step();
        world.expect(1, &[(&[Out], VIP, Dropped), masqueraded(NODE_PORT)]);
        // Kept on this node, clients outside keep their address.
        scene.service(exposed(world, 3).external_local()).step();
        let here = Served(&[1], Source::Client);
        world.expect(1, &[(&[Out], OUTER, here), masqueraded(CLUSTER_IP)]);
        scene.slice(world.pods("web", &[2])).step();
        world.expect(1, &[(&[Out], OUTER, Dropped)]);
        scene.no_slice("web-1").step();
        world.expect(1, &[(&[Out], &KINDS, Refused)]);
    });
}
