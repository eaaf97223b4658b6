//! Everything that is to be in the tables.

use std::collections::BTreeMap;

use ferrule_core::model::PortKey;

use super::chain::{Chain, TableChain};
use super::rule::Rule;

/// Everything that is to be in the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// What does not depend on Services.
    pub statics: Statics,
    /// What Service ports put into chains that they share.
    pub shared: BTreeMap<TableChain, BTreeMap<Rank, Vec<Rule>>>,
    /// Generated chains, and whose they are.
    pub chains: BTreeMap<Chain, (PortKey, Vec<Rule>)>,
}

/// Where in a shared chain the rules of a Service port stand. Those for addresses that another
/// Service holds stand behind all others, so that the holder is found first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Another Service holds the address.
    pub shadowed: bool,
    /// Whose rules.
    pub key: PortKey,
}

/// Rules that do not depend on Services, by chain. In a shared chain they stand behind all others.
/// A fixed chain that is neither here nor shared is only made to exist.
pub type Statics = BTreeMap<TableChain, Vec<Rule>>;

/// What one Service port puts into the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortRules {
    /// Rules in shared chains, and whether they are [shadowed](Rank::shadowed).
    pub shared: BTreeMap<(TableChain, bool), Vec<Rule>>,
    /// Generated chains of this Service port alone.
    pub chains: BTreeMap<Chain, Vec<Rule>>,
}

impl PortRules {
    /// Adds a rule to a shared chain.
    pub fn add(&mut self, chain: TableChain, shadowed: bool, rule: Rule) {
        self.shared.entry((chain, shadowed)).or_default().push(rule);
    }

    /// Its rules in one part of a shared chain.
    pub fn rules(&self, chain: TableChain, shadowed: bool) -> &[Rule] {
        let rules = self.shared.get(&(chain, shadowed));
        rules.map_or(&[], Vec::as_slice)
    }
}

impl Ruleset {
    /// Adds what one Service port puts into the tables.
    pub fn add(&mut self, key: &PortKey, port: PortRules) {
        for ((chain, shadowed), mut rules) in port.shared {
            // Most are one or two, and there are tens of thousands.
            rules.shrink_to_fit();
            let rank = Rank {
                shadowed,
                key: key.clone(),
            };
            self.shared.entry(chain).or_default().insert(rank, rules);
        }
        for (chain, mut rules) in port.chains {
            rules.shrink_to_fit();
            self.chains.insert(chain, (key.clone(), rules));
        }
    }

    /// All rules of a shared chain in order, and whose they are.
    pub fn shared_rules(&self, chain: TableChain) -> Vec<(Option<&PortKey>, &Rule)> {
        let ranks = self.shared.get(&chain).into_iter().flatten();
        let owned =
            ranks.flat_map(|(rank, rules)| rules.iter().map(move |rule| (Some(&rank.key), rule)));
        let statics = self.statics.get(&chain).into_iter().flatten();
        owned.chain(statics.map(|rule| (None, rule))).collect()
    }
}

/// How many rules each Service port has in each shared chain: enough to know where a rule is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleIndex(BTreeMap<TableChain, BTreeMap<Rank, usize>>);

impl RuleIndex {
    /// Where the rules of this rank begin, from 0.
    pub fn start(&self, chain: TableChain, rank: &Rank) -> usize {
        let counts = self.0.get(&chain);
        counts.map_or(0, |counts| counts.range(..rank).map(|(_, n)| n).sum())
    }

    /// Sets how many there are.
    pub fn set(&mut self, chain: TableChain, rank: Rank, count: usize) {
        let counts = self.0.entry(chain).or_default();
        if count == 0 {
            counts.remove(&rank);
        } else {
            counts.insert(rank, count);
        }
    }

    /// The index of a ruleset.
    pub fn of(ruleset: &Ruleset) -> Self {
        let mut index = Self::default();
        for (chain, ranks) in &ruleset.shared {
            for (rank, rules) in ranks {
                index.set(*chain, rank.clone(), rules.len());
            }
        }
        index
    }
}
