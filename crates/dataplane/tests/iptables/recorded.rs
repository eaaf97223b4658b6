//! What kube-proxy v1.36.4 itself was seen to install for a small cluster.

use std::net::IpAddr;

use ferrule_core::model::{Family, Port, Protocol, ServiceKey, TrafficPolicy};
use ferrule_dataplane::Dataplane as _;
use ferrule_kernel::xt::Flavour;

use crate::support::*;

/// What `iptables-save` printed, without remarks and counters.
pub const RECORDED: &str = include_str!("recorded.save");

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The cluster that was recorded: every kind of address, policy and lack of endpoints.
pub fn cluster(flavour: Flavour) -> Scene {
    let mut scene = Scene::with(Family::V4, flavour, settings(&["10.128.0.0/10"]));
    scene.node(node("here").at(ip("172.31.0.1")));
    let (here, there) = (true, false);
    let mut api = service("kubernetes", ip("10.96.0.1")).port("https", 443);
    api.key = ServiceKey::new("default", "kubernetes");
    scene.both(&api, 6443, &[(ip("172.31.0.1"), there)]);
    scene.service(service("c0", ip("10.96.1.1")));
    let pods = [
        (ip("10.128.1.2"), here),
        (ip("10.128.2.10"), there),
        (ip("10.128.2.2"), there),
    ];
    scene.both(&service("c3", ip("10.96.1.3")), 8080, &pods);
    let mut npl = service("npl", ip("10.96.1.6")).port("http", 80);
    npl = npl.node_port(30006);
    npl.external_policy_field = TrafficPolicy::Local;
    let pods = [(ip("10.128.1.5"), here), (ip("10.128.2.5"), there)];
    scene.both(&npl, 8080, &pods);
    let mut np0 = service("np0", ip("10.96.1.8")).node_port(30008);
    np0.ports[0].protocol = Protocol::Udp;
    np0.external_ips = [ip("198.51.100.8")].into();
    scene.service(&np0);
    let lbr = service("lbr", ip("10.96.1.9")).port("https", 443);
    let lbr = lbr
        .load_balancer(&[ip("192.0.2.9")])
        .source_ranges(&["203.0.113.0/24", "172.31.0.0/16"])
        .node_port(30009);
    let pods = [(ip("10.128.1.6"), here), (ip("10.128.2.7"), there)];
    scene.both(&lbr, 8443, &pods);
    let mut remote = service("lblr", ip("10.96.1.12")).load_balancer(&[ip("192.0.2.12")]);
    remote.external_policy_field = TrafficPolicy::Local;
    remote.health_check_field = Port::new(30112);
    scene.both(&remote, 8080, &[(ip("10.128.2.9"), there)]);
    let mut inner = service("itlr", ip("10.96.1.16"));
    inner.internal_policy = TrafficPolicy::Local;
    scene.both(&inner, 8080, &[(ip("10.128.2.14"), there)]);
    let aff = service("aff", ip("10.96.1.17")).affinity(600);
    let pods = [(ip("10.128.1.9"), here), (ip("10.128.2.15"), there)];
    scene.both(&aff, 8080, &pods);
    scene
}

/// The lines of one chain, in order.
fn chain<'a>(saved: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!("-A {name} ");
    saved.lines().filter(|l| l.starts_with(&start)).collect()
}

#[test]
fn ipt_095_the_rules_are_those_that_kube_proxy_installs() {
    for flavour in FLAVOURS {
        in_namespace(move || {
            let mut scene = cluster(flavour);
            scene.whole();
            let saved = scene.saved();
            assert_eq!(sorted(&saved), sorted(RECORDED), "{flavour:?}");
            // Where one Service's rules or the machine's own stand, order matters too.
            let names = saved.lines().filter_map(|line| line.strip_prefix(':'));
            for name in names.filter_map(|line| line.split(' ').next()) {
                if ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"].contains(&name) {
                    continue;
                }
                assert_eq!(chain(&saved, name), chain(RECORDED, name));
            }
            assert_eq!(scene.whole(), 0);
        });
    }
}

#[test]
fn ipt_090_rules_of_kube_proxy_are_adopted() {
    for flavour in FLAVOURS {
        in_namespace(move || {
            let mut scene = cluster(flavour);
            let restore = match flavour {
                Flavour::Nft => "iptables-nft-restore",
                Flavour::Legacy => "iptables-legacy-restore",
            };
            // Made before the rules that name them.
            let mut nfacct = ferrule_kernel::nfacct::Nfacct::open().unwrap();
            for name in [
                "ct_state_invalid_dropped_pkts",
                "localhost_nps_accepted_pkts",
            ] {
                nfacct.ensure(name).unwrap();
            }
            let orphan = ":KUBE-SEP-AAAAAAAAAAAAAAAA -\n-A PREROUTING";
            let text = RECORDED.replacen("-A PREROUTING", orphan, 1);
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), with_counters(&text)).unwrap();
            run(restore, &[file.path().to_str().unwrap()]);
            let steps = scene.whole();
            assert_eq!(sorted(&scene.saved()), sorted(RECORDED));
            // Two chains in which the order of Services was another, and the orphan.
            assert!((1..30).contains(&steps), "{steps}");
            assert_eq!(scene.whole(), 0);
        });
    }
}

pub fn with_counters(saved: &str) -> String {
    saved
        .lines()
        .map(|line| match line.strip_prefix(':') {
            Some(_) => format!("{line} [0:0]\n"),
            None => format!("{line}\n"),
        })
        .collect()
}

#[test]
fn what_is_rendered_is_what_is_installed() {
    for flavour in FLAVOURS {
        in_namespace(move || {
            let mut scene = cluster(flavour);
            scene.cluster.step();
            let options = ferrule_dataplane::iptables::Options::default();
            let text = ferrule_dataplane::iptables::render(
                &scene.cluster.desired,
                Family::V4,
                options,
                &[],
            );
            scene.whole();
            let installed = scene.saved();
            scene.dataplane.remove().unwrap();
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            let restore = match flavour {
                Flavour::Nft => "iptables-nft-restore",
                Flavour::Legacy => "iptables-legacy-restore",
            };
            iptables(Family::V4, flavour, "-F INPUT");
            iptables(Family::V4, flavour, "-F OUTPUT");
            run(restore, &["--noflush", file.path().to_str().unwrap()]);
            assert_eq!(scene.saved(), installed);
            assert_eq!(scene.whole(), 0);
        });
    }
}
