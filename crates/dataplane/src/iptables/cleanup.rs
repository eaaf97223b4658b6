//! Removes everything that is ours: for `--cleanup`, and for a start in another mode.

use ferrule_kernel::xt::Table;

use super::apply::{Iptables, refused};
use super::document::{Document, Stage, Step};
use super::installed::Inventory;
use super::names::{self, Chain};
use super::statics;
use crate::{Applied, ApplyError};

/// Our chains by table. `KUBE-FIREWALL` is kubelet's as well, and stays.
const OURS: [(Table, &[Chain]); 3] = [
    (
        Table::Nat,
        &[
            names::SERVICES,
            names::NODE_PORTS,
            names::POSTROUTING,
            names::MARK_MASQ,
            names::CANARY,
        ],
    ),
    (
        Table::Filter,
        &[
            names::SERVICES,
            names::EXTERNAL_SERVICES,
            names::FORWARD,
            names::NODE_PORTS,
            names::PROXY_FIREWALL,
            names::CANARY,
        ],
    ),
    (Table::Mangle, &[names::CANARY]),
];

impl Iptables {
    /// Removes our rules and chains, whichever of the two programs made them. What belongs to
    /// kubelet and to others stays.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub fn remove(&mut self) -> Result<Applied, ApplyError> {
        self.doubt();
        let sent = self.tables.settle(leftovers);
        let sent = sent.map_err(|failure| refused(failure.error))?;
        Ok(Applied { steps: sent.steps })
    }
}

/// What removes everything of ours that is installed.
pub fn leftovers(installed: &dyn Inventory) -> Document {
    let mut document = Document::default();
    for (table, chains) in OURS {
        let mut stage = Stage::new(table);
        for (at, from, rule) in statics::jumps() {
            if at != table || rule.target == super::rule::Target::Jump(names::FIREWALL) {
                continue;
            }
            for _ in 0..installed.count((table, from), &rule) {
                let step = Step::Delete(Chain::Fixed(from), rule.clone());
                stage.rules.push((None, step));
            }
        }
        for chain in chains {
            let name = chain.to_string();
            if installed.has(table, &name) {
                stage.remove(&name);
            }
        }
        if table == Table::Nat {
            let chains = installed.chains(table).into_iter();
            let own = chains.filter(|name| names::is_own(name));
            own.for_each(|name| stage.remove(name));
        }
        document.push(stage);
    }
    document
}
