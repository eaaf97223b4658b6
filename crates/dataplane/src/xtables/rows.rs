//! The rules of one chain, while single ones come and go.
//!
//! In: steps. Out: the same by handle, as the kernel wants them. Where the kernel reports the handles
//! of new rules the chain need not be read again for the next change.

use ferrule_kernel::nft::{self, Batch, Held};

use super::base_chains;
use super::document::Step;
use super::listing::digest;

/// The rules of one chain.
#[derive(Clone, Debug)]
pub struct Rows(Vec<Row>);

#[derive(Clone, Debug)]
struct Row {
    handle: Handle,
    digest: u64,
    /// In base chains: jumps are recognised by more than their digest.
    rule: Option<Box<nft::Rule>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handle {
    Known(u64),
    /// It will be the one of this step.
    Of(usize),
}

impl Rows {
    /// What the kernel reported.
    pub fn new(chain: &str, rules: Vec<Held<nft::Rule>>) -> Self {
        let mixed = base_chains::is_base_chain(chain);
        let rows = rules.into_iter().map(|held| Row {
            handle: Handle::Known(held.handle),
            digest: digest(&held.object.expressions),
            rule: mixed.then(|| Box::new(held.object)),
        });
        Self(rows.collect())
    }

    /// Writes one step; `None` if the chain is not as it should be.
    pub fn change(&mut self, step: &Step, rule: &nft::Rule, batch: &mut Batch) -> Option<()> {
        match step {
            Step::Append(..) => self.insert(self.0.len(), rule, batch)?,
            Step::Insert(_, at, _) => self.insert(at.checked_sub(1)?, rule, batch)?,
            Step::Delete(..) => {
                let wanted = digest(&rule.expressions);
                let at = self.0.iter().position(|row| match &row.rule {
                    Some(found) => base_chains::is_same_jump(found, &rule.expressions),
                    None => row.digest == wanted,
                })?;
                batch.delete_rule(&rule.chain, self.0.remove(at).handle.known()?);
            }
            Step::Declare(_) | Step::Empty(_) | Step::Remove(_) => {}
        }
        Some(())
    }

    fn insert(&mut self, at: usize, rule: &nft::Rule, batch: &mut Batch) -> Option<()> {
        let step = match self.0.get(at) {
            Some(next) => batch.insert_rule_before(next.handle.known()?, rule),
            None if at == self.0.len() => batch.add_rule(rule),
            None => return None,
        };
        batch.ask_for_handle();
        let row = Row {
            handle: Handle::Of(step),
            digest: digest(&rule.expressions),
            rule: None,
        };
        self.0.insert(at, row);
        Some(())
    }

    /// The same with handles of what is new; `None` if some were not reported.
    pub fn with_handles(mut self, handles: &[(usize, u64)]) -> Option<Self> {
        for row in &mut self.0 {
            if let Handle::Of(step) = row.handle {
                let reported = handles.iter().find(|(of, _)| *of == step)?;
                row.handle = Handle::Known(reported.1);
            }
        }
        Some(self)
    }
}

impl Handle {
    const fn known(self) -> Option<u64> {
        match self {
            Self::Known(handle) => Some(handle),
            Self::Of(_) => None,
        }
    }
}
