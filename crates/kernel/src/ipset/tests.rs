//! Requests and answers without a kernel.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::recorder::{Answer, Recorder, Script};
use crate::wire::messages;

/// What the kernel says about a set that a rule still names.
const BUSY: i32 = 4100;

fn answered(errno: i32) -> Result<bool, RequestError> {
    let script = Script::default();
    let mut sets = Ipset::new(Recorder::new(script.clone()));
    script.answer(Answer::Refuse { message: 0, errno });
    sets.destroy("KUBE-CLUSTER-IP")
}

#[test]
fn a_set_is_destroyed_by_name() {
    let script = Script::default();
    let mut sets = Ipset::new(Recorder::new(script.clone()));
    assert!(sets.destroy("KUBE-IPVS-IPS").unwrap());
    let requests = script.take_requests();
    let body = [
        &[2, 0, 0, 0][..],
        &[5, 0, 1, 0, 6, 0, 0, 0],
        &[18, 0, 2, 0],
        b"KUBE-IPVS-IPS\0",
        &[0, 0],
    ];
    // The kind, and flags: request, acknowledge, strictly.
    assert_eq!(requests[0][4..8], [3, 6, 5, 2]);
    assert_eq!(requests[0][16..], body.concat());
}

#[test]
fn what_is_not_there_needs_no_destroying() {
    assert!(!answered(libc::ENOENT).unwrap());
    assert!(!answered(libc::EINVAL).unwrap());
}

#[test]
fn a_set_that_a_rule_names_is_busy() {
    let Err(RequestError::Refused { source, .. }) = answered(BUSY) else {
        panic!("it is refused");
    };
    assert_eq!(source.kind(), io::ErrorKind::ResourceBusy);
}

fn bytes() -> Vec<u8> {
    crate::wire::tests::bytes(include_str!("../../testdata/ipset.hex"))
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn listed(bytes: &[u8]) -> Result<Vec<Listing>, Malformed> {
    let mut sets = Vec::new();
    for message in messages(bytes) {
        listing::read(&message?, &mut sets)?;
    }
    Ok(sets)
}

#[test]
fn a_captured_listing_is_understood() {
    let entry = |address: &str| {
        let first = IpPort {
            address: ip(address),
            protocol: 6,
            port: 80,
        };
        Entry::IpPortIp(first, ip("10.96.0.1"))
    };
    let header = Header {
        name: "KUBE-LOOP-BACK".to_owned(),
        kind: Some(Type::HashIpPortIp),
        family: Some(Family::V4),
        revision: 5,
        max_entries: 100_000,
        entries: 2,
        references: 0,
    };
    let entries = vec![entry("10.96.0.1"), entry("198.51.100.7")];
    assert_eq!(listed(&bytes()), Ok(vec![Listing { header, entries }]));
}

#[test]
fn entries_in_several_parts_are_one_set() {
    let mut parts = bytes();
    let mut writer = Writer::new();
    let start = writer.begin(LIST, 0, 0);
    begin(&mut writer);
    writer.text(NAME, "KUBE-LOOP-BACK");
    writer.nest(ENTRIES, |writer| {
        let first = IpPort {
            address: ip("10.96.0.9"),
            protocol: 17,
            port: 53,
        };
        let entry = Entry::IpPortIp(first, ip("10.96.0.9"));
        writer.nest(DATA, |writer| entry.write(writer, 1));
    });
    writer.end(start);
    parts.extend_from_slice(writer.bytes());
    let sets = listed(&parts).unwrap();
    assert_eq!(sets.len(), 1);
    assert_eq!(sets[0].entries[2].to_string(), "10.96.0.9,udp:53,10.96.0.9");
}

#[test]
fn what_is_written_is_read() {
    let first = IpPort {
        address: ip("fd00::1"),
        protocol: 132,
        port: 99,
    };
    for entry in [
        Entry::Ip(ip("10.0.0.1")),
        Entry::IpPort(first),
        Entry::IpPortIp(first, ip("fd00::2")),
        Entry::IpPortNet(first, Network::new(ip("fd00::"), 16).unwrap()),
        Entry::Port(30_080),
    ] {
        let mut writer = Writer::new();
        writer.nest(DATA, |writer| entry.write(writer, 7));
        let attr = crate::wire::attributes(writer.bytes()).next().unwrap();
        assert_eq!(Entry::read(entry.kind(), &attr.unwrap()), Ok(entry));
    }
}

#[test]
fn networks_with_the_same_addresses_are_equal() {
    let network = |text, prefix| Network::new(ip(text), prefix).unwrap();
    assert_eq!(network("10.1.2.3", 8), network("10.0.0.0", 8));
    assert_eq!(network("fd00::1", 64), network("fd00::2", 64));
    assert_eq!(network("10.1.2.3", 0).address(), ip("0.0.0.0"));
    assert_eq!(network("fd00::1", 0).address(), ip("::"));
    assert_eq!(network("10.1.2.3", 32).to_string(), "10.1.2.3");
    assert_eq!(network("10.1.2.3", 31).to_string(), "10.1.2.2/31");
    assert_eq!(Network::new(ip("10.0.0.0"), 33), None);
    assert_eq!(Network::new(ip("fd00::"), 129), None);
}

/// An error that repeats the request, with the number of the entry that is at fault.
fn refusal_of_line(errno: i32, line: u32) -> Vec<u8> {
    let mut request = Writer::new();
    let start = request.begin(ADD, 0, 0);
    begin(&mut request);
    request.u32_be(LINE, line);
    request.end(start);
    let mut writer = Writer::new();
    let start = writer.begin(crate::wire::NLMSG_ERROR, 0, 0);
    writer.raw(&(-errno).to_ne_bytes());
    writer.raw(request.bytes());
    writer.end(start);
    writer.bytes().to_vec()
}

#[test]
fn entries_behind_one_that_is_refused_are_sent_again() {
    let script = Script::default();
    let mut sets = Ipset::new(Recorder::new(script.clone()));
    script.answer(Answer::Replay(vec![refusal_of_line(4352, 2)]));
    let entries: Vec<_> = (1..=3).map(Entry::Port).collect();
    let refused = sets.add("ports", &entries).unwrap();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].index, 1);
    let requests = script.take_requests();
    let counts = requests.iter().map(|request| {
        let message = messages(request).next().unwrap().unwrap();
        let mut lists = message.attributes(4).unwrap().flatten();
        let list = lists.find(|attr| attr.kind == ENTRIES).unwrap();
        list.nested().count()
    });
    assert_eq!(counts.collect::<Vec<_>>(), [3, 1]);
}

#[test]
fn a_refusal_that_names_no_entry_of_the_request_is_an_error() {
    for line in [0, 2, u32::MAX] {
        let script = Script::default();
        let mut sets = Ipset::new(Recorder::new(script.clone()));
        script.answer(Answer::Replay(vec![refusal_of_line(4352, line)]));
        let error = sets.add("ports", &[Entry::Port(1)]).unwrap_err();
        assert!(matches!(error, RequestError::Refused { .. }), "{error:?}");
    }
}

#[test]
fn revisions_that_make_no_sense_are_an_error() {
    let script = Script::default();
    let mut sets = Ipset::new(Recorder::new(script.clone()));
    let mut writer = Writer::new();
    let start = writer.begin(TYPE, 0, 0);
    begin(&mut writer);
    writer.u8(REVISION, 2);
    writer.u8(OLDEST_REVISION, 3);
    writer.end(start);
    script.answer(Answer::Replay(vec![writer.bytes().to_vec()]));
    let revisions = sets.revisions(Type::HashIp, Family::V4);
    assert!(matches!(revisions, Err(RequestError::Malformed(_))));
}

proptest! {
    #[test]
    fn no_damage_makes_reading_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut bytes = bytes();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(keep.index(bytes.len()) + 1);
        let _ = listed(&bytes);
        for message in messages(&bytes).flatten() {
            let _ = read_line(&message);
            let _ = read_revisions(&message);
        }
    }
}
