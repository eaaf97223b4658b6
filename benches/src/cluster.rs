//! Clusters of any size, always the same for the same size.

use std::net::{IpAddr, Ipv4Addr};

use ferrule_core::issue::Kind;
use ferrule_core::model::{
    Family, PerFamily, Port, Protocol, Service, ServiceKey, ServicePort, ServiceType, Slice,
    SliceEndpoint, SliceKey, SlicePort, TrafficPolicy,
};
use ferrule_core::track::{Event, Object};

/// The number of endpoints of each Service.
pub const ENDPOINTS: u32 = 10;

/// Service number `n`: a cluster IP, one TCP port.
pub fn service(n: u32) -> Service {
    Service {
        key: key(n),
        created: i64::from(n),
        kind: ServiceType::ClusterIp,
        cluster_ips: PerFamily {
            v4: Some(address(10, 96, n)),
            v6: None,
        },
        external_ips: Box::default(),
        load_balancer_ips: Box::default(),
        source_ranges: Box::default(),
        internal_policy: TrafficPolicy::Cluster,
        external_policy_field: TrafficPolicy::Cluster,
        health_check_field: None,
        affinity_seconds: None,
        ports: [ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: port(80),
            node_port: None,
        }]
        .into(),
    }
}

/// Service number `n` with `size` ports and `size` external IPs, which begin at number `first`.
pub fn many_addresses(n: u32, first: u32, size: u32) -> Service {
    Service {
        external_ips: (first..first + size).map(|i| address(198, 18, i)).collect(),
        ports: (0..size)
            .map(|i| ServicePort {
                name: format!("port-{i}").into(),
                protocol: Protocol::Tcp,
                port: port(i64::from(1000 + i)),
                node_port: None,
            })
            .collect(),
        ..service(n)
    }
}

/// The slice of Service `n` in its `edition`, with [`ENDPOINTS`].
pub fn slice(n: u32, edition: u32) -> Slice {
    slice_with(n, edition, ENDPOINTS)
}

/// The slice of Service `n` in its `edition`: each edition has one other endpoint, and every
/// second one has one endpoint more.
pub fn slice_with(n: u32, edition: u32, endpoints: u32) -> Slice {
    let first = n * (endpoints + 1);
    let count = endpoints + edition % 2;
    let endpoints = (0..count).map(|i| {
        // One endpoint in fifty is ours, as on a node of a mid-sized cluster.
        let local = (first + i).is_multiple_of(50);
        let ip = match i {
            0 if edition >= 2 => address(172, 16, edition),
            _ => address(100, 64, first + i),
        };
        SliceEndpoint {
            ip,
            local,
            ready: true,
            serving: true,
            terminating: false,
            node_hint: None,
            zone_hints: None,
        }
    });
    Slice {
        key: SliceKey::new(&namespace(n), &format!("service-{n}-x7k2p")),
        service: key(n),
        family: Family::V4,
        ports: [SlicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: port(8080),
        }]
        .into(),
        endpoints: endpoints.collect(),
    }
}

/// The event that says what an object looks like.
pub fn put(object: Object) -> Event {
    Event::Put {
        object,
        issues: Vec::new(),
        trigger: None,
    }
}

/// The whole life of a cluster up to its complete first lists, with [`ENDPOINTS`].
pub fn events(services: u32) -> impl Iterator<Item = Event> {
    events_with(services, ENDPOINTS)
}

/// The whole life of a cluster up to its complete first lists.
pub fn events_with(services: u32, endpoints: u32) -> impl Iterator<Item = Event> {
    let list = |kind, objects: Vec<Event>| {
        std::iter::once(Event::Listing(kind))
            .chain(objects)
            .chain(std::iter::once(Event::Listed(kind)))
    };
    let all = (0..services)
        .map(|n| put(Object::Service(service(n))))
        .collect();
    let slices = (0..services)
        .map(|n| put(Object::Slice(slice_with(n, 0, endpoints))))
        .collect();
    list(Kind::Node, Vec::new())
        .chain(list(Kind::Service, all))
        .chain(list(Kind::EndpointSlice, slices))
}

fn key(n: u32) -> ServiceKey {
    ServiceKey::new(&namespace(n), &format!("service-{n}"))
}

fn namespace(n: u32) -> String {
    format!("team-{}", n % 97)
}

fn port(number: i64) -> Port {
    Port::new(number).expect("the bench uses real ports")
}

fn address(a: u8, b: u8, n: u32) -> IpAddr {
    let base = u32::from(Ipv4Addr::new(a, b, 0, 0));
    IpAddr::V4(Ipv4Addr::from(base + n))
}
