//! What is in the tables, read from `nf_tables`.
//!
//! Chains that are ours are remembered by a digest of each rule, as thousands of them are read
//! only to be compared. Rules of base chains are kept, as our jumps are among them.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use ferrule_core::model::Family;
use ferrule_kernel::exchange::RequestError;
use ferrule_kernel::nft::{self, Expr, Name, Nft};
use ferrule_kernel::socket::Transport;
use ferrule_kernel::xt::Table;

use super::base_chains::{is_base_chain, is_same_jump};
use super::encode;
use super::installed::Inventory;
use super::layout::Layout;
use super::rule::Rule;
use crate::kernel_family;

/// What is in the tables.
#[derive(Debug)]
pub struct Listing {
    family: Family,
    layout: &'static Layout,
    tables: BTreeSet<Table>,
    chains: BTreeMap<Table, BTreeMap<Name, Content>>,
}

/// What is in a chain, as far as it matters.
#[derive(Debug)]
enum Content {
    /// A digest of each rule.
    Ours(Vec<u64>),
    /// A base chain, with all rules.
    Base(Vec<nft::Rule>),
    /// An external chain, or one that is to be removed whatever is in it.
    Unread,
}

impl Listing {
    /// Reads everything that is ours.
    pub fn read<T: Transport>(
        nft: &mut Nft<T>,
        family: Family,
        layout: &'static Layout,
    ) -> Result<Self, RequestError> {
        let kernel = kernel_family(family);
        let found = nft.tables(kernel)?;
        let mut listing = Self {
            family,
            layout,
            tables: found
                .iter()
                .filter_map(|held| Table::from_name(&held.table))
                .collect(),
            chains: BTreeMap::new(),
        };
        for held in nft.all_chains(kernel)? {
            if let Some(table) = Table::from_name(&held.table) {
                listing.add(nft, table, held.object.name)?;
            }
        }
        Ok(listing)
    }

    /// Reads which chains there are, and the rules of base chains: all that a removal asks about.
    /// The rules of ours, which are nearly all there are, stay unread.
    pub fn read_for_removal<T: Transport>(
        nft: &mut Nft<T>,
        family: Family,
        layout: &'static Layout,
    ) -> Result<Self, RequestError> {
        let kernel = kernel_family(family);
        let mut listing = Self {
            family,
            layout,
            tables: BTreeSet::new(),
            chains: BTreeMap::new(),
        };
        for held in nft.all_chains(kernel)? {
            let Some(table) = Table::from_name(&held.table) else {
                continue;
            };
            listing.tables.insert(table);
            if is_base_chain(&held.object.name) {
                listing.add(nft, table, held.object.name)?;
            } else {
                let chains = listing.chains.entry(table).or_default();
                chains.insert(held.object.name, Content::Unread);
            }
        }
        Ok(listing)
    }

    /// Reads these chains, and leaves out those that do not exist.
    pub fn read_chains<T: Transport>(
        nft: &mut Nft<T>,
        family: Family,
        layout: &'static Layout,
        chains: &[(Table, &str)],
    ) -> Result<Self, RequestError> {
        let mut listing = Self {
            family,
            layout,
            tables: BTreeSet::new(),
            chains: BTreeMap::new(),
        };
        for (table, chain) in chains {
            let found = nft.chain(kernel_family(family), table.as_str(), chain)?;
            if let Some(held) = found {
                listing.add(nft, *table, held.object.name)?;
            }
        }
        Ok(listing)
    }

    /// Reads one chain, as far as it matters.
    fn add<T: Transport>(
        &mut self,
        nft: &mut Nft<T>,
        table: Table,
        name: Name,
    ) -> Result<(), RequestError> {
        let family = kernel_family(self.family);
        let content = if self.layout.owns(table, &name) {
            Content::Ours(rules(nft, family, table, &name, |rule| {
                digest(&rule.expressions)
            })?)
        } else if is_base_chain(&name) {
            Content::Base(rules(nft, family, table, &name, |rule| rule)?)
        } else {
            Content::Unread
        };
        let chains = self.chains.entry(table).or_default();
        chains.insert(name, content);
        Ok(())
    }

    /// Whether this table exists.
    pub fn has_table(&self, table: Table) -> bool {
        self.tables.contains(&table)
    }

    fn content(&self, table: Table, name: &str) -> Option<&Content> {
        self.chains.get(&table)?.get(name)
    }
}

/// Reads a chain. One that went in the meantime has no rules.
fn rules<T: Transport, A>(
    nft: &mut Nft<T>,
    family: ferrule_kernel::Family,
    table: Table,
    chain: &str,
    keep: impl Fn(nft::Rule) -> A,
) -> Result<Vec<A>, RequestError> {
    match nft.rules_of(family, table.as_str(), chain) {
        Ok(found) => Ok(found.into_iter().map(|held| keep(held.object)).collect()),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

impl Inventory for Listing {
    fn has(&self, table: Table, name: &str) -> bool {
        self.content(table, name).is_some()
    }

    fn chains(&self, table: Table) -> Vec<&str> {
        let chains = self.chains.get(&table).into_iter();
        chains
            .flat_map(|chains| chains.keys().map(|name| &**name))
            .collect()
    }

    fn holds(&self, (table, name): (Table, &str), rules: &mut dyn Iterator<Item = &Rule>) -> bool {
        let Some(Content::Ours(digests)) = self.content(table, name) else {
            return false;
        };
        let mut digests = digests.iter();
        for rule in rules {
            let wanted = encode::expressions(rule, self.family);
            let same = wanted.zip(digests.next());
            if same.is_none_or(|(wanted, found)| digest(&wanted) != *found) {
                return false;
            }
        }
        digests.next().is_none()
    }

    fn count(&self, (table, name): (Table, &str), jump: &Rule) -> usize {
        let Some(Content::Base(rules)) = self.content(table, name) else {
            return 0;
        };
        let wanted = encode::expressions(jump, self.family);
        let alike = rules.iter().filter(|rule| {
            wanted
                .as_ref()
                .is_some_and(|wanted| is_same_jump(rule, wanted))
        });
        alike.count()
    }
}

/// Whether two rules do the same; what they have counted does not matter.
pub fn is_same(one: &[Expr], other: &[Expr]) -> bool {
    without_counters(one).eq(without_counters(other))
}

/// Everything but what was counted.
pub fn without_counters(expressions: &[Expr]) -> impl Iterator<Item = &Expr> {
    let all = expressions.iter();
    all.filter(|expr| !matches!(expr, Expr::Counter { .. }))
}

/// What a rule comes down to; what it has counted does not matter.
pub fn digest(expressions: &[Expr]) -> u64 {
    let mut hasher = DefaultHasher::new();
    without_counters(expressions).for_each(|expr| expr.hash(&mut hasher));
    hasher.finish()
}
