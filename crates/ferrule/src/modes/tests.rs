//! A mode goes from its row to the running program.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
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

/// What a server on this machine answers.
fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: here\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn usp_001_usp_067_the_program_tells_its_mode_and_its_health() {
    ferrule_testbed::in_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let table = || ferrule_testbed::run("nft", &["list", "tables"]);
        let proxy = "proxy --proxy-mode=userspace --manifests=EXAMPLES \
                     --hostname-override=node-a --conntrack-max-per-core=0 \
                     --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0 \
                     --healthz-bind-address=127.0.0.1:10256 --proxy-port-range=40000-50000";
        let mut running = ferrule(proxy, folder.path());
        until("programmed", || {
            get(10256, "/readyz").is_some_and(|answer| answer.contains(" 200 "))
        });
        assert!(get(10249, "/proxyMode").unwrap().ends_with("userspace"));
        assert!(get(10256, "/healthz").unwrap().contains(" 200 "));
        let metrics = get(10249, "/metrics").unwrap();
        let synced = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}";
        assert!(metrics.contains(synced), "{metrics}");
        assert!(table().contains("table ip ferrule-userspace"));
        let listening = ferrule_testbed::run("ss", &["-Hltn"]);
        let mut ports = listening
            .split([':', ' '])
            .filter_map(|word| word.parse().ok());
        assert!(
            ports.any(|port: u16| (40000..=50000).contains(&port)),
            "{listening}"
        );

        // Without the process rules would lead nowhere.
        ferrule_testbed::run("kill", &["-TERM", &running.id().to_string()]);
        running.wait().unwrap();
        assert!(!table().contains("ferrule-userspace"));
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
    assert_eq!(
        others("nftables", family),
        ["iptables", "ipvs", "userspace"]
    );
    assert_eq!(others("iptables", family), ["nftables", "userspace"]);
    assert_eq!(others("ipvs", family), ["nftables", "userspace"]);
    assert_eq!(
        others("userspace", family),
        ["iptables", "nftables", "ipvs"]
    );
    // What belongs to no family is nobody else's: the sets of ipvs, when iptables follows it.
    assert_eq!(
        others("iptables", Part::Node),
        ["nftables", "ipvs", "userspace"]
    );
    assert_eq!(find(DEFAULT.name).map(|mode| mode.name), Some("iptables"));
}
