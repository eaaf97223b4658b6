//! A mode goes from its row to the running program.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::*;

/// Where the child, which is this test program again, finds its arguments.
const ARGUMENTS: &str = "FERRULE_TEST_ARGUMENTS";

/// Not a test by itself: the program with all modes that tests have.
#[test]
fn the_program() {
    #[expect(clippy::disallowed_methods, reason = "the parent says it so")]
    if let Ok(arguments) = std::env::var(ARGUMENTS) {
        let words = arguments.split(' ').map(Into::into);
        let code = crate::run(std::iter::once("ferrule".into()).chain(words).collect());
        std::process::exit(i32::from(code != std::process::ExitCode::SUCCESS));
    }
}

/// Starts the program in this folder, in the network of the calling thread.
fn ferrule(arguments: &str, folder: &Path) -> Child {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    #[expect(clippy::disallowed_methods, reason = "tests may run programs")]
    Command::new(std::env::current_exe().unwrap())
        .args(["modes::tests::the_program", "--exact", "--nocapture"])
        .env(ARGUMENTS, arguments.replace("EXAMPLES", examples))
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never: {what}");
}

#[test]
fn a_mode_is_a_dataplane_and_a_row() {
    ferrule_testbed::in_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let read = || std::fs::read_to_string(folder.join("IPv4"));

        let proxy = "proxy --proxy-mode=paper --manifests=EXAMPLES --hostname-override=node-a \
                     --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 \
                     --conntrack-tcp-timeout-close-wait=0 --healthz-bind-address=127.0.0.1:10256";
        let mut running = ferrule(proxy, folder);
        until("programmed", || {
            read().is_ok_and(|text| text.contains("shop/checkout:https\n"))
        });
        let programmed = read().unwrap();

        let render = "render --mode=paper --manifests=EXAMPLES --node=node-a --family=ipv4";
        let rendered = ferrule(render, folder).wait_with_output().unwrap();
        let rendered = String::from_utf8(rendered.stdout).unwrap();
        assert!(rendered.contains(&programmed), "{rendered}");

        // It removes its rules at the end.
        ferrule_testbed::run("kill", &["-TERM", &running.id().to_string()]);
        running.wait().unwrap();
        assert!(read().is_err(), "removed with the program");

        std::fs::write(folder.join("IPv4"), programmed).unwrap();
        let mut cleanup = ferrule("proxy --cleanup", folder);
        assert!(cleanup.wait().unwrap().success());
        assert!(read().is_err(), "removed by --cleanup");
    });
}

#[test]
fn every_mode_sweeps_those_that_do_not_share_its_chains() {
    let others = |name, part| {
        let mode = find(name).unwrap();
        let others = mode.others(part).filter(|mode| mode.about.is_some());
        others.map(|mode| mode.name).collect::<Vec<_>>()
    };
    let family = Part::Family(Family::V4);
    assert_eq!(others("nftables", family), ["iptables", "ipvs"]);
    assert_eq!(others("iptables", family), ["nftables"]);
    assert_eq!(others("ipvs", family), ["nftables"]);
    // What belongs to no family is nobody else's: the sets of ipvs, when iptables follows it.
    assert_eq!(others("iptables", Part::Node), ["nftables", "ipvs"]);
    assert_eq!(find(DEFAULT.name).map(|mode| mode.name), Some("iptables"));
}
