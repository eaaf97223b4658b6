//! What is refused and what is dropped: addresses without endpoints, ports that no Service has,
//! cluster IPs that nobody has.

use ferrule_kernel::nft::{Data, Verdict};
use ferrule_testbed::Side::{Node, Out, Pod};
use ferrule_testbed::cluster::Objects;
use ferrule_testbed::{Ask, EXTERNAL, KINDS, Kind, Protocol, SIDES, Side, local, net};

use crate::modes::{IPTABLES, IPVS, NFTABLES};
use crate::scene::{Scene, service, slice};
use crate::spy::Spy;
use crate::table::{Dropped, Refused, Row, Served, Source, pairs};
use crate::world::{World, everywhere, only_like};

/// What comes of packets to a Service without endpoints.
fn expect_refused(world: &World, protocols: &[Protocol], number: u8) {
    // As in kube-proxy: in mode iptables what the node itself sends does not come by the chain of
    // external addresses, and leaves by the default route.
    let from_node = if world.mode.like == IPTABLES {
        Dropped
    } else {
        Refused
    };
    world.expect_over(
        protocols,
        number,
        &[
            (&[Pod, Out], &KINDS, Refused),
            (&[Node], &[Kind::ClusterIp, Kind::NodePort], Refused),
            (
                &[Node],
                &[Kind::ExternalIp, Kind::LoadBalancerIp],
                from_node,
            ),
        ],
    );
}

#[test]
fn nft_029_addresses_without_endpoints_refuse() {
    everywhere(|world| {
        let mut scene = world.scene(world.by_pod_net());
        scene
            .service(world.full("all", 1))
            .service(local(world.full("local", 2)));
        scene.whole();
        for number in [1, 2] {
            expect_refused(world, &[Protocol::Udp], number);
        }
        let Some(table) = scene.table() else { return };
        let held = table.elements["no-endpoint-services"].iter();
        for element in held.chain(&table.elements["no-endpoint-nodeports"]) {
            let reject = Verdict::Goto("reject-chain".into());
            assert_eq!(element.data, Data::Verdict(reject));
            let comment = element.comment.as_ref().unwrap().as_str();
            assert!(comment.starts_with("demo/"), "{comment}");
        }
    });
}

#[test]
fn nft_081_refusals_are_unreachable_ports_for_every_protocol() {
    everywhere(|world| {
        let mut scene = world.scene(world.by_pod_net());
        scene.service(world.full("all", 1)).whole();
        expect_refused(world, &Protocol::ALL, 1);
    });
}

/// A Service bound to this node, with its only endpoint elsewhere.
fn far_only(world: &World) -> Scene {
    let mut scene = world.scene(world.by_pod_net());
    scene
        .service(local(world.full("local", 2)))
        .slice(world.pods("local", &[2]));
    scene.whole();
    scene
}

#[test]
fn nft_030_outside_traffic_without_an_endpoint_here_is_dropped_but_not_that_of_the_cluster() {
    everywhere(|world| {
        let scene = far_only(world);
        world.expect(
            2,
            &[
                (&[Pod], &EXTERNAL, Served(&[2], Source::Client)),
                (&[Node], &EXTERNAL, Served(&[2], Source::Node)),
                (&[Out], &EXTERNAL, Dropped),
            ],
        );
        let Some(table) = scene.table() else { return };
        let count = |name: &str| table.elements[name].len();
        assert_eq!(count("no-endpoint-services"), 9, "and the cluster IP");
        assert_eq!(count("no-endpoint-nodeports"), 3);
        assert_eq!(count("service-ips"), 6);
    });
}

#[test]
fn nft_031_a_cluster_ip_bound_to_a_node_without_endpoints_drops() {
    everywhere(|world| {
        let scene = far_only(world);
        // In mode ipvs packets of the node itself do not come by the chain that drops them.
        let from_node = if scene.is_like(IPVS) {
            Refused
        } else {
            Dropped
        };
        let rows: [Row; 2] = [
            (&[Pod, Out], &[Kind::ClusterIp], Dropped),
            (&[Node], &[Kind::ClusterIp], from_node),
        ];
        world.expect(2, &rows);
        let Some(table) = scene.table() else { return };
        let (ip, _) = world.target(Kind::ClusterIp, 2);
        let is_cluster_ip = |key: &[u8]| match ip {
            std::net::IpAddr::V4(ip) => key.starts_with(&ip.octets()),
            std::net::IpAddr::V6(ip) => key.starts_with(&ip.octets()),
        };
        for element in &table.elements["service-ips"] {
            assert!(!is_cluster_ip(element.key.as_bytes()));
        }
    });
}

/// Why cases about addresses that no Service uses are left out.
const NO_RULE: &str = "only mode nftables of kube-proxy has rules for all cluster IPs";

#[test]
fn nft_019_ports_that_a_cluster_ip_does_not_have_are_refused() {
    only_like(NFTABLES, NO_RULE, |world| {
        let mut scene = world.scene(world.by_pod_net());
        scene
            .service(service(world.family, "plain", 1))
            .slice(slice(world.family, "plain", &[(world.here_ip(), true)]));
        scene.whole();
        let (to, port) = world.target(Kind::ClusterIp, 1);
        world.expect_refused(&SIDES, &Protocol::ALL.map(|p| Ask::new(p, to, 81)));
        // The port is that of another protocol.
        let others = [Protocol::Udp, Protocol::Sctp].map(|p| Ask::new(p, to, port));
        world.expect_refused(&SIDES, &others);
    });
}

/// Whether packets to an address that no Service has leave the node, from which sides.
fn passing(world: &World) -> Vec<Side> {
    let (to, _) = world.target(Kind::ClusterIp, 99);
    let asks = world.asks(&[Kind::ClusterIp], 99);
    let all = u64::try_from(asks.len()).unwrap();
    let mut sides = Vec::new();
    for side in SIDES {
        let spy = Spy::on(world, to);
        world.assert_dropped(&pairs(&[side], &asks).collect::<Vec<_>>());
        match spy.count() {
            0 => {}
            count if count == all => sides.push(side),
            count => panic!("{count} of {all} packets passed"),
        }
    }
    sides
}

#[test]
fn nft_020_cluster_ips_that_nobody_has_are_dropped_if_their_network_is_known() {
    everywhere(|world| {
        let mut scene = world.scene(world.by_pod_net());
        scene.service(service(world.family, "plain", 1)).whole();
        assert_eq!(passing(world), SIDES);
        let cidr = net(world.family, 96, 8);
        scene.service_cidr("kubernetes", &[&cidr]).step();
        // Modes iptables and ipvs have no rule for them.
        let passed = if scene.is_like(IPTABLES) || scene.is_like(IPVS) {
            &SIDES[..]
        } else {
            &[]
        };
        assert_eq!(passing(world), passed);
    });
}

#[test]
fn nft_070_a_new_service_network_counts_at_once() {
    only_like(NFTABLES, NO_RULE, |world| {
        let cidr = |x, bits| net(world.family, x, bits);
        let mut scene = world.scene(world.by_pod_net());
        scene.service_cidr("kubernetes", &[&cidr(112, 8)]).whole();
        assert_eq!(passing(world), SIDES);
        scene.service_cidr("kubernetes", &[&cidr(96, 4)]);
        assert_eq!(scene.step(), 2, "one set is filled anew");
        assert_eq!(passing(world), []);
        scene.no_service_cidr("kubernetes");
        assert_eq!(scene.step(), 1);
        assert_eq!(passing(world), SIDES);
    });
}
