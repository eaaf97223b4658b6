//! Connections through a virtual server: what is counted, and what becomes of them.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use ferrule_kernel::ipvs::{Change, Destination, Ipvs, ServerKey, Stats};
use ferrule_testbed::{run, with_ipvs};

use crate::{TCP, commit, destination, key, server};

/// Two listeners on this machine behind a virtual server, and its key.
fn balanced(ipvs: &mut Ipvs) -> (ServerKey, [TcpListener; 2]) {
    let key = key("10.96.0.1", TCP, 80);
    for address in ["10.96.0.1/32", "10.1.0.1/32", "10.1.0.2/32"] {
        run("ip", &["address", "add", address, "dev", "lo"]);
    }
    let listeners = ["10.1.0.1", "10.1.0.2"].map(|ip| TcpListener::bind((ip, 8080)).unwrap());
    for listener in &listeners {
        listener.set_nonblocking(true).unwrap();
    }
    commit(ipvs, &[Change::AddServer(server(key))]);
    (key, listeners)
}

fn connect(key: &ServerKey) -> std::io::Result<TcpStream> {
    TcpStream::connect((key.address, key.port))
}

#[test]
fn ipvs_059_with_weight_0_open_connections_go_on_and_new_ones_go_elsewhere() {
    with_ipvs(|ipvs| {
        let (key, [first, second]) = balanced(ipvs);
        let one = destination("10.1.0.1", 8080);
        commit(ipvs, &[Change::AddDestination(key, one)]);
        let mut held = connect(&key).unwrap();
        let (mut server, _) = first.accept().unwrap();
        let counted = ipvs.destinations(&key).unwrap();
        assert_eq!((counted[0].active, counted[0].inactive), (1, 0));

        let drained = Destination { weight: 0, ..one };
        let two = destination("10.1.0.2", 8080);
        let changes = [
            Change::SetDestination(key, drained),
            Change::AddDestination(key, two),
        ];
        commit(ipvs, &changes);
        for _ in 0..3 {
            let _new = connect(&key).unwrap();
            second.accept().unwrap();
        }
        assert_eq!(first.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        held.write_all(b"still here").unwrap();
        let mut text = [0; 10];
        server.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"still here");

        let whole = added_up(ipvs, 4);
        assert!(whole.bytes_in > 0 && whole.packets_in >= 9, "{whole:?}");
        let stats = ipvs.destination_stats(&key).unwrap();
        let of = |wanted: Destination| {
            let (_, stats) = stats.iter().find(|(c, _)| c.destination == wanted).unwrap();
            stats.connections
        };
        assert_eq!((of(drained), of(two)), (1, 3));
    });
}

/// The statistics of the one server, once it has so many connections: the kernel adds up what its
/// processors counted every two seconds.
fn added_up(ipvs: &mut Ipvs, connections: u64) -> Stats {
    for _ in 0..1000 {
        let (_, stats) = ipvs.server_stats().unwrap()[0];
        if stats.connections == connections {
            return stats;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{:?}", ipvs.server_stats());
}

#[test]
fn ipvs_041_a_server_without_destinations_refuses_at_once() {
    with_ipvs(|ipvs| {
        let (key, _listeners) = balanced(ipvs);
        let error = connect(&key).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}
