//! Notices that somebody flushed a table.

use std::io;

use ferrule_core::model::Family;
use ferrule_kernel::xt::{Table, Xt};

use super::installed::Installed;
use super::{names, statics};

/// Watches over the tables of one family.
#[derive(Clone, Debug)]
pub struct Canary {
    family: Family,
    xt: Xt,
}

impl Canary {
    pub(super) const fn new(family: Family, xt: Xt) -> Self {
        Self { family, xt }
    }

    /// Whether what marks our rules is still there: the chain that kube-proxy looks for, and the
    /// jumps to our chains. When it is not, somebody flushed a table, and everything is to be
    /// looked at.
    ///
    /// # Errors
    /// It cannot be told, for example while somebody else has the tables locked.
    pub fn is_intact(&self) -> io::Result<bool> {
        let list = |table, chain: &str| self.xt.list(table, chain).map_err(io::Error::other);
        if list(Table::Mangle, &names::CANARY.to_string())?.is_none() {
            return Ok(false);
        }
        // A flush may leave chains alone, so their being there says nothing. A jump says that where
        // it leads to is there, too.
        for (table, chain) in [(Table::Filter, "INPUT"), (Table::Nat, "PREROUTING")] {
            let text = list(table, chain)?.unwrap_or_default();
            let mut installed = Installed::default();
            installed.read(table, &text);
            let jumps = statics::jumps();
            let ours = jumps
                .iter()
                .filter(|(at, from, _)| (*at, *from) == (table, chain));
            let mut counts =
                ours.map(|(_, _, rule)| installed.count(table, chain, rule, self.family));
            if counts.any(|count| count == 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
