//! A Service as a node proxy needs it.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use ipnet::IpNet;

use super::{PerFamily, Port, Protocol, ServiceKey};

/// How long a client sticks to its endpoint when the Service does not say (three hours).
pub const DEFAULT_AFFINITY_SECONDS: NonZeroU32 =
    NonZeroU32::new(10_800).expect("the constant is not zero");

/// A Service that has at least one cluster IP. Headless and `ExternalName` Services never get
/// this far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Who it is.
    pub key: ServiceKey,
    /// When it was created, in seconds since 1970; 0 when unknown. Older Services win an address
    /// that two of them claim.
    pub created: i64,
    /// `spec.type`
    pub kind: ServiceType,
    /// The cluster IP of each family it has.
    pub cluster_ips: PerFamily<Option<IpAddr>>,
    /// `spec.externalIPs`, both families.
    pub external_ips: Box<[IpAddr]>,
    /// Load balancer addresses this node must answer itself (`ipMode: VIP`), both families.
    pub load_balancer_ips: Box<[IpAddr]>,
    /// Load balancer addresses whose traffic arrives by another address (`ipMode: Proxy`), both
    /// families. They change nothing here; people ask after them.
    pub proxied_ips: Box<[IpAddr]>,
    /// `spec.loadBalancerSourceRanges`, both families, as written.
    pub source_ranges: Box<[IpNet]>,
    /// `spec.internalTrafficPolicy`
    pub internal_policy: TrafficPolicy,
    /// `spec.externalTrafficPolicy`, as written: [`Service::external_policy`] says whether it
    /// counts.
    pub external_policy_field: TrafficPolicy,
    /// `spec.healthCheckNodePort`, as written: [`Service::health_check_port`] says whether it
    /// counts.
    pub health_check_field: Option<Port>,
    /// Seconds a client stays with its endpoint; `None` without `sessionAffinity: ClientIP`.
    pub affinity_seconds: Option<NonZeroU32>,
    /// The scheduler it asks for, in modes that have several.
    pub scheduler: Option<Arc<str>>,
    /// Endpoints are told the client's address by a header of the PROXY protocol, in modes that
    /// stand between the two.
    pub proxy_header: bool,
    /// Its ports; names and protocols are unique.
    pub ports: Box<[ServicePort]>,
}

/// One entry of `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, empty if unnamed.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port on cluster, external and load balancer IPs.
    pub port: Port,
    /// The port on node addresses. Taken whatever `spec.type` says, as kube-proxy does.
    pub node_port: Option<Port>,
}

/// `spec.type`, as far as a proxy can tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceType {
    /// Reachable inside the cluster.
    ClusterIp,
    /// Also on a port of every node.
    NodePort,
    /// Also through a load balancer.
    LoadBalancer,
}

/// Which endpoints may serve: all, or only those on the node that received the traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficPolicy {
    /// Endpoints anywhere.
    #[default]
    Cluster,
    /// Endpoints of this node only.
    Local,
}

impl TrafficPolicy {
    /// The word of the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        }
    }
}

impl Service {
    /// The external policy in force. `Local` means nothing on a Service that no outside traffic
    /// can reach by type.
    pub fn external_policy(&self) -> TrafficPolicy {
        let reachable = match self.kind {
            ServiceType::NodePort | ServiceType::LoadBalancer => true,
            ServiceType::ClusterIp => !self.external_ips.is_empty(),
        };
        if reachable {
            self.external_policy_field
        } else {
            TrafficPolicy::Cluster
        }
    }

    /// The port on which load balancers ask this node for local endpoints.
    pub fn health_check_port(&self) -> Option<Port> {
        let asked = self.kind == ServiceType::LoadBalancer
            && self.external_policy() == TrafficPolicy::Local;
        self.health_check_field.filter(|_| asked)
    }
}
