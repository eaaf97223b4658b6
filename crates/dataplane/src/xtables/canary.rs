//! Notices that somebody flushed a table.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_kernel::nft::Nft;
use ferrule_kernel::xt::{Table, Xt, XtError};

use super::installed::{Installed, Inventory};
use super::layout::Layout;
use super::listing::Listing;
use crate::{Cadence, Watcher, said};

/// Watches over the tables of one family.
#[derive(Clone, Debug)]
pub struct Canary {
    family: Family,
    layout: &'static Layout,
    xt: Xt,
    /// The tables can be looked at without a program.
    directly: bool,
}

impl Canary {
    pub(crate) const fn new(
        family: Family,
        layout: &'static Layout,
        xt: Xt,
        directly: bool,
    ) -> Self {
        Self {
            family,
            layout,
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
        let canary = self.layout.canary.as_ref();
        let canary = canary.map(|chain| (Table::Mangle, chain.as_str()));
        let chains = canary
            .into_iter()
            .chain(self.layout.inspected.iter().copied());
        if self.directly {
            let chains: Vec<_> = chains.collect();
            // Opened anew each time: it costs little as long as nothing is written.
            let listing =
                Listing::read_chains(&mut Nft::open()?, self.family, self.layout, &chains);
            let listing = listing.map_err(said)?;
            return Ok(self.is_marked(&listing) && self.is_entered(&listing));
        }
        let mut texts = BTreeMap::new();
        for (table, chain) in chains {
            match self.xt.list(table, chain) {
                // `-S` says `-N` where saving would say `:`.
                Ok(text) => {
                    texts.insert(table, text.unwrap_or_default().replace("-N ", ":"));
                }
                Err(XtError::Missing { .. }) if self.layout.can_do_without(table) => {}
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        let mut installed = Installed::new(self.family);
        for (table, text) in &texts {
            installed.read(*table, text);
        }
        // Nobody can flush a table that the kernel does not have.
        let marked = !texts.contains_key(&Table::Mangle) || self.is_marked(&installed);
        Ok(marked && self.is_entered(&installed))
    }

    /// Whether the chain is there that kube-proxy looks for.
    fn is_marked(&self, there: &dyn Inventory) -> bool {
        let canary = self.layout.canary;
        canary.is_none_or(|chain| there.has(Table::Mangle, chain.as_str()))
    }

    /// Whether our chains are led to. A flush may leave chains alone, so their being there says
    /// nothing. A jump says that where it leads to is there, too.
    fn is_entered(&self, there: &dyn Inventory) -> bool {
        let jumps = self.layout.jumps.iter();
        jumps
            .filter(|jump| self.layout.inspected.contains(&(jump.table, jump.from)))
            .all(|jump| there.count((jump.table, jump.from), &jump.rule) > 0)
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
