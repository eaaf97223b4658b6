//! What was written is what is read back.

use std::num::NonZeroU32;

use ferrule_kernel::Family;
use ferrule_kernel::nft::{Batch, Element, Held, Nft, Set, Snapshot, Table, ranges};

use crate::sample::{Sample, TABLE, sample};
use crate::support::in_namespace;

fn objects<T>(held: Vec<Held<T>>) -> Vec<T> {
    held.into_iter().map(|held| held.object).collect()
}

fn sorted(mut elements: Vec<Element>) -> Vec<Element> {
    elements.sort_by_key(|element| (element.key, element.ends_range));
    for element in &mut elements {
        element.expires = None;
    }
    elements
}

fn assert_same(sample: &Sample, nft: &mut Nft) {
    let snapshot = everything(nft, sample.family);
    assert_eq!(snapshot.table.object, sample.table);
    assert_eq!(objects(snapshot.chains), sample.chains);
    let sets: Vec<_> = sample.sets.iter().cloned().map(as_kept).collect();
    assert_eq!(objects(snapshot.sets), sets);
    // Rules of one chain keep their order; chains come in theirs.
    for chain in &sample.chains {
        let of_chain = |rule: &&_| -> bool {
            let rule: &ferrule_kernel::nft::Rule = rule;
            rule.chain == chain.name
        };
        let read: Vec<_> = snapshot.rules.iter().map(|held| &held.object).collect();
        let read: Vec<_> = read.into_iter().filter(of_chain).collect();
        let written: Vec<_> = sample.rules.iter().filter(of_chain).collect();
        assert_eq!(read, written, "{}", chain.name);
    }
    for (set, elements) in &sample.elements {
        let read = snapshot.elements[set].clone();
        assert_eq!(sorted(read), sorted(elements.clone()), "{set}");
    }
}

/// All there is, also what packets put there.
fn everything(nft: &mut Nft, family: Family) -> Snapshot {
    let mut snapshot = nft.snapshot(family, TABLE).unwrap().unwrap();
    let dynamic = snapshot.sets.iter().filter(|held| held.object.dynamic);
    for held in dynamic {
        let name = &held.object.name;
        let elements = nft.elements(family, TABLE, name).unwrap();
        assert_eq!(snapshot.elements.insert(name.clone(), elements), None);
    }
    snapshot
}

/// The kernel limits a set that rules add to, once a rule does.
fn as_kept(mut set: Set) -> Set {
    if set.dynamic && set.size.is_none() {
        set.size = NonZeroU32::new(65535);
    }
    set
}

/// The sample, now in the kernel, and who wrote it.
fn written(family: Family) -> (Sample, Nft) {
    let sample = sample(family);
    let mut nft = Nft::open().unwrap();
    assert_eq!(nft.snapshot(family, TABLE).unwrap(), None);
    nft.commit(&sample.batch()).unwrap();
    (sample, nft)
}

fn round_trip(family: Family) {
    in_namespace(move || {
        let (sample, mut nft) = written(family);
        let snapshot = nft.snapshot(family, TABLE).unwrap().unwrap();
        assert_eq!(snapshot.generation, nft.generation().unwrap().id);
        assert_same(&sample, &mut nft);
        // The same again is no error and changes nothing. Rules would be added once more.
        let mut again = Batch::new(family, TABLE);
        again.add_table(&sample.table);
        for chain in &sample.chains {
            again.add_chain(chain);
        }
        for set in &sample.sets {
            again.add_set(set);
        }
        for (set, elements) in &sample.elements {
            again.add_elements(set, elements);
        }
        nft.commit(&again).unwrap();
        assert_same(&sample, &mut nft);
    });
}

#[test]
fn a_table_of_ipv4_is_read_back_as_written() {
    round_trip(Family::V4);
}

#[test]
fn a_table_of_ipv6_is_read_back_as_written() {
    round_trip(Family::V6);
}

#[test]
fn what_nft_wrote_is_read_too() {
    in_namespace(|| {
        let (sample, mut nft) = written(Family::V4);
        let listed = crate::support::run("nft", &["list", "ruleset"]);
        let file = std::env::temp_dir().join(format!("nft-wrote-{}", std::process::id()));
        std::fs::write(&file, format!("flush ruleset\n{listed}")).unwrap();
        crate::support::run("nft", &["-f", file.to_str().unwrap()]);
        std::fs::remove_file(&file).unwrap();
        assert_same(&sample, &mut nft);
    });
}

#[test]
fn everything_can_be_removed_step_by_step() {
    in_namespace(|| {
        let family = Family::V4;
        let (sample, mut nft) = written(family);
        let snapshot = nft.snapshot(family, TABLE).unwrap().unwrap();
        let mut batch = Batch::new(family, TABLE);
        for rule in &snapshot.rules[..2] {
            batch.delete_rule(&rule.object.chain, rule.handle);
        }
        for chain in &sample.chains {
            batch.flush_chain(&chain.name);
        }
        for (set, elements) in &sample.elements[..5] {
            batch.delete_elements(set, elements);
        }
        for (set, _) in &sample.elements[5..] {
            batch.flush_set(set);
        }
        nft.commit(&batch).unwrap();
        let empty = everything(&mut nft, family);
        assert!(empty.rules.is_empty());
        assert!(empty.elements.values().all(Vec::is_empty), "{empty:?}");
        let mut batch = Batch::new(family, TABLE);
        for chain in &sample.chains {
            batch.delete_chain(&chain.name);
        }
        for set in &sample.sets {
            batch.delete_set(&set.name);
        }
        nft.commit(&batch).unwrap();
        let empty = nft.snapshot(family, TABLE).unwrap().unwrap();
        assert!(empty.chains.is_empty() && empty.sets.is_empty());
        let mut batch = Batch::new(family, TABLE);
        batch.delete_table();
        nft.commit(&batch).unwrap();
        assert_eq!(nft.tables(family).unwrap(), []);
    });
}

#[test]
fn a_snapshot_is_without_what_packets_put_there() {
    in_namespace(|| {
        let family = Family::V4;
        let (sample, mut nft) = written(family);
        let snapshot = nft.snapshot(family, TABLE).unwrap().unwrap();
        assert_eq!(snapshot.sets.len(), sample.sets.len());
        for set in &sample.sets {
            let told = snapshot.elements.contains_key(&set.name);
            assert_eq!(told, !set.dynamic, "{}", set.name);
        }
        let kept = nft.elements(family, TABLE, "affinity").unwrap();
        assert!(!kept.is_empty(), "it was worth leaving out");
    });
}

#[test]
fn a_rule_is_put_before_another_and_another_first() {
    in_namespace(|| {
        let family = Family::V4;
        let (_, mut nft) = written(family);
        let rules = nft.rules(family, TABLE).unwrap();
        let old = rules.iter().find(|r| &*r.object.chain == "masquerading");
        let old = old.unwrap();
        let new = ferrule_kernel::nft::Rule::new("masquerading", vec![]).comment("nothing");
        let mut batch = Batch::new(family, TABLE);
        batch.insert_rule_before(old.handle, &new);
        let first = new.clone().comment("first");
        batch.insert_rule(&first);
        nft.commit(&batch).unwrap();
        let rules = objects(nft.rules(family, TABLE).unwrap());
        let of_chain: Vec<_> = rules.iter().filter(|r| r.chain == new.chain).collect();
        assert_eq!(of_chain[..3], [&first, &new, &old.object]);
    });
}

#[test]
fn ranges_are_what_the_kernel_keeps() {
    in_namespace(|| {
        let family = Family::V4;
        let mut nft = Nft::open().unwrap();
        nft.commit(&sample(family).batch()).unwrap();
        let elements = nft.elements(family, TABLE, "service-cidrs").unwrap();
        let address = |x, y| crate::sample::address(family, x, y).into();
        assert_eq!(
            ranges::ranges(&elements),
            [
                (address(96, 0), address(96, 255)),
                (address(98, 3), address(98, 3))
            ]
        );
    });
}

#[test]
fn a_large_list_arrives_whole() {
    in_namespace(|| {
        let family = Family::V4;
        let mut nft = Nft::open().unwrap();
        let mut batch = Batch::new(family, TABLE);
        batch.add_table(&Table::new(TABLE));
        batch.add_set(&Set::new("s", [ferrule_kernel::nft::Field::Mark]));
        let element = |n| Element::new(ferrule_kernel::nft::Value::new().number(n));
        batch.add_elements("s", (0..20_000).map(element));
        nft.commit(&batch).unwrap();
        assert_eq!(nft.elements(family, TABLE, "s").unwrap().len(), 20_000);
        let mut batch = Batch::new(family, TABLE);
        batch.delete_elements("s", (0..19_999).map(element));
        nft.commit(&batch).unwrap();
        assert_eq!(nft.elements(family, TABLE, "s").unwrap(), [element(19_999)]);
    });
}
