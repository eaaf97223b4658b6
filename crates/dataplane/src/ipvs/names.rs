//! Names that must equal kube-proxy's: chains, the interface, sets and what rules say about them.

use ferrule_core::model::{Family, Protocol};
use ferrule_kernel::ipset::Type;

use crate::xtables::chain::Chain;

/// The interface that holds all Service addresses.
pub const LINK: &str = "kube-ipvs0";
/// What made it; an interface of another kind belongs to another program.
pub const LINK_KIND: &str = "dummy";

pub const NODE_PORT: Chain = Chain::new("KUBE-NODE-PORT");
pub const LOAD_BALANCER: Chain = Chain::new("KUBE-LOAD-BALANCER");
pub const SOURCE_RANGES: Chain = Chain::new("KUBE-SOURCE-RANGES-FIREWALL");
pub const FILTER: Chain = Chain::new("KUBE-IPVS-FILTER");
pub const OUT_FILTER: Chain = Chain::new("KUBE-IPVS-OUT-FILTER");

/// A set that rules name. The order is kube-proxy's; the last two are our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    /// Endpoints of this node, each with itself as the client.
    LoopBack,
    /// Cluster IPs.
    ClusterIp,
    /// External IPs with policy Cluster.
    ExternalIp,
    /// External IPs with policy Local.
    ExternalIpLocal,
    /// Load balancer IPs.
    LoadBalancer,
    /// Load balancer IPs with source ranges.
    Firewalled,
    /// Load balancer IPs with policy Local.
    LoadBalancerLocal,
    /// Load balancer IPs that may use themselves as source.
    SourceIp,
    /// Load balancer IPs and who may use them.
    SourceCidr,
    /// NodePorts of TCP.
    NodePortTcp,
    /// Those with policy Local.
    NodePortTcpLocal,
    /// NodePorts of UDP.
    NodePortUdp,
    /// Those with policy Local.
    NodePortUdpLocal,
    /// NodePorts of SCTP. A bitmap of ports would never match SCTP.
    NodePortSctp,
    /// Those with policy Local.
    NodePortSctpLocal,
    /// Ports on which load balancers ask for local endpoints.
    HealthCheck,
    /// Addresses on the interface.
    Addresses,
    /// Addresses whose policy allows nobody an endpoint.
    NoEndpoint,
    /// Addresses whose policy allows clients outside no endpoint.
    NoLocalEndpoint,
}

/// Longest name of a set.
#[cfg(test)]
const LONGEST: usize = 31;

impl Set {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::LoopBack,
        Self::ClusterIp,
        Self::ExternalIp,
        Self::ExternalIpLocal,
        Self::LoadBalancer,
        Self::Firewalled,
        Self::LoadBalancerLocal,
        Self::SourceIp,
        Self::SourceCidr,
        Self::NodePortTcp,
        Self::NodePortTcpLocal,
        Self::NodePortUdp,
        Self::NodePortUdpLocal,
        Self::NodePortSctp,
        Self::NodePortSctpLocal,
        Self::HealthCheck,
        Self::Addresses,
        Self::NoEndpoint,
        Self::NoLocalEndpoint,
    ];

    /// Its name. Those of IPv6 are cut after 31 characters.
    pub const fn name(self, family: Family) -> &'static str {
        match family {
            Family::V4 => self.row().0,
            Family::V6 => self.row().1,
        }
    }

    /// What rules that name it say about it.
    pub const fn comment(self) -> &'static str {
        self.row().2
    }

    /// What it holds.
    pub const fn kind(self) -> Type {
        match self {
            Self::LoopBack | Self::SourceIp => Type::HashIpPortIp,
            Self::SourceCidr => Type::HashIpPortNet,
            Self::NodePortTcp
            | Self::NodePortTcpLocal
            | Self::NodePortUdp
            | Self::NodePortUdpLocal
            | Self::HealthCheck => Type::BitmapPort,
            Self::Addresses => Type::HashIp,
            Self::ClusterIp
            | Self::ExternalIp
            | Self::ExternalIpLocal
            | Self::LoadBalancer
            | Self::Firewalled
            | Self::LoadBalancerLocal
            | Self::NodePortSctp
            | Self::NodePortSctpLocal
            | Self::NoEndpoint
            | Self::NoLocalEndpoint => Type::HashIpPort,
        }
    }

    /// The set of NodePorts of this protocol, and that of those with policy Local.
    pub const fn node_ports(protocol: Protocol) -> (Self, Self) {
        match protocol {
            Protocol::Tcp => (Self::NodePortTcp, Self::NodePortTcpLocal),
            Protocol::Udp => (Self::NodePortUdp, Self::NodePortUdpLocal),
            Protocol::Sctp => (Self::NodePortSctp, Self::NodePortSctpLocal),
        }
    }

    /// Name for IPv4, name for IPv6, comment.
    const fn row(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::LoopBack => (
                "KUBE-LOOP-BACK",
                "KUBE-6-LOOP-BACK",
                "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose",
            ),
            Self::ClusterIp => (
                "KUBE-CLUSTER-IP",
                "KUBE-6-CLUSTER-IP",
                "Kubernetes service cluster ip + port for masquerade purpose",
            ),
            Self::ExternalIp => (
                "KUBE-EXTERNAL-IP",
                "KUBE-6-EXTERNAL-IP",
                "Kubernetes service external ip + port for masquerade and filter purpose",
            ),
            Self::ExternalIpLocal => (
                "KUBE-EXTERNAL-IP-LOCAL",
                "KUBE-6-EXTERNAL-IP-LOCAL",
                "Kubernetes service external ip + port with externalTrafficPolicy=local",
            ),
            Self::LoadBalancer => (
                "KUBE-LOAD-BALANCER",
                "KUBE-6-LOAD-BALANCER",
                "Kubernetes service lb portal",
            ),
            Self::Firewalled => (
                "KUBE-LOAD-BALANCER-FW",
                "KUBE-6-LOAD-BALANCER-FW",
                "Kubernetes service load balancer ip + port for load balancer with sourceRange",
            ),
            Self::LoadBalancerLocal => (
                "KUBE-LOAD-BALANCER-LOCAL",
                "KUBE-6-LOAD-BALANCER-LOCAL",
                "Kubernetes service load balancer ip + port with externalTrafficPolicy=local",
            ),
            Self::SourceIp => (
                "KUBE-LOAD-BALANCER-SOURCE-IP",
                "KUBE-6-LOAD-BALANCER-SOURCE-IP",
                "Kubernetes service load balancer ip + port + source IP for packet filter purpose",
            ),
            Self::SourceCidr => (
                "KUBE-LOAD-BALANCER-SOURCE-CIDR",
                "KUBE-6-LOAD-BALANCER-SOURCE-CID",
                "Kubernetes service load balancer ip + port + source cidr for packet filter purpose",
            ),
            Self::NodePortTcp => (
                "KUBE-NODE-PORT-TCP",
                "KUBE-6-NODE-PORT-TCP",
                "Kubernetes nodeport TCP port for masquerade purpose",
            ),
            Self::NodePortTcpLocal => (
                "KUBE-NODE-PORT-LOCAL-TCP",
                "KUBE-6-NODE-PORT-LOCAL-TCP",
                "Kubernetes nodeport TCP port with externalTrafficPolicy=local",
            ),
            Self::NodePortUdp => (
                "KUBE-NODE-PORT-UDP",
                "KUBE-6-NODE-PORT-UDP",
                "Kubernetes nodeport UDP port for masquerade purpose",
            ),
            Self::NodePortUdpLocal => (
                "KUBE-NODE-PORT-LOCAL-UDP",
                "KUBE-6-NODE-PORT-LOCAL-UDP",
                "Kubernetes nodeport UDP port with externalTrafficPolicy=local",
            ),
            Self::NodePortSctp => (
                "KUBE-NODE-PORT-SCTP-HASH",
                "KUBE-6-NODE-PORT-SCTP-HASH",
                "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'",
            ),
            Self::NodePortSctpLocal => (
                "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
                "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS",
                "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash \
                 ip:port'",
            ),
            Self::HealthCheck => (
                "KUBE-HEALTH-CHECK-NODE-PORT",
                "KUBE-6-HEALTH-CHECK-NODE-PORT",
                "Kubernetes health check node port",
            ),
            Self::Addresses => (
                "KUBE-IPVS-IPS",
                "KUBE-6-IPVS-IPS",
                "Addresses on the ipvs interface",
            ),
            Self::NoEndpoint => (
                "FERRULE-NO-ENDPOINT",
                "FERRULE-6-NO-ENDPOINT",
                "Service ip + port with internalTrafficPolicy=local and no local endpoint",
            ),
            Self::NoLocalEndpoint => (
                "FERRULE-NO-LOCAL-ENDPOINT",
                "FERRULE-6-NO-LOCAL-ENDPOINT",
                "Service ip + port with externalTrafficPolicy=local and no local endpoint",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipvs_026_names_of_sets_of_ipv6_fit_also_the_two_that_are_cut() {
        for set in Set::ALL {
            let mut name = set.name(Family::V4).replacen("KUBE-", "KUBE-6-", 1);
            name = name.replacen("FERRULE-", "FERRULE-6-", 1);
            name.truncate(LONGEST);
            assert_eq!(set.name(Family::V6), name);
            assert!(set.name(Family::V4).len() <= LONGEST);
        }
        let cut = [Set::SourceCidr, Set::NodePortSctpLocal].map(|set| set.name(Family::V6));
        assert_eq!(
            cut,
            [
                "KUBE-6-LOAD-BALANCER-SOURCE-CID",
                "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"
            ]
        );
    }
}
