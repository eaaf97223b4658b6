//! Tracked flows in the real table.

use std::net::SocketAddr;

use ferrule_kernel::Family;
use ferrule_kernel::conntrack::{Conntrack, Filter, Flow, Match, Tuple};
use ferrule_kernel::exchange::RequestError;

use crate::support::in_namespace;

const UDP: u8 = 17;

/// A client's flow to a service of the family, translated to one of 50 endpoints.
fn flow(family: Family, client: u16) -> Flow {
    let address = |text_v4: &str, text_v6: &str, port| {
        let text = match family {
            Family::V4 => text_v4,
            Family::V6 => text_v6,
        };
        SocketAddr::new(text.parse().unwrap(), port)
    };
    let original = Tuple {
        source: address("10.0.0.1", "fd00::1", 1000 + client),
        destination: address("10.96.0.10", "fd00:96::10", 53),
        protocol: UDP,
    };
    let reply = Tuple {
        source: address("10.1.0.2", "fd00:1::2", 5300 + client % 50),
        ..original.reversed()
    };
    Flow::new(original, reply)
}

/// Flows to the service that ended up at the endpoint of this number.
fn stale(family: Family, endpoint: u16) -> Filter {
    let example = flow(family, endpoint);
    Filter {
        original: Match {
            destination: Some(example.original.destination.ip()),
            destination_port: Some(53),
            ..Match::default()
        },
        reply: Match {
            source: Some(example.reply.source.ip()),
            source_port: Some(example.reply.source.port()),
            ..Match::default()
        },
        ..Filter::protocol(family, UDP)
    }
}

/// Enters 1000 flows of the family, and one of another protocol.
fn prepare(family: Family) -> Conntrack {
    let mut conntrack = Conntrack::open().unwrap();
    for client in 0..1000 {
        conntrack.insert(&flow(family, client)).unwrap();
    }
    let mut other = flow(family, 3);
    other.original.protocol = 132;
    other.reply.protocol = 132;
    conntrack.insert(&other).unwrap();
    conntrack
}

fn count(conntrack: &mut Conntrack, filter: &Filter) -> usize {
    let read = conntrack.flows(filter, |_| true).unwrap();
    assert!(read.complete);
    read.flows.len()
}

fn found_and_deleted(family: Family) {
    in_namespace(move || {
        let mut conntrack = prepare(family);
        assert_eq!(count(&mut conntrack, &Filter::all(family)), 1001);
        assert_eq!(count(&mut conntrack, &Filter::protocol(family, UDP)), 1000);
        let filter = stale(family, 7);
        let read = conntrack.flows(&filter, |_| true).unwrap().flows;
        assert_eq!(read.len(), 20);
        for read in &read {
            let client = read.original.source.port() - 1000;
            let expected = flow(family, client);
            assert_eq!(
                (read.original, read.reply),
                (expected.original, expected.reply)
            );
            assert_ne!(read.id, 0);
        }
        assert_eq!(conntrack.delete(&read).unwrap(), 20);
        assert_eq!(count(&mut conntrack, &filter), 0);
        assert_eq!(count(&mut conntrack, &Filter::all(family)), 981);
    });
}

#[test]
fn flows_of_ipv4_are_found_by_filter_and_deleted() {
    found_and_deleted(Family::V4);
}

#[test]
fn flows_of_ipv6_are_found_by_filter_and_deleted() {
    found_and_deleted(Family::V6);
}

#[test]
fn flows_are_deleted_one_by_one_and_only_once() {
    in_namespace(|| {
        let mut conntrack = prepare(Family::V4);
        let flows = conntrack
            .flows(&stale(Family::V4, 3), |_| true)
            .unwrap()
            .flows;
        assert_eq!(conntrack.delete(&flows).unwrap(), 20);
        assert_eq!(conntrack.delete(&flows).unwrap(), 0);
        let all = conntrack
            .flows(&Filter::protocol(Family::V4, UDP), |_| true)
            .unwrap();
        assert_eq!(conntrack.delete(&all.flows).unwrap(), 980);
        assert_eq!(count(&mut conntrack, &Filter::all(Family::V4)), 1);
    });
}

#[test]
fn zones_are_kept_apart() {
    in_namespace(|| {
        let mut conntrack = Conntrack::open().unwrap();
        for zone in [0, 5] {
            let flow = Flow {
                zone,
                ..flow(Family::V4, 1)
            };
            conntrack.insert(&flow).unwrap();
        }
        let filter = stale(Family::V4, 1);
        let flows = conntrack.flows(&filter, |_| true).unwrap().flows;
        assert_eq!(flows.len(), 2);
        let in_zone: Vec<_> = flows.into_iter().filter(|flow| flow.zone == 5).collect();
        assert_eq!(conntrack.delete(&in_zone).unwrap(), 1);
        let rest = conntrack.flows(&filter, |_| true).unwrap().flows;
        assert_eq!(rest.iter().map(|flow| flow.zone).collect::<Vec<_>>(), [0]);
    });
}

#[test]
fn another_flow_with_the_same_tuple_is_spared() {
    in_namespace(|| {
        let mut conntrack = Conntrack::open().unwrap();
        conntrack.insert(&flow(Family::V4, 1)).unwrap();
        let old = conntrack
            .flows(&stale(Family::V4, 1), |_| true)
            .unwrap()
            .flows;
        assert_eq!(conntrack.delete(&old).unwrap(), 1);
        conntrack.insert(&flow(Family::V4, 1)).unwrap();
        let new = conntrack
            .flows(&stale(Family::V4, 1), |_| true)
            .unwrap()
            .flows;
        assert_eq!(new.len(), 1);
        if new[0].id != old[0].id {
            assert_eq!(conntrack.delete(&old).unwrap(), 0);
        }
    });
}

#[test]
fn a_flow_that_exists_is_refused() {
    in_namespace(|| {
        let mut conntrack = Conntrack::open().unwrap();
        conntrack.insert(&flow(Family::V6, 1)).unwrap();
        let error = conntrack.insert(&flow(Family::V6, 1)).unwrap_err();
        let RequestError::Refused { source, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(source.kind(), std::io::ErrorKind::AlreadyExists);
    });
}
