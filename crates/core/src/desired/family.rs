//! One family's part of the desired state: the plan of every Service, and the claims between them.
//!
//! In: Services to draw again. Out: the exposures and health checks that became different. A round
//! first installs all new plans, each with its claims, and then marks the frontends that won or
//! lost an address, so the order of Services within the round does not matter.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::claims::{Claims, Contest};
use super::{
    Action, Change, Exposure, FamilyDelta, FrontendKind, HealthCheck, Totals, contested, expose,
};
use crate::facts::{Facts, Settings};
use crate::issue::Issue;
use crate::model::{Family, PortKey, ServiceKey};
use crate::track::Entry;

/// What one Service comes to in one family.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Sorted by key.
    pub(super) exposures: Box<[Arc<Exposure>]>,
    pub(super) health: Option<HealthCheck>,
    pub(super) created: i64,
    /// Some endpoint carries zone hints, so the node's zone matters.
    pub(super) hinted: bool,
    /// Endpoints of any condition, counted per port.
    pub(super) listed: usize,
}

impl Plan {
    /// The exposure with this key.
    pub(super) fn find(&self, key: &PortKey) -> Option<&Arc<Exposure>> {
        Some(&self.exposures[self.position(key)?])
    }

    fn position(&self, key: &PortKey) -> Option<usize> {
        let found = self
            .exposures
            .binary_search_by(|exposure| exposure.key.cmp(key));
        found.ok()
    }
}

/// The whole state of one family.
#[derive(Debug, Default)]
pub(super) struct FamilyState {
    plans: HashMap<ServiceKey, Plan>,
    claims: Claims,
    totals: Totals,
    /// What is wrong with the objects of a Service.
    issues: BTreeMap<ServiceKey, Vec<Issue>>,
    /// Counts changes of these, and of contested addresses.
    issues_version: u64,
}

/// What one update has touched so far.
#[derive(Default)]
pub(super) struct Round {
    /// Exposures as they were.
    before: BTreeMap<PortKey, Option<Arc<Exposure>>>,
    /// Health checks that differ, as they are.
    health: BTreeMap<ServiceKey, Option<HealthCheck>>,
    /// What is to be resolved between Services.
    contest: Contest,
}

impl FamilyState {
    /// Sums over all exposures.
    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    /// The plan of one Service.
    pub(super) fn plan(&self, key: &ServiceKey) -> Option<&Plan> {
        self.plans.get(key)
    }

    /// All exposures, in no order.
    pub(super) fn exposures(&self) -> impl Iterator<Item = &Arc<Exposure>> {
        self.plans.values().flat_map(|plan| &plan.exposures)
    }

    /// Another number whenever the issues may be different.
    pub(super) fn issues_version(&self) -> u64 {
        self.issues_version
    }

    /// What is wrong with Services and their slices, and who lost an address to whom.
    pub(super) fn issues(&self, family: Family) -> Vec<Issue> {
        let mut all: Vec<Issue> = self.issues.values().flatten().cloned().collect();
        for (key, standing) in self.claims.standings() {
            if let Some(plan) = self.plans.get(key) {
                contested::report(plan, *standing, &self.claims, family, &mut all);
            }
        }
        all
    }

    /// How the Services stand that meet others at some address.
    #[cfg(test)]
    pub(super) fn standings(&self) -> &BTreeMap<ServiceKey, super::claims::Standing> {
        self.claims.standings()
    }

    /// Services that a change of facts concerns, beyond those that changed themselves.
    pub(super) fn concerned_by(
        &self,
        former: &Facts,
        facts: &Facts,
        all: bool,
    ) -> BTreeSet<ServiceKey> {
        let all = all || former.cluster_ip_masquerade != facts.cluster_ip_masquerade;
        let zone = former.zone != facts.zone;
        let node_ip = former.node_ip != facts.node_ip;
        if !(all || zone || node_ip) {
            return BTreeSet::new();
        }
        let guarded = |plan: &Plan| {
            plan.exposures
                .iter()
                .any(|port| !port.source_ranges.is_empty())
        };
        self.plans
            .iter()
            .filter(|(_, plan)| all || (zone && plan.hinted) || (node_ip && guarded(plan)))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Draws one Service anew, and notes what is wrong with it.
    pub(super) fn draw(
        &mut self,
        settings: &Settings,
        facts: &Facts,
        family: Family,
        key: &ServiceKey,
        entry: Option<&Entry>,
    ) -> Option<Plan> {
        let mut issues = Vec::new();
        let plan =
            entry.and_then(|entry| expose::draw(settings, facts, family, entry, &mut issues));
        self.set_issues(key, issues);
        plan
    }

    fn set_issues(&mut self, key: &ServiceKey, now: Vec<Issue>) {
        let different = if now.is_empty() {
            self.issues.remove(key).is_some()
        } else {
            self.issues.insert(key.clone(), now.clone()) != Some(now)
        };
        self.issues_version += u64::from(different);
    }

    /// Puts a plan in the place of the former one and moves its claims.
    pub(super) fn install(&mut self, key: &ServiceKey, plan: Option<Plan>, round: &mut Round) {
        let former = self.plans.remove(key);
        if let Some(former) = &former {
            for exposure in &former.exposures {
                round.remember(exposure);
            }
            self.totals.listed -= former.listed;
        }
        let health = |plan: Option<&Plan>| plan.and_then(|plan| plan.health);
        if health(former.as_ref()) != health(plan.as_ref()) {
            round.health.insert(key.clone(), health(plan.as_ref()));
        }
        let former = former.unwrap_or_default();
        let Some(mut plan) = plan else {
            self.move_claims(&former, &mut Plan::default(), &mut round.contest);
            return;
        };
        self.totals.listed += plan.listed;
        for exposure in &plan.exposures {
            let before = round.before.entry(exposure.key.clone());
            before.or_insert(None);
        }
        self.move_claims(&former, &mut plan, &mut round.contest);
        self.plans.insert(key.clone(), plan);
    }

    /// Moves the claims of a Service from its former plan to the new one, port by port. Ports that
    /// claim what they did keep their marks.
    fn move_claims(&mut self, former: &Plan, plan: &mut Plan, contest: &mut Contest) {
        let same_age = former.created == plan.created;
        let (old_age, new_age) = (former.created, plan.created);
        let mut old = former.exposures.iter().peekable();
        for new in &mut plan.exposures {
            while let Some(gone) = old.next_if(|old| old.key < new.key) {
                let before = Some((old_age, gone.claims()));
                self.claims.replace(&gone.key, before, None, contest);
            }
            let old = old.next_if(|old| old.key == new.key);
            match old {
                Some(old) if same_age && new.claims_like(old) => copy_marks(old, new),
                old => {
                    let before = old.map(|old| (old_age, old.claims()));
                    let claims = new.claims();
                    if claims.len() < new.frontends.len() {
                        contest.ports.push(new.key.clone()); // It names an address twice.
                    }
                    let after = Some((new_age, claims));
                    self.claims.replace(&new.key, before, after, contest);
                }
            }
        }
        for gone in old {
            let before = Some((old_age, gone.claims()));
            self.claims.replace(&gone.key, before, None, contest);
        }
    }

    /// Marks the frontends that won or lost an address, then compares with what was before.
    pub(super) fn conclude(&mut self, mut round: Round) -> FamilyDelta {
        let mut contest = std::mem::take(&mut round.contest);
        self.issues_version += u64::from(contest.touched);
        contest.ports.sort_unstable();
        contest.ports.dedup();
        for key in &contest.ports {
            self.mark(key, &mut round);
        }
        let mut delta = FamilyDelta {
            health: round.health,
            ..FamilyDelta::default()
        };
        for (key, before) in round.before {
            let plan = self.plans.get(&key.service);
            let after = plan.and_then(|plan| plan.find(&key)).cloned();
            if before != after {
                self.totals.exchange(before.as_deref(), after.as_deref());
                delta.changes.insert(key, Change { before, after });
            }
        }
        delta
    }

    /// Marks the frontends of one Service port that do not hold their address.
    fn mark(&mut self, key: &PortKey, round: &mut Round) {
        let Some(plan) = self.plans.get_mut(&key.service) else {
            return;
        };
        let Some(position) = plan.position(key) else {
            return;
        };
        let exposure = &mut plan.exposures[position];
        let marks: Vec<bool> = exposure
            .frontends
            .iter()
            .map(|frontend| {
                let address = exposure.address(frontend);
                !self.claims.is_held_by(&address, frontend.kind, key)
            })
            .collect();
        if exposure.marks().ne(marks.iter().copied()) {
            round.remember(exposure);
            let frontends = &mut Arc::make_mut(exposure).frontends;
            for (frontend, shadowed) in frontends.iter_mut().zip(marks) {
                frontend.shadowed = shadowed;
            }
        }
    }
}

/// Takes over the marks of an exposure with the same claims.
fn copy_marks(from: &Exposure, to: &mut Arc<Exposure>) {
    if from.marks().all(|shadowed| !shadowed) {
        return;
    }
    let frontends = &mut Arc::make_mut(to).frontends;
    for (frontend, shadowed) in frontends.iter_mut().zip(from.marks()) {
        frontend.shadowed = shadowed;
    }
}

impl Exposure {
    fn marks(&self) -> impl Iterator<Item = bool> {
        self.frontends.iter().map(|frontend| frontend.shadowed)
    }
}

impl Round {
    fn remember(&mut self, exposure: &Arc<Exposure>) {
        self.before
            .entry(exposure.key.clone())
            .or_insert_with(|| Some(exposure.clone()));
    }
}

impl Totals {
    fn exchange(&mut self, before: Option<&Exposure>, after: Option<&Exposure>) {
        if let Some(exposure) = before {
            let gone = Self::of(exposure);
            self.ports -= gone.ports;
            self.endpoints -= gone.endpoints;
            self.no_local_internal -= gone.no_local_internal;
            self.no_local_external -= gone.no_local_external;
        }
        if let Some(exposure) = after {
            let come = Self::of(exposure);
            self.ports += come.ports;
            self.endpoints += come.endpoints;
            self.no_local_internal += come.no_local_internal;
            self.no_local_external += come.no_local_external;
        }
    }

    fn of(exposure: &Exposure) -> Self {
        let drops = |internal: bool| {
            exposure.frontends.iter().any(|frontend| {
                frontend.action == Action::Drop
                    && (frontend.kind == FrontendKind::ClusterIp) == internal
            })
        };
        Self {
            ports: 1,
            endpoints: exposure.endpoints.len(),
            // Known before selection, so counted with the plan.
            listed: 0,
            no_local_internal: drops(true).into(),
            no_local_external: drops(false).into(),
        }
    }
}
