//! Mode userspace: what becomes of connections when the program ends, however it ends.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use ferrule_testbed::{Answer, Ask, Lab, Place, Protocol};

use super::flush::{Stop, TRACKED, connect, manifests, program, vip};
use super::support::*;

const USERSPACE: &str = "--proxy-mode=userspace";

/// A proxy on the node of the lab.
fn proxy(lab: &Lab, extra: &[&'static str]) -> Proxy {
    let folder = manifests(lab);
    let pods = format!("--cluster-cidr={}", lab.pod_net());
    let extra = extra.to_vec();
    lab.node.run(move || {
        let quick = [USERSPACE, "--iptables-min-sync-period=0s", &pods];
        let proxy = Proxy::with_rules(folder.path(), &[&quick[..], &extra].concat());
        proxy.ready();
        proxy
    })
}

/// Whether the other side still answers.
fn goes_on(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.write_all(b"still there")?;
    let mut answer = [0; 11];
    stream.read_exact(&mut answer)?;
    assert_eq!(&answer, b"still there");
    Ok(())
}

/// Waits until nobody listens on the node any more, except for health and metrics.
fn until_withdrawn(lab: &Lab, proxy: &Proxy) {
    let own = [proxy.health, proxy.metrics].map(|address| format!(":{}", address.port()));
    until(&format!("it listens no more\n{}", proxy.log()), || {
        let listening = lab.node.run(|| run("ss", &["-Hltn"]));
        let mut others = listening
            .lines()
            .filter(|line| !own.iter().any(|port| line.contains(port.as_str())));
        others.next().is_none().then_some(())
    });
}

fn tables(lab: &Lab) -> String {
    lab.node.run(|| run("nft", &["list", "tables"]))
}

#[test]
fn after_a_signal_open_connections_go_on_to_their_end() {
    Lab::both(|lab| {
        for portals in [
            "--userspace-portals=nftables",
            "--userspace-portals=iptables",
        ] {
            if portals.ends_with("iptables") {
                let program = program(lab, "nft");
                lab.node
                    .run(move || run(&program, &TRACKED.split(' ').collect::<Vec<_>>()));
            }
            let mut proxy = proxy(lab, &[portals, "--userspace-drain-timeout=1h"]);
            let streams = [&lab.out, &lab.pod].map(|place| connect(place, vip(lab)));
            proxy.signal("TERM");
            until_withdrawn(lab, &proxy);
            for stream in &streams {
                goes_on(stream).unwrap();
            }
            let rules = lab.node.run(ruleset);
            assert!(!rules.contains("KUBE-PORTALS"), "{rules}");
            drop(streams);
            assert_eq!(proxy.wait().code(), Some(143));
            assert!(!tables(lab).contains("userspace"));
        }
    });
}

#[test]
fn a_second_signal_resets_connections_at_once() {
    Lab::both(|lab| {
        let mut proxy = proxy(lab, &["--userspace-drain-timeout=1h"]);
        let stream = connect(&lab.out, vip(lab));
        proxy.signal("TERM");
        until_withdrawn(lab, &proxy);
        goes_on(&stream).unwrap();
        proxy.signal("INT");
        assert_eq!(proxy.wait().code(), Some(143), "the first one counts");
        let error = goes_on(&stream).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn connections_that_do_not_end_in_time_are_reset() {
    Lab::both(|lab| {
        let mut proxy = proxy(lab, &["--userspace-drain-timeout=100ms"]);
        let mut stream = connect(&lab.out, vip(lab));
        proxy.signal("TERM");
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(proxy.wait().code(), Some(143));
    });
}

#[test]
fn a_crash_leaves_no_rules() {
    Lab::both(|lab| {
        let mut proxy = proxy(lab, &[]);
        assert!(tables(lab).contains("ferrule-userspace"));
        proxy.signal("KILL");
        proxy.wait();
        until("the kernel deletes the table", || {
            (!tables(lab).contains("ferrule-userspace")).then_some(())
        });
    });
}

/// Connects again and again; every time somebody must answer.
fn ask(lab: &Lab, place: &Place, stop: &AtomicBool, count: &AtomicUsize) {
    while !stop.load(Ordering::Relaxed) {
        let answer = Ask::new(Protocol::Tcp, vip(lab), 80).put(place);
        let served = matches!(answer, Answer::Served { .. });
        assert!(
            served,
            "after {}: {answer:?}",
            count.load(Ordering::Relaxed)
        );
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn usp_061_nobody_is_refused_while_one_process_takes_over_from_another() {
    Lab::both(|lab| {
        for portals in [
            "--userspace-portals=nftables",
            "--userspace-portals=iptables",
        ] {
            if portals.ends_with("iptables") {
                let program = program(lab, "nft");
                lab.node
                    .run(move || run(&program, &TRACKED.split(' ').collect::<Vec<_>>()));
            }
            let folder = tempfile::tempdir().unwrap();
            let handover = format!("--userspace-handover={}", folder.path().join("s").display());
            let options: [&'static str; 2] = [portals, handover.leak()];
            replace_again_and_again(lab, &options);
        }
    });
}

fn replace_again_and_again(lab: &Lab, options: &[&'static str]) {
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut running = proxy(lab, options);
    thread::scope(|scope| {
        for place in [&lab.out, &lab.pod, &lab.node] {
            scope.spawn(|| ask(lab, place, &stop, &count));
        }
        let _stop = Stop(&stop);
        let some_more = || {
            let before = count.load(Ordering::Relaxed);
            until("clients are served", || {
                (count.load(Ordering::Relaxed) > before + 20).then_some(())
            });
        };
        some_more();
        for _ in 0..3 {
            let old = connect(&lab.out, vip(lab));
            let mut successor = proxy(lab, options);
            std::mem::swap(&mut running, &mut successor);
            let mut replaced = successor;
            until(
                &format!("replaced\n{}\n{}", replaced.log(), running.log()),
                || replaced.log().contains("took over").then_some(()),
            );
            some_more();
            // What began with the old process ends with it, and it with that.
            goes_on(&old).unwrap();
            assert!(replaced.child.try_wait().unwrap().is_none());
            drop(old);
            let code = replaced.wait().code();
            assert_eq!(code, Some(0), "{}", replaced.log());
            some_more();
        }
        assert!(!running.log().contains("Failed to"), "{}", running.log());
    });
}

/// Clients of all sides that connect without a pause, and how often somebody answered.
fn under_load(lab: &Lab, work: impl FnOnce(&dyn Fn(usize))) -> usize {
    const EACH: usize = 4;
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for place in [&lab.out, &lab.pod, &lab.node] {
            for _ in 0..EACH {
                scope.spawn(|| ask(lab, place, &stop, &count));
            }
        }
        let _stop = Stop(&stop);
        work(&|more| {
            let before = count.load(Ordering::Relaxed);
            until("clients are served", || {
                (count.load(Ordering::Relaxed) > before + more).then_some(())
            });
        });
    });
    count.into_inner()
}

#[test]
fn usp_061_upgrades_under_load_refuse_nobody() {
    Lab::both(|lab| {
        let folder = tempfile::tempdir().unwrap();
        let handover = format!("--userspace-handover={}", folder.path().join("s").display());
        let options: [&'static str; 1] = [handover.leak()];
        let mut running = proxy(lab, &options);
        let served = under_load(lab, |some_more| {
            some_more(300);
            for _ in 0..5 {
                let mut replaced = std::mem::replace(&mut running, proxy(lab, &options));
                some_more(300);
                let code = replaced.wait().code();
                assert_eq!(code, Some(0), "{}", replaced.log());
            }
        });
        eprintln!(
            "{:?}: {served} connections, 5 upgrades, 0 failed",
            lab.family
        );
        assert!(!running.log().contains("Failed to"), "{}", running.log());
    });
}
