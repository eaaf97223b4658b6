//! Hears of changes that others make to our rules.
//!
//! Listening has a price: the kernel then describes every element of every transaction. Begin
//! after the first programming, which is the one large one.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_kernel::nft::{Event, Watch};

use crate::xtables::listen::is_about_us;
use crate::{iptables, nftables};

/// Which rules are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// Our own tables.
    Nftables,
    /// Our chains, in the nft flavour, in the tables that everybody uses. In the legacy flavour
    /// nothing can be heard: there the [`Canary`](iptables::Canary) is asked.
    Iptables,
}

/// Listens to everybody but ourselves.
#[derive(Debug)]
pub struct Listener {
    watch: Watch,
    rules: Rules,
    own: Vec<u32>,
}

impl Listener {
    /// Listens in the network namespace of the calling thread, from now on. `own` are the
    /// [ports](nftables::Nftables::port) whose changes are expected.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(rules: Rules, own: Vec<u32>) -> io::Result<Self> {
        let watch = Watch::open()?;
        Ok(Self { watch, rules, own })
    }

    /// The families whose rules are not as we left them; none if nothing happens for so long, and
    /// sometimes sooner.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn next(&mut self, patience: Duration) -> io::Result<Vec<Family>> {
        match self.rules {
            // All of the table is ours, so what exactly others did there need not be read.
            Rules::Nftables => {
                let changed = self.watch.others(nftables::TABLE, &self.own, patience)?;
                Ok(changed.into_iter().map(family_of).collect())
            }
            Rules::Iptables => {
                let mut doubtful = BTreeSet::new();
                for event in self.watch.foreign(&self.own, patience)? {
                    match event {
                        Event::Missed => doubtful.extend(Family::ALL),
                        Event::Change(change) if is_about_us(&iptables::LAYOUT, &change) => {
                            doubtful.extend(change.family.map(family_of));
                        }
                        Event::Change(_) => {}
                    }
                }
                Ok(doubtful.into_iter().collect())
            }
        }
    }
}

const fn family_of(family: ferrule_kernel::Family) -> Family {
    match family {
        ferrule_kernel::Family::V4 => Family::V4,
        ferrule_kernel::Family::V6 => Family::V6,
    }
}
