//! Services as iptables rules: kube-proxy's own chains, names and comments.
//!
//! In: [`Work`]. Out: rules, which the engine in `xtables` compares with what is installed and
//! writes. `render` renders each exposure by itself, so that a change costs what changed; `layout`
//! tells the engine which chains there are; `apply` remembers what was written.
//!
//! The layout is kube-proxy's: `KUBE-SERVICES` jumps from addresses to `KUBE-SVC-…` and
//! `KUBE-EXT-…`, they choose a `KUBE-SEP-…`, and that one translates. `iptables-save` of either
//! program prints the same, but for the order of Services.
//!
//! [`Work`]: crate::Work

use std::io;
use std::net::IpAddr;

use ferrule_core::desired::Desired;
use ferrule_core::facts::NodePortAddresses;
use ferrule_core::model::Family;
use ferrule_kernel::nfacct::Nfacct;

use crate::host::{Host, SettingError};
use crate::xtables::purge::purge;
use crate::xtables::{diff, installed};
use crate::{Applied, ipvs, said};

mod affinity;
mod apply;
mod isolate;
mod layout;
pub(crate) mod names;
mod probe;
mod render;
mod statics;
mod verify;

pub use affinity::binding;
pub use apply::Iptables;
pub(crate) use layout::LAYOUT;
pub use verify::{verify, verify_by};

/// What the administrator decides about the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The bit of a packet's mark that asks for masquerading; not 0.
    pub mark: u32,
    /// NodePorts answer on localhost too, where `nodePortAddresses` has it. IPv4 only.
    pub localhost_node_ports: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mark: 1 << 14,
            localhost_node_ports: true,
        }
    }
}

/// Makes the kernel settings that the rules rely on. Where they are as they must be nothing is
/// written.
///
/// # Errors
/// One could not be written.
pub fn prepare(
    host: &Host,
    options: Options,
    node_ports: &NodePortAddresses,
) -> Result<(), SettingError> {
    if options.localhost_node_ports && node_ports.contains_ipv4_loopback() {
        host.route_localnet()?;
    }
    Ok(())
}

/// Packets that were counted under this name, in the network namespace of the calling thread.
///
/// # Errors
/// The kernel's error; `NotFound` if there is no such counter.
pub fn packets(counter: &str) -> io::Result<u64> {
    let found = Nfacct::open()?.get(counter).map_err(said)?;
    Ok(found.ok_or(io::ErrorKind::NotFound)?.packets)
}

/// Removes the rules of modes iptables and ipvs in both flavours of iptables, in the network
/// namespace of the calling thread. Those of the nft flavour need no program of iptables.
///
/// # Errors
/// What was attempted and why it failed. Some of it may be gone.
pub fn remove(family: Family) -> io::Result<Applied> {
    // Rules of both modes jump to the same chains: neither can be removed without the other.
    match purge(family, &[&LAYOUT, &ipvs::LAYOUT]) {
        Ok(steps) => Ok(Applied::steps(steps)),
        Err(error) => Err(io::Error::new(error.kind(), error)),
    }
}

/// The input of `iptables-restore` on a machine without rules and with these addresses.
pub fn render(desired: &Desired, family: Family, options: Options, local: &[IpAddr]) -> String {
    let totals = desired.totals(family);
    let host = statics::HostFacts {
        random_fully: true,
        drop_invalid: true,
        count_invalid: true,
        count_localhost: true,
    };
    let facts = desired.facts(family);
    let context = statics::RenderContext::new(family, options, facts, host, totals.listed, local);
    let all = desired.exposures(family).into_iter();
    let wanted = render::ruleset(all.map(|exposure| &**exposure), &context);
    diff::full(&LAYOUT, &installed::Installed::new(family), &wanted).text()
}
