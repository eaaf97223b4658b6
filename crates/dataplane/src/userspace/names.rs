//! What things are called in the kernel.
//!
//! The table is ours alone: its name says so, and the kernel deletes it with the socket that made
//! it. While one process takes over from another there are two, so there are two names. Chains of
//! iptables have the names that kube-proxy gave them up to v1.25.

use ferrule_kernel::Family;
use ferrule_kernel::nft::{Chain, ChainKind, Field, Hook, Set, Table};

/// The tables. The second is used while a table of the first name is another process's.
pub const TABLES: [&str; 2] = ["ferrule-userspace", "ferrule-userspace-2"];

/// Chains that packets enter by themselves.
pub const NAT_PREROUTING: &str = "nat-prerouting";
pub const NAT_OUTPUT: &str = "nat-output";
pub const FILTER_PREROUTING: &str = "filter-prerouting";
pub const FILTER_OUTPUT_PRE: &str = "filter-output-pre-dnat";
pub const FILTER_INPUT: &str = "filter-input";
pub const FILTER_FORWARD: &str = "filter-forward";
pub const FILTER_OUTPUT: &str = "filter-output";

/// The same, if endpoints are to see their clients' addresses.
pub const TRANSPARENT_OUTPUT: &str = "transparent-output";
pub const TRANSPARENT_ANSWERS: &str = "transparent-answers";

/// Chains that they lead to.
pub const PORTALS: &str = "portals";
pub const INSIDE: &str = "portals-inside";
pub const NODE_PORTS: &str = "nodeports";
pub const NODE_PORTS_INSIDE: &str = "nodeports-inside";
pub const PROXIED: &str = "proxied";
pub const CHECK: &str = "refusals";
pub const CLUSTER_IPS: &str = "cluster-ips-check";
pub const FIREWALL_CHECK: &str = "firewall-check";
pub const FIREWALL: &str = "firewall";
pub const REJECT: &str = "reject-chain";

/// Before the hooks of the other modes, so that portals win while modes change.
const EARLIER: i32 = -10;
const DSTNAT: i32 = -100;

/// Connection tracking knows the packet by now, and nothing else has seen it.
const TRACKED: i32 = -190;

/// A table of this name. The kernel deletes it should we die.
pub fn table(name: &str) -> Table {
    Table {
        flags: Table::OWNER,
        comment: Some("portals of ferrule, mode userspace".into()),
        ..Table::new(name)
    }
}

/// All chains; those for clients' addresses only if they are wanted.
pub fn chains(transparent: bool) -> Vec<Chain> {
    use ChainKind::{Filter, Nat};
    let before_nat = DSTNAT + 2 * EARLIER;
    let mut chains = vec![
        Chain::base(FILTER_PREROUTING, Filter, Hook::Prerouting, before_nat),
        Chain::base(FILTER_OUTPUT_PRE, Filter, Hook::Output, before_nat),
        Chain::base(NAT_PREROUTING, Nat, Hook::Prerouting, DSTNAT + EARLIER),
        Chain::base(NAT_OUTPUT, Nat, Hook::Output, DSTNAT + EARLIER),
        Chain::base(FILTER_INPUT, Filter, Hook::Input, EARLIER),
        Chain::base(FILTER_FORWARD, Filter, Hook::Forward, EARLIER),
        Chain::base(FILTER_OUTPUT, Filter, Hook::Output, EARLIER),
    ];
    if transparent {
        chains.extend(transparent_chains());
    }
    let regular = [
        PORTALS,
        INSIDE,
        NODE_PORTS,
        NODE_PORTS_INSIDE,
        PROXIED,
        CHECK,
        CLUSTER_IPS,
        FIREWALL_CHECK,
        FIREWALL,
        REJECT,
    ];
    chains.extend(regular.map(Chain::new));
    chains
}

/// Base chains that connections need for as long as they live.
pub fn transparent_chains() -> [Chain; 2] {
    use ChainKind::Filter;
    [
        Chain::base(TRANSPARENT_OUTPUT, Filter, Hook::Output, TRACKED),
        Chain::base(TRANSPARENT_ANSWERS, Filter, Hook::Prerouting, TRACKED),
    ]
}

/// A set or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Container {
    /// Proxy ports of Service addresses.
    Portals,
    /// The same for clients inside the cluster, where that differs.
    Inside,
    /// Proxy ports of NodePorts.
    NodePorts,
    /// The same for clients inside the cluster, where that differs.
    NodePortsInside,
    /// Service addresses that refuse or drop.
    Refused,
    /// NodePorts that refuse or drop.
    RefusedNodePorts,
    /// All proxy ports.
    ProxyPorts,
    /// Cluster IPs in use.
    ClusterIps,
    /// The cluster's Service networks.
    ServiceCidrs,
    /// Networks in which NodePorts answer, if not everywhere.
    NodePortNets,
    /// Load balancer addresses that not everybody may use.
    FirewallIps,
    /// Sources that may use a load balancer address.
    FirewallSources,
}

impl Container {
    /// All, in the order in which they are shown.
    pub const ALL: [Self; 12] = [
        Self::Portals,
        Self::Inside,
        Self::NodePorts,
        Self::NodePortsInside,
        Self::Refused,
        Self::RefusedNodePorts,
        Self::ProxyPorts,
        Self::ClusterIps,
        Self::ServiceCidrs,
        Self::NodePortNets,
        Self::FirewallIps,
        Self::FirewallSources,
    ];

    /// Whether several Service ports may put the same element there: ports of a Service share its
    /// cluster IP.
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::ClusterIps)
    }

    /// The name in the kernel.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portals => "service-portals",
            Self::Inside => "service-portals-inside",
            Self::NodePorts => "nodeport-portals",
            Self::NodePortsInside => "nodeport-portals-inside",
            Self::Refused => "refused-services",
            Self::RefusedNodePorts => "refused-nodeports",
            Self::ProxyPorts => "proxy-ports",
            Self::ClusterIps => "cluster-ips",
            Self::ServiceCidrs => "service-cidrs",
            Self::NodePortNets => "nodeport-nets",
            Self::FirewallIps => "firewall-ips",
            Self::FirewallSources => "firewall-sources",
        }
    }

    const fn comment(self) -> &'static str {
        match self {
            Self::Portals => "proxy ports of Service addresses",
            Self::Inside => {
                "proxy ports of Service addresses for clients in the cluster, where that differs"
            }
            Self::NodePorts => "proxy ports of NodePorts",
            Self::NodePortsInside => {
                "proxy ports of NodePorts for clients in the cluster, where that differs"
            }
            Self::Refused => "Service addresses without endpoints",
            Self::RefusedNodePorts => "NodePorts without endpoints",
            Self::ProxyPorts => "ports on which the proxy listens",
            Self::ClusterIps => "cluster IPs in use",
            Self::ServiceCidrs => "the cluster's Service networks",
            Self::NodePortNets => "networks in which NodePorts answer",
            Self::FirewallIps => "destinations that are subject to LoadBalancerSourceRanges",
            Self::FirewallSources => "sources allowed by LoadBalancerSourceRanges",
        }
    }

    /// The declaration.
    pub fn set(self, family: Family) -> Set {
        let address = Field::address(family);
        let (frontend, node_port) = (
            [address, Field::Protocol, Field::Port],
            [Field::Protocol, Field::Port],
        );
        let name = self.name();
        let set = match self {
            Self::Portals | Self::Inside => Set::map(name, frontend, [Field::Port]),
            Self::NodePorts | Self::NodePortsInside => Set::map(name, node_port, [Field::Port]),
            Self::Refused | Self::FirewallIps => Set::verdicts(name, frontend),
            Self::RefusedNodePorts => Set::verdicts(name, node_port),
            Self::ProxyPorts => Set::new(name, node_port),
            Self::ClusterIps => Set::new(name, [address]),
            Self::FirewallSources => Set {
                interval: true,
                ..Set::new(name, [address, Field::Protocol, Field::Port, address])
            },
            Self::ServiceCidrs | Self::NodePortNets => Set {
                interval: true,
                ..Set::new(name, [address])
            },
        };
        set.comment(self.comment())
    }
}
