//! Facts about this node that decide traffic: its addresses, its zone, which traffic is local.
//!
//! In: [`Settings`] (what the administrator configured) and what the API server says about the
//! Node. Out: [`Facts`] per family. Nothing is read from the machine here; local interface
//! addresses come in as arguments.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};

use crate::model::{Family, Node, PerFamily, parse_cidr};

#[cfg(test)]
mod tests;

/// What the administrator configured, as far as it changes meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// Feature gate `AllowServiceExternalIPs`.
    pub allow_external_ips: bool,
    /// How traffic from pods of this node is recognised.
    pub detect_local: DetectLocal,
    /// On which node addresses NodePorts answer.
    pub node_port_addresses: NodePortAddresses,
    /// `bindAddress`: overrides the node's address. `None` when unspecified.
    pub bind_address: Option<IpAddr>,
    /// What becomes of connections to endpoints that get no new ones.
    pub connections: Connections,
}

/// What becomes of open connections whose endpoint gets no new ones, and so what the mode must know
/// of such endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connections {
    /// The kernel goes on translating them.
    #[default]
    Tracked,
    /// This process stands between clients and endpoints, over TCP too: it must know which endpoints
    /// still answer.
    Relayed,
    /// The mode sees to it that they can end: exposures list endpoints that receive nothing new.
    Drained,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            masquerade_all: false,
            allow_external_ips: true,
            detect_local: DetectLocal::ClusterCidr(Box::default()),
            node_port_addresses: NodePortAddresses::default(),
            bind_address: None,
            connections: Connections::default(),
        }
    }
}

/// `detectLocalMode` with its argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// Pods have addresses in these networks.
    ClusterCidr(Box<[IpNet]>),
    /// Pods have addresses in the Node's `podCIDRs`.
    NodeCidr,
    /// Pods are behind this bridge.
    BridgeInterface(Arc<str>),
    /// Pods are behind interfaces whose names begin so.
    InterfaceNamePrefix(Arc<str>),
}

/// How to tell that a packet comes from a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detector {
    /// Its source is in this network.
    Source(IpNet),
    /// It came in through this interface.
    Interface(Arc<str>),
    /// It came in through an interface whose name begins so.
    InterfacePrefix(Arc<str>),
}

/// Whose traffic gets this node's address as its source, so that replies come back through here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Masquerade {
    /// Nobody's: the endpoint sees the client.
    Never,
    /// Everybody's.
    Always,
    /// That of clients outside the pod network.
    Outside,
    /// That of processes on this node.
    Node,
}

/// `nodePortAddresses` as configured: networks and keywords.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePortAddresses(Box<[NodePortEntry]>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodePortEntry {
    Net(IpNet),
    Primary,
    Localhost,
    All,
}

impl NodePortAddresses {
    /// Reads the list of the configuration; fails with the first entry that means nothing.
    ///
    /// # Errors
    /// The offending entry.
    pub fn parse<S: AsRef<str>>(entries: &[S]) -> Result<Self, String> {
        entries
            .iter()
            .map(|entry| match entry.as_ref() {
                "primary" => Ok(NodePortEntry::Primary),
                "localhost" => Ok(NodePortEntry::Localhost),
                "all" => Ok(NodePortEntry::All),
                text => parse_cidr(text)
                    .map(NodePortEntry::Net)
                    .ok_or_else(|| text.to_owned()),
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether NodePorts are to answer on `127.0.0.0/8`. No Node needs to be known: `primary` never
    /// means a loopback address.
    pub fn contains_ipv4_loopback(&self) -> bool {
        let nowhere = IpAddr::V4(Ipv4Addr::LOCALHOST);
        self.select(Family::V4, nowhere)
            .contains_ipv4_loopback(Family::V4)
    }

    /// What the list means for one family, given the node's own address in it.
    fn select(&self, family: Family, node_ip: IpAddr) -> NodePorts {
        let mut nets = Vec::new();
        let mut asked_primary = false;
        for entry in &self.0 {
            match entry {
                NodePortEntry::Net(net) if Family::of_net(net) != family => {}
                NodePortEntry::Net(net) if net.prefix_len() == 0 => return NodePorts::All,
                NodePortEntry::Net(net) => nets.push(*net),
                NodePortEntry::All => return NodePorts::All,
                NodePortEntry::Localhost => nets.push(match family {
                    Family::V4 => Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8).into(),
                    Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST).into(),
                }),
                NodePortEntry::Primary => {
                    asked_primary = true;
                    if !node_ip.is_loopback() {
                        nets.push(IpNet::from(node_ip));
                    }
                }
            }
        }
        match nets {
            nets if !nets.is_empty() => NodePorts::Within(nets.into()),
            // Asked for the node's own address and there is none: opening every address instead,
            // as kube-proxy does, is the opposite of what was asked.
            _ if asked_primary => NodePorts::Nowhere,
            _ => NodePorts::All,
        }
    }
}

/// On which addresses of this node NodePorts answer, for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePorts {
    /// On every local address.
    All,
    /// On local addresses inside these networks.
    Within(Box<[IpNet]>),
    /// On none: `primary` was asked for and the node has no address in this family.
    Nowhere,
}

impl NodePorts {
    /// Of the machine's addresses, those that serve NodePorts: sorted, each once.
    pub fn among(&self, local: &[IpAddr], family: Family) -> Vec<IpAddr> {
        let mut chosen: Vec<IpAddr> = local
            .iter()
            .copied()
            .filter(|ip| Family::of(*ip) == family)
            .filter(|ip| match self {
                Self::All => true,
                Self::Within(nets) => nets.iter().any(|net| net.contains(ip)),
                Self::Nowhere => false,
            })
            .collect();
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }

    /// Whether `127.0.0.0/8` is meant as well; only then may localhost reach NodePorts.
    pub fn contains_ipv4_loopback(&self, family: Family) -> bool {
        let first = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0));
        family == Family::V4
            && match self {
                Self::All => true,
                Self::Within(nets) => nets
                    .iter()
                    .any(|net| net.addr().is_loopback() || net.contains(&first)),
                Self::Nowhere => false,
            }
    }
}

/// What holds on this node for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The zone of the node.
    pub zone: Option<Arc<str>>,
    /// The node's address; loopback when unknown.
    pub node_ip: IpAddr,
    /// How to recognise traffic from pods; `None` when there is no way.
    pub detector: Option<Detector>,
    /// Whose traffic to cluster IPs gets this node's address as its source: everybody's, that of
    /// clients outside the pod network, or nobody's.
    pub cluster_ip_masquerade: Masquerade,
    /// Where NodePorts answer.
    pub node_ports: NodePorts,
    /// The cluster's Service networks, sorted.
    pub service_cidrs: Box<[IpNet]>,
}

impl Facts {
    /// Combines configuration and API objects.
    pub fn build(
        settings: &Settings,
        node: Option<&Node>,
        service_cidrs: &[IpNet],
    ) -> PerFamily<Self> {
        let addresses = node.map_or(&[][..], |node| &node.addresses);
        let (_, node_ips) = node_ips(addresses, settings.bind_address);
        let detectors = PerFamily::from_fn(|family| detector(&settings.detect_local, node, family));
        PerFamily::from_fn(|family| Self {
            zone: node.and_then(|node| node.zone.clone()),
            node_ip: node_ips[family],
            cluster_ip_masquerade: match &detectors[family] {
                _ if settings.masquerade_all => Masquerade::Always,
                Some(_) => Masquerade::Outside,
                // Pods cannot be recognised; masquerading would hide their addresses.
                None => Masquerade::Never,
            },
            detector: detectors[family].clone(),
            node_ports: settings
                .node_port_addresses
                .select(family, node_ips[family]),
            service_cidrs: service_cidrs
                .iter()
                .filter(|net| Family::of_net(net) == family)
                .copied()
                .collect(),
        })
    }
}

/// The node's address in each family, and its primary family.
///
/// At most one address per family counts: the first one, and the first later one of the other
/// family. Unknown addresses are loopback. A `bind` address overrides its family and makes it
/// primary.
pub fn node_ips(addresses: &[IpAddr], bind: Option<IpAddr>) -> (Family, PerFamily<IpAddr>) {
    let mut ips = PerFamily {
        v4: IpAddr::V4(Ipv4Addr::LOCALHOST),
        v6: IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    let mut primary = Family::V4;
    if let Some(first) = addresses.first() {
        primary = Family::of(*first);
        let second = addresses.iter().find(|ip| Family::of(**ip) != primary);
        for ip in std::iter::once(first).chain(second) {
            ips[Family::of(*ip)] = *ip;
        }
    }
    if let Some(bind) = bind.filter(|ip| !ip.is_unspecified()) {
        primary = Family::of(bind);
        ips[primary] = bind;
    }
    (primary, ips)
}

fn detector(mode: &DetectLocal, node: Option<&Node>, family: Family) -> Option<Detector> {
    let first = |nets: &[IpNet]| {
        nets.iter()
            .find(|net| Family::of_net(net) == family)
            .map(|net| Detector::Source(*net))
    };
    match mode {
        DetectLocal::ClusterCidr(cidrs) => first(cidrs),
        DetectLocal::NodeCidr => node.and_then(|node| first(&node.pod_cidrs)),
        DetectLocal::BridgeInterface(name) => Some(Detector::Interface(name.clone())),
        DetectLocal::InterfaceNamePrefix(prefix) => Some(Detector::InterfacePrefix(prefix.clone())),
    }
}
