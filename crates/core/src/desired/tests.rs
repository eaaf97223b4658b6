//! What a cluster means on this node.

use std::collections::BTreeMap;

use super::*;
use crate::facts::{Connections, DetectLocal};
use crate::issue::{Kind, Severity};
use crate::model::{Protocol, ServiceType};
use crate::testing::*;
use crate::track::{Event, Object};

mod contest;
mod laws;
mod topology;

use FrontendKind::{ClusterIp, ExternalIp, LoadBalancerIp, NodePort};

fn one_pod(scene: &mut Cluster) {
    scene.slice(slice("ns/a-1", "ns/a", &[ep("10.1.0.1").local()]));
}

#[test]
fn core_080_a_dual_stack_service_has_its_address_in_each_family_and_a_single_stack_one_does_not() {
    let mut scene = Cluster::new();
    scene
        .service(service("ns/a").cluster_ip("fd00::1").node_port(30000))
        .service(service("ns/b").cluster_ip("10.96.0.2"))
        .slice(slice("ns/a-4", "ns/a", &[ep("10.1.0.1")]))
        .slice(slice("ns/a-6", "ns/a", &[ep("fd00:1::1")]));
    let delta = scene.step();
    assert_eq!(delta.families.v4.changed().count(), 2);
    assert_eq!(
        delta
            .families
            .v6
            .changed()
            .map(|(key, _)| key)
            .collect::<Vec<_>>(),
        [&http("ns/a")]
    );
    let v6 = scene.desired.exposure(Family::V6, &http("ns/a")).unwrap();
    assert_eq!(v6.frontends[0].ip, Some(ip("fd00::1")));
    assert_eq!(v6.frontends[1].kind, NodePort);
    assert_eq!(
        v6.endpoints.iter().map(|e| e.ip).collect::<Vec<_>>(),
        [ip("fd00:1::1")]
    );
    assert_eq!(
        scene.exposure("ns/a").endpoints.len(),
        1,
        "slices of the other family stay out"
    );
    assert_eq!(scene.desired.exposure(Family::V6, &http("ns/b")), None);
}

#[test]
fn core_081_tcp_and_udp_ports_with_one_name_are_two_exposures() {
    let mut scene = Cluster::new();
    let mut dns = service("ns/dns");
    dns.ports = [
        service_port("dns", Protocol::Tcp, 53),
        service_port("dns", Protocol::Udp, 53),
    ]
    .into();
    let mut pods = slice("ns/dns-1", "ns/dns", &[ep("10.1.0.1")]);
    pods.ports = [
        slice_port("dns", Protocol::Tcp, 5353),
        slice_port("dns", Protocol::Udp, 5354),
        slice_port("other", Protocol::Udp, 1),
    ]
    .into();
    scene.service(dns).slice(pods).step();
    let seen: Vec<String> = scene
        .desired
        .exposures(Family::V4)
        .iter()
        .map(|e| format!("{}/{} -> {}", e.key, e.key.protocol, e.endpoints[0]))
        .collect();
    assert_eq!(
        seen,
        [
            "ns/dns:dns/TCP -> 10.1.0.1:5353",
            "ns/dns:dns/UDP -> 10.1.0.1:5354"
        ]
    );
}

#[test]
fn core_083_source_ranges_are_per_family_and_a_zero_prefix_lifts_them() {
    let mut scene = Cluster::new();
    let balanced = service("ns/a")
        .cluster_ip("fd00::1")
        .load_balancer(&["198.51.100.1", "fd00:9::1"]);
    let ranges = |scene: &Cluster, family| {
        let exposure = scene.desired.exposure(family, &http("ns/a")).unwrap();
        exposure
            .source_ranges
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    scene
        .service(
            balanced
                .clone()
                .source_ranges(&["203.0.113.0/24", "10.0.0.0/8"]),
        )
        .step();
    assert_eq!(ranges(&scene, Family::V4), ["203.0.113.0/24", "10.0.0.0/8"]);
    assert!(
        ranges(&scene, Family::V6).is_empty(),
        "only the other family is restricted"
    );

    scene
        .service(
            balanced
                .clone()
                .source_ranges(&["10.0.0.0/8", "0.0.0.0/0", "fd00::/8"]),
        )
        .step();
    assert!(ranges(&scene, Family::V4).is_empty());
    assert_eq!(ranges(&scene, Family::V6), ["fd00::/8"]);

    // Ranges guard load balancer addresses only.
    scene
        .service(
            service("ns/a")
                .node_port(30000)
                .source_ranges(&["10.0.0.0/8"]),
        )
        .step();
    assert!(ranges(&scene, Family::V4).is_empty());
}

#[test]
fn a_range_that_holds_the_node_lets_the_load_balancer_address_in() {
    let mut scene = Cluster::new();
    scene.service(
        service("ns/a")
            .load_balancer(&["198.51.100.1"])
            .source_ranges(&["192.0.2.0/24"]),
    );
    scene
        .service(service("ns/b").cluster_ip("10.96.0.2"))
        .step();
    assert!(
        !scene.exposure("ns/a").source_ranges_include_node,
        "the node is unknown yet"
    );
    let delta = scene.node(node("a")).step();
    assert!(scene.exposure("ns/a").source_ranges_include_node);
    let changed: Vec<_> = delta
        .families
        .v4
        .changed()
        .map(|(key, _)| key.clone())
        .collect();
    assert_eq!(
        changed,
        [http("ns/a")],
        "only the guarded Service is redrawn"
    );
}

#[test]
fn core_084_external_local_counts_only_where_outside_traffic_can_arrive() {
    let mut scene = Cluster::new();
    let policy = |scene: &mut Cluster, service: Service| {
        scene.service(service).step();
        scene.exposure("ns/a").external_policy
    };
    let plain = service("ns/a").external_local();
    assert_eq!(policy(&mut scene, plain.clone()), TrafficPolicy::Cluster);
    assert_eq!(
        policy(&mut scene, plain.clone().node_port(30000)),
        TrafficPolicy::Local
    );
    assert_eq!(
        policy(&mut scene, plain.clone().awaiting_load_balancer()),
        TrafficPolicy::Local
    );
    // An external IP of the other family is enough.
    assert_eq!(
        policy(&mut scene, plain.external_ips(&["fd00:9::1"])),
        TrafficPolicy::Local
    );
}

use crate::model::Service;

#[test]
fn core_085_the_health_check_port_belongs_to_load_balancers_with_local_policy() {
    let mut scene = Cluster::new();
    one_pod(&mut scene);
    let check = |scene: &mut Cluster, mut service: Service| {
        service.health_check_field = Some(port(32000));
        scene.service(service).step();
        scene.desired.health_check(Family::V4, &service_key("ns/a"))
    };
    let balanced = service("ns/a").awaiting_load_balancer().external_local();
    assert_eq!(
        check(&mut scene, balanced.clone()),
        Some(HealthCheck {
            port: port(32000),
            local_ready: 1
        })
    );
    assert_eq!(scene.exposure("ns/a").health_check_port, Some(port(32000)));
    assert_eq!(
        check(&mut scene, service("ns/a").awaiting_load_balancer()),
        None
    );
    assert_eq!(
        check(
            &mut scene,
            service("ns/a").node_port(30000).external_local()
        ),
        None
    );
}

#[test]
fn core_067_health_counts_distinct_local_ready_addresses() {
    let mut scene = Cluster::new();
    let mut balanced = service("ns/a").awaiting_load_balancer().external_local();
    balanced.health_check_field = Some(port(32000));
    balanced.ports = [
        service_port("http", Protocol::Tcp, 80),
        service_port("dns", Protocol::Udp, 53),
    ]
    .into();
    let mut pods = slice(
        "ns/a-1",
        "ns/a",
        &[
            ep("10.1.0.1").local(),
            ep("10.1.0.2").local().drain(),
            ep("10.1.0.3").local().unready(),
            ep("10.1.0.4"),
        ],
    );
    pods.ports = [
        slice_port("http", Protocol::Tcp, 8080),
        slice_port("dns", Protocol::Udp, 53),
    ]
    .into();
    let delta = scene.service(balanced).slice(pods).step();
    let one = Some(HealthCheck {
        port: port(32000),
        local_ready: 1,
    });
    assert_eq!(
        delta.families.v4.health,
        BTreeMap::from([(service_key("ns/a"), one)])
    );
    let delta = scene.no_service("ns/a").step();
    assert_eq!(
        delta.families.v4.health,
        BTreeMap::from([(service_key("ns/a"), None)])
    );
}

#[test]
fn core_086_without_the_gate_external_ips_do_not_exist() {
    let open = service("ns/a")
        .external_ips(&["198.51.100.7"])
        .internal_local();
    let mut scene = Cluster::new();
    one_pod(scene.service(open.clone()));
    scene.step();
    assert_eq!(scene.answer("ns/a", ExternalIp), "balance 10.1.0.1");

    let mut scene = Cluster::with(Settings {
        allow_external_ips: false,
        ..Settings::default()
    });
    one_pod(scene.service(open));
    scene
        .slice(slice("ns/a-2", "ns/a", &[ep("10.1.0.2")]))
        .step();
    let exposure = scene.exposure("ns/a");
    assert_eq!(exposure.frontends.len(), 1);
    // Nor do they make the Service reachable from outside, which would want the cluster pool.
    assert_eq!(exposure.pool(Pool::Cluster).count(), 0);
}

#[test]
fn core_089_the_entry_that_is_not_shutting_down_wins_in_either_order() {
    for (first, second) in [("ns/a-1", "ns/a-2"), ("ns/a-2", "ns/a-1")] {
        let mut scene = Cluster::new();
        scene
            .service(service("ns/a").internal_local())
            .slice(slice(first, "ns/a", &[ep("10.1.0.1").drain()]))
            .slice(slice(second, "ns/a", &[ep("10.1.0.1").local()]))
            .step();
        assert_eq!(scene.answer("ns/a", ClusterIp), "balance 10.1.0.1");
        let issues = scene.desired.issues();
        assert_eq!(issues.len(), 1);
        assert_eq!(
            issues[0].object.name(),
            first,
            "the one that was left out is named"
        );
        assert_eq!(issues[0].severity, Severity::Note);
        assert!(issues[0].message.contains("10.1.0.1:8080"));
    }
}

#[test]
fn core_090_endpoints_are_sorted_by_their_text() {
    let mut scene = Cluster::new();
    let texts = [
        "10.0.0.2",
        "10.0.0.10",
        "10.0.0.1",
        "9.0.0.1",
        "10.0.0.100",
        "255.255.255.255",
    ];
    let endpoints: Vec<_> = texts.iter().map(ep).collect();
    scene
        .service(service("ns/a"))
        .slice(slice("ns/a-1", "ns/a", &endpoints))
        .step();
    let mut expected: Vec<String> = texts.iter().map(|text| format!("{text}:8080")).collect();
    expected.sort_unstable();
    let seen: Vec<String> = scene
        .exposure("ns/a")
        .endpoints
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(seen, expected);
    assert_eq!(seen[0], "10.0.0.100:8080");
}

proptest::proptest! {
    #[test]
    fn core_090_the_sort_key_orders_like_the_text(a: (std::net::IpAddr, u16), b: (std::net::IpAddr, u16)) {
        let make = |(ip, number): (std::net::IpAddr, u16)| (ip, port(i64::from(number.max(1))));
        let (a, b) = (make(a), make(b));
        let text = |(ip, port)| format_socket(ip, port);
        proptest::prop_assert_eq!(
            gather::text_key(a.0, a.1).cmp(&gather::text_key(b.0, b.1)),
            text(a).cmp(&text(b))
        );
    }
}

/// The addresses of a UDP exposure, and the backends behind each: what decides whether tracked
/// flows are stale.
fn flows(exposure: Option<&Exposure>) -> (Vec<Address>, Vec<(IpAddr, Port)>) {
    let udp = exposure.filter(|exposure| exposure.key.protocol == Protocol::Udp);
    udp.map_or_else(Default::default, |exposure| {
        let addresses = exposure.holding().map(|held| exposure.address(held));
        (addresses.collect(), exposure.answering.to_vec())
    })
}

#[test]
fn core_098_only_udp_endpoint_or_address_changes_make_flows_stale() {
    let mut scene = Cluster::new();
    let stale = |scene: &mut Cluster| {
        let delta = scene.step();
        assert_eq!(delta.families.v4.changes.len(), 1);
        let change = delta.families.v4.changes.values().next().unwrap();
        flows(change.before.as_deref()) != flows(change.after.as_deref())
    };
    scene
        .service(service("ns/a").udp())
        .slice(slice("ns/a-1", "ns/a", &[ep("10.1.0.1")]).udp());
    assert!(stale(&mut scene), "new");
    scene.slice(slice("ns/a-1", "ns/a", &[ep("10.1.0.2")]).udp());
    assert!(stale(&mut scene), "other backend");
    let mut sticky = service("ns/a").udp();
    sticky.affinity_seconds = crate::model::DEFAULT_AFFINITY_SECONDS.into();
    scene.service(sticky);
    assert!(!stale(&mut scene), "same addresses, same backends");
    scene.service(service("ns/a").udp().node_port(30000));
    assert!(stale(&mut scene), "other addresses");
    scene.no_slice("ns/a-1");
    assert!(stale(&mut scene), "last backend gone");
    scene.no_service("ns/a");
    assert!(stale(&mut scene), "Service gone");

    scene
        .service(service("ns/b"))
        .slice(slice("ns/b-1", "ns/b", &[ep("10.1.0.1")]));
    assert!(!stale(&mut scene), "TCP");
}

#[test]
fn backends_of_udp_are_all_that_answer_used_or_not() {
    let mut scene = Cluster::new();
    let endpoints = [
        ep("10.1.0.1").local(),
        ep("10.1.0.2"),
        ep("10.1.0.3").drain(),
        ep("10.1.0.4").dead(),
    ];
    scene
        .service(service("ns/a").udp().internal_local())
        .slice(slice("ns/a-1", "ns/a", &endpoints).udp())
        .step();
    let exposure = scene.exposure("ns/a");
    assert_eq!(exposure.endpoints.len(), 1);
    let answering: Vec<_> = exposure
        .answering
        .iter()
        .map(|(ip, _)| ip.to_string())
        .collect();
    assert_eq!(answering, ["10.1.0.1", "10.1.0.2", "10.1.0.3"]);
}

#[test]
fn idle_endpoints_are_listed_where_their_connections_are_drained() {
    let endpoints = [
        ep("10.1.0.1").local(),
        ep("10.1.0.2"),
        ep("10.1.0.3").local().drain(),
        ep("10.1.0.4").unready(),
    ];
    for connections in [Connections::Tracked, Connections::Drained] {
        let drained = connections == Connections::Drained;
        let mut scene = Cluster::with(Settings {
            connections,
            ..Settings::default()
        });
        scene
            .service(service("ns/a"))
            .slice(slice("ns/a-1", "ns/a", &endpoints))
            .step();
        let exposure = scene.exposure("ns/a");
        assert_eq!(exposure.endpoints.len(), 2);
        let idle = exposure.idle.iter();
        let idle: Vec<_> = idle.map(|e| (e.ip.to_string(), e.local)).collect();
        let expected = [
            ("10.1.0.3".to_owned(), true),
            ("10.1.0.4".to_owned(), false),
        ];
        assert_eq!(idle, if drained { &expected[..] } else { &[] });
        // One that goes for good is a change only where it is listed.
        scene.slice(slice("ns/a-1", "ns/a", &endpoints[..2]));
        assert_eq!(!scene.step().is_empty(), drained);
    }
}

#[test]
fn every_kind_of_address_comes_in_order_with_its_port() {
    let mut scene = Cluster::new();
    let mut all = service("ns/a")
        .node_port(30000)
        .external_ips(&["198.51.100.7", "fd00::7", "198.51.100.7"])
        .load_balancer(&["198.51.100.9"]);
    all.affinity_seconds = std::num::NonZeroU32::new(60);
    one_pod(scene.service(all));
    scene.step();
    let exposure = scene.exposure("ns/a");
    let seen: Vec<_> = exposure
        .frontends
        .iter()
        .map(|f| (f.kind, f.ip, f.port.get()))
        .collect();
    assert_eq!(
        seen,
        [
            (ClusterIp, Some(ip("10.96.0.1")), 80),
            (ExternalIp, Some(ip("198.51.100.7")), 80),
            (LoadBalancerIp, Some(ip("198.51.100.9")), 80),
            (NodePort, None, 30000),
        ]
    );
    assert_eq!(exposure.affinity_seconds, std::num::NonZeroU32::new(60));
    assert_eq!(exposure.holding().count(), 4);
}

#[test]
fn node_ports_are_served_whatever_the_type_says() {
    let mut scene = Cluster::new();
    let mut odd = service("ns/a").node_port(30000);
    odd.kind = ServiceType::ClusterIp;
    scene.service(odd).step();
    assert_eq!(scene.answer("ns/a", NodePort), "reject");
}

#[test]
fn masquerade_depends_on_policy_settings_and_what_can_be_told() {
    let detect = DetectLocal::ClusterCidr(["10.1.0.0/16".parse().unwrap()].into());
    let table = [
        (false, None, Masquerade::Never),
        (false, Some(detect.clone()), Masquerade::Outside),
        (true, None, Masquerade::Always),
        (true, Some(detect), Masquerade::Always),
    ];
    for (masquerade_all, detect, expected) in table {
        let mut settings = Settings {
            masquerade_all,
            ..Settings::default()
        };
        settings.detect_local = detect.unwrap_or(settings.detect_local);
        let mut scene = Cluster::with(settings);
        scene.service(service("ns/a").node_port(30000)).step();
        assert_eq!(scene.frontend("ns/a", ClusterIp).masquerade, expected);
        assert_eq!(
            scene.frontend("ns/a", NodePort).masquerade,
            Masquerade::Always
        );
        scene
            .service(service("ns/a").node_port(30000).external_local())
            .step();
        assert_eq!(
            scene.frontend("ns/a", NodePort).masquerade,
            Masquerade::Node
        );
    }
}

#[test]
fn new_settings_redraw_what_they_concern() {
    let mut scene = Cluster::new();
    scene
        .service(service("ns/a").external_ips(&["198.51.100.7"]))
        .step();
    let all = || Settings {
        masquerade_all: true,
        ..Settings::default()
    };
    let delta = scene.desired.reconfigure(&scene.tracker, all());
    assert_eq!(delta.families.v4.changed().count(), 1);
    assert!(delta.families.v4.facts);
    assert_eq!(
        scene.frontend("ns/a", ClusterIp).masquerade,
        Masquerade::Always
    );
    let facts = scene.desired.facts(Family::V4);
    assert_eq!(facts.cluster_ip_masquerade, Masquerade::Always);
    let again = scene.desired.reconfigure(&scene.tracker, all());
    assert!(again.is_empty());
    scene.settings = all();
    assert!(scene.step().is_empty());
}

#[test]
fn new_settings_before_the_first_lists_wait_for_them() {
    let mut tracker = Tracker::new(at(1000));
    let mut desired = Desired::new(Settings::default());
    tracker.on(put(Object::Service(service("ns/a"))));
    let settings = Settings {
        masquerade_all: true,
        ..Settings::default()
    };
    assert!(desired.reconfigure(&tracker, settings).is_empty());
    for kind in Kind::ALL {
        tracker.on(Event::Listed(kind));
    }
    let changes = tracker.take().unwrap();
    let delta = desired.update(&tracker, changes);
    assert_eq!(delta.families.v4.changed().count(), 1);
    let exposure = desired.exposure(Family::V4, &http("ns/a")).unwrap();
    assert_eq!(exposure.frontends[0].masquerade, Masquerade::Always);
}

/// A scene that recognises pods by the Node's pod networks.
fn by_node_network() -> Cluster {
    Cluster::with(Settings {
        detect_local: DetectLocal::NodeCidr,
        ..Settings::default()
    })
}

#[test]
fn core_038_pod_networks_that_come_late_are_taken_up_when_they_come() {
    let mut scene = by_node_network();
    scene.service(service("ns/a")).step();
    assert_eq!(
        scene.frontend("ns/a", ClusterIp).masquerade,
        Masquerade::Never
    );
    let mut named = node("a");
    named.pod_cidrs = ["10.1.0.0/24".parse().unwrap()].into();
    let delta = scene.node(named).step();
    assert_eq!(delta.families.v4.changed().count(), 1);
    assert_eq!(
        scene.frontend("ns/a", ClusterIp).masquerade,
        Masquerade::Outside
    );
}

#[test]
fn core_039_other_pod_networks_are_followed_without_a_restart() {
    let mut scene = by_node_network();
    let with = |net: &str| {
        let mut named = node("a");
        named.pod_cidrs = [net.parse().unwrap()].into();
        named
    };
    scene
        .node(with("10.1.0.0/24"))
        .service(service("ns/a"))
        .step();
    let delta = scene.node(with("10.2.0.0/24")).step();
    assert!(delta.families.v4.facts);
    assert!(
        delta.families.v4.changes.is_empty(),
        "the way to tell is still there"
    );
    let net = "10.2.0.0/24".parse().unwrap();
    let detector = crate::facts::Detector::Source(net);
    assert_eq!(scene.desired.facts(Family::V4).detector, Some(detector));

    // In the other modes nobody asks.
    let mut scene = Cluster::new();
    scene.node(with("10.1.0.0/24")).step();
    assert!(scene.node(with("10.2.0.0/24")).step().is_empty());
}

#[test]
fn one_port_changing_leaves_the_other_port_out_of_the_delta() {
    let mut scene = Cluster::new();
    let mut two = service("ns/a");
    two.ports = [
        service_port("http", Protocol::Tcp, 80),
        service_port("metrics", Protocol::Tcp, 90),
    ]
    .into();
    let mut metrics = slice("ns/a-2", "ns/a", &[ep("10.1.0.9")]);
    metrics.ports = [slice_port("metrics", Protocol::Tcp, 9090)].into();
    scene
        .service(two)
        .slice(metrics)
        .slice(slice("ns/a-1", "ns/a", &[ep("10.1.0.1")]))
        .step();
    let delta = scene
        .slice(slice("ns/a-1", "ns/a", &[ep("10.1.0.2")]))
        .step();
    assert_eq!(
        delta.families.v4.changes.keys().collect::<Vec<_>>(),
        [&http("ns/a")]
    );
}

/// The endpoints that are on one side of a change only: those that came, those that went.
fn endpoints(change: &Change) -> (Vec<Endpoint>, Vec<Endpoint>) {
    let list = |side: &Option<Arc<Exposure>>| side.as_ref().unwrap().endpoints.to_vec();
    let (before, after) = (list(&change.before), list(&change.after));
    let missing = |from: &[Endpoint], list: &[Endpoint]| {
        let missing = list.iter().filter(|endpoint| !from.contains(endpoint));
        missing.copied().collect()
    };
    (missing(&before, &after), missing(&after, &before))
}

#[test]
fn an_endpoint_added_among_a_thousand_leaves_its_neighbours_alone() {
    let mut scene = Cluster::new();
    let thousand = |extra: Option<&str>| -> Vec<_> {
        (0..1000)
            .map(|n| ep(&format!("10.1.{}.{}", n / 250, n % 250)))
            .chain(extra.map(ep))
            .collect()
    };
    scene
        .service(service("ns/a"))
        .service(service("ns/b").cluster_ip("10.96.0.2"));
    scene.slice(slice("ns/a-1", "ns/a", &thousand(None))).step();
    let delta = scene
        .slice(slice("ns/a-1", "ns/a", &thousand(Some("10.1.2.255"))))
        .step();
    assert_eq!(delta.families.v4.changes.len(), 1);
    let (added, removed) = endpoints(&delta.families.v4.changes[&http("ns/a")]);
    assert_eq!(
        added.iter().map(|e| e.ip).collect::<Vec<_>>(),
        [ip("10.1.2.255")]
    );
    assert_eq!(removed, []);
    let delta = scene.slice(slice("ns/a-1", "ns/a", &thousand(None))).step();
    let (added, removed) = endpoints(&delta.families.v4.changes[&http("ns/a")]);
    assert_eq!((added.len(), removed.len()), (0, 1));
}

#[test]
fn a_delta_that_was_not_applied_merges_with_the_next() {
    let mut scene = Cluster::new();
    scene.service(service("ns/a"));
    let mut kept = scene.step().families.v4;
    scene.slice(slice("ns/a-1", "ns/a", &[ep("10.1.0.1")]));
    kept.absorb(scene.step().families.v4);
    let change = &kept.changes[&http("ns/a")];
    assert_eq!(change.before, None);
    assert_eq!(change.after.as_ref().unwrap().endpoints.len(), 1);
    kept.absorb(scene.no_service("ns/a").step().families.v4);
    assert!(kept.changes.is_empty(), "it came and went");
}

#[test]
fn a_delta_carries_the_trigger_times_of_its_own_changes() {
    let mut scene = Cluster::new();
    let mut send = |address: &str, trigger| {
        let object = crate::track::Object::Slice(slice("ns/a-1", "ns/a", &[ep(address)]));
        scene.tracker.on(crate::track::Event::Put {
            object,
            issues: Vec::new(),
            trigger: Some(at(trigger)),
        });
        scene.step()
    };
    let (first, second) = (send("10.1.0.1", 2000), send("10.1.0.2", 2001));
    assert_eq!(first.triggers[&service_key("ns/a")], [at(2000)]);
    assert_eq!(second.triggers[&service_key("ns/a")], [at(2001)]);
}

#[test]
fn a_service_without_slices_and_a_slice_without_its_service_are_reported() {
    let mut scene = Cluster::new();
    scene
        .service(service("ns/lonely"))
        .slice(slice("ns/stray", "ns/nobody", &[ep("10.1.0.1")]))
        .service(service("ns/fine").cluster_ip("10.96.0.2"))
        .slice(slice("ns/fine-1", "ns/fine", &[ep("10.1.0.2")]))
        .step();
    let issues: Vec<_> = scene
        .desired
        .issues()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        issues,
        [
            "Service ns/lonely: EndpointSlices: no IPv4 EndpointSlice; connections to IPv4 addresses are rejected",
            "EndpointSlice ns/stray: metadata.labels[kubernetes.io/service-name]: \
             Service ns/nobody does not exist or has no cluster IP",
        ]
    );
    assert_eq!(scene.answer("ns/lonely", ClusterIp), "reject");
    assert_eq!(scene.answer("ns/fine", ClusterIp), "balance 10.1.0.2");
    scene
        .service(service("ns/nobody").cluster_ip("10.96.0.3"))
        .slice(slice("ns/lonely-1", "ns/lonely", &[]))
        .step();
    assert_eq!(scene.desired.issues(), [] as [Issue; 0]);
}

#[test]
fn totals_follow_every_change() {
    let mut scene = Cluster::new();
    scene
        .service(
            service("ns/a")
                .internal_local()
                .node_port(30000)
                .external_local(),
        )
        .slice(slice(
            "ns/a-1",
            "ns/a",
            &[ep("10.1.0.1"), ep("10.1.0.2"), ep("10.1.0.3").unready()],
        ))
        .step();
    let totals = Totals {
        ports: 1,
        endpoints: 2,
        listed: 3,
        no_local_internal: 1,
        no_local_external: 1,
    };
    assert_eq!(scene.desired.totals(Family::V4), totals);
    scene
        .slice(slice("ns/a-1", "ns/a", &[ep("10.1.0.1").local()]))
        .step();
    assert_eq!(
        scene.desired.totals(Family::V4),
        Totals {
            ports: 1,
            endpoints: 1,
            listed: 1,
            ..Totals::default()
        }
    );
    // Nobody may use it, but it is still there.
    scene
        .slice(slice("ns/a-1", "ns/a", &[ep("10.1.0.1").dead()]))
        .step();
    assert_eq!(scene.desired.totals(Family::V4).endpoints, 0);
    assert_eq!(scene.desired.totals(Family::V4).listed, 1);
    scene.no_service("ns/a").step();
    assert_eq!(scene.desired.totals(Family::V4), Totals::default());
}
