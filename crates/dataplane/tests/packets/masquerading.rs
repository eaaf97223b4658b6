//! Whose address is replaced by the node's: marks, and all ways to tell pods from others.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferrule_core::facts::{DetectLocal, Settings};
use ferrule_kernel::nft::Comment;
use ferrule_testbed::cluster::{Objects, node};
use ferrule_testbed::{Answer, KINDS, Kind, Place, Protocol, feed, word};

use crate::modes::{IPVS, Knobs, USERSPACE};
use crate::scene::Scene;
use crate::spy::Spy;
use crate::world::{World, everywhere_but, everywhere_but_in};

/// Why no case is about mode userspace.
const BECAUSE: &str = "the process asks pods, so they see the node whoever the client is";

fn scene(world: &World, detect_local: DetectLocal) -> Scene {
    let mut scene = world.scene(Settings {
        detect_local,
        ..Settings::default()
    });
    let this = node("here").at(world.node_ip());
    scene
        .node(this.pods(&[&world.node_net()]))
        .service(world.full("all", 1))
        .slice(world.pods("all", &[1]));
    scene.whole();
    scene
}

/// Clients of the cluster IP that the pod here sees as they are.
fn unmasked(world: &World) -> BTreeSet<&'static str> {
    let mut unmasked = BTreeSet::new();
    for (name, place, own) in clients(world) {
        for protocol in Protocol::ALL {
            let answer = world.ask(protocol, Kind::ClusterIp, 1).put(place);
            if answer == (Answer::Served { by: 1, seen: own }) {
                unmasked.insert(name);
            } else {
                let seen = world.masqueraded(1);
                let masked = Answer::Served { by: 1, seen };
                assert_eq!(answer, masked, "{name} {protocol:?}");
                assert!(!unmasked.contains(name), "{name}: protocols differ");
            }
        }
    }
    unmasked
}

fn clients(world: &World) -> [(&'static str, &Place, IpAddr); 4] {
    [
        ("pod", &world.pod, world.pod_ip()),
        ("far", &world.far, world.far_ip()),
        ("node", &world.node, world.second()),
        ("out", &world.out, world.out_ip()),
    ]
}

#[test]
fn nft_015_clients_that_are_no_pods_are_masqueraded_however_pods_are_told() {
    everywhere_but(USERSPACE, BECAUSE, |world| {
        let pods = [world.pod_net().parse().unwrap()].into();
        let bridge = |name: &str| DetectLocal::BridgeInterface(name.into());
        let prefix = |name: &str| DetectLocal::InterfaceNamePrefix(name.into());
        for (mode, pods) in [
            (DetectLocal::ClusterCidr(pods), &["pod", "far"][..]),
            (DetectLocal::NodeCidr, &["pod"]),
            (bridge("veth-pod"), &["pod"]),
            (bridge("far"), &["far"]),
            (prefix("veth-"), &["pod"]),
            (prefix("far"), &["far"]),
        ] {
            let _scene = scene(world, mode.clone());
            let pods: BTreeSet<_> = pods.iter().copied().collect();
            assert_eq!(unmasked(world), pods, "{mode:?}");
        }
    });
}

#[test]
fn nft_016_everybody_is_masqueraded_if_wanted() {
    everywhere_but(USERSPACE, BECAUSE, |world| {
        let mut scene = scene(world, DetectLocal::NodeCidr);
        scene.turn(Knobs {
            masquerade_all: true,
            ..Knobs::default()
        });
        assert_eq!(unmasked(world), BTreeSet::new());
        let Some(table) = scene.table() else { return };
        let rules = table.rules.iter();
        let comments = rules.filter_map(|held| held.object.comment.as_ref());
        let comments: Vec<_> = comments.map(Comment::as_str).collect();
        assert!(comments.contains(&"masquerade all clusterIP traffic"));
        assert!(!comments.contains(&"masquerade clusterIP traffic from outside cluster"));
    });
}

#[test]
fn nft_017_nobody_is_masqueraded_at_a_cluster_ip_if_pods_cannot_be_told() {
    everywhere_but(USERSPACE, BECAUSE, |world| {
        let _scene = scene(world, DetectLocal::ClusterCidr(Box::default()));
        let mut all: BTreeSet<_> = clients(world).iter().map(|(name, ..)| *name).collect();
        if world.mode.like == IPVS {
            // A process on the node has the Service's own address, to which no pod could answer.
            all.remove("node");
        }
        assert_eq!(unmasked(world), all);
        // Other addresses do not depend on it.
        let ask = world.ask(Protocol::Tcp, Kind::ExternalIp, 1);
        let seen = world.masqueraded(1);
        assert_eq!(ask.put(&world.out), Answer::Served { by: 1, seen });
    });
}

#[test]
fn nft_012_the_mark_is_gone_behind_the_node_and_other_bits_are_not() {
    // The kernel that has IPVS has no chain behind all others; IPVS-034 compares the rules.
    everywhere_but_in(&[USERSPACE, IPVS], BECAUSE, |world| {
        let mut scene = scene(world, DetectLocal::NodeCidr);
        let family = word(world.family);
        // Another program's bit is set on the way in.
        let text = format!(
            "table {family} other {{
                chain in {{
                    type filter hook prerouting priority -150
                    meta mark set meta mark | 0x20
                }}
            }}"
        );
        world.node.run(move || feed("nft", &["-f", "-"], &text));
        for bit in [14, 0, 31] {
            let mark = 1 << bit;
            scene.turn(Knobs {
                mark,
                ..Knobs::default()
            });
            let to = world.here_ip();
            let left = Spy::matching(world, &format!("{family} daddr {to} meta mark 0x20"));
            let seen = world.masqueraded(1);
            for ask in world.asks(&KINDS, 1) {
                assert_eq!(ask.put(&world.out), Answer::Served { by: 1, seen });
            }
            assert!(left.count() >= 12);
            drop(left);
            let marked = format!("{family} daddr {to} meta mark & {mark:#x} != 0");
            let marked = Spy::matching(world, &marked);
            for kind in KINDS {
                world.ask(Protocol::Udp, kind, 1).put(&world.out);
            }
            assert_eq!(marked.count(), 0);
        }
    });
}
