//! Mode userspace: rules lead clients to this process, and it copies their bytes to endpoints.
//!
//! In: [`Work`]. `plan` says what a Service port needs: lanes, which are proxy ports with endpoints
//! behind them, and portals, which lead its addresses to them. `apply` opens lanes in the `relay`,
//! holds ports of the node (`claims`) and has portals programmed: by default in a table of nftables
//! that goes with the process (`render`, `table`, `firewall`), otherwise in the chains of iptables
//! that kube-proxy had up to v1.25 (`chains`). `flows` removes what connection tracking remembers of
//! portals that changed, and `transparent` brings answers to connections with a client's address here.
//! `process` is what both families share, and `handover` gives its sockets to
//! a process that takes its place.
//!
//! [`Work`]: crate::Work

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use ferrule_core::model::Family;

mod apply;
mod chains;
mod claims;
mod firewall;
mod flows;
mod handover;
mod names;
mod plan;
mod process;
pub mod relay;
mod render;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod transparent;
mod verify;

pub use apply::Userspace;
pub use process::Process;
pub use text::text;
pub use verify::verify;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// What the administrator decides.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address on which lanes listen, in its family; all addresses if unspecified.
    pub bind: Option<IpAddr>,
    /// The bit of a packet's mark that firewalls can tell proxied connections by; not 0.
    pub mark: u32,
    /// NodePorts answer on localhost too, where `nodePortAddresses` has it.
    pub localhost_node_ports: bool,
    /// What leads to proxy ports.
    pub portals: PortalsBy,
    /// Endpoints of this node see the client's own address where their answers pass through this
    /// node. Takes portals by nftables.
    pub transparent: bool,
    /// How the relay works.
    pub relay: relay::Options,
    /// The Unix socket over which a successor takes over; none if there is to be none.
    pub handover: Option<PathBuf>,
}

/// What leads to proxy ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortalsBy {
    /// A table of nftables.
    #[default]
    Nftables,
    /// The chains that kube-proxy had up to v1.25.
    Iptables,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bind: None,
            mark: 1 << 14,
            localhost_node_ports: true,
            portals: PortalsBy::default(),
            transparent: false,
            relay: relay::Options {
                avoid: Some(NODE_PORTS),
                ..relay::Options::default()
            },
            handover: None,
        }
    }
}

/// Where API servers put NodePorts by default.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30000..=32767;

impl Options {
    /// The address on which lanes of this family listen, if not on all.
    fn bind_ip(&self, family: Family) -> Option<IpAddr> {
        self.bind.filter(|ip| Family::of(*ip) == family)
    }
}

/// The address that stands for all of a family.
const fn wildcard(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// Removes what the mode left behind in one family: tables of nftables that no process owns, the chains
/// of iptables, whichever program made them, and the rule and route for clients' addresses. Returns the
/// number of steps.
///
/// # Errors
/// What could not be removed.
pub fn remove(family: Family) -> io::Result<usize> {
    let nftables = match table::PortalTable::open(family) {
        Ok(mut table) => table.remove().map_err(io::Error::other)?,
        // A kernel without nftables does not understand the question, and has no table.
        Err(error) if is_nothing(&error) => 0,
        Err(error) => return Err(error),
    };
    let iptables = match chains::PortalChains::open(family) {
        Ok(mut chains) => chains.remove().map_err(io::Error::other)?,
        Err(error) if is_nothing(&error) => 0,
        Err(error) => return Err(error),
    };
    let routes = transparent::Answers::open(family)?.remove();
    Ok(nftables + iptables + routes.map_err(io::Error::other)?)
}

/// Whether this failure to open means that there can be nothing.
fn is_nothing(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, NotFound, Unsupported};
    [InvalidInput, NotFound, Unsupported].contains(&error.kind())
}
