//! Which ports are listened on.

use std::net::TcpListener;

use ferrule_core::model::Protocol;
use ferrule_dataplane::userspace::relay::{Class, Listen, OpenError, Options};

use crate::support::{LOCALHOST, key, options, start};

/// Two ports in a row that nobody uses.
fn two_free() -> u16 {
    for _ in 0..1000 {
        let first = TcpListener::bind((LOCALHOST, 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let next = port.checked_add(1);
        if next.is_some_and(|next| TcpListener::bind((LOCALHOST, next)).is_ok()) {
            return port;
        }
    }
    panic!("no two free ports in a row");
}

#[test]
fn usp_024_ports_come_from_the_range_and_a_full_range_is_an_error() {
    let first = two_free();
    let relay = start(Options {
        proxy_ports: Some(first..=first + 1),
        ..options()
    });
    let open = |name| {
        let key = key(name, Protocol::Tcp);
        relay.open(&key, Class::Internal, Listen::at(LOCALHOST))
    };
    let mut ports = [open("a").unwrap(), open("b").unwrap()];
    ports.sort_unstable();
    assert_eq!(ports, [first, first + 1]);
    assert!(matches!(open("c"), Err(OpenError::NoPort(_))));
    relay.remove(&key("a", Protocol::Tcp));
    assert!(ports.contains(&open("c").unwrap()));
}

#[test]
fn a_lane_is_opened_once_and_sctp_never() {
    let relay = start(options());
    let tcp = key("a", Protocol::Tcp);
    let at = || Listen::at(LOCALHOST);
    relay.open(&tcp, Class::Internal, at()).unwrap();
    let again = relay.open(&tcp, Class::Internal, at());
    assert!(matches!(again, Err(OpenError::Open(_))));
    let sctp = relay.open(&key("a", Protocol::Sctp), Class::Internal, at());
    assert!(matches!(sctp, Err(OpenError::Protocol(Protocol::Sctp))));
}
