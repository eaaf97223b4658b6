//! Bad days: locks, missing programs, refused rules, both flavours at once.
//!
//! Where iptables itself must misbehave, a small script stands in its place and calls the real one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_dataplane::iptables::{Iptables, Options};
use ferrule_dataplane::{ApplyError, Cadence};
use ferrule_kernel::xt::{Flavour, Xt, XtError};
use tempfile::TempDir;

use crate::state::everything;
use crate::support::*;

/// A folder with programs that do what the real ones do, but for `iptables-restore`, which runs
/// this script. `$REAL` in it is the real one, and its input is in `$INPUT`.
pub fn programs(flavour: Flavour, restore: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let variant = variant(flavour);
    let put = |name: &str, script: &str| put(folder.path(), name, script);
    put("iptables", &format!("exec iptables-{variant} \"$@\""));
    put(
        "iptables-save",
        &format!("exec iptables-{variant}-save \"$@\""),
    );
    let here = folder.path().display();
    put(
        "iptables-restore",
        &format!(
            "REAL=iptables-{variant}-restore\nexport XTABLES_LOCKFILE={here}/lock\n\
             INPUT={here}/input\ncat > $INPUT\n{restore}"
        ),
    );
    folder
}

/// Puts a script where a program would be.
pub fn put(folder: &Path, name: &str, script: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// What a flavour is called in names of programs.
pub const fn variant(flavour: Flavour) -> &'static str {
    match flavour {
        Flavour::Nft => "nft",
        Flavour::Legacy => "legacy",
    }
}

pub fn scene(programs: &Path) -> Scene {
    let xt = Xt::open_in(Some(programs), ferrule_kernel::Family::V4, &[]).unwrap();
    Scene::over(Family::V4, settings(&["10.1.0.0/16"]), xt).by_programs()
}

fn refused(scene: &Scene) -> Vec<String> {
    let refused = &scene.last.refused;
    refused.iter().map(|r| r.key.to_string()).collect()
}

#[test]
fn a_service_whose_rule_is_refused_is_left_out_and_named() {
    for flavour in FLAVOURS {
        in_namespace(move || {
            // As if the kernel knew no rules about one address; the line is told.
            let folder = programs(
                flavour,
                "LINE=$(grep -n 'demo/port' $INPUT | grep -v '^[0-9]*:-D' | head -1 | cut -d: -f1)\n\
                 [ -n \"$LINE\" ] && { echo \"iptables-restore: line $LINE failed\" >&2; exit 1; }\n\
                 exec $REAL \"$@\" < $INPUT",
            );
            let mut scene = scene(folder.path());
            everything(&mut scene);
            scene.whole();
            assert_eq!(refused(&scene), ["demo/port"]);
            assert!(scene.last.refused[0].message.contains("failed"));
            let saved = scene.saved();
            assert!(saved.contains("demo/plain") && saved.contains("demo/lb"));
            assert!(!saved.contains("demo/port"));
            // It is not in the way of others' changes, and others' changes leave it out.
            scene.no_service("plain");
            scene.step();
            assert!(!scene.saved().contains("demo/plain"));
            assert_eq!(refused(&scene), ["demo/port"]);
            // When it goes, it is not spoken of any more.
            scene.no_service("port");
            scene.step();
            assert!(refused(&scene).is_empty());
        });
    }
}

#[test]
fn a_refusal_that_names_no_line_is_searched_for() {
    in_namespace(|| {
        let folder = programs(
            Flavour::Nft,
            "grep -q -e '-A.*demo/lb[ \"]' -e '-A.*demo/none' $INPUT && { echo 'Invalid argument' >&2; exit 1; }\n\
             exec $REAL \"$@\" < $INPUT",
        );
        let mut scene = scene(folder.path());
        everything(&mut scene);
        scene.whole();
        assert_eq!(refused(&scene), ["demo/lb", "demo/none"]);
        let saved = scene.saved();
        for name in ["plain", "port", "local", "remote"] {
            assert!(saved.contains(&format!("demo/{name}")), "{name}");
        }
        assert!(!saved.contains("demo/lb ") && !saved.contains("demo/none"));
    });
}

#[test]
fn a_refusal_of_everything_is_an_error_and_heals() {
    in_namespace(|| {
        let folder = programs(
            Flavour::Legacy,
            "[ -e ${INPUT%input}ill ] && { echo 'out of order' >&2; exit 1; }\n\
             exec $REAL \"$@\" < $INPUT",
        );
        let ill = folder.path().join("ill");
        fs::write(&ill, "").unwrap();
        let mut scene = scene(folder.path());
        everything(&mut scene);
        let error = scene.try_whole().unwrap_err();
        assert!(matches!(error, ApplyError::Refused { .. }), "{error:?}");
        assert!(refused(&scene).is_empty());
        fs::remove_file(&ill).unwrap();
        assert!(scene.whole() > 50);
        // What could not be written in a delta is not lost.
        fs::write(&ill, "").unwrap();
        scene.no_service("plain");
        scene.try_step().unwrap_err();
        fs::remove_file(&ill).unwrap();
        scene.whole();
        assert!(!scene.saved().contains("demo/plain"));
    });
}

#[test]
fn counters_that_rules_cannot_use_are_done_without() {
    for flavour in FLAVOURS {
        in_namespace(move || {
            let folder = programs(
                flavour,
                "LINE=$(grep -n nfacct $INPUT | head -1 | cut -d: -f1)\n\
                 [ -n \"$LINE\" ] && { echo \"Couldn't load match \\`nfacct'; Error occurred at line: $LINE\" >&2; exit 2; }\n\
                 exec $REAL \"$@\" < $INPUT",
            );
            let mut scene = scene(folder.path());
            everything(&mut scene);
            assert!(scene.whole() > 50);
            assert!(refused(&scene).is_empty());
            let saved = scene.saved();
            assert!(!saved.contains("nfacct") && saved.contains("demo/port"));
            assert_eq!(scene.step(), 0);
        });
    }
}

#[test]
fn a_lock_held_by_another_program_is_an_error_and_heals() {
    in_namespace(|| {
        let folder = programs(Flavour::Legacy, "shift 2\nexec $REAL -w 1 \"$@\" < $INPUT");
        let mut scene = scene(folder.path());
        everything(&mut scene);
        scene.whole();
        let lock = fs::File::create(folder.path().join("lock")).unwrap();
        lock.lock().unwrap();
        scene.no_service("plain");
        let error = scene.try_step().unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("locked by another program"), "{source}");
        assert!(scene.saved().contains("demo/plain"));
        lock.unlock().unwrap();
        scene.whole();
        assert!(!scene.saved().contains("demo/plain"));
    });
}

#[test]
fn ipt_080_a_lock_that_is_held_is_no_flush() {
    in_namespace(|| {
        let folder = programs(Flavour::Legacy, "exec $REAL \"$@\" < $INPUT");
        let mut scene = scene(folder.path());
        scene.whole();
        let mut canary = scene.watcher(Cadence::Polled);
        assert!(canary.changed(Duration::ZERO).unwrap().is_none());
        let locked = "echo 'Another app is currently holding the xtables lock' >&2\nexit 4";
        let iptables = folder.path().join("iptables");
        fs::write(iptables, format!("#!/bin/sh\n{locked}\n")).unwrap();
        let answer = canary.changed(Duration::ZERO);
        assert!(answer.is_err(), "it cannot be known");
    });
}

#[test]
fn programs_that_are_not_there_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = Xt::open_in(Some(folder.path()), ferrule_kernel::Family::V4, &[]).unwrap_err();
    assert!(matches!(&error, XtError::Unusable { program, .. } if program == "iptables"));
    assert_eq!(error.to_string(), "cannot run iptables");
}

/// The flavour that is chosen here.
fn flavour(family: Family) -> Flavour {
    Iptables::open(family, Options::default())
        .unwrap()
        .flavour()
}

#[test]
fn kubelets_hint_chooses_the_flavour() {
    in_namespace(|| {
        let plain = flavour(Family::V4);
        let other = match plain {
            Flavour::Nft => Flavour::Legacy,
            Flavour::Legacy => Flavour::Nft,
        };
        // The other one having rules is not enough.
        iptables(Family::V4, other, "-t mangle -N SOMETHING");
        assert_eq!(flavour(Family::V4), plain);
        // A hint about one family is about both.
        iptables(Family::V4, other, "-t mangle -N KUBE-IPTABLES-HINT");
        for family in Family::ALL {
            assert_eq!(flavour(family), other);
        }
    });
}

#[test]
fn asking_for_the_flavour_brings_no_tables_about() {
    in_namespace(|| {
        Xt::open_as(Flavour::Nft, ferrule_kernel::Family::V4).unwrap();
        let _ = flavour(Family::V4);
        let names = "/proc/thread-self/net/ip_tables_names";
        let text = fs::read_to_string(names).unwrap_or_default();
        assert!(!text.contains("mangle"), "{text}");
    });
}

#[test]
fn a_service_whose_change_is_refused_keeps_what_it_had() {
    for (flavour, told) in [
        (
            Flavour::Nft,
            "LINE=$(grep -n -e '-A.*10.1.0.66' $INPUT | head -1 | cut -d: -f1)",
        ),
        (
            Flavour::Legacy,
            "LINE=$(grep -c -e '-A.*10.1.0.66' $INPUT | sed 's/^0$//; s/./?/')",
        ),
    ] {
        in_namespace(move || {
            let folder = programs(
                flavour,
                &format!(
                    "{told}\n[ -n \"$LINE\" ] && {{ echo \"iptables-restore: line $LINE failed\" >&2; exit 1; }}\n\
                     exec $REAL \"$@\" < $INPUT"
                ),
            );
            let mut scene = scene(folder.path());
            everything(&mut scene);
            scene.whole();
            let before = scene.saved();
            let plain = service("plain", address(Family::V4, 96, 1));
            let bad = [(address(Family::V4, 1, 66), false)];
            scene.slice(slice(&plain, 8080, &bad));
            scene.step();
            assert_eq!(refused(&scene), ["demo/plain"]);
            assert_eq!(scene.saved(), before);
            // Others go on meanwhile, and it keeps what it had through an audit, too.
            scene.no_service("port");
            scene.step();
            scene.whole();
            assert_eq!(refused(&scene), ["demo/plain"]);
            assert!(scene.saved().contains("demo/plain -> 10.1.0.1:8080"));
            let good = [(address(Family::V4, 1, 67), false)];
            scene.slice(slice(&plain, 8080, &good));
            scene.step();
            assert!(refused(&scene).is_empty());
            assert!(scene.saved().contains("demo/plain -> 10.1.0.67:8080"));
            assert_eq!(scene.whole(), 0);
        });
    }
}
