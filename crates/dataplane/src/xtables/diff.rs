//! What to write so that the tables become as drawn.
//!
//! [`whole`] compares everything with what is installed. [`delta`] compares two drawings of what
//! changed and costs what changed: chains of Service ports are written anew, and in chains that
//! all share single rules come and go.

use std::cell::LazyCell;
use std::collections::BTreeSet;

use ferrule_core::model::PortKey;
use ferrule_kernel::xt::Table;

use super::document::{Document, Stage, Step};
use super::installed::Inventory;
use super::rule::Rule;
use super::ruleset::{Drawing, Rank, Roster, Ruleset, Statics};
use crate::iptables::names::{self, Chain, Shared};
use crate::iptables::statics;

/// More Service ports than this in one chain, and writing the chain anew is cheaper.
const MOST_EDITS: usize = 64;

/// Fixed chains, in the order in which kube-proxy names them.
pub const FIXED: [(Table, &[Chain]); 3] = [
    (Table::Mangle, &[names::CANARY]),
    (
        Table::Filter,
        &[
            names::SERVICES,
            names::EXTERNAL_SERVICES,
            names::FORWARD,
            names::NODE_PORTS,
            names::PROXY_FIREWALL,
            names::FIREWALL,
            names::CANARY,
        ],
    ),
    (
        Table::Nat,
        &[
            names::SERVICES,
            names::NODE_PORTS,
            names::POSTROUTING,
            names::MARK_MASQ,
            names::CANARY,
        ],
    ),
];

/// Leads from what is installed to what is wanted.
pub fn whole(installed: &dyn Inventory, wanted: &Ruleset) -> Document {
    let mut document = Document::default();
    for (table, chains) in FIXED {
        let mut stage = Stage::new(table);
        for chain in chains {
            fixed(&mut stage, *chain, installed, wanted);
        }
        for (at, from, rule) in statics::jumps() {
            if at == table && installed.count((table, from), &rule) == 0 {
                let step = Step::Insert(Chain::Fixed(from), 1, rule);
                stage.rules.push((None, step));
            }
        }
        if table == Table::Nat {
            own(&mut stage, installed, wanted);
        }
        document.push(stage);
    }
    document
}

/// One chain that is there once.
fn fixed(stage: &mut Stage, chain: Chain, installed: &dyn Inventory, wanted: &Ruleset) {
    let table = stage.table;
    let name = chain.to_string();
    let shared = Shared::ALL
        .into_iter()
        .find(|shared| (shared.table(), shared.chain()) == (table, chain));
    let rules: Vec<(Option<&PortKey>, &Rule)> = match shared {
        Some(shared) => shared_rules(shared, wanted),
        None => match wanted.statics.chains.get(&(table, chain)) {
            Some(rules) => rules.iter().map(|rule| (None, rule)).collect(),
            // What is in it is not ours to say.
            None if installed.has(table, &name) => return,
            None => Vec::new(),
        },
    };
    let mut plain = rules.iter().map(|(_, rule)| *rule);
    if !installed.holds((table, &name), &mut plain) {
        stage.rewrite(chain, rules);
    }
}

/// All rules of a shared chain, in order.
fn shared_rules(shared: Shared, wanted: &Ruleset) -> Vec<(Option<&PortKey>, &Rule)> {
    let ranks = wanted.shared.get(&shared).into_iter().flatten();
    let mut rules: Vec<_> = ranks
        .flat_map(|(rank, rules)| rules.iter().map(move |rule| (Some(&rank.key), rule)))
        .collect();
    if shared == Shared::Services {
        rules.extend(wanted.statics.tail.iter().map(|rule| (None, rule)));
    }
    rules
}

/// Chains of Service ports.
fn own(stage: &mut Stage, installed: &dyn Inventory, wanted: &Ruleset) {
    let mut known = BTreeSet::new();
    for (chain, (key, rules)) in &wanted.chains {
        let name = chain.to_string();
        if !installed.holds((Table::Nat, &name), &mut rules.iter()) {
            stage.rewrite(*chain, rules.iter().map(|rule| (Some(key), rule)));
        }
        known.insert(name);
    }
    for chain in installed.chains(Table::Nat) {
        if names::is_own(chain) && !known.contains(chain) {
            stage.remove(chain);
        }
    }
}

/// One Service port, as it was drawn and as it is drawn now.
#[derive(Debug)]
pub struct Redrawn {
    /// Which one.
    pub key: PortKey,
    /// What it had.
    pub before: Drawing,
    /// What it has.
    pub after: Drawing,
}

impl Redrawn {
    /// Whether its rules in a shared chain are others.
    fn touches(&self, shared: Shared) -> bool {
        [false, true].into_iter().any(|shadowed| {
            self.before.rules(shared, shadowed) != self.after.rules(shared, shadowed)
        })
    }

    /// Whether a rule is, or comes to be, in both parts of a shared chain. Of two equal rules the
    /// first is deleted, which then might be the wrong one.
    fn crosses(&self, shared: Shared) -> bool {
        let part = |shadowed| {
            let before = self.before.rules(shared, shadowed);
            before.iter().chain(self.after.rules(shared, shadowed))
        };
        part(true).any(|rule| part(false).any(|other| rule == other))
    }

    fn rank(&self, shadowed: bool) -> Rank {
        Rank {
            shadowed,
            key: self.key.clone(),
        }
    }

    /// Notes how many rules it has in a shared chain.
    fn count(&self, shared: Shared, roster: &mut Roster) {
        for shadowed in [false, true] {
            let count = self.after.rules(shared, shadowed).len();
            roster.set(shared, self.rank(shadowed), count);
        }
    }
}

/// Leads from one picture to the next. `roster` says where rules are, and is brought up to date;
/// `all` draws everything, for chains in which too much changed.
///
/// Refusals come before the addresses they speak of lose their endpoints, and go after they have
/// found some: there is no moment in which an address is neither answered nor refused.
pub fn delta(
    redrawn: &[Redrawn],
    roster: &mut Roster,
    (old, new): (&Statics, &Statics),
    all: impl FnOnce() -> Ruleset,
) -> Document {
    let all = LazyCell::new(all);
    let mut early = Stage::new(Table::Filter);
    let mut nat = Stage::new(Table::Nat);
    let mut late = Stage::new(Table::Filter);
    for change in redrawn {
        chains(&mut nat, change);
    }
    for shared in Shared::ALL {
        let changed = redrawn.iter().filter(|change| change.touches(shared));
        let changed: Vec<&Redrawn> = changed.collect();
        let (stage, after) = match shared.table() {
            Table::Nat => (&mut nat, None),
            Table::Filter | Table::Mangle => (&mut early, Some(&mut late)),
        };
        let crossing = changed.iter().any(|change| change.crosses(shared));
        if crossing || changed.len() > MOST_EDITS {
            stage.rewrite(shared.chain(), shared_rules(shared, &all));
            for change in changed {
                change.count(shared, roster);
            }
            continue;
        }
        let edits = Edits::collect(shared, &changed, roster);
        stage.rules.extend(edits.inserts);
        after.unwrap_or(stage).rules.extend(edits.deletes);
        if shared == Shared::Services && old.tail != new.tail {
            let chain = shared.chain();
            let gone = old
                .tail
                .iter()
                .map(|rule| Step::Delete(chain, rule.clone()));
            let come = new
                .tail
                .iter()
                .map(|rule| Step::Append(chain, rule.clone()));
            nat.rules.extend(gone.chain(come).map(|step| (None, step)));
        }
    }
    let mut document = Document::default();
    for stage in [early, nat, late] {
        document.push(stage);
    }
    document
}

/// Chains of one Service port that came, changed or went.
fn chains(stage: &mut Stage, change: &Redrawn) {
    for (chain, rules) in &change.after.chains {
        if change.before.chains.get(chain) != Some(rules) {
            stage.rewrite(*chain, rules.iter().map(|rule| (Some(&change.key), rule)));
        }
    }
    for chain in change.before.chains.keys() {
        if !change.after.chains.contains_key(chain) {
            stage.remove(&chain.to_string());
        }
    }
}

/// Single rules that come to and go from a shared chain.
#[derive(Default)]
struct Edits {
    inserts: Vec<(Option<PortKey>, Step)>,
    deletes: Vec<(Option<PortKey>, Step)>,
}

impl Edits {
    fn collect(shared: Shared, changed: &[&Redrawn], roster: &mut Roster) -> Self {
        let mut edits = Self::default();
        for shadowed in [false, true] {
            for change in changed {
                let before = change.before.rules(shared, shadowed);
                let after = change.after.rules(shared, shadowed);
                let rank = change.rank(shadowed);
                let start = roster.start(shared, &rank);
                let merged = edits.merge(shared.chain(), &change.key, start, before, after);
                // Deletions come last, so the rules behind these stand after all of them.
                roster.set(shared, rank, merged);
            }
        }
        for change in changed {
            change.count(shared, roster);
        }
        edits
    }

    /// Inserts what is new among what was, then deletes what is not wanted. Returns how many rules
    /// there are in between.
    fn merge(
        &mut self,
        chain: Chain,
        key: &PortKey,
        start: usize,
        before: &[Rule],
        after: &[Rule],
    ) -> usize {
        // The flag: it stays.
        let mut now: Vec<(&Rule, bool)> = before.iter().map(|rule| (rule, false)).collect();
        let mut at = 0;
        for rule in after {
            let found = now[at..].iter().position(|(other, _)| *other == rule);
            if let Some(found) = found {
                at += found;
                now[at].1 = true;
            } else {
                now.insert(at, (rule, true));
                let step = Step::Insert(chain, start + at + 1, rule.clone());
                self.inserts.push((Some(key.clone()), step));
            }
            at += 1;
        }
        // Of two equal rules the first is deleted: the one that stays was found or put behind it.
        let gone = now.iter().filter(|(_, stays)| !stays);
        self.deletes.extend(
            gone.map(|(rule, _)| (Some(key.clone()), Step::Delete(chain, (*rule).clone()))),
        );
        now.len()
    }
}
