//! Which endpoints get traffic.

use super::*;
use crate::model::SliceEndpoint;

/// A scene with one Service and these endpoints, in zone `a`.
fn scene(service: Service, endpoints: &[SliceEndpoint]) -> Cluster {
    let mut scene = Cluster::new();
    scene
        .node(node("a"))
        .service(service)
        .slice(slice("ns/a-1", "ns/a", endpoints))
        .step();
    scene
}

fn pools(scene: &Cluster) -> (String, String) {
    let exposure = scene.exposure("ns/a");
    let list = |pool| {
        exposure
            .pool(pool)
            .map(|e| e.ip.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    (list(Pool::Cluster), list(Pool::Local))
}

#[test]
fn core_104_policies_and_reachability_decide_which_pools_exist() {
    let plain = || service("ns/a");
    let reachable = || service("ns/a").node_port(30000);
    let table = [
        (plain(), true, false),
        (reachable(), true, false),
        (plain().external_local(), true, false),
        (reachable().external_local(), true, true),
        (plain().internal_local(), false, true),
        (plain().internal_local().external_local(), false, true),
        (reachable().internal_local(), true, true),
        (reachable().internal_local().external_local(), true, true),
    ];
    for (row, (service, cluster, local)) in table.into_iter().enumerate() {
        let scene = scene(service, &[ep("10.1.0.1").local(), ep("10.1.0.2")]);
        let expected = (
            if cluster { "10.1.0.1 10.1.0.2" } else { "" }.to_owned(),
            if local { "10.1.0.1" } else { "" }.to_owned(),
        );
        assert_eq!(pools(&scene), expected, "row {row}");
    }
}

#[test]
fn core_104_each_pool_falls_back_to_draining_endpoints_by_itself() {
    // local ready, local draining, remote ready, remote draining → cluster, local, any
    let both = || {
        service("ns/a")
            .internal_local()
            .node_port(30000)
            .external_local()
    };
    let (lr, ld, rr, rd) = ("10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4");
    for bits in 0..16_u8 {
        let has = |bit: u8| bits & (1 << bit) != 0;
        // Two that are never used stand by: not ready, and shutting down without answering.
        let mut endpoints = vec![ep("10.1.0.5").unready(), ep("10.1.0.6").local().dead()];
        if has(0) {
            endpoints.push(ep(lr).local());
        }
        if has(1) {
            endpoints.push(ep(ld).local().drain());
        }
        if has(2) {
            endpoints.push(ep(rr));
        }
        if has(3) {
            endpoints.push(ep(rd).drain());
        }
        let join = |list: &[(bool, &str)]| {
            list.iter()
                .filter(|(has, _)| *has)
                .map(|(_, ip)| *ip)
                .collect::<Vec<_>>()
                .join(" ")
        };
        let cluster = if has(0) || has(2) {
            join(&[(has(0), lr), (has(2), rr)])
        } else {
            join(&[(has(1), ld), (has(3), rd)])
        };
        let local = if has(0) {
            lr
        } else if has(1) {
            ld
        } else {
            ""
        };
        let scene = scene(both(), &endpoints);
        assert_eq!(
            pools(&scene),
            (cluster.clone(), local.to_owned()),
            "{bits:04b}"
        );
        let expected = match (bits, local) {
            (0, _) => "reject".to_owned(),
            (_, "") => "drop".to_owned(),
            (_, local) => format!("balance {local}"),
        };
        assert_eq!(scene.answer("ns/a", ClusterIp), expected, "{bits:04b}");
        assert_eq!(scene.answer("ns/a", NodePort), expected, "{bits:04b}");
        let inside = if bits == 0 {
            String::new()
        } else {
            format!("balance {cluster}")
        };
        assert_eq!(scene.inside("ns/a", NodePort), inside, "{bits:04b}");
        assert_eq!(scene.inside("ns/a", ClusterIp), "");
    }
}

#[test]
fn endpoints_elsewhere_make_a_local_cluster_ip_drop_and_none_at_all_make_it_reject() {
    let local = || service("ns/a").internal_local();
    assert_eq!(
        scene(local(), &[ep("10.1.0.1")]).answer("ns/a", ClusterIp),
        "drop"
    );
    assert_eq!(
        scene(local(), &[ep("10.1.0.1").drain()]).answer("ns/a", ClusterIp),
        "drop"
    );
    assert_eq!(
        scene(local(), &[ep("10.1.0.1").dead()]).answer("ns/a", ClusterIp),
        "reject"
    );
    assert_eq!(scene(local(), &[]).answer("ns/a", ClusterIp), "reject");
}

#[test]
fn zone_hints_keep_traffic_in_the_zone() {
    let scene = scene(
        service("ns/a"),
        &[
            ep("10.1.0.1").zones(&["a"]),
            ep("10.1.0.2").zones(&["b"]),
            ep("10.1.0.3").zones(&["b", "a"]),
        ],
    );
    assert_eq!(scene.answer("ns/a", ClusterIp), "balance 10.1.0.1 10.1.0.3");
}

#[test]
fn core_105_one_ready_endpoint_without_a_hint_disables_them_and_unready_ones_do_not_matter() {
    let hinted = [ep("10.1.0.1").zones(&["a"]), ep("10.1.0.2").zones(&["b"])];
    let with = |extra: SliceEndpoint| {
        let endpoints = [&hinted[..], &[extra]].concat();
        scene(service("ns/a"), &endpoints).answer("ns/a", ClusterIp)
    };
    assert_eq!(with(ep("10.1.0.3")), "balance 10.1.0.1 10.1.0.2 10.1.0.3");
    assert_eq!(with(ep("10.1.0.3").unready()), "balance 10.1.0.1");
    assert_eq!(with(ep("10.1.0.3").drain()), "balance 10.1.0.1");
}

#[test]
fn core_106_hints_for_other_zones_only_are_ignored() {
    let elsewhere = [ep("10.1.0.1").zones(&["b"]), ep("10.1.0.2").zones(&["c"])];
    let all = "balance 10.1.0.1 10.1.0.2";
    assert_eq!(
        scene(service("ns/a"), &elsewhere).answer("ns/a", ClusterIp),
        all
    );
    // The one for our zone is not ready: as if it were not there.
    let mut endpoints = elsewhere.to_vec();
    endpoints.push(ep("10.1.0.3").zones(&["a"]).unready());
    assert_eq!(
        scene(service("ns/a"), &endpoints).answer("ns/a", ClusterIp),
        all
    );
    // A node without a zone uses everything.
    let mut nowhere = Cluster::new();
    let endpoints = [ep("10.1.0.1").zones(&["a"]), ep("10.1.0.2").zones(&["b"])];
    nowhere
        .service(service("ns/a"))
        .slice(slice("ns/a-1", "ns/a", &endpoints))
        .step();
    assert_eq!(nowhere.answer("ns/a", ClusterIp), all);
}

#[test]
fn core_107_node_hints_beat_zone_hints_when_complete_and_matching() {
    let hinted = |ip: &str, node: bool, zone: &str| ep(ip).for_node(node).zones(&[zone]);
    let answer =
        |endpoints: &[SliceEndpoint]| scene(service("ns/a"), endpoints).answer("ns/a", ClusterIp);
    assert_eq!(
        answer(&[
            hinted("10.1.0.1", true, "b"),
            hinted("10.1.0.2", false, "a")
        ]),
        "balance 10.1.0.1"
    );
    // None for this node: the zone decides.
    assert_eq!(
        answer(&[
            hinted("10.1.0.1", false, "b"),
            hinted("10.1.0.2", false, "a")
        ]),
        "balance 10.1.0.2"
    );
    // One has no node hint: the zone decides.
    assert_eq!(
        answer(&[hinted("10.1.0.1", true, "b"), ep("10.1.0.2").zones(&["a"])]),
        "balance 10.1.0.2"
    );
    // Neither is complete.
    assert_eq!(
        answer(&[ep("10.1.0.1").for_node(true), ep("10.1.0.2").zones(&["a"])]),
        "balance 10.1.0.1 10.1.0.2"
    );
}

#[test]
fn hints_are_ignored_once_every_endpoint_is_draining() {
    let scene = scene(
        service("ns/a"),
        &[
            ep("10.1.0.1").zones(&["a"]).drain(),
            ep("10.1.0.2").zones(&["b"]).drain(),
        ],
    );
    assert_eq!(scene.answer("ns/a", ClusterIp), "balance 10.1.0.1 10.1.0.2");
}

#[test]
fn core_108_the_local_pool_ignores_hints_and_the_union_stays_sorted() {
    let scene = scene(
        service("ns/a").node_port(30000).external_local(),
        &[
            ep("10.1.0.3").zones(&["a"]),
            ep("10.1.0.2").local().zones(&["b"]),
            ep("10.1.0.1").zones(&["b"]),
        ],
    );
    assert_eq!(
        pools(&scene),
        ("10.1.0.3".to_owned(), "10.1.0.2".to_owned())
    );
    let union: Vec<_> = scene
        .exposure("ns/a")
        .endpoints
        .iter()
        .map(|e| e.ip.to_string())
        .collect();
    assert_eq!(union, ["10.1.0.2", "10.1.0.3"]);
}

#[test]
fn core_109_a_new_zone_redraws_services_with_hints_and_no_others() {
    let mut scene = scene(
        service("ns/a"),
        &[ep("10.1.0.1").zones(&["a"]), ep("10.1.0.2").zones(&["b"])],
    );
    scene
        .service(service("ns/b").cluster_ip("10.96.0.2"))
        .slice(slice("ns/b-1", "ns/b", &[ep("10.1.0.9")]))
        .step();
    let delta = scene.node(node("b")).step();
    assert!(delta.families.v4.facts);
    assert_eq!(
        delta.families.v4.changes.keys().collect::<Vec<_>>(),
        [&http("ns/a")]
    );
    assert_eq!(scene.answer("ns/a", ClusterIp), "balance 10.1.0.2");
    // Other labels never reach the model: the same Node again is no change.
    scene.node(node("b"));
    assert_eq!(scene.take(), None);
}

#[test]
fn traffic_from_inside_uses_the_whole_cluster_though_outside_traffic_drops() {
    let scene = scene(
        service("ns/a").node_port(30000).external_local(),
        &[ep("10.1.0.1")],
    );
    assert_eq!(scene.answer("ns/a", NodePort), "drop");
    assert_eq!(scene.inside("ns/a", NodePort), "balance 10.1.0.1");
    assert_eq!(scene.answer("ns/a", ClusterIp), "balance 10.1.0.1");
}
