//! Stale UDP flows in the kernel's real table: those go, all others stay.

#![expect(clippy::disallowed_methods, reason = "tests may run programs")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::SystemTime;

use ferrule_core::desired::Desired;
use ferrule_core::facts::Settings;
use ferrule_core::issue::{Kind, ObjectKey};
use ferrule_core::model::{
    Family, PerFamily, Port, Protocol, Service, ServiceCidr, ServiceKey, ServicePort, ServiceType,
    Slice, SliceEndpoint, SliceKey, SlicePort, TrafficPolicy,
};
use ferrule_core::track::{Event, Object, Tracker};
use ferrule_dataplane::conntrack::Flows;
use ferrule_dataplane::host::Addresses;
use ferrule_dataplane::{Scope, Work};
use ferrule_kernel::conntrack::{Conntrack, Filter, Flow, Tuple};
use ferrule_kernel::netns;

const UDP: u8 = 17;
const TCP: u8 = 6;

/// Runs a test for both families, in a network whose node has the addresses `192.0.2.1` and
/// `2001:db8::1`.
fn in_both(test: impl Fn(Names) + Send + Sync) {
    for family in Family::ALL {
        netns::isolated(|| {
            for arguments in [
                "link set lo up",
                "addr add 192.0.2.1/32 dev lo",
                "addr add 2001:db8::1/128 dev lo nodad",
            ] {
                let status = Command::new("ip").args(arguments.split(' ')).status();
                assert!(status.unwrap().success(), "ip {arguments}");
            }
            test(Names(family));
        })
        .unwrap_or_else(|error| panic!("no network namespace; run as root: {error}"));
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
        let mut cluster_ips = PerFamily::default();
        cluster_ips[self.0] = Some(self.ip("10.96.0.10"));
        Service {
            key: ServiceKey::new("demo", "dns"),
            created: 0,
            kind: ServiceType::LoadBalancer,
            cluster_ips,
            external_ips: [self.ip("198.51.100.1")].into(),
            load_balancer_ips: [self.ip("203.0.113.1")].into(),
            source_ranges: Box::default(),
            internal_policy: TrafficPolicy::Cluster,
            external_policy_field: TrafficPolicy::Cluster,
            health_check_field: None,
            affinity_seconds: None,
            ports: [ServicePort {
                name: "dns".into(),
                protocol: Protocol::Udp,
                port: Port::new(53).unwrap(),
                node_port: Port::new(30053),
            }]
            .into(),
        }
    }

    /// Endpoints by the last number of their address: negative ones are shutting down.
    fn slice(self, endpoints: &[i8]) -> Slice {
        Slice {
            key: SliceKey::new("demo", "dns-1"),
            service: ServiceKey::new("demo", "dns"),
            family: self.0,
            ports: [SlicePort {
                name: "dns".into(),
                protocol: Protocol::Udp,
                port: Port::new(5353).unwrap(),
            }]
            .into(),
            endpoints: endpoints
                .iter()
                .map(|number| SliceEndpoint {
                    ip: self.ip(&format!("10.1.0.{}", number.unsigned_abs())),
                    local: false,
                    ready: *number > 0,
                    serving: true,
                    terminating: *number < 0,
                    node_hint: None,
                    zone_hints: None,
                })
                .collect(),
        }
    }
}

/// A node, and the flows through it.
struct Scene {
    names: Names,
    tracker: Tracker,
    desired: Desired,
    flows: Flows,
    conntrack: Conntrack,
    /// Ports of clients that were used.
    clients: u16,
}

impl Scene {
    fn new(names: Names) -> Self {
        let mut tracker = Tracker::new(SystemTime::UNIX_EPOCH);
        for kind in Kind::ALL {
            tracker.on(Event::Listing(kind));
            tracker.on(Event::Listed(kind));
        }
        Self {
            names,
            tracker,
            desired: Desired::new(Settings::default()),
            flows: Flows::open(names.0).unwrap(),
            conntrack: Conntrack::open().unwrap(),
            clients: 40_000,
        }
    }

    fn put(&mut self, object: Object) {
        self.tracker.on(Event::Put {
            object,
            issues: Vec::new(),
            trigger: None,
        });
    }

    fn service(&mut self, service: Service) {
        self.put(Object::Service(service));
    }

    fn endpoints(&mut self, endpoints: &[i8]) {
        self.put(Object::Slice(self.names.slice(endpoints)));
    }

    fn gone(&mut self) {
        self.tracker.on(Event::Gone {
            key: ObjectKey::Service(ServiceKey::new("demo", "dns")),
            issues: Vec::new(),
        });
    }

    /// What changed is programmed.
    fn step(&mut self) -> Option<usize> {
        let changes = self.tracker.take().unwrap_or_default();
        let delta = self.desired.update(&self.tracker, changes);
        let family = self.names.0;
        self.flows
            .clear(&Work {
                desired: &self.desired,
                scope: Scope::Delta(&delta.families[family]),
                local: &local(),
            })
            .unwrap()
    }

    /// Everything is looked at.
    fn whole(&mut self) -> Option<usize> {
        let changes = self.tracker.take().unwrap_or_default();
        self.desired.update(&self.tracker, changes);
        self.flows
            .clear(&Work {
                desired: &self.desired,
                scope: Scope::Full,
                local: &local(),
            })
            .unwrap()
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
        let left = self.conntrack.flows(&filter).unwrap().flows;
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

/// The addresses of this network.
fn local() -> Vec<IpAddr> {
    Addresses::open().unwrap().list()
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
        scene.gone();
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
        let mut service = names.service();
        service.external_ips = Box::default();
        service.ports[0].node_port = Port::new(30054);
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
        let mut service = names.service();
        service.ports[0].port = Port::new(30053).unwrap();
        scene.service(service);
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
        let net = match names.0 {
            Family::V4 => "10.96.0.0/16",
            Family::V6 => "fd00::a:60:0:0/96",
        };
        scene.put(Object::ServiceCidr(ServiceCidr {
            name: "kubernetes".into(),
            cidrs: [net.parse().unwrap()].into(),
        }));
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
        // A translated flow to a cluster IP that nobody has is a deleted Service's.
        assert_eq!(scene.tracked(UDP, &OTHERS), set(&OTHERS[2..]));
        assert_eq!(scene.whole(), Some(0));
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
        let mut service = names.service();
        service.ports[0].protocol = Protocol::Tcp;
        service.key = ServiceKey::new("demo", "web");
        scene.service(service);
        assert_eq!(scene.step(), None);
    });
}
