//! Connects a client to an endpoint, and to another one if that does not answer.
//!
//! Each endpoint that is silent costs a step of the ladder; one that refuses costs nothing, so the
//! next is asked at once. Only the client's own task waits.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ferrule_kernel::inet;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Class;
use super::balancer::Attempts;
use super::client_address::connect_as;
use super::group::{Choice, Endpoint};
use super::now;
use super::proxy_header;
use super::sockets;
use super::stats::{Failure, count};
use super::workers::Counted;

/// How long each attempt may take.
const STEPS: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// Endpoints that may refuse one client.
const REFUSALS: usize = 8;

/// How long to wait for descriptors or memory.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// Who is to be connected.
pub(super) struct Context<'a> {
    pub(super) peer: SocketAddr,
    /// What it asked for.
    pub(super) asked: SocketAddr,
    pub(super) class: Class,
    pub(super) counted: &'a Counted,
    /// What it has sent by now.
    pub(super) early: Box<[u8]>,
}

/// A connection to an endpoint.
pub(super) struct Connected {
    pub(super) stream: AsyncFd<OwnedFd>,
    pub(super) endpoint: Arc<Endpoint>,
    /// What the endpoint is to receive before all else.
    pub(super) first: Box<[u8]>,
    /// How much of it was sent.
    pub(super) sent: usize,
    /// It was there at once.
    pub(super) at_once: bool,
}

/// A connection that was begun, and how many bytes were sent with it.
type Begun = (OwnedFd, usize);

/// Connects; `None` when no endpoint could be reached.
pub(super) async fn connect(client: Context<'_>, server: OwnedFd) -> Option<Connected> {
    let group = &client.counted.group;
    let counters = &group.counters;
    let ip = client.peer.ip();
    let mut server = Some(server);
    let shared = &client.counted.shared;
    let inside = shared.is_inside(ip);
    let begun = now();
    let (mut refused, mut silent) = (Vec::new(), Vec::new());
    let mut step = 0;
    while step < STEPS.len() && refused.len() < REFUSALS {
        let attempts = Attempts {
            refused: &refused,
            silent: &silent,
        };
        let Some(choice) = group.pick(client.class, ip, inside, &attempts) else {
            break;
        };
        let Choice {
            endpoint,
            is_here,
            proxy_header,
        } = choice;
        if step + refused.len() > 0 {
            count(&counters.retries);
        }
        let socket = match server.take() {
            Some(first) => Ok(first),
            None => sockets::stream(group.key.family),
        };
        let mark = is_here
            .then(|| shared.client_address.mark(ip, endpoint.address.ip()))
            .flatten();
        let first = proxy_header.then(|| first(&client));
        let bytes = first.as_deref().unwrap_or(&client.early);
        let attempted =
            socket.and_then(|socket| begin(&client, mark, socket, endpoint.address, bytes));
        match attempt(attempted, STEPS[step]).await {
            Ok((stream, sent, at_once)) => {
                if mark.is_some() {
                    count(&counters.transparent);
                }
                let now = now();
                group.connected(ip, endpoint.address, now);
                counters.connected(now.saturating_duration_since(begun));
                return Some(Connected {
                    stream,
                    endpoint,
                    first: first.unwrap_or(client.early),
                    sent,
                    at_once,
                });
            }
            Err(error) => {
                let failure = Failure::of(&error);
                counters.failed(failure);
                match failure {
                    Failure::TimedOut => {
                        group.failed(endpoint.address, now());
                        silent.push(endpoint.address);
                        step += 1;
                    }
                    // Not the endpoint's fault.
                    Failure::Exhausted => {
                        tokio::time::sleep(EXHAUSTED).await;
                        step += 1;
                    }
                    Failure::Refused | Failure::Unreachable | Failure::Other => {
                        group.failed(endpoint.address, now());
                        refused.push(endpoint.address);
                    }
                }
            }
        }
    }
    let nobody = step == 0 && refused.is_empty();
    count(if nobody {
        &counters.no_endpoint
    } else {
        &counters.given_up
    });
    None
}

/// The header that names the client, and what the client has sent.
fn first(client: &Context<'_>) -> Box<[u8]> {
    let mut bytes = proxy_header::header(client.peer, client.asked).into_vec();
    bytes.extend_from_slice(&client.early);
    bytes.into()
}

/// Begins to connect, with the client's address if there is a mark for that.
fn begin(
    client: &Context<'_>,
    mark: Option<u32>,
    socket: OwnedFd,
    to: SocketAddr,
    first: &[u8],
) -> io::Result<Begun> {
    let connect = |socket: &OwnedFd| match first {
        [] => inet::connect(socket, to).map(|()| 0),
        first => inet::connect_and_send(socket, to, first),
    };
    let Some(mark) = mark else {
        return connect(&socket).map(|sent| (socket, sent));
    };
    let another = || sockets::stream(client.counted.group.key.family);
    connect_as(client.peer, mark, socket, another, connect)
}

/// The connection, how many bytes were sent with it, and whether it was there at once.
async fn attempt(
    begun: io::Result<Begun>,
    time: Duration,
) -> io::Result<(AsyncFd<OwnedFd>, usize, bool)> {
    let (socket, sent) = begun?;
    let stream = sockets::wait_on(socket, interest())?;
    // A pod of this node has mostly answered by now, and there is no need to wait to be notified of it.
    if sent > 0 || inet::is_connected(&stream) {
        return Ok((stream, sent, true));
    }
    let outcome = async {
        let ready = stream.writable().await?.ready();
        if ready.is_write_closed()
            && let Some(error) = inet::take_error(&stream)?
        {
            return Err(error);
        }
        Ok(())
    };
    match tokio::time::timeout(time, outcome).await {
        Ok(Ok(())) => Ok((stream, 0, false)),
        Ok(Err(error)) => Err(error),
        Err(_elapsed) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// What is waited for on a connection.
pub(super) fn interest() -> Interest {
    Interest::READABLE | Interest::WRITABLE | Interest::ERROR
}
