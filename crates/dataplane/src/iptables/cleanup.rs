//! Removes everything that is ours: for `--cleanup`, and for a start in another mode.

use std::collections::BTreeMap;

use ferrule_core::model::Family;
use ferrule_kernel::xt::Table;

use super::apply::{Iptables, refused};
use super::document::{Document, Stage, Step};
use super::installed::Installed;
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
        let mut texts = BTreeMap::new();
        for table in Table::ALL {
            texts.insert(table, self.xt.save(table).map_err(refused)?);
        }
        let mut installed = Installed::default();
        for (table, text) in &texts {
            installed.read(*table, text);
        }
        let document = leftovers(&installed, self.family);
        let sent = self.send(&document);
        let sent = sent.map_err(|failure| refused(failure.error))?;
        Ok(Applied { steps: sent.steps })
    }
}

/// What removes everything of ours that is installed.
pub fn leftovers(installed: &Installed<'_>, family: Family) -> Document {
    let mut document = Document::default();
    for (table, chains) in OURS {
        let mut stage = Stage::new(table);
        for (at, from, rule) in statics::jumps() {
            if at != table || rule.target == super::rule::Target::Jump(names::FIREWALL) {
                continue;
            }
            for _ in 0..installed.count(table, from, &rule, family) {
                let step = Step::Delete(Chain::Fixed(from), rule.clone());
                stage.rules.push((None, step));
            }
        }
        for chain in chains {
            let name = chain.to_string();
            if installed.chain(table, &name).is_some() {
                stage.remove(&name);
            }
        }
        if table == Table::Nat {
            let own = installed.chains(table).filter(|name| names::is_own(name));
            own.for_each(|name| stage.remove(name));
        }
        document.push(stage);
    }
    document
}
