//! Small clusters in few words, for tests.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::desired::{Action, Delta, Desired, Exposure, Frontend, FrontendKind};
use crate::facts::Settings;
use crate::issue::{Kind, ObjectKey};
use crate::model::{
    Family, Node, PerFamily, Port, PortKey, Protocol, Service, ServiceCidr, ServiceKey,
    ServicePort, ServiceType, Slice, SliceEndpoint, SliceKey, SlicePort, TrafficPolicy,
};
use crate::track::{Changes, Event, Object, Tracker};

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn port(number: i64) -> Port {
    Port::new(number).unwrap()
}

fn split(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap()
}

pub(crate) fn service_key(key: &str) -> ServiceKey {
    let (namespace, name) = split(key);
    ServiceKey::new(namespace, name)
}

pub(crate) fn slice_key(key: &str) -> SliceKey {
    let (namespace, name) = split(key);
    SliceKey::new(namespace, name)
}

/// The key of the port `http` over TCP.
pub(crate) fn http(service: &str) -> PortKey {
    PortKey {
        service: service_key(service),
        name: "http".into(),
        protocol: Protocol::Tcp,
    }
}

/// A `ClusterIP` Service on `10.96.0.1`, port `http` 80/TCP.
pub(crate) fn service(key: &str) -> Service {
    Service {
        key: service_key(key),
        created: 0,
        kind: ServiceType::ClusterIp,
        cluster_ips: PerFamily {
            v4: Some(ip("10.96.0.1")),
            v6: None,
        },
        external_ips: Box::default(),
        load_balancer_ips: Box::default(),
        source_ranges: Box::default(),
        internal_policy: TrafficPolicy::Cluster,
        external_policy_field: TrafficPolicy::Cluster,
        health_check_field: None,
        affinity_seconds: None,
        ports: [service_port("http", Protocol::Tcp, 80)].into(),
    }
}

pub(crate) fn service_port(name: &str, protocol: Protocol, number: i64) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol,
        port: port(number),
        node_port: None,
    }
}

impl Service {
    pub(crate) fn cluster_ip(mut self, text: &str) -> Self {
        let ip = ip(text);
        self.cluster_ips[Family::of(ip)] = Some(ip);
        self
    }

    pub(crate) fn node_port(mut self, number: i64) -> Self {
        self.kind = ServiceType::NodePort;
        self.ports[0].node_port = Some(port(number));
        self
    }

    pub(crate) fn external_ips(mut self, ips: &[&str]) -> Self {
        self.external_ips = ips.iter().map(|text| ip(text)).collect();
        self
    }

    pub(crate) fn load_balancer(mut self, ips: &[&str]) -> Self {
        self.kind = ServiceType::LoadBalancer;
        self.load_balancer_ips = ips.iter().map(|text| ip(text)).collect();
        self
    }

    pub(crate) fn source_ranges(mut self, nets: &[&str]) -> Self {
        self.source_ranges = nets.iter().map(|net| net.parse().unwrap()).collect();
        self
    }

    pub(crate) fn internal_local(mut self) -> Self {
        self.internal_policy = TrafficPolicy::Local;
        self
    }

    pub(crate) fn external_local(mut self) -> Self {
        self.external_policy_field = TrafficPolicy::Local;
        self
    }

    pub(crate) fn udp(mut self) -> Self {
        self.ports[0].protocol = Protocol::Udp;
        self
    }
}

/// A slice of one Service with port `http` 8080/TCP; the family is that of the first endpoint.
pub(crate) fn slice(key: &str, service: &str, endpoints: &[SliceEndpoint]) -> Slice {
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

pub(crate) fn slice_port(name: &str, protocol: Protocol, number: i64) -> SlicePort {
    SlicePort {
        name: name.into(),
        protocol,
        port: port(number),
    }
}

impl Slice {
    pub(crate) fn udp(mut self) -> Self {
        self.ports[0].protocol = Protocol::Udp;
        self
    }
}

/// A ready endpoint on another node.
pub(crate) fn ep(text: &str) -> SliceEndpoint {
    SliceEndpoint {
        ip: ip(text),
        local: false,
        ready: true,
        serving: true,
        terminating: false,
        node_hint: None,
        zone_hints: None,
    }
}

impl SliceEndpoint {
    pub(crate) fn local(mut self) -> Self {
        self.local = true;
        self
    }

    pub(crate) fn unready(mut self) -> Self {
        (self.ready, self.serving, self.terminating) = (false, false, false);
        self
    }

    pub(crate) fn drain(mut self) -> Self {
        (self.ready, self.serving, self.terminating) = (false, true, true);
        self
    }

    pub(crate) fn dead(mut self) -> Self {
        (self.ready, self.serving, self.terminating) = (false, false, true);
        self
    }

    pub(crate) fn zones(mut self, zones: &[&str]) -> Self {
        self.zone_hints = Some(zones.iter().map(|zone| Box::from(*zone)).collect());
        self
    }

    pub(crate) fn for_node(mut self, this: bool) -> Self {
        self.node_hint = Some(this);
        self
    }
}

pub(crate) fn node(zone: &str) -> Node {
    Node {
        name: "here".into(),
        zone: Some(zone.into()),
        addresses: [ip("192.0.2.1")].into(),
        pod_cidrs: Box::default(),
        leaving: false,
    }
}

pub(crate) fn put(object: Object) -> Event {
    Event::Put {
        object,
        issues: Vec::new(),
        trigger: None,
    }
}

pub(crate) fn gone(key: ObjectKey) -> Event {
    Event::Gone {
        key,
        issues: Vec::new(),
    }
}

pub(crate) fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// A tracker and what is desired from it.
pub(crate) struct Scene {
    pub(crate) tracker: Tracker,
    pub(crate) desired: Desired,
}

impl Scene {
    /// An empty cluster whose first lists are complete and taken.
    pub(crate) fn new() -> Self {
        Self::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> Self {
        let mut scene = Self {
            tracker: Tracker::new(at(1000)),
            desired: Desired::new(settings),
        };
        for kind in Kind::ALL {
            scene.tracker.on(Event::Listing(kind));
            scene.tracker.on(Event::Listed(kind));
        }
        assert!(scene.step().is_empty());
        scene
    }

    pub(crate) fn service(&mut self, service: Service) -> &mut Self {
        self.tracker.on(put(Object::Service(service)));
        self
    }

    pub(crate) fn slice(&mut self, slice: Slice) -> &mut Self {
        self.tracker.on(put(Object::Slice(slice)));
        self
    }

    pub(crate) fn node(&mut self, node: Node) -> &mut Self {
        self.tracker.on(put(Object::Node(node)));
        self
    }

    pub(crate) fn service_cidr(&mut self, name: &str, cidrs: &[&str]) -> &mut Self {
        let cidrs = cidrs.iter().map(|net| net.parse().unwrap()).collect();
        self.tracker.on(put(Object::ServiceCidr(ServiceCidr {
            name: name.into(),
            cidrs,
        })));
        self
    }

    pub(crate) fn no_service(&mut self, key: &str) -> &mut Self {
        self.tracker.on(gone(ObjectKey::Service(service_key(key))));
        self
    }

    pub(crate) fn no_slice(&mut self, key: &str) -> &mut Self {
        self.tracker.on(gone(ObjectKey::Slice(slice_key(key))));
        self
    }

    /// Takes what is pending, if anything.
    pub(crate) fn take(&mut self) -> Option<Changes> {
        self.tracker.take()
    }

    /// Brings the desired state up to date.
    pub(crate) fn step(&mut self) -> Delta {
        let changes = self.tracker.take().unwrap_or_default();
        self.desired.update(&self.tracker, changes)
    }

    /// The IPv4 exposure of a Service's port `http`.
    pub(crate) fn exposure(&self, service: &str) -> Arc<Exposure> {
        let udp = PortKey {
            protocol: Protocol::Udp,
            ..http(service)
        };
        self.desired
            .exposure(Family::V4, &http(service))
            .or_else(|| self.desired.exposure(Family::V4, &udp))
            .unwrap_or_else(|| panic!("{service} exposes nothing"))
            .clone()
    }

    /// The only frontend of this kind of a Service's IPv4 port `http`.
    pub(crate) fn frontend(&self, service: &str, kind: FrontendKind) -> Frontend {
        let exposure = self.exposure(service);
        let mut found = exposure
            .frontends
            .iter()
            .filter(|frontend| frontend.kind == kind);
        let frontend = found.next().unwrap_or_else(|| panic!("no {kind:?}"));
        assert!(found.next().is_none(), "more than one {kind:?}");
        *frontend
    }

    /// `action endpoint endpoint…` of the frontend of this kind.
    pub(crate) fn answer(&self, service: &str, kind: FrontendKind) -> String {
        let exposure = self.exposure(service);
        describe(&exposure, self.frontend(service, kind).action)
    }

    /// The same for clients inside; empty when they get the same.
    pub(crate) fn inside(&self, service: &str, kind: FrontendKind) -> String {
        let exposure = self.exposure(service);
        self.frontend(service, kind)
            .inside
            .map_or_else(String::new, |action| describe(&exposure, action))
    }
}

fn describe(exposure: &Exposure, action: Action) -> String {
    let verb = match action {
        Action::Balance(_) => "balance",
        Action::Reject => "reject",
        Action::Drop => "drop",
    };
    let endpoints = exposure
        .behind(action)
        .map(|endpoint| endpoint.ip.to_string());
    std::iter::once(verb.to_owned())
        .chain(endpoints)
        .collect::<Vec<_>>()
        .join(" ")
}
