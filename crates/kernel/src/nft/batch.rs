//! Changes that happen together or not at all.
//!
//! In: steps, in the order in which the kernel is to see them. Out: the bytes of one transaction.
//! A step is one call; one step may become several messages when its elements do not fit into one.
//!
//! Nothing is sent here.

use std::borrow::Borrow;

use super::chain::{Chain, Rule};
use super::element::Element;
use super::set::Set;
use super::table::Table;
use super::uapi::{BATCH_GENID, SUBSYSTEM, chain, elem, msg, rule, set, table};
use super::value::Name;
use crate::Family;
use crate::wire::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REQUEST, Writer,
};

mod locate;
#[cfg(test)]
mod tests;

/// Elements go into one list up to this length; one more of any size still fits behind it.
const LIST_LIMIT: usize = 60 * 1024;

/// A protocol's own header behind that of a message.
pub(super) const NFGEN: usize = 4;

/// Changes to one table that happen together or not at all.
#[derive(Clone, Debug)]
pub struct Batch {
    family: Family,
    table: Name,
    expected: Option<u32>,
    writer: Writer,
    /// Where the last message begins; it is the one that is acknowledged.
    last: Option<usize>,
    messages: u32,
    sets: u32,
    steps: Vec<Start>,
    too_long: Option<usize>,
}

/// Where a step begins.
#[derive(Clone, Copy, Debug)]
struct Start {
    /// Number of its first message.
    message: u32,
    /// Offset of its first message.
    offset: usize,
}

impl Batch {
    /// Nothing yet, for this table.
    pub fn new(family: Family, table: impl Into<Name>) -> Self {
        Self {
            family,
            table: table.into(),
            expected: None,
            writer: Writer::new(),
            last: None,
            messages: 0,
            sets: 0,
            steps: Vec::new(),
            too_long: None,
        }
    }

    /// To be refused as a whole unless the rules of all tables are still of this generation.
    pub const fn expect_generation(&mut self, generation: u32) {
        self.expected = Some(generation);
    }

    /// What follows is for the table of the same name of this family.
    pub const fn go_on_in(&mut self, family: Family) {
        self.family = family;
    }

    /// Steps so far.
    pub const fn len(&self) -> usize {
        self.steps.len()
    }

    /// Bytes so far.
    pub const fn bytes(&self) -> usize {
        self.writer.len()
    }

    /// Whether there is nothing to do.
    pub const fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// Adds the table; one that exists stays as it is.
    pub fn add_table(&mut self, table: &Table) -> usize {
        self.step(msg::NEWTABLE, NLM_F_CREATE, |writer, _| table.write(writer))
    }

    /// Adds the table, which must not exist.
    pub fn create_table(&mut self, table: &Table) -> usize {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.step(msg::NEWTABLE, flags, |writer, _| table.write(writer))
    }

    /// Deletes the table and everything in it.
    pub fn delete_table(&mut self) -> usize {
        self.step(msg::DELTABLE, 0, |writer, name| {
            writer.text(table::NAME, name);
        })
    }

    /// Adds a chain; one that exists keeps its rules, and must not differ in where packets enter.
    pub fn add_chain(&mut self, chain: &Chain) -> usize {
        self.step(msg::NEWCHAIN, NLM_F_CREATE, |writer, table| {
            chain.write(writer, table);
        })
    }

    /// Adds a chain; one that exists keeps its rules and its policy.
    pub fn ensure_chain(&mut self, chain: &Chain) -> usize {
        self.step(msg::NEWCHAIN, NLM_F_CREATE, |writer, table| {
            chain.write_without_policy(writer, table);
        })
    }

    /// Removes all rules of a chain.
    pub fn flush_chain(&mut self, name: &str) -> usize {
        self.step(msg::DELRULE, 0, |writer, table| {
            writer.text(rule::TABLE, table);
            writer.text(rule::CHAIN, name);
        })
    }

    /// Deletes a chain, which nothing may lead to.
    pub fn delete_chain(&mut self, name: &str) -> usize {
        self.step(msg::DELCHAIN, 0, |writer, table| {
            writer.text(chain::TABLE, table);
            writer.text(chain::NAME, name);
        })
    }

    /// Adds a rule at the end of its chain.
    pub fn add_rule(&mut self, rule: &Rule) -> usize {
        self.step(
            msg::NEWRULE,
            NLM_F_CREATE | NLM_F_APPEND,
            |writer, table| {
                rule.write(writer, table);
            },
        )
    }

    /// Asks for the handle of the rule that the last step adds: see [`Commit::handles`].
    ///
    /// [`Commit::handles`]: super::Commit::handles
    pub fn ask_for_handle(&mut self) {
        if let Some(last) = self.last {
            self.writer.set_flags(last, NLM_F_ECHO, true);
        }
    }

    /// Adds a rule at the beginning of its chain.
    pub fn insert_rule(&mut self, rule: &Rule) -> usize {
        self.step(msg::NEWRULE, NLM_F_CREATE, |writer, table| {
            rule.write(writer, table);
        })
    }

    /// Adds a rule before another one of the same chain.
    pub fn insert_rule_before(&mut self, handle: u64, rule: &Rule) -> usize {
        self.step(msg::NEWRULE, NLM_F_CREATE, |writer, table| {
            rule.write(writer, table);
            writer.u64_be(rule::POSITION, handle);
        })
    }

    /// Deletes one rule of a chain.
    pub fn delete_rule(&mut self, chain: &str, handle: u64) -> usize {
        self.step(msg::DELRULE, 0, |writer, table| {
            writer.text(rule::TABLE, table);
            writer.text(rule::CHAIN, chain);
            writer.u64_be(rule::HANDLE, handle);
        })
    }

    /// Adds a set or map; one that exists keeps its elements, and must not differ in types and
    /// flags.
    pub fn add_set(&mut self, set: &Set) -> usize {
        self.sets += 1;
        let id = self.sets;
        self.step(msg::NEWSET, NLM_F_CREATE, |writer, table| {
            set.write(writer, table, id);
        })
    }

    /// Removes all elements of a set.
    pub fn flush_set(&mut self, name: &str) -> usize {
        self.step(msg::DELSETELEM, 0, |writer, table| {
            writer.text(elem::LIST_TABLE, table);
            writer.text(elem::LIST_SET, name);
        })
    }

    /// Deletes a set, which no rule may use.
    pub fn delete_set(&mut self, name: &str) -> usize {
        self.step(msg::DELSET, 0, |writer, table| {
            writer.text(set::TABLE, table);
            writer.text(set::NAME, name);
        })
    }

    /// Adds elements; one that exists must not lead elsewhere.
    pub fn add_elements<I>(&mut self, set: &str, elements: I) -> usize
    where
        I: IntoIterator<Item: Borrow<Element>>,
    {
        self.elements(msg::NEWSETELEM, NLM_F_CREATE, set, elements)
    }

    /// Deletes elements, which must exist; only their keys matter.
    pub fn delete_elements<I>(&mut self, set: &str, elements: I) -> usize
    where
        I: IntoIterator<Item: Borrow<Element>>,
    {
        self.elements(msg::DELSETELEM, 0, set, elements)
    }

    /// The step that was too long to be written, if one was.
    pub const fn too_long(&self) -> Option<usize> {
        self.too_long
    }

    pub(super) fn messages(&self) -> u32 {
        self.messages
    }

    pub(super) fn expected(&self) -> Option<u32> {
        self.expected
    }

    /// The three parts to be sent as one.
    pub(super) fn parts(&self) -> (Writer, &[u8], Writer) {
        let mut begin = Writer::new();
        let start = begin.begin(msg::BATCH_BEGIN, NLM_F_REQUEST, 0);
        begin.raw(&batch_header());
        if let Some(expected) = self.expected {
            begin.u32_be(BATCH_GENID, expected);
        }
        begin.end(start);
        let mut end = Writer::new();
        let start = end.begin(msg::BATCH_END, NLM_F_REQUEST, self.messages + 1);
        end.raw(&batch_header());
        end.end(start);
        (begin, self.writer.bytes(), end)
    }

    fn step(&mut self, kind: u16, flags: u16, content: impl FnOnce(&mut Writer, &str)) -> usize {
        let step = self.begin_step();
        let start = self.begin_message(kind, flags);
        content(&mut self.writer, &self.table);
        self.writer.end(start);
        self.end_step(step);
        step
    }

    fn elements<I>(&mut self, kind: u16, flags: u16, set: &str, elements: I) -> usize
    where
        I: IntoIterator<Item: Borrow<Element>>,
    {
        let step = self.begin_step();
        // Nothing is sent for no elements: a list without elements would mean all of them.
        let mut open = None;
        for element in elements {
            let (message, list) = *open.get_or_insert_with(|| self.begin_list(kind, flags, set));
            let at = self.writer.len();
            element.borrow().write(&mut self.writer);
            if self.writer.len() - list > LIST_LIMIT && at > list + 4 {
                // One too many: it opens the next list.
                let moved = self.writer.split_off(at);
                self.end_list(message, list);
                open = Some(self.begin_list(kind, flags, set));
                self.writer.raw(&moved);
            }
        }
        if let Some((message, list)) = open {
            self.end_list(message, list);
        }
        self.end_step(step);
        step
    }

    fn begin_list(&mut self, kind: u16, flags: u16, set: &str) -> (usize, usize) {
        let message = self.begin_message(kind, flags);
        self.writer.text(elem::LIST_TABLE, &self.table);
        self.writer.text(elem::LIST_SET, set);
        (message, self.writer.begin_nest(elem::LIST_ELEMENTS))
    }

    fn end_list(&mut self, message: usize, list: usize) {
        self.writer.end_nest(list);
        self.writer.end(message);
    }

    fn begin_step(&mut self) -> usize {
        self.steps.push(Start {
            message: self.messages + 1,
            offset: self.writer.len(),
        });
        self.steps.len() - 1
    }

    fn end_step(&mut self, step: usize) {
        if self.writer.overflowed() && self.too_long.is_none() {
            self.too_long = Some(step);
        }
    }

    fn begin_message(&mut self, kind: u16, flags: u16) -> usize {
        self.messages += 1;
        if let Some(last) = self.last {
            self.writer.set_flags(last, NLM_F_ACK, false);
        }
        let flags = flags | NLM_F_REQUEST | NLM_F_ACK;
        let start = self.writer.begin(kind, flags, self.messages);
        self.writer.raw(&[self.family.number(), 0, 0, 0]);
        self.last = Some(start);
        start
    }
}

/// No family, version 0, and in network order whose batch it is.
fn batch_header() -> [u8; NFGEN] {
    let [high, low] = SUBSYSTEM.to_be_bytes();
    [0, 0, high, low]
}
