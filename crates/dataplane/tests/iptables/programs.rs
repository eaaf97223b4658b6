//! How iptables' programs are called, and what is made of their failures.

use std::fs;

use ferrule_core::model::Family;
use ferrule_dataplane::{ApplyError, Dataplane as _};
use ferrule_kernel::xt::{Flavour, Table};

use crate::faults::{programs, put, scene, variant};
use crate::state::everything;
use crate::support::*;

#[test]
fn ipt_007_iptables_is_asked_about_chains_and_never_given_rules() {
    for flavour in FLAVOURS {
        in_namespace(move || {
            let folder = programs(flavour, "exec $REAL \"$@\" < $INPUT");
            let calls = folder.path().join("calls");
            put(
                folder.path(),
                "iptables",
                &format!(
                    "echo \"$@\" >> {}\nexec iptables-{} \"$@\"",
                    calls.display(),
                    variant(flavour)
                ),
            );
            let mut scene = scene(folder.path());
            everything(&mut scene);
            scene.whole();
            scene.no_service("plain");
            scene.step();
            assert!(scene.is_intact());
            scene.dataplane.remove().unwrap();
            let calls = fs::read_to_string(&calls).unwrap();
            let mut calls: Vec<&str> = calls.lines().collect();
            calls.sort_unstable();
            calls.dedup();
            // What waits comes first, then what is asked, of which chain, in which table.
            let asked = [
                "--version",
                "-w 5 -S INPUT -t filter",
                "-w 5 -S KUBE-PROXY-CANARY -t mangle",
                "-w 5 -S POSTROUTING -t nat",
                "-w 5 -S PREROUTING -t nat",
            ];
            assert_eq!(calls, asked);
        });
    }
}

#[test]
fn ipt_009_a_look_that_failed_is_not_taken_for_absence() {
    for flavour in FLAVOURS {
        in_namespace(move || {
            let count = "echo >> ${INPUT%input}writes\nexec $REAL \"$@\" < $INPUT";
            let folder = programs(flavour, count);
            let mut scene = scene(folder.path());
            everything(&mut scene);
            scene.whole();
            let before = scene.saved();
            let writes = || fs::read(folder.path().join("writes")).unwrap().len();
            let written = writes();
            let save = format!("iptables-{}-save", variant(flavour));
            // Nothing printed, half a table printed, or no program at all: in one table or in all.
            for failure in [
                "exit 1".to_owned(),
                "exit 4".to_owned(),
                format!("{save} \"$@\" | head -4\nexit 2"),
                format!("case $2 in nat) exit 1;; esac\nexec {save} \"$@\""),
                "kill -9 $$".to_owned(),
            ] {
                put(folder.path(), "iptables-save", &failure);
                let error = scene.try_whole().expect_err(&failure);
                assert!(matches!(error, ApplyError::Refused { .. }), "{error:?}");
                assert_eq!(writes(), written, "{failure}");
                assert_eq!(scene.saved(), before, "{failure}");
            }
            put(
                folder.path(),
                "iptables-save",
                &format!("exec {save} \"$@\""),
            );
            // Every jump is still there, and none twice.
            assert_eq!(scene.whole(), 0);
        });
    }
}

#[test]
fn ipt_009_a_chain_that_is_absent_is_told_from_one_that_cannot_be_looked_at() {
    for flavour in FLAVOURS {
        in_namespace(move || {
            let folder = programs(flavour, "exec $REAL \"$@\" < $INPUT");
            let xt = ferrule_kernel::xt::Xt::open_in(Some(folder.path()), kernel(Family::V4), &[]);
            let xt = xt.unwrap();
            assert!(xt.list(Table::Mangle, "NOWHERE").unwrap().is_none());
            assert!(xt.list(Table::Nat, "POSTROUTING").unwrap().is_some());
            for failure in [
                "echo 'iptables: Memory allocation problem.' >&2; exit 1",
                "echo 'Permission denied (you must be root)' >&2; exit 3",
                "exit 2",
            ] {
                put(folder.path(), "iptables", failure);
                xt.list(Table::Mangle, "NOWHERE").expect_err(failure);
            }
        });
    }
}

#[test]
fn ipt_011_programs_that_cannot_wait_are_not_asked_to_and_a_lock_is_tried_again() {
    in_namespace(|| {
        // A program of 2013 that refuses what it does not know, as those did.
        let folder = programs(
            Flavour::Legacy,
            "case $* in *-w*) echo 'unrecognized option: w' >&2; exit 2;; esac\n\
             [ -e ${INPUT%input}held ] && { echo 'Another app is currently holding the xtables lock. \
             Perhaps you want to use the -w option?' >&2; exit 4; }\n\
             exec $REAL \"$@\" < $INPUT",
        );
        put(
            folder.path(),
            "iptables",
            "case $* in --version) echo 'iptables v1.4.21'; exit;; \
             *-w\\ [0-9]*) echo 'Bad argument' >&2; exit 2;; esac\n\
             exec iptables-legacy \"$@\"",
        );
        let mut scene = scene(folder.path());
        everything(&mut scene);
        scene.whole();
        assert!(scene.is_intact());
        // What it cannot say it is not asked to say either.
        assert!(!scene.saved().contains("--random-fully"));
        let held = folder.path().join("held");
        fs::write(&held, "").unwrap();
        scene.no_service("plain");
        let error = scene.try_step().unwrap_err();
        assert!(error.has_waited(), "{error:?}");
        assert!(scene.saved().contains("demo/plain"));
        fs::remove_file(&held).unwrap();
        scene.step();
        assert!(!scene.saved().contains("demo/plain"));
    });
}

#[test]
fn a_kernel_without_the_table_that_only_marks_serves_all_the_same() {
    in_namespace(|| {
        let missing = "Table does not exist (do you need to insmod?)";
        let folder = programs(
            Flavour::Legacy,
            &format!(
                "grep -q '^.mangle' $INPUT && {{ echo '{missing}' >&2; exit 1; }}\n\
                 exec $REAL \"$@\" < $INPUT"
            ),
        );
        for (name, beginning) in [
            ("iptables", "can't initialize iptables table `mangle':"),
            ("iptables-save", "Cannot initialize:"),
        ] {
            let verb = name.strip_prefix("iptables").unwrap();
            let script = format!(
                "case \"$*\" in *mangle*) echo \"{}{missing}\" >&2; exit 3;; esac\n\
                 exec iptables-legacy{verb} \"$@\"",
                format!("{beginning} ").replace('`', "\\`"),
            );
            put(folder.path(), name, &script);
        }
        let mut scene = scene(folder.path());
        everything(&mut scene);
        assert!(scene.whole() > 50);
        assert!(scene.is_intact());
        assert_eq!(scene.whole(), 0);
        scene.no_service("plain");
        assert!(scene.step() > 0);
        run("iptables-legacy", &["-t", "nat", "-F", "PREROUTING"]);
        assert!(!scene.is_intact());
        assert!(scene.dataplane.remove().unwrap().steps > 50);
        assert!(!run("iptables-legacy-save", &[]).contains("KUBE-SERVICES"));
    });
}

#[test]
fn ipt_015_without_the_jumps_nothing_is_written_and_all_is_looked_at_again() {
    for flavour in FLAVOURS {
        in_namespace(move || {
            // The chains that packets enter cannot be changed, and nobody's rule is at fault.
            let folder = programs(
                flavour,
                "[ -e ${INPUT%input}ill ] && grep -q -e '-I OUTPUT' $INPUT && \
                 { echo 'Invalid argument' >&2; exit 1; }\n\
                 exec $REAL \"$@\" < $INPUT",
            );
            let ill = folder.path().join("ill");
            fs::write(&ill, "").unwrap();
            let mut scene = scene(folder.path());
            everything(&mut scene);
            let error = scene.try_whole().unwrap_err();
            assert!(matches!(error, ApplyError::Refused { .. }), "{error:?}");
            assert!(!scene.saved().contains("KUBE-"), "{}", scene.saved());
            fs::remove_file(&ill).unwrap();
            // A small change, and everything is there.
            scene.no_service("plain");
            assert!(scene.step() > 50);
            assert_eq!(scene.whole(), 0);
        });
    }
}

#[test]
fn ipt_015_where_the_kernel_refuses_the_jumps_no_packet_is_led_anywhere() {
    in_namespace(|| {
        let mut scene = Scene::new(Family::V4, Flavour::Nft);
        everything(&mut scene);
        // Addresses cannot be translated in a chain of this type.
        run("nft", &["add table ip nat"]);
        let chain = "{ type filter hook prerouting priority -100; }";
        run("nft", &[&format!("add chain ip nat PREROUTING {chain}")]);
        let error = scene.try_whole().unwrap_err();
        assert!(matches!(error, ApplyError::Refused { .. }), "{error:?}");
        let nat = run("nft", &["list", "table", "ip", "nat"]);
        assert!(!nat.contains("jump KUBE-SERVICES"), "{nat}");
        run("nft", &["delete chain ip nat PREROUTING"]);
        scene.no_service("plain");
        assert!(scene.step() > 20);
        assert!(scene.saved().contains("-A PREROUTING -m comment"));
        assert_eq!(scene.whole(), 0);
    });
}
