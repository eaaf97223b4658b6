//! Bytes, ends and resets of TCP connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::channel;

use ferrule_core::model::Protocol;
use ferrule_dataplane::userspace::relay::{Class, Listen, Options};
use ferrule_kernel::inet;

use crate::support::{LOCALHOST, Scene, backends, endpoint, key, named, options, outcome};

/// Numbers that do not repeat within any buffer.
fn pattern(from: u64, into: &mut [u8]) {
    for (at, chunk) in (from / 8..).zip(into.chunks_exact_mut(8)) {
        let word = at.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        chunk.copy_from_slice(&word.to_le_bytes());
    }
}

const BLOCK: usize = 64 * 1024;

/// Writes so many bytes of the pattern, then ends.
fn write_pattern(mut stream: &TcpStream, len: u64) {
    let mut block = vec![0; BLOCK];
    for at in (0..len).step_by(BLOCK) {
        pattern(at, &mut block);
        stream.write_all(&block).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

/// Reads to the end and compares with the pattern; returns how many bytes there were.
fn read_pattern(mut stream: &TcpStream) -> u64 {
    let (mut block, mut expected) = (vec![0; BLOCK], vec![0; BLOCK]);
    let mut at = 0;
    loop {
        let mut filled = 0;
        while filled < BLOCK {
            match stream.read(&mut block[filled..]).unwrap() {
                0 => break,
                len => filled += len,
            }
        }
        pattern(at, &mut expected);
        assert!(block[..filled] == expected[..filled], "differs after {at}");
        at += u64::try_from(filled).unwrap();
        if filled < BLOCK {
            return at;
        }
    }
}

/// So much both ways at the same time.
fn both_ways(options: Options, len: u64) {
    let server = endpoint(move |stream| {
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(read_pattern(&stream), len));
            write_pattern(&stream, len);
        });
    });
    let scene = Scene::new(options, Protocol::Tcp, backends(&[server]));
    let client = scene.connect();
    std::thread::scope(|scope| {
        scope.spawn(|| write_pattern(&client, len));
        assert_eq!(read_pattern(&client), len);
    });
    drop(client);
    scene.until("the connection ends", |stats| stats.open == 0);
    let stats = scene.stats();
    assert_eq!(
        (stats.bytes_to_endpoints, stats.bytes_to_clients),
        (len, len)
    );
}

const GIB: u64 = 1 << 30;

#[test]
fn usp_042_a_gib_each_way_arrives_intact_with_splice() {
    both_ways(options(), GIB);
}

#[test]
fn usp_042_a_gib_each_way_arrives_intact_by_copying() {
    let options = Options {
        splice: false,
        ..options()
    };
    both_ways(options, GIB);
}

#[test]
fn usp_040_the_answer_to_a_client_that_has_ended_its_side_arrives_whole() {
    let server = endpoint(|mut stream| {
        let mut question = Vec::new();
        stream.read_to_end(&mut question).unwrap();
        stream.write_all(&question).unwrap();
        stream.write_all(&vec![7; 1 << 20]).unwrap();
    });
    let scene = Scene::tcp(&[server]);
    let mut client = scene.connect();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let answer = outcome(client).unwrap();
    assert_eq!(answer.len(), 8 + (1 << 20));
    assert!(answer.starts_with(b"question"));
}

#[test]
fn usp_040_an_endpoint_that_has_ended_its_side_receives_all_that_follows() {
    let (sender, received) = channel();
    let server = endpoint(move |mut stream| {
        stream.write_all(b"all I say").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        sender.send(rest.len()).unwrap();
    });
    let scene = Scene::tcp(&[server]);
    let mut client = scene.connect();
    let mut said = Vec::new();
    client.read_to_end(&mut said).unwrap();
    assert_eq!(said, b"all I say");
    client.write_all(&vec![7; 1 << 20]).unwrap();
    drop(client);
    assert_eq!(received.recv().unwrap(), 1 << 20);
}

#[test]
fn usp_041_a_reset_by_the_endpoint_resets_the_client() {
    let server = endpoint(|mut stream| {
        stream.read_exact(&mut [0]).unwrap();
        inet::reset_on_close(&stream).unwrap();
    });
    let scene = Scene::tcp(&[server]);
    let mut client = scene.connect();
    client.write_all(b"x").unwrap();
    assert_eq!(outcome(client), Err(ErrorKind::ConnectionReset));
}

#[test]
fn usp_041_a_reset_by_the_client_resets_the_endpoint() {
    let (sender, received) = channel();
    let server = endpoint(move |mut stream| {
        stream.write_all(b"x").unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        sender.send(error.kind()).unwrap();
    });
    let scene = Scene::tcp(&[server]);
    let mut client = scene.connect();
    client.read_exact(&mut [0]).unwrap();
    inet::reset_on_close(&client).unwrap();
    drop(client);
    assert_eq!(received.recv().unwrap(), ErrorKind::ConnectionReset);
}

#[test]
fn usp_041_a_reset_after_the_clients_end_resets_the_endpoint() {
    let (sender, received) = channel();
    let server = endpoint(move |mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(b"x").unwrap();
        // Its side is over, so a reset shows when something is written.
        loop {
            if let Err(error) = stream.write_all(b"x") {
                sender.send(error.kind()).unwrap();
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    let scene = Scene::tcp(&[server]);
    let mut client = scene.connect();
    client.shutdown(Shutdown::Write).unwrap();
    client.read_exact(&mut [0]).unwrap();
    inet::reset_on_close(&client).unwrap();
    drop(client);
    let kind = received.recv().unwrap();
    assert!(matches!(
        kind,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    ));
    scene.until("the connection ends", |stats| stats.open == 0);
}

#[test]
fn usp_041_a_client_that_resets_while_it_only_listens_is_noticed() {
    // The endpoint says nothing more, so no write can fail.
    let server = endpoint(|mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        std::thread::sleep(crate::support::LONG);
    });
    let scene = Scene::tcp(&[server]);
    let client = scene.connect();
    client.shutdown(Shutdown::Write).unwrap();
    scene.until("the client is connected", |stats| {
        stats.connect.count() == 1
    });
    inet::reset_on_close(&client).unwrap();
    drop(client);
    scene.until("the connection ends", |stats| stats.open == 0);
}

#[test]
fn a_client_that_does_not_read_stops_its_endpoint() {
    let (sender, received) = channel();
    let server = endpoint(move |mut stream| {
        stream.set_nonblocking(true).unwrap();
        let block = vec![7; BLOCK];
        let mut written = 0_usize;
        let mut idle = 0;
        // Until nothing has moved for a while: then all buffers are full.
        while idle < 100 {
            if let Ok(len) = stream.write(&block) {
                written += len;
                idle = 0;
            } else {
                idle += 1;
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        sender.send(written).unwrap();
        std::thread::sleep(crate::support::LONG);
    });
    let scene = Scene::tcp(&[server]);
    let client = scene.connect();
    let written = received.recv().unwrap();
    let read = usize::try_from(scene.stats().bytes_to_clients).unwrap();
    // What is not in the endpoint's own socket or ours is in the client's.
    assert!(written < 64 << 20, "{written} bytes went somewhere");
    assert!(read <= written);
    drop(client);
    scene.until("the connection ends", |stats| stats.open == 0);
}

#[test]
fn clients_are_balanced_in_turn() {
    let scene = Scene::tcp(&[named(), named(), named()]);
    let first: Vec<String> = (0..3).map(|_| scene.ask()).collect();
    let second: Vec<String> = (0..3).map(|_| scene.ask()).collect();
    assert_eq!(first, second);
    let mut distinct = first;
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 3);
}

#[test]
fn usp_029_service_ports_take_turns_of_their_own() {
    let endpoints = [named(), named()];
    let scene = Scene::tcp(&endpoints);
    let other = key("other", Protocol::Tcp);
    let listen = Listen::at(LOCALHOST);
    let port = scene.relay.open(&other, Class::Internal, listen).unwrap();
    scene.relay.set(&other, backends(&endpoints));
    let first = scene.ask();
    // However many clients the other has, here it is the other endpoint's turn.
    for _ in 0..3 {
        let client = TcpStream::connect((LOCALHOST, port)).unwrap();
        assert!(!outcome(client).unwrap().is_empty());
    }
    assert_ne!(scene.ask(), first);
}
