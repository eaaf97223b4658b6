//! Everything that is to be in the table.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ferrule_kernel::nft::{Element, Name, Rule, Set, Value, ranges};
use ipnet::IpNet;

use super::names::{Container, Pick};

/// Everything that is to be in the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// What is not of a single Service port.
    pub common: Common,
    /// Chains of single Service ports.
    pub chains: BTreeMap<Name, Vec<Rule>>,
    /// Sets of single Service ports.
    pub sets: BTreeMap<Name, OwnSet>,
    /// What Services put into sets and maps, in order of keys once [`Ruleset::sort`] was called.
    pub elements: BTreeMap<Container, Vec<Element>>,
}

/// What is not of a single Service port. A delta must know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Common {
    /// What does not depend on Services.
    pub statics: Statics,
    /// Chains that choose an endpoint.
    pub picks: BTreeSet<Pick>,
    /// How many Service ports put an element into a set that they share.
    pub shares: Shares,
}

/// What does not depend on Services. Its chains and sets are always the same ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statics {
    /// Rules, those of one chain in order.
    pub rules: Vec<Rule>,
    /// Elements of sets of networks.
    pub nets: BTreeMap<Container, Vec<Element>>,
}

/// What one Service port puts into the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drawing {
    /// Elements of sets and maps.
    pub elements: Vec<(Container, Element)>,
    /// Chains that they lead to and other Service ports may use too.
    pub picks: BTreeSet<Pick>,
    /// Chains of this Service port alone.
    pub chains: BTreeMap<Name, Vec<Rule>>,
    /// Sets of this Service port alone.
    pub sets: BTreeMap<Name, OwnSet>,
}

/// A set of a single Service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnSet {
    /// The declaration.
    pub set: Set,
    /// Networks that are in it, as they were given; none if packets fill it.
    pub nets: Vec<IpNet>,
}

impl OwnSet {
    /// What is in it. Not kept, because most changes are of something else.
    pub fn elements(&self) -> Vec<Element> {
        elements(&self.nets)
    }
}

/// The elements of an interval set of these networks.
pub fn elements(nets: &[IpNet]) -> Vec<Element> {
    ranges::elements(
        nets.iter()
            .map(|net| (Value::from(net.network()), Value::from(net.broadcast()))),
    )
}

/// How many Service ports put an element into a set that they share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares(HashMap<Share, u32>);

/// An element by its key. There is one for every Service, so it has no room for the longest key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Share {
    Short(Container, u8, [u8; SHORT]),
    Long(Container, Box<Value>),
}

/// Enough for an address.
const SHORT: usize = 21;

impl Ruleset {
    /// Adds what one Service port puts into the table.
    pub fn add(&mut self, drawing: Drawing) {
        self.common.picks.extend(drawing.picks);
        self.chains.extend(drawing.chains);
        self.sets.extend(drawing.sets);
        for (container, element) in drawing.elements {
            if container.is_shared() {
                self.common.shares.add(container, element.key);
            }
            self.elements.entry(container).or_default().push(element);
        }
    }

    /// Puts elements in order, each once. They are most of a large cluster's memory, so they are
    /// kept in plain lists.
    #[expect(
        clippy::unnecessary_sort_by,
        reason = "by key, a long key would be copied for every comparison"
    )]
    pub fn sort(&mut self) {
        for elements in self.elements.values_mut() {
            // Elements of one key are the same one, from Service ports that share it.
            elements.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            elements.dedup_by(|a, b| a.key == b.key);
        }
    }

    /// Elements of one set or map.
    pub fn elements(&self, container: Container) -> &[Element] {
        self.elements.get(&container).map_or(&[], Vec::as_slice)
    }
}

impl Ruleset {
    /// Elements of the set or map of this name that have a key each; none of others.
    pub fn of_set(&self, name: &str) -> &[Element] {
        let mut all = self.elements.iter();
        let found = all.find(|(container, _)| container.name() == name && !container.is_nets());
        found.map_or(&[], |(_, elements)| elements)
    }
}

impl Shares {
    /// How many there are.
    pub fn count(&self, container: Container, key: Value) -> u32 {
        let count = self.0.get(&Share::new(container, key));
        count.copied().unwrap_or_default()
    }

    /// One more; how many there are now.
    pub fn add(&mut self, container: Container, key: Value) -> u32 {
        let count = self.0.entry(Share::new(container, key)).or_default();
        *count += 1;
        *count
    }

    /// One less.
    pub fn remove(&mut self, container: Container, key: Value) {
        let share = Share::new(container, key);
        if let Some(count) = self.0.get_mut(&share) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&share);
            }
        }
    }
}

impl Share {
    fn new(container: Container, key: Value) -> Self {
        let mut short = [0; SHORT];
        let bytes = key.as_bytes();
        match (short.get_mut(..bytes.len()), u8::try_from(bytes.len())) {
            (Some(start), Ok(len)) => {
                start.copy_from_slice(bytes);
                Self::Short(container, len, short)
            }
            _ => Self::Long(container, Box::new(key)),
        }
    }
}
