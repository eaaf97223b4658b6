//! Everything that is to be in the tables.

use std::collections::BTreeMap;

use ferrule_core::model::PortKey;
use ferrule_kernel::xt::Table;

use super::rule::Rule;
use crate::iptables::names::{Chain, Shared};

/// Everything that is to be in the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// What does not depend on Services.
    pub statics: Statics,
    /// What Services put into chains that they share.
    pub shared: BTreeMap<Shared, BTreeMap<Rank, Vec<Rule>>>,
    /// Chains of single Service ports, and whose they are.
    pub chains: BTreeMap<Chain, (PortKey, Vec<Rule>)>,
}

/// Where in a shared chain the rules of a Service port stand. Those for addresses that somebody
/// else holds stand behind all others, so that the holder is found first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// The address belongs to somebody else.
    pub shadowed: bool,
    /// Whose rules.
    pub key: PortKey,
}

/// What does not depend on Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statics {
    /// Chains with all their rules.
    pub chains: BTreeMap<(Table, Chain), Vec<Rule>>,
    /// The last rules of [`Shared::Services`].
    pub tail: Vec<Rule>,
}

/// What one Service port puts into the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drawing {
    /// Rules in shared chains.
    pub shared: BTreeMap<(Shared, bool), Vec<Rule>>,
    /// Chains of this Service port alone.
    pub chains: BTreeMap<Chain, Vec<Rule>>,
}

impl Drawing {
    /// Its rules in one part of a shared chain.
    pub fn rules(&self, shared: Shared, shadowed: bool) -> &[Rule] {
        let rules = self.shared.get(&(shared, shadowed));
        rules.map_or(&[], Vec::as_slice)
    }
}

impl Ruleset {
    /// Adds what one Service port puts into the tables.
    pub fn add(&mut self, key: &PortKey, drawing: Drawing) {
        for ((shared, shadowed), rules) in drawing.shared {
            let rank = Rank {
                shadowed,
                key: key.clone(),
            };
            self.shared.entry(shared).or_default().insert(rank, rules);
        }
        for (chain, rules) in drawing.chains {
            self.chains.insert(chain, (key.clone(), rules));
        }
    }
}

/// How many rules each Service port has in each shared chain: enough to know where a rule is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster(BTreeMap<Shared, BTreeMap<Rank, usize>>);

impl Roster {
    /// Where the rules of this rank begin, from 0.
    pub fn start(&self, shared: Shared, rank: &Rank) -> usize {
        let counts = self.0.get(&shared);
        counts.map_or(0, |counts| counts.range(..rank).map(|(_, n)| n).sum())
    }

    /// From now on there are so many.
    pub fn set(&mut self, shared: Shared, rank: Rank, count: usize) {
        let counts = self.0.entry(shared).or_default();
        if count == 0 {
            counts.remove(&rank);
        } else {
            counts.insert(rank, count);
        }
    }

    /// What this is when everything is as drawn.
    pub fn of(ruleset: &Ruleset) -> Self {
        let mut roster = Self::default();
        for (shared, ranks) in &ruleset.shared {
            for (rank, rules) in ranks {
                roster.set(*shared, rank.clone(), rules.len());
            }
        }
        roster
    }
}
