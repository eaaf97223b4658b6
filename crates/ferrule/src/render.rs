//! `ferrule render`: what would be programmed into the kernel, as text.
//!
//! Each mode writes it in the language of its own tool.

use std::io::{self, Write as _};

use ferrule_dataplane::host::Addresses;

use crate::cli::RenderArgs;
use crate::look::{self, Picture};
use crate::watch::manifests;

/// Reads, decides, draws, prints.
pub fn run(arguments: &RenderArgs) -> anyhow::Result<()> {
    let cluster = &arguments.cluster;
    let (mut config, gates) = look::config(cluster, arguments.mode)?;
    if let Some(bit) = arguments.iptables_masquerade_bit {
        config.iptables_masquerade_bit = bit;
    }
    let mode = config.mode();
    // They matter where `nodePortAddresses` is limited.
    let local = Addresses::open()?.list();
    let mut picture = Picture::new(cluster, config.settings(&gates));
    picture.take_in(manifests::read(&cluster.manifests, &cluster.node)?);
    let mut out = io::BufWriter::new(io::stdout().lock());
    for (number, family) in look::families(cluster).into_iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let (name, node) = (mode.name, &cluster.node);
        writeln!(
            out,
            "# {family} in mode {name} on node {node}, as ferrule programs it."
        )?;
        let text = (mode.render)(&picture.desired, family, &config, &local)?;
        out.write_all(text.as_bytes())?;
    }
    Ok(out.flush()?)
}
