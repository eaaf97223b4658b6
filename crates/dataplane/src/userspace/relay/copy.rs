//! Carries the bytes of one connection, both ways.
//!
//! The two directions are independent: an end of one is passed on and the other goes on to its own
//! end. A reset of one side resets the other. Nothing more is read before the last of it was sent on,
//! so a client that does not read costs what is in the kernel's buffers and one of ours.
//!
//! While a connection is idle it holds no buffer and no pipe.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ferrule_kernel::inet;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::accept::{self, Client};
use super::group::{Endpoint, Group};
use super::ladder::{self, Connected};
use super::sockets;
use super::stats::{add, count};
use super::workers::Counted;

mod half;

use half::{Broken, Half};

/// Bytes that a client may have sent before it is connected.
const EARLY: usize = 4096;

/// A socket on its thread.
type Stream = AsyncFd<OwnedFd>;

/// Connects a client and carries its bytes until both ends are done.
pub(super) fn serve(client: Client) -> impl Future<Output = ()> + Send {
    // In a box of its own: what connecting needs is free again when it is done.
    let connecting = Box::pin(introduce(client));
    async {
        // Not moved again: every place it has ever been in is part of the task.
        let mut connection = connecting.await;
        if let Some(connection) = &mut connection {
            connection.carry().await;
        }
    }
}

/// Connects a client to an endpoint; resets it when that fails.
async fn introduce(client: Client) -> Option<Connection> {
    let Client {
        socket,
        server,
        peer,
        asked,
        counted,
        permit,
        class,
    } = client;
    let early = early(&socket);
    let early_len = early.len();
    let who = ladder::Context {
        peer,
        asked,
        class,
        counted: &counted,
        early,
    };
    let connected = ladder::connect(who, server).await;
    drop(permit);
    let Some(Connected {
        stream: server,
        endpoint,
        first,
        sent,
        at_once,
    }) = connected
    else {
        accept::reset(&socket);
        return None;
    };
    let Ok(client) = sockets::wait_on(socket, ladder::interest()) else {
        // No memory for it. The client's socket went with the error and was closed.
        accept::reset(&server);
        return None;
    };
    let splice = counted.shared.options.splice;
    add(&counted.group.counters.to_endpoints, early_len as u64);
    let mut up = Half::new(splice);
    up.begin_with(first, sent);
    // What was not there yet may be by now, if that took a while.
    up.look_again(early_len == 0 && !at_once);
    Some(Connection {
        ends: Ends {
            client,
            server,
            orderly: false,
        },
        up,
        down: Half::new(splice),
        endpoint,
        counted,
    })
}

/// What a client has sent before it was connected: most have. Not more than a request usually has, as
/// it is kept until an endpoint is found.
fn early(socket: &OwnedFd) -> Box<[u8]> {
    let mut bytes = [0; EARLY];
    // Nothing yet, an end and an error will be found again.
    let len = inet::receive(socket, &mut bytes).unwrap_or(0);
    bytes.get(..len).unwrap_or(&[]).into()
}

/// A client that is connected to an endpoint. The sockets come first: what counts them is dropped
/// when they are closed.
struct Connection {
    ends: Ends,
    up: Half,
    down: Half,
    endpoint: Arc<Endpoint>,
    counted: Counted,
}

impl Connection {
    /// Carries bytes until both ends are done.
    async fn carry(&mut self) {
        let orderly = {
            let mut both = Both {
                ends: &self.ends,
                group: &self.counted.group,
                up: &mut self.up,
                down: &mut self.down,
                broken: false,
                watch: None,
            };
            let grace = self.counted.shared.options.grace;
            both.until_done(&self.endpoint, grace).await
        };
        self.ends.orderly = orderly;
    }
}

/// Both sockets. Unless their connections ended in an orderly way they are reset.
struct Ends {
    client: Stream,
    server: Stream,
    orderly: bool,
}

impl Drop for Ends {
    fn drop(&mut self) {
        if !self.orderly {
            accept::reset(&self.client);
            accept::reset(&self.server);
        }
    }
}

/// Both directions of one connection.
struct Both<'a> {
    ends: &'a Ends,
    group: &'a Group,
    up: &'a mut Half,
    down: &'a mut Half,
    /// Bytes could not be sent on; the rest of the other direction is still worth having.
    broken: bool,
    /// Notices a reset by the side that has ended its own direction, of which nothing is read.
    watch: Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
}

impl Both<'_> {
    /// Until both directions have ended, or the endpoint has been gone for too long. Returns whether
    /// they ended in an orderly way.
    async fn until_done(&mut self, endpoint: &Endpoint, grace: Duration) -> bool {
        loop {
            let changed = endpoint.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if endpoint.is_gone() {
                if let Some(orderly) = Box::pin(self.until_silent(endpoint, grace)).await {
                    return orderly;
                }
            } else {
                tokio::select! {
                    biased;
                    orderly = self.done() => return orderly,
                    () = changed => {}
                }
            }
        }
    }

    /// Both directions have ended. Returns whether in an orderly way.
    async fn done(&mut self) -> bool {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// As long as the endpoint is gone: `None` when it is back, otherwise whether the connection
    /// ended in an orderly way. It does not when it was silent for the grace period.
    async fn until_silent(&mut self, endpoint: &Endpoint, grace: Duration) -> Option<bool> {
        loop {
            let changed = endpoint.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !endpoint.is_gone() {
                return None;
            }
            let before = self.moved();
            let silence = tokio::time::sleep(grace);
            tokio::pin!(silence);
            // Anything that moves begins the silence anew.
            let orderly = std::future::poll_fn(|cx| match self.poll(cx) {
                Poll::Ready(orderly) => Poll::Ready(Some(orderly)),
                Poll::Pending if self.moved() != before => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            tokio::select! {
                biased;
                orderly = orderly => if orderly.is_some() {
                    return orderly;
                },
                () = changed => {}
                () = silence => {
                    count(&self.group.counters.expired);
                    return Some(false);
                }
            }
        }
    }

    fn moved(&self) -> u64 {
        self.up.moved() + self.down.moved()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let Ends { client, server, .. } = self.ends;
        let (up, down) = (self.up.moved(), self.down.moved());
        let up_ended = self.up.poll(cx, client, server, self.down.has_ended());
        let down_ended = self.down.poll(cx, server, client, self.up.has_ended());
        let counters = &self.group.counters;
        if self.up.moved() > up {
            add(&counters.to_endpoints, self.up.moved() - up);
        }
        if self.down.moved() > down {
            add(&counters.to_clients, self.down.moved() - down);
        }
        for ended in [up_ended, down_ended] {
            match ended {
                Poll::Ready(Err(Broken::Read)) => return Poll::Ready(false),
                Poll::Ready(Err(Broken::Write)) => self.broken = true,
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
        }
        match (self.up.has_ended(), self.down.has_ended()) {
            (true, true) => Poll::Ready(!self.broken),
            (true, false) => self.poll_watch(cx, &self.ends.client),
            (false, true) => self.poll_watch(cx, &self.ends.server),
            (false, false) => Poll::Pending,
        }
    }
}

impl<'a> Both<'a> {
    /// Waits for a reset from a side that sends nothing more.
    fn poll_watch(&mut self, cx: &mut Context<'_>, quiet: &'a Stream) -> Poll<bool> {
        let watch = self.watch.get_or_insert_with(|| {
            Box::pin(async {
                drop(quiet.ready(Interest::ERROR).await);
            })
        });
        watch.as_mut().poll(cx).map(|()| false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of what a function returns.
    fn returned<A, F>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_task_of_a_connection_is_small() {
        let bytes = returned(serve);
        assert!(bytes <= 512, "{bytes} bytes");
    }
}
