//! Small clusters, programmed into namespaces.

use std::io;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::process::Command;
use std::time::SystemTime;

use ferrule_core::desired::{Delta, Desired};
use ferrule_core::facts::{DetectLocal, Settings};
use ferrule_core::issue::{Kind, ObjectKey};
use ferrule_core::model::{
    Family, Node, PerFamily, Port, Protocol, Service, ServiceKey, ServicePort, ServiceType, Slice,
    SliceEndpoint, SliceKey, SlicePort, TrafficPolicy,
};
use ferrule_core::track::{Event, Object, Tracker};
use ferrule_dataplane::iptables::{Iptables, Options};
use ferrule_dataplane::{Applied, ApplyError, Dataplane, Scope, Work};
use ferrule_kernel::netns;
use ferrule_kernel::xt::{Flavour, Table, Xt};

pub const FLAVOURS: [Flavour; 2] = [Flavour::Nft, Flavour::Legacy];

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

/// Runs a test for both families in both flavours.
pub fn everywhere(test: fn(Family, Flavour)) {
    for family in Family::ALL {
        for flavour in FLAVOURS {
            in_namespace(move || test(family, flavour));
        }
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

/// Runs `iptables` of this family and flavour.
pub fn iptables(family: Family, flavour: Flavour, arguments: &str) -> String {
    let program = match (family, flavour) {
        (Family::V4, Flavour::Nft) => "iptables-nft",
        (Family::V4, Flavour::Legacy) => "iptables-legacy",
        (Family::V6, Flavour::Nft) => "ip6tables-nft",
        (Family::V6, Flavour::Legacy) => "ip6tables-legacy",
    };
    run(program, &arguments.split(' ').collect::<Vec<_>>())
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

/// A Service in namespace `demo` with one port, TCP 80, without a name.
pub fn service(name: &str, ip: IpAddr) -> Service {
    let mut cluster_ips = PerFamily::default();
    cluster_ips[Family::of(ip)] = Some(ip);
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
            name: "".into(),
            protocol: Protocol::Tcp,
            port: Port::new(80).unwrap(),
            node_port: None,
        }]
        .into(),
    }
}

pub fn with_port(mut service: Service, name: &str, port: i64) -> Service {
    service.ports[0].name = name.into();
    service.ports[0].port = Port::new(port).unwrap();
    service
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

/// Endpoints of a Service; each is an address and whether it is on this node.
pub fn slice(service: &Service, port: i64, endpoints: &[(IpAddr, bool)]) -> Slice {
    let family = Family::ALL
        .into_iter()
        .find(|family| service.cluster_ips[*family].is_some())
        .unwrap();
    Slice {
        key: SliceKey::new(
            service.key.namespace(),
            &format!("{}-1", service.key.name()),
        ),
        service: service.key.clone(),
        family,
        ports: service
            .ports
            .iter()
            .map(|own| SlicePort {
                name: own.name.clone(),
                protocol: own.protocol,
                port: Port::new(port).unwrap(),
            })
            .collect(),
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

/// A cluster as this node sees it.
pub struct Cluster {
    tracker: Tracker,
    pub desired: Desired,
    /// What the next step adopts.
    settings: Option<Settings>,
}

pub fn settings(cidrs: &[&str]) -> Settings {
    let cidrs = cidrs.iter().map(|net| net.parse().unwrap()).collect();
    Settings {
        detect_local: DetectLocal::ClusterCidr(cidrs),
        ..Settings::default()
    }
}

impl Cluster {
    /// Nothing is in it, and that is known.
    pub fn new(settings: Settings) -> Self {
        let mut cluster = Self {
            tracker: Tracker::new(SystemTime::UNIX_EPOCH),
            desired: Desired::new(settings),
            settings: None,
        };
        for kind in Kind::ALL {
            cluster.tracker.on(Event::Listing(kind));
            cluster.tracker.on(Event::Listed(kind));
        }
        cluster.take();
        cluster
    }

    fn put(&mut self, object: Object) -> &mut Self {
        self.tracker.on(Event::Put {
            object,
            issues: Vec::new(),
            trigger: None,
        });
        self
    }

    pub fn service(&mut self, service: &Service) -> &mut Self {
        self.put(Object::Service(service.clone()))
    }

    pub fn slice(&mut self, slice: Slice) -> &mut Self {
        self.put(Object::Slice(slice))
    }

    /// A Service and its endpoints, which listen on this port.
    pub fn both(&mut self, service: &Service, port: i64, pods: &[(IpAddr, bool)]) -> &mut Self {
        self.service(service).slice(slice(service, port, pods))
    }

    pub fn node(&mut self, ip: IpAddr) -> &mut Self {
        self.put(Object::Node(Node {
            name: "node-1".into(),
            zone: Some("here".into()),
            addresses: [ip].into(),
            pod_cidrs: Box::default(),
            leaving: false,
        }))
    }

    pub fn no_service(&mut self, name: &str) -> &mut Self {
        self.tracker.on(Event::Gone {
            key: ObjectKey::Service(ServiceKey::new("demo", name)),
            issues: Vec::new(),
        });
        self
    }

    pub fn settings(&mut self, settings: Settings) -> &mut Self {
        self.settings = Some(settings);
        self
    }

    pub fn take(&mut self) -> Delta {
        let changes = self.tracker.take().unwrap_or_default();
        let mut delta = self.desired.update(&self.tracker, changes);
        if let Some(settings) = self.settings.take() {
            let later = self.desired.reconfigure(&self.tracker, settings).families;
            delta.families.v4.absorb(later.v4);
            delta.families.v6.absorb(later.v6);
        }
        delta
    }
}

/// A cluster, and the rules for it.
pub struct Scene {
    pub family: Family,
    pub flavour: Flavour,
    cluster: Cluster,
    pub dataplane: Iptables,
    /// Programs are used where the tables could be spoken to directly.
    pub programs: bool,
}

impl std::ops::Deref for Scene {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl std::ops::DerefMut for Scene {
    fn deref_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
}

impl Scene {
    pub fn new(family: Family, flavour: Flavour) -> Self {
        Self::with(family, flavour, settings(&["10.1.0.0/16", "fd00::1:0/112"]))
    }

    pub fn with(family: Family, flavour: Flavour, settings: Settings) -> Self {
        let xt = Xt::open_as(flavour, kernel(family)).unwrap();
        Self::over(family, settings, xt)
    }

    pub fn over(family: Family, settings: Settings, xt: Xt) -> Self {
        Self {
            family,
            flavour: xt.flavour(),
            cluster: Cluster::new(settings),
            dataplane: Iptables::new(family, Options::default(), xt),
            programs: false,
        }
    }

    /// The same by iptables' programs alone.
    pub fn by_programs(self) -> Self {
        Self {
            dataplane: self.dataplane.by_programs(),
            programs: true,
            ..self
        }
    }

    /// Applies what changed; the number of steps.
    pub fn step(&mut self) -> usize {
        self.try_step()
            .unwrap_or_else(|error| panic!("{error}: {error:?}"))
            .steps
    }

    pub fn try_step(&mut self) -> Result<Applied, ApplyError> {
        let delta = self.take();
        let family = self.family;
        self.apply(Scope::Delta(&delta.families[family]))
    }

    /// Applies everything; the number of steps.
    pub fn whole(&mut self) -> usize {
        self.try_whole()
            .unwrap_or_else(|error| panic!("{error}: {error:?}"))
            .steps
    }

    pub fn try_whole(&mut self) -> Result<Applied, ApplyError> {
        self.take();
        self.apply(Scope::Whole)
    }

    fn apply(&mut self, scope: Scope<'_>) -> Result<Applied, ApplyError> {
        let work = Work {
            family: self.family,
            desired: &self.cluster.desired,
            scope,
        };
        self.dataplane.apply(&work)
    }

    /// Forgets what it wrote, as after a restart.
    pub fn restart(&mut self) {
        let xt = Xt::open_as(self.flavour, kernel(self.family)).unwrap();
        let new = Iptables::new(self.family, Options::default(), xt);
        self.dataplane = if self.programs {
            new.by_programs()
        } else {
            new
        };
    }

    /// Runs `iptables` beside us.
    pub fn iptables(&self, arguments: &str) -> String {
        iptables(self.family, self.flavour, arguments)
    }

    /// Everything that is installed, without remarks and counters.
    pub fn saved(&self) -> String {
        let xt = Xt::open_as(self.flavour, kernel(self.family)).unwrap();
        let tables = Table::ALL.map(|table| xt.save(table).unwrap());
        let lines = tables.iter().flat_map(|text| text.lines());
        lines
            .filter(|line| !line.starts_with('#'))
            .map(|line| match line.strip_prefix(':') {
                Some(_) => line.split(" [").next().unwrap().to_owned() + "\n",
                None => line.to_owned() + "\n",
            })
            .collect()
    }
}

/// The lines of a text in order, those of the built-in chains where they stood.
pub fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}
