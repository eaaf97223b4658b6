//! On which addresses of the node NodePorts answer.

use std::net::IpAddr;

use ferrule_core::facts::{NodePortAddresses, Settings};
use ferrule_core::model::Family;
use ferrule_testbed::cluster::{Objects, node};
use ferrule_testbed::{Answer, Ask, NODE_PORT, Protocol, address, net};

use crate::modes::{IPTABLES, IPVS, NFTABLES, USERSPACE};
use crate::scene::Scene;
use crate::world::{World, everywhere};

fn settings(world: &World, list: &[&str]) -> Settings {
    Settings {
        node_port_addresses: NodePortAddresses::parse(list).unwrap(),
        ..world.by_pod_net()
    }
}

fn scene(world: &World, list: &[&str]) -> Scene {
    let mut scene = world.scene(settings(world, list));
    scene
        .service(world.full("all", 1))
        .slice(world.pods("all", &[1]));
    scene.whole();
    scene
}

/// The node's loopback address, and the networks of such.
const fn loopback(family: Family) -> (IpAddr, &'static str) {
    match family {
        Family::V4 => (IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), "127.0.0.0/8"),
        Family::V6 => (IpAddr::V6(std::net::Ipv6Addr::LOCALHOST), "::1/128"),
    }
}

/// Which of these addresses of the node answer the client and the node itself.
fn answering(world: &World) -> Vec<IpAddr> {
    let mut answering = Vec::new();
    for address in [world.node_ip(), world.second()] {
        let mut answers = Vec::new();
        for place in [&world.out, &world.node] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                answers.push(Ask::new(protocol, address, NODE_PORT).put(place));
            }
        }
        let seen = world.masqueraded(1);
        let served = |answer: &Answer| *answer == Answer::Served { by: 1, seen };
        match answers.iter().filter(|answer| served(answer)).count() {
            0 => {}
            4 => answering.push(address),
            _ => panic!("{address}: {answers:?}"),
        }
    }
    answering
}

/// What a process on the node gets at the NodePort of loopback.
fn at_loopback(world: &World) -> Answer {
    let (ip, _) = loopback(world.family);
    Ask::new(Protocol::Tcp, ip, NODE_PORT).put(&world.node)
}

/// Loopback answers in mode iptables over IPv4, and in mode userspace, if the list has it.
fn assert_loopback(world: &World, listed: bool) {
    let answers = match world.mode.like {
        NFTABLES | IPVS => false,
        USERSPACE => listed,
        _ => world.family == Family::V4 && listed,
    };
    let expected = if answers {
        let seen = world.masqueraded(1);
        Answer::Served { by: 1, seen }
    } else {
        // Nobody listens there.
        Answer::Reset
    };
    assert_eq!(at_loopback(world), expected);
}

#[test]
fn nft_022_without_a_list_every_address_answers_but_loopback() {
    everywhere(|world| {
        for list in [&[][..], &["0.0.0.0/0", "::/0"], &["all"]] {
            let scene = scene(world, list);
            let all = [world.node_ip(), world.second()];
            assert_eq!(answering(world), all, "{list:?}");
            assert_loopback(world, true);
            let Some(table) = scene.table() else { continue };
            let mut names = table.sets.iter().map(|held| &*held.object.name);
            assert!(names.all(|name| name != "nodeport-ips"));
        }
    });
}

#[test]
fn nft_023_of_a_list_only_these_addresses_answer_and_never_loopback() {
    everywhere(|world| {
        let (_, loops) = loopback(world.family);
        let (second, both) = (net(world.family, 2, 8), net(world.family, 2, 7));
        let mut scene = scene(world, &[&second, loops]);
        assert_eq!(answering(world), [world.second()]);
        assert_loopback(world, true);
        scene.settings(settings(world, &[&both])).step();
        assert_eq!(answering(world), [world.node_ip(), world.second()]);
        assert_loopback(world, false);
        scene.settings(settings(world, &[loops])).step();
        assert!(answering(world).is_empty());
        assert_loopback(world, true);
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn nft_024_primary_means_the_nodes_own_address() {
    everywhere(|world| {
        let _scene = scene(world, &["primary"]);
        assert_eq!(answering(world), [world.node_ip()]);
        assert_loopback(world, false);
    });
}

#[test]
fn nft_025_a_family_without_an_entry_answers_everywhere() {
    everywhere(|world| {
        let other = match world.family {
            Family::V4 => "fd00::/8",
            Family::V6 => "10.0.0.0/8",
        };
        let _scene = scene(world, &[other]);
        assert_eq!(answering(world), [world.node_ip(), world.second()]);
        assert_loopback(world, true);
    });
}

#[test]
fn nft_069_another_address_of_the_node_counts_at_once() {
    everywhere(|world| {
        let mut scene = scene(world, &["primary"]);
        scene.node(node("here").at(world.second()));
        let steps = scene.step();
        if scene.is_like(NFTABLES) {
            assert_eq!(steps, 2, "one set is filled anew");
        }
        assert_eq!(answering(world), [world.second()]);
        assert_loopback(world, false);
        // An address that the machine gets counts at once, in modes iptables and ipvs with the next
        // step.
        let more = net(world.family, 5, 8);
        scene.settings(settings(world, &[&more])).step();
        assert!(answering(world).is_empty());
        let new = address(world.family, 5, 5);
        let bits = if new.is_ipv4() { 32 } else { 128 };
        let line = format!("address add {new}/{bits} dev lo nodad");
        world.node.ip(&line);
        if scene.is_like(IPTABLES) || scene.is_like(IPVS) {
            assert!(scene.step() > 0);
        }
        Ask::new(Protocol::Udp, new, NODE_PORT).until_served(&world.out);
        assert_eq!(scene.whole(), 0);
    });
}
