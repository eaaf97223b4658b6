//! Endpoints and sockets that go while clients are connected.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use ferrule_core::model::{Family, Protocol};
use ferrule_dataplane::userspace::relay::{Backends, Class, Listen, Options};

use crate::support::{LOCALHOST, LONG, Scene, backends, echo, named, options, outcome};

/// A connection that has carried something.
fn used(scene: &Scene) -> std::net::TcpStream {
    let mut client = scene.connect();
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
    client
}

fn impatient() -> Options {
    Options {
        grace: Duration::from_millis(50),
        ..options()
    }
}

#[test]
fn usp_052_connections_and_the_port_survive_changes() {
    let first = echo();
    let scene = Scene::tcp(&[first]);
    let mut client = used(&scene);
    let port = scene.relay.port(&scene.key, Class::Internal);
    scene.set(Backends {
        affinity: Some(LONG),
        ..backends(&[named(), first])
    });
    assert_eq!(scene.relay.port(&scene.key, Class::Internal), port);
    client.write_all(b"y").unwrap();
    client.read_exact(&mut [0]).unwrap();
}

#[test]
fn usp_055_a_draining_endpoint_keeps_its_clients_and_gets_no_others() {
    let (old, new) = (echo(), named());
    let scene = Scene::new(impatient(), Protocol::Tcp, backends(&[old]));
    let mut client = used(&scene);
    scene.set(Backends {
        draining: vec![old],
        ..backends(&[new])
    });
    for _ in 0..4 {
        assert_eq!(scene.ask(), new.port().to_string());
    }
    client.write_all(b"y").unwrap();
    client.read_exact(&mut [0]).unwrap();
    assert_eq!(scene.stats().expired, 0);
}

#[test]
fn usp_057_silent_connections_to_an_endpoint_that_is_gone_are_reset() {
    let old = echo();
    let scene = Scene::new(impatient(), Protocol::Tcp, backends(&[old]));
    let client = used(&scene);
    scene.set(backends(&[named()]));
    assert_eq!(outcome(client), Err(ErrorKind::ConnectionReset));
    assert_eq!(scene.stats().expired, 1);
}

#[test]
fn usp_057_connections_with_traffic_outlive_their_endpoints_grace() {
    let old = echo();
    let options = Options {
        grace: Duration::from_secs(2),
        ..options()
    };
    let scene = Scene::new(options, Protocol::Tcp, backends(&[old]));
    let (mut busy, silent) = (used(&scene), used(&scene));
    scene.set(backends(&[]));
    // One is kept awake until the other, silent from the same moment on, has been reset.
    let reset = std::thread::spawn(move || outcome(silent));
    while !reset.is_finished() {
        busy.write_all(b"y").unwrap();
        busy.read_exact(&mut [0]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(reset.join().unwrap(), Err(ErrorKind::ConnectionReset));
    assert_eq!(scene.stats().expired, 1);
}

#[test]
fn connections_stay_when_their_endpoint_comes_back_in_time() {
    let old = echo();
    let options = Options {
        grace: Duration::from_secs(1),
        ..options()
    };
    let scene = Scene::new(options, Protocol::Tcp, backends(&[old]));
    let (mut client, witness) = (used(&scene), used(&scene));
    let other = echo();
    scene.set(backends(&[]));
    scene.set(backends(&[old, other]));
    // As long as an endpoint that did not come back gives its clients.
    drop(witness);
    let gone = SocketAddr::clone(&other);
    let two = [used(&scene), used(&scene)];
    scene.set(backends(&[old]));
    scene.until("clients of the other are reset", |stats| stats.expired == 1);
    drop((two, gone));
    client.write_all(b"y").unwrap();
    client.read_exact(&mut [0]).unwrap();
}

#[test]
fn closing_a_lane_frees_its_port_and_keeps_its_connections() {
    let scene = Scene::tcp(&[echo()]);
    let mut client = used(&scene);
    let port = scene.address.port();
    let other = scene
        .relay
        .open(&scene.key, Class::External, Listen::at(LOCALHOST));
    assert_ne!(other.unwrap(), port);
    scene.relay.close(&scene.key, Class::Internal);
    client.write_all(b"y").unwrap();
    client.read_exact(&mut [0]).unwrap();
    let again = Listen {
        prefer: Some(port),
        ..Listen::at(LOCALHOST)
    };
    let again = scene.relay.open(&scene.key, Class::Internal, again);
    assert_eq!(again.unwrap(), port);
}

#[test]
fn removing_a_service_port_gives_its_connections_the_grace_period() {
    let scene = Scene::new(impatient(), Protocol::Tcp, backends(&[echo()]));
    let client = used(&scene);
    scene.relay.remove(&scene.key);
    assert_eq!(outcome(client), Err(ErrorKind::ConnectionReset));
    assert!(std::net::TcpStream::connect(scene.address).is_err());
}

#[test]
fn a_successor_takes_the_sockets_and_nobody_is_refused() {
    let server = named();
    let old = Scene::tcp(&[server]);
    let mut sockets = old.relay.sockets().unwrap();
    assert_eq!(sockets.len(), 1);
    let (key, class, socket) = sockets.remove(0);
    old.relay.leave_family(Family::V4);
    // Nobody accepts now, and still this client gets in.
    let waiting = old.connect();
    let successor = crate::support::start(options());
    let listen = Listen {
        socket: Some(socket),
        ..Listen::at(LOCALHOST)
    };
    let port = successor.open(&key, class, listen).unwrap();
    assert_eq!(port, old.address.port());
    successor.set(&key, backends(&[server]));
    let address = old.address;
    old.relay.stop(LONG);
    let expected = server.port().to_string().into_bytes();
    assert_eq!(outcome(waiting).unwrap(), expected);
    let later = std::net::TcpStream::connect(address).unwrap();
    assert_eq!(outcome(later).unwrap(), expected);
}

#[test]
fn stopping_waits_for_connections_and_resets_what_remains() {
    let scene = Scene::tcp(&[echo()]);
    let (polite, stubborn) = (used(&scene), used(&scene));
    let relay = scene.relay;
    drop(polite);
    relay.stop(Duration::from_millis(300));
    assert_eq!(outcome(stubborn), Err(ErrorKind::ConnectionReset));
}
