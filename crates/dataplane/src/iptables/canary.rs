//! Notices that somebody flushed a table.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_kernel::nft::Nft;
use ferrule_kernel::xt::{Table, Xt, XtError};

use super::installed::{Installed, Inventory};
use super::listing::Listing;
use super::tables::is_dispensable;
use super::{names, statics};
use crate::{Cadence, Watcher, said};

/// Watches over the tables of one family.
#[derive(Clone, Debug)]
pub struct Canary {
    family: Family,
    xt: Xt,
    /// The tables can be looked at without a program.
    directly: bool,
}

/// Chains with jumps to ours.
const ENTRIES: [(Table, &str); 2] = [(Table::Filter, "INPUT"), (Table::Nat, "PREROUTING")];

impl Canary {
    pub(super) const fn new(family: Family, xt: Xt, directly: bool) -> Self {
        Self {
            family,
            xt,
            directly,
        }
    }

    /// Whether what marks our rules is still there: the chain that kube-proxy looks for, and the
    /// jumps to our chains. When it is not, somebody flushed a table, and everything is to be
    /// looked at.
    ///
    /// # Errors
    /// It cannot be told, for example while somebody else has the tables locked.
    fn is_intact(&self) -> io::Result<bool> {
        let canary = names::CANARY.to_string();
        if self.directly {
            let chains = [(Table::Mangle, &*canary), ENTRIES[0], ENTRIES[1]];
            // Opened anew each time: it costs little as long as nothing is written.
            let listing = Listing::glance(&mut Nft::open()?, self.family, &chains);
            let listing = listing.map_err(said)?;
            return Ok(is_marked(&listing) && is_entered(&listing));
        }
        let mut texts = BTreeMap::new();
        for (table, chain) in [(Table::Mangle, &*canary)].into_iter().chain(ENTRIES) {
            match self.xt.list(table, chain) {
                // `-S` says `-N` where saving would say `:`.
                Ok(text) => {
                    texts.insert(table, text.unwrap_or_default().replace("-N ", ":"));
                }
                Err(XtError::Missing { .. }) if is_dispensable(table) => {}
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        let mut installed = Installed::new(self.family);
        for (table, text) in &texts {
            installed.read(*table, text);
        }
        // Nobody can flush a table that the kernel does not have.
        let marked = !texts.contains_key(&Table::Mangle) || is_marked(&installed);
        Ok(marked && is_entered(&installed))
    }
}

impl Watcher for Canary {
    fn cadence(&self) -> Cadence {
        Cadence::Polled
    }

    fn changed(&mut self, _: Duration) -> io::Result<bool> {
        self.is_intact().map(|intact| !intact)
    }
}

/// Whether the chain is there that kube-proxy looks for.
fn is_marked(there: &dyn Inventory) -> bool {
    there.has(Table::Mangle, &names::CANARY.to_string())
}

/// Whether our chains are led to. A flush may leave chains alone, so their being there says
/// nothing. A jump says that where it leads to is there, too.
fn is_entered(there: &dyn Inventory) -> bool {
    statics::jumps()
        .iter()
        .filter(|(table, from, _)| ENTRIES.contains(&(*table, *from)))
        .all(|(table, from, rule)| there.count((*table, from), rule) > 0)
}
