//! What the program writes to the kernel, and how it stays right.

use std::process::Command;

use ferrule_kernel::exchange::{Exchange, RequestError};
use ferrule_kernel::socket::{Protocol, Socket};
use ferrule_kernel::wire::{NLM_F_CREATE, NLM_F_EXCL};

use super::support::*;

fn start(mode: &str, extra: &[&str]) -> Proxy {
    let proxy = Proxy::with_rules(&examples(), &[&[mode], extra].concat());
    proxy.ready();
    proxy
}

/// Rules of kube-proxy's in the tables of iptables. One of its chains is also kubelet's and stays.
fn iptables_rules() -> usize {
    ["iptables-save", "ip6tables-save"]
        .map(|save| run(save, &[]))
        .join("")
        .lines()
        .filter(|line| line.contains("KUBE-") && !line.contains("KUBE-FIREWALL"))
        .count()
}

#[test]
fn a_restart_and_a_kill_leave_rules_that_the_next_start_adopts() {
    in_namespace(|| {
        let mut first = start(NFTABLES, &[]);
        assert!(steps(&first) > 100);
        let rules = ruleset();
        assert!(rules.contains("shop/checkout:https"), "{rules}");
        first.signal("TERM");
        first.wait();
        assert_eq!(ruleset(), rules);

        let mut second = start(NFTABLES, &[]);
        assert_eq!(steps(&second), 0);
        second.signal("KILL");
        second.wait();
        let third = start(NFTABLES, &[]);
        assert_eq!(steps(&third), 0);
        assert_eq!(ruleset(), rules);
    });
}

#[test]
fn what_others_do_to_our_rules_is_undone() {
    in_namespace(|| {
        let proxy = start(NFTABLES, &["--iptables-min-sync-period=0s"]);
        let rules = ruleset();
        let healed = |what: &str| {
            until(&format!("healed after {what}"), || {
                (ruleset() == rules).then_some(())
            });
        };
        for command in [
            "flush ruleset",
            "delete table ip kube-proxy",
            "delete table ip6 kube-proxy",
            "flush chain ip kube-proxy services",
            "delete element ip kube-proxy service-ips { 10.96.0.53 . udp . 53 }",
            "add rule ip kube-proxy services drop",
            "add element ip kube-proxy cluster-ips { 10.96.9.9 }",
            "add chain ip kube-proxy somebody-elses",
        ] {
            run("nft", &command.split(' ').collect::<Vec<_>>());
            healed(command);
        }
        let written = steps(&proxy);
        // A table of somebody else's is none of our business.
        run("nft", &["add", "table", "ip", "filter"]);
        run("nft", &["delete", "table", "ip", "filter"]);
        assert_eq!(steps(&proxy), written);
    });
}

#[test]
fn core_015_cleanup_removes_the_rules_of_all_modes_without_an_api_server() {
    in_namespace(|| {
        for mode in [IPTABLES, NFTABLES] {
            let mut proxy = start(mode, &[]);
            proxy.signal("KILL");
            proxy.wait();
        }
        run("nft", &["add", "table", "ip", "somebody-elses"]);
        assert!(ruleset().contains("table ip6 kube-proxy"));
        let (code, _, err) = fails(&["--cleanup", NFTABLES]);
        assert_eq!(code, Some(0), "{err}");
        let left = ruleset();
        assert!(!left.contains("table ip kube-proxy"), "{left}");
        assert!(!left.contains("table ip6 kube-proxy"), "{left}");
        assert!(left.contains("table ip somebody-elses"), "{left}");
        assert_eq!(iptables_rules(), 0, "{left}");
        let (code, _, err) = fails(&["--cleanup"]);
        assert_eq!(code, Some(0), "twice is as good as once: {err}");
    });
}

#[test]
fn core_015_cleanup_tells_of_failures_and_exits_1() {
    in_namespace(|| {
        let mut proxy = start(NFTABLES, &[]);
        proxy.signal("KILL");
        proxy.wait();
        let output = Command::new("setpriv")
            .args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"])
            .arg(env!("CARGO_BIN_EXE_ferrule"))
            .args(["proxy", "--cleanup"])
            .output()
            .unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{err}");
        let told = "encountered an error while tearing down rules";
        assert!(err.contains(told), "{err}");
        assert!(ruleset().contains("table ip kube-proxy"));
    });
}

/// Makes a set of addresses of IPv6 that is not there.
fn create_set(name: &str) -> Result<(), RequestError> {
    let mut exchange = Exchange::new(Socket::open(Protocol::Netfilter).unwrap());
    exchange.acknowledged(0x602, NLM_F_CREATE | NLM_F_EXCL, |writer| {
        writer.raw(&[2, 0, 0, 0]);
        writer.u8(1, 6);
        writer.text(2, name);
        writer.text(3, "hash:ip");
        writer.u8(4, 0);
        writer.u8(5, 10);
        writer.nest(7, |_| {});
    })
}

#[test]
fn core_017_a_mode_clears_what_another_left_once_it_is_programmed() {
    in_namespace(|| {
        let mut first = start(IPTABLES, &[]);
        assert!(iptables_rules() > 50);
        first.signal("TERM");
        first.wait();
        // As if mode ipvs had been used too.
        create_set("KUBE-6-IPVS-IPS").unwrap();
        run("ip6tables", &["-N", "KUBE-IPVS-FILTER"]);
        let jump = "-m comment --comment X -j KUBE-IPVS-FILTER".split(' ');
        let text = "kubernetes ipvs access filter";
        let jump = jump.map(|word| if word == "X" { text } else { word });
        let insert: Vec<_> = ["-I", "INPUT"].into_iter().chain(jump).collect();
        run("ip6tables", &insert);
        let mut second = start(NFTABLES, &[]);
        until("the rules of iptables are gone", || {
            (iptables_rules() == 0).then_some(())
        });
        until("the sets of ipvs are gone", || {
            create_set("KUBE-6-IPVS-IPS").ok()
        });
        second.signal("TERM");
        second.wait();
        assert!(ruleset().contains("table ip6 kube-proxy"));
        let _third = start(IPTABLES, &[]);
        until("the tables of nftables are gone", || {
            (!ruleset().contains("kube-proxy {")).then_some(())
        });
        assert!(iptables_rules() > 50);
    });
}

#[test]
fn in_mode_iptables_a_restart_writes_nothing_and_a_flush_is_undone() {
    in_namespace(|| {
        let quick = ["--iptables-min-sync-period=0s", "--iptables-sync-period=1s"];
        let mut first = start(IPTABLES, &quick);
        assert!(steps(&first) > 50);
        let rules = iptables_rules();
        first.signal("TERM");
        first.wait();
        assert_eq!(iptables_rules(), rules);
        let second = start(IPTABLES, &quick);
        assert_eq!(steps(&second), 0);
        run("iptables", &["-t", "nat", "-F"]);
        // That may be over before anybody can look, so what was written tells that it happened.
        until("all rules are back", || {
            (steps(&second) > 0 && iptables_rules() == rules).then_some(())
        });
    });
}

#[test]
fn a_changed_manifest_is_programmed_and_a_broken_one_changes_nothing() {
    in_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(examples()).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
            }
        }
        let proxy = Proxy::with_rules(folder.path(), &[NFTABLES, "--iptables-min-sync-period=0s"]);
        proxy.ready();
        let services = folder.path().join("services.yaml");
        let text = std::fs::read_to_string(&services).unwrap();
        replace(&services, &text.replace("10.96.0.20", "10.96.0.77"));
        until("the new address is there", || {
            ruleset().contains("10.96.0.77").then_some(())
        });
        let rules = ruleset();
        assert!(!rules.contains("10.96.0.20 "), "{rules}");
        replace(&services, "kind: Service\nmetadata: [");
        until("the fault is told", || {
            proxy
                .log()
                .contains("the last good ones stay")
                .then_some(())
        });
        assert_eq!(ruleset(), rules);
    });
}
