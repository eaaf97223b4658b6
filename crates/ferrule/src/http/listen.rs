//! Sockets that listen the way Go's do, and fail with Go's words.
//!
//! An unspecified address means every address of both families through one socket; people who
//! configure `0.0.0.0` rely on IPv6 being answered too. Service health ports are the exception:
//! each family has its own.

use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that may wait to be accepted; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Which addresses a socket may serve, in Go's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Both families when the address is unspecified, else the family of the address.
    Tcp,
    /// IPv4 alone.
    Tcp4,
    /// IPv6 alone.
    Tcp6,
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Tcp4 => "tcp4",
            Self::Tcp6 => "tcp6",
        })
    }
}

/// Nobody can connect: a socket could not be had, bound or opened.
#[derive(Debug, thiserror::Error)]
#[error("listen {network} {address}: {step}: {}", words(cause))]
pub struct ListenError {
    network: Network,
    address: SocketAddr,
    /// The system call that failed.
    step: &'static str,
    // Not called `source`: kube-proxy's text holds the cause, so it must not print twice.
    cause: io::Error,
}

impl ListenError {
    /// Another socket has the address.
    pub(super) fn is_in_use(&self) -> bool {
        self.cause.kind() == io::ErrorKind::AddrInUse
    }

    /// The socket listens, but the runtime could not take it.
    pub(super) const fn late(network: Network, address: SocketAddr, cause: io::Error) -> Self {
        Self {
            network,
            address,
            step: "accept",
            cause,
        }
    }
}

/// A socket that listens on `address`.
pub(super) fn listen(network: Network, address: SocketAddr) -> Result<Socket, ListenError> {
    let fail = |(step, cause)| ListenError {
        network,
        address,
        step,
        cause,
    };
    if network == Network::Tcp && address.ip().is_unspecified() {
        let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port()));
        match open(everywhere, false) {
            // The kernel has no IPv6; then the other family is all there is.
            Err((_, cause)) if lacks_family(&cause) => {
                let everywhere = SocketAddr::from(([0; 4], address.port()));
                return open(everywhere, false).map_err(fail);
            }
            result => return result.map_err(fail),
        }
    }
    open(address, network == Network::Tcp6).map_err(fail)
}

fn open(address: SocketAddr, only_v6: bool) -> Result<Socket, (&'static str, io::Error)> {
    let step = |name: &'static str| move |cause| (name, cause);
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )
    .map_err(step("socket"))?;
    if address.is_ipv6() {
        socket.set_only_v6(only_v6).map_err(step("setsockopt"))?;
    }
    // A restart must not wait for old connections to time out.
    socket.set_reuse_address(true).map_err(step("setsockopt"))?;
    socket.set_nonblocking(true).map_err(step("setnonblock"))?;
    socket.bind(&address.into()).map_err(step("bind"))?;
    socket.listen(BACKLOG).map_err(step("listen"))?;
    Ok(socket)
}

fn lacks_family(cause: &io::Error) -> bool {
    /// `EAFNOSUPPORT`: the kernel was built or started without IPv6.
    const NO_FAMILY: i32 = 97;
    cause.raw_os_error() == Some(NO_FAMILY) || cause.kind() == io::ErrorKind::AddrNotAvailable
}

/// The cause in Go's words: no capital, no number.
fn words(cause: &io::Error) -> String {
    match cause.kind() {
        // Spelled out because C libraries differ here.
        io::ErrorKind::AddrInUse => "address already in use".to_owned(),
        io::ErrorKind::AddrNotAvailable => "cannot assign requested address".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => {
            let text = cause.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            let mut rest = text.chars();
            rest.next().map_or_else(String::new, |first| {
                first.to_lowercase().chain(rest).collect()
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_in_gos_words() {
        let text = |errno| words(&io::Error::from_raw_os_error(errno));
        assert_eq!(text(98), "address already in use");
        assert_eq!(text(99), "cannot assign requested address");
        assert_eq!(text(13), "permission denied");
        assert_eq!(text(24), "too many open files");
    }

    #[test]
    fn an_address_that_is_not_ours_is_refused_by_name() {
        let error = listen(Network::Tcp4, "192.0.2.77:0".parse().unwrap()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "listen tcp4 192.0.2.77:0: bind: cannot assign requested address"
        );
    }
}
