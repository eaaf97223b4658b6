//! The nft flavour's tables, spoken to directly: what iptables' own programs cannot show.

use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_dataplane::{Cadence, Dataplane, Watcher};
use ferrule_kernel::xt::Flavour;

use crate::state::everything;
use crate::support::*;

const SOON: Duration = Duration::from_millis(250);
const EVENTUALLY: Duration = Duration::from_secs(20);

fn listening(family: Family) -> (Scene, Box<dyn Watcher>) {
    let mut scene = Scene::new(family, Flavour::Nft);
    everything(&mut scene);
    scene.whole();
    let listener = scene.watcher(Cadence::Notified);
    (scene, listener)
}

/// Waits until a change is noticed.
fn noticed(listener: &mut dyn Watcher) -> bool {
    (0..10_000).any(|_| listener.changed(EVENTUALLY).unwrap().is_some())
}

#[test]
fn external_changes_to_our_rules_are_noticed() {
    for family in Family::ALL {
        in_namespace(move || {
            let (mut scene, mut listener) = listening(family);
            let before = scene.saved();
            for commands in [
                &["-t nat -F"][..],
                &["-F"],
                &["-t nat -F", "-t nat -X"],
                &["-t mangle -X"],
                &["-t nat -I KUBE-SERVICES -j ACCEPT"],
                &["-D INPUT 1"],
                &["-F KUBE-FORWARD"],
            ] {
                for command in commands {
                    scene.iptables(command);
                }
                assert!(noticed(&mut *listener), "{commands:?}");
                assert!(scene.whole() > 0, "{commands:?}");
                assert_eq!(scene.saved(), before, "{commands:?}");
                while listener.changed(SOON).unwrap().is_some() {}
            }
        });
    }
}

#[test]
fn changes_that_do_not_concern_us_are_not_noticed() {
    in_namespace(|| {
        let (mut scene, mut listener) = listening(Family::V4);
        for command in [
            "-N DOCKER",
            "-A DOCKER -j RETURN",
            "-I INPUT -j DOCKER",
            "-P FORWARD DROP",
            "-t nat -A PREROUTING -p udp -j ACCEPT",
            "-t nat -N KUBE-KUBELET-CANARY",
            "-A KUBE-FIREWALL -j RETURN",
            "-D INPUT -j DOCKER",
            "-F DOCKER",
            "-X DOCKER",
        ] {
            scene.iptables(command);
        }
        // Ours neither.
        scene.no_service("plain");
        scene.step();
        assert!(is_quiet(&mut *listener));
    });
}

/// Whether nothing is noticed. What happens elsewhere wakes the listener, too.
fn is_quiet(listener: &mut dyn Watcher) -> bool {
    (0..200).all(|_| {
        listener
            .changed(Duration::from_millis(2))
            .unwrap()
            .is_none()
    }) && listener.changed(SOON).unwrap().is_none()
}

#[test]
fn the_policy_of_others_stays() {
    everywhere(|family, flavour| {
        let mut scene = Scene::new(family, flavour);
        scene.iptables("-P FORWARD DROP");
        everything(&mut scene);
        scene.whole();
        assert!(scene.saved().contains(":FORWARD DROP"));
        scene.iptables("-F FORWARD");
        scene.whole();
        assert!(scene.saved().contains(":FORWARD DROP"));
    });
}

#[test]
fn a_refusal_of_the_kernel_is_laid_at_the_right_door() {
    for family in Family::ALL {
        in_namespace(move || {
            let mut scene = Scene::new(family, Flavour::Nft);
            everything(&mut scene);
            scene.whole();
            let saved = scene.saved();
            let chain = |name: &str| {
                let line = saved.lines().find(|line| {
                    line.starts_with("-A KUBE-SERVICES")
                        && line.contains(&format!("{name} cluster"))
                });
                line.unwrap().rsplit(' ').next().unwrap().to_owned()
            };
            let port = chain("demo/port");
            scene.dataplane.remove().unwrap();
            // Nothing may lead to a chain that packets enter by themselves.
            let table = match family {
                Family::V4 => "ip",
                Family::V6 => "ip6",
            };
            let hook = "{ type nat hook postrouting priority 50; }";
            run("nft", &[&format!("add chain {table} nat {port} {hook}")]);
            scene.whole();
            let refused = &scene.last.refused;
            let names: Vec<_> = refused.iter().map(|r| r.key.to_string()).collect();
            assert_eq!(names, ["demo/port"]);
            assert!(
                refused[0].message.contains("KUBE-"),
                "{}",
                refused[0].message
            );
            let saved = run("nft", &["list", "table", table, "nat"]);
            assert!(saved.contains("KUBE-SVC-"));
            // It bore the name of one of our chains and led nowhere, so it is gone.
            assert!(!saved.contains("priority 50"));
            scene.whole();
            assert!(scene.last.refused.is_empty());
            assert!(scene.saved().contains("demo/port cluster IP"));
            assert_eq!(scene.whole(), 0);
        });
    }
}

#[test]
fn what_rules_have_counted_is_no_difference() {
    in_namespace(|| {
        let mut scene = Scene::new(Family::V4, Flavour::Nft);
        everything(&mut scene);
        scene.whole();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .send_to(b"hello", socket.local_addr().unwrap())
            .unwrap();
        let counted = run("iptables-nft-save", &["-c"]);
        assert!(
            !counted
                .lines()
                .filter(|l| l.contains("KUBE-FIREWALL"))
                .all(|l| l.starts_with("[0:0]"))
        );
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn a_change_before_anybody_listened_is_noticed_by_the_first_listener() {
    for family in Family::ALL {
        in_namespace(move || {
            let mut scene = Scene::new(family, Flavour::Nft);
            everything(&mut scene);
            scene.whole();
            let mut listener = scene.watcher(Cadence::Notified);
            assert_eq!(listener.changed(SOON).unwrap(), None, "our own are no news");
            scene.whole();
            scene.iptables("-F KUBE-FORWARD");
            let mut listener = scene.watcher(Cadence::Notified);
            assert!(listener.changed(Duration::ZERO).unwrap().is_some());
            assert!(scene.whole() > 0);
        });
    }
}
