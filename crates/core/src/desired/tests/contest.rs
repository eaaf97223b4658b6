//! Two claims to one address.

use super::*;
use crate::issue::ObjectKey;
use crate::model::Service;

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
            "Service ns/a: spec.externalIPs: 198.51.100.7:80/TCP is held by ns/z:http, which \
             receives its traffic; decided by age (the Service created first)"
        );

        // When the holder goes, the other takes over in the same step, and has no issue any more.
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
    let held = "198.51.100.7:80/TCP is held by ns0/s1:http, which receives its traffic; decided \
                by age (the Service created first)";
    let names_it = |issue: &&Issue| issue.message == held;
    let reported = scene.desired.issues().iter().filter(names_it).count();
    assert_eq!(reported, 298);
}

/// What is reported about the addresses of a Service, as `severity: message`.
fn reported(scene: &Cluster, service: &str) -> Vec<String> {
    let issues = scene.desired.issues().into_iter();
    issues
        .filter(|issue| issue.object == ObjectKey::Service(service_key(service)))
        .filter(|issue| issue.field != "EndpointSlices")
        .map(|issue| format!("{:?}: {}: {}", issue.severity, issue.field, issue.message))
        .collect()
}

#[test]
fn an_older_service_edited_to_name_a_held_address_takes_it_and_both_are_told() {
    let mut scene = Cluster::new();
    let old = |external| claims("ns/old", "10.96.0.1", 100, external);
    scene
        .service(old("198.51.100.1"))
        .service(claims("ns/young", "10.96.0.2", 200, "198.51.100.7"))
        .step();
    assert!(!scene.frontend("ns/young", ExternalIp).shadowed);
    let delta = scene.service(old("198.51.100.7")).step();
    assert_eq!(delta.families.v4.changes.len(), 2, "in one update");
    assert!(!scene.frontend("ns/old", ExternalIp).shadowed);
    assert!(scene.frontend("ns/young", ExternalIp).shadowed);
    assert_eq!(
        reported(&scene, "ns/young"),
        [
            "Warning: spec.externalIPs: 198.51.100.7:80/TCP is held by ns/old:http, which \
             receives its traffic; decided by age (the Service created first)"
        ]
    );
    assert_eq!(
        reported(&scene, "ns/old"),
        [
            "Note: spec.externalIPs: 198.51.100.7:80/TCP is also claimed by ns/young:http; this \
             Service receives its traffic; decided by age (the Service created first)"
        ]
    );
    // A proxy that starts now knows nothing of what was before, and decides the same.
    let mut restarted = Cluster::new();
    restarted
        .service(claims("ns/young", "10.96.0.2", 200, "198.51.100.7"))
        .service(old("198.51.100.7"))
        .step();
    assert_eq!(restarted.desired.issues(), scene.desired.issues());
    // Undoing the edit gives it back.
    scene.service(old("198.51.100.1")).step();
    assert!(!scene.frontend("ns/young", ExternalIp).shadowed);
    assert_eq!(reported(&scene, "ns/old"), [] as [String; 0]);
    assert_eq!(reported(&scene, "ns/young"), [] as [String; 0]);
}

#[test]
fn an_issue_names_the_rule_that_decided() {
    let mut scene = Cluster::new();
    let mut balanced = service("ns/c")
        .cluster_ip("10.96.0.3")
        .load_balancer(&["198.51.100.7"]);
    balanced.created = 900;
    scene
        .service(claims("ns/a", "10.96.0.1", 100, "10.96.0.2"))
        .service(claims("ns/b", "10.96.0.2", 100, "198.51.100.7"))
        .service(balanced)
        .service(claims("ns/d", "10.96.0.4", 100, "198.51.100.8").node_port(30000))
        .service(claims("ns/e", "10.96.0.5", 100, "198.51.100.8").node_port(30000))
        .step();
    assert_eq!(
        reported(&scene, "ns/a"),
        [
            "Warning: spec.externalIPs: 10.96.0.2:80/TCP is held by ns/b:http, which receives its \
             traffic; decided by kind (ClusterIP before ExternalIP)"
        ]
    );
    assert_eq!(
        reported(&scene, "ns/b"),
        [
            "Note: spec.clusterIPs: 10.96.0.2:80/TCP is also claimed by ns/a:http; this Service \
             receives its traffic; decided by kind (ClusterIP before ExternalIP)",
            "Warning: spec.externalIPs: 198.51.100.7:80/TCP is held by ns/c:http, which receives \
             its traffic; decided by kind (LoadBalancerIP before ExternalIP)",
        ]
    );
    assert_eq!(
        reported(&scene, "ns/e"),
        [
            "Warning: spec.externalIPs: 198.51.100.8:80/TCP is held by ns/d:http, which receives \
             its traffic; decided by name (both were created in the same second)",
            "Warning: spec.ports[].nodePort: NodePort 30000/TCP (IPv4) is held by ns/d:http, \
             which receives its traffic; decided by name (both were created in the same second)",
        ]
    );
}

/// A Service with `size` ports and `size` external IPs, which begin at number `first`.
fn many_addresses(key: &str, created: i64, first: usize, size: usize) -> Service {
    let mut service = service(key).cluster_ip(&format!("10.96.7.{created}"));
    service.created = created;
    service.external_ips = (first..first + size)
        .map(|n| ip(&format!("198.18.{}.{}", n / 250, n % 250)))
        .collect();
    service.ports = (0..size)
        .map(|n| {
            service_port(
                &format!("p{n:03}"),
                Protocol::Tcp,
                1000 + i64::try_from(n).unwrap(),
            )
        })
        .collect();
    service
}

/// Two Services arrive, the second of which takes everything that both name, and the second goes
/// again.
fn arrive_and_leave(size: usize, contested: bool) {
    let second = if contested { 0 } else { size };
    let mut scene = Cluster::new();
    scene.service(many_addresses("ns/a", 2, 0, size)).step();
    scene
        .service(many_addresses("ns/b", 1, second, size))
        .step();
    // Neither has a slice, which is an issue each.
    let issues = scene.desired.issues().len();
    assert_eq!(issues, if contested { 2 + 2 * 9 } else { 2 });
    scene.no_service("ns/b").step();
}

/// Nanoseconds that a processor worked for this thread, whatever else the machine does.
fn worked() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn sharing_every_address_costs_little_more_than_sharing_none() {
    // Often enough that the kernel's coarse accounting does not matter.
    let cost = |contested| {
        let start = worked();
        (0..20).for_each(|_| arrive_and_leave(60, contested));
        worked() - start
    };
    // Comparing each claim with each other makes this 100 times as much, and four times that for
    // twice the size.
    let (own, shared) = (cost(false), cost(true));
    assert!(shared < own * 8, "own: {own} ns, shared: {shared} ns");
}

#[test]
fn a_few_lost_addresses_are_listed_and_the_rest_are_counted() {
    let mut scene = Cluster::new();
    scene
        .service(many_addresses("ns/a", 2, 0, 20))
        .service(many_addresses("ns/b", 1, 0, 20))
        .step();
    let about = |scene: &Cluster, key: &str, severity: Severity| -> Vec<String> {
        let issues = scene.desired.issues().into_iter();
        issues
            .filter(|issue| issue.object == ObjectKey::Service(service_key(key)))
            .filter(|issue| issue.field != "EndpointSlices" && issue.severity == severity)
            .map(|issue| format!("{}: {}", issue.field, issue.message))
            .collect()
    };
    let lost = about(&scene, "ns/a", Severity::Warning);
    assert_eq!(lost.len(), 9, "{lost:#?}");
    assert_eq!(
        lost[..2],
        [
            "addresses: 400 IPv4 addresses are held by other Services; only 8 of them are listed \
             one by one",
            "spec.externalIPs: 198.18.0.0:1000/TCP is held by ns/b:p000, which receives its \
             traffic; decided by age (the Service created first)",
        ]
    );
    let held = about(&scene, "ns/b", Severity::Note);
    assert_eq!(held.len(), 9, "{held:#?}");
    assert_eq!(
        held[..2],
        [
            "addresses: 400 IPv4 addresses are also claimed by other Services; only 8 of them \
             are listed one by one",
            "spec.externalIPs: 198.18.0.0:1000/TCP is also claimed by ns/a:p000; this Service \
             receives its traffic; decided by age (the Service created first)",
        ]
    );
    // With eight or fewer there is nothing to count.
    scene.service(many_addresses("ns/b", 1, 0, 2)).step();
    assert_eq!(about(&scene, "ns/a", Severity::Warning).len(), 4);
    assert_eq!(about(&scene, "ns/b", Severity::Note).len(), 4);
    scene.no_service("ns/b").step();
    assert_eq!(about(&scene, "ns/a", Severity::Warning), [] as [String; 0]);
}

#[test]
fn one_port_of_many_that_moves_leaves_the_others_alone() {
    let mut scene = Cluster::new();
    let mut moving = many_addresses("ns/a", 1, 0, 20);
    scene
        .service(moving.clone())
        .service(many_addresses("ns/b", 2, 0, 20))
        .step();
    moving.ports[7].port = port(5000);
    let delta = scene.service(moving).step();
    let port_of = |service: &str| PortKey {
        name: "p007".into(),
        ..http(service)
    };
    assert_eq!(
        delta.families.v4.changes.keys().collect::<Vec<_>>(),
        [&port_of("ns/a"), &port_of("ns/b")]
    );
    let won = scene.desired.exposure(Family::V4, &port_of("ns/b"));
    assert_eq!(won.unwrap().holding().count(), 21);
}
