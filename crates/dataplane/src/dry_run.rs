//! A dataplane that writes nothing: `--dry-run`.

use crate::{Applied, ApplyError, Dataplane, Scope, Work};

/// Counts what would be looked at, and touches nothing.
#[derive(Debug, Default)]
pub struct DryRun;

impl Dataplane for DryRun {
    fn apply(&mut self, work: &Work<'_>) -> Result<Applied, ApplyError> {
        let steps = match work.scope {
            Scope::Whole => work.desired.totals(work.family).ports,
            Scope::Delta(delta) => delta.changes.len(),
        };
        Ok(Applied { steps })
    }
}
