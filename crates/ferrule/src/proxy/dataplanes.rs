//! Which dataplane a mode means, and which this build has.

use std::io;

use anyhow::{Context as _, anyhow, bail};
use ferrule_core::model::Family;
use ferrule_dataplane::conntrack::Flows;
use ferrule_dataplane::iptables::{self, Iptables};
use ferrule_dataplane::listen::Rules;
use ferrule_dataplane::nftables::{self, Nftables};
use ferrule_dataplane::{Applied, ApplyError, Dataplane, DryRun, ipvs};

use super::guard::Guard;
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
    let failures = remove(&[Mode::Iptables, Mode::Nftables, Mode::Ipvs]);
    for Failure { mode, family, err } in &failures {
        let (mode, family) = (mode.as_str(), family.as_str());
        tracing::error!(
            ipFamily = family,
            mode,
            err,
            "Cannot remove the rules of a mode"
        );
    }
    if !failures.is_empty() {
        bail!("encountered an error while tearing down rules");
    }
    Ok(())
}

/// Removes what the other modes left behind. Only once ours is programmed: two answers are better
/// than none.
pub fn sweep(mode: Mode) {
    // Those of iptables before what only ipvs has: they name its sets.
    let others: &[Mode] = match mode {
        Mode::Nftables => &[Mode::Iptables, Mode::Ipvs],
        Mode::Iptables | Mode::Ipvs => &[Mode::Nftables],
    };
    for Failure { mode, family, err } in remove(others) {
        let (mode, family) = (mode.as_str(), family.as_str());
        info_v!(
            2,
            ipFamily = family,
            mode,
            err,
            "Cannot look for the rules of another mode"
        );
    }
}

/// What of a mode could not be removed.
struct Failure {
    mode: Mode,
    /// Empty if it is of no family.
    family: String,
    err: String,
}

/// Removes what these modes left in the kernel, one after the other.
fn remove(modes: &[Mode]) -> Vec<Failure> {
    let mut failures = Vec::new();
    for mode in modes {
        let families = match mode {
            Mode::Iptables | Mode::Nftables => Family::ALL.map(Some).to_vec(),
            Mode::Ipvs => vec![None],
        };
        for family in families {
            let removed = match (mode, family) {
                (Mode::Nftables, Some(family)) => remove_nftables(family),
                (Mode::Iptables, Some(family)) => remove_iptables(family),
                _ => ipvs::remove().map_err(failed),
            };
            let family = family.map_or_else(String::new, |family| family.to_string());
            match removed {
                Ok(applied) if applied.steps > 0 => {
                    let mode = mode.as_str();
                    info_v!(2, ipFamily = family, mode, "Removed the rules of a mode");
                }
                Ok(_) => {}
                Err(error) => failures.push(Failure {
                    mode: *mode,
                    family,
                    err: format!("{error:#}"),
                }),
            }
        }
    }
    failures
}

fn remove_nftables(family: Family) -> anyhow::Result<Applied> {
    use io::ErrorKind::{InvalidInput, Unsupported};
    match Nftables::open(family, nftables::Options::default()) {
        Ok(mut rules) => rules.remove().map_err(failed),
        // A kernel without nftables does not understand the question, and has no rules.
        Err(error) if matches!(error.kind(), InvalidInput | Unsupported) => Ok(Applied::default()),
        Err(error) => Err(explain(error)),
    }
}

fn remove_iptables(family: Family) -> anyhow::Result<Applied> {
    use io::ErrorKind::{NotFound, Unsupported};
    match Iptables::open(family, iptables::Options::default()) {
        Ok(mut rules) => rules.remove().map_err(failed),
        // Nobody can have made rules without the program, or in a kernel without tables.
        Err(error) if matches!(error.kind(), NotFound | Unsupported) => Ok(Applied::default()),
        Err(error) => Err(explain(error)),
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "it is what is mapped over errors"
)]
fn failed(error: ApplyError) -> anyhow::Error {
    anyhow!(whole(&error))
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
