//! Tracked UDP flows that lead to no proxy port, or to one of an earlier process, and their removal.
//!
//! A flow keeps its translation for as long as datagrams come. In this mode it leads to a proxy
//! port, whatever happens to endpoints; it is stale when its address is no portal any more, was not
//! one when it began, or leads to another port now.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use ferrule_core::model::{Family, Port};
use ferrule_kernel::conntrack::{Conntrack, Filter, Flow, Match};
use ferrule_kernel::socket::{Socket, Transport};

use crate::{kernel_family, said};

const UDP: u8 = 17;

/// One dump of all UDP flows is cheaper than one each for more addresses than these.
const FEW: usize = 4;

/// Where clients send: an address and port, or a port on addresses of this node.
pub type Address = (Option<IpAddr>, Port);

/// Removes stale flows of one family.
#[derive(Debug)]
pub struct StaleFlows<T = Socket> {
    conntrack: Conntrack<T>,
    judge: Judge,
}

/// Decides which flows are stale.
#[derive(Debug)]
struct Judge {
    family: Family,
    /// Where addresses lead, all that are portals.
    led: BTreeMap<Address, u16>,
    /// Addresses whose flows were not checked yet.
    owed: BTreeSet<Address>,
}

impl StaleFlows {
    /// Opens a conversation in the network namespace of the calling thread.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(family: Family) -> io::Result<Self> {
        Ok(Self {
            conntrack: Conntrack::open()?,
            judge: Judge {
                family,
                led: BTreeMap::new(),
                owed: BTreeSet::new(),
            },
        })
    }
}

impl<T: Transport> StaleFlows<T> {
    /// Notes that an address leads to this proxy port from now on, or to none.
    pub fn lead(&mut self, address: Address, to: Option<u16>) {
        let before = match to {
            Some(port) => self.judge.led.insert(address, port),
            None => self.judge.led.remove(&address),
        };
        if before != to {
            self.judge.owed.insert(address);
        }
    }

    /// Removes the flows of addresses that lead elsewhere now; how many. NodePorts are those of
    /// these addresses of the node.
    ///
    /// # Errors
    /// What the kernel said. What could not be done is done with the next call.
    pub fn clear(&mut self, node: &[IpAddr]) -> io::Result<usize> {
        if self.judge.owed.is_empty() {
            return Ok(0);
        }
        let mut removed = 0;
        for filter in self.judge.filters() {
            let is_stale = |flow: &Flow| self.judge.is_stale(flow, node);
            let found = self.conntrack.flows(&filter, is_stale).map_err(said)?;
            if !found.flows.is_empty() {
                removed += self.conntrack.delete(&found.flows).map_err(said)?;
            }
        }
        self.judge.owed.clear();
        Ok(removed)
    }

    /// Removes the flows that lead to proxy ports, now that nobody listens there: a client that keeps
    /// its port would be refused for as long as it asks. Flows of other modes to the same addresses
    /// are left alone.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn abandon(&mut self, node: &[IpAddr]) -> io::Result<usize> {
        if self.judge.led.is_empty() {
            return Ok(0);
        }
        let filter = Filter::protocol(kernel_family(self.judge.family), UDP);
        let is_ours = |flow: &Flow| {
            let (to, answers) = (flow.original.destination, flow.reply.source);
            self.judge.leads_here(to, answers, node)
        };
        let found = self.conntrack.flows(&filter, is_ours).map_err(said)?;
        self.judge.led.clear();
        if found.flows.is_empty() {
            return Ok(0);
        }
        self.conntrack.delete(&found.flows).map_err(said)
    }
}

impl Judge {
    /// What to ask the kernel for.
    fn filters(&self) -> Vec<Filter> {
        let udp = Filter::protocol(kernel_family(self.family), UDP);
        if self.owed.len() > FEW {
            return vec![udp];
        }
        let owed = self.owed.iter();
        owed.map(|(ip, port)| Filter {
            original: Match {
                destination: *ip,
                destination_port: Some(port.get()),
                ..Match::default()
            },
            ..udp
        })
        .collect()
    }

    fn is_stale(&self, flow: &Flow, node: &[IpAddr]) -> bool {
        let (to, answers) = (flow.original.destination, flow.reply.source);
        let Some(address) = self.address(to, node) else {
            return false;
        };
        match self.led.get(&address) {
            Some(port) => answers.port() != *port,
            // It is an ordinary address again, to which there may be flows of its own.
            None => answers != to,
        }
    }

    /// Whether a flow to an address is answered by the proxy port of that address.
    fn leads_here(&self, to: SocketAddr, answers: SocketAddr, node: &[IpAddr]) -> bool {
        let Some(port) = Port::new(to.port().into()) else {
            return false;
        };
        let exact = self.led.get(&(Some(to.ip()), port));
        let on_node = || {
            self.led
                .get(&(None, port))
                .filter(|_| node.contains(&to.ip()))
        };
        exact.or_else(on_node) == Some(&answers.port())
    }

    /// The address in question that a flow is to. An address with its port says more than a port
    /// alone.
    fn address(&self, to: SocketAddr, node: &[IpAddr]) -> Option<Address> {
        let port = Port::new(to.port().into())?;
        let exact = (Some(to.ip()), port);
        if self.led.contains_key(&exact) || self.owed.contains(&exact) {
            return self.owed.contains(&exact).then_some(exact);
        }
        let node_port = (None, port);
        let on_node = self.owed.contains(&node_port) && node.contains(&to.ip());
        on_node.then_some(node_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn only_flows_to_proxy_ports_are_abandoned() {
        let mut judge = Judge {
            family: Family::V4,
            led: BTreeMap::new(),
            owed: BTreeSet::new(),
        };
        let dns = address("10.96.0.10:53");
        judge
            .led
            .insert((Some(dns.ip()), Port::new(53).unwrap()), 40_001);
        judge.led.insert((None, Port::new(30_053).unwrap()), 40_002);
        let node = [address("192.0.2.1:0").ip()];
        for (to, answers, ours) in [
            ("10.96.0.10:53", "10.1.0.1:40001", true),
            // Another mode serves the same address already.
            ("10.96.0.10:53", "10.1.0.5:5353", false),
            ("192.0.2.1:30053", "192.0.2.1:40002", true),
            ("192.0.2.9:30053", "192.0.2.9:40002", false),
            ("10.96.0.11:53", "10.1.0.1:40001", false),
        ] {
            let leads = judge.leads_here(address(to), address(answers), &node);
            assert_eq!(leads, ours, "{to} answered by {answers}");
        }
    }
}
