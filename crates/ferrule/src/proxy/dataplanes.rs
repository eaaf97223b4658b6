//! Which dataplane a mode means, and which this build has.

use std::io;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use ferrule_core::model::Family;
use ferrule_dataplane::conntrack::Flows;
use ferrule_dataplane::nftables::{self, Listener, Nftables};
use ferrule_dataplane::{Dataplane, DryRun};
use tokio::sync::mpsc;

use super::reporter::whole;
use crate::config::options::Options;
use crate::config::{Config, Mode};
use crate::logging::info_v;
use crate::sync::{Backend, Input};

/// How long to wait for a change; it only matters that it is long.
const PATIENCE: Duration = Duration::from_hours(1);

/// How long to wait before listening again when that failed.
const HEARING_LOST: Duration = Duration::from_secs(10);

/// What programs the kernel.
#[derive(Default)]
pub struct Dataplanes {
    /// One per family.
    pub backends: Vec<Backend>,
    /// By what changes of ours are told from those of others, where these can be heard of.
    pub own: Vec<u32>,
}

impl Dataplanes {
    /// Opens what the mode needs. Nothing is written yet.
    pub fn open(options: &Options, families: &[Family]) -> anyhow::Result<Self> {
        let mut opened = Self::default();
        for family in families {
            let opening = opened.open_one(options, *family);
            opening.context("unable to create proxier")?;
        }
        Ok(opened)
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
                self.own.push(rules.port());
                Ok(Box::new(rules))
            }
            mode @ (Mode::Iptables | Mode::Ipvs) => bail!(
                "this build has no {} dataplane yet; use --proxy-mode nftables, or --dry-run, \
                 which decides everything and writes nothing",
                mode.as_str()
            ),
        }
    }
}

/// Tells sync when somebody else changes our rules, until nobody listens any more.
///
/// # Errors
/// There can be no more threads.
pub fn listen(own: Vec<u32>, sync: mpsc::Sender<Input>) -> io::Result<()> {
    let thread = thread::Builder::new().name("listen".to_owned());
    thread.spawn(move || {
        loop {
            let error = match Listener::open(own.clone()) {
                Ok(listener) => match hear(listener, &sync) {
                    Ok(()) => return,
                    Err(error) => error,
                },
                Err(error) => error,
            };
            let err = whole(&error);
            tracing::error!(
                err,
                "Changes that others make to the rules may go unnoticed"
            );
            thread::sleep(HEARING_LOST);
        }
    })?;
    Ok(())
}

fn hear(mut listener: Listener, sync: &mpsc::Sender<Input>) -> io::Result<()> {
    loop {
        for family in listener.next(PATIENCE)? {
            info_v!(2, ipFamily = %family, "Somebody changed our rules; looking at all of them");
            if sync.blocking_send(Input::Doubt(family)).is_err() {
                return Ok(());
            }
        }
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
