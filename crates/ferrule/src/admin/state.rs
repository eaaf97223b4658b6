//! What the admin socket answers from: a copy that follows sync, change by change.
//!
//! In: [`Update`]s, in the order in which sync sent them. Out: a [`View`] for whoever answers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ferrule_core::desired::explain::{Known, News};
use ferrule_core::facts::Settings;
use ferrule_core::issue::Issue;
use ferrule_core::model::{Family, PerFamily, PortKey, ServiceKey};

use crate::explain::answer::{Kernel, Lane, View};

/// What became different, as sync sends it. Making one costs what it names.
#[derive(Debug)]
pub enum Update {
    /// Objects that changed.
    News(News),
    /// The configuration was changed.
    Settings(Box<Settings>),
    /// Everything that is wrong in objects.
    Issues(Arc<[Issue]>),
    /// The addresses of this machine.
    Addresses(Vec<IpAddr>),
    /// These Services are to be programmed anew.
    Changed(Family, Vec<ServiceKey>),
    /// A sync ended: Service ports that the kernel refuses, or why it failed.
    Synced(Family, Result<BTreeMap<PortKey, String>, String>),
    /// All Services of a family whose health check port cannot be opened.
    Health(Family, BTreeMap<ServiceKey, String>),
}

/// Who this proxy is.
#[derive(Clone, Debug)]
pub struct About {
    /// The name of the node.
    pub node: String,
    /// The mode.
    pub mode: &'static str,
    /// The families that are programmed.
    pub families: Vec<Family>,
}

/// The copy.
pub struct State {
    about: About,
    known: Known,
    /// The first lists were complete.
    pub begun: bool,
    issues: Arc<[Issue]>,
    local: Vec<IpAddr>,
    lanes: PerFamily<Programmed>,
    health: PerFamily<BTreeMap<ServiceKey, String>>,
}

/// What became of programming one family.
#[derive(Debug, Default)]
struct Programmed {
    once: bool,
    error: Option<String>,
    refused: BTreeMap<PortKey, String>,
    /// Since when a Service waits.
    pending: BTreeMap<ServiceKey, Instant>,
}

impl State {
    /// Nothing is known yet.
    pub fn new(about: About, settings: Settings) -> Self {
        Self {
            about,
            known: Known::new(settings),
            begun: false,
            issues: Arc::default(),
            local: Vec::new(),
            lanes: PerFamily::default(),
            health: PerFamily::default(),
        }
    }

    /// Takes an update that came at this time.
    pub fn take(&mut self, update: Update, now: Instant) {
        match update {
            Update::News(news) => {
                self.known.learn(news);
                self.begun = true;
            }
            Update::Settings(settings) => self.known.reconfigure(*settings),
            Update::Issues(issues) => self.issues = issues,
            Update::Addresses(local) => self.local = local,
            Update::Changed(family, services) => {
                let pending = &mut self.lanes[family].pending;
                for service in services {
                    pending.entry(service).or_insert(now);
                }
            }
            Update::Synced(family, Ok(refused)) => {
                self.lanes[family] = Programmed {
                    once: true,
                    refused,
                    ..Programmed::default()
                };
            }
            Update::Synced(family, Err(error)) => self.lanes[family].error = Some(error),
            Update::Health(family, failed) => self.health[family] = failed,
        }
    }

    /// Hands what is known to `answer`.
    pub fn view<T>(&self, now: Instant, answer: impl FnOnce(&View<'_>) -> T) -> T {
        let lane = |family| {
            let lane: &Programmed = &self.lanes[family];
            let pending = lane.pending.iter().map(|(service, since)| {
                let waited = now.saturating_duration_since(*since);
                (service.clone(), waited.as_secs())
            });
            Lane {
                used: self.about.families.contains(&family),
                programmed: lane.once,
                error: lane.error.clone(),
                pending: pending.collect(),
                refused: lane.refused.clone(),
            }
        };
        let health = self.health.v4.iter().chain(&self.health.v6);
        let kernel = Kernel {
            families: PerFamily::from_fn(lane),
            health: health.map(|(k, v)| (k.clone(), v.clone())).collect(),
        };
        answer(&View {
            known: &self.known,
            node: &self.about.node,
            mode: self.about.mode,
            issues: &self.issues,
            local: &self.local,
            unserved: &BTreeMap::new(),
            kernel: Some(&kernel),
        })
    }
}
