//! Stale UDP flows in connection tracking, and their removal.
//!
//! A flow keeps its first translation for as long as packets come. TCP notices that its peer is
//! gone; UDP does not, and a client that never stops sending is stuck with a dead endpoint, or with
//! an untranslated address that became a Service too late for it.
//!
//! In: the same [`Work`] that a dataplane was just given, after it succeeded. Out: stale flows are
//! removed, all others live on. What is remembered in between is which UDP addresses had which
//! backends, so that a change costs the addresses it touches.
//!
//! A flow is ours when it is to an address that is ours, or was since this program started. Other
//! proxies of this node, and their Services, are left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ferrule_core::desired::Exposure;
use ferrule_core::model::{Family, Port, Protocol};
use ferrule_kernel::conntrack::{Conntrack, Filter, Flow, Match};
use ferrule_kernel::exchange::RequestError;
use ferrule_kernel::socket::{Socket, Transport};

use crate::{Scope, Work, kernel_family, said};

const UDP: u8 = 17;

/// Every dump walks the kernel's whole table, so that for more addresses than these one dump of
/// all UDP flows is cheaper.
const FEW: usize = 4;

/// How often a dump is begun again because answers were lost.
const ATTEMPTS: usize = 2;

/// Where clients send: an address and port, or a port on addresses of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Address {
    ip: Option<IpAddr>,
    port: Port,
}

/// Removes stale flows of one family.
#[derive(Debug)]
pub struct Flows<T = Socket> {
    family: Family,
    conntrack: Conntrack<T>,
    /// Who may answer at which address.
    backends: BTreeMap<Address, Arc<Exposure>>,
    /// Addresses whose flows could not be checked yet.
    owed: BTreeSet<Address>,
}

impl Flows {
    /// Opens a conversation in the network namespace of the calling thread.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(family: Family) -> io::Result<Self> {
        Ok(Self::new(family, Conntrack::open()?))
    }
}

impl<T: Transport> Flows<T> {
    /// Removes flows through this conversation.
    pub fn new(family: Family, conntrack: Conntrack<T>) -> Self {
        Self {
            family,
            conntrack,
            backends: BTreeMap::new(),
            owed: BTreeSet::new(),
        }
    }

    /// Removes the flows that `work`, which was just programmed, made stale. Says how many, or
    /// `None` if there was no reason to check any.
    ///
    /// # Errors
    /// What the kernel said. What could not be done is done with the next call.
    pub fn clear(&mut self, work: &Work<'_>) -> io::Result<Option<usize>> {
        let touched = self.learn(work);
        self.owed.extend(touched);
        let full = matches!(work.scope, Scope::Full) && !self.backends.is_empty();
        if self.owed.is_empty() && !full {
            return Ok(None);
        }
        let facts = work.desired.facts(self.family);
        // NodePorts come first in both.
        let first = [
            self.owed.first(),
            self.backends.keys().next().filter(|_| full),
        ];
        let about_node = first.into_iter().flatten().any(|first| first.ip.is_none());
        let local = if about_node { work.local } else { &[] };
        let judge = Judge {
            backends: &self.backends,
            touched: (!full).then_some(&self.owed),
            gone: &self.owed,
            node: facts.node_ports.among(local, self.family),
        };
        let mut attempt = 1;
        let removed = loop {
            let removed = remove(&mut self.conntrack, self.family, &judge);
            match removed {
                Err(RequestError::Lost(_)) if attempt < ATTEMPTS => attempt += 1,
                removed => break removed.map_err(said)?,
            }
        };
        self.owed.clear();
        Ok(Some(removed))
    }

    /// Brings up to date who may answer where; the addresses at which that became different.
    fn learn(&mut self, work: &Work<'_>) -> BTreeSet<Address> {
        let (old, new): (BTreeMap<_, _>, BTreeMap<_, _>) = match work.scope {
            Scope::Full => {
                let all = work.desired.exposures(self.family);
                let new = all.into_iter().flat_map(udp_addresses).collect();
                (std::mem::take(&mut self.backends), new)
            }
            Scope::Delta(delta) => {
                let sides = delta.changes.values();
                let before = sides.clone().filter_map(|change| change.before.as_ref());
                let after = sides.filter_map(|change| change.after.as_ref());
                // All that go before any that come: an address may pass from one to another.
                let gone = before.flat_map(udp_addresses).filter_map(|(address, _)| {
                    let held = self.backends.remove(&address)?;
                    Some((address, held))
                });
                (gone.collect(), after.flat_map(udp_addresses).collect())
            }
        };
        let addresses: BTreeSet<Address> = old.keys().chain(new.keys()).copied().collect();
        let answers = |map: &BTreeMap<Address, Arc<Exposure>>, address: &Address| {
            map.get(address).map(|exposure| exposure.answering.clone())
        };
        let different = addresses
            .into_iter()
            .filter(|address| answers(&old, address) != answers(&new, address))
            .collect();
        self.backends.extend(new);
        different
    }
}

/// The addresses at which a UDP Service port is the one that answers.
fn udp_addresses(exposure: &Arc<Exposure>) -> impl Iterator<Item = (Address, Arc<Exposure>)> {
    let is_udp = exposure.key.protocol == Protocol::Udp;
    let holding = exposure.holding().filter(move |_| is_udp);
    holding.map(|frontend| {
        let address = Address {
            ip: frontend.ip,
            port: frontend.port,
        };
        (address, exposure.clone())
    })
}

fn remove<T: Transport>(
    conntrack: &mut Conntrack<T>,
    family: Family,
    judge: &Judge<'_>,
) -> Result<usize, RequestError> {
    let mut removed = 0;
    for filter in judge.filters(family) {
        // Some may be missing when the table changes all the time. Better these than none.
        let flows = conntrack.flows(&filter, |flow| judge.is_stale(flow))?.flows;
        if !flows.is_empty() {
            removed += conntrack.delete(&flows)?;
        }
    }
    Ok(removed)
}

/// Decides which flows are stale.
struct Judge<'a> {
    backends: &'a BTreeMap<Address, Arc<Exposure>>,
    /// Only flows to these count; `None` means all.
    touched: Option<&'a BTreeSet<Address>>,
    /// Addresses that were ours until now, among others.
    gone: &'a BTreeSet<Address>,
    /// The node's own addresses on which NodePorts answer.
    node: Vec<IpAddr>,
}

impl Judge<'_> {
    /// What to ask the kernel for.
    fn filters(&self, family: Family) -> Vec<Filter> {
        let udp = Filter::protocol(kernel_family(family), UDP);
        match self.touched {
            Some(touched) if touched.len() <= FEW => touched
                .iter()
                .map(|address| Filter {
                    original: Match {
                        destination: address.ip,
                        destination_port: Some(address.port.get()),
                        ..Match::default()
                    },
                    ..udp
                })
                .collect(),
            _ => vec![udp],
        }
    }

    fn is_stale(&self, flow: &Flow) -> bool {
        let to = flow.original.destination;
        let answers = flow.reply.source;
        let translated = answers != to;
        // Nobody says that an address in a Service network is ours: it may be of a Service that
        // another proxy serves, of which we know nothing.
        let Some(address) = self.address(to) else {
            return false;
        };
        if self
            .touched
            .is_some_and(|touched| !touched.contains(&address))
        {
            return false;
        }
        match self.backends.get(&address) {
            Some(exposure) => !exposure
                .answering
                .iter()
                .any(|(ip, port)| *ip == answers.ip() && port.get() == answers.port()),
            // It is an ordinary address again, to which there may be flows of its own.
            None => translated,
        }
    }

    /// The address of ours, now or until now, that a flow is to. An address with its port says
    /// more than a port alone.
    fn address(&self, to: SocketAddr) -> Option<Address> {
        let port = Port::new(to.port().into())?;
        let candidates = [Some(to.ip()), None].map(|ip| Address { ip, port });
        let is_ours =
            |address: &Address| self.backends.contains_key(address) || self.gone.contains(address);
        let on_node = |address: &Address| address.ip.is_some() || self.node.contains(&to.ip());
        candidates
            .into_iter()
            .find(|address| is_ours(address) && on_node(address))
    }
}
