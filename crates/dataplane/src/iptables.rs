//! Services as iptables rules: kube-proxy's own chains, names and remarks.
//!
//! In: [`Work`]. Out: what differs, as transactions of `nf_tables` where that is the flavour, or as
//! text for `iptables-restore`. `render` draws each exposure by itself, so that a change costs what
//! changed; `diff` turns two drawings, or a drawing and what is there, into steps; `pack` makes
//! transactions of them, `document` text; `apply` sends them by `tables`.
//!
//! The layout is kube-proxy's: `KUBE-SERVICES` leads from addresses to `KUBE-SVC-…` and
//! `KUBE-EXT-…`, they choose a `KUBE-SEP-…`, and that one translates. `iptables-save` of either
//! program prints the same, but for the order of Services.
//!
//! [`Work`]: crate::Work

use std::io;
use std::net::IpAddr;

use ferrule_core::desired::Desired;
use ferrule_core::model::Family;
use ferrule_kernel::nfacct::Nfacct;

use crate::said;

mod apply;
mod canary;
mod census;
mod cleanup;
mod diff;
mod document;
mod encode;
mod entries;
mod installed;
mod isolate;
mod link;
mod listen;
mod listing;
mod names;
mod pack;
mod render;
mod rows;
mod rule;
mod ruleset;
mod statics;
mod tables;

pub use apply::Iptables;

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

/// Packets that were counted under this name, in the network namespace of the calling thread.
///
/// # Errors
/// What the kernel said; `NotFound` if there is no such counter.
pub fn packets(counter: &str) -> io::Result<u64> {
    let found = Nfacct::open()?.get(counter).map_err(said)?;
    Ok(found.ok_or(io::ErrorKind::NotFound)?.packets)
}

/// What `iptables-restore` would be given on a machine without rules, with the addresses that this
/// machine has.
pub fn render(desired: &Desired, family: Family, options: Options, local: &[IpAddr]) -> String {
    let totals = desired.totals(family);
    let host = statics::HostFacts {
        random_fully: true,
        drop_invalid: true,
        count_invalid: true,
        count_localhost: true,
    };
    let facts = desired.facts(family);
    let ground = statics::Ground::new(family, options, facts, host, totals.listed, local);
    let all = desired.exposures(family).into_iter();
    let wanted = render::ruleset(all.map(|exposure| &**exposure), &ground);
    diff::whole(&installed::Installed::new(family), &wanted).text()
}
