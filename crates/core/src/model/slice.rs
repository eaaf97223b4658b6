//! An EndpointSlice as a node proxy needs it.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Family, Port, Protocol, ServiceKey, SliceKey};

/// Zone names an endpoint is hinted for. Endpoints of one slice mostly share the same few, so
/// the set is shared too.
pub type Zones = Arc<[Box<str>]>;

/// One EndpointSlice: every endpoint answers on every port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Who it is.
    pub key: SliceKey,
    /// The Service it belongs to, by its label.
    pub service: ServiceKey,
    /// Family of all its addresses.
    pub family: Family,
    /// Backends. Before the ports, because they differ more often and fields compare in order.
    pub endpoints: Box<[SliceEndpoint]>,
    /// Backend ports.
    pub ports: Box<[SlicePort]>,
}

/// One entry of `ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// The name that pairs it with a Service port.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port the backend listens on.
    pub port: Port,
}

/// One entry of `endpoints`, as seen from this node.
///
/// Which node an endpoint runs on matters only as "here or elsewhere", so that is all we keep:
/// at 100,000 endpoints node names would cost more than everything else together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the API's conditions are independent bools"
)]
pub struct SliceEndpoint {
    /// The first address; kube-proxy uses no other.
    pub ip: IpAddr,
    /// Runs on this node.
    pub local: bool,
    /// May receive new traffic.
    pub ready: bool,
    /// Answers, though it may be shutting down.
    pub serving: bool,
    /// Is shutting down.
    pub terminating: bool,
    /// `hints.forNodes`: `None` without any, else whether this node is among them.
    pub node_hint: Option<bool>,
    /// `hints.forZones`: `None` without any.
    pub zone_hints: Option<Zones>,
}

impl SliceEndpoint {
    /// An endpoint that is shutting down but still answers: better than a refused connection.
    pub fn draining(&self) -> bool {
        self.serving && self.terminating
    }

    /// Whether it is hinted for `zone`.
    pub fn hinted_for_zone(&self, zone: &str) -> bool {
        self.zone_hints
            .as_ref()
            .is_some_and(|zones| zones.iter().any(|z| **z == *zone))
    }
}
