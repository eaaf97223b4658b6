//! Switches to another mode and back, and what is left behind.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use ferrule_testbed::{Answer, Ask, Lab, Place, Protocol, in_namespace};

use crate::cluster::{Cluster, IPVS, connect, goes_on, installed, of_mode, vip};
use crate::support::*;

fn start(mode: &str) -> Proxy {
    let proxy = Proxy::with_rules(&examples(), &[mode]);
    proxy.ready();
    proxy
}

fn clean_up() {
    let (code, _, err) = fails(&["--cleanup"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(installed(), [""; 0], "{err}");
}

#[test]
fn ipvs_081_cleanup_after_this_mode_and_after_a_switch_succeeds_and_leaves_nothing() {
    in_namespace(|| {
        for switch in [false, true] {
            let mut proxy = start(IPVS);
            assert!(installed().len() > 100);
            proxy.signal("KILL");
            proxy.wait();
            if switch {
                let mut proxy = start(IPTABLES);
                proxy.signal("KILL");
                proxy.wait();
            }
            clean_up();
        }
        clean_up();
    });
}

#[test]
fn ipvs_077_a_switch_to_another_mode_leaves_nothing_of_this_one() {
    in_namespace(|| {
        let mut first = start(IPVS);
        assert!(of_mode().len() > 80);
        first.signal("TERM");
        first.wait();
        let second = start(IPTABLES);
        until(&format!("nothing is left\n{}", second.log()), || {
            of_mode().is_empty().then_some(())
        });
        assert!(!second.log().contains("Failed to"), "{}", second.log());
    });
}

/// Ends clients, also when a test panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Connects again and again; every time somebody must answer.
fn ask(lab: &Lab, place: &Place, stop: &AtomicBool, count: &AtomicUsize) {
    while !stop.load(Ordering::Relaxed) {
        let answer = Ask::new(Protocol::Tcp, vip(lab), 80).put(place);
        let served = matches!(answer, Answer::Served { .. });
        let before = count.fetch_add(1, Ordering::Relaxed);
        assert!(served, "after {before}: {answer:?}");
    }
}

#[test]
fn ipvs_077_nobody_is_refused_while_modes_follow_each_other() {
    Lab::both(|lab| {
        let cluster = Cluster::new(lab, &[(1, true), (2, true)]);
        let mut running = cluster.proxy(IPVS);
        let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
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
            for mode in [IPTABLES, IPVS, IPTABLES, IPVS] {
                running.signal("TERM");
                running.wait();
                some_more();
                running = cluster.proxy(mode);
                some_more();
                if mode == IPTABLES {
                    until(&format!("nothing is left\n{}", running.log()), || {
                        lab.node.run(of_mode).is_empty().then_some(())
                    });
                    some_more();
                } else {
                    let (stream, _) = connect(lab, &lab.pod);
                    goes_on(&stream).unwrap();
                }
            }
        });
    });
}
