//! Notices that a table was flushed, where the kernel sends no notifications.

use std::io;
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_kernel::nft::Nft;
use ferrule_kernel::xt::{Table, Xt};

use super::installed::{Inventory, Saved};
use super::layout::Layout;
use super::listing::Listing;
use crate::{Cadence, ExternalChange, Watcher, said};

/// Inspects the tables of one family.
#[derive(Clone, Debug)]
pub struct Canary {
    family: Family,
    layout: &'static Layout,
    xt: Xt,
    /// The tables can be read without a program.
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

    /// Whether the canary chain and the jumps to our chains are still installed. When they are not,
    /// a table was flushed, and a full sync is due.
    ///
    /// # Errors
    /// The tables cannot be read, for example while another process holds the lock.
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
            return Ok(self.has_canary(&listing) && self.has_jumps(&listing));
        }
        let mut saved = Saved::default();
        for (table, chain) in chains {
            let printed = self.xt.list(table, chain);
            // `-S` prints `-N` where saving prints `:`.
            let printed = printed.map(|text| text.unwrap_or_default().replace("-N ", ":"));
            let added = saved.add(self.layout, table, printed);
            added.map_err(io::Error::other)?;
        }
        let installed = saved.installed(self.family);
        // A table that the kernel does not have cannot be flushed.
        let canary = !saved.has(Table::Mangle) || self.has_canary(&installed);
        Ok(canary && self.has_jumps(&installed))
    }

    /// Whether the canary chain is installed.
    fn has_canary(&self, there: &dyn Inventory) -> bool {
        let canary = self.layout.canary;
        canary.is_none_or(|chain| there.has(Table::Mangle, chain.as_str()))
    }

    /// Whether the jumps to our chains are installed. A flush may keep chains, so their existence
    /// proves nothing; a jump proves that its chain exists, too.
    fn has_jumps(&self, there: &dyn Inventory) -> bool {
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

    fn changed(&mut self, _: Duration) -> io::Result<Option<ExternalChange>> {
        let intact = self.is_intact()?;
        Ok((!intact).then(ExternalChange::default))
    }
}
