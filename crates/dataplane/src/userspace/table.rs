//! The table of portals in the kernel, and what is known to be in it.
//!
//! The table belongs to the socket that made it (`NFT_TABLE_F_OWNER`, since Linux 5.12). Nobody else
//! can change it, `nft flush ruleset` passes it by, and the kernel deletes it with the process. So
//! what was written is what is there: nothing is ever read back.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use ferrule_core::model::Family;
use ferrule_kernel::nft::{Batch, BatchError, Element, Nft, Table, Value};
use ferrule_kernel::socket::{Socket, Transport};

use super::names::{self, Container, TABLES};
use super::render::{Drawing, Statics};
use crate::{ApplyError, kernel_family, said};

/// The table of one family.
#[derive(Debug)]
pub struct PortalTable<T = Socket> {
    family: Family,
    nft: Nft<T>,
    /// It has the chains by which endpoints see their clients' addresses.
    transparent: bool,
    /// Tables that this socket made; the last one is in use.
    own: Vec<&'static str>,
    /// `None` when we do not know what is in it.
    written: Option<Written>,
}

/// What an update must know of the rest.
#[derive(Debug, Default)]
struct Written {
    statics: Statics,
    shares: Shares,
}

/// How many Service ports put an element into a set that they share.
type Shares = BTreeMap<(Container, Value), u32>;

/// What one Service port had in the table, and what it is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redrawn {
    /// Before.
    pub before: Drawing,
    /// After.
    pub after: Drawing,
}

impl PortalTable {
    /// Opens a conversation in the network namespace of the calling thread. Nothing is written.
    ///
    /// # Errors
    /// What the kernel said: it has no nftables, or we have no right to use them.
    pub fn open(family: Family) -> io::Result<Self> {
        let mut nft = Nft::open()?;
        nft.generation().map_err(said)?;
        Ok(Self::new(family, nft))
    }
}

impl<T: Transport> PortalTable<T> {
    /// Programs through this conversation.
    pub const fn new(family: Family, nft: Nft<T>) -> Self {
        Self {
            family,
            nft,
            transparent: false,
            own: Vec::new(),
            written: None,
        }
    }

    /// With the chains by which endpoints see their clients' addresses, or without.
    #[must_use]
    pub fn transparent(self, transparent: bool) -> Self {
        Self {
            transparent,
            ..self
        }
    }

    /// Whether only a complete update can follow: it is not known what is there.
    pub const fn needs_all(&self) -> bool {
        self.written.is_none()
    }

    /// Makes these changes. If [`Self::needs_all`] they are all that the table will have. Returns
    /// the number of steps.
    ///
    /// # Errors
    /// See [`ApplyError`]. The table is as it was; the next update must be complete.
    pub fn update(&mut self, statics: Statics, changes: &[Redrawn]) -> Result<usize, ApplyError> {
        let (Some(mut written), Some(name)) = (self.written.take(), self.own.last()) else {
            return self.create(statics, changes);
        };
        let mut batch = Batch::new(kernel_family(self.family), *name);
        change_statics(&written.statics, &statics, &mut batch);
        change_elements(changes, &mut written.shares, &mut batch);
        self.nft.commit(&batch).map_err(failed)?;
        written.statics = statics;
        self.written = Some(written);
        Ok(batch.len())
    }

    /// Writes a new table, then deletes the one before it: until then both lead to the same ports.
    fn create(&mut self, statics: Statics, changes: &[Redrawn]) -> Result<usize, ApplyError> {
        let family = kernel_family(self.family);
        let name = self.free_name()?;
        let mut batch = Batch::new(family, name);
        // One of this name may be left of somebody who wrote it without owning it.
        batch.add_table(&Table::new(name));
        batch.delete_table();
        batch.add_table(&names::table(name));
        for chain in names::chains(self.transparent) {
            batch.add_chain(&chain);
        }
        for container in Container::ALL {
            batch.add_set(&container.set(family));
        }
        let mut written = Written::default();
        change_statics(&written.statics, &statics, &mut batch);
        change_elements(changes, &mut written.shares, &mut batch);
        self.nft.commit(&batch).map_err(failed)?;
        let mut steps = batch.len();
        for old in std::mem::replace(&mut self.own, vec![name]) {
            if old != name {
                steps += self.delete(old)?;
            }
        }
        written.statics = statics;
        self.written = Some(written);
        Ok(steps)
    }

    /// A name that no other process's table has.
    fn free_name(&mut self) -> Result<&'static str, ApplyError> {
        let present = self.present()?;
        let is_free = |name: &&str| present.iter().all(|(other, _)| other != name);
        let is_ours = |name: &&str| self.own.contains(name) || !present.contains(&(*name, true));
        let mut names = TABLES.into_iter();
        let name = names.clone().find(is_free);
        name.or_else(|| names.find(is_ours))
            .ok_or_else(|| ApplyError::Refused {
                step: format!("table {}: two other processes have one", TABLES[0]),
                source: io::ErrorKind::AlreadyExists.into(),
            })
    }

    /// The tables there are by our names, and whether some process owns them.
    fn present(&mut self) -> Result<Vec<(&'static str, bool)>, ApplyError> {
        let tables = self.nft.tables(kernel_family(self.family));
        let tables = tables.map_err(|error| ApplyError::OutOfSync(said(error)))?;
        let present = TABLES.into_iter().filter_map(|name| {
            let held = tables.iter().find(|held| *held.object.name == *name)?;
            Some((name, held.object.flags & Table::OWNER != 0))
        });
        Ok(present.collect())
    }

    /// Leads nobody anywhere any more. Only base chains are emptied: as long as some rule asks for
    /// translation, and some chain is there for it, the kernel translates the packets of connections
    /// that have begun. What brings answers to connections with a client's address stays too. The
    /// rest goes with the socket.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub fn clear(&mut self) -> Result<usize, ApplyError> {
        let Some(name) = self.own.last() else {
            return Ok(0);
        };
        self.written = None;
        let mut batch = Batch::new(kernel_family(self.family), *name);
        let base = names::chains(false).into_iter();
        for chain in base.filter(|chain| chain.base.is_some()) {
            batch.flush_chain(&chain.name);
        }
        self.nft.commit(&batch).map_err(failed)?;
        Ok(batch.len())
    }

    /// Deletes our table, and any that nobody owns.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub fn remove(&mut self) -> Result<usize, ApplyError> {
        self.written = None;
        let own = std::mem::take(&mut self.own);
        let mut steps = 0;
        for (name, owned) in self.present()? {
            // That of a living process is no left-over.
            if own.contains(&name) || !owned {
                steps += self.delete(name)?;
            }
        }
        Ok(steps)
    }

    fn delete(&mut self, name: &'static str) -> Result<usize, ApplyError> {
        let mut batch = Batch::new(kernel_family(self.family), name);
        batch.delete_table();
        self.nft.commit(&batch).map_err(failed)?;
        Ok(batch.len())
    }
}

/// Replaces rules, chain by chain, and sets of networks.
fn change_statics(old: &Statics, new: &Statics, batch: &mut Batch) {
    for container in [Container::NodePortNets, Container::ServiceCidrs] {
        let of = |statics: &Statics| statics.nets.get(&container).cloned().unwrap_or_default();
        let (old, new) = (of(old), of(new));
        if old != new {
            if !old.is_empty() {
                batch.flush_set(container.name());
            }
            batch.add_elements(container.name(), &new);
        }
    }
    let chains: BTreeSet<&str> = old
        .rules
        .iter()
        .chain(&new.rules)
        .map(|rule| &*rule.chain)
        .collect();
    for chain in chains {
        let of = |statics: &Statics| {
            let rules = statics.rules.iter();
            let rules = rules.filter(|rule| *rule.chain == *chain);
            rules.cloned().collect::<Vec<_>>()
        };
        let (old, new) = (of(old), of(new));
        if old != new {
            if !old.is_empty() {
                batch.flush_chain(chain);
            }
            for rule in &new {
                batch.add_rule(rule);
            }
        }
    }
}

/// An element before and after.
type Replacement<'a> = (Option<&'a Element>, Option<&'a Element>);

/// Deletes and adds elements, and counts those that are shared.
fn change_elements(changes: &[Redrawn], shares: &mut Shares, batch: &mut Batch) {
    let mut elements: BTreeMap<(Container, Value), Replacement<'_>> = BTreeMap::new();
    let mut counts: BTreeMap<(Container, Value), (u32, u32)> = BTreeMap::new();
    for (container, element) in changes.iter().flat_map(|change| &change.before) {
        let at = (*container, element.key);
        elements.entry(at).or_default().0 = Some(element);
        if container.is_shared() {
            counts.entry(at).or_default().0 += 1;
        }
    }
    for (container, element) in changes.iter().flat_map(|change| &change.after) {
        let at = (*container, element.key);
        elements.entry(at).or_default().1 = Some(element);
        if container.is_shared() {
            counts.entry(at).or_default().1 += 1;
        }
    }
    for (at, (gone, come)) in counts {
        let before = shares.get(&at).copied().unwrap_or_default();
        let after = before.saturating_sub(gone) + come;
        if after > 0 {
            shares.insert(at, after);
        } else {
            shares.remove(&at);
        }
        if let Some(replacement) = elements.get_mut(&at) {
            let element = replacement.0.or(replacement.1);
            *replacement = (
                element.filter(|_| before > 0),
                element.filter(|_| after > 0),
            );
        }
    }
    let mut gone: BTreeMap<Container, Vec<&Element>> = BTreeMap::new();
    let mut come: BTreeMap<Container, Vec<&Element>> = BTreeMap::new();
    for ((container, _), (old, new)) in elements {
        if old != new {
            gone.entry(container).or_default().extend(old);
            come.entry(container).or_default().extend(new);
        }
    }
    for (container, elements) in gone.into_iter().filter(|(_, all)| !all.is_empty()) {
        batch.delete_elements(container.name(), elements);
    }
    for (container, elements) in come.into_iter().filter(|(_, all)| !all.is_empty()) {
        batch.add_elements(container.name(), elements);
    }
}

fn failed(error: BatchError) -> ApplyError {
    let step = error.to_string();
    match error {
        BatchError::Refused { source, .. }
        | BatchError::Denied(source)
        | BatchError::Unsent { source, .. } => ApplyError::Refused { step, source },
        BatchError::TooLong { .. } => ApplyError::Refused {
            step,
            source: io::ErrorKind::InvalidInput.into(),
        },
        BatchError::Conflict => ApplyError::OutOfSync(io::Error::other(step)),
        BatchError::Lost(source) => ApplyError::OutOfSync(source),
    }
}
