//! Stale UDP flows in the kernel's real table: those go, all others stay.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ferrule_core::model::{Family, Service, Slice};
use ferrule_dataplane::conntrack::Flows;
use ferrule_dataplane::host::Addresses;
use ferrule_dataplane::{Scope, Work};
use ferrule_kernel::conntrack::{Conntrack, Filter, Flow, Tuple};
use ferrule_testbed::cluster::{self, Cluster, Objects, ep};
use ferrule_testbed::{in_namespace, run};

const UDP: u8 = 17;
const TCP: u8 = 6;

/// Runs a test for both families, in a network whose node has the addresses `192.0.2.1` and
/// `2001:db8::1`.
fn in_both(test: impl Fn(Names) + Send + Sync) {
    for family in Family::ALL {
        in_namespace(|| {
            for arguments in [
                "addr add 192.0.2.1/32 dev lo",
                "addr add 2001:db8::1/128 dev lo nodad",
            ] {
                run("ip", &arguments.split(' ').collect::<Vec<_>>());
            }
            test(Names(family));
        });
    }
}

/// Addresses by their IPv4 name.
#[derive(Clone, Copy)]
struct Names(Family);

impl Names {
    /// `10.96.0.1` and `2001:db8:10:96:0:1::`-like for IPv6.
    fn ip(self, v4: &str) -> IpAddr {
        let IpAddr::V4(address) = v4.parse().unwrap() else {
            panic!("write IPv4")
        };
        match self.0 {
            Family::V4 => address.into(),
            Family::V6 if v4 == "192.0.2.1" => "2001:db8::1".parse().unwrap(),
            Family::V6 => {
                let [a, b, c, d] = address.octets().map(u16::from);
                IpAddr::from([0xfd00, 0, 0, 0, a, b, c, d])
            }
        }
    }

    fn socket(self, text: &str) -> SocketAddr {
        let (ip, port) = text.split_once(':').unwrap();
        SocketAddr::new(self.ip(ip), port.parse().unwrap())
    }

    fn service(self) -> Service {
        cluster::service("dns")
            .at(self.ip("10.96.0.10"))
            .port("dns", 53)
            .udp()
            .external_ips(&[self.ip("198.51.100.1")])
            .load_balancer(&[self.ip("203.0.113.1")])
            .node_port(30053)
    }

    /// Endpoints by the last number of their address: negative ones are shutting down.
    fn slice(self, endpoints: &[i8]) -> Slice {
        let each = endpoints.iter().map(|number| {
            let endpoint = ep(self.ip(&format!("10.1.0.{}", number.unsigned_abs())));
            if *number < 0 {
                endpoint.drain()
            } else {
                endpoint
            }
        });
        Slice::of(&self.service(), 5353, &each.collect::<Vec<_>>())
    }
}

/// A node, and the flows through it.
struct Scene {
    names: Names,
    cluster: Cluster,
    flows: Flows,
    conntrack: Conntrack,
    /// Ports of clients that were used.
    clients: u16,
}

impl Objects for Scene {
    fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
}

impl Scene {
    fn new(names: Names) -> Self {
        Self {
            names,
            cluster: Cluster::new(),
            flows: Flows::open(names.0).unwrap(),
            conntrack: Conntrack::open().unwrap(),
            clients: 40_000,
        }
    }

    fn endpoints(&mut self, endpoints: &[i8]) {
        let slice = self.names.slice(endpoints);
        self.slice(slice);
    }

    /// What changed is programmed.
    fn step(&mut self) -> Option<usize> {
        let delta = self.cluster.step();
        let family = self.names.0;
        self.clear(Scope::Delta(&delta.families[family]))
    }

    /// Everything is looked at.
    fn whole(&mut self) -> Option<usize> {
        self.cluster.step();
        self.clear(Scope::Full)
    }

    fn clear(&mut self, scope: Scope<'_>) -> Option<usize> {
        let work = Work {
            desired: &self.cluster.desired,
            scope,
            local: &Addresses::open().unwrap().list(),
        };
        self.flows.clear(&work).unwrap()
    }

    /// Flows such as `10.96.0.10:53 > 10.1.0.1:5353`, each from a client port of its own.
    fn track(&mut self, protocol: u8, flows: &[&str]) {
        for flow in flows {
            self.clients += 1;
            let (to, answers) = flow.split_once(" > ").unwrap();
            let original = Tuple {
                source: SocketAddr::new(self.names.ip("10.1.0.99"), self.clients),
                destination: self.names.socket(to),
                protocol,
            };
            let reply = Tuple {
                source: self.names.socket(answers),
                ..original.reversed()
            };
            self.conntrack.insert(&Flow::new(original, reply)).unwrap();
        }
    }

    /// The same for those that are left.
    fn tracked(&mut self, protocol: u8, of: &[&str]) -> BTreeSet<String> {
        let family = match self.names.0 {
            Family::V4 => ferrule_kernel::Family::V4,
            Family::V6 => ferrule_kernel::Family::V6,
        };
        let filter = Filter::protocol(family, protocol);
        let left = self.conntrack.flows(&filter, |_| true).unwrap().flows;
        let is_left = |flow: &&&str| {
            let (to, answers) = flow.split_once(" > ").unwrap();
            let (to, answers) = (self.names.socket(to), self.names.socket(answers));
            left.iter()
                .any(|flow| flow.original.destination == to && flow.reply.source == answers)
        };
        of.iter().filter(is_left).map(ToString::to_string).collect()
    }
}

/// To each kind of address, each with a good and a bad answerer.
const ALL: [&str; 9] = [
    "10.96.0.10:53 > 10.1.0.1:5353",
    "10.96.0.10:53 > 10.1.0.2:5353",
    "198.51.100.1:53 > 10.1.0.1:5353",
    "198.51.100.1:53 > 10.1.0.2:5353",
    "203.0.113.1:53 > 10.1.0.1:5353",
    "203.0.113.1:53 > 10.1.0.2:5353",
    "192.0.2.1:30053 > 10.1.0.1:5353",
    "192.0.2.1:30053 > 10.1.0.2:5353",
    // Never translated: the Service came after the flow.
    "10.96.0.10:53 > 10.96.0.10:53",
];

/// Nobody's business but their own.
const OTHERS: [&str; 4] = [
    "10.96.0.10:54 > 10.1.0.2:5353",
    "10.96.0.99:53 > 10.1.0.2:5353",
    "8.8.8.8:53 > 8.8.8.8:53",
    // A NodePort's number on somebody else's machine.
    "8.8.8.8:30053 > 8.8.8.8:30053",
];

fn set(flows: &[&str]) -> BTreeSet<String> {
    flows.iter().map(ToString::to_string).collect()
}

#[test]
fn core_110_flows_to_an_endpoint_that_went_are_removed_at_every_address_and_no_others() {
    in_both(|names| {
        let mut scene = Scene::new(names);
        scene.service(names.service());
        scene.endpoints(&[1, 2]);
        assert_eq!(scene.step(), Some(0));
        scene.track(UDP, &ALL);
        scene.track(UDP, &OTHERS);
        scene.track(TCP, &ALL);
        scene.endpoints(&[1]);
        assert_eq!(scene.step(), Some(5));
        let good: Vec<&str> = ALL
            .into_iter()
            .filter(|flow| flow.ends_with("10.1.0.1:5353"))
            .collect();
        assert_eq!(scene.tracked(UDP, &ALL), set(&good));
        assert_eq!(scene.tracked(UDP, &OTHERS), set(&OTHERS));
        assert_eq!(scene.tracked(TCP, &ALL), set(&ALL));
    });
}

#[test]
fn core_111_flows_to_an_endpoint_that_is_shutting_down_stay() {
    in_both(|names| {
        let mut scene = Scene::new(names);
        scene.service(names.service());
        scene.endpoints(&[1, 2]);
        scene.step();
        scene.track(UDP, &ALL[..2]);
        scene.endpoints(&[1, -2]);
        scene.step();
        assert_eq!(scene.tracked(UDP, &ALL[..2]), set(&ALL[..2]));
    });
}

#[test]
fn q_30_flows_of_a_service_without_endpoints_or_deleted_are_removed() {
    in_both(|names| {
        let mut scene = Scene::new(names);
        scene.service(names.service());
        scene.endpoints(&[1, 2]);
        scene.step();
        scene.track(UDP, &ALL);
        scene.track(UDP, &OTHERS);
        scene.endpoints(&[]);
        assert_eq!(scene.step(), Some(ALL.len()));
        assert_eq!(scene.tracked(UDP, &OTHERS), set(&OTHERS));

        scene.endpoints(&[1, 2]);
        scene.step();
        scene.track(UDP, &ALL[..8]);
        scene.no_service("dns");
        assert_eq!(scene.step(), Some(8));
        assert_eq!(scene.tracked(UDP, &OTHERS), set(&OTHERS));
    });
}

#[test]
fn q_30_flows_to_addresses_and_ports_that_a_service_gave_up_are_removed() {
    in_both(|names| {
        let mut scene = Scene::new(names);
        scene.service(names.service());
        scene.endpoints(&[1, 2]);
        scene.step();
        scene.track(UDP, &ALL);
        let mut service = names.service().node_port(30054);
        service.external_ips = Box::default();
        scene.service(service);
        scene.step();
        let left: Vec<&str> = ALL
            .into_iter()
            .filter(|flow| !flow.starts_with("198.51.100.1") && !flow.starts_with("192.0.2.1"))
            .collect();
        // The untranslated one was not touched: nothing changed at the cluster IP.
        assert_eq!(scene.tracked(UDP, &ALL), set(&left));
    });
}

#[test]
fn q_28_a_node_ports_number_elsewhere_is_not_ours() {
    in_both(|names| {
        let mut scene = Scene::new(names);
        scene.service(names.service().port("dns", 30053));
        scene.endpoints(&[1, 2]);
        scene.step();
        // The cluster IP has the same port as the NodePort; its own backends decide.
        let flows = [
            "10.96.0.10:30053 > 10.1.0.1:5353",
            "8.8.8.8:30053 > 8.8.8.8:30053",
        ];
        scene.track(UDP, &flows);
        scene.endpoints(&[1]);
        scene.step();
        assert_eq!(scene.tracked(UDP, &flows), set(&flows));
    });
}

#[test]
fn a_look_at_everything_finds_what_went_stale_unseen() {
    in_both(|names| {
        let mut scene = Scene::new(names);
        scene.service(names.service());
        scene.endpoints(&[1]);
        scene.track(UDP, &ALL);
        scene.track(UDP, &OTHERS);
        // As after a restart: nothing is known of what was before.
        scene.whole();
        let good: Vec<&str> = ALL
            .into_iter()
            .filter(|flow| flow.ends_with("10.1.0.1:5353"))
            .collect();
        assert_eq!(scene.tracked(UDP, &ALL), set(&good));
        assert_eq!(scene.tracked(UDP, &OTHERS), set(&OTHERS));
        assert_eq!(scene.whole(), Some(0));
    });
}

#[test]
fn flows_of_services_that_another_proxy_serves_are_left_alone() {
    in_both(|names| {
        let mut scene = Scene::new(names);
        let net = match names.0 {
            Family::V4 => "10.96.0.0/16",
            Family::V6 => "fd00::a:60:0:0/96",
        };
        scene.service_cidr("kubernetes", &[net]);
        scene.service(names.service());
        scene.endpoints(&[1]);
        // A cluster IP, an external IP and a NodePort that are no Service's we know of.
        let theirs = [
            "10.96.0.99:53 > 10.1.0.2:5353",
            "198.51.100.9:53 > 10.1.0.2:5353",
            "192.0.2.1:30099 > 10.1.0.2:5353",
        ];
        scene.track(UDP, &theirs);
        // At start, in a delta, and in an audit.
        assert_eq!(scene.whole(), Some(0));
        scene.endpoints(&[1, 2]);
        assert_eq!(scene.step(), Some(0));
        assert_eq!(scene.whole(), Some(0));
        assert_eq!(scene.tracked(UDP, &theirs), set(&theirs));
    });
}

#[test]
fn flows_of_a_service_that_goes_unnoticed_between_two_looks_at_everything_are_removed() {
    in_both(|names| {
        let mut scene = Scene::new(names);
        scene.service(names.service());
        scene.endpoints(&[1, 2]);
        scene.service(cluster::service("web").at(names.ip("10.96.0.20")).udp());
        scene.whole();
        scene.track(UDP, &ALL[..8]);
        scene.track(UDP, &OTHERS);
        scene.no_service("dns");
        // As after a sync that failed: the delta is lost, but what was ours is known.
        assert_eq!(scene.whole(), Some(8));
        assert_eq!(scene.tracked(UDP, &OTHERS), set(&OTHERS));
    });
}

#[test]
fn nothing_is_looked_at_when_no_udp_service_changes() {
    in_both(|names| {
        let mut scene = Scene::new(names);
        assert_eq!(scene.whole(), None);
        scene.service(names.service());
        scene.endpoints(&[1]);
        assert_eq!(scene.step(), Some(0));
        scene.service(cluster::service("web").at(names.ip("10.96.0.10")));
        assert_eq!(scene.step(), None);
    });
}
