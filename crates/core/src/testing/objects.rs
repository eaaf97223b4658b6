//! Services, EndpointSlices and Nodes in few words.
//!
//! Every object begins as the plainest of its kind, and methods say what is special about it:
//! `service("demo/web").node_port(30001).external_local()`.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;

use ipnet::IpNet;

use crate::model::{
    Family, Node, PerFamily, Port, PortKey, Protocol, Service, ServiceKey, ServicePort,
    ServiceType, Slice, SliceEndpoint, SliceKey, SlicePort, TrafficPolicy,
};

/// An address, or the text of one.
pub trait ToIp {
    /// The address.
    fn to_ip(self) -> IpAddr;
}

impl ToIp for IpAddr {
    fn to_ip(self) -> IpAddr {
        self
    }
}

impl<T: AsRef<str> + ?Sized> ToIp for &T {
    fn to_ip(self) -> IpAddr {
        self.as_ref().parse().unwrap()
    }
}

/// The address that is written so.
pub fn ip(text: &str) -> IpAddr {
    text.to_ip()
}

/// The port of this number.
pub fn port(number: i64) -> Port {
    Port::new(number).unwrap()
}

fn nets(texts: &[&str]) -> Box<[IpNet]> {
    texts.iter().map(|net| net.parse().unwrap()).collect()
}

fn ips<A: ToIp + Copy>(addresses: &[A]) -> Box<[IpAddr]> {
    addresses.iter().map(|address| address.to_ip()).collect()
}

/// `namespace/name`, or a name in the namespace `demo`.
fn split(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("demo", key))
}

/// The key of a Service: `namespace/name`, or a name in the namespace `demo`.
pub fn service_key(key: &str) -> ServiceKey {
    let (namespace, name) = split(key);
    ServiceKey::new(namespace, name)
}

/// The key of an EndpointSlice, written in the same way.
pub fn slice_key(key: &str) -> SliceKey {
    let (namespace, name) = split(key);
    SliceKey::new(namespace, name)
}

/// The key of the port `http` over TCP.
pub fn http(service: &str) -> PortKey {
    PortKey {
        service: service_key(service),
        name: "http".into(),
        protocol: Protocol::Tcp,
    }
}

/// A `ClusterIP` Service on `10.96.0.1`, port `http` 80/TCP.
pub fn service(key: &str) -> Service {
    Service {
        key: service_key(key),
        created: 0,
        kind: ServiceType::ClusterIp,
        cluster_ips: PerFamily {
            v4: Some(Ipv4Addr::new(10, 96, 0, 1).into()),
            v6: None,
        },
        external_ips: Box::default(),
        load_balancer_ips: Box::default(),
        proxied_ips: Box::default(),
        source_ranges: Box::default(),
        internal_policy: TrafficPolicy::Cluster,
        external_policy_field: TrafficPolicy::Cluster,
        health_check_field: None,
        affinity_seconds: None,
        scheduler: None,
        proxy_header: false,
        ports: [service_port("http", Protocol::Tcp, 80)].into(),
    }
}

/// A port of a Service, without NodePort.
pub fn service_port(name: &str, protocol: Protocol, number: i64) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol,
        port: port(number),
        node_port: None,
    }
}

impl Service {
    /// With this cluster IP, in addition to one of the other family.
    #[must_use]
    pub fn cluster_ip(mut self, address: impl ToIp) -> Self {
        let ip = address.to_ip();
        self.cluster_ips[Family::of(ip)] = Some(ip);
        self
    }

    /// With this cluster IP and no other.
    #[must_use]
    pub fn at(mut self, address: impl ToIp) -> Self {
        self.cluster_ips = PerFamily::default();
        self.cluster_ip(address)
    }

    /// With another name and number of its first port.
    #[must_use]
    pub fn port(mut self, name: &str, number: i64) -> Self {
        self.ports[0].name = name.into();
        self.ports[0].port = port(number);
        self
    }

    /// With a NodePort for its first port.
    #[must_use]
    pub fn node_port(mut self, number: i64) -> Self {
        if self.kind == ServiceType::ClusterIp {
            self.kind = ServiceType::NodePort;
        }
        self.ports[0].node_port = Some(port(number));
        self
    }

    /// With these external IPs.
    #[must_use]
    pub fn external_ips<A: ToIp + Copy>(mut self, addresses: &[A]) -> Self {
        self.external_ips = ips(addresses);
        self
    }

    /// With a load balancer that has these addresses.
    #[must_use]
    pub fn load_balancer<A: ToIp + Copy>(mut self, addresses: &[A]) -> Self {
        self.kind = ServiceType::LoadBalancer;
        self.load_balancer_ips = ips(addresses);
        self
    }

    /// With a load balancer that has no address yet.
    #[must_use]
    pub fn awaiting_load_balancer(self) -> Self {
        self.load_balancer::<IpAddr>(&[])
    }

    /// With a load balancer that serves only these networks.
    #[must_use]
    pub fn source_ranges(mut self, networks: &[&str]) -> Self {
        self.source_ranges = nets(networks);
        self
    }

    /// With `internalTrafficPolicy: Local`.
    #[must_use]
    pub fn internal_local(mut self) -> Self {
        self.internal_policy = TrafficPolicy::Local;
        self
    }

    /// With `externalTrafficPolicy: Local`.
    #[must_use]
    pub fn external_local(mut self) -> Self {
        self.external_policy_field = TrafficPolicy::Local;
        self
    }

    /// With session affinity for this time.
    #[must_use]
    pub fn affinity(mut self, seconds: u32) -> Self {
        self.affinity_seconds = NonZeroU32::new(seconds);
        self
    }

    /// With its first port over UDP.
    #[must_use]
    pub fn udp(mut self) -> Self {
        self.ports[0].protocol = Protocol::Udp;
        self
    }

    /// With its first port over each of these protocols, named after it.
    #[must_use]
    pub fn over(mut self, protocols: &[Protocol]) -> Self {
        let first = self.ports[0].clone();
        let each = protocols.iter().map(|protocol| ServicePort {
            name: protocol.lower().into(),
            protocol: *protocol,
            ..first.clone()
        });
        self.ports = each.collect();
        self
    }
}

/// A slice of one Service with port `http` 8080/TCP; the family is that of the first endpoint.
pub fn slice(key: &str, service: &str, endpoints: &[SliceEndpoint]) -> Slice {
    Slice {
        key: slice_key(key),
        service: service_key(service),
        family: endpoints
            .first()
            .map_or(Family::V4, |endpoint| Family::of(endpoint.ip)),
        ports: [slice_port("http", Protocol::Tcp, 8080)].into(),
        endpoints: endpoints.into(),
    }
}

/// A port of a slice.
pub fn slice_port(name: &str, protocol: Protocol, number: i64) -> SlicePort {
    SlicePort {
        name: name.into(),
        protocol,
        port: port(number),
    }
}

impl Slice {
    /// The first slice of a Service in the family of its cluster IP: all its ports lead to this
    /// one of the endpoints.
    pub fn of(service: &Service, number: i64, endpoints: &[SliceEndpoint]) -> Self {
        let mut families = Family::ALL.into_iter();
        let (namespace, name) = (service.key.namespace(), service.key.name());
        Self {
            key: SliceKey::new(namespace, &format!("{name}-1")),
            service: service.key.clone(),
            family: families
                .find(|family| service.cluster_ips[*family].is_some())
                .unwrap(),
            ports: service
                .ports
                .iter()
                .map(|own| slice_port(&own.name, own.protocol, number))
                .collect(),
            endpoints: endpoints.into(),
        }
    }

    /// Over UDP.
    #[must_use]
    pub fn udp(mut self) -> Self {
        self.ports[0].protocol = Protocol::Udp;
        self
    }

    /// With its first port over each of these protocols, named after it.
    #[must_use]
    pub fn over(mut self, protocols: &[Protocol]) -> Self {
        let number = self.ports[0].port;
        let each = protocols.iter().map(|protocol| SlicePort {
            name: protocol.lower().into(),
            protocol: *protocol,
            port: number,
        });
        self.ports = each.collect();
        self
    }
}

/// A ready endpoint on another node.
pub fn ep(address: impl ToIp) -> SliceEndpoint {
    SliceEndpoint {
        ip: address.to_ip(),
        local: false,
        ready: true,
        serving: true,
        terminating: false,
        node_hint: None,
        zone_hints: None,
    }
}

/// Ready endpoints; each is an address and whether it is on this node.
pub fn eps(endpoints: &[(IpAddr, bool)]) -> Vec<SliceEndpoint> {
    let each = endpoints.iter().map(|(ip, local)| SliceEndpoint {
        local: *local,
        ..ep(*ip)
    });
    each.collect()
}

impl SliceEndpoint {
    /// On this node.
    #[must_use]
    pub fn local(mut self) -> Self {
        self.local = true;
        self
    }

    /// Not ready, and not shutting down either.
    #[must_use]
    pub fn unready(mut self) -> Self {
        (self.ready, self.serving, self.terminating) = (false, false, false);
        self
    }

    /// Shutting down, and still answering.
    #[must_use]
    pub fn drain(mut self) -> Self {
        (self.ready, self.serving, self.terminating) = (false, true, true);
        self
    }

    /// Shutting down, and not answering any more.
    #[must_use]
    pub fn dead(mut self) -> Self {
        (self.ready, self.serving, self.terminating) = (false, false, true);
        self
    }

    /// Hinted for these zones.
    #[must_use]
    pub fn zones(mut self, zones: &[&str]) -> Self {
        self.zone_hints = Some(zones.iter().map(|zone| Box::from(*zone)).collect());
        self
    }

    /// Hinted for nodes, this one among them or not.
    #[must_use]
    pub fn for_node(mut self, this: bool) -> Self {
        self.node_hint = Some(this);
        self
    }
}

/// This node, `here` on `192.0.2.1`, in a zone.
pub fn node(zone: &str) -> Node {
    Node {
        name: "here".into(),
        zone: Some(zone.into()),
        addresses: [ip("192.0.2.1")].into(),
        pod_cidrs: Box::default(),
        leaving: false,
    }
}

impl Node {
    /// With this address and no other.
    #[must_use]
    pub fn at(mut self, address: impl ToIp) -> Self {
        self.addresses = [address.to_ip()].into();
        self
    }

    /// With these networks for its pods.
    #[must_use]
    pub fn pods(mut self, networks: &[&str]) -> Self {
        self.pod_cidrs = nets(networks);
        self
    }
}
