//! Every Service address and what happens to traffic that arrives there.
//!
//! In: what the [`Tracker`] knows, and the [`Settings`] of this node. Out: [`Desired`], the whole
//! picture, and a [`Delta`], what became different since the last update. Both are decided here
//! completely: a dataplane translates, it does not choose.
//!
//! An update redraws only the Services named in [`Changes`], those that share a contested
//! address with them when its holder changes, and on a change of the node the ones it concerns.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use ipnet::IpNet;

use crate::facts::{Facts, Settings};
use crate::issue::Issue;
use crate::model::{Family, PerFamily, Port, PortKey, ServiceKey, TrafficPolicy, format_socket};
use crate::track::{Changes, Entry, Tracker};

mod claims;
mod delta;
mod expose;
mod gather;
mod select;
#[cfg(test)]
mod tests;

use claims::{Address, Claims, Contest, Rank};
pub use delta::{Change, Delta, FamilyDelta};

/// One Service port on this node, decided: the addresses it answers on and the endpoints behind
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// Which Service port.
    pub key: PortKey,
    /// Its addresses: cluster IP, external IPs, load balancer IPs, NodePort.
    pub frontends: Box<[Frontend]>,
    /// All endpoints that some frontend may use, in the text order of `ip:port`.
    pub endpoints: Box<[Endpoint]>,
    /// For UDP only: every endpoint that answers, used or not, in the same order. A tracked flow
    /// to anything else is stale.
    pub udp_backends: Box<[(IpAddr, Port)]>,
    /// How an endpoint is chosen.
    pub algorithm: Algorithm,
    /// Seconds a client stays with its endpoint.
    pub affinity_seconds: Option<NonZeroU32>,
    /// Sources allowed to use the load balancer IPs; empty means all.
    pub source_ranges: Box<[IpNet]>,
    /// A range contains this node: then the load balancer IPs themselves are allowed sources
    /// too, because the node may use them as source when it talks to itself.
    pub source_ranges_include_node: bool,
    /// Policy for traffic to the cluster IP.
    pub internal_policy: TrafficPolicy,
    /// Policy for traffic to all other addresses.
    pub external_policy: TrafficPolicy,
    /// The port on which load balancers ask for this Service's local endpoints.
    pub health_check_port: Option<Port>,
}

/// One address of a Service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// What kind of address.
    pub kind: FrontendKind,
    /// The address; `None` is every address on which this node serves NodePorts.
    pub ip: Option<IpAddr>,
    /// The port.
    pub port: Port,
    /// What happens to traffic.
    pub action: Action,
    /// What clients in pods of this node and on the node itself get instead, if that differs:
    /// they are inside the cluster, so a policy about outside traffic does not bind them.
    pub inside: Option<Action>,
    /// Whose traffic gets this node's address as its source.
    pub masquerade: Masquerade,
    /// Another Service port, or another kind of frontend of this one, holds the same address.
    /// A dataplane with one entry per address leaves this one out.
    pub shadowed: bool,
}

/// Kinds of address, strongest claim first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKind {
    /// `spec.clusterIPs`
    ClusterIp,
    /// `status.loadBalancer.ingress`
    LoadBalancerIp,
    /// `spec.externalIPs`
    ExternalIp,
    /// `spec.ports[].nodePort`
    NodePort,
}

impl FrontendKind {
    /// The word in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::LoadBalancerIp => "LoadBalancerIP",
            Self::ExternalIp => "ExternalIP",
            Self::NodePort => "NodePort",
        }
    }
}

/// What happens to traffic to a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Goes to one of the endpoints of this pool.
    Balance(Pool),
    /// Refused: the Service has no endpoint anywhere.
    Reject,
    /// Dropped: there are endpoints, but the policy allows none of them here.
    Drop,
}

/// Which of an exposure's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pool {
    /// Those chosen from the whole cluster.
    Cluster,
    /// Those chosen from this node.
    Local,
}

/// One endpoint of an exposure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Its address.
    pub ip: IpAddr,
    /// Its port.
    pub port: Port,
    /// Its share of the traffic, relative to the others. Always 1 so far.
    pub weight: u16,
    /// It runs on this node.
    pub local: bool,
    /// It is in [`Pool::Cluster`].
    pub in_cluster_pool: bool,
    /// It is in [`Pool::Local`].
    pub in_local_pool: bool,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&format_socket(self.ip, self.port))
    }
}

/// How an endpoint is chosen for a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Each with equal probability, by weight.
    #[default]
    Random,
}

/// Whose traffic gets this node's address as its source, so that replies come back through here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Masquerade {
    /// Nobody's: the endpoint sees the client.
    Never,
    /// Everybody's.
    Always,
    /// That of clients outside the pod network.
    Outside,
    /// That of processes on this node.
    Node,
}

/// What a load balancer is told about a Service on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port it asks on.
    pub port: Port,
    /// Number of ready endpoints here, counted by address.
    pub local_ready: usize,
}

/// Sums over all exposures of a family, kept up to date with each change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Service ports.
    pub ports: usize,
    /// Endpoints in use, counted per Service port.
    pub endpoints: usize,
    /// Endpoints of any condition, counted per Service port.
    pub listed: usize,
    /// Service ports whose cluster IP drops because no endpoint is local.
    pub no_local_internal: usize,
    /// Service ports whose other addresses drop because no endpoint is local.
    pub no_local_external: usize,
}

impl Exposure {
    /// The endpoints of one pool, in order.
    pub fn pool(&self, pool: Pool) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().filter(move |endpoint| match pool {
            Pool::Cluster => endpoint.in_cluster_pool,
            Pool::Local => endpoint.in_local_pool,
        })
    }

    /// The endpoints an action leads to: none unless it balances.
    pub fn behind(&self, action: Action) -> impl Iterator<Item = &Endpoint> {
        let pool = match action {
            Action::Balance(pool) => Some(pool),
            Action::Reject | Action::Drop => None,
        };
        pool.into_iter().flat_map(|pool| self.pool(pool))
    }

    /// The frontends that hold their address.
    pub fn holding(&self) -> impl Iterator<Item = &Frontend> {
        self.frontends.iter().filter(|frontend| !frontend.shadowed)
    }

    fn address(&self, frontend: &Frontend) -> Address {
        Address {
            ip: frontend.ip,
            protocol: self.key.protocol,
            port: frontend.port,
        }
    }

    fn addresses(&self) -> impl Iterator<Item = Address> {
        self.frontends.iter().map(|frontend| self.address(frontend))
    }
}

/// What one Service comes to in one family.
#[derive(Debug, Default)]
struct Plan {
    /// Sorted by key.
    exposures: Box<[Arc<Exposure>]>,
    health: Option<HealthCheck>,
    created: i64,
    /// Some endpoint carries zone hints, so the node's zone matters.
    hinted: bool,
    /// Endpoints of any condition, counted per port.
    listed: usize,
}

/// The whole picture: every exposure of both families.
#[derive(Debug)]
pub struct Desired {
    settings: Settings,
    settings_changed: bool,
    facts: PerFamily<Facts>,
    families: PerFamily<Book>,
}

/// One family's part of the picture.
#[derive(Debug, Default)]
struct Book {
    plans: HashMap<ServiceKey, Plan>,
    claims: Claims,
    totals: Totals,
    /// What was wrong with a Service's endpoints.
    issues: BTreeMap<ServiceKey, Vec<Issue>>,
    /// Which addresses a Service lost to another.
    lost: BTreeMap<ServiceKey, Vec<Issue>>,
    /// Counts changes of these two.
    issues_version: u64,
}

/// Replaces what is told about a Service. Says whether that is different.
fn tell(told: &mut BTreeMap<ServiceKey, Vec<Issue>>, key: &ServiceKey, now: Vec<Issue>) -> bool {
    if now.is_empty() {
        return told.remove(key).is_some();
    }
    told.insert(key.clone(), now.clone()) != Some(now)
}

impl Desired {
    /// Nothing is desired yet.
    pub fn new(settings: Settings) -> Self {
        let facts = Facts::build(&settings, None, &[]);
        Self {
            settings,
            settings_changed: false,
            facts,
            families: PerFamily::default(),
        }
    }

    /// Takes new settings; the next [`Desired::update`] redraws what they concern.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings_changed |= self.settings != settings;
        self.settings = settings;
    }

    /// Brings the picture up to date and says what became different.
    pub fn update(&mut self, tracker: &Tracker, changes: Changes) -> Delta {
        let mut delta = Delta {
            triggers: changes.triggers,
            ..Delta::default()
        };
        let redraw_all = std::mem::take(&mut self.settings_changed);
        let facts = if changes.surroundings || redraw_all {
            Facts::build(&self.settings, tracker.node(), &tracker.service_cidrs())
        } else {
            self.facts.clone()
        };
        for family in Family::ALL {
            let (facts, former) = (&facts[family], &self.facts[family]);
            let book = &mut self.families[family];
            let mut concerned = book.concerned_by(former, facts, redraw_all);
            concerned.retain(|key| !changes.services.contains(key));
            let mut round = Round::default();
            for key in changes.services.iter().chain(&concerned) {
                let plan = book.draw(&self.settings, facts, family, key, tracker.entry(key));
                book.install(key, plan, &mut round);
            }
            delta.families[family] = FamilyDelta {
                facts: facts != former,
                ..book.conclude(round, family)
            };
        }
        self.facts = facts;
        delta
    }

    /// What holds on this node for one family.
    pub fn facts(&self, family: Family) -> &Facts {
        &self.facts[family]
    }

    /// Sums for one family.
    pub fn totals(&self, family: Family) -> Totals {
        self.families[family].totals
    }

    /// One exposure.
    pub fn exposure(&self, family: Family, key: &PortKey) -> Option<&Arc<Exposure>> {
        self.families[family].plans.get(&key.service)?.find(key)
    }

    /// All exposures of one family, sorted by key. Costs all of them: for first programming,
    /// printing and audits.
    pub fn exposures(&self, family: Family) -> Vec<&Arc<Exposure>> {
        let plans = self.families[family].plans.values();
        let mut all: Vec<_> = plans.flat_map(|plan| &plan.exposures).collect();
        all.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        all
    }

    /// The health check of one Service.
    pub fn health_check(&self, family: Family, key: &ServiceKey) -> Option<HealthCheck> {
        self.families[family].plans.get(key)?.health
    }

    /// Another number whenever [`Desired::issues`] may be different.
    pub fn issues_version(&self) -> u64 {
        self.families.v4.issues_version + self.families.v6.issues_version
    }

    /// What is wrong in ways that only show when objects meet: sorted.
    pub fn issues(&self) -> Vec<&Issue> {
        let mut all: Vec<_> = Family::ALL
            .into_iter()
            .map(|family| &self.families[family])
            .flat_map(|book| book.issues.values().chain(book.lost.values()))
            .flatten()
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl Plan {
    /// Claims the same addresses with the same rank as `former`, which lost none of them.
    fn claims_like(&self, former: &Self) -> bool {
        let claims = |frontend: &Frontend| (frontend.kind, frontend.ip, frontend.port);
        self.created == former.created
            && self.exposures.len() == former.exposures.len()
            && self
                .exposures
                .iter()
                .zip(&former.exposures)
                .all(|(new, old)| {
                    new.key == old.key
                        && old.frontends.iter().all(|frontend| !frontend.shadowed)
                        && new
                            .frontends
                            .iter()
                            .map(claims)
                            .eq(old.frontends.iter().map(claims))
                })
    }

    fn find(&self, key: &PortKey) -> Option<&Arc<Exposure>> {
        let at = self
            .exposures
            .binary_search_by(|exposure| exposure.key.cmp(key))
            .ok()?;
        Some(&self.exposures[at])
    }
}

/// What one update has touched so far in one family.
#[derive(Default)]
struct Round {
    /// Exposures as they were.
    before: BTreeMap<PortKey, Option<Arc<Exposure>>>,
    /// Health checks that differ, as they are.
    health: BTreeMap<ServiceKey, Option<HealthCheck>>,
    /// What is to be settled between Services.
    contest: Contest,
}

impl Round {
    fn remember(&mut self, plan: &Plan) {
        for exposure in &plan.exposures {
            self.before
                .entry(exposure.key.clone())
                .or_insert_with(|| Some(exposure.clone()));
        }
    }
}

impl Book {
    /// Services that a change of facts concerns, beyond those that changed themselves.
    fn concerned_by(&self, former: &Facts, facts: &Facts, all: bool) -> BTreeSet<ServiceKey> {
        let all = all || former.detector.is_some() != facts.detector.is_some();
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
    fn draw(
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
        self.issues_version += u64::from(tell(&mut self.issues, key, issues));
        plan
    }

    /// Puts a plan in the place of the former one and moves its claims.
    fn install(&mut self, key: &ServiceKey, plan: Option<Plan>, round: &mut Round) {
        let (keys, former) = match plan {
            Some(plan) => {
                let keys: Vec<PortKey> = plan.exposures.iter().map(|e| e.key.clone()).collect();
                (keys, self.plans.insert(key.clone(), plan))
            }
            None => (Vec::new(), self.plans.remove(key)),
        };
        let plan = self.plans.get(key);
        if former.is_none() && plan.is_none() {
            return; // Not of this family, before and after.
        }
        if let Some(former) = &former {
            round.remember(former);
            self.totals.listed -= former.listed;
        }
        self.totals.listed += plan.map_or(0, |plan| plan.listed);
        for key in keys {
            round.before.entry(key).or_insert(None);
        }
        let health = |plan: Option<&Plan>| plan.and_then(|plan| plan.health);
        if health(former.as_ref()) != health(plan) {
            round.health.insert(key.clone(), health(plan));
        }
        if let (Some(former), Some(plan)) = (&former, plan)
            && plan.claims_like(former)
        {
            return; // Its standing is as it was, and so is that of its rivals.
        }
        // Should it still lose an address, settling the contest says so again.
        self.issues_version += u64::from(tell(&mut self.lost, key, Vec::new()));
        let addresses = |plan: Option<&Plan>| -> Vec<Address> {
            let exposures = plan.into_iter().flat_map(|plan| &plan.exposures);
            exposures
                .flat_map(|exposure| exposure.addresses())
                .collect()
        };
        let released = addresses(former.as_ref());
        let claimed = addresses(plan);
        self.claims
            .replace(key, released, claimed, &mut round.contest);
    }

    /// Settles contested addresses, then compares with what was before.
    fn conclude(&mut self, mut round: Round, family: Family) -> FamilyDelta {
        let contest = std::mem::take(&mut round.contest);
        let mut concerned = contest.services;
        for address in contest.addresses {
            let strongest = self.strongest(&address);
            if self.claims.settle(&address, strongest) {
                // Even those who lose as before must name another holder now.
                concerned.extend(self.claims.claimants(&address).iter().cloned());
            }
        }
        for key in concerned {
            self.settle(&key, family, &mut round);
        }
        let mut delta = FamilyDelta {
            health: round.health,
            ..FamilyDelta::default()
        };
        for (key, before) in round.before {
            let after = self
                .plans
                .get(&key.service)
                .and_then(|plan| plan.find(&key))
                .cloned();
            if before != after {
                self.totals.exchange(before.as_deref(), after.as_deref());
                delta.changes.insert(key, Change { before, after });
            }
        }
        delta
    }

    /// Marks the frontends of one Service that lose their address to a stronger claim.
    fn settle(&mut self, key: &ServiceKey, family: Family, round: &mut Round) {
        let mut lost = Vec::new();
        let Some(plan) = self.plans.get(key) else {
            self.issues_version += u64::from(tell(&mut self.lost, key, Vec::new()));
            return;
        };
        round.remember(plan);
        let mut settled = Vec::with_capacity(plan.exposures.len());
        for exposure in &plan.exposures {
            let mut exposure = Exposure::clone(exposure);
            let holders: Vec<_> = exposure
                .addresses()
                .map(|address| self.holder(&address))
                .collect();
            for (frontend, holder) in exposure.frontends.iter_mut().zip(holders) {
                let Some((kind, _, holder)) = holder else {
                    continue;
                };
                frontend.shadowed = (kind, &holder) != (frontend.kind, &exposure.key);
                if frontend.shadowed && holder != exposure.key {
                    lost.push(claims::lost(&exposure.key, frontend, &holder, family));
                }
            }
            settled.push(Arc::new(exposure));
        }
        let plan = self
            .plans
            .get_mut(key)
            .expect("the plan was there a moment ago");
        plan.exposures = settled.into();
        self.issues_version += u64::from(tell(&mut self.lost, key, lost));
    }

    /// Who holds an address: as settled between several Services, or within the only one.
    fn holder(&self, address: &Address) -> Option<Rank> {
        let settled = self.claims.holder(address).cloned();
        settled.or_else(|| self.strongest(address))
    }

    /// The strongest claim to an address. A total order, so the order in which Services arrive
    /// does not matter.
    fn strongest(&self, address: &Address) -> Option<Rank> {
        let plans = self
            .claims
            .claimants(address)
            .iter()
            .filter_map(|key| self.plans.get(key));
        plans
            .flat_map(|plan| {
                plan.exposures
                    .iter()
                    .map(|exposure| (plan.created, exposure))
            })
            .flat_map(|(created, exposure)| {
                exposure
                    .frontends
                    .iter()
                    .filter(|frontend| exposure.address(frontend) == *address)
                    .map(move |frontend| (frontend.kind, created, &exposure.key))
            })
            .min()
            .map(|(kind, created, key)| (kind, created, key.clone()))
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
