//! A cluster as this node sees it, programmed in some mode.

use std::net::IpAddr;

use ferrule_core::desired::{Desired, FamilyDelta};
use ferrule_core::facts::{Connections, Settings};
use ferrule_core::model::{Family, Protocol, Service, Slice};
use ferrule_dataplane::host::Addresses;
use ferrule_dataplane::{Applied, Dataplane, Refusal, Scope, Work};
use ferrule_kernel::nft::{Nft, Snapshot};
use ferrule_testbed::cluster::{self, Cluster, Objects, eps};
use ferrule_testbed::{Place, address, kernel};

use crate::modes::{IPVS, Knobs, Mode, NFTABLES, USERSPACE};

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

/// A cluster, and the dataplane of the node.
pub struct Scene {
    pub family: Family,
    pub mode: Mode,
    cluster: Cluster,
    knobs: Knobs,
    /// The node's network; that of the calling thread if there is none.
    node: Option<Place>,
    /// `None` while it is at work.
    dataplane: Option<Box<dyn Dataplane>>,
}

impl Objects for Scene {
    fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
}

impl Scene {
    /// An empty cluster, with nothing programmed yet.
    pub fn new(mode: Mode, family: Family, node: Option<Place>, settings: Settings) -> Self {
        let settings = Settings {
            connections: match mode.like {
                IPVS => Connections::Drained,
                _ => settings.connections,
            },
            ..settings
        };
        let mut scene = Self {
            family,
            mode,
            cluster: Cluster::with(settings),
            knobs: Knobs::default(),
            node,
            dataplane: None,
        };
        scene.restart();
        scene
    }

    /// Forgets what it wrote, as after a restart.
    pub fn restart(&mut self) {
        let (mode, family, knobs) = (self.mode, self.family, self.knobs);
        let open = move || mode.open(family, knobs).unwrap();
        self.dataplane = Some(self.there(open));
    }

    /// Ends it where it stands: nothing is removed.
    pub fn crash(&mut self) {
        let dataplane = self.dataplane.take();
        self.there(move || drop(dataplane));
    }

    /// Ends it in order: what is open may go on until it ends.
    pub fn end(&mut self) {
        let mut dataplane = self.dataplane.take().unwrap();
        self.there(move || {
            dataplane.withdraw().unwrap();
            dataplane.drain();
        });
    }

    /// Applies everything; what is said about Service ports that are not programmed, but for SCTP.
    pub fn refused(&mut self) -> Vec<String> {
        self.cluster.step();
        let (_, applied) = self.work(None);
        let refused = applied.refused.into_iter();
        let refused = refused.filter(|refusal| refusal.key.protocol != Protocol::Sctp);
        refused.map(|refusal| refusal.message).collect()
    }

    /// Restarts with other knobs; the number of steps it takes.
    pub fn turn(&mut self, knobs: Knobs) -> usize {
        self.knobs = knobs;
        let settings = Settings {
            masquerade_all: knobs.masquerade_all,
            ..self.cluster.settings.clone()
        };
        self.settings(settings);
        self.restart();
        self.whole()
    }

    /// Applies what changed; the number of steps.
    pub fn step(&mut self) -> usize {
        let delta = self.cluster.step();
        self.apply(Some(delta.families[self.family].clone()))
    }

    /// Applies everything; the number of steps.
    pub fn whole(&mut self) -> usize {
        self.cluster.step();
        self.apply(None)
    }

    fn apply(&mut self, delta: Option<FamilyDelta>) -> usize {
        let (mode, applied) = self.work(delta);
        // Mode userspace says of every port over SCTP that it cannot be relayed.
        let mut refused = applied.refused.iter();
        let by_nature =
            |refusal: &Refusal| mode == USERSPACE && refusal.key.protocol == Protocol::Sctp;
        assert!(refused.all(by_nature), "{:?}", applied.refused);
        applied.steps
    }

    fn work(&mut self, delta: Option<FamilyDelta>) -> (&'static str, Applied) {
        // What the dataplane's programs see is the network of the thread that starts them.
        let mut dataplane = self.dataplane.take().unwrap();
        let nothing = Desired::new(Settings::default());
        let desired = std::mem::replace(&mut self.cluster.desired, nothing);
        let (dataplane, desired, result) = self.there(move || {
            let scope = delta.as_ref().map_or(Scope::Full, Scope::Delta);
            let result = dataplane.apply(&Work {
                desired: &desired,
                scope,
                local: &Addresses::open().unwrap().list(),
            });
            (dataplane, desired, result)
        });
        self.dataplane = Some(dataplane);
        self.cluster.desired = desired;
        let applied = result.unwrap_or_else(|error| panic!("{error}: {error:?}"));
        (self.mode.like, applied)
    }

    /// Whether it is programmed as in this mode of kube-proxy.
    pub fn is_like(&self, mode: &str) -> bool {
        self.mode.like == mode
    }

    /// The table of mode nftables with everything in it, also clients with affinity; `None` in
    /// other modes.
    pub fn table(&self) -> Option<Snapshot> {
        const TABLE: &str = "kube-proxy";
        let family = kernel(self.family);
        self.is_like(NFTABLES).then(|| {
            self.there(move || {
                let mut nft = Nft::open().unwrap();
                let mut table = nft.snapshot(family, TABLE).unwrap().unwrap();
                for held in table.sets.iter().filter(|held| held.object.dynamic) {
                    let name = &held.object.name;
                    let clients = nft.elements(family, TABLE, name).unwrap();
                    table.elements.insert(name.clone(), clients);
                }
                table
            })
        })
    }

    /// Does something in the network of the node.
    fn there<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        match &self.node {
            Some(place) => place.run(work),
            None => work(),
        }
    }
}
