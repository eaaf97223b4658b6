//! Datagrams and the associations they belong to.

use std::net::UdpSocket;
use std::time::Duration;

use ferrule_core::model::Protocol;
use ferrule_dataplane::userspace::relay::{Backends, Failure, Options, UdpIdle};

use crate::support::{
    LOCALHOST, Scene, backends, exchange, options, udp_client, udp_echo, udp_named,
};

fn idle(time: Duration) -> Options {
    Options {
        udp_idle: UdpIdle::always(time),
        ..options()
    }
}

/// An address where nobody receives.
fn closed() -> std::net::SocketAddr {
    let socket = UdpSocket::bind((LOCALHOST, 0)).unwrap();
    socket.local_addr().unwrap()
}

#[test]
fn usp_046_an_association_is_reused_while_it_is_not_idle() {
    let scene = Scene::udp(&[udp_named(), udp_named(), udp_named()]);
    let client = udp_client(scene.address);
    let first = exchange(&client, b"x");
    for _ in 0..10 {
        assert_eq!(exchange(&client, b"x"), first);
    }
    // Another client gets another endpoint.
    let other = udp_client(scene.address);
    assert_ne!(exchange(&other, b"x"), first);
    let stats = scene.stats();
    assert_eq!((stats.associations, stats.associated), (2, 2));
}

#[test]
fn usp_047_an_idle_association_ends_after_the_time_that_was_set() {
    let scene = Scene::new(
        idle(Duration::from_millis(100)),
        Protocol::Udp,
        backends(&[udp_named(), udp_named()]),
    );
    let client = udp_client(scene.address);
    let first = exchange(&client, b"x");
    scene.until("the association ends", |stats| stats.associations == 0);
    assert_ne!(exchange(&client, b"x"), first);
}

#[test]
fn usp_047_without_a_flag_associations_live_as_long_as_conntracks() {
    let seconds = Duration::from_secs;
    let default = Options::default().udp_idle;
    assert_eq!(
        (default.unreplied, default.replied),
        (seconds(30), seconds(120))
    );
}

#[test]
fn usp_048_the_largest_datagrams_pass_whole() {
    let (server, _) = udp_echo();
    let scene = Scene::udp(&[server]);
    let client = udp_client(scene.address);
    for len in [0, 1, 4096, 4097, 65_507] {
        let bytes: Vec<u8> = (0..251_u8).cycle().take(len).collect();
        assert_eq!(exchange(&client, &bytes), bytes);
    }
}

#[test]
fn many_datagrams_at_once_all_arrive_in_order() {
    let (server, _) = udp_echo();
    let scene = Scene::udp(&[server]);
    let client = udp_client(scene.address);
    for round in 0..20_u16 {
        for at in 0..50_u16 {
            client.send(&(round * 50 + at).to_be_bytes()).unwrap();
        }
        for at in 0..50_u16 {
            let mut reply = [0; 2];
            client.recv(&mut reply).unwrap();
            assert_eq!(u16::from_be_bytes(reply), round * 50 + at);
        }
    }
    // What was sent is counted a moment later.
    scene.until("all is counted", |stats| {
        (stats.bytes_to_endpoints, stats.bytes_to_clients) == (2000, 2000)
    });
    assert_eq!(scene.stats().associated, 1);
}

#[test]
fn usp_049_a_refusal_ends_the_association_and_the_datagram_goes_elsewhere() {
    let good = udp_named();
    // Whoever's turn it is, one of three clients in a row meets the one that refuses.
    let scene = Scene::udp(&[closed(), good]);
    for _ in 0..6 {
        let client = udp_client(scene.address);
        assert_eq!(
            exchange(&client, b"x"),
            good.port().to_string().into_bytes()
        );
    }
    let stats = scene.stats();
    assert!(stats.failures[&Failure::Refused] >= 1);
    scene.until("only living ones are left", |stats| stats.associations == 6);
}

#[test]
fn usp_049_an_endpoint_that_stops_answering_loses_its_associations() {
    let (server, thread) = udp_echo();
    let scene = Scene::udp(&[server]);
    let client = udp_client(scene.address);
    assert_eq!(exchange(&client, b"x"), b"x");
    client.send(b"end").unwrap();
    thread.join().unwrap();
    client.send(b"y").unwrap();
    scene.until("the association ends", |stats| stats.associations == 0);
}

#[test]
fn usp_050_associations_move_when_their_endpoint_serves_no_more() {
    let (old, new) = (udp_named(), udp_named());
    let scene = Scene::udp(&[old]);
    let client = udp_client(scene.address);
    assert_eq!(exchange(&client, b"x"), old.port().to_string().into_bytes());
    scene.set(backends(&[new]));
    assert_eq!(exchange(&client, b"x"), new.port().to_string().into_bytes());
    scene.until("the old one ends", |stats| stats.associations == 1);
    // While it shuts down and still answers it keeps its clients, and new ones go elsewhere.
    scene.set(Backends {
        draining: vec![new],
        ..backends(&[old])
    });
    assert_eq!(exchange(&client, b"x"), new.port().to_string().into_bytes());
    let other = udp_client(scene.address);
    assert_eq!(exchange(&other, b"x"), old.port().to_string().into_bytes());
    // Nobody serves: the datagram is dropped and so is the association.
    scene.set(backends(&[]));
    scene.until("both end", |stats| stats.associations == 0);
    client.send(b"x").unwrap();
    scene.until("it is dropped", |stats| stats.dropped_datagrams == 1);
}

#[test]
fn the_idlest_association_makes_room_for_a_new_one() {
    let options = Options {
        udp_associations: 3,
        ..options()
    };
    let scene = Scene::new(
        options,
        Protocol::Udp,
        backends(&[udp_named(), udp_named()]),
    );
    let clients: Vec<_> = (0..3).map(|_| udp_client(scene.address)).collect();
    let replies: Vec<_> = clients
        .iter()
        .map(|client| exchange(client, b"x"))
        .collect();
    // All but the second are used again, each a clock's tick later than the one before.
    for at in [0, 2] {
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(exchange(&clients[at], b"x"), replies[at]);
    }
    let fourth = udp_client(scene.address);
    exchange(&fourth, b"x");
    scene.until("one makes room", |stats| stats.associations == 3);
    for at in [0, 2] {
        assert_eq!(exchange(&clients[at], b"x"), replies[at]);
    }
    let stats = scene.stats();
    assert_eq!((stats.evicted, stats.associated), (1, 4));
}
