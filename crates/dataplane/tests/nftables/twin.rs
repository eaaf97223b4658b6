//! The same state drawn from scratch in another network, to compare with.

use std::collections::{BTreeMap, BTreeSet};

use ferrule_dataplane::nftables::{Nftables, Options};
use ferrule_dataplane::{Dataplane, Scope, Work};
use ferrule_kernel::nft::{Data, Element, Expr, Name, Nft, Rule, Snapshot, Verdict};
use ferrule_kernel::socket::Transport;
use ferrule_testbed::Place;

use crate::support::*;

/// A network of its own in which everything is always written anew.
pub struct Twin {
    place: Place,
    options: Options,
    dataplane: Nftables,
    nft: Nft,
}

impl Twin {
    pub fn new<T>(scene: &Scene<T>) -> Self {
        let place = Place::new().unwrap();
        let family = scene.family;
        let (dataplane, nft) = place.run(move || {
            let dataplane = Nftables::open(family, Options::default()).unwrap();
            (dataplane, open_here())
        });
        Self {
            place,
            options: Options::default(),
            dataplane,
            nft,
        }
    }

    /// What is in the kernel must be what a fresh start would write, but for chains that nothing
    /// leads to any more.
    pub fn assert_like<T: Transport + Send>(&mut self, scene: &Scene<T>) {
        if self.options != scene.options {
            self.options = scene.options;
            let (family, options) = (scene.family, scene.options);
            let open = move || Nftables::open(family, options).unwrap();
            self.dataplane = self.place.run(open);
        }
        self.dataplane.remove().unwrap();
        let work = Work {
            desired: &scene.cluster.desired,
            scope: Scope::Full,
            local: &[],
        };
        self.dataplane.apply(&work).unwrap();
        let fresh = all_of_it(&mut self.nft, kernel(scene.family));
        assert_alike(&scene.snapshot(), &fresh.unwrap());
    }
}

/// See [`Twin::assert_like`].
pub fn assert_alike(found: &Snapshot, fresh: &Snapshot) {
    assert_eq!(found.table.object, fresh.table.object);
    let sets = |snapshot: &Snapshot| {
        let sets = snapshot.sets.iter().map(|held| held.object.clone());
        sets.map(|set| (set.name.clone(), set))
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(sets(found), sets(fresh));
    assert_eq!(elements(found), elements(fresh));
    let (rules, expected) = (rules(found), self::rules(fresh));
    for (chain, expected) in &expected {
        assert_eq!(rules.get(chain), Some(expected), "{chain}");
    }
    let chains = |snapshot: &Snapshot| {
        let chains = snapshot.chains.iter().map(|held| held.object.clone());
        chains
            .map(|chain| (chain.name.clone(), chain))
            .collect::<BTreeMap<_, _>>()
    };
    let (chains, wanted) = (chains(found), chains(fresh));
    for (name, chain) in &wanted {
        assert_eq!(chains.get(name), Some(chain));
    }
    let led_to = led_to(found);
    for name in chains.keys().filter(|name| !wanted.contains_key(*name)) {
        assert!(!led_to.contains(name), "{name} is still used");
        let empty = !rules.contains_key(name);
        let own = ["stay-", "sources-", "ferrule-firewall"];
        let own = own.iter().any(|start| name.starts_with(start));
        assert!(name.contains("pick-") || own && empty);
    }
}

/// All elements, sorted.
pub fn elements(snapshot: &Snapshot) -> BTreeMap<Name, Vec<Element>> {
    let mut elements = snapshot.elements.clone();
    for list in elements.values_mut() {
        list.sort_by_key(|element| (element.key, element.ends_range));
    }
    elements
}

/// All rules by chain, in order.
pub fn rules(snapshot: &Snapshot) -> BTreeMap<Name, Vec<Rule>> {
    let mut rules: BTreeMap<Name, Vec<Rule>> = BTreeMap::new();
    for held in &snapshot.rules {
        let chain = rules.entry(held.object.chain.clone()).or_default();
        chain.push(held.object.clone());
    }
    rules
}

/// Chains that elements or rules lead to.
fn led_to(snapshot: &Snapshot) -> BTreeSet<Name> {
    let data = snapshot.elements.values().flatten().map(|e| &e.data);
    let verdicts = data.filter_map(|data| match data {
        Data::Verdict(verdict) => Some(verdict),
        _ => None,
    });
    let rules = snapshot.rules.iter();
    let expressions = rules.flat_map(|held| &held.object.expressions);
    let jumps = expressions.filter_map(|expr| match expr {
        Expr::Verdict(verdict) => Some(verdict),
        _ => None,
    });
    let names = verdicts.chain(jumps).filter_map(|verdict| match verdict {
        Verdict::Goto(name) | Verdict::Jump(name) => Some(name.clone()),
        _ => None,
    });
    names.collect()
}
