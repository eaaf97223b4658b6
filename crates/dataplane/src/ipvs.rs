//! Services as virtual servers of IPVS: kube-proxy's own interface, sets, chains and names.
//!
//! In: [`Work`]. Out: for every address a virtual server, whose destinations are endpoints; the
//! addresses themselves, on an interface that leads nowhere; entries of sets; and a few rules of
//! iptables that name the sets. `render` renders each exposure by itself, so that a change costs what
//! changed; `wanted` knows what several of them share; `diff` orders the steps; `apply` makes them.
//!
//! Destinations that must get no new connections are kept until theirs have ended: `drain`.
//!
//! [`Work`]: crate::Work

use std::net::IpAddr;
use std::sync::Arc;

use ferrule_core::desired::Desired;
use ferrule_core::model::Family;
use ipnet::IpNet;

mod apply;
mod conversation;
mod diff;
mod drain;
mod layout;
mod names;
mod open;
mod prepare;
mod removal;
mod render;
mod statics;
#[cfg(test)]
mod tests;
mod text;
mod verify;
mod wanted;
mod watch;

pub use apply::Ipvs;
pub use ferrule_kernel::ipvs::Timeouts;
pub(crate) use layout::LAYOUT;
pub(crate) use names::LINK;
pub use prepare::{PrepareError, prepare};
pub use removal::remove;
pub use verify::verify;

/// What the administrator decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The bit of a packet's mark that asks for masquerading; not 0.
    pub mark: u32,
    /// The scheduler of Services that ask for none.
    pub scheduler: Arc<str>,
    /// Virtual servers in these networks belong to other programs.
    pub excluded: Vec<IpNet>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mark: 1 << 14,
            scheduler: "rr".into(),
            excluded: Vec::new(),
        }
    }
}

/// What `ipvsadm --restore`, `ipset restore` and `iptables-restore` would read on a machine with these
/// addresses and nothing programmed.
pub fn render(desired: &Desired, family: Family, options: &Options, local: &[IpAddr]) -> String {
    text::text(desired, family, options, local)
}
