//! What the mode needs for one Service port: lanes to its endpoints, and portals that lead there.
//!
//! In: an [`Exposure`]. Out: a [`Plan`]. A lane is a proxy port for one class of addresses, with the
//! endpoints behind it. A portal is one address of the Service, and whether its clients get the lane
//! of its class or a refusal. Nothing is decided here that the desired state has not decided.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ferrule_core::desired::{Action, Exposure, Frontend, FrontendKind, Pool};
use ferrule_core::model::{Port, PortKey, Protocol};

use super::claims::Claim;
use super::relay::{Backends, Class, Route, Sources};

/// What one Service port needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What is behind its lanes.
    pub backends: Backends,
    /// The addresses that it holds.
    pub portals: Vec<Portal>,
}

/// What one Service port has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// What it needs. Nothing if it is gone.
    pub plan: Plan,
    /// Proxy ports of lanes that are open.
    pub ports: BTreeMap<Class, u16>,
    /// Ports of the node that are held for it.
    pub claims: BTreeSet<Claim>,
}

/// One Service port before and after.
#[derive(Clone, Debug)]
pub struct Change {
    /// Which one.
    pub key: PortKey,
    /// As it was.
    pub before: Served,
    /// As it is to be.
    pub after: Served,
}

/// One address of a Service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portal {
    /// What kind of address.
    pub kind: FrontendKind,
    /// The address; `None` is every address on which this node serves NodePorts.
    pub ip: Option<IpAddr>,
    /// The port.
    pub port: Port,
    /// What clients get.
    pub target: Target,
    /// What clients in pods of this node and on the node itself get, if that differs. Which
    /// endpoints serve them is the lane's business.
    pub inside: Option<Target>,
}

/// What a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The proxy port of the portal's class.
    Lane,
    /// A refusal.
    Reject,
    /// Nothing.
    Drop,
}

impl Portal {
    /// The lane it would lead to.
    pub const fn class(&self) -> Class {
        class(self.kind)
    }

    fn leads(&self) -> bool {
        self.target == Target::Lane || self.inside == Some(Target::Lane)
    }
}

impl Served {
    /// Its addresses, and the proxy ports to which they lead.
    pub fn leads(&self) -> impl Iterator<Item = ((Option<IpAddr>, Port), Option<u16>)> {
        self.plan.portals.iter().map(|portal| {
            let port = self.ports.get(&portal.class()).copied();
            ((portal.ip, portal.port), port.filter(|_| portal.leads()))
        })
    }
}

impl Plan {
    /// Lanes that it needs now.
    pub fn lanes(&self) -> BTreeSet<Class> {
        let leading = self.portals.iter().filter(|portal| portal.leads());
        leading.map(Portal::class).collect()
    }

    /// Who may use a portal, if not everybody.
    pub fn sources(&self, portal: &Portal) -> Option<&Sources> {
        let guarded = portal.kind == FrontendKind::LoadBalancerIp;
        self.backends.sources.first().filter(|_| guarded)
    }

    /// Lanes that it may need again: a Service that is scaled to nothing and back keeps its port.
    pub fn keeps(&self, lane: Class) -> bool {
        self.portals.iter().any(|portal| portal.class() == lane)
    }
}

const fn class(kind: FrontendKind) -> Class {
    match kind {
        FrontendKind::ClusterIp => Class::Internal,
        FrontendKind::LoadBalancerIp | FrontendKind::ExternalIp | FrontendKind::NodePort => {
            Class::External
        }
    }
}

/// Whether connections of this protocol can be relayed.
pub const fn is_relayed(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::Tcp | Protocol::Udp)
}

/// What a Service port needs. Of a protocol that cannot be relayed every address refuses.
pub fn plan(exposure: &Exposure) -> Plan {
    Plan {
        backends: backends(exposure),
        portals: exposure
            .holding()
            .map(|frontend| portal(exposure, frontend))
            .collect(),
    }
}

fn portal(exposure: &Exposure, frontend: &Frontend) -> Portal {
    let target = |action| match action {
        _ if !is_relayed(exposure.key.protocol) => Target::Reject,
        Action::Balance(pool) if exposure.pool(pool).next().is_some() => Target::Lane,
        Action::Reject => Target::Reject,
        Action::Drop | Action::Balance(_) => Target::Drop,
    };
    let outside = target(frontend.action);
    let inside = frontend.inside.map(target);
    Portal {
        kind: frontend.kind,
        ip: frontend.ip,
        port: frontend.port,
        target: outside,
        inside: inside.filter(|inside| *inside != outside),
    }
}

fn backends(exposure: &Exposure) -> Backends {
    let pool = |pool| -> Vec<SocketAddr> {
        let endpoints = exposure.pool(pool);
        endpoints
            .map(|endpoint| SocketAddr::new(endpoint.ip, endpoint.port.get()))
            .collect()
    };
    let (cluster, local) = (pool(Pool::Cluster), pool(Pool::Local));
    let pools: BTreeSet<_> = cluster.iter().chain(&local).copied().collect();
    let draining = exposure.answering.iter();
    let draining = draining
        .map(|(ip, port)| SocketAddr::new(*ip, port.get()))
        .filter(|backend| !pools.contains(backend))
        .collect();
    let here = exposure.endpoints.iter().filter(|endpoint| endpoint.local);
    let here = here.map(|endpoint| SocketAddr::new(endpoint.ip, endpoint.port.get()));
    let affinity = exposure.affinity_seconds;
    Backends {
        cluster,
        local,
        here: here.collect(),
        draining,
        affinity: affinity.map(|seconds| Duration::from_secs(seconds.get().into())),
        internal: route(exposure, Class::Internal),
        external: route(exposure, Class::External),
        sources: sources(exposure).into_iter().collect(),
        proxy_header: exposure.proxy_header && exposure.key.protocol == Protocol::Tcp,
    }
}

/// All addresses of a class have the same policy, so any of them says what holds for all.
fn route(exposure: &Exposure, of: Class) -> Route {
    let pool = |action| match action {
        Action::Balance(pool) => Some(pool),
        Action::Reject | Action::Drop => None,
    };
    let mut frontends = exposure.frontends.iter();
    frontends
        .find(|frontend| class(frontend.kind) == of)
        .map_or_else(Route::default, |frontend| Route {
            pool: pool(frontend.action),
            inside: pool(frontend.inside.unwrap_or(frontend.action)),
        })
}

/// Who may use the load balancer's addresses, if not everybody.
fn sources(exposure: &Exposure) -> Option<Sources> {
    let frontends = exposure.frontends.iter();
    let to: Vec<IpAddr> = frontends
        .filter(|frontend| frontend.kind == FrontendKind::LoadBalancerIp)
        .filter_map(|frontend| frontend.ip)
        .collect();
    let mut from = exposure.source_ranges.to_vec();
    if from.is_empty() {
        return None;
    }
    // The node may use these addresses as source when it talks to itself.
    if exposure.source_ranges_include_node {
        from.extend(to.iter().copied().map(ipnet::IpNet::from));
    }
    Some(Sources { to, from })
}
