//! Turns the crank: what was heard becomes what is desired becomes what is programmed.
//!
//! One plain thread owns the tracker, the desired state and the dataplanes, so there are no locks
//! and no ordering puzzles. In: [`Input`]s from a [`Source`]. Out: calls to the dataplanes, and to
//! an [`Observer`] that tells health and metrics.
//!
//! Each family has a lane of its own: its dataplane, its pace, and the delta not applied yet. A
//! failure in one does not hold up the other, and loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant, SystemTime};

use ferrule_core::desired::{Delta, Desired, FamilyDelta, HealthCheck, Totals};
use ferrule_core::facts::{Facts, Settings};
use ferrule_core::issue::{Issue, Kind};
use ferrule_core::model::{Family, Node, ServiceKey};
use ferrule_core::track::{Event, Tracker};
use ferrule_dataplane::conntrack::Flows;
use ferrule_dataplane::{
    Applied, ApplyError, Dataplane, Recovery, Refusal, RuleCount, Scope, Work,
};

mod pace;
#[cfg(test)]
mod tests;

pub use pace::{Limits, Pace};

/// What sync reacts to.
#[derive(Debug)]
pub enum Input {
    /// News of the cluster.
    Cluster(Vec<Event>),
    /// The configuration was changed.
    Settings(Box<Settings>),
    /// The intervals were changed.
    Limits(Limits),
    /// The kernel was changed by somebody else: look at all of it.
    Doubt(Family),
}

/// Where inputs come from.
pub trait Source {
    /// The next input, or [`Next::Late`] at the deadline, or [`Next::Ended`].
    fn next(&mut self, deadline: Instant) -> Next;
    /// The next input if one is there already.
    fn try_next(&mut self) -> Option<Input>;
    /// Changes of the cluster that come before this moment are not acted on before it.
    fn rest(&mut self, until: Instant) {
        _ = until;
    }
}

/// What a [`Source`] had.
#[derive(Debug)]
pub enum Next {
    /// An input.
    Input(Input),
    /// Nothing until the deadline.
    Late,
    /// Nothing ever again: the program is stopping.
    Ended,
}

/// A sync that ended, well or not.
#[derive(Debug)]
pub struct Synced<'a> {
    /// Which family.
    pub family: Family,
    /// All of it was looked at, not just a delta.
    pub whole: bool,
    /// How long it took.
    pub took: Duration,
    /// What happened.
    pub result: Result<Applied, &'a ApplyError>,
    /// When the changes now programmed began. Empty after a failure: they are kept.
    pub triggers: &'a [SystemTime],
    /// Sums after this sync.
    pub totals: Totals,
    /// How many rules there are; nothing after a failure, or where they are not counted.
    pub rules: &'a [RuleCount],
}

/// A look at tracked flows after a sync.
#[derive(Debug)]
pub struct Cleared {
    /// Which family.
    pub family: Family,
    /// How long it took.
    pub took: Duration,
    /// How many flows led nowhere and were removed, or why that is not known.
    pub result: io::Result<usize>,
}

/// What programs one family.
pub struct Backend {
    /// Which family.
    pub family: Family,
    /// Rules.
    pub dataplane: Box<dyn Dataplane>,
    /// Tracked flows; none are touched without.
    pub flows: Option<Flows>,
}

/// Told what happens, to serve health and metrics. Must not block.
pub trait Observer: Send {
    /// The lanes begin to work.
    fn started(&mut self, family: Family);
    /// A sync is wanted.
    fn queued(&mut self, family: Family);
    /// A sync begins.
    fn begun(&mut self, family: Family);
    /// A sync ended.
    fn synced(&mut self, synced: &Synced<'_>);
    /// Service ports that the last success had to leave out.
    fn left_out(&mut self, family: Family, refusals: &[Refusal]);
    /// Tracked flows were looked at.
    fn cleared(&mut self, cleared: &Cleared);
    /// Health checks to serve: what changed with a sync that succeeded.
    fn health_checks(
        &mut self,
        family: Family,
        changes: &BTreeMap<ServiceKey, Option<HealthCheck>>,
        facts: &Facts,
    );
    /// The Node was seen.
    fn node(&mut self, node: &Node);
    /// So many events about Services, and about EndpointSlices, came in.
    fn heard(&mut self, services: usize, slices: usize);
    /// So many Services, and EndpointSlices, differ from what was last decided.
    fn pending(&mut self, services: usize, slices: usize);
    /// Everything that is wrong in the input now.
    fn issues(&mut self, issues: &[&Issue]);
}

/// Trigger times kept while nothing can be programmed; more would tell nothing more.
const MOST_TRIGGERS: usize = 10_000;

/// One family's dataplane and what it still has to do.
struct Lane {
    family: Family,
    dataplane: Box<dyn Dataplane>,
    flows: Option<Flows>,
    pace: Pace,
    delta: FamilyDelta,
    triggers: Vec<SystemTime>,
    /// The first lists were complete, so there is something to program.
    begun: bool,
    /// The next sync must look at everything.
    whole: bool,
    /// Health checks must not run ahead of the rules they vouch for.
    health: BTreeMap<ServiceKey, Option<HealthCheck>>,
}

/// The crank.
pub struct Sync<O> {
    tracker: Tracker,
    desired: Desired,
    lanes: Vec<Lane>,
    observer: O,
    /// Which issues were told last.
    issues_version: (u64, u64),
}

impl<O: Observer> Sync<O> {
    /// Ready to run, with one backend per family that this host supports.
    pub fn new(
        settings: Settings,
        limits: Limits,
        backends: Vec<Backend>,
        observer: O,
        started: SystemTime,
    ) -> Self {
        let now = clock();
        let lanes = backends.into_iter().map(|backend| Lane {
            family: backend.family,
            dataplane: backend.dataplane,
            flows: backend.flows,
            pace: Pace::new(limits, now),
            delta: FamilyDelta::default(),
            triggers: Vec::new(),
            begun: false,
            whole: true,
            health: BTreeMap::new(),
        });
        Self {
            tracker: Tracker::new(started),
            desired: Desired::new(settings),
            lanes: lanes.collect(),
            observer,
            issues_version: (0, 0),
        }
    }

    /// Runs until the source ends. Whatever is programmed then stays.
    pub fn run(mut self, source: &mut impl Source) {
        for lane in &self.lanes {
            self.observer.started(lane.family);
        }
        loop {
            match source.next(self.deadline(clock())) {
                Next::Input(input) => {
                    self.take_in(input);
                    // What is there already is one change, not many.
                    while let Some(input) = source.try_next() {
                        self.take_in(input);
                    }
                }
                Next::Late => {}
                Next::Ended => return,
            }
            self.decide();
            if self.program()
                && let Some(until) = self.lanes.iter().filter_map(|l| l.pace.rest_until()).max()
            {
                source.rest(until);
            }
        }
    }

    fn deadline(&self, now: Instant) -> Instant {
        let far = now + Duration::from_hours(1);
        // Until the first lists are complete there is nothing to program, whatever the pace.
        if !self.tracker.is_ready() {
            return far;
        }
        let deadlines = self.lanes.iter().map(|lane| lane.pace.deadline(now));
        deadlines.min().unwrap_or(far)
    }

    fn take_in(&mut self, input: Input) {
        match input {
            Input::Cluster(events) => {
                let about = |kind| events.iter().filter(|e| e.kind() == Some(kind)).count();
                let told_of_node = about(Kind::Node) > 0;
                let known = self.tracker.node().filter(|_| told_of_node).cloned();
                self.observer
                    .heard(about(Kind::Service), about(Kind::EndpointSlice));
                for event in events {
                    self.tracker.on(event);
                }
                let (services, slices) = self.tracker.pending_counts();
                self.observer.pending(services, slices);
                if let Some(node) = self.tracker.node().filter(|_| told_of_node)
                    && known.as_ref() != Some(node)
                {
                    self.observer.node(node);
                }
            }
            Input::Settings(settings) => {
                // What is pending keeps the times at which it began.
                self.decide();
                let delta = self.desired.reconfigure(&self.tracker, *settings);
                if !delta.is_empty() {
                    self.hand_out(delta);
                }
            }
            Input::Limits(limits) => {
                let now = clock();
                for lane in &mut self.lanes {
                    lane.pace.set_limits(limits, now);
                }
            }
            Input::Doubt(family) => {
                for lane in self.lanes.iter_mut().filter(|lane| lane.family == family) {
                    lane.whole = true;
                    lane.pace.want();
                }
            }
        }
    }

    /// Brings the desired state up to date with what is pending.
    fn decide(&mut self) {
        let Some(changes) = self.tracker.take() else {
            return;
        };
        self.observer.pending(0, 0);
        let delta = self.desired.update(&self.tracker, changes);
        self.hand_out(delta);
    }

    /// Hands each lane its part of what became different.
    fn hand_out(&mut self, mut delta: Delta) {
        for lane in &mut self.lanes {
            let part = std::mem::take(&mut delta.families[lane.family]);
            let first = !std::mem::replace(&mut lane.begun, true);
            if part.is_empty() && !first {
                continue;
            }
            let services: BTreeSet<_> = part.changes.keys().map(|key| &key.service).collect();
            let times = services
                .into_iter()
                .filter_map(|key| delta.triggers.get(key));
            let room = MOST_TRIGGERS.saturating_sub(lane.triggers.len());
            lane.triggers.extend(times.flatten().take(room));
            lane.health.extend(part.health.clone());
            // A look at everything needs no delta, and the first one would hold the whole cluster.
            if !lane.whole {
                lane.delta.absorb(part);
            }
            lane.pace.want();
            self.observer.queued(lane.family);
        }
        let version = (self.tracker.issues_version(), self.desired.issues_version());
        if self.issues_version != version {
            self.issues_version = version;
            let met = self.desired.issues();
            let issues: Vec<&Issue> = self.tracker.issues().chain(&met).collect();
            self.observer.issues(&issues);
        }
    }

    /// Syncs the lanes that are due; whether any was.
    fn program(&mut self) -> bool {
        if !self.tracker.is_ready() {
            return false;
        }
        let mut any = false;
        for lane in &mut self.lanes {
            let now = clock();
            if lane.pace.due(now).is_none() {
                continue;
            }
            lane.whole |= lane.pace.is_audit_due(now);
            // A sync that hangs must show, whatever caused it.
            self.observer.begun(lane.family);
            lane.sync(&self.desired, &mut self.observer);
            any = true;
        }
        any
    }
}

impl Lane {
    fn sync(&mut self, desired: &Desired, observer: &mut impl Observer) {
        let whole = self.whole;
        let work = Work {
            family: self.family,
            desired,
            scope: if whole {
                Scope::Whole
            } else {
                Scope::Delta(&self.delta)
            },
        };
        let begun = clock();
        let result = self.dataplane.apply(&work);
        let ended = clock();
        self.pace.finished(ended, result.is_ok(), whole);
        if result.as_ref().is_err_and(ApplyError::has_waited) {
            self.pace.again(ended);
        }
        observer.synced(&Synced {
            family: self.family,
            whole,
            took: ended - begun,
            result: result.as_ref().copied(),
            triggers: if result.is_ok() { &self.triggers } else { &[] },
            totals: desired.totals(self.family),
            rules: &self.dataplane.rules(),
        });
        match result {
            Ok(_) => {
                observer.left_out(self.family, &self.dataplane.refused());
                if let Some(flows) = &mut self.flows {
                    clear_flows(flows, &work, observer);
                }
                self.whole = false;
                self.delta = FamilyDelta::default();
                self.triggers.clear();
                observer.health_checks(self.family, &self.health, desired.facts(self.family));
                self.health.clear();
            }
            Err(error) => self.whole |= error.recovery() == Recovery::Reread,
        }
    }
}

/// Only now: a flow removed before its rules are right comes back wrong with the next packet.
fn clear_flows(flows: &mut Flows, work: &Work<'_>, observer: &mut impl Observer) {
    let begun = clock();
    let Some(result) = flows.clear(work).transpose() else {
        return;
    };
    observer.cleared(&Cleared {
        family: work.family,
        took: clock() - begun,
        result,
    });
}

#[expect(
    clippy::disallowed_methods,
    reason = "sync is the one that reads the clock"
)]
fn clock() -> Instant {
    Instant::now()
}
