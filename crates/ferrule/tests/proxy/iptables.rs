//! Mode iptables beside others: who else changes the tables, holds their lock, or is missing.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use super::support::*;

/// As kubelet says which flavour it uses.
fn hint(flavour: &str) {
    let program = format!("iptables-{flavour}");
    run(&program, &["-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]);
}

/// What is in the tables of a flavour: of both families, without remarks, counters and the hint.
pub fn saved(flavour: &str) -> String {
    let mut tables = Vec::new();
    for stem in ["iptables", "ip6tables"] {
        let text = run(&format!("{stem}-{flavour}-save"), &[]);
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let lines = lines.filter(|line| !line.contains("KUBE-IPTABLES-HINT"));
        let text: String = lines
            .map(|line| match line.strip_prefix(':') {
                Some(_) => line.split(" [").next().unwrap().to_owned() + "\n",
                None => line.to_owned() + "\n",
            })
            .collect();
        let mut of_family: Vec<String> = text
            .split_inclusive("COMMIT\n")
            .map(|table| format!("{stem} {table}"))
            .collect();
        of_family.sort();
        tables.extend(of_family);
    }
    tables.concat()
}

fn words(command: &str) {
    let mut words = command.split(' ');
    let program = words.next().unwrap();
    run(program, &words.collect::<Vec<_>>());
}

fn start(manifests: &Path, extra: &[&str], variables: &[(&str, &Path)]) -> Proxy {
    let quick = [IPTABLES, "--iptables-min-sync-period=0s", "-v=2"];
    let proxy = Proxy::with_rules_and(manifests, &[&quick, extra].concat(), variables);
    proxy.ready();
    proxy
}

/// Only what is told can be the reason for a repair.
const NO_POLL: &str = "--iptables-sync-period=1h";

/// The examples, where they can be changed.
fn copied() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["services.yaml", "nodes.yaml"] {
        fs::copy(examples().join(name), folder.path().join(name)).unwrap();
    }
    folder
}

/// Moves a Service to another address.
fn change(manifests: &Path, from: &str, to: &str) {
    let services = manifests.join("services.yaml");
    let text = fs::read_to_string(&services).unwrap();
    assert!(text.contains(from));
    replace(&services, &text.replace(from, to));
}

#[test]
fn in_mode_iptables_what_others_do_to_our_rules_is_undone_at_once() {
    in_namespace(|| {
        hint("nft");
        let mut proxy = start(&examples(), &[NO_POLL], &[]);
        let rules = saved("nft");
        let chain = rules.split("-j KUBE-SVC-").nth(1).unwrap();
        let chain = &chain[..16];
        // As a firewall loads its own rules: what it does not name is gone.
        let file = firewall();
        let takeover = format!("iptables-nft-restore {}", file.path().display());
        let insert = format!("iptables-nft -t nat -I KUBE-SVC-{chain} -j ACCEPT");
        let commands = [
            "iptables-nft -F",
            "iptables-nft -t nat -F",
            "ip6tables-nft -t nat -F",
            "iptables-nft -t mangle -X KUBE-PROXY-CANARY",
            "iptables-nft -t nat -D KUBE-SERVICES 1",
            "iptables-nft -D INPUT -j KUBE-FIREWALL",
            &insert,
            &takeover,
            "nft delete table ip nat",
            "nft delete table ip6 filter",
            "nft flush ruleset",
        ];
        // More at a time are another process that does not give up.
        for commands in commands.chunks(3) {
            for command in commands {
                words(command);
                until(&format!("healed after {command}\n{}", proxy.log()), || {
                    (saved("nft") == rules).then_some(())
                });
            }
            drop(proxy);
            proxy = start(&examples(), &[NO_POLL], &[]);
        }
    });
}

/// A file for `iptables-restore` that takes over a table.
fn firewall() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "*nat\n:PREROUTING ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n";
    fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn in_mode_iptables_a_repair_leaves_rules_of_others_where_they_are() {
    in_namespace(|| {
        hint("nft");
        let proxy = start(&examples(), &[NO_POLL], &[]);
        words("iptables-nft -I INPUT 2 -s 192.0.2.66 -j DROP");
        words("iptables-nft -t nat -N THEIRS");
        words("iptables-nft -t nat -I PREROUTING 1 -s 192.0.2.66 -j THEIRS");
        words("iptables-nft -P FORWARD DROP");
        let before = saved("nft");
        words("iptables-nft -t nat -F KUBE-SERVICES");
        words("iptables-nft -F KUBE-FORWARD");
        until(&format!("healed\n{}", proxy.log()), || {
            (saved("nft") == before).then_some(())
        });
    });
}

#[test]
fn in_mode_iptables_our_own_changes_raise_no_doubt() {
    in_namespace(|| {
        hint("nft");
        let manifests = copied();
        let proxy = start(manifests.path(), &[NO_POLL], &[]);
        change(manifests.path(), "10.96.0.20", "10.96.0.77");
        until("the change is programmed", || {
            saved("nft").contains("10.96.0.77").then_some(())
        });
        // Told after ours, so that nothing of ours is still on its way.
        words("ip6tables-nft -t nat -F KUBE-SERVICES");
        let doubt = |family: &str| {
            let log = proxy.log();
            let mut lines = log.lines().filter(|line| line.contains("External change"));
            lines.any(|line| line.contains(family))
        };
        until("the external change is noticed", || {
            doubt("IPv6").then_some(())
        });
        assert!(!doubt("IPv4"), "{}", proxy.log());
    });
}

#[test]
fn in_mode_iptables_a_flush_of_the_older_flavour_is_noticed_by_the_canary() {
    in_namespace(|| {
        hint("legacy");
        let proxy = start(&examples(), &["--iptables-sync-period=1s"], &[]);
        let rules = saved("legacy");
        for command in [
            "iptables-legacy -t nat -F",
            "ip6tables-legacy -F",
            "iptables-legacy -t mangle -X KUBE-PROXY-CANARY",
        ] {
            words(command);
            until(&format!("healed after {command}\n{}", proxy.log()), || {
                (saved("legacy") == rules).then_some(())
            });
        }
    });
}

#[test]
fn in_mode_iptables_kubelets_flavour_is_used_in_both_families_and_the_other_left_alone() {
    for (flavour, other) in [("nft", "legacy"), ("legacy", "nft")] {
        in_namespace(|| {
            // Its hint about one family is enough.
            hint(flavour);
            words(&format!("iptables-{other} -N SOMETHING"));
            let _proxy = start(&examples(), &[], &[]);
            let rules = saved(flavour);
            for family in ["iptables ", "ip6tables "] {
                let ours = |table: &&str| table.contains("KUBE-SERVICES");
                let tables = rules.split_inclusive("COMMIT\n");
                let mut tables = tables.filter(|table| table.starts_with(family));
                assert!(tables.any(|table| ours(&table)), "{flavour}: {rules}");
            }
            let theirs = saved(other);
            assert!(!theirs.contains("KUBE-"), "{flavour}: {theirs}");
        });
    }
}

#[test]
fn in_mode_iptables_a_lock_held_by_another_program_delays_and_loses_nothing() {
    in_namespace(|| {
        hint("legacy");
        let manifests = copied();
        let file = manifests.path().join("lock");
        let variables = [("XTABLES_LOCKFILE", &*file)];
        let proxy = start(manifests.path(), &[], &variables);
        let before = saved("legacy");
        let lock = fs::File::create(&file).unwrap();
        lock.lock().unwrap();
        change(manifests.path(), "10.96.0.20", "10.96.0.77");
        // Waiting has an end, again and again, and each is told.
        let complaints = || proxy.log().matches("locked by another program").count();
        until("the first wait ends", || (complaints() > 0).then_some(()));
        change(manifests.path(), "10.96.0.10", "10.96.0.78");
        until("the next wait ends", || (complaints() > 1).then_some(()));
        assert_eq!(saved("legacy"), before);
        lock.unlock().unwrap();
        until("everything is programmed", || {
            let rules = saved("legacy");
            let all = rules.contains("10.96.0.77") && rules.contains("10.96.0.78");
            (all && !rules.contains("10.96.0.20/") && !rules.contains("10.96.0.10/")).then_some(())
        });
    });
}

#[test]
fn in_mode_iptables_the_newer_flavour_needs_no_lock() {
    in_namespace(|| {
        hint("nft");
        let manifests = copied();
        let file = manifests.path().join("lock");
        let lock = fs::File::create(&file).unwrap();
        lock.lock().unwrap();
        let proxy = start(manifests.path(), &[], &[("XTABLES_LOCKFILE", &file)]);
        change(manifests.path(), "10.96.0.20", "10.96.0.77");
        until("the change is programmed", || {
            saved("nft").contains("10.96.0.77").then_some(())
        });
        assert!(!proxy.log().contains("locked"), "{}", proxy.log());
    });
}

#[test]
fn in_mode_iptables_one_refused_service_is_named_and_all_others_are_programmed() {
    in_namespace(|| {
        hint("legacy");
        // As a kernel that cannot have rules about one Service; iptables names the line.
        let folder = tempfile::tempdir().unwrap();
        let script = "#!/bin/sh\n\
            INPUT=$(mktemp -p \"${0%/*}\") && cat > $INPUT\n\
            LINE=$(grep -n 'shop/checkout' $INPUT | grep -v '^[0-9]*:-D' | head -1 | cut -d: -f1)\n\
            [ -n \"$LINE\" ] && { echo \"iptables-restore: line $LINE failed\" >&2; exit 1; }\n\
            PATH=${PATH#*:} exec iptables-legacy-restore \"$@\" < $INPUT\n";
        let file = folder.path().join("iptables-legacy-restore");
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", folder.path().display());
        let proxy = start(&examples(), &[], &[("PATH", Path::new(&path))]);
        let rules = saved("legacy");
        assert!(!rules.contains("shop/checkout"), "{rules}");
        assert!(rules.contains("shop/catalog") && rules.contains("kube-system/dns"));
        let log = proxy.log();
        let reported = log
            .lines()
            .find(|line| line.contains("Kernel refused the rules of a Service port"));
        let reported = reported.unwrap_or_else(|| panic!("not reported:\n{log}"));
        assert!(reported.contains("shop/checkout:https"), "{reported}");
    });
}

/// A search path on which these programs are, and nothing else.
fn only(programs: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for program in programs {
        let found = run("sh", &["-c", &format!("command -v {program}")]);
        symlink(found.trim(), folder.path().join(program)).unwrap();
    }
    folder
}

#[test]
fn in_mode_iptables_programs_that_are_missing_are_named() {
    in_namespace(|| {
        let nothing = only(&[]);
        let output = ferrule()
            .env("PATH", nothing.path())
            .args([
                "proxy",
                IPTABLES,
                "--hostname-override=node-a",
                "--manifests",
            ])
            .arg(examples())
            .args(UNTOUCHED)
            .output()
            .unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{log}");
        assert!(log.contains("no iptables support for IPv4"), "{log}");
        assert!(log.contains("cannot run iptables"), "{log}");
    });
}

#[test]
fn in_mode_iptables_a_family_without_programs_does_not_stop_the_other() {
    in_namespace(|| {
        let some = only(&["iptables", "iptables-save", "iptables-restore"]);
        let proxy = start(&examples(), &[], &[("PATH", some.path())]);
        let log = proxy.log();
        assert!(log.contains("Not programming this IP family"), "{log}");
        assert!(log.contains("cannot run ip6tables"), "{log}");
        assert!(run("iptables-save", &[]).contains("shop/checkout"));
    });
}
