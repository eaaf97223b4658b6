//! Why a Service port does what it does: drawn again for one Service, with the reasons kept.
//!
//! In: [`Known`], a copy of what [`super::Desired`] is made from. Out: [`Explained`], the exposure
//! exactly as `Desired` has it, and why: what became of each endpoint, what is missing when nothing
//! can serve, who else claims the addresses. A law in the tests compares the two.
//!
//! An answer costs one look at every Service, for the claims, and the drawing of one.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::claims::{Address, Claim, Place};
use super::gather::{Gathered, gather};
use super::{Action, Exposure, Frontend, FrontendKind, HealthCheck, Pool, expose};
use crate::facts::{Detector, NodePorts};
use crate::model::{
    Family, Port, PortKey, Protocol, Service, ServiceKey, SliceKey, SlicePort, Zones,
};
use crate::track::Entry;

mod known;

pub use super::judge::{HintUse, Verdict};
pub use known::{Known, News};

use super::judge::judge;

/// One Service port of one family, decided, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// Which family.
    pub family: Family,
    /// The Service.
    pub service: Arc<Service>,
    /// The decision.
    pub exposure: Exposure,
    /// Every endpoint listed for the port, in the order of the exposure.
    pub endpoints: Vec<Judged>,
    /// Entries for an `ip:port` that another entry stands for.
    pub duplicates: Vec<(IpAddr, Port, SliceKey)>,
    /// What topology hints do.
    pub hints: HintUse,
    /// What is missing, where no endpoint can serve.
    pub lack: Option<Lack>,
    /// Who claims each address: per frontend, strongest first, this Service port among them.
    pub claimants: Vec<Vec<Claimant>>,
    /// What load balancers are answered that ask for local endpoints.
    pub health: Option<HealthCheck>,
}

/// One endpoint and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Its address.
    pub ip: IpAddr,
    /// Its port.
    pub port: Port,
    /// The slice that lists it.
    pub slice: SliceKey,
    /// It runs on this node.
    pub local: bool,
    /// The zones that it is hinted for, if it has such hints.
    pub zones: Option<Zones>,
    /// In the choice from the whole cluster.
    pub cluster: Verdict,
    /// In the choice from this node.
    pub in_local: Verdict,
}

impl Judged {
    /// What became of it in one pool.
    pub const fn verdict(&self, pool: Pool) -> Verdict {
        match pool {
            Pool::Cluster => self.cluster,
            Pool::Local => self.in_local,
        }
    }
}

/// Why no endpoint anywhere can serve a Service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// There is no slice of this family.
    NoSlices {
        /// There is one of the other family.
        other_family: bool,
    },
    /// There are slices, and they list nothing.
    NoEndpoints,
    /// There are endpoints, and none has a port of this name and protocol.
    NoPort {
        /// The ports they have, each once.
        has: Vec<SlicePort>,
    },
    /// There are endpoints on this port, and none is ready or still answers.
    NoneReady {
        /// So many are not ready.
        not_ready: usize,
        /// So many are shutting down and do not answer any more.
        finished: usize,
    },
}

/// A Service port that claims an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// Which one.
    pub key: PortKey,
    /// As what.
    pub kind: FrontendKind,
    /// When its Service was created, in seconds since 1970.
    pub created: i64,
}

impl Claimant {
    fn of((address, claim): &Place) -> Self {
        Self {
            key: claim.port_key(address),
            kind: claim.kind,
            created: claim.created,
        }
    }
}

/// What happens to a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes to an endpoint of this pool.
    Balanced(Pool),
    /// It is refused: no endpoint anywhere can serve.
    Refused,
    /// It is dropped: the policy admits endpoints of this node only, and there are none.
    NoneLocal,
    /// It is dropped: the client is in none of the source ranges.
    SourceRange,
    /// It is not ours: NodePorts answer nowhere on this node.
    NoNodePorts,
    /// It goes to the Service port that holds the address.
    Shadowed,
}

impl Explained {
    /// What happens to a new connection to this frontend. Without a client, to one from outside
    /// whom no source range excludes.
    pub fn fate(
        &self,
        known: &Known,
        frontend: &Frontend,
        client: Option<(IpAddr, Whence)>,
    ) -> Fate {
        let is_inside = matches!(client, Some((_, Whence::Node | Whence::Pod)));
        let action = frontend.inside.filter(|_| is_inside);
        if frontend.shadowed {
            return Fate::Shadowed;
        }
        if frontend.ip.is_none() && known.facts(self.family).node_ports == NodePorts::Nowhere {
            return Fate::NoNodePorts;
        }
        match action.unwrap_or(frontend.action) {
            Action::Reject => Fate::Refused,
            _ if client.is_some_and(|(ip, _)| self.excludes(frontend, ip)) => Fate::SourceRange,
            Action::Drop => Fate::NoneLocal,
            Action::Balance(pool) => Fate::Balanced(pool),
        }
    }

    /// Whether source ranges keep a client from this frontend.
    fn excludes(&self, frontend: &Frontend, client: IpAddr) -> bool {
        let ranges = &self.exposure.source_ranges;
        let itself = self.exposure.source_ranges_include_node && frontend.ip == Some(client);
        frontend.kind == FrontendKind::LoadBalancerIp
            && !ranges.is_empty()
            && !itself
            && !ranges.iter().any(|net| net.contains(&client))
    }
}

impl Known {
    /// Every port of one Service in one family, in the order of their keys; none where the Service
    /// has no cluster IP of this family.
    pub fn explain(&self, key: &ServiceKey, family: Family) -> Vec<Explained> {
        let Some((entry, service)) = self
            .entry(key)
            .and_then(|entry| Some((entry, entry.service.as_ref()?)))
        else {
            return Vec::new();
        };
        let facts = self.facts(family);
        let settings = self.settings();
        let Some(plan) = expose::draw(settings, facts, family, entry, &mut Vec::new()) else {
            return Vec::new();
        };
        let frontends = || plan.exposures.iter().flat_map(|e| &e.frontends);
        let ips: HashSet<IpAddr> = frontends().filter_map(|frontend| frontend.ip).collect();
        let node_ports: HashSet<Port> = frontends()
            .filter(|frontend| frontend.ip.is_none())
            .map(|frontend| frontend.port)
            .collect();
        let places = self.places(family, |service| {
            let of_node = |port: Port| node_ports.contains(&port);
            addresses(service).any(|(_, ip)| ips.contains(&ip))
                || service
                    .ports
                    .iter()
                    .filter_map(|p| p.node_port)
                    .any(of_node)
        });
        let explain = |exposure: &Arc<Exposure>| {
            let mut exposure = Exposure::clone(exposure);
            let key = exposure.key.clone();
            let claims = exposure.frontends.iter().map(|frontend| {
                let address = exposure.address(frontend);
                claims_to(&places, address).collect::<Vec<_>>()
            });
            let claims: Vec<Vec<&Place>> = claims.collect();
            for (frontend, claims) in exposure.frontends.iter_mut().zip(&claims) {
                let holds = |(_, claim): &&Place| claim.is_of(&key) && claim.kind == frontend.kind;
                frontend.shadowed = !claims.first().is_some_and(holds);
            }
            let gathered = gather(&entry.slices, family, &key.name, key.protocol);
            let wanted = expose::wanted(service, exposure.frontends.len() > 1);
            let judgement = judge(&gathered.candidates, wanted, facts.zone.as_deref());
            let judged = gathered.candidates.iter().zip(judgement.verdicts);
            Explained {
                family,
                service: service.clone(),
                endpoints: judged
                    .map(|(candidate, (cluster, in_local))| Judged {
                        ip: candidate.endpoint.ip,
                        port: candidate.port,
                        slice: candidate.slice.key.clone(),
                        local: candidate.endpoint.local,
                        zones: candidate.endpoint.zone_hints.clone(),
                        cluster,
                        in_local,
                    })
                    .collect(),
                duplicates: gathered
                    .duplicates
                    .iter()
                    .map(|c| (c.endpoint.ip, c.port, c.slice.key.clone()))
                    .collect(),
                hints: judgement.hints,
                lack: lack(entry, family, &gathered),
                claimants: claims
                    .into_iter()
                    .map(|claims| claims.into_iter().map(Claimant::of).collect())
                    .collect(),
                health: plan.health,
                exposure,
            }
        };
        plan.exposures.iter().map(explain).collect()
    }

    /// Who claims this address, per protocol the strongest first. `ip: None` is the NodePort
    /// addresses of this node.
    pub fn claimants(&self, family: Family, ip: Option<IpAddr>, port: Port) -> Vec<Vec<Claimant>> {
        let places = self.places(family, |service| match ip {
            Some(ip) => addresses(service).any(|(_, other)| other == ip),
            None => service
                .ports
                .iter()
                .any(|other| other.node_port == Some(port)),
        });
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .into_iter()
            .map(|protocol| Address::new(ip, protocol, port))
            .map(|address| claims_to(&places, address).map(Claimant::of).collect())
            .filter(|claimants: &Vec<_>| !claimants.is_empty())
            .collect()
    }

    /// The Services that name an IP, whatever the port, and as what; sorted.
    pub fn naming(&self, ip: IpAddr) -> Vec<(ServiceKey, Named)> {
        let found = self.services().flat_map(|service| {
            let own = addresses(service)
                .filter(move |(_, other)| *other == ip)
                .map(|(kind, _)| Named::As(kind));
            let proxied = service
                .proxied_ips
                .iter()
                .filter(move |other| **other == ip);
            own.chain(proxied.map(|_| Named::Proxied))
                .map(|named| (service.key.clone(), named))
        });
        found.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Where a client with this address is; `local` are the addresses of this machine.
    pub fn whence(&self, client: IpAddr, local: &[IpAddr]) -> Whence {
        let of_node = |ip: &IpAddr| *ip == client;
        let node = self.node().map_or(&[][..], |node| &node.addresses);
        if client.is_loopback() || local.iter().chain(node).any(of_node) {
            return Whence::Node;
        }
        let in_pod = match &self.facts(Family::of(client)).detector {
            Some(Detector::Source(net)) => net.contains(&client),
            // An interface does not show in an address, but pods of this node are known by theirs.
            Some(Detector::Interface(_) | Detector::InterfacePrefix(_)) => self.has_pod(client),
            None => false,
        };
        if in_pod { Whence::Pod } else { Whence::Outside }
    }

    /// Every claim of the Services that `concerns`, by address and then rank.
    fn places(&self, family: Family, concerns: impl Fn(&Service) -> bool) -> Vec<Place> {
        let of_service = |service: &Arc<Service>| {
            // Claims do not depend on endpoints.
            let entry = Entry {
                service: Some(service.clone()),
                slices: Vec::new(),
            };
            let facts = self.facts(family);
            expose::draw(self.settings(), facts, family, &entry, &mut Vec::new())
        };
        let mut places: Vec<Place> = self
            .services()
            .filter(|service| concerns(service))
            .filter_map(of_service)
            .flat_map(|plan| {
                let created = plan.created;
                let claims = plan.exposures.iter().flat_map(move |exposure| {
                    let claim = |(address, kind)| {
                        let claim = Claim::new(kind, created, &exposure.key);
                        (address, claim)
                    };
                    exposure.claims().into_iter().map(claim).collect::<Vec<_>>()
                });
                claims.collect::<Vec<_>>()
            })
            .collect();
        places.sort_unstable();
        places
    }
}

/// What a Service names an IP as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    /// An address of this kind.
    As(FrontendKind),
    /// The address of a load balancer that receives the traffic itself.
    Proxied,
}

/// Where a client is, as far as its address shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// On this node.
    Node,
    /// In a pod whose traffic counts as local.
    Pod,
    /// Anywhere else.
    Outside,
}

/// The IPs that a Service names, also where settings or its families leave them out.
fn addresses(service: &Service) -> impl Iterator<Item = (FrontendKind, IpAddr)> {
    let of = |kind| move |ip: &IpAddr| (kind, *ip);
    let cluster_ips = &service.cluster_ips;
    let cluster = cluster_ips.v4.iter().chain(&cluster_ips.v6);
    cluster
        .map(of(FrontendKind::ClusterIp))
        .chain(
            service
                .load_balancer_ips
                .iter()
                .map(of(FrontendKind::LoadBalancerIp)),
        )
        .chain(
            service
                .external_ips
                .iter()
                .map(of(FrontendKind::ExternalIp)),
        )
}

/// The claims to one address, strongest first.
fn claims_to(places: &[Place], address: Address) -> impl Iterator<Item = &Place> {
    let first = places.partition_point(|place| place.0 < address);
    let is_same = move |place: &&Place| place.0 == address;
    places[first..].iter().take_while(is_same)
}

fn lack(entry: &Entry, family: Family, gathered: &Gathered<'_>) -> Option<Lack> {
    let endpoints = || gathered.candidates.iter().map(|c| c.endpoint);
    if endpoints().any(|endpoint| endpoint.ready || endpoint.draining()) {
        return None;
    }
    let of_family = || entry.slices.iter().filter(|slice| slice.family == family);
    Some(if of_family().next().is_none() {
        Lack::NoSlices {
            other_family: !entry.slices.is_empty(),
        }
    } else if of_family().all(|slice| slice.endpoints.is_empty()) {
        Lack::NoEndpoints
    } else if gathered.candidates.is_empty() {
        let mut has: Vec<SlicePort> = of_family()
            .filter(|slice| !slice.endpoints.is_empty())
            .flat_map(|slice| slice.ports.iter().cloned())
            .collect();
        has.sort_by(|a, b| (&a.name, a.protocol, a.port).cmp(&(&b.name, b.protocol, b.port)));
        has.dedup();
        Lack::NoPort { has }
    } else {
        let finished = endpoints().filter(|endpoint| endpoint.terminating).count();
        Lack::NoneReady {
            not_ready: gathered.candidates.len() - finished,
            finished,
        }
    })
}
