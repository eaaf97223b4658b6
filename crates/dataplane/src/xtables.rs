//! The engine for iptables rules: compares wanted with installed rules and writes the difference.
//!
//! In: the chains and rules that a mode renders. Out: what differs, as transactions of `nf_tables`
//! in the nft flavour, otherwise as text for `iptables-restore`. `diff` turns a ruleset and what is
//! installed, or two renderings of what changed, into steps; `pack` makes transactions of them,
//! `document` text; `tables` sends them.
//!
//! A [`Layout`](layout::Layout) says which chains a mode has. The engine knows no mode.

use ferrule_core::model::Family;
use ferrule_kernel::xt::{Xt, XtError};

use crate::kernel_family;

pub(crate) mod base_chains;
pub(crate) mod canary;
pub(crate) mod chain;
pub(crate) mod counts;
pub(crate) mod diff;
pub(crate) mod document;
pub(crate) mod encode;
pub(crate) mod error;
pub(crate) mod installed;
pub(crate) mod isolate;
pub(crate) mod layout;
pub(crate) mod link;
pub(crate) mod listen;
pub(crate) mod listing;
pub(crate) mod pack;
pub(crate) mod purge;
pub(crate) mod removal;
pub(crate) mod rows;
pub(crate) mod rule;
pub(crate) mod ruleset;
#[cfg(test)]
mod sample;
pub(crate) mod tables;
pub(crate) mod verify;

/// Chains that kubelet makes in its flavour of iptables, so that other programs can find it out.
const KUBELET_HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];

/// Opens iptables in the network namespace of the calling thread, in kubelet's flavour where kubelet
/// has left a hint.
pub fn open(family: Family) -> Result<Xt, XtError> {
    Xt::open(kernel_family(family), &KUBELET_HINTS)
}
