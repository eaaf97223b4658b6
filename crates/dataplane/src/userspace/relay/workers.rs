//! The threads, and what all of them share.
//!
//! Each thread has a runtime of its own, so that a connection stays where it was put. A lane's
//! socket belongs to one thread, which hands connections on to whichever has the fewest.

use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrule_core::model::Protocol;
use ipnet::IpNet;
use tokio::io::Interest;
use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;

use super::balancer::splitmix;
use super::client_address::ClientAddress;
use super::group::{Group, Lane};
use super::sockets::{self, Bound};
use super::udp::LocalPorts;
use super::{Class, Descriptors, Notice, Options, Report, accept, now, udp};

/// Descriptors that are left to the rest of the program.
const RESERVED: usize = 256;

/// The same notice is not given again for this long.
const QUIET: Duration = Duration::from_secs(1);

/// What all threads share.
pub(super) struct Shared {
    pub(super) options: Options,
    report: Report,
    reported: Mutex<[Option<Instant>; 5]>,
    inside: RwLock<Arc<[IpNet]>>,
    descriptors: usize,
    used: AtomicUsize,
    open: AtomicUsize,
    empty: (Mutex<()>, Condvar),
    seed: Mutex<u64>,
    /// For connections to endpoints.
    pub(super) client_address: ClientAddress,
    /// For datagrams to endpoints.
    pub(super) local_ports: Arc<LocalPorts>,
    threads: OnceLock<Vec<Thread>>,
}

/// A thread, as others see it.
struct Thread {
    runtime: Handle,
    load: AtomicUsize,
}

/// A number that nobody can guess.
pub(super) fn entropy() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

impl Shared {
    pub(super) fn new(options: Options, descriptors: usize, report: Report) -> Self {
        Self {
            client_address: ClientAddress::new(options.client_mark),
            local_ports: LocalPorts::new(options.local_ports),
            options,
            report,
            reported: Mutex::default(),
            inside: RwLock::new(Arc::new([])),
            descriptors: descriptors.saturating_sub(RESERVED.min(descriptors / 4)),
            used: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            empty: (Mutex::new(()), Condvar::new()),
            seed: Mutex::new(entropy()),
            threads: OnceLock::new(),
        }
    }

    pub(super) fn seed(&self) -> u64 {
        splitmix(&mut self.seed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_inside(&self, networks: Vec<IpNet>) {
        *self.inside.write().unwrap_or_else(PoisonError::into_inner) = networks.into();
    }

    pub(super) fn is_inside(&self, ip: IpAddr) -> bool {
        let networks = self.inside.read().unwrap_or_else(PoisonError::into_inner);
        networks.iter().any(|network| network.contains(&ip))
    }

    /// Descriptors that are free for all.
    pub(super) fn free(&self) -> usize {
        self.descriptors.saturating_sub(self.in_use())
    }

    fn in_use(&self) -> usize {
        self.used.load(Ordering::Relaxed) + self.local_ports.taken()
    }

    pub(super) fn descriptors(&self) -> Descriptors {
        Descriptors {
            used: self.in_use(),
            most: self.descriptors,
        }
    }

    pub(super) fn uses(&self, descriptors: usize) {
        self.used.fetch_add(descriptors, Ordering::Relaxed);
    }

    pub(super) fn frees(&self, descriptors: usize) {
        self.used.fetch_sub(descriptors, Ordering::Relaxed);
    }

    /// Gives a notice, unless the same kind was just given.
    pub(super) fn report(&self, notice: Notice) {
        let kind = match notice {
            Notice::Exhausted { .. } => 0,
            Notice::Share { .. } => 1,
            Notice::Failed { .. } => 2,
            Notice::Handover { .. } => 3,
            Notice::Transparent { .. } => 4,
        };
        let now = now();
        {
            let last = &mut self.reported.lock().unwrap_or_else(PoisonError::into_inner)[kind];
            if last.is_some_and(|last| now.saturating_duration_since(last) < QUIET) {
                return;
            }
            *last = Some(now);
        }
        (self.report)(notice);
    }

    /// Waits until no connection is open, or as long as that; returns how many are.
    pub(super) fn wait_until_empty(&self, timeout: Duration) -> usize {
        let (lock, empty) = &self.empty;
        let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let open = |(): &mut ()| self.open.load(Ordering::Acquire) > 0;
        drop(empty.wait_timeout_while(guard, timeout, open));
        self.open.load(Ordering::Acquire)
    }

    /// The thread with the fewest connections; `here` if that is as good.
    fn least_loaded(&self, here: usize) -> usize {
        let threads = self.threads.get().map_or(&[][..], Vec::as_slice);
        let load = |at: usize| {
            threads
                .get(at)
                .map_or(0, |thread| thread.load.load(Ordering::Relaxed))
        };
        (0..threads.len())
            .min_by_key(|&at| (load(at), at != here))
            .unwrap_or(here)
    }

    /// Runs something on a thread; `false` when there is none, because the relay is being dropped.
    pub(super) fn run(&self, thread: usize, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(thread) = self.threads.get().and_then(|threads| threads.get(thread)) {
            drop(thread.runtime.spawn(work));
        }
    }

    fn loaded(&self, thread: usize) -> Option<&AtomicUsize> {
        Some(&self.threads.get()?.get(thread)?.load)
    }
}

/// Counts a connection for as long as it lives.
pub(super) struct Counted {
    pub(super) shared: Arc<Shared>,
    pub(super) group: Arc<Group>,
    pub(super) thread: usize,
}

/// Descriptors of a connection.
pub(super) const PER_CONNECTION: usize = 2;

impl Counted {
    /// Puts a connection that was accepted here on the thread where it is best off.
    pub(super) fn new(shared: &Arc<Shared>, group: &Arc<Group>, here: usize) -> Self {
        let thread = shared.least_loaded(here);
        if let Some(load) = shared.loaded(thread) {
            load.fetch_add(1, Ordering::Relaxed);
        }
        shared.uses(PER_CONNECTION);
        shared.open.fetch_add(1, Ordering::AcqRel);
        group.counters.open.fetch_add(1, Ordering::Relaxed);
        Self {
            shared: Arc::clone(shared),
            group: Arc::clone(group),
            thread,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(load) = self.shared.loaded(self.thread) {
            load.fetch_sub(1, Ordering::Relaxed);
        }
        self.shared.frees(PER_CONNECTION);
        self.group.counters.open.fetch_sub(1, Ordering::Relaxed);
        if self.shared.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            let (lock, empty) = &self.shared.empty;
            drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
            empty.notify_all();
        }
    }
}

/// The threads.
pub(super) struct Workers {
    shared: Arc<Shared>,
    stop: Arc<Stop>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Stop {
    asked: std::sync::atomic::AtomicBool,
    notify: Notify,
}

impl Workers {
    pub(super) fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let count = match shared.options.workers {
            0 => std::thread::available_parallelism()?.get(),
            count => count,
        };
        let stop = Arc::new(Stop::default());
        let workers = Self {
            shared: Arc::clone(shared),
            stop: Arc::clone(&stop),
            threads: Mutex::default(),
        };
        let mut known = Vec::with_capacity(count);
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            known.push(Thread {
                runtime: runtime.handle().clone(),
                load: AtomicUsize::new(0),
            });
            let stop = Arc::clone(&stop);
            let thread = std::thread::Builder::new()
                .name(format!("relay-{number}"))
                .spawn(move || runtime.block_on(stop.wait()))?;
            workers.threads().push(thread);
        }
        drop(shared.threads.set(known));
        Ok(workers)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the threads, and with them all connections.
    pub(super) fn stop(&self) {
        self.stop.asked.store(true, Ordering::Release);
        self.stop.notify.notify_waiters();
        for thread in std::mem::take(&mut *self.threads()) {
            // It cannot have panicked, and if it had there would be nothing left to stop.
            drop(thread.join());
        }
    }

    /// Serves a socket. On failure the socket is closed and its address returned with the error.
    pub(super) fn serve(
        &self,
        group: &Arc<Group>,
        class: Class,
        bound: Bound,
    ) -> Result<Lane, (SocketAddr, io::Error)> {
        let address = bound.address;
        let threads = self.shared.threads.get().map_or(&[][..], Vec::as_slice);
        let number = usize::from(address.port()) % threads.len().max(1);
        let Some(thread) = threads.get(number) else {
            return Err((address, io::ErrorKind::NotConnected.into()));
        };
        let socket = Arc::new(bound.socket);
        let _context = thread.runtime.enter();
        let listener = sockets::wait_on(Arc::clone(&socket), Interest::READABLE)
            .map_err(|error| (address, error))?;
        let place = accept::Place {
            shared: Arc::clone(&self.shared),
            group: Arc::clone(group),
            class,
            thread: number,
            address,
        };
        let (sender, ended) = channel();
        let leave = (bound.protocol == Protocol::Udp).then(Arc::<Notify>::default);
        let task = if let Some(leave) = leave.clone() {
            thread.runtime.spawn(async move {
                udp::run(place, listener, leave).await;
                drop(sender);
            })
        } else {
            thread.runtime.spawn(async move {
                accept::run(place, listener).await;
                drop(sender);
            })
        };
        Ok(Lane {
            socket,
            port: address.port(),
            task: task.abort_handle(),
            leave,
            ended,
        })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Stop {
    async fn wait(&self) {
        loop {
            let notified = self.notify.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.asked.load(Ordering::Acquire) {
                return;
            }
            notified.await;
        }
    }
}
