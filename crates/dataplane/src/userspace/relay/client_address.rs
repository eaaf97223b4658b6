//! Gives connections to endpoints the client's own address, where answers come back to this machine.
//!
//! Rules and routes that bring them are made elsewhere; here they are only known to be there, family
//! by family. Whether an endpoint's answers to a client pass through this node is asked of the kernel's
//! routes for each connection, as pods come and go.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use ferrule_core::model::{Family, PerFamily};
use ferrule_kernel::inet;
use ferrule_kernel::route::{Route, Way};

/// Whether, and with which mark.
#[derive(Debug)]
pub(super) struct ClientAddress {
    mark: Option<u32>,
    /// Answers are brought here.
    answered: PerFamily<AtomicBool>,
}

thread_local! {
    /// Asked for routes; opened when first needed.
    static ROUTE: RefCell<Option<Route>> = const { RefCell::new(None) };
}

impl ClientAddress {
    pub(super) fn new(mark: Option<u32>) -> Self {
        Self {
            mark,
            answered: PerFamily::default(),
        }
    }

    /// Says whether answers are brought here.
    pub(super) fn set_answered(&self, family: Family, is: bool) {
        self.answered[family].store(is, Ordering::Release);
    }

    /// The mark for a connection that is to have the client's address; `None` if it must not.
    pub(super) fn mark(&self, client: IpAddr, endpoint: IpAddr) -> Option<u32> {
        let mark = self.mark?;
        let answered = self.answered[Family::of(client)].load(Ordering::Acquire);
        (answered && ways(client, endpoint).is_ok_and(passes_here)).then_some(mark)
    }
}

/// The ways to a client and to an endpoint.
fn ways(client: IpAddr, endpoint: IpAddr) -> io::Result<(Way, Way)> {
    ROUTE.with_borrow_mut(|slot| {
        let route = match slot {
            Some(route) => route,
            None => slot.insert(Route::open()?),
        };
        let mut way = |to| route.way_to(to).map_err(io::Error::other);
        Ok((way(client)?, way(endpoint)?))
    })
}

/// Whether answers of the endpoint to the client come by here: both are reached by an interface, and
/// not by the same one. An endpoint that shares its network with the client answers it directly, and
/// one with an address of this machine never sends its answers out.
fn passes_here((client, endpoint): (Way, Way)) -> bool {
    match (client, endpoint) {
        (Way::Link(client), Way::Link(endpoint)) => client != endpoint,
        _ => false,
    }
}

/// Begins to connect a socket to an endpoint with the address of a client, and with its port unless
/// another connection of this machine has both. Returns the socket, which may be another one, and what
/// `connect` returned.
///
/// # Errors
/// What the kernel said. `AddrNotAvailable` if the client has no free port left towards this endpoint.
pub(super) fn connect_as<T>(
    client: SocketAddr,
    mark: u32,
    socket: OwnedFd,
    another: impl FnOnce() -> io::Result<OwnedFd>,
    connect: impl Fn(&OwnedFd) -> io::Result<T>,
) -> io::Result<(OwnedFd, T)> {
    inet::speak_as(&socket, client, mark)?;
    match connect(&socket) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            let socket = another()?;
            inet::speak_as(&socket, SocketAddr::new(client.ip(), 0), mark)?;
            let done = connect(&socket)?;
            Ok((socket, done))
        }
        result => result.map(|done| (socket, done)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_by_where_client_and_endpoint_are_behind_different_interfaces() {
        assert!(passes_here((Way::Link(2), Way::Link(3))));
        for ways in [
            (Way::Link(2), Way::Link(2)),
            (Way::Local, Way::Link(2)),
            (Way::Link(2), Way::Local),
            (Way::None, Way::Link(2)),
            (Way::Link(2), Way::None),
        ] {
            assert!(!passes_here(ways), "{ways:?}");
        }
    }
}
