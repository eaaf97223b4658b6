//! Opens the dataplanes of the chosen mode, and removes the rules of every mode.

use std::sync::Arc;

use anyhow::bail;
use ferrule_core::model::Family;
use ferrule_dataplane::conntrack::Flows;
use ferrule_dataplane::host::Host;
use ferrule_dataplane::userspace::Process;
use ferrule_dataplane::{Dataplane, DryRun};

use crate::config::options::Options;
use crate::modes::{self, Opened, Part, explain};
use crate::sync::Backend;

/// What a mode has on this machine.
pub struct Dataplanes {
    /// One per family.
    pub backends: Vec<Backend>,
    /// What carries connections, where that is this process.
    pub relay: Option<Arc<Process>>,
}

/// Opens what the mode needs, one backend per family. Nothing is written yet.
///
/// A family that this machine lacks or cannot program is left out, if there is another one. That is
/// decided here, once: it is logged and not tried again.
pub fn open(options: &Options, host: &Host) -> anyhow::Result<Dataplanes> {
    let Opened {
        family: mut open,
        relay,
    } = if options.dry_run {
        Opened::without_relay(|family| Ok(Box::new(DryRun(family))))
    } else {
        (options.config.mode().open)(&options.config)
            .map_err(|error| error.context("unable to create proxier"))?
    };
    let mut backends = Vec::new();
    let mut failures = Vec::new();
    for family in Family::ALL {
        if let Err(why) = host.check(family) {
            let err = why.to_string();
            tracing::info!(ipFamily = %family, err, "Not programming this IP family");
            continue;
        }
        let dataplane = open(family);
        let own_flows = options.dry_run || options.config.mode().relays();
        match dataplane.and_then(|dataplane| backend(family, dataplane, own_flows)) {
            Ok(backend) => backends.push(backend),
            Err(error) => failures.push((family, error)),
        }
    }
    if backends.is_empty()
        && let Some((_, error)) = failures.pop()
    {
        warn(&failures);
        return Err(error.context("unable to create proxier"));
    }
    warn(&failures);
    Ok(Dataplanes { backends, relay })
}

fn backend(
    family: Family,
    dataplane: Box<dyn Dataplane>,
    own_flows: bool,
) -> anyhow::Result<Backend> {
    let flows = if own_flows {
        None
    } else {
        Some(Flows::open(family).map_err(explain)?)
    };
    Ok(Backend {
        family,
        dataplane,
        flows,
    })
}

fn warn(failures: &[(Family, anyhow::Error)]) {
    for (family, error) in failures {
        let err = format!("{error:#}");
        tracing::warn!(ipFamily = %family, err, "Not programming this IP family");
    }
}

/// Removes what any mode left in the kernel. Each is tried, whatever happens to the others.
pub fn clean_up(options: &Options) -> anyhow::Result<()> {
    if options.dry_run {
        return Ok(());
    }
    let mut failed = false;
    // All rules before what belongs to no family: they may refer to it.
    for part in Part::ALL {
        for mode in modes::ALL {
            let (name, family) = (mode.name, part.to_string());
            match (mode.remove)(part) {
                Ok(applied) if applied.steps > 0 => {
                    tracing::info!(
                        ipFamily = family,
                        mode = name,
                        "Removed the rules of a mode"
                    );
                }
                Ok(_) => {}
                Err(error) => {
                    let err = format!("{error:#}");
                    tracing::error!(
                        ipFamily = family,
                        mode = name,
                        err,
                        "Failed to remove the rules of a mode"
                    );
                    failed = true;
                }
            }
        }
    }
    if failed {
        bail!("encountered an error while tearing down rules");
    }
    Ok(())
}
