//! What things are called in the kernel, and of what type they are.
//!
//! Names without prefix are kube-proxy's, and so are their types and flags: it refuses to start
//! over a table in which one of its names means something else. What it does not have is called
//! `ferrule-…`, or `pick-…`, `stay-…` and `sources-…` for chains. No name of ours contains `/`, by which
//! kube-proxy tells the chains that it may delete.

use std::net::IpAddr;
use std::num::NonZeroU32;

use ferrule_core::desired::{Endpoint, Pool};
use ferrule_core::model::PortKey;
use ferrule_kernel::Family;
use ferrule_kernel::nft::{Chain, ChainKind, Field, Hook, MapData, Name, Set, Table, Timeout};

/// The table, in each family.
pub const TABLE: &str = "kube-proxy";
const INTERIM: &str = "ferrule-interim";

/// Chains that packets enter by themselves.
pub const FILTER_PREROUTING: &str = "filter-prerouting-pre-dnat";
pub const FILTER_OUTPUT_PRE: &str = "filter-output-pre-dnat";
pub const FILTER_INPUT: &str = "filter-input";
pub const FILTER_FORWARD: &str = "filter-forward";
pub const FILTER_OUTPUT: &str = "filter-output";
pub const NAT_PREROUTING: &str = "nat-prerouting";
pub const NAT_OUTPUT: &str = "nat-output";
pub const NAT_POSTROUTING: &str = "nat-postrouting";

/// Chains that they lead to.
pub const NODEPORT_CHECK: &str = "nodeport-endpoints-check";
pub const SERVICE_CHECK: &str = "service-endpoints-check";
pub const FIREWALL_CHECK: &str = "firewall-check";
pub const SERVICES: &str = "services";
pub const MASQUERADING: &str = "masquerading";
pub const CLUSTER_IPS_CHECK: &str = "cluster-ips-check";
pub const REJECT: &str = "reject-chain";

/// Ours: outside traffic stays on this node.
pub const EXTERNAL_LOCAL: &str = "ferrule-external-local";
pub const NODEPORT_LOCAL: &str = "ferrule-nodeport-local";

/// The table with kube-proxy's comment.
pub fn table() -> Table {
    Table {
        comment: Some("rules for kube-proxy".into()),
        ..Table::new(TABLE)
    }
}

/// The one that stands in for it. The kernel deletes it should we die meanwhile.
pub fn interim() -> Table {
    Table {
        flags: Table::OWNER,
        comment: Some("stands in while the table kube-proxy is replaced".into()),
        ..Table::new(INTERIM)
    }
}

/// All chains that are always there.
pub fn chains() -> Vec<Chain> {
    use ChainKind::{Filter, Nat};
    let mut chains = vec![
        Chain::base(FILTER_PREROUTING, Filter, Hook::Prerouting, -110),
        Chain::base(FILTER_OUTPUT_PRE, Filter, Hook::Output, -110),
        Chain::base(FILTER_INPUT, Filter, Hook::Input, 0),
        Chain::base(FILTER_FORWARD, Filter, Hook::Forward, 0),
        Chain::base(FILTER_OUTPUT, Filter, Hook::Output, 0),
        Chain::base(NAT_PREROUTING, Nat, Hook::Prerouting, -100),
        Chain::base(NAT_OUTPUT, Nat, Hook::Output, -100),
        Chain::base(NAT_POSTROUTING, Nat, Hook::Postrouting, 100),
    ];
    let regular = [
        NODEPORT_CHECK,
        SERVICE_CHECK,
        FIREWALL_CHECK,
        SERVICES,
        MASQUERADING,
        CLUSTER_IPS_CHECK,
        EXTERNAL_LOCAL,
        NODEPORT_LOCAL,
    ];
    chains.extend(regular.map(Chain::new));
    chains.push(Chain {
        comment: Some("helper for @no-endpoint-services / @no-endpoint-nodeports".into()),
        ..Chain::new(REJECT)
    });
    chains
}

/// A set or map. Their order is the one in which elements are added: who is led to comes before
/// who leads there, and `cluster-ips`, which makes unknown ports be refused, comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Container {
    /// Endpoints of a Service address, numbered.
    Endpoints,
    /// Endpoints of a NodePort, numbered.
    NodePortEndpoints,
    /// Connections of a pod to itself.
    Hairpin,
    /// Load balancer addresses that not everybody may use.
    FirewallIps,
    /// Where clients inside the cluster go at an address that keeps outside traffic on the node.
    Inside,
    /// Where clients outside go there.
    Outside,
    /// The same for NodePorts.
    NodePortInside,
    /// The same for NodePorts.
    NodePortOutside,
    /// Service addresses without endpoints.
    NoEndpointServices,
    /// NodePorts without endpoints.
    NoEndpointNodePorts,
    /// Service addresses.
    ServiceIps,
    /// NodePorts.
    ServiceNodePorts,
    /// Networks in which NodePorts answer, if not everywhere.
    NodePortNets,
    /// The cluster's Service networks.
    ServiceCidrs,
    /// Cluster IPs in use.
    ClusterIps,
}

impl Container {
    /// All, in order.
    pub const ALL: [Self; 15] = [
        Self::Endpoints,
        Self::NodePortEndpoints,
        Self::Hairpin,
        Self::FirewallIps,
        Self::Inside,
        Self::Outside,
        Self::NodePortInside,
        Self::NodePortOutside,
        Self::NoEndpointServices,
        Self::NoEndpointNodePorts,
        Self::ServiceIps,
        Self::ServiceNodePorts,
        Self::NodePortNets,
        Self::ServiceCidrs,
        Self::ClusterIps,
    ];

    /// The name in the kernel.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Endpoints => "ferrule-endpoints",
            Self::NodePortEndpoints => "ferrule-nodeport-endpoints",
            Self::Hairpin => "hairpin-connections",
            Self::FirewallIps => "firewall-ips",
            Self::Inside => "ferrule-inside",
            Self::Outside => "ferrule-outside",
            Self::NodePortInside => "ferrule-nodeport-inside",
            Self::NodePortOutside => "ferrule-nodeport-outside",
            Self::NoEndpointServices => "no-endpoint-services",
            Self::NoEndpointNodePorts => "no-endpoint-nodeports",
            Self::ServiceIps => "service-ips",
            Self::ServiceNodePorts => "service-nodeports",
            Self::NodePortNets => "ferrule-nodeport-nets",
            Self::ServiceCidrs => "ferrule-service-cidrs",
            Self::ClusterIps => "cluster-ips",
        }
    }

    const fn comment(self) -> &'static str {
        match self {
            Self::Endpoints => "endpoints by Service address and slot",
            Self::NodePortEndpoints => "endpoints by NodePort and slot",
            Self::Hairpin => "service hairpin connections",
            Self::FirewallIps => "destinations that are subject to LoadBalancerSourceRanges",
            Self::Inside => "externalTrafficPolicy Local: clients in the cluster",
            Self::Outside => "externalTrafficPolicy Local: clients outside",
            Self::NodePortInside => "externalTrafficPolicy Local: NodePort clients in the cluster",
            Self::NodePortOutside => "externalTrafficPolicy Local: NodePort clients outside",
            Self::NoEndpointServices => {
                "vmap to drop or reject packets to services with no endpoints"
            }
            Self::NoEndpointNodePorts => {
                "vmap to drop or reject packets to service nodeports with no endpoints"
            }
            Self::ServiceIps => "ClusterIP, ExternalIP and LoadBalancer IP traffic",
            Self::ServiceNodePorts => "NodePort traffic",
            Self::NodePortNets => "networks in which NodePorts answer",
            Self::ServiceCidrs => "the cluster's Service networks",
            Self::ClusterIps => "Active ClusterIPs",
        }
    }

    /// The declaration.
    pub fn set(self, family: Family) -> Set {
        let address = Field::address(family);
        let nodeport = [Field::Protocol, Field::Port];
        let frontend = [address, Field::Protocol, Field::Port];
        let endpoint = [address, Field::Port];
        let name = self.name();
        let set = match self {
            Self::Endpoints => {
                let [address, protocol, port] = frontend;
                Set::map(name, [address, protocol, port, Field::Number], endpoint)
            }
            Self::NodePortEndpoints => {
                let [protocol, port] = nodeport;
                Set::map(name, [protocol, port, Field::Number], endpoint)
            }
            Self::Hairpin => Set::new(name, [address, address, Field::Protocol, Field::Port]),
            Self::FirewallIps
            | Self::Inside
            | Self::Outside
            | Self::NoEndpointServices
            | Self::ServiceIps => Set::verdicts(name, frontend),
            Self::NodePortInside
            | Self::NodePortOutside
            | Self::NoEndpointNodePorts
            | Self::ServiceNodePorts => Set::verdicts(name, nodeport),
            Self::NodePortNets | Self::ServiceCidrs => Set {
                interval: true,
                ..Set::new(name, [address])
            },
            Self::ClusterIps => Set::new(name, [address]),
        };
        set.comment(self.comment())
    }

    /// Whether several Service ports may put the same element there.
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::Hairpin | Self::ClusterIps)
    }

    /// Whether it holds ranges of addresses, which are only ever replaced together.
    pub const fn is_nets(self) -> bool {
        matches!(self, Self::NodePortNets | Self::ServiceCidrs)
    }
}

/// What of a packet is matched to find its Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MatchKey {
    /// Address, protocol and port.
    Address,
    /// Protocol and port, on an address of the node.
    NodePort,
}

impl MatchKey {
    /// The first of the two for an address, the other for a NodePort.
    pub const fn choose(self, address: Container, node_port: Container) -> Container {
        match self {
            Self::Address => address,
            Self::NodePort => node_port,
        }
    }
}

/// From how many slots a packet draws its endpoint.
///
/// A verdict that changes makes the kernel look at all verdicts of the table again. So most
/// Services lead to a chain for up to so many endpoints, and one more or less changes no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Draw {
    /// There is an endpoint in every one of them, and behind them those of another pool.
    Exactly(NonZeroU32),
    /// Some at the end may be empty: a packet that draws one of them draws again. A power of two.
    UpTo(NonZeroU32),
}

/// Up to so many endpoints make no difference to the verdict that leads to them. A Service that goes
/// from one to two and back, as in every rollout of a single pod, stays below it.
const FEWEST_SLOTS: u32 = 4;

impl Draw {
    /// To draw one of `count` endpoints, the last of their Service.
    pub fn up_to(count: NonZeroU32) -> Self {
        let slots = count.get().max(FEWEST_SLOTS).checked_next_power_of_two();
        match slots.and_then(NonZeroU32::new) {
            Some(slots) => Self::UpTo(slots),
            None => Self::Exactly(count),
        }
    }
}

/// A chain that chooses an endpoint. All Services that need the same share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pick {
    /// What of a packet is its key.
    pub match_key: MatchKey,
    /// The slot of the first endpoint.
    pub first: u32,
    /// From how many slots it draws.
    pub draw: Draw,
    /// Whether the client's address is replaced by this node's.
    pub masquerade: bool,
}

const PICK: &str = "pick-";
const NODEPORT_PICK: &str = "nodeport-pick-";

impl Pick {
    /// The name of the chain.
    pub fn name(&self) -> Name {
        let match_key = match self.match_key {
            MatchKey::Address => PICK,
            MatchKey::NodePort => NODEPORT_PICK,
        };
        let first = match self.first {
            0 => String::new(),
            first => format!("-from-{first}"),
        };
        let masquerade = if self.masquerade { "-masquerade" } else { "" };
        match self.draw {
            Draw::Exactly(slots) => format!("{match_key}{slots}{first}{masquerade}").into(),
            Draw::UpTo(slots) => format!("{match_key}up-to-{slots}{first}{masquerade}").into(),
        }
    }

    /// Whether a chain of this name is such a one.
    pub fn is_name(name: &str) -> bool {
        name.starts_with(PICK) || name.starts_with(NODEPORT_PICK)
    }
}

/// How the chains and sets of one Service port are called: `demo.web.http.tcp`. No part that an API
/// server lets through contains a dot; if one does, a number tells it from others.
pub fn label(key: &PortKey) -> String {
    let (namespace, service) = (key.service.namespace(), key.service.name());
    let protocol = key.protocol.lower();
    let label = format!("{namespace}.{service}.{}.{protocol}", key.name);
    if label.matches('.').count() == 3 {
        return label;
    }
    format!("{label}-{:016x}", hash(&format!("{key}/{protocol}")))
}

/// Longest name of a chain or set that the kernel takes, in bytes.
const LONGEST: usize = 255;

/// The name, or if the kernel would not take it, its beginning and a number made from all of it.
fn fitting(name: String) -> Name {
    if name.len() <= LONGEST {
        return name.into();
    }
    let mut end = LONGEST - 17;
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{:016x}", &name[..end], hash(&name)).into()
}

/// FNV-1a: the same in every version of the program, so that a restart finds its own names.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

const STAY: &str = "stay-";
const AFFINITY: &str = "ferrule-affinity-";

/// The chain of a Service port whose clients stay with their endpoint.
pub fn stay_chain(label: &str, pool: Pool, masquerade: bool) -> Name {
    let pool = match pool {
        Pool::Cluster => "",
        Pool::Local => "-local",
    };
    let masquerade = if masquerade { "-masquerade" } else { "" };
    fitting(format!("{STAY}{label}{pool}{masquerade}"))
}

/// The chain that leads to one endpoint and remembers who went there.
pub fn stay_endpoint_chain(label: &str, endpoint: &Endpoint) -> Name {
    fitting(format!("{STAY}{label}-{}", socket(endpoint)))
}

/// Whether a chain of this name is one of the two.
pub fn is_stay_chain(name: &str) -> bool {
    name.starts_with(STAY)
}

/// Address and port, without colons.
fn socket(endpoint: &Endpoint) -> String {
    let ip = endpoint.ip.to_string().replace(':', ".");
    format!("{ip}.{}", endpoint.port)
}

/// The set of clients that stay with one endpoint of a Service port. Rules say how long.
pub fn affinity_set(label: &str, endpoint: &Endpoint, size: NonZeroU32) -> Set {
    let field = match endpoint.ip {
        IpAddr::V4(_) => Field::Ipv4Addr,
        IpAddr::V6(_) => Field::Ipv6Addr,
    };
    let name = fitting(format!("{AFFINITY}{label}-{}", socket(endpoint)));
    Set {
        dynamic: true,
        timeout: Timeout::PerElement,
        size: Some(size),
        ..Set::new(name, [field])
    }
}

/// Whether a set of this name should be one of a Service port.
pub fn is_own_set_name(name: &str) -> bool {
    name.starts_with(AFFINITY) || name.starts_with(SOURCES_SET)
}

/// Whether this is such a set. Of another size it is one too: who is remembered there stays.
pub fn is_affinity_set(set: &Set, family: Family) -> bool {
    set.name.starts_with(AFFINITY)
        && set.key == [Field::address(family)]
        && set.data == MapData::None
        && set.dynamic
        && set.timeout == Timeout::PerElement
        && !set.interval
}

const SOURCES: &str = "sources-";
const SOURCES_SET: &str = "ferrule-sources-";

/// The chain that drops sources which may not use the load balancer addresses of a Service port.
pub fn sources_chain(label: &str) -> Name {
    fitting(format!("{SOURCES}{label}"))
}

/// Whether a chain of this name is such a one.
pub fn is_sources_chain(name: &str) -> bool {
    name.starts_with(SOURCES)
}

/// The ranges of sources that may use them.
pub fn sources_set(label: &str, family: Family) -> Set {
    let name = fitting(format!("{SOURCES_SET}{label}"));
    Set {
        interval: true,
        ..Set::new(name, [Field::address(family)])
    }
}

/// Whether this is such a set.
pub fn is_sources_set(set: &Set, family: Family) -> bool {
    set.name.starts_with(SOURCES_SET)
        && set.key == [Field::address(family)]
        && is_set_of_ranges(set)
}

fn is_set_of_ranges(set: &Set) -> bool {
    set.data == MapData::None
        && set.interval
        && (set.anonymous, set.dynamic, set.timeout) == (false, false, Timeout::None)
}

// The layout before: one chain and one set for the source ranges of all Services. To know them is to
// update such a table in place, with a firewall at every moment.
const FORMER_FIREWALL: &str = "ferrule-firewall";
const FORMER_SOURCES: &str = "ferrule-firewall-sources";

/// Whether a chain of this name was ours in an earlier version.
pub fn is_former_chain(name: &str) -> bool {
    name == FORMER_FIREWALL
}

/// Whether this set was ours in an earlier version.
pub fn is_former_set(set: &Set, family: Family) -> bool {
    let address = Field::address(family);
    &*set.name == FORMER_SOURCES
        && set.key == [address, Field::Protocol, Field::Port, address]
        && is_set_of_ranges(set)
}
