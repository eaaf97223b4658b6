//! Accepts the connections of a lane and gives each a task of its own.
//!
//! Nothing is waited for between two accepts but permission: a Service port has a limited number of
//! clients on their way to an endpoint, and of all descriptors. When descriptors or memory run
//! out, accepting pauses; the clients wait in the kernel.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_kernel::inet;
use tokio::io::unix::AsyncFd;
use tokio::sync::OwnedSemaphorePermit;

use super::admission::{self, Arrival, Verdict};
use super::copy;
use super::group::Group;
use super::sockets;
use super::stats::count;
use super::workers::{Counted, PER_CONNECTION, Shared};
use super::{Class, Notice};
use crate::kernel_family;

/// Connections accepted before other tasks of the thread have their turn.
const IN_A_ROW: usize = 64;

/// Where a lane is served.
pub(super) struct Place {
    pub(super) shared: Arc<Shared>,
    pub(super) group: Arc<Group>,
    pub(super) class: Class,
    pub(super) thread: usize,
    pub(super) address: SocketAddr,
}

/// A client that was let in.
pub(super) struct Client {
    pub(super) socket: OwnedFd,
    /// For the first attempt to reach an endpoint.
    pub(super) server: OwnedFd,
    pub(super) peer: SocketAddr,
    /// What it asked for.
    pub(super) asked: SocketAddr,
    pub(super) class: Class,
    pub(super) counted: Counted,
    /// Held until it is connected.
    pub(super) permit: OwnedSemaphorePermit,
}

/// Pauses that get longer, up to a second.
#[derive(Debug, Default)]
pub(super) struct Pause(u32);

impl Pause {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(1);

    /// How long to wait this time.
    pub(super) fn next(&mut self) -> Duration {
        let pause = Self::FIRST.saturating_mul(1 << self.0.min(5));
        self.0 = self.0.saturating_add(1);
        pause.min(Self::LONGEST)
    }

    pub(super) fn over(&mut self) {
        self.0 = 0;
    }
}

/// How a row of accepts ended.
enum Row {
    /// Nobody waits.
    Drained,
    /// There may be more.
    More,
    /// Nobody can be let in now.
    Pause,
}

/// Serves until aborted.
pub(super) async fn run(place: Place, listener: AsyncFd<Arc<OwnedFd>>) {
    place.shared.uses(1);
    let _used = Used(Arc::clone(&place.shared));
    let mut pause = Pause::default();
    place.group.until_known().await;
    loop {
        // Fails only when the runtime ends.
        let Ok(mut ready) = listener.readable().await else {
            return;
        };
        match row(&place, listener.get_ref()).await {
            Row::Drained => {
                pause.over();
                ready.clear_ready();
            }
            Row::More => {
                pause.over();
                tokio::task::yield_now().await;
            }
            Row::Pause => {
                count(&place.group.counters.pauses);
                tokio::time::sleep(pause.next()).await;
            }
        }
    }
}

struct Used(Arc<Shared>);

impl Drop for Used {
    fn drop(&mut self) {
        self.0.frees(1);
    }
}

async fn row(place: &Place, listener: &Arc<OwnedFd>) -> Row {
    for _ in 0..IN_A_ROW {
        let own = place.group.counters.in_use();
        if !admission::may_grow(own * PER_CONNECTION, place.shared.free()) {
            place.shared.report(Notice::Share {
                key: place.group.key.clone(),
                open: own,
            });
            return Row::Pause;
        }
        let connecting = Arc::clone(&place.group.connecting);
        let Ok(permit) = connecting.acquire_owned().await else {
            return Row::Pause;
        };
        let family = place.group.key.family;
        let accepted = sockets::provide(family).and_then(|()| inet::accept(listener));
        match accepted {
            Ok((socket, peer)) => welcome(place, socket, peer, permit),
            Err(error) => match error.kind() {
                std::io::ErrorKind::WouldBlock => return Row::Drained,
                // The client is gone already, or a signal came.
                std::io::ErrorKind::ConnectionAborted | std::io::ErrorKind::Interrupted => {}
                _ if inet::is_exhausted(&error) => {
                    let key = place.group.key.clone();
                    place.shared.report(Notice::Exhausted { key, error });
                    return Row::Pause;
                }
                _ => {
                    let key = place.group.key.clone();
                    place.shared.report(Notice::Failed { key, error });
                    return Row::Pause;
                }
            },
        }
    }
    Row::More
}

fn welcome(place: &Place, socket: OwnedFd, peer: SocketAddr, permit: OwnedSemaphorePermit) {
    let counters = &place.group.counters;
    counters.accepted(place.class);
    let original = original(place, &socket);
    let arrival = Arrival {
        peer: peer.ip(),
        original,
    };
    match place.group.judge(&arrival, place.shared.options.direct) {
        Verdict::Serve => {}
        Verdict::Direct | Verdict::Forbidden => {
            counters.denied(place.class);
            reset(&socket);
            return;
        }
    }
    let Ok(server) = sockets::provided(place.group.key.family) else {
        return;
    };
    let counted = Counted::new(&place.shared, &place.group, place.thread);
    let thread = counted.thread;
    let client = Client {
        socket,
        server,
        peer,
        asked: original.unwrap_or(place.address),
        class: place.class,
        counted,
        permit,
    };
    place.shared.run(thread, copy::serve(client));
}

/// What the client asked for, if rules redirected it.
fn original(place: &Place, socket: &OwnedFd) -> Option<SocketAddr> {
    let family = kernel_family(Family::of(place.address.ip()));
    // Fails for a connection that is not tracked; such a one cannot have been redirected.
    let original = inet::original_destination(socket, family).ok()?;
    if original.port() != place.address.port() {
        return Some(original);
    }
    admission::redirected(original, inet::local_address(socket).ok()?)
}

/// Makes closing a socket reset its connection.
pub(super) fn reset(socket: &impl AsFd) {
    // Fails only for what is not a socket.
    drop(inet::reset_on_close(socket));
}
