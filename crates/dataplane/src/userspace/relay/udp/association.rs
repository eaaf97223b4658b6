//! One client's datagrams to one endpoint, and back.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ferrule_kernel::inet;
use ferrule_kernel::inet::datagrams::Batch;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::super::accept::Place;
use super::super::group::{Endpoint, Group};
use super::super::now;
use super::super::sockets;
use super::super::stats::{Failure, add, count};
use super::super::workers::Shared;
use super::local_ports::LocalPort;
use super::{BATCH, Client, Lane};

/// A first datagram up to this size is kept until the endpoint replies: should it refuse, another
/// one gets it.
const KEPT: usize = 1500;

/// What all associations of a Service port keep together.
const KEPT_TOGETHER: u64 = 1024 * 1024;

/// Batches of replies before other tasks of the thread have their turn.
const IN_A_ROW: usize = 4;

/// Replies, and what the endpoint's machine reports.
const EVENTS: Interest = Interest::READABLE.add(Interest::ERROR);

/// A client and its endpoint.
pub(super) struct Association {
    pub(super) client: Client,
    pub(super) endpoint: Arc<Endpoint>,
    /// Tells it from earlier and later ones of the same client.
    pub(super) number: u64,
    socket: AsyncFd<OwnedFd>,
    /// Dropped after the socket: before that nobody may use it for the same endpoint.
    _port: LocalPort,
    used: AtomicU64,
    sent: AtomicBool,
    replied: AtomicBool,
    first: Mutex<Option<Box<[u8]>>>,
    shared: Arc<Shared>,
    group: Arc<Group>,
}

impl Drop for Association {
    fn drop(&mut self) {
        self.let_go_of_first();
        self.shared.frees(1);
        let counter = &self.group.counters.associations;
        counter.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Association {
    /// Opens one and enters it into the table.
    pub(super) fn open(
        lane: &Arc<Lane>,
        client: Client,
        endpoint: Arc<Endpoint>,
    ) -> io::Result<Arc<Self>> {
        let Place { shared, group, .. } = &lane.place;
        let port = shared.local_ports.take(endpoint.address, now())?;
        if port.is_one_of_the_last {
            // It will be free when this thread gets to it.
            lane.evict_idlest();
        }
        let socket = inet::connect_datagrams(port.port, endpoint.address)?;
        let socket = sockets::wait_on(socket, EVENTS)?;
        shared.uses(1);
        group.counters.associations.fetch_add(1, Ordering::Relaxed);
        let number = lane.table().number();
        let association = Arc::new(Self {
            client,
            endpoint,
            number,
            socket,
            _port: port,
            used: AtomicU64::new(lane.clock()),
            sent: AtomicBool::new(false),
            replied: AtomicBool::new(false),
            first: Mutex::default(),
            shared: Arc::clone(shared),
            group: Arc::clone(group),
        });
        let replies = replies(Arc::downgrade(lane), Arc::clone(&association));
        let task = tokio::spawn(replies).abort_handle();
        lane.table().insert(Arc::clone(&association), task);
        Ok(association)
    }

    /// When a datagram last came through, on the lane's clock.
    pub(super) fn last_used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Sends a row of the client's datagrams to the endpoint; returns how many.
    pub(super) fn send(&self, batch: &Batch, row: Range<usize>, clock: u64) -> io::Result<usize> {
        self.used.store(clock, Ordering::Relaxed);
        if self.sent.swap(true, Ordering::Relaxed) {
            self.let_go_of_first();
        } else if row.len() == 1 {
            self.keep_first(batch.bytes(row.start));
        }
        batch.send(&self.socket, row, None)
    }

    fn keep_first(&self, bytes: &[u8]) {
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let kept = &self.group.kept;
        if bytes.len() > KEPT || kept.load(Ordering::Relaxed) + len > KEPT_TOGETHER {
            return;
        }
        kept.fetch_add(len, Ordering::Relaxed);
        *self.first.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes.into());
    }

    fn take_first(&self) -> Option<Box<[u8]>> {
        let first = self
            .first
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()?;
        let len = u64::try_from(first.len()).unwrap_or(0);
        self.group.kept.fetch_sub(len, Ordering::Relaxed);
        Some(first)
    }

    fn let_go_of_first(&self) {
        drop(self.take_first());
    }

    /// How long it has yet to live if nothing comes through.
    fn time_left(&self, clock: u64) -> Duration {
        let idle = self.shared.options.udp_idle;
        let idle = if self.replied.load(Ordering::Relaxed) {
            idle.replied
        } else {
            idle.unreplied
        };
        idle.saturating_sub(Duration::from_millis(
            clock.saturating_sub(self.last_used()),
        ))
    }

    /// Passes on replies that are there.
    fn reply(&self, lane: &Lane) -> Replied {
        BATCH.with_borrow_mut(|batch| {
            for _ in 0..IN_A_ROW {
                match batch.receive(&self.socket) {
                    Ok(_) => {
                        self.used.store(lane.clock(), Ordering::Relaxed);
                        if !self.replied.swap(true, Ordering::Relaxed) {
                            self.let_go_of_first();
                            self.group.answered(self.endpoint.address);
                        }
                        self.send_back(lane, batch);
                    }
                    Err(error) => match error.kind() {
                        io::ErrorKind::WouldBlock => return Replied::All,
                        io::ErrorKind::Interrupted => {}
                        _ => return Replied::Failed(error),
                    },
                }
            }
            Replied::Some
        })
    }

    fn is_own(&self, peer: SocketAddr) -> bool {
        let address = self.endpoint.address;
        (peer.ip(), peer.port()) == (address.ip(), address.port())
    }

    fn send_back(&self, lane: &Lane, batch: &Batch) {
        let to = Some((self.client.peer, self.client.local));
        let mut left = 0..batch.len();
        while !left.is_empty() {
            // Before it was connected the socket received from anybody.
            let own = |at: &usize| batch.get(*at).is_some_and(|reply| self.is_own(reply.peer));
            let row = left.start..left.start + left.clone().take_while(own).count();
            if row.is_empty() {
                lane.dropped(1);
                left.start += 1;
                continue;
            }
            match batch.send(lane.socket.get_ref(), row, to) {
                Ok(sent) if sent > 0 => {
                    let sent = left.start..left.start + sent;
                    left.start = sent.end;
                    let bytes: usize = sent.map(|at| batch.bytes(at).len()).sum();
                    let bytes = u64::try_from(bytes).unwrap_or(0);
                    add(&self.group.counters.to_clients, bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // No room, or the client is unreachable: this one is lost, as on any network.
                Ok(_) | Err(_) => {
                    lane.dropped(1);
                    left.start += 1;
                }
            }
        }
    }
}

/// How passing on replies ended.
enum Replied {
    All,
    Some,
    Failed(io::Error),
}

/// Passes on replies until the association ends.
async fn replies(lane: Weak<Lane>, association: Arc<Association>) {
    let error = until_end(&lane, &association).await;
    let Some(lane) = lane.upgrade() else {
        return;
    };
    match error {
        Some(error) if Failure::of(&error) == Failure::Refused => {
            let first = association.take_first();
            lane.refused(&association);
            // Nobody has had it yet, so nobody can get it twice.
            if let Some(first) = first {
                again(&lane, &association, &first);
            }
        }
        Some(_) | None => lane.forget(&association),
    }
}

/// Sends a first datagram to another endpoint.
fn again(lane: &Arc<Lane>, association: &Association, first: &[u8]) {
    let counters = &lane.place.group.counters;
    count(&counters.retries);
    let refused = Some(association.endpoint.address);
    let sent = lane
        .association(association.client, refused)
        .is_some_and(|next| {
            next.sent.store(true, Ordering::Relaxed);
            inet::send(&next.socket, first).is_ok()
        });
    if !sent {
        lane.dropped(1);
    }
}

/// Passes on replies until the association has been idle for too long, its endpoint is gone, or
/// something fails.
async fn until_end(lane: &Weak<Lane>, association: &Association) -> Option<io::Error> {
    loop {
        let changed = association.endpoint.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if association.endpoint.is_gone() {
            return None;
        }
        let left = association.time_left(lane.upgrade()?.clock());
        if left.is_zero() {
            return None;
        }
        let idle = tokio::time::sleep(left);
        tokio::pin!(idle);
        loop {
            tokio::select! {
                biased;
                ready = association.socket.ready(EVENTS) => {
                    let Ok(mut ready) = ready else {
                        return None;
                    };
                    let lane = lane.upgrade()?;
                    let had_replied = association.replied.load(Ordering::Relaxed);
                    match association.reply(&lane) {
                        Replied::All => ready.clear_ready(),
                        Replied::Some => tokio::task::yield_now().await,
                        Replied::Failed(error) => return Some(error),
                    }
                    if !had_replied && association.replied.load(Ordering::Relaxed) {
                        // From now on it may be idle for another time.
                        break;
                    }
                }
                () = &mut idle => break,
                () = &mut changed => break,
            }
        }
    }
}
