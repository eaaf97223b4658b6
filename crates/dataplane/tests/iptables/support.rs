//! Small clusters, programmed into namespaces.

use std::net::IpAddr;
use std::time::Duration;

use ferrule_core::facts::{DetectLocal, Settings};
use ferrule_core::model::{Family, Service, Slice};
use ferrule_dataplane::host::Addresses;
use ferrule_dataplane::iptables::{Iptables, Options};
use ferrule_dataplane::{Applied, ApplyError, Cadence, Dataplane, Scope, Watcher, Work};
use ferrule_kernel::xt::{Flavour, Table, Xt};
use ferrule_testbed::cluster::{self, eps};
pub use ferrule_testbed::cluster::{Cluster, Objects, node};
pub use ferrule_testbed::{address, in_namespace, kernel, run};

pub const FLAVOURS: [Flavour; 2] = [Flavour::Nft, Flavour::Legacy];

/// Runs a test for both families in both flavours.
pub fn everywhere(test: fn(Family, Flavour)) {
    for family in Family::ALL {
        for flavour in FLAVOURS {
            in_namespace(move || test(family, flavour));
        }
    }
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

/// A Service in namespace `demo` with one port, TCP 80, without a name.
pub fn service(name: &str, ip: IpAddr) -> Service {
    cluster::service(name).at(ip).port("", 80)
}

/// Endpoints of a Service; each is an address and whether it is on this node.
pub fn slice(service: &Service, port: i64, endpoints: &[(IpAddr, bool)]) -> Slice {
    Slice::of(service, port, &eps(endpoints))
}

pub fn settings(cidrs: &[&str]) -> Settings {
    let cidrs = cidrs.iter().map(|net| net.parse().unwrap()).collect();
    Settings {
        detect_local: DetectLocal::ClusterCidr(cidrs),
        ..Settings::default()
    }
}

/// Those who have a cluster, with endpoints as tests here write them.
pub trait Both: Objects {
    /// A Service and its endpoints, which listen on this port.
    fn both(&mut self, service: &Service, port: i64, pods: &[(IpAddr, bool)]) -> &mut Self {
        self.serving(service, port, &eps(pods))
    }
}

impl<T: Objects> Both for T {}

/// A cluster, and the rules for it.
pub struct Scene {
    pub family: Family,
    pub flavour: Flavour,
    pub cluster: Cluster,
    pub dataplane: Iptables,
    /// Programs are used where the tables could be spoken to directly.
    pub programs: bool,
    /// What the last success consisted of.
    pub last: Applied,
}

impl Objects for Scene {
    fn cluster(&mut self) -> &mut Cluster {
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
            cluster: Cluster::with(settings),
            dataplane: Iptables::new(family, Options::default(), xt),
            programs: false,
            last: Applied::default(),
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

    /// What notices external changes in this way.
    pub fn watcher(&mut self, cadence: Cadence) -> Box<dyn Watcher> {
        let all = self.dataplane.watch().into_iter();
        let mut fitting = all.filter(|watcher| watcher.cadence() == cadence);
        fitting.next().expect("there is one")
    }

    /// Whether the canary finds everything in place.
    pub fn is_intact(&mut self) -> bool {
        let mut canary = self.watcher(Cadence::Polled);
        canary.changed(Duration::ZERO).unwrap().is_none()
    }

    /// Applies what changed; the number of steps.
    pub fn step(&mut self) -> usize {
        self.try_step()
            .unwrap_or_else(|error| panic!("{error}: {error:?}"))
            .steps
    }

    pub fn try_step(&mut self) -> Result<Applied, ApplyError> {
        let delta = self.cluster.step();
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
        self.cluster.step();
        self.apply(Scope::Full)
    }

    fn apply(&mut self, scope: Scope<'_>) -> Result<Applied, ApplyError> {
        let work = Work {
            desired: &self.cluster.desired,
            scope,
            local: &Addresses::open().unwrap().list(),
        };
        let applied = self.dataplane.apply(&work)?;
        self.last = applied.clone();
        Ok(applied)
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
