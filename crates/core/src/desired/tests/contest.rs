//! Two claims to one address.

use super::*;

fn claims(key: &str, cluster_ip: &str, created: i64, external: &str) -> Service {
    let mut service = service(key)
        .cluster_ip(cluster_ip)
        .external_ips(&[external]);
    service.created = created;
    service
}

fn holder(scene: &Cluster, kind: FrontendKind, services: [&str; 2]) -> Vec<String> {
    services
        .into_iter()
        .filter(|key| {
            scene
                .exposure(key)
                .frontends
                .iter()
                .any(|frontend| frontend.kind == kind && !frontend.shadowed)
        })
        .map(ToOwned::to_owned)
        .collect()
}

#[test]
fn the_older_service_keeps_an_external_ip_whoever_arrives_first() {
    let old = claims("ns/z", "10.96.0.1", 100, "198.51.100.7");
    let new = claims("ns/a", "10.96.0.2", 200, "198.51.100.7");
    for order in [[old.clone(), new.clone()], [new, old]] {
        let mut scene = Cluster::new();
        for service in order {
            scene.service(service).step();
        }
        assert_eq!(holder(&scene, ExternalIp, ["ns/a", "ns/z"]), ["ns/z"]);
        let issues: Vec<_> = scene
            .desired
            .issues()
            .into_iter()
            .filter(|i| i.severity == Severity::Warning)
            .collect();
        assert_eq!(issues.len(), 1);
        assert_eq!(
            issues[0].to_string(),
            "Service ns/a: ExternalIP: 198.51.100.7:80/TCP is held by ns/z:http"
        );

        // When the holder goes, the other takes over in the same step, and complains no more.
        let delta = scene.no_service("ns/z").step();
        assert_eq!(delta.families.v4.changes.len(), 2);
        assert!(!scene.frontend("ns/a", ExternalIp).shadowed);
        assert!(
            scene
                .desired
                .issues()
                .iter()
                .all(|issue| issue.severity == Severity::Note)
        );
    }
}

#[test]
fn an_external_ip_cannot_take_over_a_cluster_ip() {
    let mut scene = Cluster::new();
    let thief = claims("ns/a", "10.96.0.2", 1, "10.96.0.9");
    let mut victim = service("ns/b").cluster_ip("10.96.0.9");
    victim.created = 1000;
    scene.service(thief).service(victim).step();
    assert!(scene.frontend("ns/a", ExternalIp).shadowed);
    assert!(!scene.frontend("ns/b", ClusterIp).shadowed);
}

#[test]
fn one_service_may_name_an_address_twice() {
    let mut scene = Cluster::new();
    scene
        .service(
            service("ns/a")
                .load_balancer(&["198.51.100.7"])
                .external_ips(&["198.51.100.7"]),
        )
        .step();
    assert!(scene.frontend("ns/a", ExternalIp).shadowed);
    assert!(!scene.frontend("ns/a", LoadBalancerIp).shadowed);
    assert!(
        scene
            .desired
            .issues()
            .iter()
            .all(|issue| issue.severity == Severity::Note)
    );
}

#[test]
fn a_claim_that_moves_away_leaves_no_trace() {
    let mut scene = Cluster::new();
    scene
        .service(claims("ns/a", "10.96.0.1", 1, "198.51.100.7"))
        .service(claims("ns/b", "10.96.0.2", 2, "198.51.100.7"))
        .step();
    assert!(scene.frontend("ns/b", ExternalIp).shadowed);
    let delta = scene
        .service(claims("ns/b", "10.96.0.2", 2, "198.51.100.8"))
        .step();
    assert_eq!(
        delta.families.v4.changes.keys().collect::<Vec<_>>(),
        [&http("ns/b")]
    );
    assert!(!scene.frontend("ns/b", ExternalIp).shadowed);
    assert!(
        scene
            .desired
            .issues()
            .iter()
            .all(|issue| issue.severity == Severity::Note)
    );
}

#[test]
fn different_protocols_do_not_contest() {
    let mut scene = Cluster::new();
    scene
        .service(claims("ns/a", "10.96.0.1", 1, "198.51.100.7"))
        .service(claims("ns/b", "10.96.0.2", 2, "198.51.100.7").udp())
        .step();
    assert!(!scene.frontend("ns/a", ExternalIp).shadowed);
    assert!(!scene.frontend("ns/b", ExternalIp).shadowed);
}

#[test]
fn a_loser_that_changes_leaves_its_many_rivals_alone() {
    let mut scene = Cluster::new();
    for n in 0..300 {
        let cluster_ip = format!("10.96.1.{}", n % 250);
        scene.service(claims(
            &format!("ns{}/s{n}", n / 250),
            &cluster_ip,
            n,
            "198.51.100.7",
        ));
    }
    scene.step();
    let mut changed = claims("ns0/s7", "10.96.1.7", 7, "198.51.100.7");
    changed.affinity_seconds = Some(crate::model::DEFAULT_AFFINITY_SECONDS);
    let delta = scene.service(changed).step();
    assert_eq!(
        delta.families.v4.changes.keys().collect::<Vec<_>>(),
        [&http("ns0/s7")]
    );
    assert!(scene.frontend("ns0/s7", ExternalIp).shadowed);
    // The holder goes: the next oldest takes over, and all the others name it from now on.
    scene.no_service("ns0/s0").step();
    assert!(!scene.frontend("ns0/s1", ExternalIp).shadowed);
    let names_it = |issue: &&Issue| issue.message.ends_with("is held by ns0/s1:http");
    let told = scene.desired.issues().into_iter().filter(names_it).count();
    assert!(told >= 298, "{told}");
}
