//! Large sets, read by the keys that they are expected to have.

use std::net::{IpAddr, Ipv4Addr};

use ferrule_kernel::Family;
use ferrule_kernel::nft::{Batch, Element, Field, Nft, Set, Table, Value};
use ferrule_kernel::socket::Protocol;
use ferrule_kernel::wire::{HEADER, messages};

use crate::support::{Tap, in_namespace};

const TABLE: &str = "large";
const SET: &str = "m";
const GETSETELEM: u16 = 0x0a0d;
const DUMP: u16 = 0x300;

fn element(number: u32, port: u16) -> Element {
    let key = Value::from(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number))).port(80);
    Element::value(key, Value::new().port(port))
}

fn elements(count: u32) -> Vec<Element> {
    (0..count).map(|number| element(number, 8080)).collect()
}

/// A socket to a table with these elements.
fn written(elements: &[Element]) -> Nft<Tap> {
    let mut nft = Nft::new(Tap::open(Protocol::Netfilter));
    let mut batch = Batch::new(Family::V4, TABLE);
    batch.add_table(&Table::new(TABLE));
    batch.add_set(&Set::map(
        SET,
        [Field::Ipv4Addr, Field::Port],
        [Field::Port],
    ));
    batch.add_elements(SET, elements);
    nft.commit(&batch).unwrap();
    nft
}

fn sorted(mut elements: Vec<Element>) -> Vec<Element> {
    elements.sort_by_key(|element| (element.catch_all, element.key));
    elements
}

/// What is read where these elements are expected, and whether it took a dump.
fn read(nft: &mut Nft<Tap>, expected: &[Element]) -> (Vec<Element>, bool) {
    nft.set_large(1);
    nft.transport_mut().sent.clear();
    let read = nft.marked_snapshot(Family::V4, TABLE, &|set| {
        assert_eq!(set, SET);
        expected
    });
    let mut snapshot = read.unwrap().0.unwrap();
    let sent = nft.transport_mut().sent.concat();
    assert!(sent.len() > HEADER);
    let dumped = messages(&sent).any(|message| {
        let message = message.unwrap();
        message.kind == GETSETELEM && message.flags & DUMP == DUMP
    });
    (sorted(snapshot.elements.remove(SET).unwrap()), dumped)
}

/// Whether the kernel tells how many elements a set has.
fn counts() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split('.')
        .map(|word| word.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(16))
}

#[test]
fn what_is_there_is_read_whatever_was_expected() {
    in_namespace(|| {
        let there = elements(1000);
        let mut nft = written(&there);
        let some = [&there[..100], &there[101..600], &there[602..]].concat();
        let more = [&there[..], &[element(5000, 80)]].concat();
        let other: Vec<_> = there.iter().map(|e| element_to(e, 9090)).collect();
        let scattered = there.iter().flat_map(|e| [e.clone(), shifted(e)]);
        let scattered: Vec<_> = scattered.collect();
        let reversed: Vec<_> = there.iter().rev().cloned().collect();
        for (expected, by_key) in [
            (&there, true),
            (&reversed, true),
            (&more, true),
            (&other, true),
            (&scattered, true),
            (&some, false),
            (&Vec::new(), false),
        ] {
            let (found, dumped) = read(&mut nft, expected);
            assert_eq!(found, there);
            assert_eq!(dumped, !(by_key && counts()), "{} expected", expected.len());
        }
    });
}

/// The same key with another value.
fn element_to(element: &Element, port: u16) -> Element {
    Element::value(element.key, Value::new().port(port))
}

/// A key that is nowhere.
fn shifted(element: &Element) -> Element {
    let mut bytes = element.key.as_bytes().to_vec();
    bytes[0] = 11;
    Element::value(Value::from_bytes(&bytes).unwrap(), Value::new().port(1))
}

#[test]
fn a_set_that_lost_nearly_all_is_dumped() {
    in_namespace(|| {
        let mut nft = written(&elements(10));
        let (found, dumped) = read(&mut nft, &elements(3000));
        assert_eq!(found, elements(10));
        assert!(dumped, "each missing key is one more request");
        let (found, dumped) = read(&mut nft, &elements(20));
        assert_eq!((found, dumped), (elements(10), !counts()));
    });
}

#[test]
fn an_element_for_every_key_is_not_overlooked() {
    in_namespace(|| {
        let there = elements(10);
        let mut nft = written(&there);
        let every = Element {
            catch_all: true,
            ..element(0, 1)
        };
        let mut batch = Batch::new(Family::V4, TABLE);
        batch.add_elements(SET, [&every]);
        nft.commit(&batch).unwrap();
        let (found, dumped) = read(&mut nft, &there);
        assert_eq!(found.len(), 11);
        assert!(found[10].catch_all && dumped);
    });
}
