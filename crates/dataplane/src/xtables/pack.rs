//! Steps become transactions of `nf_tables`.
//!
//! In: a [`Stage`]. Out: one [`Pack`], or several where one would be too large. Then a chain is
//! always in one of them with all its rules, and written after the chains that it jumps to, so that
//! no packet meets half of it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use ferrule_core::model::{Family, PortKey};
use ferrule_kernel::nft::{self, Batch};
use ferrule_kernel::xt::Table;

use super::chain::Chain;
use super::document::{Stage, Step};
use super::error::LinkError;
use super::installed::Inventory;
use super::layout::Layout;
use super::listing::Listing;
use super::rows::Rows;
use super::rule::Rule;
use super::{base_chains, encode};
use crate::kernel_family;

#[cfg(test)]
mod tests;

/// Larger transactions are not begun: the kernel holds all of one in memory twice.
const ENOUGH: usize = 8 << 20;

/// Whose a step is, and whether it adds a rule that counts.
pub type Mark<'d> = (Option<&'d PortKey>, bool);

/// What is known of the tables, and a way to read the rest.
pub trait Known {
    /// Everything installed; `None` if it was not read.
    fn listing(&self) -> Option<&Listing>;

    /// The rules of a chain.
    fn rows(&mut self, table: Table, chain: Chain) -> Result<Rows, LinkError>;
}

/// One transaction.
#[derive(Debug)]
pub struct Pack<'d> {
    /// The transaction.
    pub batch: Batch,
    /// One for each of its steps.
    pub marks: Vec<Mark<'d>>,
    /// Chains in which single rules come and go, as they are afterwards.
    pub rows: BTreeMap<Chain, Rows>,
}

/// Turns a stage into transactions, and hands over one after the other.
pub fn packs<'d, K: Known>(
    layout: &'d Layout,
    stage: &'d Stage,
    family: Family,
    known: &mut K,
    hand_over: &mut dyn FnMut(&mut K, Pack<'d>) -> Result<(), LinkError>,
) -> Result<(), LinkError> {
    packs_of(ENOUGH, layout, stage, family, known, hand_over)
}

fn packs_of<'d, K: Known>(
    enough: usize,
    layout: &'d Layout,
    stage: &'d Stage,
    family: Family,
    known: &mut K,
    hand_over: &mut dyn FnMut(&mut K, Pack<'d>) -> Result<(), LinkError>,
) -> Result<(), LinkError> {
    let mut packer = Packer {
        enough,
        layout,
        stage,
        family,
        pack: Pack::new(family, stage.table),
        hand_over,
    };
    packer.make_room(known)?;
    packer.rewrite(known)?;
    packer.edit(known)?;
    packer.remove(known)?;
    packer.flush(known)
}

struct Packer<'d, 'h, K> {
    enough: usize,
    layout: &'d Layout,
    stage: &'d Stage,
    family: Family,
    pack: Pack<'d>,
    hand_over: &'h mut dyn FnMut(&mut K, Pack<'d>) -> Result<(), LinkError>,
}

impl<'d> Pack<'d> {
    fn new(family: Family, table: Table) -> Self {
        Self {
            batch: Batch::new(kernel_family(family), table.as_str()),
            marks: Vec::new(),
            rows: BTreeMap::new(),
        }
    }

    fn mark(&mut self, mark: Mark<'d>) {
        self.marks.push(mark);
    }

    fn unowned(&mut self, step: impl FnOnce(&mut Batch) -> usize) {
        step(&mut self.batch);
        self.mark((None, false));
    }
}

impl<'d, K: Known> Packer<'d, '_, K> {
    /// Hands over what was collected, if it is enough.
    fn pause(&mut self, known: &mut K) -> Result<(), LinkError> {
        if self.pack.batch.bytes() < self.enough {
            return Ok(());
        }
        self.flush(known)
    }

    fn flush(&mut self, known: &mut K) -> Result<(), LinkError> {
        let next = Pack::new(self.family, self.stage.table);
        let pack = std::mem::replace(&mut self.pack, next);
        if pack.marks.is_empty() {
            return Ok(());
        }
        (self.hand_over)(known, pack)
    }

    /// Chains that are rewritten.
    fn declared(&self) -> impl Iterator<Item = Chain> + use<'d, K> {
        let steps: &'d [Step] = &self.stage.declared;
        steps.iter().filter_map(|step| match step {
            Step::Declare(chain) => Some(*chain),
            _ => None,
        })
    }

    fn encode(&self, chain: &str, rule: &Rule) -> Result<nft::Rule, LinkError> {
        encode::rule(rule, chain, self.family).ok_or(LinkError::Encoding)
    }

    /// The table and all chains that are to be written. There are no jumps to new ones yet.
    fn make_room(&mut self, known: &mut K) -> Result<(), LinkError> {
        let table = self.stage.table;
        let listing = known.listing();
        if listing.is_some_and(|listing| !listing.has_table(table)) {
            let new = nft::Table::new(table.as_str());
            self.pack.unowned(|batch| batch.add_table(&new));
        }
        for chain in self.declared() {
            if !listing.is_some_and(|listing| listing.has(table, chain.as_str())) {
                let new = nft::Chain::new(chain.as_str());
                self.pack.unowned(|batch| batch.ensure_chain(&new));
            }
        }
        self.pause(known)
    }

    /// Chains that are rewritten, each before those that jump to it.
    fn rewrite(&mut self, known: &mut K) -> Result<(), LinkError> {
        let mut rules: BTreeMap<Chain, Vec<&'d (Option<PortKey>, Step)>> = BTreeMap::new();
        let mut order: Vec<Chain> = self.declared().collect();
        rules.extend(order.iter().map(|chain| (*chain, Vec::new())));
        for step in &self.stage.rules {
            if let Step::Append(chain, _) = &step.1
                && let Some(rules) = rules.get_mut(chain)
            {
                rules.push(step);
            }
        }
        order.sort_by_cached_key(|chain| self.layout.depth((self.stage.table, *chain)));
        for chain in order {
            let name = chain.as_str();
            let listing = known.listing();
            if listing.is_none_or(|listing| listing.has(self.stage.table, name)) {
                self.pack.unowned(|batch| batch.flush_chain(name));
            }
            for (owner, step) in rules.remove(&chain).unwrap_or_default() {
                self.append(name, owner.as_ref(), step)?;
            }
            self.pause(known)?;
        }
        Ok(())
    }

    fn append(
        &mut self,
        chain: &str,
        owner: Option<&'d PortKey>,
        step: &Step,
    ) -> Result<(), LinkError> {
        if let Step::Append(_, rule) = step {
            let rule = self.encode(chain, rule)?;
            self.pack.batch.add_rule(&rule);
            self.pack.mark((owner, step.counts()));
        }
        Ok(())
    }

    /// Single rules that come and go in chains that stay.
    fn edit(&mut self, known: &mut K) -> Result<(), LinkError> {
        let table = self.stage.table;
        let declared: BTreeSet<Chain> = self.declared().collect();
        for (owner, step) in &self.stage.rules {
            let (Step::Append(chain, rule)
            | Step::Insert(chain, _, rule)
            | Step::Delete(chain, rule)) = step
            else {
                continue;
            };
            if matches!(step, Step::Append(..)) && declared.contains(chain) {
                continue;
            }
            let name = chain.as_str();
            let rule = self.encode(name, rule)?;
            if base_chains::is_base_chain(name) && !matches!(step, Step::Delete(..)) {
                self.add_jump(known, step, name, &rule);
                continue;
            }
            let rows = match self.pack.rows.entry(*chain) {
                Entry::Occupied(rows) => rows.into_mut(),
                Entry::Vacant(place) => place.insert(known.rows(table, *chain)?),
            };
            rows.change(step, &rule, &mut self.pack.batch)
                .ok_or_else(|| LinkError::Changed(name.to_owned()))?;
            self.pack.mark((owner.as_ref(), step.counts()));
        }
        self.pause(known)
    }

    /// Adds a jump before or behind all other rules of a base chain.
    fn add_jump(&mut self, known: &K, step: &Step, name: &str, rule: &nft::Rule) {
        let listing = known.listing();
        let there = listing.is_some_and(|listing| listing.has(self.stage.table, name));
        if let (false, Some(chain)) = (there, base_chains::base_chain(self.stage.table, name)) {
            self.pack.unowned(|batch| batch.ensure_chain(&chain));
        }
        self.pack.unowned(|batch| match step {
            Step::Append(..) => batch.add_rule(rule),
            _ => batch.insert_rule(rule),
        });
    }

    /// Chains without jumps to them, but from each other.
    fn remove(&mut self, known: &mut K) -> Result<(), LinkError> {
        for step in &self.stage.declared {
            if let Step::Empty(name) = step {
                self.pack.unowned(|batch| batch.flush_chain(name));
                self.pause(known)?;
            }
        }
        for step in &self.stage.removed {
            if let Step::Remove(name) = step {
                self.pack.unowned(|batch| batch.delete_chain(name));
                self.pause(known)?;
            }
        }
        Ok(())
    }
}
