//! What `verify` finds in a table, and what it does not.

use std::collections::BTreeSet;

use ferrule_core::facts::{DetectLocal, NodePortAddresses, Settings};
use ferrule_core::model::{Family, Port, Protocol, ServiceKey, TrafficPolicy};
use ferrule_dataplane::nftables;
use ferrule_dataplane::verify::Kind::{self, Different, Missing, Unexpected};
use ferrule_dataplane::verify::Report;
use ferrule_testbed::cluster::{eps, service as plain};
use ferrule_testbed::{feed, word};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;

use crate::random::{happen, happenings};
use crate::state::everything;
use crate::support::*;

fn verify(scene: &Scene) -> Report {
    nftables::verify(&scene.cluster.desired, scene.family, scene.options).unwrap()
}

fn assert_right(scene: &Scene, when: &str) {
    let report = verify(scene);
    assert_eq!(report, Report::default(), "{when}");
}

/// Commands of `nft`: `T` is the family and the table, `A-X-Y` an address.
fn damage(family: Family, text: &str) {
    feed("nft", &["-f", "-"], &(fill(family, text) + "\n"));
}

fn fill(family: Family, text: &str) -> String {
    let mut text = text.replace(" T ", &format!(" {} {TABLE} ", word(family)));
    while let Some(at) = text.find("A-") {
        let rest = &text[at + 2..];
        let end = rest.find([' ', '.', ',']).unwrap_or(rest.len());
        let (x, y) = rest[..end].split_once('-').unwrap();
        let ip = address(family, x.parse().unwrap(), y.parse().unwrap());
        text = format!("{}{ip}{}", &text[..at], &rest[end..]);
    }
    text
}

/// The same, where `T-` is the table itself.
fn whole_table(family: Family, text: &str) -> String {
    let table = format!("{} {TABLE}", word(family));
    fill(family, &text.replace("T-", &table))
}

#[test]
fn nothing_is_found_after_a_thousand_random_changes() {
    both(|family| {
        let mut scene = Scene::new(family);
        scene.whole();
        assert_right(&scene, "at the start");
        let mut runner = TestRunner::deterministic();
        let all = happenings();
        for number in 1..=1000 {
            let happening = all.new_tree(&mut runner).unwrap().current();
            happen(&mut scene, &happening);
            scene.step();
            assert_right(&scene, &format!("after change {number}, {happening:?}"));
        }
        scene.restart();
        scene.whole();
        assert_right(&scene, "after a restart");
    });
}

/// What is done, what is found and in which words, and whose it is.
const DAMAGES: &[(&str, Kind, &str, Option<&str>)] = &[
    (
        "delete element T service-ips { A-96-1 . tcp . 80 }",
        Missing,
        "element T service-ips { A-96-1 . tcp . 80 comment \"demo/plain:http\" : goto ",
        Some("demo/plain:http"),
    ),
    (
        "delete element T ferrule-endpoints { A-96-1 . tcp . 80 . 1 }",
        Missing,
        "element T ferrule-endpoints { A-96-1 . tcp . 80 . 1 : A-1-2 . 8080 }",
        Some("demo/plain:http"),
    ),
    (
        "delete element T ferrule-endpoints { A-96-1 . tcp . 80 . 0 }
         add element T ferrule-endpoints { A-96-1 . tcp . 80 . 0 : A-1-9 . 8080 }",
        Different,
        "element T ferrule-endpoints { A-96-1 . tcp . 80 . 0 : A-1-1 . 8080 }",
        Some("demo/plain:http"),
    ),
    (
        "add element T ferrule-endpoints { A-96-1 . tcp . 80 . 7 : A-1-9 . 8080 }",
        Unexpected,
        "element T ferrule-endpoints { A-96-1 . tcp . 80 . 7 : A-1-9 . 8080 }",
        Some("demo/plain:http"),
    ),
    (
        "delete element T service-ips { A-96-1 . tcp . 80 }
         add element T service-ips { A-96-1 . tcp . 80 comment \"demo/other:http\" : goto pick-up-to-4 }",
        Different,
        "element T service-ips { A-96-1 . tcp . 80 comment \"demo/plain:http\" : goto ",
        Some("demo/plain:http"),
    ),
    (
        "delete element T no-endpoint-services { A-96-2 . tcp . 80 }
         add element T no-endpoint-services { A-96-2 . tcp . 80 : drop }",
        Different,
        "element T no-endpoint-services { A-96-2 . tcp . 80 comment \"demo/none:http\" : goto reject-chain }",
        Some("demo/none:http"),
    ),
    (
        "delete element T service-nodeports { tcp . 30003 }",
        Missing,
        "element T service-nodeports { tcp . 30003 ",
        Some("demo/port:http"),
    ),
    (
        "add element T cluster-ips { A-96-99 }",
        Unexpected,
        "element T cluster-ips { A-96-99 }",
        None,
    ),
    (
        "delete element T cluster-ips { A-96-3 }",
        Missing,
        "element T cluster-ips { A-96-3 }",
        Some("demo/port:http"),
    ),
    (
        "delete element T hairpin-connections { A-1-2 . A-1-2 . tcp . 8080 }",
        Missing,
        "element T hairpin-connections { A-1-2 . A-1-2 . tcp . 8080 }",
        Some("demo/plain:http"),
    ),
    (
        "flush set T ferrule-service-cidrs",
        Missing,
        "element T ferrule-service-cidrs { ",
        None,
    ),
    (
        "flush chain T services",
        Missing,
        "rule T services ",
        None,
    ),
    (
        "insert rule T services counter accept",
        Unexpected,
        "rule T services ",
        None,
    ),
    (
        "flush chain T nat-prerouting",
        Missing,
        "rule T nat-prerouting jump services",
        None,
    ),
    (
        "flush chain T firewall-check
         add rule T firewall-check drop",
        Different,
        "rule T firewall-check ",
        None,
    ),
    (
        "flush chain T masquerading",
        Missing,
        "rule T masquerading ",
        None,
    ),
    (
        "add chain T somebody",
        Unexpected,
        "chain T somebody",
        None,
    ),
    (
        "add set T somebody { type inet_service ; }",
        Unexpected,
        "set T somebody",
        None,
    ),
    (
        "add chain T pick-99 { type filter hook input priority 3 ; }",
        Unexpected,
        "chain T pick-99",
        None,
    ),
    (
        "delete chain T nat-postrouting
         add chain T nat-postrouting { type nat hook postrouting priority 90 ; }
         add rule T nat-postrouting jump masquerading",
        Different,
        "chain T nat-postrouting",
        None,
    ),
    (
        "flush chain T sources-demo.lb.http.tcp",
        Missing,
        "rule T sources-demo.lb.http.tcp ",
        Some("demo/lb:http"),
    ),
    (
        "flush set T ferrule-sources-demo.local.http.tcp",
        Missing,
        "element T ferrule-sources-demo.local.http.tcp { ",
        Some("demo/local:http"),
    ),
    (
        "flush chain T stay-demo.lb.http.tcp",
        Missing,
        "rule T stay-demo.lb.http.tcp ",
        Some("demo/lb:http"),
    ),
    (
        "flush map T firewall-ips",
        Missing,
        "element T firewall-ips { A-9-4 . tcp . 80 ",
        Some("demo/lb:http"),
    ),
    (
        "delete element T no-endpoint-services { A-96-2 . tcp . 80 }",
        Missing,
        "element T no-endpoint-services { A-96-2 . tcp . 80 ",
        Some("demo/none:http"),
    ),
    (
        "add element T service-ips { A-96-200 . tcp . 80 : drop }",
        Unexpected,
        "element T service-ips { A-96-200 . tcp . 80 : drop }",
        None,
    ),
    (
        "add element T ferrule-sources-demo.local.http.tcp { A-200-1 }",
        Unexpected,
        "element T ferrule-sources-demo.local.http.tcp { A-200-1 }",
        Some("demo/local:http"),
    ),
    (
        "add rule T firewall-check accept",
        Unexpected,
        "rule T firewall-check accept",
        None,
    ),
    (
        "insert rule T sources-demo.lb.http.tcp accept",
        Unexpected,
        "rule T sources-demo.lb.http.tcp accept",
        Some("demo/lb:http"),
    ),
    (
        "delete table T-",
        Missing,
        "table T-",
        None,
    ),
    (
        "add table T- { flags dormant ; }",
        Different,
        "table T-",
        None,
    ),
];

#[test]
fn every_kind_of_damage_is_found_and_named() {
    both(|family| {
        let mut scene = Scene::new(family);
        for (text, kind, object, service) in DAMAGES {
            everything(&mut scene);
            scene.whole();
            assert_right(&scene, text);
            damage(family, &whole_table(family, text));
            let report = verify(&scene);
            let object = whole_table(family, object);
            let found = report
                .discrepancies
                .iter()
                .find(|one| one.kind == *kind && one.object.starts_with(&object));
            let Some(found) = found else {
                panic!("{text}: {object} is not in {report:#?}");
            };
            assert_eq!(found.service.as_deref(), *service, "{text}: {found:?}");
            assert_eq!(found.found.is_some(), *kind == Different, "{found:?}");
            // Nothing but what was damaged, in as many lines as are one sentence each.
            assert!(report.discrepancies.len() <= 30, "{text}: {report:#?}");
        }
    });
}

#[test]
fn rules_in_another_order_are_found() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let word = word(family);
        let rules = run("nft", &["list", "chain", word, TABLE, "cluster-ips-check"]);
        let lines = rules.lines().filter(|line| line.contains('@'));
        let text = format!("flush chain {word} {TABLE} cluster-ips-check\n");
        let rules = lines.rev().map(|line| {
            format!(
                "add rule {word} {TABLE} cluster-ips-check {}\n",
                line.trim()
            )
        });
        feed("nft", &["-f", "-"], &(text + &rules.collect::<String>()));
        let report = verify(&scene);
        assert_eq!(report.discrepancies.len(), 1, "{report:#?}");
        let found = report.discrepancies.first().unwrap();
        assert_eq!(found.kind, Kind::Different);
    });
}

#[test]
fn tables_of_others_are_no_damage_and_nothing_is_written() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let word = word(family);
        let text = format!(
            "add table {word} other\nadd chain {word} other services {{ type filter hook input priority 0 ; }}\n\
             add rule {word} other services drop\n"
        );
        feed("nft", &["-f", "-"], &text);
        let before = scene.snapshot();
        assert_right(&scene, "beside another table");
        assert_eq!(scene.snapshot().generation, before.generation);
        // A chain of ours that nothing leads to any more goes with the next change.
        scene.service(service(family, "lb", 4).load_balancer(&[address(family, 9, 4)]));
        scene.step();
        assert_right(&scene, "with retired chains");
    });
}

/// What kube-proxy v1.36.4 itself wrote for a small cluster, as `nft` listed it.
const RECORDED: &str = include_str!("recorded.nft");

/// That cluster.
fn recorded() -> Scene {
    let ip = |text: &str| -> std::net::IpAddr { text.parse().unwrap() };
    let mut scene = Scene::with(
        Family::V4,
        Settings {
            detect_local: DetectLocal::ClusterCidr(["10.128.0.0/10".parse().unwrap()].into()),
            node_port_addresses: NodePortAddresses::parse(&["primary"]).unwrap(),
            ..Settings::default()
        },
    );
    let service = |name: &str, at: &str| plain(name).at(ip(at)).port("", 80);
    let here = |text: &str| (ip(text), true);
    let there = |text: &str| (ip(text), false);
    scene
        .node(node("here").at(ip("172.31.0.1")))
        .service_cidr("kubernetes", &["10.96.0.0/14"]);
    let mut api = service("kubernetes", "10.96.0.1").port("https", 443);
    api.key = ServiceKey::new("default", "kubernetes");
    scene.serving(&api, 6443, &eps(&[there("172.31.0.1")]));
    scene.service(service("c0", "10.96.1.1"));
    let pods = [
        here("10.128.1.2"),
        there("10.128.2.10"),
        there("10.128.2.2"),
    ];
    scene.serving(&service("c3", "10.96.1.3"), 8080, &eps(&pods));
    let mut npl = service("npl", "10.96.1.6")
        .port("http", 80)
        .node_port(30006);
    npl.external_policy_field = TrafficPolicy::Local;
    scene.serving(&npl, 8080, &eps(&[here("10.128.1.5"), there("10.128.2.5")]));
    let mut np0 = service("np0", "10.96.1.8").node_port(30008);
    np0.ports[0].protocol = Protocol::Udp;
    np0.external_ips = [ip("198.51.100.8")].into();
    scene.service(&np0);
    let lbr = service("lbr", "10.96.1.9")
        .port("https", 443)
        .load_balancer(&[ip("192.0.2.9")])
        .source_ranges(&["203.0.113.0/24", "172.31.0.0/16"])
        .node_port(30009);
    scene.serving(&lbr, 8443, &eps(&[here("10.128.1.6"), there("10.128.2.7")]));
    let mut remote = service("lblr", "10.96.1.12").load_balancer(&[ip("192.0.2.12")]);
    remote.external_policy_field = TrafficPolicy::Local;
    remote.health_check_field = Port::new(30112);
    scene.serving(&remote, 8080, &eps(&[there("10.128.2.9")]));
    let mut inner = service("itlr", "10.96.1.16");
    inner.internal_policy = TrafficPolicy::Local;
    scene.serving(&inner, 8080, &eps(&[there("10.128.2.14")]));
    let aff = service("aff", "10.96.1.17").affinity(600);
    scene.serving(
        &aff,
        8080,
        &eps(&[here("10.128.1.9"), there("10.128.2.15")]),
    );
    scene.cluster.step();
    scene
}

#[test]
fn a_table_that_kube_proxy_wrote_is_right() {
    in_namespace(|| {
        let scene = recorded();
        feed("nft", &["-f", "-"], RECORDED);
        let report = verify(&scene);
        assert_eq!(report.discrepancies, BTreeSet::new());
        let notes: Vec<_> = report.notes.iter().collect();
        assert!(notes[0].contains("kube-proxy"), "{notes:?}");
    });
}

/// The same of a table of kube-proxy. `T` is the table, `C3`, `EXT` and `FW` are chains of Services.
const DAMAGES_OF_KUBE_PROXY: &[(&str, Kind, &str, Option<&str>)] = &[
    (
        "delete element T service-ips { 10.96.1.3 . tcp . 80 }",
        Missing,
        "service-ips { 10.96.1.3 . tcp . 80 }",
        Some("demo/c3"),
    ),
    (
        "flush chain T C3
         add rule T C3 meta l4proto tcp dnat ip addr . port to numgen random mod 2 \
         map { 0 : 10.128.1.2 . 8080 , 1 : 10.128.2.2 . 8080 }",
        Different,
        "service-ips { 10.96.1.3 . tcp . 80 } -> dnat to 10.128.1.2:8080, 10.128.2.2:8080, 10.128.2.10:8080",
        Some("demo/c3"),
    ),
    (
        "flush chain T C3
         add rule T C3 meta l4proto tcp dnat ip addr . port to numgen random mod 5 \
         map { 0 : 10.128.1.2 . 8080 , 1 : 10.128.2.2 . 8080, 2 : 10.128.2.10 . 8080 }",
        Different,
        "service-ips { 10.96.1.3 . tcp . 80 }",
        Some("demo/c3"),
    ),
    (
        "insert rule T C3 drop",
        Different,
        "service-ips { 10.96.1.3 . tcp . 80 }",
        Some("demo/c3"),
    ),
    (
        "flush chain T C3",
        Different,
        "service-ips { 10.96.1.3 . tcp . 80 }",
        Some("demo/c3"),
    ),
    (
        "flush chain T EXT
         add rule T EXT goto service-LBC2AP6X-demo/lbr/tcp/https",
        Different,
        "service-nodeports { tcp . 30009 } -> masquerade, dnat to 10.128.1.6:8443, 10.128.2.7:8443",
        Some("demo/lbr:https"),
    ),
    (
        "flush chain T FW
         add rule T FW ip saddr != { 203.0.113.0/24, 172.31.0.0/16 } drop",
        Different,
        "service-ips { 192.0.2.9 . tcp . 443 } -> masquerade, dnat to 10.128.1.6:8443, 10.128.2.7:8443; only from ",
        Some("demo/lbr:https"),
    ),
    (
        "delete element T no-endpoint-services { 10.96.1.1 . tcp . 80 }",
        Missing,
        "service-ips { 10.96.1.1 . tcp . 80 } -> reject",
        Some("demo/c0"),
    ),
    (
        "add element T service-nodeports { tcp . 31111 : goto C3 }",
        Unexpected,
        "service-nodeports { tcp . 31111 }",
        None,
    ),
    (
        "delete element T cluster-ips { 10.96.1.3 }",
        Missing,
        "cluster-ips { 10.96.1.3 }",
        Some("demo/c3"),
    ),
    (
        "flush set T nodeport-ips",
        Missing,
        "nodeport-ips { 172.31.0.1 }",
        None,
    ),
    (
        "flush chain T nat-output",
        Missing,
        "rule ip kube-proxy nat-output jump services",
        None,
    ),
    (
        "insert rule T services accept",
        Unexpected,
        "rule ip kube-proxy services accept",
        None,
    ),
    (
        "flush chain T cluster-ips-check",
        Missing,
        "rule ip kube-proxy cluster-ips-check ",
        None,
    ),
];

fn fill_chains(text: &str) -> String {
    let text = text
        .replace(" C3", " service-XEEJ3LCS-demo/c3/tcp/")
        .replace(" EXT", " external-LBC2AP6X-demo/lbr/tcp/https")
        .replace(" FW", " firewall-LBC2AP6X-demo/lbr/tcp/https");
    fill(Family::V4, &text)
}

#[test]
fn damage_to_a_table_of_kube_proxy_is_found() {
    for (text, kind, object, service) in DAMAGES_OF_KUBE_PROXY {
        in_namespace(move || {
            let scene = recorded();
            feed("nft", &["-f", "-"], RECORDED);
            feed("nft", &["-f", "-"], &(fill_chains(text) + "\n"));
            let report = verify(&scene);
            let found = report
                .discrepancies
                .iter()
                .find(|one| one.kind == *kind && one.object.contains(object));
            let Some(found) = found else {
                panic!("{text}: {object} is not in {report:#?}");
            };
            assert_eq!(found.service.as_deref(), *service, "{text}");
            assert!(report.discrepancies.len() <= 3, "{text}: {report:#?}");
        });
    }
}
