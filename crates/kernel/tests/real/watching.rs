//! Hearing of changes.

use std::time::Duration;

use ferrule_kernel::Family;
use ferrule_kernel::nft::{
    self, Batch, Chain, Change, Element, Field, Nft, Object, Set, Table, Value,
};
use ferrule_kernel::route::{self, Address, Link, Route};

use crate::sample::TABLE;
use crate::support::{in_namespace, run};

const LONG: Duration = Duration::from_secs(10);

/// The changes of one transaction, up to and with the new generation.
fn transaction(watch: &mut nft::Watch) -> Vec<Change> {
    let mut changes = Vec::new();
    loop {
        let events = watch.next(LONG).unwrap();
        assert!(!events.is_empty(), "the generation never came: {changes:?}");
        for event in events {
            let nft::Event::Change(change) = event else {
                panic!("missed something")
            };
            let last = matches!(change.object, Object::Generation(_));
            changes.push(*change);
            if last {
                return changes;
            }
        }
    }
}

fn table() -> Batch {
    let mut batch = Batch::new(Family::V4, TABLE);
    batch.add_table(&Table::new(TABLE));
    batch.add_chain(&Chain::new("c"));
    batch.add_set(&Set::new("s", [Field::Mark]));
    batch.add_elements("s", [Element::new(Value::new().number(7))]);
    batch
}

#[test]
fn our_changes_are_told_from_those_of_others() {
    in_namespace(|| {
        let mut nft = Nft::open().unwrap();
        let mut watch = nft::Watch::open().unwrap();
        assert_eq!(watch.next(Duration::ZERO).unwrap(), []);
        nft.commit(&table()).unwrap();
        let ours = transaction(&mut watch);
        assert_eq!(ours.len(), 5, "{ours:?}");
        assert!(
            ours.iter()
                .all(|change| change.port == nft.port() && !change.gone)
        );
        let [.., elements, generation] = &ours[..] else {
            panic!("{ours:?}")
        };
        assert_eq!(elements.family, Some(Family::V4));
        let Object::Elements(list) = &elements.object else {
            panic!("{elements:?}")
        };
        assert_eq!(
            (&*list.table, &*list.set, list.elements.len()),
            (TABLE, "s", 1)
        );
        let Object::Generation(generation) = &generation.object else {
            panic!("{generation:?}")
        };
        assert_eq!(generation.id, nft.generation().unwrap().id);

        run("nft", &["flush", "ruleset"]);
        let theirs = transaction(&mut watch);
        assert!(theirs.iter().all(|change| change.port != nft.port()));
        let gone = theirs.iter().filter(|change| change.gone);
        assert!(
            gone.clone()
                .all(|c| c.object.table().is_some_and(|t| **t == *TABLE))
        );
        assert!(gone.count() >= 2);
        let Some(Object::Generation(generation)) = theirs.last().map(|c| &c.object) else {
            panic!("{theirs:?}")
        };
        assert_eq!(generation.process_name.as_deref(), Some("nft"));
    });
}

#[test]
fn changes_that_nobody_reads_in_time_are_known_to_be_missed() {
    in_namespace(|| {
        let mut nft = Nft::open().unwrap();
        let mut watch = nft::Watch::open().unwrap();
        nft.commit(&table()).unwrap();
        let elements: Vec<_> = (0..50_000)
            .map(|n| Element::new(Value::new().number(n + 100)))
            .collect();
        for _ in 0..3 {
            let mut batch = Batch::new(Family::V4, TABLE);
            batch.add_elements("s", &elements);
            batch.delete_elements("s", &elements);
            nft.commit(&batch).unwrap();
        }
        let mut missed = false;
        loop {
            let events = watch.next(Duration::ZERO).unwrap();
            if events.is_empty() {
                break;
            }
            missed |= events.contains(&nft::Event::Missed);
        }
        assert!(missed);
        // Whoever missed something can go on listening.
        let mut batch = Batch::new(Family::V4, TABLE);
        batch.add_chain(&Chain::new("d"));
        nft.commit(&batch).unwrap();
        assert_eq!(transaction(&mut watch).len(), 2);
    });
}

#[test]
fn interfaces_and_addresses_are_listed_and_heard_of() {
    in_namespace(|| {
        let mut route = Route::open().unwrap();
        let links = route.links().unwrap();
        let lo = links.iter().find(|link| link.name == "lo").unwrap();
        assert_eq!(
            lo.flags & (Link::LOOPBACK | Link::UP),
            Link::LOOPBACK | Link::UP
        );
        let mut watch = route::Watch::open().unwrap();
        for text in ["192.0.2.7/24", "fd00::7/64"] {
            let (address, prefix) = text.split_once('/').unwrap();
            run("ip", &["address", "add", text, "dev", "lo"]);
            let wanted = |found: &Address| {
                (found.address, found.prefix, found.link)
                    == (address.parse().unwrap(), prefix.parse().unwrap(), lo.index)
            };
            let new = |e: &route::Event| matches!(e, route::Event::Address(a) if wanted(a));
            wait_for(&mut watch, new);
            assert!(route.addresses().unwrap().iter().any(wanted));
            run("ip", &["address", "del", text, "dev", "lo"]);
            let gone = |e: &route::Event| matches!(e, route::Event::AddressGone(a) if wanted(a));
            wait_for(&mut watch, gone);
            assert!(!route.addresses().unwrap().iter().any(wanted));
        }
        run("ip", &["link", "set", "lo", "down"]);
        wait_for(
            &mut watch,
            |event| matches!(event, route::Event::Link(link) if link.name == "lo" && link.flags & Link::UP == 0),
        );
    });
}

fn wait_for(watch: &mut route::Watch, wanted: impl Fn(&route::Event) -> bool) {
    loop {
        let events = watch.next(LONG).unwrap();
        assert!(!events.is_empty(), "it never came");
        if events.iter().any(&wanted) {
            return;
        }
    }
}
