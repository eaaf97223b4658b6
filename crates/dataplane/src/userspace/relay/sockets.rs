//! Opens the socket of a lane on a port that suits, and lets tasks wait for sockets.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use ferrule_core::model::{Family, PerFamily, Protocol};
use ferrule_kernel::inet::{self, KeepAlive};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::ports::Ports;
use super::{Listen, OpenError};
use crate::kernel_family;

/// As long as a peer may be silent before it is asked whether it is still there.
pub(super) const KEEP_ALIVE: KeepAlive = KeepAlive {
    idle: Duration::from_secs(15),
};

/// How many ports the kernel may choose before one of them suits. Its range and the node ports
/// hardly overlap by default.
const CHOICES: usize = 256;

/// A socket that is bound, and listens if it is for TCP.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) socket: OwnedFd,
    pub(super) address: SocketAddr,
    pub(super) protocol: Protocol,
}

impl Bound {
    /// Opens one and takes its port.
    pub(super) fn open(
        protocol: Protocol,
        listen: Listen,
        ports: &mut Ports,
    ) -> Result<Self, OpenError> {
        let address = SocketAddr::new(listen.address, 0);
        let bound = match listen.socket {
            Some(socket) => Self::adopt(protocol, socket),
            None => Self::preferred(protocol, address, listen.prefer, ports)
                .map_or_else(|| Self::any(protocol, address, ports), Ok),
        };
        match bound {
            Ok(bound) => {
                ports.take(bound.address.port());
                Ok(bound)
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match ports.range() {
                Some(range) => Err(OpenError::NoPort(range.clone())),
                None => Err(OpenError::Listen {
                    address,
                    source: error,
                }),
            },
            Err(source) => Err(OpenError::Listen { address, source }),
        }
    }

    fn adopt(protocol: Protocol, socket: OwnedFd) -> io::Result<Self> {
        let address = inet::local_address(&socket)?;
        Ok(Self {
            socket,
            address,
            protocol,
        })
    }

    fn preferred(
        protocol: Protocol,
        address: SocketAddr,
        port: Option<u16>,
        ports: &Ports,
    ) -> Option<Self> {
        let port = port.filter(|port| *port != 0 && ports.suits(*port))?;
        Self::at(protocol, SocketAddr::new(address.ip(), port)).ok()
    }

    fn any(protocol: Protocol, address: SocketAddr, ports: &mut Ports) -> io::Result<Self> {
        if ports.range().is_none() {
            return Self::chosen_by_kernel(protocol, address, ports);
        }
        for port in ports.candidates() {
            match Self::at(protocol, SocketAddr::new(address.ip(), port)) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                result => return result,
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    fn chosen_by_kernel(
        protocol: Protocol,
        address: SocketAddr,
        ports: &Ports,
    ) -> io::Result<Self> {
        // Kept open meanwhile, or the kernel may choose the same again.
        let mut unsuitable = Vec::new();
        for _ in 0..CHOICES {
            let bound = Self::at(protocol, address)?;
            if ports.suits(bound.address.port()) {
                return Ok(bound);
            }
            unsuitable.push(bound);
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    fn at(protocol: Protocol, address: SocketAddr) -> io::Result<Self> {
        let socket = match protocol {
            Protocol::Udp => inet::bind_datagrams(address)?,
            Protocol::Tcp | Protocol::Sctp => inet::listen(address, KEEP_ALIVE)?,
        };
        Self::adopt(protocol, socket)
    }
}

thread_local! {
    /// For the next connection to an endpoint, by family. A client is only accepted when there is one,
    /// so that clients who were let in never lack a descriptor.
    static SPARE: RefCell<PerFamily<Option<OwnedFd>>> = RefCell::default();
}

/// Makes sure that this thread has a socket for the next connection to an endpoint.
///
/// # Errors
/// No descriptor is left.
pub(super) fn provide(family: Family) -> io::Result<()> {
    SPARE.with_borrow_mut(|spare| {
        if spare[family].is_none() {
            spare[family] = Some(stream(family)?);
        }
        Ok(())
    })
}

/// The socket that was provided, or a new one.
///
/// # Errors
/// No descriptor is left.
pub(super) fn provided(family: Family) -> io::Result<OwnedFd> {
    let spare = SPARE.with_borrow_mut(|spare| spare[family].take());
    spare.map_or_else(|| stream(family), Ok)
}

/// A socket for a connection to an endpoint.
pub(super) fn stream(family: Family) -> io::Result<OwnedFd> {
    inet::stream(kernel_family(family), KEEP_ALIVE)
}

/// Lets tasks of the current thread wait for a socket.
///
/// # Errors
/// No memory is left; the socket is closed.
#[expect(
    deprecated,
    reason = "an owned descriptor stays the same and open for as long as it is owned, which is \
              all that the caller of the new function has to promise"
)]
pub(super) fn wait_on<T: AsFd + AsRawFd>(socket: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(socket, interest)
}
