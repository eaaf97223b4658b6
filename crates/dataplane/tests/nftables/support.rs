//! Small clusters, programmed into namespaces.

use std::net::IpAddr;
use std::num::NonZeroU32;
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
use ferrule_dataplane::{Applied, ApplyError, Dataplane, Scope, Work};
use ferrule_kernel::nft::{Nft, Snapshot};
use ferrule_kernel::socket::{Socket, Transport};
use ferrule_testbed::{Lab, Place};
pub use ferrule_testbed::{in_namespace, run};

pub const TABLE: &str = "kube-proxy";

/// An address of the family: 10.x.0.y or `fd00::x:y`.
pub fn address(family: Family, x: u8, y: u8) -> IpAddr {
    ferrule_testbed::address(kernel(family), x, y)
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

/// The same over TCP, UDP and SCTP, on the same ports.
pub fn over_all(mut service: Service) -> Service {
    let port = service.ports[0].clone();
    service.ports = PROTOCOLS
        .map(|protocol| ServicePort {
            name: protocol.lower().into(),
            protocol,
            ..port.clone()
        })
        .into();
    service
}

/// Endpoints of a Service over TCP, UDP and SCTP.
pub fn slice_over_all(mut slice: Slice) -> Slice {
    let port = slice.ports[0].clone();
    slice.ports = PROTOCOLS
        .map(|protocol| SlicePort {
            name: protocol.lower().into(),
            protocol,
            ..port.clone()
        })
        .into();
    slice
}

pub const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// Runs a test in both families, each in a network of its own.
pub fn both(test: fn(Family)) {
    for family in Family::ALL {
        in_namespace(move || test(family));
    }
}

type Open<T> = Box<dyn Fn() -> Nft<T> + Send>;

/// A cluster as this node sees it, and the rules for it.
pub struct Scene<T = Socket> {
    pub family: Family,
    tracker: Tracker,
    pub desired: Desired,
    /// What the next step adopts.
    settings: Option<Settings>,
    pub options: Options,
    open: Open<T>,
    /// Another conversation, to see what is in the kernel.
    look: Open<Socket>,
    pub dataplane: Nftables<T>,
}

impl Scene {
    pub fn new(family: Family) -> Self {
        Self::with(family, Settings::default())
    }

    pub fn with(family: Family, settings: Settings) -> Self {
        Self::over(family, settings, Box::new(open_here), Box::new(open_here))
    }

    /// On the node of a lab.
    pub fn at(lab: &Lab, settings: Settings) -> Self {
        let open = |place: Place| Box::new(move || place.run(open_here));
        let family = match lab.family {
            ferrule_kernel::Family::V4 => Family::V4,
            ferrule_kernel::Family::V6 => Family::V6,
        };
        let (one, other) = (lab.node.clone(), lab.node.clone());
        let mut scene = Self::over(family, settings, open(one), open(other));
        scene.node(lab.node_ip());
        scene
    }
}

pub fn open_here() -> Nft {
    Nft::open().unwrap()
}

impl<T: Transport + Send> Scene<T> {
    /// With conversations of any kind.
    pub fn over(family: Family, settings: Settings, open: Open<T>, look: Open<Socket>) -> Self {
        let options = Options::default();
        let dataplane = Nftables::new(family, options, open());
        let mut scene = Self {
            family,
            tracker: Tracker::new(SystemTime::UNIX_EPOCH),
            desired: Desired::new(settings),
            settings: None,
            options,
            open,
            look,
            dataplane,
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
        self.node_with(ip, &[])
    }

    /// The node with networks for its pods.
    pub fn node_with(&mut self, ip: IpAddr, pods: &[&str]) -> &mut Self {
        self.put(Object::Node(Node {
            name: "here".into(),
            zone: None,
            addresses: [ip].into(),
            pod_cidrs: pods.iter().map(|net| net.parse().unwrap()).collect(),
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

    pub fn no_service_cidr(&mut self) -> &mut Self {
        self.gone(ObjectKey::ServiceCidr("kubernetes".into()))
    }

    /// Other settings, from the next step on.
    pub fn settings(&mut self, settings: Settings) -> &mut Self {
        self.settings = Some(settings);
        self
    }

    /// Other options, from the next step on.
    pub fn options(&mut self, options: Options) -> &mut Self {
        self.options = options;
        self.dataplane.set_options(options);
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

    /// Applies what changed; the number of steps.
    pub fn step(&mut self) -> usize {
        steps(self.try_step())
    }

    /// Applies everything; the number of steps.
    pub fn whole(&mut self) -> usize {
        steps(self.try_whole())
    }

    pub fn try_step(&mut self) -> Result<Applied, ApplyError> {
        let delta = self.take();
        let family = self.family;
        self.apply(Scope::Delta(&delta.families[family]))
    }

    pub fn try_whole(&mut self) -> Result<Applied, ApplyError> {
        self.take();
        self.apply(Scope::Whole)
    }

    fn apply(&mut self, scope: Scope<'_>) -> Result<Applied, ApplyError> {
        self.dataplane.apply(&Work {
            family: self.family,
            desired: &self.desired,
            scope,
        })
    }

    /// Forgets what it wrote, as after a restart.
    pub fn restart(&mut self) {
        self.dataplane = Nftables::new(self.family, self.options, (self.open)());
    }

    /// What would be programmed, in the words of `nft`.
    pub fn text(&mut self) -> String {
        self.take();
        nftables::text(&self.desired, self.family, self.options).unwrap()
    }

    /// The table.
    pub fn snapshot(&self) -> Snapshot {
        self.try_snapshot().unwrap()
    }

    /// The same if there is one. Elements are sorted: the kernel has no order for them.
    pub fn try_snapshot(&self) -> Option<Snapshot> {
        let mut snapshot = all_of_it(&mut (self.look)(), kernel(self.family))?;
        for list in snapshot.elements.values_mut() {
            list.sort_by_key(|element| (element.key, element.ends_range));
        }
        Some(snapshot)
    }
}

/// The table with everything in it, also clients that stay.
pub fn all_of_it(nft: &mut Nft, family: ferrule_kernel::Family) -> Option<Snapshot> {
    let mut snapshot = nft.snapshot(family, TABLE).unwrap()?;
    for held in snapshot.sets.iter().filter(|held| held.object.dynamic) {
        let name = &held.object.name;
        let clients = nft.elements(family, TABLE, name).unwrap();
        snapshot.elements.insert(name.clone(), clients);
    }
    Some(snapshot)
}

fn steps(applied: Result<Applied, ApplyError>) -> usize {
    applied
        .unwrap_or_else(|error| panic!("{error}: {error:?}"))
        .steps
}
