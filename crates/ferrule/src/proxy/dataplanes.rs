//! Which dataplane a mode means, and which this build has.

use std::io;

use anyhow::{Context as _, anyhow, bail};
use ferrule_core::model::Family;
use ferrule_dataplane::conntrack::Flows;
use ferrule_dataplane::iptables::{self, Iptables};
use ferrule_dataplane::nftables::{self, Nftables};
use ferrule_dataplane::{Applied, ApplyError, Dataplane, DryRun};

use super::guard::{Guard, Rules};
use super::reporter::whole;
use crate::config::options::Options;
use crate::config::{Config, Mode};
use crate::logging::info_v;
use crate::sync::Backend;

/// What programs the kernel.
pub struct Dataplanes {
    /// One per family.
    pub backends: Vec<Backend>,
    /// How changes that others make are noticed.
    pub guard: Guard,
}

impl Dataplanes {
    /// Opens what the mode needs. Nothing is written yet.
    ///
    /// A family that this machine cannot program is left out, if there is another one.
    pub fn open(options: &Options, families: &[Family]) -> anyhow::Result<Self> {
        let period = options.config.sync_period.to_std();
        let mut opened = Self {
            backends: Vec::new(),
            guard: Guard::new(period),
        };
        let mut failure = None;
        for family in families {
            let Err(error) = opened.open_one(options, *family) else {
                continue;
            };
            if let Some(error) = failure.replace((family, error)) {
                tell_missing(&error);
            }
        }
        match failure {
            Some((_, error)) if opened.backends.is_empty() => {
                Err(error.context("unable to create proxier"))
            }
            Some(error) => {
                tell_missing(&error);
                Ok(opened)
            }
            None => Ok(opened),
        }
    }

    /// The families that are programmed.
    pub fn families(&self) -> Vec<Family> {
        let backends = self.backends.iter();
        backends.map(|backend| backend.family).collect()
    }

    fn open_one(&mut self, options: &Options, family: Family) -> anyhow::Result<()> {
        let (dataplane, flows): (Box<dyn Dataplane>, _) = if options.dry_run {
            (Box::new(DryRun), None)
        } else {
            let dataplane = self.rules(&options.config, family)?;
            (dataplane, Some(Flows::open(family).map_err(explain)?))
        };
        self.backends.push(Backend {
            family,
            dataplane,
            flows,
        });
        Ok(())
    }

    fn rules(&mut self, config: &Config, family: Family) -> anyhow::Result<Box<dyn Dataplane>> {
        match config.mode() {
            Mode::Nftables => {
                let rules = Nftables::open(family, config.nftables_options()).map_err(explain)?;
                self.guard.listen_except(Rules::Nftables, rules.port());
                Ok(Box::new(rules))
            }
            Mode::Iptables => {
                let rules = Iptables::open(family, config.iptables_options())
                    .with_context(|| format!("no iptables support for {family}"))?;
                self.guard.watch_canary(family, rules.canary());
                if let Some(port) = rules.port() {
                    self.guard.listen_except(Rules::Iptables, port);
                }
                Ok(Box::new(rules))
            }
            Mode::Ipvs => bail!(
                "this build has no ipvs dataplane yet; use --proxy-mode nftables or iptables, or \
                 --dry-run, which decides everything and writes nothing"
            ),
        }
    }
}

fn tell_missing((family, error): &(&Family, anyhow::Error)) {
    let err = format!("{error:#}");
    tracing::warn!(ipFamily = %family, err, "This family is not programmed");
}

/// Removes what any mode left in the kernel. Each is tried, whatever happens to the others.
pub fn clean_up(options: &Options) -> anyhow::Result<()> {
    if options.dry_run {
        return Ok(());
    }
    let mut failed = false;
    for mode in [Mode::Iptables, Mode::Nftables] {
        for family in Family::ALL {
            if let Err(error) = remove(mode, family) {
                let (err, mode) = (format!("{error:#}"), mode.as_str());
                tracing::error!(ipFamily = %family, mode, err, "Cannot remove the rules of a mode");
                failed = true;
            }
        }
    }
    if failed {
        bail!("encountered an error while tearing down rules");
    }
    Ok(())
}

/// Removes what the other modes left behind. Only once ours is programmed: two answers are better
/// than none.
pub fn sweep(mode: Mode) {
    let others = match mode {
        Mode::Nftables => [Mode::Iptables],
        Mode::Iptables | Mode::Ipvs => [Mode::Nftables],
    };
    for mode in others {
        for family in Family::ALL {
            if let Err(error) = remove(mode, family) {
                let (err, mode) = (format!("{error:#}"), mode.as_str());
                info_v!(2, ipFamily = %family, mode, err, "Cannot look for the rules of another mode");
            }
        }
    }
}

/// Removes what one mode left in the kernel, if there is anything.
fn remove(mode: Mode, family: Family) -> anyhow::Result<()> {
    let failed = |error: ApplyError| anyhow!(whole(&error));
    let steps = |applied: Applied| {
        if applied.steps > 0 {
            let mode = mode.as_str();
            info_v!(2, ipFamily = %family, mode, "Removed the rules of a mode");
        }
    };
    match mode {
        Mode::Nftables => {
            let mut rules =
                Nftables::open(family, nftables::Options::default()).map_err(explain)?;
            rules.remove().map(steps).map_err(failed)
        }
        Mode::Iptables => match Iptables::open(family, iptables::Options::default()) {
            Ok(mut rules) => rules.remove().map(steps).map_err(failed),
            // Nobody can have made rules without it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(explain(error)),
        },
        Mode::Ipvs => Ok(()),
    }
}

/// What an administrator can do about it.
fn explain(error: io::Error) -> anyhow::Error {
    let advice = if error.kind() == io::ErrorKind::PermissionDenied {
        "changing network rules needs CAP_NET_ADMIN: run privileged"
    } else {
        "this kernel may lack what the mode needs: load the module or choose another mode"
    };
    anyhow::Error::new(error).context(advice)
}
