//! What is in the kernel afterwards.

use ferrule_dataplane::Dataplane as _;
use std::io::Write;

use ferrule_core::model::{Family, TrafficPolicy};
use ferrule_kernel::nft::{Batch, Chain, Field, Name, Nft, Set, Table};
use ferrule_kernel::socket::Transport;

use crate::support::*;

/// One of each: balanced, refused, NodePort, load balancer with ranges, policies, affinity.
pub fn everything<T: Transport + Send>(scene: &mut Scene<T>) {
    let family = scene.family;
    let a = |x, y| address(family, x, y);
    let cidr = match family {
        Family::V4 => "10.96.0.0/16",
        Family::V6 => "fd00::60:0/112",
    };
    let ranges: &[&str] = match family {
        Family::V4 => &["192.0.2.0/24", "192.0.2.128/25", "198.51.100.0/24"],
        Family::V6 => &["2001:db8::/64", "2001:db8::/48", "2001:db8:1::/64"],
    };
    scene
        .node(node("here").at(a(2, 1)))
        .service_cidr("kubernetes", &[cidr])
        .service(service(family, "plain", 1))
        .slice(slice(family, "plain", &[(a(1, 1), false), (a(1, 2), true)]))
        .service(service(family, "none", 2))
        .service(service(family, "port", 3).node_port(30003))
        .slice(slice(family, "port", &[(a(1, 1), false), (a(1, 2), true)]))
        .service(
            service(family, "lb", 4)
                .load_balancer(&[a(9, 4)])
                .source_ranges(ranges)
                .node_port(30004)
                .affinity(600),
        )
        .slice(slice(
            family,
            "lb",
            &[(a(1, 3), false), (a(1, 4), true), (a(1, 5), false)],
        ));
    let mut local = service(family, "local", 5)
        .load_balancer(&[a(9, 5)])
        .node_port(30005);
    local.external_policy_field = TrafficPolicy::Local;
    local.external_ips = [a(8, 5)].into();
    // So many that they are in a set.
    let many: Vec<_> = (1..=20)
        .map(|x| ferrule_testbed::net(family, 2 * x, 8))
        .collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    local = local.source_ranges(&many);
    scene.service(local.clone()).slice(slice(
        family,
        "local",
        &[(a(1, 6), false), (a(1, 7), true)],
    ));
    let mut remote = local;
    remote.key = ferrule_core::model::ServiceKey::new("demo", "remote");
    remote.cluster_ips[family] = Some(a(96, 6));
    remote.external_ips = [a(8, 6)].into();
    remote.load_balancer_ips = [a(9, 6)].into();
    remote.ports[0].node_port = None;
    remote.internal_policy = TrafficPolicy::Local;
    scene.service(remote).slice(slice(
        family,
        "remote",
        &[(a(1, 6), false), (a(1, 7), false)],
    ));
}

#[test]
fn what_is_right_already_is_not_written_again() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        assert!(scene.whole() > 50);
        assert_eq!(scene.whole(), 0);
        let before = scene.snapshot();
        scene.restart();
        assert_eq!(scene.whole(), 0);
        assert_eq!(scene.snapshot().generation, before.generation);
        // The first delta after a start looks at everything.
        scene.restart();
        assert_eq!(scene.step(), 0);
    });
}

fn chains(scene: &Scene) -> Vec<Name> {
    let chains = scene.snapshot().chains;
    chains.into_iter().map(|held| held.object.name).collect()
}

#[test]
fn a_restart_writes_nothing_though_chains_are_left_that_nobody_needs() {
    both(|family| {
        let a = |y| (address(family, 1, y), false);
        let has = |scene: &Scene, name: &str| chains(scene).iter().any(|chain| **chain == *name);
        let mut scene = Scene::new(family);
        scene
            .service(service(family, "plain", 1))
            .slice(slice(family, "plain", &[a(1), a(2), a(3), a(4), a(5)]))
            .service(service(family, "sticky", 2).affinity(60))
            .slice(slice(family, "sticky", &[a(1)]));
        scene.whole();
        // There are so few that fewer slots do, and clients stay no more.
        scene
            .slice(slice(family, "plain", &[a(1)]))
            .service(service(family, "sticky", 2));
        scene.step();
        let stay = "stay-demo.sticky.http.tcp";
        let before = scene.snapshot();
        assert!(has(&scene, "pick-up-to-8") && has(&scene, stay));
        for _ in 0..2 {
            scene.restart();
            assert_eq!(scene.whole(), 0);
        }
        assert_eq!(scene.step(), 0);
        assert_eq!(scene.snapshot(), before);
        // One is needed again, the other goes.
        scene.slice(slice(family, "plain", &[a(1), a(2), a(3), a(4), a(5)]));
        scene.step();
        assert!(has(&scene, "pick-up-to-8") && !has(&scene, stay));
        agrees_with_fresh(&mut scene);
        // And if none is needed again, all go.
        scene.slice(slice(family, "plain", &[a(1)])).step();
        scene.restart();
        assert_eq!(scene.whole(), 0);
        scene.service(service(family, "another", 3)).step();
        assert!(!has(&scene, "pick-up-to-8"));
        scene.restart();
        assert_eq!(scene.whole(), 0);
        agrees_with_fresh(&mut scene);
    });
}

#[test]
fn what_somebody_else_changed_is_repaired() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let before = scene.snapshot();
        let mut nft = Nft::open().unwrap();
        for (name, elements) in &before.elements {
            let Some(element) = elements.iter().find(|e| !e.ends_range) else {
                continue;
            };
            let mut batch = Batch::new(kernel(family), TABLE);
            if name.contains("cidrs") {
                batch.flush_set(name);
            } else {
                batch.delete_elements(name, [element]);
            }
            nft.commit(&batch).unwrap();
        }
        let mut batch = Batch::new(kernel(family), TABLE);
        batch.flush_chain("services");
        batch.add_chain(&Chain::new("pick-77"));
        nft.commit(&batch).unwrap();
        assert!(scene.whole() > 10);
        same(&scene.snapshot(), &before);
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn a_table_of_somebody_else_is_replaced() {
    both(|family| {
        let mut nft = Nft::open().unwrap();
        let mut batch = Batch::new(kernel(family), TABLE);
        batch.add_table(&Table::new(TABLE));
        batch.add_set(&Set::new("service-ips", [Field::Port]));
        batch.add_chain(&Chain::new("service-ABC-demo/x/tcp/"));
        nft.commit(&batch).unwrap();
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let over = scene.snapshot();
        scene.dataplane.remove().unwrap();
        scene.whole();
        same(&scene.snapshot(), &over);
    });
}

#[test]
fn deltas_lead_to_the_same_as_a_fresh_start() {
    both(|family| {
        let a = |x, y| address(family, x, y);
        let mut scene = Scene::new(family);
        scene.whole();
        everything(&mut scene);
        assert!(scene.step() > 10);
        assert_eq!(scene.step(), 0);
        // Endpoints come and go, a Service goes, another one loses all endpoints.
        scene
            .slice(slice(
                family,
                "plain",
                &[(a(1, 9), true), (a(1, 2), true), (a(1, 1), true)],
            ))
            .no_service("port")
            .no_slice("lb-1");
        assert!(scene.step() > 0);
        agrees_with_fresh(&mut scene);
        scene
            .slice(slice(family, "lb", &[(a(1, 4), true)]))
            .service(service(family, "port", 3).node_port(30003))
            .no_slice("plain-1");
        assert!(scene.step() > 0);
        agrees_with_fresh(&mut scene);
        let cidr = match family {
            Family::V4 => "10.97.0.0/16",
            Family::V6 => "fd00::61:0/112",
        };
        scene
            .service_cidr("kubernetes", &[cidr])
            .node(node("here").at(a(2, 2)));
        assert_eq!(scene.step(), 2);
        agrees_with_fresh(&mut scene);
        for name in ["plain", "none", "port", "lb", "local", "remote"] {
            scene.no_service(name);
        }
        scene.step();
        agrees_with_fresh(&mut scene);
        let elements = scene.snapshot().elements;
        let left = elements.iter().filter(|(_, list)| !list.is_empty());
        assert_eq!(
            left.map(|(name, _)| &**name).collect::<Vec<_>>(),
            ["ferrule-service-cidrs"]
        );
    });
}

/// Whether the kernel has exactly what it would have after a fresh start, chains that nothing
/// leads to aside.
pub fn agrees_with_fresh(scene: &mut Scene) {
    let found = scene.snapshot();
    assert_eq!(
        scene.snapshot().elements.keys().count(),
        found.elements.keys().count()
    );
    scene.dataplane.remove().unwrap();
    scene.whole();
    let fresh = scene.snapshot();
    same_elements(&found, &fresh);
    for chain in &fresh.chains {
        let rules = |snapshot: &ferrule_kernel::nft::Snapshot| {
            let rules = snapshot.rules.iter().map(|held| held.object.clone());
            rules
                .filter(|rule| rule.chain == chain.object.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(rules(&found), rules(&fresh));
    }
}

fn same(found: &ferrule_kernel::nft::Snapshot, wanted: &ferrule_kernel::nft::Snapshot) {
    same_elements(found, wanted);
    let rules = |snapshot: &ferrule_kernel::nft::Snapshot| {
        let mut rules: Vec<_> = snapshot
            .rules
            .iter()
            .map(|held| held.object.clone())
            .collect();
        rules.sort_by(|a, b| a.chain.cmp(&b.chain));
        rules
    };
    assert_eq!(rules(found), rules(wanted));
    assert_eq!(found.chains.len(), wanted.chains.len());
}

fn same_elements(found: &ferrule_kernel::nft::Snapshot, wanted: &ferrule_kernel::nft::Snapshot) {
    for (name, elements) in &wanted.elements {
        let sorted = |list: &[ferrule_kernel::nft::Element]| {
            let mut list = list.to_vec();
            list.sort_by_key(|element| element.key);
            list
        };
        assert_eq!(sorted(&found.elements[name]), sorted(elements), "{name}");
    }
}

#[test]
fn people_can_read_the_rules() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let text = run("nft", &["list", "ruleset"]);
        for part in [
            "comment \"rules for kube-proxy\"",
            "comment \"demo/plain:http\" : goto pick-up-to-4",
            "comment \"demo/none:http\" : goto reject-chain",
            "comment \"Drop traffic to unallocated ClusterIPs\"",
            "ct state new jump firewall-check",
            "goto stay-demo.lb.http.tcp-masquerade",
            "update @ferrule-affinity-demo.lb.http.tcp-",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    });
}

#[test]
fn kube_proxy_can_take_the_table_over() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let before = scene.snapshot();
        let (table, address) = match family {
            Family::V4 => ("ip kube-proxy", "ipv4_addr"),
            Family::V6 => ("ip6 kube-proxy", "ipv6_addr"),
        };
        let text = TAKE_OVER.replace("TABLE", table).replace("ADDR", address);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        run("nft", &["-f", file.path().to_str().unwrap()]);
        // And back: rules are repaired, elements were never touched.
        same_elements(&scene.snapshot(), &before);
        assert!(scene.whole() > 0);
        same(&scene.snapshot(), &before);
    });
}

/// What kube-proxy does to a table that it finds, before it looks at elements.
const TAKE_OVER: &str = r#"
add table TABLE { comment "rules for kube-proxy" ; }
add chain TABLE nat-output
delete chain TABLE nat-output
add chain TABLE filter-input
delete chain TABLE filter-input
add chain TABLE nat-output { type nat hook output priority -100 ; }
flush chain TABLE nat-output
add chain TABLE filter-input { type filter hook input priority 0 ; }
flush chain TABLE filter-input
add chain TABLE services
flush chain TABLE services
add rule TABLE nat-output jump services
add chain TABLE cluster-ips-check
flush chain TABLE cluster-ips-check
add set TABLE hairpin-connections { type ADDR . ADDR . inet_proto . inet_service ; comment "service hairpin connections" ; }
add set TABLE cluster-ips { type ADDR ; comment "Active ClusterIPs" ; }
add set TABLE nodeport-ips { type ADDR ; comment "IPs that accept NodePort traffic" ; }
delete set TABLE nodeport-ips
add map TABLE no-endpoint-services { type ADDR . inet_proto . inet_service : verdict ; }
add map TABLE no-endpoint-nodeports { type inet_proto . inet_service : verdict ; }
add map TABLE firewall-ips { type ADDR . inet_proto . inet_service : verdict ; }
add map TABLE service-ips { type ADDR . inet_proto . inet_service : verdict ; }
add map TABLE service-nodeports { type inet_proto . inet_service : verdict ; }
add rule TABLE services meta l4proto . th dport vmap @service-nodeports
"#;
