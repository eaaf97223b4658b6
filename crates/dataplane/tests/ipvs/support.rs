//! Small clusters, programmed into the network of a node.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Instant;

use ferrule_core::desired::{Desired, FamilyDelta};
use ferrule_core::facts::{Connections, Settings};
use ferrule_core::model::Family;
use ferrule_dataplane::host::{Addresses, Host};
use ferrule_dataplane::ipvs::{self, Ipvs, Options, Timeouts};
use ferrule_dataplane::verify::Report;
use ferrule_dataplane::{Applied, ApplyError, Dataplane, Scope, Work};
use ferrule_kernel::ipset::{Header, Ipset};
pub use ferrule_kernel::ipvs::Change;
use ferrule_kernel::ipvs::{Counted, Ipvs as Kernel, Listed, Server, ServerKey};
pub use ferrule_testbed::cluster::{Cluster, Objects, node};
pub use ferrule_testbed::{Lab, run};
use ferrule_testbed::{Place, leave_out};

/// Runs a test in both families, each in a lab whose node can be programmed.
pub fn everywhere(test: fn(&Lab)) {
    for family in Family::ALL {
        in_family(family, test);
    }
}

/// Runs a test in one family, where the other has nothing to add.
pub fn in_family(family: Family, test: fn(&Lab)) {
    let Some(lab) = Lab::open(family) else {
        return;
    };
    if is_there(&lab.node, family) {
        test(&lab);
    }
}

/// Whether the machine has what it takes. Where `CI` is set it must.
fn is_there(node: &Place, family: Family) -> bool {
    let opened = node.run(move || Ipvs::open(family, Options::default()).map(drop));
    match opened {
        Ok(()) => {
            node.run(|| ipvs::prepare(&Host::default(), false, &Timeouts::default()))
                .unwrap();
            true
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            leave_out(&format!(
                "{error}; `cargo xtask uml` brings a kernel that has it"
            ));
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// A cluster, and the dataplane of the node.
pub struct Scene {
    pub family: Family,
    pub cluster: Cluster,
    pub options: Options,
    node: Place,
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
    pub fn new(lab: &Lab) -> Self {
        Self::with(lab, Options::default())
    }

    pub fn with(lab: &Lab, options: Options) -> Self {
        let settings = Settings {
            connections: Connections::Drained,
            ..lab.by_pod_net()
        };
        let mut scene = Self {
            family: lab.family,
            cluster: Cluster::with(settings),
            options,
            node: lab.node.clone(),
            dataplane: None,
        };
        scene.node(node("here").at(lab.node_ip()));
        scene.restart();
        scene
    }

    /// Forgets what it wrote, as after a restart.
    pub fn restart(&mut self) {
        let (family, options) = (self.family, self.options.clone());
        let opened = self.node.run(move || Ipvs::open(family, options));
        self.dataplane = Some(Box::new(opened.unwrap()));
    }

    /// Applies what changed; the number of steps.
    pub fn step(&mut self) -> usize {
        let delta = self.cluster.step();
        self.apply(Some(delta.families[self.family].clone()))
            .unwrap()
            .steps
    }

    /// Applies everything; the number of steps.
    pub fn whole(&mut self) -> usize {
        self.try_whole().unwrap().steps
    }

    pub fn try_whole(&mut self) -> Result<Applied, ApplyError> {
        self.cluster.step();
        self.apply(None)
    }

    fn apply(&mut self, delta: Option<FamilyDelta>) -> Result<Applied, ApplyError> {
        let mut dataplane = self.dataplane.take().unwrap();
        let nothing = Desired::new(Settings::default());
        let desired = std::mem::replace(&mut self.cluster.desired, nothing);
        let (dataplane, desired, result) = self.node.run(move || {
            let scope = delta.as_ref().map_or(Scope::Full, Scope::Delta);
            let result = dataplane.apply(&Work {
                desired: &desired,
                scope,
                local: &Addresses::open().unwrap().list(),
            });
            // As sync does.
            let result = result.and_then(|applied| {
                dataplane.tick(Instant::now())?;
                Ok(applied)
            });
            (dataplane, desired, result)
        });
        self.dataplane = Some(dataplane);
        self.cluster.desired = desired;
        result
    }

    /// Does what comes due at this time.
    pub fn tick(&mut self, now: Instant) -> Option<Instant> {
        let mut dataplane = self.dataplane.take().unwrap();
        let (dataplane, result) = self.node.run(move || {
            let result = dataplane.tick(now);
            (dataplane, result)
        });
        self.dataplane = Some(dataplane);
        result.unwrap()
    }

    pub fn remove(&mut self) -> usize {
        let mut dataplane = self.dataplane.take().unwrap();
        let (dataplane, result) = self.node.run(move || {
            let result = dataplane.remove();
            (dataplane, result)
        });
        self.dataplane = Some(dataplane);
        result.unwrap().steps
    }

    /// Whether some watcher that inspects the kernel notices an external change.
    pub fn is_changed(&mut self) -> bool {
        let watchers = self.dataplane.as_mut().unwrap().watch();
        self.node.run(move || {
            let mut watchers = watchers;
            let none = std::time::Duration::ZERO;
            watchers
                .iter_mut()
                .any(|watcher| watcher.changed(none).unwrap().is_some())
        })
    }

    /// How the node differs from what is desired.
    pub fn verify(&mut self) -> Report {
        let nothing = Desired::new(Settings::default());
        let desired = std::mem::replace(&mut self.cluster.desired, nothing);
        let (family, options) = (self.family, self.options.clone());
        let (desired, report) = self.node.run(move || {
            let local = Addresses::open().unwrap().list();
            let report = ipvs::verify(&desired, family, &options, &local);
            (desired, report)
        });
        self.cluster.desired = desired;
        report.unwrap()
    }

    /// Makes a change to virtual servers beside us.
    pub fn change(&self, change: Change) {
        let refused = self.node.run(move || {
            let mut kernel = Kernel::open().unwrap().unwrap();
            kernel.commit(&[change]).unwrap()
        });
        assert!(refused.is_empty(), "{refused:?}");
    }

    /// Runs a program on the node.
    pub fn run(&self, program: &'static str, arguments: &str) -> String {
        let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
        self.node.run(move || {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            run(program, &arguments)
        })
    }

    /// Virtual servers of the node and their destinations.
    pub fn servers(&self) -> BTreeMap<ServerKey, (Server, Vec<Counted>)> {
        self.node.run(|| {
            let mut kernel = Kernel::open().unwrap().unwrap();
            let listed = kernel.servers().unwrap();
            listed
                .into_iter()
                .filter_map(|listed| match listed {
                    Listed::Server(server) => {
                        let destinations = kernel.destinations(&server.key).unwrap();
                        Some((server.key, (server, destinations)))
                    }
                    Listed::Mark { .. } => None,
                })
                .collect()
        })
    }

    /// Sets of the node.
    pub fn sets(&self) -> Vec<Header> {
        self.node
            .run(|| Ipset::open().unwrap().unwrap().headers().unwrap())
    }
}
