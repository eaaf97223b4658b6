//! Renders Service ports as virtual servers, entries of sets and addresses.
//!
//! In: one exposure at a time, and what all depend on. Out: [`Rendered`]. Each exposure is rendered
//! by itself, so that a change renders only what changed.
//!
//! An address has one virtual server with one list of destinations for all clients. Where core
//! decides differently for clients inside and outside, the destinations are those of whoever has
//! any, and a set keeps the others out.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ferrule_core::desired::{Action, Exposure, Frontend, FrontendKind, Pool};
use ferrule_core::facts::{Facts, NodePorts};
use ferrule_core::model::{Family, Port, Protocol, TrafficPolicy};
use ferrule_kernel::ipset::{Entry, IpPort, Network};
use ferrule_kernel::ipvs::{Server, ServerKey};

use super::names::Set;
use super::statics::Barred;
use crate::protocol_number;

/// What all exposures depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The scheduler of Services that ask for none.
    pub scheduler: Arc<str>,
    /// Schedulers that this kernel lacks.
    pub missing: BTreeSet<Arc<str>>,
    /// Addresses of this machine's own interfaces, in one family: not those of the interface that
    /// holds Service addresses.
    pub own: BTreeSet<IpAddr>,
    /// Those on which NodePorts answer.
    pub node_ports: Vec<IpAddr>,
}

impl Context {
    /// What holds for one family now.
    pub fn new(
        family: Family,
        scheduler: Arc<str>,
        missing: BTreeSet<Arc<str>>,
        facts: &Facts,
        local: &[IpAddr],
    ) -> Self {
        // IPVS does not take packets to localhost.
        let usable = |ip: &IpAddr| Family::of(*ip) == family && !ip.is_loopback();
        // Every interface has one of these, and those of pods come and go.
        let own = local.iter().copied();
        let own = own.filter(|ip| usable(ip) && !is_link_local(*ip)).collect();
        let mut node_ports = facts.node_ports.among(local, family);
        let all = facts.node_ports == NodePorts::All;
        node_ports.retain(|ip| usable(ip) && !(all && is_link_local(*ip)));
        Self {
            scheduler,
            missing,
            own,
            node_ports,
        }
    }
}

const fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// One virtual server that is wanted, but for its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// How the kernel chooses a destination.
    pub scheduler: Arc<str>,
    /// See [`Server::flags`].
    pub flags: u32,
    /// See [`Server::timeout`].
    pub timeout: u32,
    /// Where connections go.
    pub destinations: Arc<[SocketAddr]>,
    /// Where no new connections go, but open ones may go on: listed endpoints of the same Service
    /// port.
    pub leaving: Arc<[SocketAddr]>,
}

/// Something that several Service ports may want at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// An entry of a set.
    Entry(Set, Entry),
    /// An address on the interface.
    Address(IpAddr),
    /// A rule.
    Barred(Barred),
}

/// What one Service port comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// Virtual servers, and by which kind of frontend.
    pub servers: Vec<(ServerKey, FrontendKind, Service)>,
    /// Everything else, each once.
    pub items: BTreeSet<Item>,
}

/// Renders one Service port.
pub fn exposure(exposure: &Exposure, context: &Context) -> Rendered {
    let mut renderer = Renderer {
        exposure,
        context,
        lists: [const { None }; 3],
        rendered: Rendered::default(),
    };
    for frontend in exposure.holding() {
        renderer.frontend(frontend);
    }
    renderer.hairpins();
    renderer.health_check();
    renderer.rendered
}

/// Who is kept from an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeptOut {
    Nobody,
    Outside,
    Everybody,
}

/// Destinations, and endpoints that are listed otherwise.
type Lists = (Arc<[SocketAddr]>, Arc<[SocketAddr]>);

struct Renderer<'a> {
    exposure: &'a Exposure,
    context: &'a Context,
    /// Of the cluster pool, of the local pool, of none; most addresses of a Service share them.
    lists: [Option<Lists>; 3],
    rendered: Rendered,
}

/// Where clients go, and who is kept out.
fn resolve(frontend: &Frontend) -> (Option<Pool>, KeptOut) {
    match (frontend.action, frontend.inside) {
        (Action::Balance(pool), _) => (Some(pool), KeptOut::Nobody),
        // Without destinations the kernel refuses connections by itself.
        (Action::Reject, _) => (None, KeptOut::Nobody),
        (Action::Drop, Some(Action::Balance(pool))) => (Some(pool), KeptOut::Outside),
        (Action::Drop, _) => (None, KeptOut::Everybody),
    }
}

impl Renderer<'_> {
    fn frontend(&mut self, frontend: &Frontend) {
        let context = self.context;
        let ips = match &frontend.ip {
            Some(ip) => std::slice::from_ref(ip),
            None => &context.node_ports,
        };
        for ip in ips {
            self.address(frontend, *ip);
        }
    }

    fn address(&mut self, frontend: &Frontend, ip: IpAddr) {
        let (pool, kept_out) = resolve(frontend);
        let key = ServerKey {
            protocol: protocol_number(self.exposure.key.protocol),
            address: ip,
            port: frontend.port.get(),
        };
        let service = self.service(pool);
        self.rendered.servers.push((key, frontend.kind, service));
        match kept_out {
            KeptOut::Nobody => {}
            KeptOut::Outside => self.member(Set::NoLocalEndpoint, ip, frontend.port),
            KeptOut::Everybody => self.member(Set::NoEndpoint, ip, frontend.port),
        }
        let local = self.exposure.external_policy == TrafficPolicy::Local;
        match frontend.kind {
            FrontendKind::ClusterIp => {
                self.member(Set::ClusterIp, ip, frontend.port);
                self.bind(ip);
            }
            FrontendKind::ExternalIp => {
                let set = if local {
                    Set::ExternalIpLocal
                } else {
                    Set::ExternalIp
                };
                self.member(set, ip, frontend.port);
                self.bind_foreign(ip);
            }
            FrontendKind::LoadBalancerIp => {
                self.member(Set::LoadBalancer, ip, frontend.port);
                if local {
                    self.member(Set::LoadBalancerLocal, ip, frontend.port);
                }
                self.source_ranges(ip, frontend.port);
                self.bind_foreign(ip);
            }
            FrontendKind::NodePort => {
                let (all, with_local) = Set::node_ports(self.exposure.key.protocol);
                self.node_port(all, ip, frontend.port);
                if local {
                    self.node_port(with_local, ip, frontend.port);
                }
            }
        }
    }

    fn service(&mut self, pool: Option<Pool>) -> Service {
        let at = match pool {
            Some(Pool::Cluster) => 0,
            Some(Pool::Local) => 1,
            None => 2,
        };
        let exposure = self.exposure;
        let lists = self.lists[at].get_or_insert_with(|| lists(exposure, pool));
        let (destinations, leaving) = lists.clone();
        let asked = exposure.scheduler.as_ref();
        let there = asked.filter(|name| !self.context.missing.contains(*name));
        let scheduler = there.unwrap_or(&self.context.scheduler).clone();
        let mut flags = 0;
        if &*scheduler == "mh" {
            // Connections of one client are spread, too.
            flags |= Server::SCHEDULER_2;
        }
        let timeout = exposure.affinity_seconds.map_or(0, u32::from);
        if timeout > 0 {
            flags |= Server::PERSISTENT;
        }
        Service {
            scheduler,
            flags,
            timeout,
            destinations,
            leaving,
        }
    }

    fn item(&mut self, item: Item) {
        self.rendered.items.insert(item);
    }

    fn ip_port(&self, ip: IpAddr, port: Port) -> IpPort {
        IpPort {
            address: ip,
            protocol: protocol_number(self.exposure.key.protocol),
            port: port.get(),
        }
    }

    fn member(&mut self, set: Set, ip: IpAddr, port: Port) {
        let entry = Entry::IpPort(self.ip_port(ip, port));
        self.item(Item::Entry(set, entry));
    }

    fn node_port(&mut self, set: Set, ip: IpAddr, port: Port) {
        if self.exposure.key.protocol == Protocol::Sctp {
            self.member(set, ip, port);
        } else {
            self.item(Item::Entry(set, Entry::Port(port.get())));
        }
    }

    /// Makes the address one of this machine.
    fn bind(&mut self, ip: IpAddr) {
        self.item(Item::Address(ip));
        self.item(Item::Entry(Set::Addresses, Entry::Ip(ip)));
    }

    /// The same, unless it is one already.
    fn bind_foreign(&mut self, ip: IpAddr) {
        if !self.context.own.contains(&ip) {
            self.bind(ip);
        }
    }

    fn source_ranges(&mut self, ip: IpAddr, port: Port) {
        let exposure = self.exposure;
        if exposure.source_ranges.is_empty() {
            return;
        }
        self.member(Set::Firewalled, ip, port);
        let address = self.ip_port(ip, port);
        for range in &exposure.source_ranges {
            if let Some(network) = Network::new(range.network(), range.prefix_len()) {
                let entry = Entry::IpPortNet(address, network);
                self.item(Item::Entry(Set::SourceCidr, entry));
            }
        }
        if exposure.source_ranges_include_node {
            let entry = Entry::IpPortIp(address, ip);
            self.item(Item::Entry(Set::SourceIp, entry));
        } else {
            let protocol = exposure.key.protocol;
            self.item(Item::Barred(Barred { ip, protocol, port }));
        }
    }

    /// Endpoints of this node that may reach themselves through a Service.
    fn hairpins(&mut self) {
        let exposure = self.exposure;
        let used = exposure.endpoints.iter();
        let used = used.filter(|endpoint| endpoint.local);
        let idle = exposure.idle.iter().filter(|idle| idle.local);
        let all = used.map(|endpoint| (endpoint.ip, endpoint.port));
        for (ip, port) in all.chain(idle.map(|idle| (idle.ip, idle.port))) {
            let entry = Entry::IpPortIp(self.ip_port(ip, port), ip);
            self.item(Item::Entry(Set::LoopBack, entry));
        }
    }

    fn health_check(&mut self) {
        if let Some(port) = self.exposure.health_check_port {
            self.item(Item::Entry(Set::HealthCheck, Entry::Port(port.get())));
        }
    }
}

fn lists(exposure: &Exposure, pool: Option<Pool>) -> Lists {
    let socket = |ip, port: Port| SocketAddr::new(ip, port.get());
    let mut destinations: Vec<SocketAddr> = pool
        .into_iter()
        .flat_map(|pool| exposure.pool(pool))
        .map(|endpoint| socket(endpoint.ip, endpoint.port))
        .collect();
    destinations.sort_unstable();
    let used = exposure.endpoints.iter().map(|e| socket(e.ip, e.port));
    let idle = exposure.idle.iter().map(|idle| socket(idle.ip, idle.port));
    let mut leaving: Vec<SocketAddr> = used
        .chain(idle)
        .filter(|endpoint| destinations.binary_search(endpoint).is_err())
        .collect();
    leaving.sort_unstable();
    (destinations.into(), leaving.into())
}
