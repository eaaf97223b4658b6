//! On which addresses of the node NodePorts answer.

use std::net::IpAddr;

use ferrule_core::facts::{NodePortAddresses, Settings};
use ferrule_testbed::{Answer, Ask, Lab, Protocol, net};

use crate::matrix::*;
use crate::support::*;

fn settings(lab: &Lab, list: &[&str]) -> Settings {
    Settings {
        node_port_addresses: NodePortAddresses::parse(list).unwrap(),
        ..by_pod_net(lab)
    }
}

fn scene(lab: &Lab, list: &[&str]) -> Scene {
    let mut scene = Scene::at(lab, settings(lab, list));
    let family = scene.family;
    scene
        .service(full(family, "all", 1))
        .slice(pods(lab, "all", &[1]));
    scene.whole();
    scene
}

fn loopback(lab: &Lab) -> IpAddr {
    if lab.node_ip().is_ipv4() {
        IpAddr::from([127, 0, 0, 1])
    } else {
        IpAddr::from(std::net::Ipv6Addr::LOCALHOST)
    }
}

/// Which of these addresses of the node answer the client and the node itself.
fn answering(lab: &Lab) -> Vec<IpAddr> {
    let port = u16::try_from(NODE_PORT).unwrap();
    let mut answering = Vec::new();
    for address in [lab.node_ip(), lab.second()] {
        let mut answers = Vec::new();
        for place in [&lab.out, &lab.node] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                answers.push(Ask::new(protocol, address, port).put(place));
            }
        }
        let seen = lab.masqueraded(1);
        let served = |answer: &Answer| *answer == Answer::Served { by: 1, seen };
        match answers.iter().filter(|answer| served(answer)).count() {
            0 => {}
            4 => answering.push(address),
            _ => panic!("{address}: {answers:?}"),
        }
    }
    // Never on loopback: nobody listens there.
    let here = Ask::new(Protocol::Tcp, loopback(lab), port).put(&lab.node);
    assert_eq!(here, Answer::Reset);
    answering
}

#[test]
fn nft_022_without_a_list_every_address_answers_but_loopback() {
    Lab::both(|lab| {
        for list in [&[][..], &["0.0.0.0/0", "::/0"], &["all"]] {
            let scene = scene(lab, list);
            assert_eq!(answering(lab), [lab.node_ip(), lab.second()], "{list:?}");
            let sets = scene.snapshot().sets;
            let mut names = sets.iter().map(|held| &*held.object.name);
            assert!(names.all(|name| name != "nodeport-ips"));
        }
    });
}

#[test]
fn nft_023_of_a_list_only_these_addresses_answer_and_never_loopback() {
    Lab::both(|lab| {
        let loops = match lab.family {
            ferrule_kernel::Family::V4 => "127.0.0.0/8",
            ferrule_kernel::Family::V6 => "::1/128",
        };
        let (second, both) = (net(lab.family, 2, 8), net(lab.family, 2, 7));
        let mut scene = scene(lab, &[&second, loops]);
        assert_eq!(answering(lab), [lab.second()]);
        scene.settings(settings(lab, &[&both])).step();
        assert_eq!(answering(lab), [lab.node_ip(), lab.second()]);
        scene.settings(settings(lab, &[loops])).step();
        assert!(answering(lab).is_empty());
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn nft_024_primary_means_the_nodes_own_address() {
    Lab::both(|lab| {
        let _scene = scene(lab, &["primary"]);
        assert_eq!(answering(lab), [lab.node_ip()]);
    });
}

#[test]
fn nft_025_a_family_without_an_entry_answers_everywhere() {
    Lab::both(|lab| {
        let other = match lab.family {
            ferrule_kernel::Family::V4 => "fd00::/8",
            ferrule_kernel::Family::V6 => "10.0.0.0/8",
        };
        let _scene = scene(lab, &[other]);
        assert_eq!(answering(lab), [lab.node_ip(), lab.second()]);
    });
}

#[test]
fn nft_069_another_address_of_the_node_counts_at_once() {
    Lab::both(|lab| {
        let mut scene = scene(lab, &["primary"]);
        scene.node(lab.second());
        assert_eq!(scene.step(), 2, "one set is filled anew");
        assert_eq!(answering(lab), [lab.second()]);
        // An address that the machine gets counts without any step.
        scene
            .settings(settings(lab, &[&net(lab.family, 5, 8)]))
            .step();
        assert!(answering(lab).is_empty());
        let new = ferrule_testbed::address(lab.family, 5, 5);
        let bits = if new.is_ipv4() { 32 } else { 128 };
        lab.node
            .ip(&format!("address add {new}/{bits} dev lo nodad"));
        let port = u16::try_from(NODE_PORT).unwrap();
        Ask::new(Protocol::Udp, new, port).until_served(&lab.out);
        assert_eq!(scene.whole(), 0);
    });
}
