//! What other modes left in the tables of iptables goes, in both flavours, with and without
//! programs of iptables.

use std::path::Path;
use std::process::Output;

use super::iptables::{hint, only, saved};
use super::support::*;

/// Chains of mode iptables; kubelet's own are not among them.
fn chains(flavour: &str) -> usize {
    let text = saved(flavour);
    let chains = text.lines().filter(|line| line.starts_with(":KUBE-"));
    chains
        .filter(|line| !line.starts_with(":KUBE-FIREWALL"))
        .count()
}

/// Leaves the rules of mode iptables behind, for both families.
fn leave_rules(flavour: &str) {
    hint(flavour);
    let mut proxy = Proxy::with_rules(&examples(), &[IPTABLES]);
    proxy.ready();
    proxy.signal("TERM");
    proxy.wait();
    assert!(chains(flavour) > 30, "{}", saved(flavour));
}

fn clean_up(path: Option<&Path>) -> Output {
    let mut command = ferrule();
    command.envs(path.map(|path| ("PATH", path)));
    command.args(["proxy", "--cleanup"]).output().unwrap()
}

fn log(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The tables of the older flavour.
fn legacy_tables() -> String {
    std::fs::read_to_string("/proc/thread-self/net/ip_tables_names").unwrap_or_default()
}

#[test]
fn core_017_an_image_without_iptables_removes_what_iptables_nft_wrote() {
    in_namespace(|| {
        leave_rules("nft");
        let nothing = only(&[]);
        let variables = [("PATH", nothing.path())];
        let proxy = Proxy::with_rules_and(&examples(), &[NFTABLES], &variables);
        proxy.ready();
        until("the rules of iptables are gone", || {
            (chains("nft") == 0).then_some(())
        });
        // Kubelet's chains, and jumps to them, stay.
        let left = saved("nft");
        assert!(left.contains("KUBE-FIREWALL"), "{left}");
        assert!(!left.contains("KUBE-SERVICES"), "{left}");
        assert!(!proxy.log().contains("Failed to remove"), "{}", proxy.log());
    });
}

#[test]
fn core_015_cleanup_without_iptables_removes_what_iptables_nft_wrote() {
    in_namespace(|| {
        leave_rules("nft");
        let nothing = only(&[]);
        let output = clean_up(Some(nothing.path()));
        assert_eq!(output.status.code(), Some(0), "{}", log(&output));
        assert_eq!(chains("nft"), 0, "{}", saved("nft"));
    });
}

#[test]
fn core_015_cleanup_removes_the_rules_of_both_flavours_and_makes_no_table() {
    in_namespace(|| {
        for flavour in ["nft", "legacy"] {
            let program = format!("iptables-{flavour}");
            run(&program, &["-N", "KUBE-FORWARD"]);
            let jump = "-m comment --comment X -j KUBE-FORWARD".split(' ');
            let text = "kubernetes forwarding rules";
            let jump = jump.map(|word| if word == "X" { text } else { word });
            let insert: Vec<_> = ["-I", "FORWARD"].into_iter().chain(jump).collect();
            run(&program, &insert);
        }
        assert_eq!(legacy_tables(), "filter\n");
        let output = clean_up(None);
        assert_eq!(output.status.code(), Some(0), "{}", log(&output));
        assert_eq!(legacy_tables(), "filter\n");
        for flavour in ["nft", "legacy"] {
            let left = saved(flavour);
            assert!(!left.contains("KUBE-"), "{flavour}: {left}");
        }
    });
}

#[test]
fn core_015_tables_that_no_program_can_read_are_not_taken_for_empty() {
    in_namespace(|| {
        run("iptables-legacy", &["-N", "KUBE-FORWARD"]);
        let nothing = only(&[]);
        let output = clean_up(Some(nothing.path()));
        let log = log(&output);
        assert_eq!(output.status.code(), Some(1), "{log}");
        assert!(log.contains("older flavour of iptables (filter)"), "{log}");
        assert!(log.contains("cannot run iptables-legacy"), "{log}");
    });
}
