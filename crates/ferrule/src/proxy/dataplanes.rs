//! Which dataplane a mode means, and which this build has.

use anyhow::bail;
use ferrule_core::model::Family;
use ferrule_dataplane::{Dataplane, DryRun};

use crate::config::Mode;
use crate::config::options::Options;

/// One dataplane per family.
pub fn open(
    options: &Options,
    families: &[Family],
) -> anyhow::Result<Vec<(Family, Box<dyn Dataplane>)>> {
    if !options.dry_run {
        missing(options.config.mode())?;
    }
    let dry = |family: &Family| (*family, Box::new(DryRun) as Box<dyn Dataplane>);
    Ok(families.iter().map(dry).collect())
}

/// Removes what any mode left in the kernel.
pub fn clean_up(options: &Options) -> anyhow::Result<()> {
    if options.dry_run {
        return Ok(());
    }
    bail!("encountered an error while tearing down rules: this build has no dataplane yet");
}

fn missing(mode: Mode) -> anyhow::Result<()> {
    bail!(
        "unable to create proxier: this build has no {} dataplane yet; --dry-run decides \
         everything and writes nothing",
        mode.as_str()
    );
}
