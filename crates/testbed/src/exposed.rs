//! Services with every kind of address in a [`Lab`], and how to ask them.
//!
//! The Service of number `n` answers on its cluster IP, on an external IP, on a load balancer's IP
//! and on a NodePort, each over TCP, UDP and SCTP. Its endpoints are pods of the lab.

use std::net::IpAddr;

use ferrule_core::facts::{DetectLocal, Settings};
use ferrule_core::model::{Family, Protocol as Port, Service, Slice};
use ferrule_core::testing::{eps, service};

use crate::ask::{Ask, Protocol};
use crate::lab::{Lab, address};
use crate::place::Place;
use crate::serve::PORT;

/// The NodePort of Service number 1; the next one has the next port.
pub const NODE_PORT: u16 = 30001;

/// Kinds of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of the Service itself.
    ClusterIp,
    /// Of `spec.externalIPs`.
    ExternalIp,
    /// Of a load balancer.
    LoadBalancerIp,
    /// The node's own address.
    NodePort,
}

/// All kinds of address.
pub const KINDS: [Kind; 4] = [
    Kind::ClusterIp,
    Kind::ExternalIp,
    Kind::LoadBalancerIp,
    Kind::NodePort,
];

/// Kinds of address that clients outside are to use.
pub const EXTERNAL: [Kind; 3] = [Kind::ExternalIp, Kind::LoadBalancerIp, Kind::NodePort];

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A pod on this node.
    Pod,
    /// The node itself.
    Node,
    /// Outside the cluster.
    Out,
}

/// All sides.
pub const SIDES: [Side; 3] = [Side::Pod, Side::Node, Side::Out];

/// The protocols of the ports of these Services, as objects name them.
const PROTOCOLS: [Port; 3] = [Port::Tcp, Port::Udp, Port::Sctp];

/// A Service with every kind of address, over every protocol.
pub fn full(family: Family, name: &str, number: u8) -> Service {
    let a = |x| address(family, x, number);
    service(name)
        .at(a(96))
        .external_ips(&[a(8)])
        .load_balancer(&[a(9)])
        .node_port(i64::from(node_port(number)))
        .over(&PROTOCOLS)
}

/// The same for traffic that stays on the node.
pub fn local(service: Service) -> Service {
    service.internal_local().external_local()
}

const fn node_port(number: u8) -> u16 {
    NODE_PORT + number as u16 - 1
}

impl Lab {
    /// A Service with every kind of address, over every protocol.
    pub fn full(&self, name: &str, number: u8) -> Service {
        full(self.family, name, number)
    }

    /// Both pods, or some of them, as endpoints of a Service over every protocol.
    pub fn pods(&self, name: &str, numbers: &[u8]) -> Slice {
        let all = [(1, (self.here_ip(), true)), (2, (self.far_ip(), false))];
        let chosen = all.iter().filter(|(number, _)| numbers.contains(number));
        let chosen: Vec<_> = chosen.map(|(_, pod)| *pod).collect();
        Slice::of(&self.full(name, 1), i64::from(PORT), &eps(&chosen))
    }

    /// Pods are recognised by their network.
    pub fn by_pod_net(&self) -> Settings {
        let net = self.pod_net().parse().unwrap();
        Settings {
            detect_local: DetectLocal::ClusterCidr([net].into()),
            ..Settings::default()
        }
    }

    /// Where the Service of this number answers.
    pub fn target(&self, kind: Kind, number: u8) -> (IpAddr, u16) {
        let a = |x| address(self.family, x, number);
        match kind {
            Kind::ClusterIp => (a(96), 80),
            Kind::ExternalIp => (a(8), 80),
            Kind::LoadBalancerIp => (a(9), 80),
            Kind::NodePort => (self.node_ip(), node_port(number)),
        }
    }

    /// A question to the Service of this number.
    pub fn ask(&self, protocol: Protocol, kind: Kind, number: u8) -> Ask {
        let (to, port) = self.target(kind, number);
        Ask::new(protocol, to, port)
    }

    /// Where clients of this side are.
    pub const fn side(&self, side: Side) -> &Place {
        match side {
            Side::Pod => &self.pod,
            Side::Node => &self.node,
            Side::Out => &self.out,
        }
    }
}
