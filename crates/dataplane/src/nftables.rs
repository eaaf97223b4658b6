//! Services as nftables: flat maps from addresses to endpoints, written straight over netlink.
//!
//! In: [`Work`]. Out: one transaction with what differs. `render` draws each exposure by itself,
//! so that a change costs what changed; `diff` turns two drawings into steps; `apply`
//! sends them.
//!
//! The layout: `service-ips` leads from an address to a chain `pick-up-to-K`, which all Services with
//! up to K endpoints share; that chain draws a slot and finds the endpoint by address and slot in
//! `ferrule-endpoints`, and draws again if there is none. NodePorts have maps of their own without the address. What packets meet is
//! in chains with kube-proxy's names, hooks and priorities.
//!
//! Service ports whose clients stay with their endpoint have a chain of their own, `stay-…`, and a
//! chain and a set of clients per endpoint. One map for all of them would be smaller, but a rule that
//! looks up what another lookup gave makes `nft list` 1.0.6 abort.
//!
//! Service ports with source ranges have a chain `sources-…` of their own, and a set if there are many.
//!
//! [`Work`]: crate::Work

use std::num::NonZeroU32;

mod affinity;
mod apply;
mod batch;
mod create;
mod diff;
mod isolate;
mod kube_proxy;
pub(crate) mod names;
mod probe;
pub(crate) mod program;
mod render;
mod ruleset;
#[cfg(test)]
mod tests;
mod text;
mod verify;

pub use affinity::binding;
pub use apply::Nftables;
pub use ferrule_kernel::nft::text::NoSyntax;
pub use probe::Opener;
pub use text::text;
pub(crate) use verify::{Words, elements_of_set, rules_of_chain};
pub use verify::{verify, verify_over};

/// What the administrator decides about the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The bit of a packet's mark that asks for masquerading; not 0.
    pub mark: u32,
    /// How many clients are remembered with one endpoint of a Service port, if they are to stay.
    pub affinity_size: NonZeroU32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mark: 1 << 14,
            // As many as in kube-proxy, which leaves it to the kernel.
            affinity_size: const { NonZeroU32::new(65_535).expect("not 0") },
        }
    }
}
