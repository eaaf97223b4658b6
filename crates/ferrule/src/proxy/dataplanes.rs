//! Which dataplane a mode means, and which this build has.

use std::io;

use anyhow::{Context as _, anyhow, bail};
use ferrule_core::model::Family;
use ferrule_dataplane::nftables::{self, Nftables};
use ferrule_dataplane::{Dataplane, DryRun};

use super::reporter::whole;
use crate::config::Mode;
use crate::config::options::Options;

/// One dataplane per family. Nothing is written yet.
pub fn open(
    options: &Options,
    families: &[Family],
) -> anyhow::Result<Vec<(Family, Box<dyn Dataplane>)>> {
    families
        .iter()
        .map(|family| Ok((*family, open_one(options, *family)?)))
        .collect()
}

fn open_one(options: &Options, family: Family) -> anyhow::Result<Box<dyn Dataplane>> {
    if options.dry_run {
        return Ok(Box::new(DryRun));
    }
    let config = &options.config;
    match config.mode() {
        Mode::Nftables => {
            let opened = Nftables::open(family, config.nftables_options()).map_err(explain);
            Ok(Box::new(opened.context("unable to create proxier")?))
        }
        mode @ (Mode::Iptables | Mode::Ipvs) => bail!(
            "unable to create proxier: this build has no {} dataplane yet; use --proxy-mode \
             nftables, or --dry-run, which decides everything and writes nothing",
            mode.as_str()
        ),
    }
}

/// Removes what any mode left in the kernel. Each is tried, whatever happens to the others.
pub fn clean_up(options: &Options) -> anyhow::Result<()> {
    if options.dry_run {
        return Ok(());
    }
    let mut failed = false;
    for family in Family::ALL {
        let removed = Nftables::open(family, nftables::Options::default())
            .map_err(explain)
            .and_then(|mut rules| rules.remove().map_err(|error| anyhow!(whole(&error))));
        if let Err(error) = removed {
            let err = format!("{error:#}");
            tracing::error!(ipFamily = %family, err, "Cannot remove the rules of mode nftables");
            failed = true;
        }
    }
    if failed {
        bail!("encountered an error while tearing down rules");
    }
    Ok(())
}

/// What an administrator can do about it.
fn explain(error: io::Error) -> anyhow::Error {
    let advice = if error.kind() == io::ErrorKind::PermissionDenied {
        "changing network rules needs CAP_NET_ADMIN: run privileged"
    } else {
        "this kernel may lack nf_tables: load the module or choose another mode"
    };
    anyhow::Error::new(error).context(advice)
}
