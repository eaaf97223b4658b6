//! What is refused and what is dropped: addresses without endpoints, ports that no Service has,
//! cluster IPs that nobody has.

use ferrule_core::facts::Settings;
use ferrule_kernel::nft::{Data, Verdict};
use ferrule_testbed::{Answer, Ask, Lab, Protocol, net};

use crate::matrix::*;
use crate::spy::Spy;
use crate::support::*;

fn all_refused(lab: &Lab, asks: impl IntoIterator<Item = Ask>) {
    for ask in asks {
        for side in SIDES {
            let answer = ask.put(side.place(lab));
            assert_eq!(answer, Answer::Refused, "{ask:?} from {side:?}");
        }
    }
}

#[test]
fn nft_029_addresses_without_endpoints_refuse() {
    Lab::both(|lab| {
        let mut scene = Scene::at(lab, by_pod_net(lab));
        let family = scene.family;
        scene
            .service(full(family, "all", 1))
            .service(local(full(family, "local", 2)));
        scene.whole();
        for kind in KINDS {
            all_refused(
                lab,
                [1, 2].map(|number| ask(lab, Protocol::Udp, kind, number)),
            );
        }
        let elements = &scene.snapshot().elements;
        let held = elements["no-endpoint-services"].iter();
        for element in held.chain(&elements["no-endpoint-nodeports"]) {
            let reject = Verdict::Goto("reject-chain".into());
            assert_eq!(element.data, Data::Verdict(reject));
            let comment = element.comment.as_ref().unwrap().as_str();
            assert!(comment.starts_with("demo/"), "{comment}");
        }
    });
}

#[test]
fn nft_081_refusals_are_unreachable_ports_for_every_protocol() {
    Lab::both(|lab| {
        let mut scene = Scene::at(lab, by_pod_net(lab));
        let family = scene.family;
        scene.service(full(family, "all", 1));
        scene.whole();
        for protocol in Protocol::ALL {
            all_refused(lab, KINDS.map(|kind| ask(lab, protocol, kind, 1)));
        }
    });
}

/// A Service bound to this node, with its only endpoint elsewhere.
fn far_only(lab: &Lab) -> Scene {
    let mut scene = Scene::at(lab, by_pod_net(lab));
    let family = scene.family;
    scene
        .service(local(full(family, "local", 2)))
        .slice(pods(lab, "local", &[2]));
    scene.whole();
    scene
}

#[test]
fn nft_030_outside_traffic_without_an_endpoint_here_is_dropped_but_not_that_of_the_cluster() {
    Lab::both(|lab| {
        let scene = far_only(lab);
        let mut asks = Vec::new();
        for (kind, protocol) in EXTERNAL
            .into_iter()
            .flat_map(|k| Protocol::ALL.map(|p| (k, p)))
        {
            let ask = ask(lab, protocol, kind, 2);
            asks.push(ask);
            let seen = lab.pod_ip();
            assert_eq!(ask.put(&lab.pod), Answer::Served { by: 2, seen });
            let seen = lab.masqueraded(2);
            assert_eq!(ask.put(&lab.node), Answer::Served { by: 2, seen });
        }
        let heard = Ask::unheard(&asks, &lab.out);
        assert!(heard.is_empty(), "{heard:?}");
        let elements = &scene.snapshot().elements;
        assert_eq!(
            elements["no-endpoint-services"].len(),
            9,
            "and the cluster IP"
        );
        assert_eq!(elements["no-endpoint-nodeports"].len(), 3);
        assert_eq!(elements["service-ips"].len(), 6);
    });
}

#[test]
fn nft_031_a_cluster_ip_bound_to_a_node_without_endpoints_drops() {
    Lab::both(|lab| {
        let scene = far_only(lab);
        let asks = Protocol::ALL.map(|protocol| ask(lab, protocol, Kind::ClusterIp, 2));
        for side in SIDES {
            let heard = Ask::unheard(&asks, side.place(lab));
            assert!(heard.is_empty(), "{side:?}: {heard:?}");
        }
        let (ip, _) = target(lab, Kind::ClusterIp, 2);
        let is_cluster_ip = |key: &[u8]| match ip {
            std::net::IpAddr::V4(ip) => key.starts_with(&ip.octets()),
            std::net::IpAddr::V6(ip) => key.starts_with(&ip.octets()),
        };
        for element in &scene.snapshot().elements["service-ips"] {
            assert!(!is_cluster_ip(element.key.as_bytes()));
        }
    });
}

#[test]
fn nft_018_every_cluster_ip_is_known_with_or_without_endpoints() {
    both(|family| {
        let mut scene = Scene::new(family);
        scene
            .service(service(family, "none", 1))
            .service(over_all(service(family, "some", 2)))
            .slice(slice(family, "some", &[(address(family, 1, 1), true)]));
        scene.whole();
        let held = scene.snapshot().elements["cluster-ips"].clone();
        let mut keys: Vec<_> = held.iter().map(|element| element.key).collect();
        keys.sort_unstable();
        let wanted = [1, 2].map(|number| address(family, 96, number).into());
        assert_eq!(keys, wanted);
        // Of several ports the last one takes the address away.
        scene.service(service(family, "some", 2)).step();
        assert_eq!(scene.snapshot().elements["cluster-ips"].len(), 2);
        scene.no_service("some").no_service("none").step();
        assert!(scene.snapshot().elements["cluster-ips"].is_empty());
    });
}

#[test]
fn nft_019_ports_that_a_cluster_ip_does_not_have_are_refused() {
    Lab::both(|lab| {
        let mut scene = Scene::at(lab, by_pod_net(lab));
        let family = scene.family;
        scene.service(service(family, "plain", 1)).slice(slice(
            family,
            "plain",
            &[(lab.here_ip(), true)],
        ));
        scene.whole();
        let (to, port) = target(lab, Kind::ClusterIp, 1);
        all_refused(
            lab,
            Protocol::ALL.map(|protocol| Ask::new(protocol, to, 81)),
        );
        // The port is that of another protocol.
        all_refused(lab, [Ask::new(Protocol::Udp, to, port)]);
        all_refused(lab, [Ask::new(Protocol::Sctp, to, port)]);
    });
}

/// Whether packets to an address that no Service has leave the node, from which sides.
fn passing(lab: &Lab) -> Vec<Side> {
    let (to, port) = target(lab, Kind::ClusterIp, 99);
    let asks = Protocol::ALL.map(|protocol| Ask::new(protocol, to, port));
    let mut sides = Vec::new();
    for side in SIDES {
        let spy = Spy::on(lab, to);
        assert!(Ask::unheard(&asks, side.place(lab)).is_empty());
        match spy.count() {
            0 => {}
            3 => sides.push(side),
            count => panic!("{count} of three packets passed"),
        }
    }
    sides
}

#[test]
fn nft_020_cluster_ips_that_nobody_has_are_dropped_if_their_network_is_known() {
    Lab::both(|lab| {
        let mut scene = Scene::at(lab, by_pod_net(lab));
        let family = scene.family;
        scene.service(service(family, "plain", 1));
        scene.whole();
        assert_eq!(passing(lab), SIDES);
        scene.service_cidr(&net(lab.family, 96, 8)).step();
        assert_eq!(passing(lab), []);
    });
}

#[test]
fn nft_021_service_networks_of_the_other_family_mean_nothing() {
    Lab::both(|lab| {
        let mut scene = Scene::at(lab, Settings::default());
        let other = match lab.family {
            ferrule_kernel::Family::V4 => ferrule_kernel::Family::V6,
            ferrule_kernel::Family::V6 => ferrule_kernel::Family::V4,
        };
        scene.service_cidr(&net(other, 96, 8));
        scene.whole();
        assert!(scene.snapshot().elements["ferrule-service-cidrs"].is_empty());
    });
}

#[test]
fn nft_070_a_new_service_network_counts_at_once() {
    Lab::both(|lab| {
        let mut scene = Scene::at(lab, by_pod_net(lab));
        scene.service_cidr(&net(lab.family, 112, 8));
        scene.whole();
        assert_eq!(passing(lab), SIDES);
        scene.service_cidr(&net(lab.family, 96, 4));
        assert_eq!(scene.step(), 2, "one set is filled anew");
        assert_eq!(passing(lab), []);
        scene.no_service_cidr();
        assert_eq!(scene.step(), 1);
        assert_eq!(passing(lab), SIDES);
    });
}
