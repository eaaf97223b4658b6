//! What we know of the cluster, in our own light types, as seen from this node.
//!
//! API objects end at the program's `convert`; from here on there are parsed addresses, checked
//! ports and small enums. The types are compact because a node holds all Services of the cluster.

mod address;
mod name;
mod node;
mod service;
mod slice;

pub use address::{Family, PerFamily, format_socket, parse_cidr, parse_ip};
pub use name::{Port, PortKey, Protocol, ServiceKey, SliceKey};
pub use node::{Node, ServiceCidr};
pub use service::{DEFAULT_AFFINITY_SECONDS, Service, ServicePort, ServiceType, TrafficPolicy};
pub use slice::{Slice, SliceEndpoint, SlicePort, Zones};
