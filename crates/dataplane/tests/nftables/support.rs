//! Small clusters, programmed into namespaces.

use std::net::IpAddr;
use std::time::Duration;

use ferrule_core::facts::Settings;
use ferrule_core::model::{Family, Protocol, Service, Slice};
use ferrule_dataplane::nftables::{self, Nftables, Options};
use ferrule_dataplane::{Applied, ApplyError, Dataplane, Scope, Work};
use ferrule_kernel::nft::{Element, Nft, Snapshot};
use ferrule_kernel::socket::{Socket, Transport};
use ferrule_testbed::cluster::{self, Cluster, eps};
pub use ferrule_testbed::cluster::{Objects, node};
use ferrule_testbed::{Lab, Place};
pub use ferrule_testbed::{address, in_namespace, kernel, run};

pub const TABLE: &str = "kube-proxy";

/// A Service with its cluster IP in this family, port 80.
pub fn service(family: Family, name: &str, number: u8) -> Service {
    cluster::service(name).at(address(family, 96, number))
}

/// Endpoints of a Service, port 8080; each is an address and whether it is on this node.
pub fn slice(family: Family, service: &str, endpoints: &[(IpAddr, bool)]) -> Slice {
    let mut slice = cluster::slice(&format!("{service}-1"), service, &eps(endpoints));
    slice.family = family;
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
    pub cluster: Cluster,
    pub options: Options,
    open: Open<T>,
    /// Another conversation, to see what is in the kernel.
    look: Open<Socket>,
    pub dataplane: Nftables<T>,
}

impl<T> Objects for Scene<T> {
    fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
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
        let (one, other) = (lab.node.clone(), lab.node.clone());
        let mut scene = Self::over(lab.family, settings, open(one), open(other));
        scene.node(node("here").at(lab.node_ip()));
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
        Self {
            family,
            cluster: Cluster::with(settings),
            options,
            dataplane: Nftables::new(family, options, open()),
            open,
            look,
        }
    }

    /// Other options, from the next step on.
    pub fn options(&mut self, options: Options) -> &mut Self {
        self.options = options;
        self.restart();
        self
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
        let delta = self.cluster.step();
        let family = self.family;
        self.apply(Scope::Delta(&delta.families[family]))
    }

    pub fn try_whole(&mut self) -> Result<Applied, ApplyError> {
        self.cluster.step();
        self.apply(Scope::Full)
    }

    fn apply(&mut self, scope: Scope<'_>) -> Result<Applied, ApplyError> {
        self.dataplane.apply(&Work {
            desired: &self.cluster.desired,
            scope,
            // They do not matter to this mode.
            local: &[],
        })
    }

    /// Forgets what it wrote, as after a restart.
    pub fn restart(&mut self) {
        self.dataplane = Nftables::new(self.family, self.options, (self.open)());
    }

    /// What would be programmed, in the words of `nft`.
    pub fn text(&mut self) -> String {
        self.cluster.step();
        nftables::text(&self.cluster.desired, self.family, self.options).unwrap()
    }

    /// The table.
    pub fn snapshot(&self) -> Snapshot {
        self.try_snapshot().unwrap()
    }

    /// The same if there is one.
    pub fn try_snapshot(&self) -> Option<Snapshot> {
        all_of_it(&mut (self.look)(), kernel(self.family))
    }
}

/// The table with everything in it, also clients that stay. Elements are sorted: the kernel has no
/// order for them.
///
/// While the kernel enlarges a set, which it does on its own time after many elements came, a dump
/// has some of them twice and others not at all. So it is read until it is the same twice.
pub fn all_of_it(nft: &mut Nft, family: ferrule_kernel::Family) -> Option<Snapshot> {
    let mut snapshot = read_once(nft, family)?;
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(1));
        let former = std::mem::replace(&mut snapshot, read_once(nft, family)?);
        if former.elements == snapshot.elements && !has_twins(&snapshot) {
            break;
        }
    }
    for held in snapshot.sets.iter().filter(|held| held.object.dynamic) {
        let name = &held.object.name;
        let mut clients = nft.elements(family, TABLE, name).unwrap();
        clients.sort_by_key(|element| (element.key, element.ends_range));
        snapshot.elements.insert(name.clone(), clients);
    }
    Some(snapshot)
}

fn has_twins(snapshot: &Snapshot) -> bool {
    let mut lists = snapshot.elements.values();
    lists.any(|list| {
        let keys = |element: &Element| (element.key, element.ends_range);
        list.windows(2).any(|pair| keys(&pair[0]) == keys(&pair[1]))
    })
}

/// Without clients that stay.
fn read_once(nft: &mut Nft, family: ferrule_kernel::Family) -> Option<Snapshot> {
    let mut snapshot = nft.snapshot(family, TABLE).unwrap()?;
    for list in snapshot.elements.values_mut() {
        list.sort_by_key(|element| (element.key, element.ends_range));
    }
    Some(snapshot)
}

fn steps(applied: Result<Applied, ApplyError>) -> usize {
    applied
        .unwrap_or_else(|error| panic!("{error}: {error:?}"))
        .steps
}
