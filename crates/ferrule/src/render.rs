//! `ferrule render`: what would be programmed into the kernel, as text.
//!
//! Each mode tells it in the words of its own tool. A mode joins by a [`Teller`].

use std::io::{self, Write as _};

use anyhow::bail;
use ferrule_core::desired::Desired;
use ferrule_core::model::Family;
use ferrule_dataplane::host::Host;
use ferrule_dataplane::{iptables, nftables};

use crate::cli::RenderArgs;
use crate::config::{Config, Mode};
use crate::inspect::{self, ClusterView};
use crate::watch::manifests;

/// Tells what a mode programs for one family.
type Teller = fn(&Desired, Family, &Config) -> anyhow::Result<String>;

/// Reads, decides, draws, prints.
pub fn run(arguments: &RenderArgs) -> anyhow::Result<()> {
    let cluster = &arguments.cluster;
    let (mut config, gates) = inspect::config(cluster, arguments.mode.map(Mode::from))?;
    if let Some(bit) = arguments.iptables_masquerade_bit {
        config.iptables_masquerade_bit = bit;
    }
    let tell = teller(config.mode())?;
    let mut view = ClusterView::new(cluster, config.settings(&gates));
    view.take_in(manifests::read(&cluster.manifests, &cluster.node)?);
    let mut out = io::BufWriter::new(io::stdout().lock());
    for (number, family) in inspect::families(cluster).into_iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let (mode, node) = (config.mode().as_str(), &cluster.node);
        writeln!(
            out,
            "# {family} in mode {mode} on node {node}, as ferrule programs it."
        )?;
        out.write_all(tell(&view.desired, family, &config)?.as_bytes())?;
    }
    Ok(out.flush()?)
}

fn teller(mode: Mode) -> anyhow::Result<Teller> {
    Ok(match mode {
        Mode::Nftables => nftables,
        Mode::Iptables => iptables,
        Mode::Ipvs => bail!(
            "mode {} cannot be rendered yet; there are: nftables, iptables",
            mode.as_str()
        ),
    })
}

/// Addresses of the machine matter where `nodePortAddresses` is limited.
fn iptables(desired: &Desired, family: Family, config: &Config) -> anyhow::Result<String> {
    let local = Host::default().addresses()?;
    let options = config.iptables_options();
    Ok(iptables::render(desired, family, options, &local))
}

fn nftables(desired: &Desired, family: Family, config: &Config) -> anyhow::Result<String> {
    let options = config.nftables_options();
    Ok(nftables::text(desired, family, options)?)
}
