//! Every Service address and what happens to traffic that arrives there.
//!
//! In: what the [`Tracker`] knows, and the [`Settings`] of this node. Out: [`Desired`], the whole
//! state, and a [`Delta`], what became different since the last update. Both are decided here
//! completely: a dataplane translates, it does not choose.
//!
//! An update redraws only the Services named in [`Changes`], marks the ports that win or lose an
//! address by that, and on a change of the node redraws the Services it concerns.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use ipnet::IpNet;

use crate::facts::{Facts, Settings};
use crate::issue::Issue;
use crate::model::{Family, PerFamily, Port, PortKey, ServiceKey, TrafficPolicy, format_socket};
use crate::track::{Changes, Tracker};

mod claims;
mod contested;
mod delta;
pub mod explain;
mod expose;
mod family;
mod gather;
mod judge;
mod select;
#[cfg(test)]
mod tests;

pub use crate::facts::Masquerade;
use claims::Address;
pub use delta::{Change, Delta, FamilyDelta};
use family::{FamilyState, Round};

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
    /// For UDP, and for TCP if it is relayed: every endpoint that answers, used or not, in the same
    /// order. A tracked flow to anything else is stale.
    pub answering: Box<[(IpAddr, Port)]>,
    /// Endpoints that are listed and in no pool: nothing new goes to them, what is open may go on.
    /// Only where connections are [drained](crate::facts::Connections::Drained); in the same order.
    pub idle: Box<[Idle]>,
    /// How an endpoint is chosen.
    pub algorithm: Algorithm,
    /// The scheduler that the Service asks for, in modes that have several.
    pub scheduler: Option<Arc<str>>,
    /// Endpoints are told the client's address by a header of the PROXY protocol, in modes that
    /// stand between the two.
    pub proxy_header: bool,
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

    /// The field of a Service that names such addresses.
    pub const fn field(self) -> &'static str {
        match self {
            Self::ClusterIp => "spec.clusterIPs",
            Self::LoadBalancerIp => "status.loadBalancer.ingress",
            Self::ExternalIp => "spec.externalIPs",
            Self::NodePort => "spec.ports[].nodePort",
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

/// An endpoint that is listed and in no pool: shutting down, not ready, or meant for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Idle {
    /// Its address.
    pub ip: IpAddr,
    /// Its port.
    pub port: Port,
    /// It runs on this node.
    pub local: bool,
}

/// How an endpoint is chosen for a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Each with equal probability, by weight.
    #[default]
    Random,
}

/// What the health check of a Service reports to load balancers.
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
        Address::new(frontend.ip, self.key.protocol, frontend.port)
    }
}

/// The desired state: every exposure of both families.
#[derive(Debug)]
pub struct Desired {
    settings: Settings,
    facts: PerFamily<Facts>,
    families: PerFamily<FamilyState>,
}

/// What to draw again beyond the Services that changed themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Redraw {
    /// Nothing.
    Named,
    /// Those that a change of the Node or a ServiceCIDR concerns.
    Concerned,
    /// All.
    All,
}

impl Desired {
    /// Nothing is desired yet.
    pub fn new(settings: Settings) -> Self {
        let facts = Facts::build(&settings, None, &[]);
        Self {
            settings,
            facts,
            families: PerFamily::default(),
        }
    }

    /// Everything, drawn from a copy of what a tracker knows. Costs all of it.
    fn drawn(known: &explain::Known) -> Self {
        let mut families: PerFamily<FamilyState> = PerFamily::default();
        for family in Family::ALL {
            let state = &mut families[family];
            let mut round = Round::default();
            for (key, entry) in known.entries() {
                let facts = known.facts(family);
                let plan = state.draw(known.settings(), facts, family, key, Some(entry));
                state.install(key, plan, &mut round);
            }
            state.conclude(round);
        }
        Self {
            settings: known.settings().clone(),
            facts: PerFamily::from_fn(|family| known.facts(family).clone()),
            families,
        }
    }

    /// Adopts new settings and says what became different. Before the first lists are complete
    /// nothing does: the first update then follows the new settings.
    pub fn reconfigure(&mut self, tracker: &Tracker, settings: Settings) -> Delta {
        if self.settings == settings {
            return Delta::default();
        }
        self.settings = settings;
        if !tracker.is_ready() {
            return Delta::default();
        }
        self.redraw(tracker, &BTreeSet::new(), Redraw::All)
    }

    /// Brings everything up to date and says what became different.
    pub fn update(&mut self, tracker: &Tracker, changes: Changes) -> Delta {
        let redraw = if changes.surroundings {
            Redraw::Concerned
        } else {
            Redraw::Named
        };
        Delta {
            triggers: changes.triggers,
            ..self.redraw(tracker, &changes.services, redraw)
        }
    }

    /// Draws these Services again, and what else `redraw` says.
    fn redraw(
        &mut self,
        tracker: &Tracker,
        services: &BTreeSet<ServiceKey>,
        redraw: Redraw,
    ) -> Delta {
        let mut delta = Delta::default();
        let facts = match redraw {
            Redraw::Named => self.facts.clone(),
            Redraw::Concerned | Redraw::All => {
                Facts::build(&self.settings, tracker.node(), &tracker.service_cidrs())
            }
        };
        for family in Family::ALL {
            let (facts, former) = (&facts[family], &self.facts[family]);
            let state = &mut self.families[family];
            let mut concerned = state.concerned_by(former, facts, redraw == Redraw::All);
            concerned.retain(|key| !services.contains(key));
            let mut round = Round::default();
            for key in services.iter().chain(&concerned) {
                let plan = state.draw(&self.settings, facts, family, key, tracker.entry(key));
                state.install(key, plan, &mut round);
            }
            delta.families[family] = FamilyDelta {
                facts: facts != former,
                ..state.conclude(round)
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
        self.families[family].totals()
    }

    /// One exposure.
    pub fn exposure(&self, family: Family, key: &PortKey) -> Option<&Arc<Exposure>> {
        self.families[family].plan(&key.service)?.find(key)
    }

    /// All exposures of one family, sorted by key. Costs all of them: for first programming,
    /// printing and audits.
    pub fn exposures(&self, family: Family) -> Vec<&Arc<Exposure>> {
        let mut all: Vec<_> = self.families[family].exposures().collect();
        all.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        all
    }

    /// The health check of one Service.
    pub fn health_check(&self, family: Family, key: &ServiceKey) -> Option<HealthCheck> {
        self.families[family].plan(key)?.health
    }

    /// Another number whenever [`Desired::issues`] may be different.
    pub fn issues_version(&self) -> u64 {
        self.families.v4.issues_version() + self.families.v6.issues_version()
    }

    /// What is wrong in ways that only show when objects meet: sorted, each once. Costs all of
    /// them, but of each Service no more than a few about contested addresses.
    pub fn issues(&self) -> Vec<Issue> {
        let mut all: Vec<Issue> = Family::ALL
            .into_iter()
            .flat_map(|family| self.families[family].issues(family))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}
