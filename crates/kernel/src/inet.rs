//! TCP and UDP sockets, as a program needs them that stands between two of them.
//!
//! Everything here is non-blocking and closes on exec. A socket is a plain [`OwnedFd`]: waiting for
//! it is its owner's business. [`pipe`] moves bytes between sockets without copying them,
//! [`datagrams`] receives and sends many datagrams with one system call.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use libc::c_int;

use crate::Family;

pub mod datagrams;
pub mod hold;
pub mod limits;
pub mod pipe;
mod sys;

/// Connections that wait to be accepted; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: c_int = 65_535;

/// `SO_ORIGINAL_DST` and `IP6T_SO_ORIGINAL_DST`: the same number in both families.
const ORIGINAL_DESTINATION: c_int = 80;

/// What is set on a TCP socket, and what sockets accepted from it inherit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence after which the peer is asked whether it is still there.
    pub idle: Duration,
}

/// Listens for TCP connections. Accepted sockets inherit `TCP_NODELAY` and keep-alive from here, so
/// that they need no system calls of their own. Port 0 lets the kernel choose.
///
/// # Errors
/// The address is in use, is not ours, or no descriptor is left.
pub fn listen(address: SocketAddr, keep_alive: KeepAlive) -> io::Result<OwnedFd> {
    let fd = bound(address, libc::SOCK_STREAM, libc::IPPROTO_TCP)?;
    stream_options(&fd, keep_alive)?;
    sys::listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// A UDP socket that says of each datagram at which address it arrived.
///
/// # Errors
/// As [`listen`].
pub fn bind_datagrams(address: SocketAddr) -> io::Result<OwnedFd> {
    let fd = bound(address, libc::SOCK_DGRAM, libc::IPPROTO_UDP)?;
    match address {
        SocketAddr::V4(_) => sys::set_option(&fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?,
        SocketAddr::V6(_) => sys::set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?,
    }
    Ok(fd)
}

fn bound(address: SocketAddr, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    let family = family_of(address);
    let fd = sys::socket(family, kind, protocol)?;
    if family == Family::V6 {
        // Otherwise the wildcard would take the other family's port as well.
        sys::set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
    }
    if kind == libc::SOCK_STREAM {
        // For UDP this would let a second process take the port.
        sys::set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    }
    sys::bind(&fd, address)?;
    Ok(fd)
}

fn stream_options(fd: &impl AsFd, keep_alive: KeepAlive) -> io::Result<()> {
    let seconds = c_int::try_from(keep_alive.idle.as_secs().max(1)).unwrap_or(c_int::MAX);
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds)?;
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds)
}

/// A TCP socket that is not connected yet.
///
/// # Errors
/// No descriptor is left.
pub fn stream(family: Family, keep_alive: KeepAlive) -> io::Result<OwnedFd> {
    let fd = sys::socket(family, libc::SOCK_STREAM, libc::IPPROTO_TCP)?;
    stream_options(&fd, keep_alive)?;
    Ok(fd)
}

/// Whether a socket may have an address that is not this machine's: see [`speak_as`].
///
/// # Errors
/// `PermissionDenied` without `CAP_NET_ADMIN`; otherwise what the kernel lacks.
pub fn may_speak_for_others(family: Family, mark: u32) -> io::Result<()> {
    let fd = sys::socket(family, libc::SOCK_STREAM, libc::IPPROTO_TCP)?;
    transparent(&fd, family, mark)
}

fn transparent(fd: &impl AsFd, family: Family, mark: u32) -> io::Result<()> {
    match family {
        Family::V4 => sys::set_option(fd, libc::SOL_IP, libc::IP_TRANSPARENT, 1)?,
        Family::V6 => sys::set_option(fd, libc::SOL_IPV6, libc::IPV6_TRANSPARENT, 1)?,
    }
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_MARK, mark.cast_signed())
}

/// Gives a TCP socket that is not connected yet the address of somebody else, with this mark on its
/// packets. Answers only come back to it if rules and routes see to that. The port is another one of
/// that address where a listening socket of this machine has it, and always if it is 0.
///
/// # Errors
/// What the kernel said; the socket is of no use then.
pub fn speak_as(fd: &impl AsFd, client: SocketAddr, mark: u32) -> io::Result<()> {
    transparent(fd, family_of(client), mark)?;
    // Connections of this address from the same port to different endpoints get along.
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    if client.port() != 0 {
        match sys::bind(fd, client) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            result => return result,
        }
    }
    // Chosen when it connects, as only then it is known which ones are free.
    sys::set_option(fd, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
    sys::bind(fd, SocketAddr::new(client.ip(), 0))
}

/// Begins to connect. The socket becomes writable when that succeeded or failed; [`take_error`] says
/// which.
///
/// # Errors
/// It failed at once: there is no route.
pub fn connect(fd: &impl AsFd, to: SocketAddr) -> io::Result<()> {
    match sys::connect(fd, to) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
        result => result,
    }
}

/// Begins to connect for a client that has sent something already. Where the peer is there at once these
/// bytes are sent; returns how many of them. The packet that completes the connection waits for them,
/// and goes with them.
///
/// # Errors
/// As [`connect`]; also when the peer has refused by now.
pub fn connect_and_send(fd: &impl AsFd, to: SocketAddr, bytes: &[u8]) -> io::Result<usize> {
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 0)?;
    connect(fd, to)?;
    match send(fd, bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}

/// Whether a connection that was begun is there already. Where the peer is on this machine it mostly is
/// when [`connect`] returns.
pub fn is_connected(fd: &impl AsFd) -> bool {
    sys::has_peer(fd)
}

/// A UDP socket that sends to and receives from one peer, from a port that was taken with
/// [`hold::shared_udp`]. Others may be connected from it at the same time, each to another peer: two
/// with the same peer would get each other's datagrams. What somebody else sent to the port before it
/// was connected may still be received.
///
/// # Errors
/// What the kernel said.
pub fn connect_datagrams(port: u16, to: SocketAddr) -> io::Result<OwnedFd> {
    let family = family_of(to);
    let fd = sys::socket(family, libc::SOCK_DGRAM, libc::IPPROTO_UDP)?;
    if family == Family::V6 {
        sys::set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
    }
    sys::set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    sys::bind(&fd, SocketAddr::new(unspecified(family), port))?;
    sys::connect(&fd, to)?;
    Ok(fd)
}

/// The next connection that was made to a listening socket, and who made it.
///
/// # Errors
/// `WouldBlock` when there is none; see also [`is_exhausted`].
pub fn accept(fd: &impl AsFd) -> io::Result<(OwnedFd, SocketAddr)> {
    sys::accept(fd)
}

/// The socket's own address.
///
/// # Errors
/// What the kernel said.
pub fn local_address(fd: &impl AsFd) -> io::Result<SocketAddr> {
    sys::local_address(fd)
}

/// The address and port that the client asked for, before rules of this machine redirected it.
///
/// # Errors
/// The connection is not tracked, or nothing here tracks connections: then it was not redirected.
pub fn original_destination(fd: &impl AsFd, family: Family) -> io::Result<SocketAddr> {
    let level = match family {
        Family::V4 => libc::SOL_IP,
        Family::V6 => libc::SOL_IPV6,
    };
    sys::address_option(fd, level, ORIGINAL_DESTINATION)
}

/// What went wrong since the last time this was asked; that also forgets it.
///
/// # Errors
/// What the kernel said about the question itself.
pub fn take_error(fd: &impl AsFd) -> io::Result<Option<io::Error>> {
    let number = sys::option(fd, libc::SOL_SOCKET, libc::SO_ERROR)?;
    Ok((number != 0).then(|| io::Error::from_raw_os_error(number)))
}

/// Makes closing this socket reset its connection: the peer sees an error, not an orderly end.
///
/// # Errors
/// What the kernel said.
pub fn reset_on_close(fd: &impl AsFd) -> io::Result<()> {
    sys::linger_not(fd)
}

/// Tells the peer that nothing more will be sent.
///
/// # Errors
/// `NotConnected` when the connection is gone.
pub fn shut_down_sending(fd: &impl AsFd) -> io::Result<()> {
    sys::shut_down_sending(fd)
}

/// Reads what is there; 0 bytes is the peer's end.
///
/// # Errors
/// `WouldBlock` when nothing is there.
pub fn receive(fd: &impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    sys::receive(fd, into)
}

/// Sends as much as there is room for.
///
/// # Errors
/// `WouldBlock` when there is no room.
pub fn send(fd: &impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    sys::send(fd, bytes)
}

/// Whether an operation failed for want of descriptors or memory, so that it is worth another try
/// later.
pub fn is_exhausted(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}

const fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

fn family_of(address: SocketAddr) -> Family {
    if address.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    }
}

#[cfg(test)]
mod tests;
