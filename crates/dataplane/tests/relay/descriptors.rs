//! When descriptors run out.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use ferrule_core::model::Protocol;
use ferrule_dataplane::userspace::relay::{Class, Listen, Notice, Options, Relay};
use ferrule_kernel::inet::limits;

use crate::memory::{Child, child};
use crate::support::{LOCALHOST, LONG, Scene, backends, echo, endpoint, key, named, options};

#[test]
fn usp_045_accepting_pauses_without_descriptors_and_resumes() {
    const CLIENTS: usize = 60;
    if child(|server| {
        limits::set(48).unwrap();
        // More than there are, so that the kernel is the one to say no.
        let options = Options {
            descriptors: Some(100_000),
            ..options()
        };
        let report = |notice: Notice| {
            if matches!(notice, Notice::Exhausted { .. }) {
                println!("exhausted");
            }
        };
        let relay = Relay::start(options, std::sync::Arc::new(report)).unwrap();
        (relay, server)
    }) {
        return;
    }
    let mut relay = Child::start(
        "descriptors::usp_045_accepting_pauses_without_descriptors_and_resumes",
        echo(),
    );
    let address = relay.address;
    let release = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = std::net::TcpStream::connect(address).unwrap();
                    client.set_read_timeout(Some(2 * LONG)).unwrap();
                    client.write_all(b"x").unwrap();
                    client.read_exact(&mut [0]).unwrap();
                    while !release.load(Ordering::Relaxed) {
                        std::thread::sleep(std::time::Duration::from_millis(5));
                    }
                })
            })
            .collect();
        relay.expect("exhausted");
        release.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
    });
    relay.ask("memory");
}

#[test]
fn a_flood_against_one_service_leaves_room_for_another() {
    // A quarter is kept for the rest of the program.
    let options = Options {
        descriptors: Some(256),
        ..options()
    };
    let silent = endpoint(|mut stream| drop(stream.read(&mut [0])));
    let flooded = Scene::new(options, Protocol::Tcp, backends(&[silent]));
    let clients: Vec<_> = (0..150).map(|_| flooded.connect()).collect();
    flooded.until("accepting pauses", |stats| stats.pauses > 0);
    assert!(flooded.stats().open < 80, "{}", flooded.stats().open);
    let other = key("other", Protocol::Tcp);
    let relay = &flooded.relay;
    let port = relay.open(&other, Class::Internal, Listen::at(LOCALHOST));
    relay.set(&other, backends(&[named()]));
    let port = port.unwrap();
    for _ in 0..20 {
        let mut client = std::net::TcpStream::connect((LOCALHOST, port)).unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        assert!(client.read(&mut [0; 8]).unwrap() > 0);
    }
    // Those that were let in make room for the others when they go.
    let before = flooded.stats().lanes[&Class::Internal].accepted;
    drop(clients);
    flooded.until("the others are accepted", |stats| {
        stats.lanes[&Class::Internal].accepted == 150 && stats.open == 0
    });
    assert!(before < 150);
}
