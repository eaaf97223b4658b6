//! How many rules there are in each table, for metrics.
//!
//! Counted is what kube-proxy counts: rules in our own chains, not the jumps to them.

use ferrule_kernel::xt::Table;

use super::base_chains::is_base_chain;
use super::document::{Document, Step};
use super::ruleset::{PortRules, Ruleset, Statics};
use crate::RuleCount;

/// Rules by table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    filter: usize,
    nat: usize,
}

impl RuleCounts {
    /// Of everything.
    pub fn of(ruleset: &Ruleset) -> Self {
        let mut counts = Self::of_statics(&ruleset.statics);
        for ((table, _), ranks) in &ruleset.shared {
            let rules = ranks.values().map(Vec::len).sum();
            counts.count(*table, rules);
        }
        let chains = ruleset.chains.values();
        counts.count(Table::Nat, chains.map(|(_, rules)| rules.len()).sum());
        counts
    }

    /// Of what does not depend on Services.
    pub fn of_statics(statics: &Statics) -> Self {
        let mut counts = Self::default();
        for ((table, _), rules) in statics {
            counts.count(*table, rules.len());
        }
        counts
    }

    /// Of one Service port.
    pub fn of_port(port: &PortRules) -> Self {
        let mut counts = Self::default();
        for (((table, _), _), rules) in &port.shared {
            counts.count(*table, rules.len());
        }
        counts.count(Table::Nat, port.chains.values().map(Vec::len).sum());
        counts
    }

    /// Of rules that a document writes.
    pub fn of_document(document: &Document) -> Self {
        let mut counts = Self::default();
        for (table, step) in document.rules() {
            match step {
                // A jump from a base chain.
                Step::Append(chain, _) | Step::Insert(chain, ..)
                    if is_base_chain(chain.as_str()) => {}
                Step::Append(..) | Step::Insert(..) => counts.count(table, 1),
                _ => {}
            }
        }
        counts
    }

    const fn count(&mut self, table: Table, rules: usize) {
        match table {
            Table::Filter => self.filter += rules,
            Table::Nat => self.nat += rules,
            // Only the canary is there.
            Table::Mangle => {}
        }
    }

    /// The sum of both.
    pub const fn plus(self, other: Self) -> Self {
        Self {
            filter: self.filter + other.filter,
            nat: self.nat + other.nat,
        }
    }

    /// The same after a part changed.
    pub const fn with(self, before: Self, after: Self) -> Self {
        let all = self.plus(after);
        Self {
            filter: all.filter.saturating_sub(before.filter),
            nat: all.nat.saturating_sub(before.nat),
        }
    }

    /// For metrics, beside those that were written last.
    pub fn reported(self, written: Self) -> Vec<RuleCount> {
        let count = |table: Table, owned, written| RuleCount {
            table: table.as_str(),
            owned,
            written,
        };
        vec![
            count(Table::Filter, self.filter, written.filter),
            count(Table::Nat, self.nat, written.nat),
        ]
    }
}
