//! Ports of this node that Services use, held so that no other process takes them.
//!
//! Rules of NAT come before sockets, so a process that listened on a NodePort would never get a
//! connection, and nobody would know why. A held port cannot be bound by others. Nothing listens on
//! it: whoever gets past the rules is refused as on any other closed port.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use ferrule_core::model::{Family, Port, PortKey, Protocol};
use ferrule_kernel::inet::hold;

use super::handover::Purpose;
use super::plan::{Plan, is_relayed};
use super::wildcard;

/// What is held: a port on an address of this node, or on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// The address; `None` for all.
    pub ip: Option<IpAddr>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: Port,
}

/// Ports that are held.
#[derive(Debug)]
pub struct Claims {
    family: Family,
    held: BTreeMap<Claim, (PortKey, OwnedFd)>,
}

/// What a Service port claims, on a machine with these addresses.
pub fn wanted(key: &PortKey, plan: &Plan, local: &[IpAddr]) -> BTreeSet<Claim> {
    let portals = plan
        .portals
        .iter()
        .filter(|portal| portal.ip.is_none_or(|ip| local.binary_search(&ip).is_ok()));
    portals
        .filter(|_| is_relayed(key.protocol))
        .map(|portal| Claim {
            ip: portal.ip,
            protocol: key.protocol,
            port: portal.port,
        })
        .collect()
}

impl Claims {
    /// Nothing yet.
    pub const fn new(family: Family) -> Self {
        Self {
            family,
            held: BTreeMap::new(),
        }
    }

    /// The sockets that hold ports, once more: for a successor.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn sockets(&self) -> io::Result<Vec<(Purpose, OwnedFd)>> {
        let held = self.held.iter();
        held.map(|(claim, (_, socket))| {
            Ok((Purpose::Claim(self.family, *claim), socket.try_clone()?))
        })
        .collect()
    }

    /// Lets go of all.
    pub fn clear(&mut self) {
        self.held.clear();
    }

    /// Holds a port for a Service port, which may hold it already. A socket that does so may have
    /// come from a predecessor.
    ///
    /// # Errors
    /// `AddrInUse` when another process, or another Service port, has it.
    pub fn hold(
        &mut self,
        claim: Claim,
        owner: &PortKey,
        inherited: Option<OwnedFd>,
    ) -> io::Result<()> {
        if let Some((holder, _)) = self.held.get_mut(&claim) {
            // The desired state lets an address pass from one to another; there are no two at once.
            holder.clone_from(owner);
            return Ok(());
        }
        let ip = claim.ip.unwrap_or_else(|| wildcard(self.family));
        let address = SocketAddr::new(ip, claim.port.get());
        let socket = match (inherited, claim.protocol) {
            (Some(socket), _) => socket,
            (None, Protocol::Tcp) => hold::tcp(address)?,
            (None, Protocol::Udp) => hold::udp(address)?,
            (None, Protocol::Sctp) => return Err(io::ErrorKind::Unsupported.into()),
        };
        self.held.insert(claim, (owner.clone(), socket));
        Ok(())
    }

    /// Lets go of a port, if this Service port still is the one that holds it.
    pub fn release(&mut self, claim: Claim, owner: &PortKey) {
        if self
            .held
            .get(&claim)
            .is_some_and(|(holder, _)| holder == owner)
        {
            self.held.remove(&claim);
        }
    }
}
