//! nftables: rules, sets and maps of the kernel, written in transactions and read back.
//!
//! In: a [`Batch`] of steps. Out: a [`Commit`], or a [`BatchError`] that names the step. What is
//! read back has the types that were written.
//!
//! How rules and sets are arranged is not decided here.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;

use crate::Family;
use crate::exchange::{Exchange, RequestError};
use crate::socket::{Protocol, Socket, Transport};
use crate::wire::{Malformed, Message, Writer};

mod batch;
mod by_key;
mod chain;
mod commit;
pub mod compat;
mod element;
pub mod expr;
mod object;
pub mod ranges;
mod set;
mod table;
#[cfg(test)]
mod tests;
pub mod text;
mod uapi;
mod value;
mod watch;
mod writers;

pub use batch::Batch;
pub use chain::{BaseChain, Chain, ChainKind, Hook, Policy, Rule};
pub use commit::{BatchError, Commit, Fault};
pub use compat::Extension;
pub use element::{Element, Elements};
pub use expr::{Expr, Reg};
pub use object::{Generation, Held, Object};
pub use set::{Field, MapData, Set, Timeout};
pub use table::Table;
pub use value::{Comment, Data, Name, Value, Verdict};
pub use watch::{Change, Event, Watch};
pub use writers::{Mark, Writers};

use uapi::{chain as chain_attr, elem, msg, rule, set as set_attr};

/// A conversation about nftables. Keep it: closing its socket is slow.
#[derive(Debug)]
pub struct Nft<T = Socket> {
    exchange: Exchange<T>,
    writers: Writers,
    /// Sets with as many elements are read by key, where these are known.
    large: usize,
}

/// One table with everything in it, all of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The generation.
    pub generation: u32,
    /// The table.
    pub table: Held<Table>,
    /// Its chains, in order of creation.
    pub chains: Vec<Held<Chain>>,
    /// Its rules; those of one chain in order.
    pub rules: Vec<Held<Rule>>,
    /// Its sets and maps, in order of creation.
    pub sets: Vec<Held<Set>>,
    /// Elements by the name of their set, in no order. Sets that packets fill are not among them.
    pub elements: BTreeMap<Name, Vec<Element>>,
}

/// How often a snapshot or a dump is begun again because it does not fit together.
const ATTEMPTS: usize = 5;

impl Nft {
    /// Opens a conversation in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn open() -> io::Result<Self> {
        Socket::open(Protocol::Netfilter).map(Self::new)
    }
}

impl<T: Transport> Nft<T> {
    /// A conversation over this transport, in a group of its own.
    pub fn new(transport: T) -> Self {
        let nft = Self {
            exchange: Exchange::new(transport),
            writers: Writers::default(),
            large: by_key::LARGE,
        };
        nft.writers.add(nft.port());
        nft
    }

    /// Makes it one of these writers: the program's other conversations take its changes for their
    /// own.
    pub fn join(&mut self, writers: &Writers) {
        writers.add(self.port());
        self.writers = writers.clone();
    }

    /// Sets with as many elements are read by key in [`Nft::marked_snapshot`], where these are known.
    pub const fn set_large(&mut self, elements: usize) {
        self.large = elements;
    }

    /// See [`Nft::set_large`].
    pub const fn large(&self) -> usize {
        self.large
    }

    /// The group that it is in.
    pub const fn writers(&self) -> &Writers {
        &self.writers
    }

    /// The port by which notifications name the changes made here.
    pub fn port(&self) -> u32 {
        self.exchange.transport().port()
    }

    /// The transport, to look at what it recorded.
    pub const fn transport_mut(&mut self) -> &mut T {
        self.exchange.transport_mut()
    }

    /// Makes the changes of a batch, all or none.
    ///
    /// # Errors
    /// See [`BatchError`].
    pub fn commit(&mut self, batch: &Batch) -> Result<Commit, BatchError> {
        let done = commit::commit(&mut self.exchange, batch)?;
        if !batch.is_empty() {
            self.writers.committed();
        }
        Ok(done)
    }

    /// The present state of all rules, to be compared with a later one.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn mark(&mut self) -> Result<Mark, RequestError> {
        let generation = self.generation()?.id;
        Ok(self.mark_of(generation))
    }

    fn mark_of(&self, generation: u32) -> Mark {
        let commits = self.writers.commits();
        Mark {
            generation,
            commits,
        }
    }

    /// Whether the program alone made what changed since then, in any table.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn is_since(&mut self, mark: Mark) -> Result<bool, RequestError> {
        self.mark().map(|now| mark.leads_to(now))
    }

    /// The present generation.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn generation(&mut self) -> Result<Generation, RequestError> {
        self.exchange.one(
            msg::GETGEN,
            |writer| header(writer, 0),
            |message| Generation::read(message.attributes(batch::NFGEN)?),
        )
    }

    /// All tables of a family.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn tables(&mut self, family: Family) -> Result<Vec<Held<Table>>, RequestError> {
        self.list(
            msg::GETTABLE,
            family,
            |_| {},
            |object| match object {
                Object::Table(held) => Some(held),
                _ => None,
            },
        )
    }

    /// The chains of a table, in order of creation.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn chains(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<Vec<Held<Chain>>, RequestError> {
        let mut chains = self.all_chains(family)?;
        chains.retain(|held| *held.table == *table);
        Ok(chains)
    }

    /// One chain; `None` if there is no such chain.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn chain(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<Option<Held<Chain>>, RequestError> {
        let answer = self.exchange.one(
            msg::GETCHAIN,
            |writer| {
                header(writer, family.number());
                writer.text(chain_attr::TABLE, table);
                writer.text(chain_attr::NAME, chain);
            },
            Object::read,
        );
        match answer {
            Ok(Object::Chain(held)) => Ok(Some(held)),
            Ok(_) => Err(RequestError::Malformed(Malformed("answer: no chain"))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The chains of all tables of a family, in order of creation.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn all_chains(&mut self, family: Family) -> Result<Vec<Held<Chain>>, RequestError> {
        // The kernel would tell of all of them even if it were asked for those of one table.
        self.list(
            msg::GETCHAIN,
            family,
            |_| {},
            |object| match object {
                Object::Chain(held) => Some(held),
                _ => None,
            },
        )
    }

    /// The rules of a table; those of one chain in order.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn rules(&mut self, family: Family, table: &str) -> Result<Vec<Held<Rule>>, RequestError> {
        let name = |writer: &mut Writer| writer.text(rule::TABLE, table);
        self.list(msg::GETRULE, family, name, |object| match object {
            Object::Rule(held) if *held.table == *table => Some(held),
            _ => None,
        })
    }

    /// The rules of one chain, in order.
    ///
    /// Of a table with many chains this is the way to read all: the kernel begins at the first
    /// rule for every piece of an answer.
    ///
    /// # Errors
    /// See [`RequestError`]; a chain that does not exist is one, or has no rules.
    pub fn rules_of(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<Vec<Held<Rule>>, RequestError> {
        let name = |writer: &mut Writer| {
            writer.text(rule::TABLE, table);
            writer.text(rule::CHAIN, chain);
        };
        self.list(msg::GETRULE, family, name, |object| match object {
            Object::Rule(held) if *held.table == *table => Some(held),
            _ => None,
        })
    }

    /// The sets and maps of a table, in order of creation.
    ///
    /// # Errors
    /// See [`RequestError`]; a table that does not exist is one.
    pub fn sets(&mut self, family: Family, table: &str) -> Result<Vec<Held<Set>>, RequestError> {
        let name = |writer: &mut Writer| writer.text(set_attr::TABLE, table);
        self.list(msg::GETSET, family, name, |object| match object {
            Object::Set(held) if *held.table == *table => Some(held),
            _ => None,
        })
    }

    /// The elements of a set, in no order.
    ///
    /// # Errors
    /// See [`RequestError`]; a set that does not exist is one. `Interrupted` if every dump has an
    /// element twice.
    pub fn elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
    ) -> Result<Vec<Element>, RequestError> {
        // A hash table that the kernel enlarges, on its own time after many elements came, is dumped
        // with some elements twice and as many others not at all; nothing else tells.
        for _ in 0..ATTEMPTS {
            let elements = self.elements_once(family, table, set)?;
            if !has_twins(&elements) {
                return Ok(elements);
            }
        }
        Err(RequestError::Interrupted)
    }

    fn elements_once(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
    ) -> Result<Vec<Element>, RequestError> {
        let name = |writer: &mut Writer| {
            writer.text(elem::LIST_TABLE, table);
            writer.text(elem::LIST_SET, set);
        };
        self.exchange.dump_settled(
            msg::GETSETELEM,
            |writer| {
                header(writer, family.number());
                name(writer);
            },
            |message, all| {
                if let Object::Elements(list) = Object::read(message)? {
                    all.extend(list.elements);
                }
                Ok(())
            },
        )
    }

    /// A table with everything in it, all of one generation; `None` if there is no such table.
    ///
    /// # Errors
    /// See [`RequestError`]; `Interrupted` if another process changes rules all the time.
    pub fn snapshot(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<Option<Snapshot>, RequestError> {
        let read = self.marked_snapshot(family, table, &|_| &[]);
        read.map(|(read, _)| read)
    }

    /// The same with the state of all rules that it is of, also if there is no such table.
    ///
    /// `expected` are the elements that a set probably has, in any order. It may be wrong: large sets
    /// are only read faster where it is not.
    ///
    /// # Errors
    /// See [`Nft::snapshot`].
    pub fn marked_snapshot<'e>(
        &mut self,
        family: Family,
        table: &str,
        expected: &dyn Fn(&str) -> &'e [Element],
    ) -> Result<(Option<Snapshot>, Mark), RequestError> {
        let mut former = None;
        for _ in 0..ATTEMPTS {
            let generation = self.generation()?.id;
            let read = self.read_all(generation, family, table, expected);
            let now = self.generation()?.id;
            if now == generation {
                return Ok((read?, self.mark_of(now)));
            }
            // Parts of different generations may contradict each other in any way. But generations
            // count the changes of all tables: if this one reads the same twice, it was another.
            let Ok(mut read) = read else {
                former = None;
                continue;
            };
            let date = |read: &mut Option<Snapshot>, generation| {
                if let Some(read) = read {
                    read.generation = generation;
                }
            };
            date(&mut read, 0);
            if former.as_ref() == Some(&read) {
                date(&mut read, now);
                return Ok((read, self.mark_of(now)));
            }
            former = Some(read);
        }
        Err(RequestError::Interrupted)
    }

    fn read_all<'e>(
        &mut self,
        generation: u32,
        family: Family,
        table: &str,
        expected: &dyn Fn(&str) -> &'e [Element],
    ) -> Result<Option<Snapshot>, RequestError> {
        let found = self
            .tables(family)?
            .into_iter()
            .find(|t| *t.table == *table);
        let Some(held) = found else { return Ok(None) };
        let sets = self.sets(family, table)?;
        let mut elements = BTreeMap::new();
        let large = self.large;
        let is_large = |set: &Held<Set>| expected(&set.object.name).len() >= large;
        let counts = if sets.iter().any(is_large) {
            self.counts(family, table)?
        } else {
            BTreeMap::new()
        };
        // What packets put there is nobody's to compare, changes without a new generation, and may
        // be more than everything else together.
        for set in sets.iter().filter(|set| !set.object.dynamic) {
            let name = &set.object.name;
            let known = match counts.get(name) {
                Some(&count) if is_large(set) => {
                    self.elements_by_key(family, (table, name), expected(name), count)?
                }
                _ => None,
            };
            let all = match known {
                Some(all) => all,
                None => self.elements(family, table, name)?,
            };
            elements.insert(name.clone(), all);
        }
        Ok(Some(Snapshot {
            generation,
            table: held,
            chains: self.chains(family, table)?,
            rules: self.rules(family, table)?,
            sets,
            elements,
        }))
    }

    fn list<A: PartialEq + Clone>(
        &mut self,
        kind: u16,
        family: Family,
        content: impl Fn(&mut Writer),
        pick: impl Fn(Object) -> Option<A>,
    ) -> Result<Vec<A>, RequestError> {
        self.exchange.dump_settled(
            kind,
            |writer| {
                header(writer, family.number());
                content(writer);
            },
            |message: &Message<'_>, all: &mut Vec<A>| -> Result<(), Malformed> {
                all.extend(pick(Object::read(message)?));
                Ok(())
            },
        )
    }
}

/// Whether an element is there twice. Numbers instead of keys, because there may be very many.
fn has_twins(elements: &[Element]) -> bool {
    let hasher = RandomState::new();
    let mut numbers: Vec<u64> = elements
        .iter()
        .map(|element| hasher.hash_one((&element.key, &element.last, element.ends_range)))
        .collect();
    numbers.sort_unstable();
    numbers.windows(2).any(|pair| pair[0] == pair[1])
}

fn header(writer: &mut Writer, family: u8) {
    writer.raw(&[family, 0, 0, 0]);
}
