//! This node, and the cluster's Service address ranges, as the API server describes them.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

/// What the Node object of this node says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`
    pub name: Arc<str>,
    /// The zone label, if any.
    pub zone: Option<Arc<str>>,
    /// `status.addresses`: all `InternalIP`s in order, then all `ExternalIP`s.
    pub addresses: Box<[IpAddr]>,
    /// `spec.podCIDRs`
    pub pod_cidrs: Box<[IpNet]>,
    /// The node is on its way out (being deleted, or tainted so by the cluster autoscaler): load
    /// balancers should stop sending to it.
    pub leaving: bool,
}

/// One ServiceCIDR object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidr {
    /// `metadata.name`
    pub name: Arc<str>,
    /// `spec.cidrs`
    pub cidrs: Box<[IpNet]>,
}
