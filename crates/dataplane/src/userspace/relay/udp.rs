//! Carries the datagrams of a lane.
//!
//! A client's datagrams go to one endpoint for as long as its association lives; replies leave from
//! the address at which the client's datagrams arrived. Everything of a lane happens on one thread:
//! one task receives from clients, and each association has one for its replies.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrule_kernel::inet::datagrams::{Batch, Local};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::accept::Place;
use super::admission;
use super::balancer::Attempts;
use super::group::Choice;
use super::stats::{add, count};
use super::{Failure, Notice, now};

mod association;
mod local_ports;
mod table;

use association::Association;
pub(super) use local_ports::LocalPorts;
use table::Table;

/// Batches received before other tasks of the thread have their turn.
const IN_A_ROW: usize = 4;

/// Who sent a datagram, and to which address of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Client {
    peer: SocketAddr,
    local: Option<Local>,
}

thread_local! {
    static BATCH: RefCell<Batch> = RefCell::new(Batch::new());
}

/// A socket that clients send to, and their associations.
struct Lane {
    place: Place,
    socket: AsyncFd<Arc<OwnedFd>>,
    table: Mutex<Table>,
    /// Times are counted from here.
    begun: Instant,
}

/// How often it is seen whether endpoints may still reply.
const EBBING: Duration = Duration::from_secs(1);

/// Serves until aborted, or until asked to leave: then until nobody may reply any more.
pub(super) async fn run(place: Place, socket: AsyncFd<Arc<OwnedFd>>, leave: Arc<Notify>) {
    place.shared.uses(1);
    let lane = Arc::new(Lane {
        place,
        socket,
        table: Mutex::default(),
        begun: now(),
    });
    lane.place.group.until_known().await;
    loop {
        let ready = tokio::select! {
            biased;
            () = leave.notified() => break,
            ready = lane.socket.readable() => ready,
        };
        // Fails only when the runtime ends.
        let Ok(mut ready) = ready else {
            return;
        };
        if lane.receive() {
            ready.clear_ready();
        } else {
            tokio::task::yield_now().await;
        }
    }
    while !lane.table().is_empty() {
        tokio::time::sleep(EBBING).await;
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.place.shared.frees(1);
    }
}

impl Lane {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the lane was opened.
    fn clock(&self) -> u64 {
        let passed = now().saturating_duration_since(self.begun);
        u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
    }

    /// Receives and sends on what there is. Returns whether that was all.
    fn receive(self: &Arc<Self>) -> bool {
        BATCH.with_borrow_mut(|batch| {
            for _ in 0..IN_A_ROW {
                match batch.receive(self.socket.get_ref()) {
                    Ok(_) => self.send_on(batch),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // An earlier reply could not be delivered. Nothing is lost by asking again.
                    Err(error) if Failure::of(&error) != Failure::Other => {}
                    Err(error) => {
                        let key = self.place.group.key.clone();
                        self.place.shared.report(Notice::Failed { key, error });
                    }
                }
            }
            false
        })
    }

    /// Sends each row of datagrams from one client to its endpoint.
    fn send_on(self: &Arc<Self>, batch: &Batch) {
        let client_of = |at: usize| {
            batch.get(at).map(|datagram| Client {
                peer: datagram.peer,
                local: datagram.local,
            })
        };
        let mut at = 0;
        while at < batch.len() {
            let client = client_of(at);
            let row = at..(at + 1..batch.len())
                .find(|&next| client_of(next) != client)
                .unwrap_or(batch.len());
            at = row.end;
            match client {
                Some(client) => self.send_row(batch, row, client),
                None => self.dropped(row.len()),
            }
        }
    }

    fn send_row(self: &Arc<Self>, batch: &Batch, row: std::ops::Range<usize>, client: Client) {
        let mut left = row;
        let mut refused: Option<SocketAddr> = None;
        while !left.is_empty() {
            let Some(association) = self.association(client, refused) else {
                break;
            };
            match association.send(batch, left.clone(), self.clock()) {
                Ok(sent) if sent > 0 => {
                    let bytes: usize = (left.start..left.start + sent)
                        .map(|at| batch.bytes(at).len())
                        .sum();
                    let bytes = u64::try_from(bytes).unwrap_or(0);
                    add(&self.place.group.counters.to_endpoints, bytes);
                    left.start += sent;
                }
                // Its endpoint refused: what it was sent before, if not this. Once another one.
                Err(error) if Failure::of(&error) == Failure::Refused && refused.is_none() => {
                    refused = Some(association.endpoint.address);
                    self.refused(&association);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // No room, or a datagram that cannot be sent: it alone is lost.
                Ok(_) | Err(_) => {
                    self.dropped(1);
                    left.start += 1;
                }
            }
        }
        self.dropped(left.len());
    }

    /// The client's association, or a new one with an endpoint that has not just refused.
    fn association(
        self: &Arc<Self>,
        client: Client,
        refused: Option<SocketAddr>,
    ) -> Option<Arc<Association>> {
        let known = self.table().get(&client);
        match known {
            // One that is draining may finish with the clients it has.
            Some(association) if !association.endpoint.is_gone() => return Some(association),
            Some(association) => self.forget(&association),
            None => {}
        }
        self.make_room();
        let group = &self.place.group;
        let ip = client.peer.ip();
        let attempts = Attempts {
            refused: refused.as_slice(),
            ..Attempts::NONE
        };
        let inside = self.place.shared.is_inside(ip);
        let Some(Choice { endpoint, .. }) = group.pick(self.place.class, ip, inside, &attempts)
        else {
            count(&group.counters.no_endpoint);
            return None;
        };
        let address = endpoint.address;
        match Association::open(self, client, endpoint) {
            Ok(association) => {
                group.assign(ip, address, now());
                count(&group.counters.associated);
                Some(association)
            }
            Err(error) => {
                let failure = Failure::of(&error);
                group.counters.failed(failure);
                if failure == Failure::Exhausted {
                    self.evict_idlest();
                    let key = group.key.clone();
                    self.place.shared.report(Notice::Exhausted { key, error });
                }
                None
            }
        }
    }

    /// Makes room for one more association.
    fn make_room(&self) {
        let group = &self.place.group;
        let counters = &group.counters;
        let most = self.place.shared.options.udp_associations;
        let associations = counters
            .associations
            .load(std::sync::atomic::Ordering::Relaxed);
        let share = admission::may_grow(counters.in_use(), self.place.shared.free());
        if associations < most && share {
            return;
        }
        if !share {
            self.place.shared.report(Notice::Share {
                key: group.key.clone(),
                open: counters.in_use(),
            });
        }
        self.evict_idlest();
    }

    /// Ends the association that has been idle for longest.
    fn evict_idlest(&self) {
        if self.table().evict_idlest() {
            count(&self.place.group.counters.evicted);
        }
    }

    /// The endpoint of this association refused.
    fn refused(&self, association: &Association) {
        let group = &self.place.group;
        group.counters.failed(Failure::Refused);
        group.failed(association.endpoint.address, now());
        self.forget(association);
    }

    fn forget(&self, association: &Association) {
        let ended = self.table().remove(&association.client, association.number);
        drop(ended);
    }

    fn dropped(&self, datagrams: usize) {
        if datagrams > 0 {
            let datagrams = u64::try_from(datagrams).unwrap_or(0);
            add(&self.place.group.counters.dropped, datagrams);
        }
    }
}
