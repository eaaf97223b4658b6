//! What the admin socket answers from: a copy that follows sync, change by change.
//!
//! In: [`Update`]s, in the order in which sync sent them. Out: a [`View`] for whoever answers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrule_core::desired::Desired;
use ferrule_core::desired::explain::{Known, News};
use ferrule_core::facts::Settings;
use ferrule_core::issue::Issue;
use ferrule_core::model::{Family, PerFamily, PortKey, ServiceKey};
use ferrule_dataplane::Process;

use super::history::{Ended, History};
use super::node::{FamilyAnswer, IssueAnswer, NodeAnswer, RefusedPort};
use super::services::{ServicesAnswer, services};
use crate::explain::answer::{Kernel, Lane, Repaired, VERSION, View};

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
    /// A sync ended, for those who ask later.
    Ended(Ended),
    /// The sync that ended undid external changes of this process, if it is known.
    Repaired(Family, Option<Process>),
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
    history: History,
    /// Another number whenever an answer may be different.
    generation: u64,
}

/// What became of programming one family.
#[derive(Debug, Default)]
struct Programmed {
    once: bool,
    error: Option<String>,
    refused: BTreeMap<PortKey, String>,
    /// Since when a Service waits.
    pending: BTreeMap<ServiceKey, Instant>,
    /// When external changes were last undone, and who made them, where that is known.
    repaired: Option<(Instant, Option<Process>)>,
}

/// So long, undone external changes are worth a sentence: they may be what a user noticed.
const LATELY: Duration = Duration::from_mins(10);

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
            history: History::default(),
            generation: 0,
        }
    }

    /// Takes an update that came at this time.
    pub fn take(&mut self, update: Update, now: Instant) {
        self.generation += 1;
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
                let repaired = self.lanes[family].repaired.take();
                self.lanes[family] = Programmed {
                    once: true,
                    refused,
                    repaired,
                    ..Programmed::default()
                };
            }
            Update::Synced(family, Err(error)) => self.lanes[family].error = Some(error),
            Update::Health(family, failed) => self.health[family] = failed,
            Update::Ended(ended) => self.history.ended(ended),
            Update::Repaired(family, process) => {
                self.history.repaired(family, process.clone());
                self.lanes[family].repaired = Some((now, process));
            }
        }
    }

    /// What is desired. Costs all of it.
    pub fn desired(&self) -> (Desired, &[Family]) {
        (self.known.desired(), &self.about.families)
    }

    /// All Service ports.
    pub fn services(&self, now: Instant) -> ServicesAnswer {
        self.view(now, |view| ServicesAnswer {
            version: VERSION.to_owned(),
            node: view.node.to_owned(),
            mode: view.mode.to_owned(),
            services: services(view.known, &self.about.families, |key, family| {
                view.kernel.map(|kernel| kernel.families[family].word(key))
            }),
        })
    }

    /// The node in a few fields, whatever the size of the cluster.
    pub fn node(&self, now: Instant) -> NodeAnswer {
        let families = self.about.families.iter();
        let issues = self.issues.iter().take(IssueAnswer::MOST);
        NodeAnswer {
            version: VERSION.to_owned(),
            node: self.about.node.clone(),
            mode: self.about.mode.to_owned(),
            ferrule: env!("CARGO_PKG_VERSION").to_owned(),
            begun: self.begun,
            generation: self.generation,
            services: self.known.service_count(),
            families: families.map(|family| self.family(*family, now)).collect(),
            issue_count: self.issues.len(),
            issues: issues.map(IssueAnswer::of).collect(),
            sync_count: self.history.count(),
            syncs: self.history.syncs(),
        }
    }

    fn family(&self, family: Family, now: Instant) -> FamilyAnswer {
        let facts = self.known.facts(family);
        let lane: &Programmed = &self.lanes[family];
        let oldest = lane.pending.values().min();
        let refused = lane.refused.iter().take(RefusedPort::MOST);
        FamilyAnswer {
            family: family.to_string(),
            node_ip: facts.node_ip.to_string(),
            zone: facts.zone.as_deref().map(str::to_owned),
            programmed: lane.once,
            error: lane.error.clone(),
            pending: lane.pending.len(),
            pending_seconds: oldest.map(|since| now.saturating_duration_since(*since).as_secs()),
            refused_count: lane.refused.len(),
            refused: refused.map(RefusedPort::of).collect(),
            audit: self.history.audit(family),
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
            let repaired = lane.repaired.as_ref().and_then(|(at, process)| {
                let passed = now.saturating_duration_since(*at);
                (passed < LATELY).then(|| Repaired {
                    seconds: passed.as_secs(),
                    process: process.as_ref().map(ToString::to_string),
                })
            });
            Lane {
                repaired,
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
