//! Small clusters, programmed into namespaces.

use std::io;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::process::Command;
use std::time::SystemTime;

use ferrule_core::desired::{Delta, Desired};
use ferrule_core::facts::Settings;
use ferrule_core::issue::{Kind, ObjectKey};
use ferrule_core::model::{
    Family, Node, PerFamily, Port, Protocol, Service, ServiceCidr, ServiceKey, ServicePort,
    ServiceType, Slice, SliceEndpoint, SliceKey, SlicePort, TrafficPolicy,
};
use ferrule_core::track::{Event, Object, Tracker};
use ferrule_dataplane::nftables::{self, Nftables, Options};
use ferrule_dataplane::{Dataplane, Scope, Work};
use ferrule_kernel::netns;
use ferrule_kernel::nft::{Nft, Snapshot};

pub const TABLE: &str = "kube-proxy";

/// Runs a test in a network of its own, whose loopback is up.
pub fn in_namespace(test: impl FnOnce() + Send) {
    let result = netns::isolated(|| {
        run("ip", &["link", "set", "lo", "up"]);
        test();
    });
    match result {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !variable("CI") => {
            eprintln!("NOT RUN: no right to make a network namespace; run as root");
        }
        Err(error) => panic!("no network namespace: {error}"),
    }
}

/// Runs a program in the namespace of the calling thread, and returns what it printed.
pub fn run(program: &str, arguments: &[&str]) -> String {
    #[expect(clippy::disallowed_methods, reason = "tests may run programs")]
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program} must be installed: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn variable(name: &str) -> bool {
    #[expect(clippy::disallowed_methods, reason = "tests are steered so")]
    std::env::var(name).is_ok()
}

/// An address of the family: 10.x.0.y or `fd00::x:y`.
pub fn address(family: Family, x: u8, y: u8) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, x, 0, y]),
        Family::V6 => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, x.into(), y.into()]),
    }
}

pub const fn kernel(family: Family) -> ferrule_kernel::Family {
    match family {
        Family::V4 => ferrule_kernel::Family::V4,
        Family::V6 => ferrule_kernel::Family::V6,
    }
}

/// A Service with its cluster IP in this family, port 80.
pub fn service(family: Family, name: &str, number: u8) -> Service {
    let mut cluster_ips = PerFamily::default();
    cluster_ips[family] = Some(address(family, 96, number));
    Service {
        key: ServiceKey::new("demo", name),
        created: 0,
        kind: ServiceType::ClusterIp,
        cluster_ips,
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
            port: Port::new(80).unwrap(),
            node_port: None,
        }]
        .into(),
    }
}

pub fn with_node_port(mut service: Service, port: i64) -> Service {
    if service.kind == ServiceType::ClusterIp {
        service.kind = ServiceType::NodePort;
    }
    service.ports[0].node_port = Port::new(port);
    service
}

pub fn with_load_balancer(mut service: Service, ip: IpAddr, ranges: &[&str]) -> Service {
    service.kind = ServiceType::LoadBalancer;
    service.load_balancer_ips = [ip].into();
    service.source_ranges = ranges.iter().map(|net| net.parse().unwrap()).collect();
    service
}

pub fn with_affinity(mut service: Service, seconds: u32) -> Service {
    service.affinity_seconds = NonZeroU32::new(seconds);
    service
}

/// Endpoints of a Service, port 8080; each is an address and whether it is on this node.
pub fn slice(family: Family, service: &str, endpoints: &[(IpAddr, bool)]) -> Slice {
    Slice {
        key: SliceKey::new("demo", &format!("{service}-1")),
        service: ServiceKey::new("demo", service),
        family,
        ports: [SlicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: Port::new(8080).unwrap(),
        }]
        .into(),
        endpoints: endpoints
            .iter()
            .map(|(ip, local)| SliceEndpoint {
                ip: *ip,
                local: *local,
                ready: true,
                serving: true,
                terminating: false,
                node_hint: None,
                zone_hints: None,
            })
            .collect(),
    }
}

/// A cluster as this node sees it, and the rules for it.
pub struct Scene {
    pub family: Family,
    tracker: Tracker,
    desired: Desired,
    pub options: Options,
    pub dataplane: Nftables,
}

impl Scene {
    pub fn new(family: Family) -> Self {
        Self::with(family, Settings::default())
    }

    pub fn with(family: Family, settings: Settings) -> Self {
        let mut scene = Self {
            family,
            tracker: Tracker::new(SystemTime::UNIX_EPOCH),
            desired: Desired::new(settings),
            options: Options::default(),
            dataplane: Nftables::open(family, Options::default()).unwrap(),
        };
        for kind in Kind::ALL {
            scene.tracker.on(Event::Listing(kind));
            scene.tracker.on(Event::Listed(kind));
        }
        scene.take();
        scene
    }

    fn put(&mut self, object: Object) -> &mut Self {
        self.tracker.on(Event::Put {
            object,
            issues: Vec::new(),
            trigger: None,
        });
        self
    }

    pub fn service(&mut self, service: Service) -> &mut Self {
        self.put(Object::Service(service))
    }

    pub fn slice(&mut self, slice: Slice) -> &mut Self {
        self.put(Object::Slice(slice))
    }

    pub fn node(&mut self, ip: IpAddr) -> &mut Self {
        self.put(Object::Node(Node {
            name: "here".into(),
            zone: None,
            addresses: [ip].into(),
            pod_cidrs: Box::default(),
            leaving: false,
        }))
    }

    pub fn service_cidr(&mut self, net: &str) -> &mut Self {
        self.put(Object::ServiceCidr(ServiceCidr {
            name: "kubernetes".into(),
            cidrs: [net.parse().unwrap()].into(),
        }))
    }

    fn gone(&mut self, key: ObjectKey) -> &mut Self {
        self.tracker.on(Event::Gone {
            key,
            issues: Vec::new(),
        });
        self
    }

    pub fn no_service(&mut self, name: &str) -> &mut Self {
        self.gone(ObjectKey::Service(ServiceKey::new("demo", name)))
    }

    pub fn no_slice(&mut self, service: &str) -> &mut Self {
        let name = format!("{service}-1");
        self.gone(ObjectKey::Slice(SliceKey::new("demo", &name)))
    }

    fn take(&mut self) -> Delta {
        let changes = self.tracker.take().unwrap_or_default();
        self.desired.update(&self.tracker, changes)
    }

    /// Applies what changed; the number of steps.
    pub fn step(&mut self) -> usize {
        let delta = self.take();
        let family = self.family;
        self.apply(Scope::Delta(&delta.families[family]))
    }

    /// Applies everything; the number of steps.
    pub fn whole(&mut self) -> usize {
        self.take();
        self.apply(Scope::Whole)
    }

    fn apply(&mut self, scope: Scope<'_>) -> usize {
        let work = Work {
            family: self.family,
            desired: &self.desired,
            scope,
        };
        let applied = self.dataplane.apply(&work);
        applied
            .unwrap_or_else(|error| panic!("{error}: {error:?}"))
            .steps
    }

    /// Forgets what it wrote, as after a restart.
    pub fn restart(&mut self) {
        self.dataplane = Nftables::open(self.family, self.options).unwrap();
    }

    /// What would be programmed, in the words of `nft`.
    pub fn text(&mut self) -> String {
        self.take();
        nftables::text(&self.desired, self.family, self.options).unwrap()
    }

    /// The table.
    pub fn snapshot(&self) -> Snapshot {
        let mut nft = Nft::open().unwrap();
        nft.snapshot(kernel(self.family), TABLE).unwrap().unwrap()
    }
}
