//! What `verify` finds in the tables of iptables, and what it does not.

use ferrule_core::model::Family;
use ferrule_dataplane::host::Addresses;
use ferrule_dataplane::iptables::{self as mode, Options};
use ferrule_dataplane::verify::Kind::{self, Different, Missing, Unexpected};
use ferrule_dataplane::verify::Report;
use ferrule_kernel::nfacct::Nfacct;
use ferrule_kernel::xt::{Flavour, Xt};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;

use crate::random::{happen, happenings};
use crate::recorded::{self, RECORDED, with_counters};
use crate::support::*;

fn verify(scene: &Scene) -> Report {
    let xt = Xt::open_as(scene.flavour, kernel(scene.family)).unwrap();
    let local = Addresses::open().unwrap().list();
    let (desired, options) = (&scene.cluster.desired, Options::default());
    mode::verify_by(xt, desired, scene.family, options, &local).unwrap()
}

fn assert_right(scene: &Scene, when: &str) {
    assert_eq!(verify(scene), Report::default(), "{when}");
}

#[test]
fn nothing_is_found_after_a_thousand_random_changes() {
    for (family, flavour) in [
        (Family::V4, Flavour::Nft),
        (Family::V6, Flavour::Nft),
        (Family::V4, Flavour::Legacy),
    ] {
        in_namespace(move || {
            let mut scene = Scene::new(family, flavour);
            scene.whole();
            let mut runner = TestRunner::deterministic();
            let all = happenings();
            for number in 1..=1000 {
                let happening = all.new_tree(&mut runner).unwrap().current();
                happen(&mut scene, &happening);
                scene.step();
                if number % 25 == 0 {
                    assert_right(&scene, &format!("{flavour:?}, after change {number}"));
                }
            }
        });
    }
}

/// A cluster with every kind of address.
fn everything(scene: &mut Scene) {
    let family = scene.family;
    let a = |x, y| address(family, x, y);
    let pods = [(a(1, 1), true), (a(1, 2), false)];
    let ranges: &[&str] = match family {
        Family::V4 => &["192.0.2.0/24", "198.51.100.0/24"],
        Family::V6 => &["2001:db8::/48", "2001:db8:1::/64"],
    };
    let guarded = service("lb", a(96, 4))
        .load_balancer(&[a(9, 4)])
        .source_ranges(ranges)
        .node_port(30004);
    scene
        .node(node("here").at(a(2, 1)))
        .both(&service("plain", a(96, 1)), 8080, &pods)
        .both(&service("sticky", a(96, 2)).affinity(600), 8080, &pods)
        .both(&service("none", a(96, 3)).node_port(30003), 8080, &[])
        .both(&guarded, 8080, &pods);
}

/// The chain of this kind for a Service, as its only rule in `KUBE-SERVICES` names it.
fn chain_of(scene: &Scene, service: &str, kind: &str) -> String {
    let rules = scene.saved();
    let words = rules
        .lines()
        .filter(|line| line.contains(service))
        .flat_map(str::split_whitespace);
    let mut chains = words.filter(|word| word.starts_with(kind));
    chains.next().expect("there is one").to_owned()
}

type Damage = fn(&Scene);

fn delete_first(scene: &Scene, table: &str, chain: &str) {
    scene.iptables(&format!("-t {table} -D {chain} 1"));
}

/// What is done, what is found and in which words, and whose it is.
const DAMAGES: &[(Damage, Kind, &str, Option<&str>)] = &[
    (
        |scene| delete_first(scene, "nat", "PREROUTING"),
        Missing,
        "-t nat -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
        None,
    ),
    (
        |scene| {
            let at = position(scene, "nat", "KUBE-SERVICES", "demo/plain cluster IP");
            scene.iptables(&format!("-t nat -D KUBE-SERVICES {at}"));
        },
        Missing,
        "-t nat -A KUBE-SERVICES -d ",
        Some("demo/plain"),
    ),
    (
        |scene| {
            // The same rule with another comment.
            let at = position(scene, "nat", "KUBE-SERVICES", "demo/plain cluster IP");
            let saved = scene.saved();
            let line = saved.lines().find(|line| {
                line.starts_with("-A KUBE-SERVICES") && line.contains("demo/plain cluster IP")
            });
            let line = line
                .unwrap()
                .replace("\"demo/plain cluster IP\"", "changed");
            let rule = line.replacen("-A KUBE-SERVICES", "", 1);
            let rule = rule.trim();
            scene.iptables(&format!("-t nat -R KUBE-SERVICES {at} {rule}"));
        },
        Different,
        "-t nat -A KUBE-SERVICES -d ",
        Some("demo/plain"),
    ),
    (
        |scene| {
            let chain = chain_of(scene, "demo/plain", "KUBE-SVC-");
            scene.iptables(&format!("-t nat -F {chain}"));
        },
        Missing,
        "-t nat -A KUBE-SVC-",
        Some("demo/plain"),
    ),
    (
        |scene| {
            let chain = chain_of(scene, "demo/plain ->", "KUBE-SEP-");
            delete_first(scene, "nat", &chain);
        },
        Missing,
        "-t nat -A KUBE-SEP-",
        Some("demo/plain"),
    ),
    (
        |scene| {
            let chain = chain_of(scene, "demo/plain", "KUBE-SVC-");
            scene.iptables(&format!("-t nat -I {chain} 1 -j RETURN"));
        },
        Unexpected,
        "-j RETURN",
        Some("demo/plain"),
    ),
    (
        |scene| {
            // The endpoints change places: the first gets everything.
            let chain = chain_of(scene, "demo/plain", "KUBE-SVC-");
            let saved = scene.saved();
            let start = format!("-A {chain} ");
            let rules: Vec<_> = saved.lines().filter(|l| l.starts_with(&start)).collect();
            let last = rules.len();
            scene.iptables(&format!("-t nat -D {chain} {last}"));
            let sep = rules[last - 1].split_whitespace().last().unwrap();
            scene.iptables(&format!("-t nat -I {chain} 1 -j {sep}"));
        },
        Missing,
        "-t nat -A KUBE-SVC-",
        Some("demo/plain"),
    ),
    (
        |scene| drop(scene.iptables("-t nat -N KUBE-SVC-AAAAAAAAAAAAAAAA")),
        Unexpected,
        "-t nat -N KUBE-SVC-AAAAAAAAAAAAAAAA",
        None,
    ),
    (
        |scene| drop(scene.iptables("-t nat -I KUBE-SERVICES 1 -j ACCEPT")),
        Unexpected,
        "-t nat -A KUBE-SERVICES -j ACCEPT",
        None,
    ),
    (
        |scene| delete_first(scene, "nat", "KUBE-MARK-MASQ"),
        Missing,
        "-t nat -A KUBE-MARK-MASQ -j MARK",
        None,
    ),
    (
        |scene| drop(scene.iptables("-t nat -F KUBE-POSTROUTING")),
        Missing,
        "-t nat -A KUBE-POSTROUTING ",
        None,
    ),
    (
        |scene| {
            let at = position(
                scene,
                "filter",
                "KUBE-SERVICES",
                "demo/none has no endpoints",
            );
            scene.iptables(&format!("-t filter -D KUBE-SERVICES {at}"));
        },
        Missing,
        "-t filter -A KUBE-SERVICES ",
        Some("demo/none"),
    ),
    (
        |scene| drop(scene.iptables("-t filter -F KUBE-PROXY-FIREWALL")),
        Missing,
        "-t filter -A KUBE-PROXY-FIREWALL ",
        Some("demo/lb"),
    ),
    (
        |scene| {
            let chain = chain_of(scene, "demo/lb loadbalancer", "KUBE-FW-");
            delete_first(scene, "nat", &chain);
        },
        Missing,
        "-t nat -A KUBE-FW-",
        Some("demo/lb"),
    ),
    (
        |scene| {
            // Jumps to NodePorts must come last.
            let saved = scene.saved();
            let rules = saved.lines().filter(|l| l.starts_with("-A KUBE-SERVICES"));
            let nat = rules.filter(|l| !l.contains("has no")).count();
            scene.iptables(&format!("-t nat -D KUBE-SERVICES {nat}"));
        },
        Missing,
        "-j KUBE-NODEPORTS",
        None,
    ),
    (
        |scene| {
            scene.iptables("-t mangle -X KUBE-PROXY-CANARY");
        },
        Missing,
        "-t mangle -N KUBE-PROXY-CANARY",
        None,
    ),
    (
        |scene| drop(scene.iptables("-t nat -N KUBE-LOAD-BALANCER")),
        Unexpected,
        "-t nat -N KUBE-LOAD-BALANCER",
        None,
    ),
    (
        |scene| {
            delete_first(scene, "nat", "OUTPUT");
        },
        Missing,
        "-t nat -A OUTPUT ",
        None,
    ),
    (
        |scene| {
            delete_first(scene, "nat", "POSTROUTING");
        },
        Missing,
        "-t nat -A POSTROUTING ",
        None,
    ),
    (
        |scene| {
            delete_first(scene, "filter", "FORWARD");
        },
        Missing,
        "-t filter -A FORWARD ",
        None,
    ),
    (
        |scene| {
            delete_first(scene, "filter", "INPUT");
        },
        Missing,
        "-t filter -A INPUT ",
        None,
    ),
    (
        |scene| {
            scene.iptables("-t filter -F KUBE-FORWARD");
        },
        Missing,
        "-t filter -A KUBE-FORWARD ",
        None,
    ),
    (
        |scene| {
            scene.iptables("-t nat -F KUBE-NODEPORTS");
        },
        Missing,
        "-t nat -A KUBE-NODEPORTS ",
        Some("demo/lb"),
    ),
    (
        |scene| {
            let chain = chain_of(scene, "demo/lb loadbalancer", "KUBE-EXT-");
            scene.iptables(&format!("-t nat -F {chain}"));
        },
        Missing,
        "-t nat -A KUBE-EXT-",
        Some("demo/lb"),
    ),
    (
        |scene| {
            scene.iptables("-t filter -F KUBE-EXTERNAL-SERVICES");
        },
        Missing,
        "-t filter -A KUBE-EXTERNAL-SERVICES ",
        Some("demo/none"),
    ),
    (
        |scene| {
            scene.iptables("-t nat -A KUBE-MARK-MASQ -j RETURN");
        },
        Unexpected,
        "-t nat -A KUBE-MARK-MASQ -j RETURN",
        None,
    ),
    (
        |scene| {
            let chain = chain_of(scene, "demo/sticky ->", "KUBE-SEP-");
            delete_first(scene, "nat", &chain);
        },
        Missing,
        "-t nat -A KUBE-SEP-",
        Some("demo/sticky"),
    ),
    (
        |scene| {
            let chain = chain_of(scene, "demo/plain ->", "KUBE-SEP-");
            scene.iptables(&format!("-t nat -A {chain} -j ACCEPT"));
        },
        Unexpected,
        "-j ACCEPT",
        Some("demo/plain"),
    ),
    (
        |scene| {
            scene.iptables("-t nat -X KUBE-PROXY-CANARY");
        },
        Missing,
        "-t nat -N KUBE-PROXY-CANARY",
        None,
    ),
    (
        |scene| {
            scene.iptables("-t filter -X KUBE-PROXY-CANARY");
        },
        Missing,
        "-t filter -N KUBE-PROXY-CANARY",
        None,
    ),
];

#[test]
fn every_kind_of_damage_is_found_and_named() {
    everywhere(|family, flavour| {
        for (damage, kind, object, service) in DAMAGES {
            in_namespace(move || {
                let mut scene = Scene::new(family, flavour);
                everything(&mut scene);
                scene.whole();
                assert_right(&scene, object);
                damage(&scene);
                let report = verify(&scene);
                let found = report.discrepancies.iter().find(|one| {
                    one.kind == *kind
                        && one.object.contains(object)
                        && one.service.as_deref() == *service
                });
                assert!(found.is_some(), "{object} is not in {report:#?}");
                assert!(report.discrepancies.len() <= 5, "{object}: {report:#?}");
                let program = match family {
                    Family::V4 => "iptables -t ",
                    Family::V6 => "ip6tables -t ",
                };
                assert!(found.unwrap().object.starts_with(program));
                scene.whole();
                assert_right(&scene, "repaired");
            });
        }
    });
}

/// Which rule of a chain has these words, from 1.
fn position(scene: &Scene, table: &str, chain: &str, words: &str) -> usize {
    let rules = scene.iptables(&format!("-t {table} -S {chain}"));
    let mut rules = rules.lines().filter(|line| line.starts_with("-A "));
    1 + rules
        .position(|line| line.contains(words))
        .expect("there is one")
}

#[test]
fn rules_and_chains_of_others_are_no_damage() {
    everywhere(|family, flavour| {
        let mut scene = Scene::new(family, flavour);
        everything(&mut scene);
        scene.whole();
        for arguments in [
            "-t nat -N SOMEBODY",
            "-t nat -I PREROUTING 1 -j SOMEBODY",
            "-t nat -A SOMEBODY -j RETURN",
            "-t filter -I INPUT 1 -p tcp --dport 22 -j ACCEPT",
            "-t filter -A FORWARD -j ACCEPT",
            "-t mangle -N KUBE-IPTABLES-HINT",
        ] {
            scene.iptables(arguments);
        }
        assert_right(&scene, "beside others");
        let before = scene.saved();
        assert_right(&scene, "again");
        assert_eq!(scene.saved(), before, "nothing is written");
    });
}

/// Installs what kube-proxy was seen to install, with these changes.
fn install(flavour: Flavour, text: &str) {
    // Made before the rules that name them.
    let mut nfacct = Nfacct::open().unwrap();
    for name in [
        "ct_state_invalid_dropped_pkts",
        "localhost_nps_accepted_pkts",
    ] {
        nfacct.ensure(name).unwrap();
    }
    let restore = match flavour {
        Flavour::Nft => "iptables-nft-restore",
        Flavour::Legacy => "iptables-legacy-restore",
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), with_counters(text)).unwrap();
    run(restore, &[file.path().to_str().unwrap()]);
}

#[test]
fn rules_that_kube_proxy_wrote_are_right_in_whatever_order_it_visited_services() {
    for flavour in FLAVOURS {
        in_namespace(move || {
            let mut scene = recorded::cluster(flavour);
            scene.cluster.step();
            install(flavour, RECORDED);
            assert_right(&scene, "as kube-proxy wrote it");
            let orphan = ":KUBE-SEP-AAAAAAAAAAAAAAAA -\n-A PREROUTING";
            install(flavour, &RECORDED.replacen("-A PREROUTING", orphan, 1));
            let report = verify(&scene);
            let objects: Vec<_> = report.discrepancies.iter().map(|d| &*d.object).collect();
            assert_eq!(objects, ["iptables -t nat -N KUBE-SEP-AAAAAAAAAAAAAAAA"]);
            install(
                flavour,
                &RECORDED.replace("10.128.2.10:8080", "10.128.2.11:8080"),
            );
            let report = verify(&scene);
            let services = report.discrepancies.iter().map(|d| d.service.as_deref());
            let services: Vec<_> = services.collect();
            assert!(!services.is_empty(), "{report:#?}");
            assert!(
                services.iter().all(|name| *name == Some("demo/c3")),
                "{report:#?}"
            );
        });
    }
}
