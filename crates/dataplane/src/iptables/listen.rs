//! Hears of changes that others make to our rules in the nft flavour.
//!
//! Other programs change these tables all the time, so only what concerns our chains and the jumps
//! to them counts. In the legacy flavour nothing can be heard: there the [`Canary`] is asked.
//!
//! [`Canary`]: super::Canary

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_kernel::nft::{Change, Event, Expr, Object, Rule, Verdict, Watch};
use ferrule_kernel::xt::Table;

use super::entries::is_entry;
use super::listing::is_ours;
use super::names;

/// Listens to everybody but ourselves.
#[derive(Debug)]
pub struct Listener {
    watch: Watch,
    own: Vec<u32>,
}

impl Listener {
    /// Listens in the network namespace of the calling thread, from now on. `own` are the
    /// [`Iptables::port`](super::Iptables::port)s whose changes are expected.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(own: Vec<u32>) -> io::Result<Self> {
        let watch = Watch::open()?;
        Ok(Self { watch, own })
    }

    /// The families whose rules are not as we left them; none if nothing happens for so long, and
    /// sometimes sooner.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn next(&mut self, patience: Duration) -> io::Result<Vec<Family>> {
        let mut doubtful = BTreeSet::new();
        for event in self.watch.foreign(&self.own, patience)? {
            match event {
                Event::Missed => doubtful.extend(Family::ALL),
                Event::Change(change) => doubtful.extend(concerned(&change)),
            }
        }
        Ok(doubtful.into_iter().collect())
    }
}

/// The family whose rules are not any more what we wrote.
fn concerned(change: &Change) -> Option<Family> {
    let family = match change.family? {
        ferrule_kernel::Family::V4 => Family::V4,
        ferrule_kernel::Family::V6 => Family::V6,
    };
    let name = change.object.table()?;
    let table = Table::ALL
        .into_iter()
        .find(|table| table.as_str() == &**name)?;
    let hit = match &change.object {
        Object::Table(_) => change.gone,
        Object::Chain(held) => {
            change.gone && (is_entry(&held.object.name) || is_ours(table, &held.object.name))
        }
        Object::Rule(held) => concerns(table, &held.object, change.gone),
        _ => false,
    };
    hit.then_some(family)
}

/// Whether a rule that came or went is ours, or stands among ours.
fn concerns(table: Table, rule: &Rule, gone: bool) -> bool {
    if is_entry(&rule.chain) {
        let leads_to_us = rule
            .expressions
            .iter()
            .any(|expr| matches!(expr, Expr::Verdict(Verdict::Jump(to)) if is_ours(table, to)));
        return gone && leads_to_us;
    }
    // What kubelet adds to its own chain is kubelet's affair.
    is_ours(table, &rule.chain) && (gone || !names::FIREWALL.is(&rule.chain))
}
