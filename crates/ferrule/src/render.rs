//! `ferrule render`: what would be programmed into the kernel, as text.
//!
//! Each mode writes it in the language of its own tool.

use std::io::{self, Write as _};

use ferrule_dataplane::error_chain;
use ferrule_dataplane::host::Addresses;

use crate::cli::RenderArgs;
use crate::inspect::{self, ClusterView};
use crate::print_error;
use crate::watch::manifests;

/// Reads, decides, draws, prints.
pub fn run(arguments: &RenderArgs) -> anyhow::Result<()> {
    let cluster = &arguments.cluster;
    let (mut config, gates) = inspect::config(cluster, arguments.mode)?;
    if let Some(bit) = arguments.iptables_masquerade_bit {
        config.iptables_masquerade_bit = bit;
    }
    let mode = config.mode();
    // They matter where `nodePortAddresses` is limited.
    let local = match Addresses::open() {
        Ok(addresses) => addresses.list(),
        Err(error) => {
            let err = error_chain(&error);
            print_error(&format!(
                "warning: cannot list addresses of interfaces: {err}"
            ));
            Vec::new()
        }
    };
    let mut view = ClusterView::new(cluster, config.settings(&gates));
    view.take_in(manifests::read(&cluster.manifests, &cluster.node)?);
    let mut out = io::BufWriter::new(io::stdout().lock());
    for (number, family) in inspect::families(cluster).into_iter().enumerate() {
        let text = (mode.render)(&view.desired, family, &config, &local)?;
        if number > 0 {
            writeln!(out)?;
        }
        let (name, node) = (mode.name, &cluster.node);
        writeln!(
            out,
            "# {family} in mode {name} on node {node}, as ferrule programs it."
        )?;
        out.write_all(text.as_bytes())?;
    }
    Ok(out.flush()?)
}
