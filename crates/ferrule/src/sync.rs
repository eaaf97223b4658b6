//! Turns the crank: events become desired state becomes what is programmed.
//!
//! One plain thread owns the tracker, the desired state and the dataplanes, so there are no locks
//! and no ordering puzzles. In: [`Input`]s from a [`Source`]. Out: calls to the dataplanes, to an
//! [`Observer`] that serves health and metrics, and to a [`Lifecycle`] that acts once a family is
//! programmed.
//!
//! Each family has a lane of its own: its dataplane, its pace, and the delta not applied yet. A
//! failure in one does not hold up the other, and loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use ferrule_core::desired::{Change, Delta, Desired, FamilyDelta, HealthCheck, Totals};
use ferrule_core::facts::{Facts, NodePorts, Settings};
use ferrule_core::issue::{Issue, Kind};
use ferrule_core::model::{Family, Node, PortKey, ServiceKey};
use ferrule_core::track::{Changes, Event, Tracker};
use ferrule_dataplane::conntrack::Flows;
use ferrule_dataplane::{Applied, ApplyError, Dataplane, ExternalChange, Scope, Watcher, Work};

use crate::modes::OnExit;

mod healing;
mod pace;
#[cfg(test)]
pub mod recorder;
#[cfg(test)]
mod tests;

pub use healing::{Contest, Repair};
pub use pace::{Limits, Pace, RestBy};

use healing::Healing;

/// What sync reacts to.
#[derive(Debug)]
pub enum Input {
    /// News of the cluster.
    Cluster(Vec<Event>),
    /// The configuration was changed.
    Settings(Box<Settings>),
    /// The intervals were changed.
    Limits(Limits),
    /// The addresses of this machine's interfaces, sorted.
    Addresses(Vec<IpAddr>),
    /// An external change to what is programmed: compare everything with the kernel.
    Resync(Family, ExternalChange),
    /// What could not be programmed may be possible now.
    Retry,
    /// The program is stopping.
    Stop,
}

/// Where inputs come from.
pub trait Source {
    /// The next input, or [`Next::Late`] at the deadline, or [`Next::Ended`].
    fn next(&mut self, deadline: Instant) -> Next;
    /// The next input if one is there already.
    fn try_next(&mut self) -> Option<Input>;
    /// From `now` on, changes of the cluster are not acted on before `until`.
    fn rest(&mut self, now: Instant, until: Instant) {
        _ = (now, until);
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
    /// Everything was compared with the kernel, not just a delta.
    pub full: bool,
    /// How long it took.
    pub took: Duration,
    /// What happened.
    pub result: Result<&'a Applied, &'a ApplyError>,
    /// When the changes now programmed began. Empty after a failure: they are kept.
    pub triggers: &'a [SystemTime],
    /// Sums after this sync.
    pub totals: Totals,
}

/// A search for stale flows after a sync.
#[derive(Debug)]
pub struct Cleared {
    /// Which family.
    pub family: Family,
    /// How long it took.
    pub took: Duration,
    /// How many flows were stale and removed, or why that is not known.
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

/// Receives what happens, to serve health and metrics. Must not block.
pub trait Observer: Send {
    /// The lanes begin to work.
    fn started(&mut self, family: Family);
    /// A sync is wanted.
    fn queued(&mut self, family: Family);
    /// A sync begins.
    fn begun(&mut self, family: Family);
    /// A sync ended.
    fn synced(&mut self, synced: &Synced<'_>);
    /// External changes were undone by the sync that ended.
    fn repaired(&mut self, family: Family, repair: &Repair);
    /// Stale flows were searched for.
    fn cleared(&mut self, cleared: &Cleared);
    /// The rules were removed at the end, or why not.
    fn removed(&mut self, family: Family, result: Result<&Applied, &ApplyError>);
    /// Health checks to serve: what changed with a sync that succeeded.
    fn health_checks(
        &mut self,
        family: Family,
        changes: &BTreeMap<ServiceKey, Option<HealthCheck>>,
        facts: &Facts,
        local: &[IpAddr],
    );
    /// The Node was seen.
    fn node(&mut self, node: &Node);
    /// So many events about Services, and about EndpointSlices, came in.
    fn received(&mut self, services: usize, slices: usize);
    /// So many Services, and EndpointSlices, differ from what was last decided.
    fn pending(&mut self, services: usize, slices: usize);
    /// Everything that is wrong in the input now.
    fn issues(&mut self, issues: &[&Issue]);
    /// These changes are about to be decided.
    fn taken(&mut self, tracker: &Tracker, changes: &Changes) {
        _ = (tracker, changes);
    }
    /// These Service ports of a family were decided otherwise than before.
    fn decided(&mut self, family: Family, changes: &BTreeMap<PortKey, Change>) {
        _ = (family, changes);
    }
    /// The configuration was changed.
    fn reconfigured(&mut self, settings: &Settings) {
        _ = settings;
    }
}

/// Acts on what happens once per family or program. Must not block.
pub trait Lifecycle: Send {
    /// The Node is new or different.
    fn node(&mut self, node: &Node);
    /// A family is programmed for the first time. The watchers notice external changes from now on.
    fn programmed(&mut self, family: Family, watchers: Vec<Box<dyn Watcher>>);
    /// Every family was attempted, and at least one is programmed. A family that cannot be
    /// programmed does not hold this up.
    fn ready(&mut self);
    /// Every family is programmed.
    fn complete(&mut self);
}

/// Trigger times kept while nothing can be programmed; more would tell nothing more.
const MOST_TRIGGERS: usize = 10_000;

/// Inputs taken in before what they change is programmed. Where events come as fast as they are
/// taken in, there is always a next one, and no sync would ever begin.
const MOST_INPUTS: usize = 256;

/// How long to take in inputs before what they change is programmed.
const ROUND: Duration = Duration::from_millis(200);

/// How far a family has come since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    /// Nothing was attempted yet.
    Waiting,
    /// Every attempt failed.
    Failed,
    /// It was programmed once.
    Programmed,
}

/// One family's dataplane and what it still has to do.
struct Lane {
    family: Family,
    dataplane: Box<dyn Dataplane>,
    flows: Option<Flows>,
    pace: Pace,
    healing: Healing,
    delta: FamilyDelta,
    triggers: Vec<SystemTime>,
    /// The first lists were complete, so there is something to program.
    begun: bool,
    progress: Progress,
    /// The next sync must compare everything with the kernel.
    full: bool,
    /// Health checks must not run ahead of the rules they vouch for.
    health: BTreeMap<ServiceKey, Option<HealthCheck>>,
    /// When the dataplane has something to do by itself.
    wake: Option<Instant>,
}

/// What the lifecycle was notified of last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Milestone {
    None,
    Ready,
    Complete,
}

/// What does not change while sync runs.
pub struct Setup<O, L> {
    /// One per family that this host supports.
    pub backends: Vec<Backend>,
    /// Serves health and metrics.
    pub observer: O,
    /// Acts on milestones.
    pub lifecycle: L,
    /// What becomes of the rules at the end.
    pub on_exit: OnExit,
    /// When the program started.
    pub started: SystemTime,
}

/// The crank.
pub struct Sync<O, L> {
    tracker: Tracker,
    desired: Desired,
    lanes: Vec<Lane>,
    observer: O,
    lifecycle: L,
    on_exit: OnExit,
    reached: Milestone,
    /// Addresses of this machine's interfaces.
    local: Vec<IpAddr>,
    /// Which issues were reported last.
    issues_version: (u64, u64),
}

impl<O: Observer, L: Lifecycle> Sync<O, L> {
    /// Ready to run, on a machine with these addresses.
    pub fn new(settings: Settings, limits: Limits, local: Vec<IpAddr>, setup: Setup<O, L>) -> Self {
        let now = clock();
        let lanes = setup.backends.into_iter().map(|backend| Lane {
            family: backend.family,
            dataplane: backend.dataplane,
            flows: backend.flows,
            pace: Pace::new(limits, now),
            healing: Healing::default(),
            delta: FamilyDelta::default(),
            triggers: Vec::new(),
            begun: false,
            progress: Progress::Waiting,
            full: true,
            health: BTreeMap::new(),
            wake: None,
        });
        Self {
            tracker: Tracker::new(setup.started),
            desired: Desired::new(settings),
            lanes: lanes.collect(),
            observer: setup.observer,
            lifecycle: setup.lifecycle,
            on_exit: setup.on_exit,
            reached: Milestone::None,
            local,
            issues_version: (0, 0),
        }
    }

    /// Runs until it is stopped, or the source ends.
    pub fn run(mut self, source: &mut impl Source) {
        for lane in &self.lanes {
            self.observer.started(lane.family);
        }
        loop {
            match source.next(self.deadline(clock())) {
                Next::Input(Input::Stop) | Next::Ended => return self.stop(),
                Next::Input(input) => {
                    self.take_in(input);
                    // What is there already is one change, not many.
                    let until = clock() + ROUND;
                    for _ in 1..MOST_INPUTS {
                        match source.try_next() {
                            None => break,
                            Some(Input::Stop) => return self.stop(),
                            Some(input) => self.take_in(input),
                        }
                        if clock() >= until {
                            break;
                        }
                    }
                }
                Next::Late => {}
            }
            self.decide();
            if let Some(until) = self.program() {
                source.rest(clock(), until);
            }
        }
    }

    fn deadline(&self, now: Instant) -> Instant {
        let far = now + Duration::from_hours(1);
        // Until the first lists are complete there is nothing to program, whatever the pace.
        if !self.tracker.is_ready() {
            return far;
        }
        let deadlines = self.lanes.iter().map(|lane| lane.deadline(now));
        deadlines.min().unwrap_or(far)
    }

    fn take_in(&mut self, input: Input) {
        match input {
            Input::Cluster(events) => {
                let about = |kind| events.iter().filter(|e| e.kind() == Some(kind)).count();
                let has_node = about(Kind::Node) > 0;
                let known = self.tracker.node().filter(|_| has_node).cloned();
                self.observer
                    .received(about(Kind::Service), about(Kind::EndpointSlice));
                for event in events {
                    self.tracker.on(event);
                }
                let (services, slices) = self.tracker.pending_counts();
                self.observer.pending(services, slices);
                if let Some(node) = self.tracker.node().filter(|_| has_node)
                    && known.as_ref() != Some(node)
                {
                    self.observer.node(node);
                    self.lifecycle.node(node);
                }
            }
            Input::Settings(settings) => {
                // What is pending keeps the times at which it began.
                self.decide();
                self.observer.reconfigured(&settings);
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
            Input::Addresses(local) => self.readdress(local),
            Input::Resync(family, change) => {
                let now = clock();
                for lane in self.lanes.iter_mut().filter(|lane| lane.family == family) {
                    lane.healing.noticed(now, change.clone());
                }
            }
            Input::Retry => {
                for lane in self.lanes.iter_mut().filter(|lane| lane.begun) {
                    lane.full = true;
                    lane.pace.want();
                }
            }
            Input::Stop => {}
        }
    }

    /// Takes other addresses of this machine. They matter where NodePorts answer on some only, and
    /// these are others.
    fn readdress(&mut self, local: Vec<IpAddr>) {
        let old = std::mem::replace(&mut self.local, local);
        for lane in self.lanes.iter_mut().filter(|lane| lane.begun) {
            let node_ports = &self.desired.facts(lane.family).node_ports;
            let chosen = |local: &[IpAddr]| node_ports.among(local, lane.family);
            let of_family = |local: &[IpAddr]| NodePorts::All.among(local, lane.family);
            let differ = if lane.dataplane.follows_addresses() {
                of_family(&old) != of_family(&self.local)
            } else {
                matches!(node_ports, NodePorts::Within(_)) && chosen(&old) != chosen(&self.local)
            };
            if differ {
                lane.pace.want();
            }
        }
    }

    /// Rules stay, unless they would lead nowhere without the program. Connections that it carries
    /// are given the time they have.
    fn stop(self) {
        let Self {
            mut lanes,
            mut observer,
            on_exit,
            ..
        } = self;
        if on_exit == OnExit::Keep {
            return;
        }
        for lane in &mut lanes {
            let result = lane.dataplane.withdraw();
            observer.removed(lane.family, result.as_ref());
        }
        // Health ports of Services close: nobody new is to be sent here.
        drop(observer);
        for lane in &mut lanes {
            lane.dataplane.drain();
        }
    }

    /// Brings the desired state up to date with what is pending.
    fn decide(&mut self) {
        let Some(changes) = self.tracker.take() else {
            return;
        };
        self.observer.pending(0, 0);
        self.observer.taken(&self.tracker, &changes);
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
            self.observer.decided(lane.family, &part.changes);
            let services: BTreeSet<_> = part.changes.keys().map(|key| &key.service).collect();
            let times = services
                .into_iter()
                .filter_map(|key| delta.triggers.get(key));
            let room = MOST_TRIGGERS.saturating_sub(lane.triggers.len());
            lane.triggers.extend(times.flatten().take(room));
            lane.health.extend(part.health.clone());
            // A full sync needs no delta, and the first one would hold the whole cluster.
            if !lane.full {
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

    /// Syncs the lanes that are due. If any was, returns when the first of them may sync again.
    fn program(&mut self) -> Option<Instant> {
        if !self.tracker.is_ready() {
            return None;
        }
        let mut synced = Vec::new();
        let mut first = Vec::new();
        for number in 0..self.lanes.len() {
            let lane = &mut self.lanes[number];
            let now = clock();
            if lane.healing.begin(now) {
                lane.full = true;
                lane.pace.want();
            }
            if lane.wake.is_some_and(|wake| wake <= now) {
                lane.tick(now);
            }
            if !lane.pace.is_due(now) {
                continue;
            }
            synced.push(number);
            lane.full |= lane.pace.is_audit_due(now);
            // A sync that hangs must show, whatever caused it.
            self.observer.begun(lane.family);
            let attempt = lane.apply(&self.desired, &self.local);
            if lane.progress == Progress::Programmed {
                self.finish(number, &attempt);
            } else {
                first.push((number, attempt));
            }
        }
        // Only now: once a family is guarded, the kernel describes all of another's first sync.
        for (number, attempt) in first {
            self.finish(number, &attempt);
        }
        self.announce();
        let synced = synced.into_iter().map(|number| &self.lanes[number]);
        synced.filter_map(|lane| lane.pace.rest_until()).min()
    }

    fn finish(&mut self, lane: usize, attempt: &Attempt) {
        let context = Context {
            desired: &self.desired,
            local: &self.local,
            observer: &mut self.observer,
            lifecycle: &mut self.lifecycle,
        };
        self.lanes[lane].finish(attempt, context);
    }

    /// Tells the lifecycle how far all families together have come.
    fn announce(&mut self) {
        let all = || self.lanes.iter().map(|lane| lane.progress);
        let programmed = |progress| progress == Progress::Programmed;
        let attempted = all().all(|progress| progress != Progress::Waiting);
        if self.reached < Milestone::Ready && attempted && all().any(programmed) {
            self.reached = Milestone::Ready;
            self.lifecycle.ready();
        }
        if self.reached == Milestone::Ready && all().all(programmed) {
            self.reached = Milestone::Complete;
            self.lifecycle.complete();
        }
    }
}

/// One call of a dataplane, and what became of it.
struct Attempt {
    full: bool,
    took: Duration,
    result: Result<Applied, ApplyError>,
}

/// What a lane needs for a sync.
struct Context<'a, O, L> {
    desired: &'a Desired,
    local: &'a [IpAddr],
    observer: &'a mut O,
    lifecycle: &'a mut L,
}

impl Lane {
    fn deadline(&self, now: Instant) -> Instant {
        let deadline = self.pace.deadline(now);
        let others = [self.healing.deadline(), self.wake];
        others.into_iter().flatten().fold(deadline, Instant::min)
    }

    fn apply(&mut self, desired: &Desired, local: &[IpAddr]) -> Attempt {
        let begun = clock();
        let scope = scope(self.full, &self.delta);
        let result = self.dataplane.apply(&Work {
            desired,
            scope,
            local,
        });
        Attempt {
            full: self.full,
            took: clock() - begun,
            result,
        }
    }

    /// Has the dataplane do what comes due by itself.
    fn tick(&mut self, now: Instant) {
        self.wake = self.dataplane.tick(now).unwrap_or_else(|_| {
            // Whatever is wrong, the full sync meets it too, and reports it.
            self.full = true;
            self.pace.want();
            None
        });
    }

    fn finish<O: Observer, L: Lifecycle>(&mut self, attempt: &Attempt, context: Context<'_, O, L>) {
        let begun = clock();
        self.follow_up(attempt, context);
        let ended = clock();
        let (result, full) = (&attempt.result, attempt.full);
        // Removing stale flows is part of what a sync costs.
        let cost = attempt.took + (ended - begun);
        self.pace.finished(ended, cost, result.is_ok(), full);
        if result.as_ref().is_err_and(ApplyError::has_waited) {
            self.pace.again(ended);
        }
    }

    fn follow_up<O: Observer, L: Lifecycle>(
        &mut self,
        attempt: &Attempt,
        context: Context<'_, O, L>,
    ) {
        let Context {
            desired,
            local,
            observer,
            lifecycle,
        } = context;
        let result = attempt.result.as_ref();
        if result.is_err() {
            self.progress = self.progress.max(Progress::Failed);
        } else if self.progress != Progress::Programmed {
            self.progress = Progress::Programmed;
            // Before anybody learns that it is programmed: who does may rely on it being guarded.
            lifecycle.programmed(self.family, self.dataplane.watch());
        }
        observer.synced(&Synced {
            family: self.family,
            full: attempt.full,
            took: attempt.took,
            result,
            triggers: if result.is_ok() { &self.triggers } else { &[] },
            totals: desired.totals(self.family),
        });
        let Ok(applied) = result else {
            // What was refused may show that the kernel is not as we remember it.
            self.full = true;
            return;
        };
        let most = self.pace.limits().retry;
        if attempt.full
            && let Some(repair) = self.healing.synced(clock(), applied.steps, most)
        {
            observer.repaired(self.family, &repair);
        }
        if let Some(flows) = &mut self.flows {
            let work = Work {
                desired,
                scope: scope(attempt.full, &self.delta),
                local,
            };
            clear_flows(flows, self.family, &work, observer);
        }
        self.full = false;
        self.delta = FamilyDelta::default();
        self.triggers.clear();
        self.tick(clock());
        let facts = desired.facts(self.family);
        observer.health_checks(self.family, &self.health, facts, local);
        self.health.clear();
    }
}

const fn scope(full: bool, delta: &FamilyDelta) -> Scope<'_> {
    if full {
        Scope::Full
    } else {
        Scope::Delta(delta)
    }
}

/// Only now: a flow removed before its rules are right comes back wrong with the next packet.
fn clear_flows(flows: &mut Flows, family: Family, work: &Work<'_>, observer: &mut impl Observer) {
    let begun = clock();
    let Some(result) = flows.clear(work).transpose() else {
        return;
    };
    observer.cleared(&Cleared {
        family,
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
