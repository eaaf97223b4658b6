//! Netlink sockets, and the seam where something else can stand in for the kernel.
//!
//! A [`Socket`] is opened once and kept: closing one that has committed nftables changes waits for
//! the kernel to finish cleaning up, 8–20 ms on Linux 6.18.
//!
//! The kernel works on a request inside `send`, so its answers are there when that returns.
//! Waiting in `receive` is for what goes wrong, and for notifications.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

mod sys;

pub(crate) use sys::unshare_network;

/// Requests to the kernel and its answers. Real sockets do this; so does the
/// [recorder](crate::recorder).
pub trait Transport {
    /// Hands over the parts as one datagram. When this returns, the kernel has worked on it.
    ///
    /// # Errors
    /// Nothing was done.
    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()>;

    /// The next datagram from the kernel, waiting a while for it.
    ///
    /// # Errors
    /// `ENOBUFS`: at least one datagram was lost before the next one. `TimedOut`: none came.
    fn receive(&mut self) -> io::Result<&[u8]>;

    /// The next datagram that is there already.
    ///
    /// # Errors
    /// As [`Transport::receive`], but `WouldBlock` when there is none.
    fn receive_now(&mut self) -> io::Result<&[u8]>;

    /// The port by which the kernel knows us: the sender of changes we make.
    fn port(&self) -> u32;
}

/// The netlink protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes.
    Route,
    /// nftables, conntrack, ipset.
    Netfilter,
    /// Whatever has no protocol of its own: IPVS.
    Generic,
}

/// What was received on a socket that subscribes to notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// Nothing, for as long as was waited.
    Nothing,
    /// Messages.
    Datagram(&'a [u8]),
    /// More than could be kept until it was read; some of it is lost.
    Missed,
}

/// How long an answer may take that should be there already.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The kernel splits dumps into pieces of at most 32 KiB; single messages may be longer.
const RECEIVE_BUFFER: usize = 256 * 1024;

/// Limits, not allocations. A batch is one datagram however large it is, and what is not read yet
/// must not be lost.
const SEND_LIMIT: i32 = 256 * 1024 * 1024;
const RECEIVE_LIMIT: i32 = 16 * 1024 * 1024;

/// A netlink socket.
pub struct Socket {
    fd: OwnedFd,
    port: u32,
    buffer: Box<[u8]>,
}

impl Socket {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The error of the kernel; `Unsupported` if it does not speak the protocol.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        let opened = sys::open(match protocol {
            Protocol::Route => libc::NETLINK_ROUTE,
            Protocol::Netfilter => libc::NETLINK_NETFILTER,
            Protocol::Generic => libc::NETLINK_GENERIC,
        });
        let fd = opened.map_err(|error| match error.raw_os_error() {
            Some(libc::EPROTONOSUPPORT) => io::Error::new(io::ErrorKind::Unsupported, error),
            _ => error,
        })?;
        set_limit(&fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_LIMIT)?;
        set_limit(&fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECEIVE_LIMIT)?;
        // Errors then say where and why, and do not repeat the request.
        sys::set_option(&fd, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1)?;
        sys::set_option(&fd, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
        sys::set_timeout(&fd, TIMEOUT)?;
        let port = sys::port(&fd)?;
        Ok(Self {
            fd,
            port,
            buffer: vec![0; RECEIVE_BUFFER].into(),
        })
    }

    /// Subscribes to the notifications of this multicast group.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn join(&self, group: u32) -> io::Result<()> {
        let group = i32::try_from(group).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        sys::set_option(
            &self.fd,
            libc::SOL_NETLINK,
            libc::NETLINK_ADD_MEMBERSHIP,
            group,
        )
    }

    /// Drops notifications of changes that sockets with these ports asked for, before they wake
    /// anybody. The kernel puts only changes of one sender into a datagram.
    ///
    /// # Errors
    /// The error of the kernel; there is room for some hundred ports.
    pub fn ignore_senders(&self, ports: &[u32]) -> io::Result<()> {
        sys::drop_messages_of(&self.fd, ports)
    }

    /// Waits for a notification, for at most this time.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn listen(&mut self, timeout: Duration) -> io::Result<Received<'_>> {
        if !self.wait(timeout)? {
            return Ok(Received::Nothing);
        }
        match self.receive_one(false) {
            Ok(datagram) => Ok(Received::Datagram(datagram)),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(Received::Missed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Waits until something can be received, for at most this time. Returns whether it can.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        match sys::wait(&self.fd, timeout) {
            // A signal is as good as the end of the time: callers wait again.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            result => result,
        }
    }

    fn receive_one(&mut self, wait: bool) -> io::Result<&[u8]> {
        let arrived = loop {
            match sys::receive(&self.fd, &mut self.buffer, wait) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Any process may send to our port; only the kernel's word counts.
                Ok(arrived) if arrived.sender != 0 => {}
                result => break result?,
            }
        };
        if arrived.truncated {
            // As if it had not come at all: the rest of it is gone.
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        Ok(&self.buffer[..arrived.len])
    }
}

impl Transport for Socket {
    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        loop {
            match sys::send(&self.fd, &slices) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop),
            }
        }
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        self.receive_one(true).map_err(|error| {
            if error.kind() == io::ErrorKind::WouldBlock {
                io::ErrorKind::TimedOut.into()
            } else {
                error
            }
        })
    }

    fn receive_now(&mut self) -> io::Result<&[u8]> {
        self.receive_one(false)
    }

    fn port(&self) -> u32 {
        self.port
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("fd", &self.fd)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Raises a limit: beyond what administrators allow to all if we may, else as far as they allow.
fn set_limit(fd: &OwnedFd, forced: i32, polite: i32, limit: i32) -> io::Result<()> {
    sys::set_option(fd, libc::SOL_SOCKET, forced, limit)
        .or_else(|_| sys::set_option(fd, libc::SOL_SOCKET, polite, limit))
}
