//! The copying engine of mode userspace.
//!
//! In: which sockets to open for which Service port, and which endpoints stand behind it. Out:
//! bytes, and [`Stats`]. Rules, API objects and the choice of endpoints are not known here.
//!
//! A [`Key`] is a Service port of one family. It has up to two lanes, one per [`Class`] of address,
//! each with a listening socket of its own; affinity, ejected endpoints and counters belong to the
//! Service port. Callers block for a few system calls at most. Everything asynchronous is inside,
//! on threads of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrule_core::desired::Pool;
use ferrule_core::model::{Family, PortKey, Protocol};
use ferrule_kernel::inet::limits;
use ipnet::IpNet;

mod accept;
mod admission;
mod balancer;
mod client_address;
mod copy;
mod group;
mod ladder;
mod pipes;
mod ports;
mod proxy_header;
mod sockets;
mod stats;
mod udp;
mod workers;

use group::{Group, Lane};
use ports::Ports;
use sockets::Bound;
pub use stats::{Descriptors, Failure, Histogram, LaneStats, Stats};
use workers::{Shared, Workers};

/// A Service port of one family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The Service port.
    pub port: PortKey,
    /// The family of its addresses and endpoints.
    pub family: Family,
}

/// For which of a Service port's addresses a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Its cluster IP.
    Internal,
    /// All others: load balancer IPs, external IPs, node ports.
    External,
}

impl Class {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Internal, Self::External];
}

/// What is fixed while the relay runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads; 0 is one per processor.
    pub workers: usize,
    /// Ports to listen on; the kernel chooses if `None`.
    pub proxy_ports: Option<RangeInclusive<u16>>,
    /// Ports that are never listened on when the kernel chooses: the node ports.
    pub avoid: Option<RangeInclusive<u16>>,
    /// How long a UDP client's association lives without datagrams.
    pub udp_idle: UdpIdle,
    /// UDP associations per Service port.
    pub udp_associations: usize,
    /// Local ports from which datagrams go to endpoints: as many clients may have the same UDP
    /// endpoint. `None` is half of those from which the kernel chooses.
    pub local_ports: Option<usize>,
    /// How long a connection to an endpoint that is gone may be silent before it is reset.
    pub grace: Duration,
    /// Descriptors to use at most; `None` raises the limit to what this process may ask for.
    pub descriptors: Option<usize>,
    /// Moves streams by `splice` instead of copying.
    pub splice: bool,
    /// The mark of sockets that connect to endpoints of this node with the client's own address;
    /// `None` if none do. See [`Relay::set_answered`].
    pub client_mark: Option<u32>,
    /// Serves connections that were made to a proxy port itself. Without rules that redirect there
    /// are no others; otherwise it would let anybody around them. Datagrams always are: whether
    /// rules redirected them is not known here.
    pub direct: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workers: 0,
            proxy_ports: None,
            avoid: None,
            udp_idle: UdpIdle::default(),
            udp_associations: 65_536,
            local_ports: None,
            grace: Duration::from_secs(30),
            descriptors: None,
            splice: true,
            client_mark: None,
            direct: false,
        }
    }
}

/// How long a UDP client's association lives without datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpIdle {
    /// Before the endpoint has replied.
    pub unreplied: Duration,
    /// After it has.
    pub replied: Duration,
}

impl UdpIdle {
    /// The same time in both cases: `--udp-timeout`.
    pub const fn always(idle: Duration) -> Self {
        Self {
            unreplied: idle,
            replied: idle,
        }
    }
}

/// As conntrack has it.
impl Default for UdpIdle {
    fn default() -> Self {
        Self {
            unreplied: Duration::from_secs(30),
            replied: Duration::from_mins(2),
        }
    }
}

/// Where to listen.
#[derive(Debug)]
pub struct Listen {
    /// The bind address; unspecified for all of its family.
    pub address: IpAddr,
    /// The port it had before a restart: taken if it is free.
    pub prefer: Option<u16>,
    /// A socket that listens already, from a predecessor; then nothing else here counts.
    pub socket: Option<OwnedFd>,
}

impl Listen {
    /// At this address, with any port.
    pub const fn at(address: IpAddr) -> Self {
        Self {
            address,
            prefer: None,
            socket: None,
        }
    }
}

/// What stands behind a Service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backends {
    /// Endpoints chosen from the whole cluster.
    pub cluster: Vec<SocketAddr>,
    /// Endpoints chosen from this node.
    pub local: Vec<SocketAddr>,
    /// Those of them that run on this node.
    pub here: BTreeSet<SocketAddr>,
    /// Endpoints that get no new clients and may finish with those they have.
    pub draining: Vec<SocketAddr>,
    /// For how long a client stays with its endpoint.
    pub affinity: Option<Duration>,
    /// Who serves the cluster IP.
    pub internal: Route,
    /// Who serves all other addresses.
    pub external: Route,
    /// Who may use some of the addresses; all others may be used by everybody. For TCP: which address
    /// a datagram was sent to before rules redirected it is not known here.
    pub sources: Vec<Sources>,
    /// Tells endpoints the client's address in a header of the PROXY protocol, version 2.
    pub proxy_header: bool,
}

/// Who serves a class of addresses. Without a pool, connections are reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Clients outside the cluster, and everybody where that makes no difference.
    pub pool: Option<Pool>,
    /// Clients inside, as [`Relay::set_inside`] defines them.
    pub inside: Option<Pool>,
}

impl Route {
    /// The same pool for everybody.
    pub const fn all(pool: Pool) -> Self {
        Self {
            pool: Some(pool),
            inside: Some(pool),
        }
    }
}

/// Addresses that only some clients may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// The addresses that clients ask for.
    pub to: Vec<IpAddr>,
    /// Where clients must be.
    pub from: Vec<IpNet>,
}

/// Why there is no socket for a Service port.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Neither TCP nor UDP.
    #[error("{0} cannot be relayed")]
    Protocol(Protocol),
    /// It has one.
    #[error("{0} is open already")]
    Open(PortKey),
    /// All ports of the range are in use.
    #[error("no proxy port of {} to {} is free", .0.start(), .0.end())]
    NoPort(RangeInclusive<u16>),
    /// The kernel refused.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The relay was stopped.
    #[error("the relay is stopped")]
    Stopped,
}

/// Something an operator should know of. The same is not reported more than once per second.
#[derive(Debug)]
pub enum Notice {
    /// New clients wait, because no descriptor or no memory is left.
    Exhausted {
        /// Whose clients.
        key: Key,
        /// What the kernel said.
        error: io::Error,
    },
    /// New clients of one Service port wait, because it has its share of all descriptors.
    Share {
        /// Whose clients.
        key: Key,
        /// How many connections and associations it has.
        open: usize,
    },
    /// A listening socket failed; it is tried again.
    Failed {
        /// Whose socket.
        key: Key,
        /// What the kernel said.
        error: io::Error,
    },
    /// Endpoints cannot be reached with the client's own address; they see the node's.
    Transparent {
        /// Of which family.
        family: Family,
        /// Why.
        error: io::Error,
    },
    /// Sockets could not be passed between this process and one before or after it.
    Handover {
        /// Why.
        error: io::Error,
    },
}

/// Receives notices, on any thread. It must not block.
pub type Report = Arc<dyn Fn(Notice) + Send + Sync>;

/// The engine. Dropping it resets all connections.
pub struct Relay {
    shared: Arc<Shared>,
    workers: Workers,
    state: Mutex<State>,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").finish_non_exhaustive()
    }
}

struct State {
    ports: Ports,
    groups: BTreeMap<Key, Entry>,
    /// Service ports opened so far.
    opened: u64,
    stopped: bool,
}

/// A Service port, and what is open for it.
struct Entry {
    group: Arc<Group>,
    lanes: BTreeMap<Class, Lane>,
}

impl Relay {
    /// Starts threads. Nothing is listened on yet.
    ///
    /// # Errors
    /// The kernel refused threads or descriptors.
    pub fn start(options: Options, report: Report) -> io::Result<Self> {
        let descriptors = match options.descriptors {
            Some(most) => most,
            None => limits::raise_descriptors()?,
        };
        let ports = Ports::new(options.proxy_ports.clone(), options.avoid.clone());
        let shared = Arc::new(Shared::new(options, descriptors, report));
        let workers = Workers::start(&shared)?;
        Ok(Self {
            shared,
            workers,
            state: Mutex::new(State {
                ports,
                groups: BTreeMap::new(),
                opened: 0,
                stopped: false,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which clients are inside the cluster: pods of this node and the node itself.
    pub fn set_inside(&self, networks: Vec<IpNet>) {
        self.shared.set_inside(networks);
    }

    /// Says whether what endpoints of a family send to connections that have a client's address is
    /// brought to this machine. Until then none have.
    pub fn set_answered(&self, family: Family, is: bool) {
        self.shared.client_address.set_answered(family, is);
    }

    /// Listens for one class of a Service port's addresses; returns the proxy port. Until
    /// [`Relay::set`] says what is behind it, clients wait.
    ///
    /// # Errors
    /// Why there is no socket. Nothing has changed.
    pub fn open(&self, key: &Key, class: Class, listen: Listen) -> Result<u16, OpenError> {
        let protocol = key.port.protocol;
        if protocol == Protocol::Sctp {
            return Err(OpenError::Protocol(protocol));
        }
        let state = &mut *self.state();
        if state.stopped {
            return Err(OpenError::Stopped);
        }
        let entry = state.groups.get(key);
        if entry.is_some_and(|entry| entry.lanes.contains_key(&class)) {
            return Err(OpenError::Open(key.port.clone()));
        }
        let group = entry.map_or_else(
            || Arc::new(Group::new(key.clone(), state.opened)),
            |entry| Arc::clone(&entry.group),
        );
        let bound = Bound::open(protocol, listen, &mut state.ports)?;
        let port = bound.address.port();
        let lane = self
            .workers
            .serve(&group, class, bound)
            .map_err(|(address, source)| {
                state.ports.release(address.port());
                OpenError::Listen { address, source }
            })?;
        let State { groups, opened, .. } = state;
        let entry = groups.entry(key.clone()).or_insert_with(|| {
            *opened += 1;
            Entry {
                group,
                lanes: BTreeMap::new(),
            }
        });
        entry.lanes.insert(class, lane);
        Ok(port)
    }

    /// The proxy port of one class, if it is open.
    pub fn port(&self, key: &Key, class: Class) -> Option<u16> {
        let state = self.state();
        Some(state.groups.get(key)?.lanes.get(&class)?.port())
    }

    /// Says what is behind a Service port that is open. Sockets and connections stay. Connections to
    /// endpoints that are neither in a pool nor draining are given the grace period.
    pub fn set(&self, key: &Key, backends: Backends) {
        if let Some(entry) = self.state().groups.get(key) {
            entry.group.set(backends, self.shared.seed());
        }
    }

    /// Stops listening for one class. Open connections go on.
    pub fn close(&self, key: &Key, class: Class) {
        let state = &mut *self.state();
        let Some(entry) = state.groups.get_mut(key) else {
            return;
        };
        if let Some(lane) = entry.lanes.remove(&class) {
            let port = lane.port();
            lane.close();
            state.ports.release(port);
        }
        if entry.lanes.is_empty() {
            self.forget(state, key);
        }
    }

    /// Stops listening for a Service port. Open connections are given the grace period.
    pub fn remove(&self, key: &Key) {
        let state = &mut *self.state();
        if let Some(entry) = state.groups.get_mut(key) {
            for lane in std::mem::take(&mut entry.lanes).into_values() {
                let port = lane.port();
                lane.close();
                state.ports.release(port);
            }
            self.forget(state, key);
        }
    }

    fn forget(&self, state: &mut State, key: &Key) {
        if let Some(entry) = state.groups.remove(key) {
            entry.group.set(Backends::default(), self.shared.seed());
        }
    }

    /// The sockets that are listened on, once more: for a successor, which may listen on them
    /// beside this process.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn sockets(&self) -> io::Result<Vec<(Key, Class, OwnedFd)>> {
        let state = self.state();
        let lanes = state.groups.iter().flat_map(|(key, entry)| {
            let lanes = entry.lanes.iter();
            lanes.map(move |(class, lane)| Ok((key.clone(), *class, lane.duplicate()?)))
        });
        lanes.collect()
    }

    /// Leaves the sockets of a family to a successor that listens on them too. Open connections go
    /// on, and what endpoints reply to datagrams is passed on.
    pub fn leave_family(&self, family: Family) {
        let mut state = self.state();
        let groups = state.groups.iter_mut();
        for (_, entry) in groups.filter(|(key, _)| key.family == family) {
            for lane in std::mem::take(&mut entry.lanes).into_values() {
                lane.leave();
            }
        }
    }

    /// Stops listening for all Service ports of a family. Open connections go on, and their
    /// counters are kept.
    pub fn close_family(&self, family: Family) {
        let mut state = self.state();
        let groups = state.groups.iter_mut();
        for (_, entry) in groups.filter(|(key, _)| key.family == family) {
            for lane in std::mem::take(&mut entry.lanes).into_values() {
                lane.close();
            }
        }
    }

    /// Waits until no connection is open, at most this long; returns how many are.
    pub fn wait_until_empty(&self, timeout: Duration) -> usize {
        self.shared.wait_until_empty(timeout)
    }

    /// Associations of UDP clients.
    pub fn associations(&self) -> usize {
        let state = self.state();
        let groups = state.groups.values();
        groups.map(|entry| entry.group.associations()).sum()
    }

    /// Resets all connections, and ends the threads. Nothing can be opened any more.
    pub fn cut(&self) {
        self.state().stopped = true;
        self.workers.stop();
    }

    /// Stops listening, gives open connections this long to end, and resets the others.
    pub fn stop(self, timeout: Duration) {
        self.state().stopped = true;
        for family in Family::ALL {
            self.close_family(family);
        }
        self.wait_until_empty(timeout);
    }

    /// Descriptors of clients and endpoints.
    pub fn descriptors(&self) -> Descriptors {
        self.shared.descriptors()
    }

    /// What every open Service port has done so far, in order.
    pub fn stats(&self) -> BTreeMap<Key, Stats> {
        let state = self.state();
        let all = state.groups.iter();
        all.map(|(key, entry)| (key.clone(), entry.group.stats()))
            .collect()
    }
}

/// The time.
#[expect(
    clippy::disallowed_methods,
    reason = "the relay is where bytes meet the clock; what decides takes the time as an argument"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}
