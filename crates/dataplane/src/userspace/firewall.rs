//! Lets what came by portals through the firewall of this machine, as far as that is possible.
//!
//! A redirected packet is delivered to this machine, so it passes `INPUT`, where many machines drop
//! what they do not know. An `accept` in one table of nftables does not keep a chain of another
//! table from dropping the same packet; only a rule in the chain that drops can. So packets that came
//! by a portal are marked before, and where there are tables of iptables one rule in their `INPUT`
//! accepts the mark. Firewalls of nftables must do so themselves: docs/userspace.md says how.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use ferrule_core::model::Family;
use ferrule_kernel::xt::Table;

use super::chains::{NAT, NON_LOCAL, non_local};
use crate::xtables::diff;
use crate::xtables::layout::{Fixed, Layout};
use crate::xtables::removal::removal;
use crate::xtables::rule::{Part, Rule, Target};
use crate::xtables::ruleset::Ruleset;
use crate::xtables::tables::Tables;
use crate::{Watcher, xtables};

static LAYOUT: LazyLock<Layout> = LazyLock::new(|| Layout {
    fixed: &FIXED,
    generated: &[],
    jumps: vec![non_local()],
    canary: None,
    inspected: &[(Table::Filter, "INPUT")],
});

const FIXED: [(Table, &[Fixed]); 1] = [(Table::Filter, &[Fixed::new(NON_LOCAL)])];

/// The rule of one family, where there is iptables.
#[derive(Debug)]
pub struct Firewall {
    mark: u32,
    tables: Option<Tables>,
    /// The rule is there.
    there: bool,
}

impl Firewall {
    /// Opens iptables, if there is one, in the network namespace of the calling thread.
    pub fn open(family: Family, mark: u32) -> Self {
        let tables = xtables::open(family).ok();
        Self {
            mark,
            tables: tables.map(|xt| Tables::new(family, &LAYOUT, xt)),
            there: false,
        }
    }

    /// Adds the rule where the table has an `INPUT`, and removes chains of the mode that lead to
    /// proxy ports of an earlier process. Returns the number of steps. A failure costs nothing where
    /// nobody drops, so it is none of the mode.
    pub fn ensure(&mut self) -> usize {
        let wanted = Ruleset {
            statics: BTreeMap::from([(
                (Table::Filter, NON_LOCAL),
                vec![Rule::new([Part::Marked(self.mark)], Target::Accept)],
            )]),
            ..Ruleset::default()
        };
        let Some(tables) = &mut self.tables else {
            return 0;
        };
        let has_input = Cell::new(false);
        let sent = tables.reconcile(|installed| {
            has_input.set(installed.has(Table::Filter, "INPUT"));
            let mut document = removal(&[&NAT], installed);
            if has_input.get() {
                document.append(diff::full(&LAYOUT, installed, &wanted));
            }
            document
        });
        self.there = has_input.get() && sent.is_ok();
        sent.map_or(0, |sent| sent.steps)
    }

    /// Removes the rule.
    pub fn remove(&mut self) -> usize {
        let Some(tables) = &mut self.tables else {
            return 0;
        };
        self.there = false;
        let sent = tables.reconcile(|installed| removal(&[&LAYOUT], installed));
        sent.map_or(0, |sent| sent.steps)
    }

    /// Watchers for external changes to the rule.
    pub fn watch(&mut self) -> Vec<Box<dyn Watcher>> {
        let tables = self.tables.as_mut().filter(|_| self.there);
        tables.map_or_else(Vec::new, Tables::watch)
    }
}
