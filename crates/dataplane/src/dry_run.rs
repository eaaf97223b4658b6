//! A dataplane that writes nothing: `--dry-run`.

use ferrule_core::model::Family;

use crate::{Applied, ApplyError, Dataplane, Scope, Watcher, Work};

/// Counts what would be compared, and touches nothing.
#[derive(Debug)]
pub struct DryRun(pub Family);

impl Dataplane for DryRun {
    fn apply(&mut self, work: &Work<'_>) -> Result<Applied, ApplyError> {
        Ok(Applied::steps(match work.scope {
            Scope::Full => work.desired.totals(self.0).ports,
            Scope::Delta(delta) => delta.changes.len(),
        }))
    }

    fn remove(&mut self) -> Result<Applied, ApplyError> {
        Ok(Applied::default())
    }

    fn watch(&mut self) -> Vec<Box<dyn Watcher>> {
        Vec::new()
    }
}
