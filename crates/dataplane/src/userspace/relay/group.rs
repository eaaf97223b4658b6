//! What lanes and connections of one Service port share.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::AbortHandle;

use super::admission::{self, Arrival, Verdict};
use super::balancer::{Attempts, Balancer};
use super::stats::{Counters, Stats};
use super::{Backends, Class, Key, now};

/// Clients of one Service port that may be on their way to an endpoint at the same time. More wait
/// to be accepted.
const CONNECTING: usize = 4096;

/// How long closing a lane waits for its thread to let go of the socket.
const LETTING_GO: Duration = Duration::from_secs(5);

/// A Service port.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) key: Key,
    /// Which one it is of all that were opened.
    number: u64,
    pub(super) counters: Counters,
    pub(super) connecting: Arc<Semaphore>,
    /// Bytes of first datagrams that are kept for another try.
    pub(super) kept: AtomicU64,
    /// What is behind it has been said.
    known: watch::Sender<bool>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    balancer: Balancer,
    backends: Backends,
    /// Those that serve, those that are draining, and those that are gone and still have clients.
    endpoints: BTreeMap<SocketAddr, Arc<Endpoint>>,
}

/// An endpoint, as its clients know it.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    state: AtomicU8,
    /// Notified when the state is another one.
    pub(super) changed: Notify,
}

const SERVING: u8 = 0;
const DRAINING: u8 = 1;
const GONE: u8 = 2;

impl Endpoint {
    /// Is not known any more.
    pub(super) fn is_gone(&self) -> bool {
        self.state.load(Ordering::Acquire) == GONE
    }

    fn become_(&self, state: u8) {
        if self.state.swap(state, Ordering::AcqRel) != state {
            self.changed.notify_waiters();
        }
    }
}

/// Who serves a client.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) endpoint: Arc<Endpoint>,
    /// It runs on this node.
    pub(super) is_here: bool,
    pub(super) proxy_header: bool,
}

impl Group {
    pub(super) fn new(key: Key, number: u64) -> Self {
        Self {
            key,
            number,
            counters: Counters::default(),
            connecting: Arc::new(Semaphore::new(CONNECTING)),
            kept: AtomicU64::new(0),
            known: watch::Sender::new(false),
            inner: Mutex::default(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, backends: Backends, seed: u64) {
        self.inner().set(backends, seed);
        self.known.send_replace(true);
    }

    /// Waits until it has been said what is behind it.
    pub(super) async fn until_known(&self) {
        // The sender is here, so it cannot be gone.
        drop(self.known.subscribe().wait_for(|known| *known).await);
    }

    pub(super) fn judge(&self, arrival: &Arrival, direct: bool) -> Verdict {
        admission::judge(arrival, &self.inner().backends.sources, direct)
    }

    pub(super) fn pick(
        &self,
        class: Class,
        client: IpAddr,
        inside: bool,
        attempts: &Attempts<'_>,
    ) -> Option<Choice> {
        let inner = &mut *self.inner();
        let route = match class {
            Class::Internal => inner.backends.internal,
            Class::External => inner.backends.external,
        };
        let pool = if inside { route.inside } else { route.pool }?;
        let address = inner.balancer.pick(pool, client, attempts, now())?;
        Some(Choice {
            endpoint: Arc::clone(inner.endpoints.get(&address)?),
            is_here: inner.backends.here.contains(&address),
            proxy_header: inner.backends.proxy_header,
        })
    }

    /// The client is connected to this endpoint.
    pub(super) fn connected(&self, client: IpAddr, endpoint: SocketAddr, now: Instant) {
        let inner = &mut *self.inner();
        inner.balancer.answered(&endpoint);
        inner.balancer.assign(client, endpoint, now);
    }

    /// The client's datagrams go to this endpoint, whether it answers or not.
    pub(super) fn assign(&self, client: IpAddr, endpoint: SocketAddr, now: Instant) {
        self.inner().balancer.assign(client, endpoint, now);
    }

    pub(super) fn answered(&self, endpoint: SocketAddr) {
        self.inner().balancer.answered(&endpoint);
    }

    pub(super) fn failed(&self, endpoint: SocketAddr, now: Instant) {
        self.inner().balancer.failed(endpoint, now);
    }

    pub(super) fn associations(&self) -> usize {
        self.counters.associations.load(Ordering::Relaxed)
    }

    pub(super) fn stats(&self) -> Stats {
        let ejected = self.inner().balancer.ejected(now());
        self.counters.snapshot(self.number, ejected)
    }
}

impl Inner {
    fn set(&mut self, backends: Backends, seed: u64) {
        if self.backends == backends {
            return;
        }
        self.balancer
            .set(&backends.cluster, &backends.local, backends.affinity, seed);
        let serving: BTreeSet<SocketAddr> = backends
            .cluster
            .iter()
            .chain(&backends.local)
            .copied()
            .collect();
        let draining: BTreeSet<SocketAddr> = backends.draining.iter().copied().collect();
        for address in serving.union(&draining) {
            self.endpoints.entry(*address).or_insert_with(|| {
                Arc::new(Endpoint {
                    address: *address,
                    state: AtomicU8::new(SERVING),
                    changed: Notify::new(),
                })
            });
        }
        self.endpoints.retain(|address, endpoint| {
            endpoint.become_(
                match (serving.contains(address), draining.contains(address)) {
                    (true, _) => SERVING,
                    (false, true) => DRAINING,
                    (false, false) => GONE,
                },
            );
            // Kept while it has clients: if it comes back in time they need not be reset.
            !endpoint.is_gone() || Arc::strong_count(endpoint) > 1
        });
        self.backends = backends;
    }
}

/// A socket that is being served.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) port: u16,
    pub(super) task: AbortHandle,
    /// For datagrams: asks the task to receive no more, and to pass on what endpoints reply.
    pub(super) leave: Option<Arc<Notify>>,
    /// Disconnected when the task is gone.
    pub(super) ended: Receiver<()>,
}

impl Lane {
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Stops accepting, as a successor does so.
    pub(super) fn leave(self) {
        match &self.leave {
            Some(leave) => leave.notify_one(),
            None => self.close(),
        }
    }

    /// Stops serving. When this returns the socket is closed, unless it was duplicated.
    pub(super) fn close(self) {
        self.task.abort();
        // Nothing is ever sent: this returns when the sender is dropped.
        let _ = self.ended.recv_timeout(LETTING_GO);
    }
}
