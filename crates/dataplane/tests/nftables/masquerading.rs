//! Whose address is replaced by the node's: marks, and all ways to tell pods from others.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferrule_core::facts::{DetectLocal, Settings};
use ferrule_dataplane::nftables::Options;
use ferrule_kernel::nft::{Comment, Value};
use ferrule_testbed::{Answer, Lab, Place, Protocol};

use crate::matrix::*;
use crate::spy::{Spy, word};
use crate::support::*;

fn scene(lab: &Lab, detect_local: DetectLocal) -> Scene {
    let settings = Settings {
        detect_local,
        ..Settings::default()
    };
    let mut scene = Scene::at(lab, settings);
    let family = scene.family;
    scene
        .node_with(lab.node_ip(), &[&lab.node_net()])
        .service(full(family, "all", 1))
        .slice(pods(lab, "all", &[1]));
    scene.whole();
    scene
}

/// Clients of the cluster IP that the pod here sees as they are, of those on these places.
fn unmasked<'a>(lab: &Lab, places: &[(&'a str, &Place, IpAddr)]) -> BTreeSet<&'a str> {
    let mut unmasked = BTreeSet::new();
    for (name, place, own) in places {
        for protocol in Protocol::ALL {
            let answer = ask(lab, protocol, Kind::ClusterIp, 1).put(place);
            if answer == (Answer::Served { by: 1, seen: *own }) {
                unmasked.insert(*name);
            } else {
                let seen = lab.masqueraded(1);
                assert_eq!(
                    answer,
                    Answer::Served { by: 1, seen },
                    "{name} {protocol:?}"
                );
                assert!(!unmasked.contains(name), "{name}: protocols differ");
            }
        }
    }
    unmasked
}

fn clients(lab: &Lab) -> [(&'static str, &Place, IpAddr); 4] {
    [
        ("pod", &lab.pod, lab.pod_ip()),
        ("far", &lab.far, lab.far_ip()),
        ("node", &lab.node, lab.second()),
        ("out", &lab.out, lab.out_ip()),
    ]
}

#[test]
fn nft_015_clients_that_are_no_pods_are_masqueraded_however_pods_are_told() {
    Lab::both(|lab| {
        let nets = |net: String| [net.parse().unwrap()].into();
        let modes = [
            (
                DetectLocal::ClusterCidr(nets(lab.pod_net())),
                &["pod", "far"][..],
            ),
            (DetectLocal::NodeCidr, &["pod"]),
            (DetectLocal::BridgeInterface("veth-pod".into()), &["pod"]),
            (DetectLocal::BridgeInterface("far".into()), &["far"]),
            (DetectLocal::InterfaceNamePrefix("veth-".into()), &["pod"]),
            (DetectLocal::InterfaceNamePrefix("far".into()), &["far"]),
        ];
        for (mode, pods) in modes {
            let _scene = scene(lab, mode.clone());
            let pods: BTreeSet<_> = pods.iter().copied().collect();
            assert_eq!(unmasked(lab, &clients(lab)), pods, "{mode:?}");
        }
    });
}

#[test]
fn nft_016_everybody_is_masqueraded_if_wanted() {
    Lab::both(|lab| {
        let mut scene = scene(lab, DetectLocal::NodeCidr);
        scene.settings(Settings {
            detect_local: DetectLocal::NodeCidr,
            masquerade_all: true,
            ..Settings::default()
        });
        scene.step();
        assert_eq!(unmasked(lab, &clients(lab)), BTreeSet::new());
        let rules = scene.snapshot().rules;
        let comments = rules.iter().filter_map(|held| held.object.comment.as_ref());
        let comments: Vec<_> = comments.map(Comment::as_str).collect();
        assert!(comments.contains(&"masquerade all clusterIP traffic"));
        assert!(!comments.contains(&"masquerade clusterIP traffic from outside cluster"));
    });
}

#[test]
fn nft_017_nobody_is_masqueraded_at_a_cluster_ip_if_pods_cannot_be_told() {
    Lab::both(|lab| {
        let _scene = scene(lab, DetectLocal::ClusterCidr(Box::default()));
        let all: BTreeSet<_> = clients(lab).iter().map(|(name, ..)| *name).collect();
        assert_eq!(unmasked(lab, &clients(lab)), all);
        // Other addresses do not depend on it.
        let answer = ask(lab, Protocol::Tcp, Kind::ExternalIp, 1).put(&lab.out);
        let seen = lab.masqueraded(1);
        assert_eq!(answer, Answer::Served { by: 1, seen });
    });
}

#[test]
fn nft_012_the_mark_is_gone_behind_the_node_and_other_bits_are_not() {
    Lab::both(|lab| {
        let mut scene = scene(lab, DetectLocal::NodeCidr);
        let family = word(lab.family);
        // Somebody else's bit is set on the way in.
        let text = format!(
            "table {family} other {{
                chain in {{
                    type filter hook prerouting priority -150
                    meta mark set meta mark | 0x20
                }}
            }}"
        );
        lab.node
            .run(move || ferrule_testbed::feed("nft", &["-f", "-"], &text));
        for bit in [14, 0, 31] {
            let mark = 1 << bit;
            scene.options(Options { mark });
            scene.step();
            let to = lab.here_ip();
            let left = Spy::matching(lab, &format!("{family} daddr {to} meta mark 0x20"));
            let seen = lab.masqueraded(1);
            for protocol in Protocol::ALL {
                for kind in KINDS {
                    let answer = ask(lab, protocol, kind, 1).put(&lab.out);
                    assert_eq!(answer, Answer::Served { by: 1, seen });
                }
            }
            assert!(left.count() >= 12);
            drop(left);
            let marked = format!("{family} daddr {to} meta mark & {mark:#x} != 0");
            let marked = Spy::matching(lab, &marked);
            for kind in KINDS {
                ask(lab, Protocol::Udp, kind, 1).put(&lab.out);
            }
            assert_eq!(marked.count(), 0);
        }
    });
}

#[test]
fn nft_014_only_endpoints_on_this_node_can_reach_themselves() {
    both(|family| {
        let a = |y| address(family, 1, y);
        let mut scene = Scene::new(family);
        let pods = [(a(1), true), (a(2), false), (a(3), true)];
        scene
            .service(service(family, "plain", 1))
            .slice(slice(family, "plain", &pods));
        scene.whole();
        let keys = |scene: &Scene| {
            let held = &scene.snapshot().elements["hairpin-connections"];
            let mut keys: Vec<_> = held.iter().map(|element| element.key).collect();
            keys.sort_unstable();
            keys
        };
        let key = |y| Value::from(a(y)).address(a(y)).protocol(6).port(8080);
        assert_eq!(keys(&scene), [key(1), key(3)]);
        scene.slice(slice(family, "plain", &pods[..2])).step();
        assert_eq!(keys(&scene), [key(1)]);
    });
}
