//! Clusters of any size, always the same for the same size.

use std::net::{IpAddr, Ipv4Addr};

use ferrule_core::issue::Kind;
use ferrule_core::model::{Port, Protocol, Service, ServicePort, Slice, SliceEndpoint};
use ferrule_core::testing::ep;
use ferrule_core::track::{Event, Object};

pub use ferrule_core::testing::put;

/// The number of endpoints of each Service.
pub const ENDPOINTS: u32 = 10;

/// Service number `n`: a cluster IP, one TCP port.
pub fn service(n: u32) -> Service {
    let key = format!("{}/service-{n}", namespace(n));
    Service {
        created: i64::from(n),
        ..ferrule_core::testing::service(&key).at(address(10, 96, n))
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
                port: Port::new(i64::from(1000 + i)).expect("ports begin at 1000"),
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
        SliceEndpoint { local, ..ep(ip) }
    });
    let key = format!("{}/service-{n}", namespace(n));
    ferrule_core::testing::slice(
        &format!("{key}-x7k2p"),
        &key,
        &endpoints.collect::<Vec<_>>(),
    )
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

fn namespace(n: u32) -> String {
    format!("team-{}", n % 97)
}

fn address(a: u8, b: u8, n: u32) -> IpAddr {
    let base = u32::from(Ipv4Addr::new(a, b, 0, 0));
    IpAddr::V4(Ipv4Addr::from(base + n))
}
