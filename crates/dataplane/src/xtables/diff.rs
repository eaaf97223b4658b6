//! What to write so that the tables become as wanted.
//!
//! [`full`] compares everything with what is installed. [`delta`] compares two renderings of what
//! changed and costs what changed: chains of Service ports are rewritten, and in shared chains single
//! rules are inserted and deleted.

use std::cell::LazyCell;

use ferrule_core::model::PortKey;
use ferrule_kernel::xt::Table;

use super::chain::{Chain, TableChain};
use super::document::{Document, Stage, Step};
use super::installed::Inventory;
use super::layout::{Fixed, Jump, Layout, Position};
use super::rule::Rule;
use super::ruleset::{PortRules, Rank, RuleIndex, Ruleset, Statics};

/// More Service ports than this in one chain, and rewriting the chain is cheaper.
const MOST_EDITS: usize = 64;

/// Steps from what is installed to what is wanted.
pub fn full(layout: &Layout, installed: &dyn Inventory, wanted: &Ruleset) -> Document {
    let mut document = Document::default();
    for (table, chains) in layout.fixed {
        let mut stage = Stage::new(*table);
        for chain in *chains {
            fixed(&mut stage, *chain, installed, wanted);
        }
        let jumps = layout.jumps.iter().filter(|jump| jump.table == *table);
        for jump in jumps.filter(|jump| installed.count((*table, jump.from), &jump.rule) == 0) {
            stage.rules.push((None, add(jump)));
        }
        generated(&mut stage, layout, installed, wanted);
        document.push(stage);
    }
    document
}

/// Adds a jump that is missing.
fn add(jump: &Jump) -> Step {
    let (from, rule) = (Chain::new(jump.from), jump.rule.clone());
    match jump.position {
        Position::First => Step::Insert(from, 1, rule),
        Position::Last => Step::Append(from, rule),
    }
}

/// One chain that exists once.
fn fixed(stage: &mut Stage, fixed: Fixed, installed: &dyn Inventory, wanted: &Ruleset) {
    let at = (stage.table, fixed.chain);
    let name = (stage.table, fixed.chain.as_str());
    let is_ours = fixed.shared || wanted.statics.contains_key(&at);
    if !is_ours && installed.has(name.0, name.1) {
        // Its rules are not ours.
        return;
    }
    let rules = wanted.shared_rules(at);
    if !installed.holds(name, &mut rules.iter().map(|(_, rule)| *rule)) {
        stage.rewrite(fixed.chain, rules);
    }
}

/// Chains of Service ports.
fn generated(stage: &mut Stage, layout: &Layout, installed: &dyn Inventory, wanted: &Ruleset) {
    let table = stage.table;
    for (chain, (key, rules)) in layout.in_order(table, &wanted.chains) {
        if !installed.holds((table, chain.as_str()), &mut rules.iter()) {
            stage.rewrite(chain, rules.iter().map(|rule| (Some(key), rule)));
        }
    }
    for name in installed.chains(table) {
        let is_wanted =
            || Chain::try_new(name).is_some_and(|chain| wanted.chains.contains_key(&chain));
        if layout.is_generated(table, name) && !is_wanted() {
            stage.remove(name);
        }
    }
}

/// One Service port before and after a change.
#[derive(Debug)]
pub struct Change {
    /// Which one.
    pub key: PortKey,
    /// What it had.
    pub before: PortRules,
    /// What it has.
    pub after: PortRules,
}

impl Change {
    /// Whether its rules in a shared chain changed.
    fn touches(&self, at: TableChain) -> bool {
        [false, true]
            .into_iter()
            .any(|shadowed| self.before.rules(at, shadowed) != self.after.rules(at, shadowed))
    }

    /// Whether a rule is, or comes to be, in both parts of a shared chain. Of two equal rules the
    /// first is deleted, which then might be the wrong one.
    fn crosses(&self, at: TableChain) -> bool {
        let part = |shadowed| {
            let before = self.before.rules(at, shadowed);
            before.iter().chain(self.after.rules(at, shadowed))
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
    fn count(&self, at: TableChain, index: &mut RuleIndex) {
        for shadowed in [false, true] {
            let count = self.after.rules(at, shadowed).len();
            index.set(at, self.rank(shadowed), count);
        }
    }
}

/// Steps for these changes. `index` says where rules are, and is updated; `all` renders everything,
/// for chains in which too much changed.
///
/// Rules of the filter table come first and go last: an address is refused before it loses its
/// endpoints, and until it has found some, so that there is no moment in which it is neither
/// answered nor refused.
pub fn delta(
    layout: &Layout,
    changes: &[Change],
    index: &mut RuleIndex,
    (old, new): (&Statics, &Statics),
    all: impl FnOnce() -> Ruleset,
) -> Document {
    let all = LazyCell::new(all);
    let mut early = Stage::new(Table::Filter);
    let mut nat = Stage::new(Table::Nat);
    let mut late = Stage::new(Table::Filter);
    for change in changes {
        chains(&mut nat, layout, change);
    }
    for (table, fixed) in layout.fixed() {
        let stages = match table {
            Table::Nat => (&mut nat, None),
            Table::Filter => (&mut early, Some(&mut late)),
            // Only the canary is there.
            Table::Mangle => continue,
        };
        let at = (table, fixed.chain);
        let statics = (old.get(&at), new.get(&at));
        if fixed.shared {
            shared(stages, at, changes, index, statics, &all);
        } else if let (before, Some(after)) = statics
            && before != Some(after)
        {
            let rules = after.iter().map(|rule| (None, rule));
            stages.0.rewrite(fixed.chain, rules);
        }
    }
    let mut document = Document::default();
    for stage in [early, nat, late] {
        document.push(stage);
    }
    document
}

/// A chain that Service ports share. What goes is deleted in the second stage, if there is one.
fn shared(
    (stage, late): (&mut Stage, Option<&mut Stage>),
    at: TableChain,
    changes: &[Change],
    index: &mut RuleIndex,
    (old, new): (Option<&Vec<Rule>>, Option<&Vec<Rule>>),
    all: &LazyCell<Ruleset, impl FnOnce() -> Ruleset>,
) {
    let touching = changes.iter().filter(|change| change.touches(at));
    let touching: Vec<&Change> = touching.collect();
    let crossing = touching.iter().any(|change| change.crosses(at));
    if crossing || touching.len() > MOST_EDITS {
        stage.rewrite(at.1, all.shared_rules(at));
        for change in touching {
            change.count(at, index);
        }
        return;
    }
    let edits = Edits::collect(at, &touching, index);
    stage.rules.extend(edits.inserts);
    let stage = late.unwrap_or(stage);
    stage.rules.extend(edits.deletes);
    if old != new {
        stage.rules.extend(replace(at.1, old, new));
    }
}

/// Replaces the last rules of a shared chain.
fn replace<'r>(
    chain: Chain,
    old: impl IntoIterator<Item = &'r Vec<Rule>>,
    new: impl IntoIterator<Item = &'r Vec<Rule>>,
) -> impl Iterator<Item = (Option<PortKey>, Step)> {
    let gone = old.into_iter().flatten();
    let gone = gone.map(move |rule| Step::Delete(chain, rule.clone()));
    let come = new.into_iter().flatten();
    let come = come.map(move |rule| Step::Append(chain, rule.clone()));
    gone.chain(come).map(|step| (None, step))
}

/// Chains of one Service port that came, changed or went.
fn chains(stage: &mut Stage, layout: &Layout, change: &Change) {
    let (before, after) = (&change.before.chains, &change.after.chains);
    for (chain, rules) in layout.in_order(stage.table, after) {
        if before.get(&chain) != Some(rules) {
            stage.rewrite(chain, rules.iter().map(|rule| (Some(&change.key), rule)));
        }
    }
    for (chain, _) in layout.in_order(stage.table, before) {
        if !after.contains_key(&chain) {
            stage.remove(chain.as_str());
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
    fn collect(at: TableChain, changed: &[&Change], index: &mut RuleIndex) -> Self {
        let mut edits = Self::default();
        for shadowed in [false, true] {
            for change in changed {
                let before = change.before.rules(at, shadowed);
                let after = change.after.rules(at, shadowed);
                let rank = change.rank(shadowed);
                let start = index.start(at, &rank);
                let merged = edits.merge(at.1, &change.key, start, before, after);
                // Deletions come last, so the rules behind these stand after all of them.
                index.set(at, rank, merged);
            }
        }
        for change in changed {
            change.count(at, index);
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

#[cfg(test)]
mod tests;
