//! Ports that are held: nobody else can bind them, and nothing is received on them.
#![expect(
    unsafe_code,
    reason = "system calls take pointers; each block says why its pointers are good"
)]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use super::{family_of, sys, unspecified};
use crate::Family;

/// Holds a TCP port. Connections to it are refused, as nobody listens.
///
/// # Errors
/// `AddrInUse`: it is taken.
pub fn tcp(address: SocketAddr) -> io::Result<OwnedFd> {
    held(address, libc::SOCK_STREAM, libc::IPPROTO_TCP)
}

/// Holds a UDP port. Datagrams from other machines are refused; those of this machine are lost.
///
/// # Errors
/// `AddrInUse`: it is taken.
pub fn udp(address: SocketAddr) -> io::Result<OwnedFd> {
    held(address, libc::SOCK_DGRAM, libc::IPPROTO_UDP)
}

/// Takes a free UDP port, which [`super::connect_datagrams`] may then use any number of times.
/// Nobody else gets it, unless they ask to share it.
///
/// # Errors
/// `AddrInUse`: none is free.
pub fn shared_udp(family: Family) -> io::Result<(OwnedFd, u16)> {
    let fd = udp(SocketAddr::new(unspecified(family), 0))?;
    // Only now: with it the kernel might choose a port that somebody shares.
    sys::set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    let port = sys::local_address(&fd)?.port();
    Ok((fd, port))
}

/// Without `SO_REUSEADDR`: who has it could take the port as long as nobody listens.
fn held(address: SocketAddr, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    let family = family_of(address);
    let fd = sys::socket(family, kind, protocol)?;
    if family == Family::V6 {
        // Otherwise the wildcard would take the other family's port as well.
        sys::set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
    }
    if kind == libc::SOCK_DGRAM {
        // A bound UDP socket receives. For conflicts a device counts only against other devices.
        bind_to_loopback(&fd)?;
    }
    sys::bind(&fd, address)?;
    Ok(fd)
}

fn bind_to_loopback(fd: &OwnedFd) -> io::Result<()> {
    const LOOPBACK: &[u8] = b"lo\0";
    let length = libc::socklen_t::try_from(LOOPBACK.len()).expect("it is short");
    // SAFETY: the name outlives the call and is as long as is said.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            LOOPBACK.as_ptr().cast(),
            length,
        )
    };
    sys::check(result as isize).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use ferrule_testbed::in_namespace;

    use super::*;

    #[test]
    fn a_held_port_cannot_be_taken_and_refuses() {
        in_namespace(|| {
            let any: SocketAddr = "0.0.0.0:30001".parse().unwrap();
            let here: SocketAddr = "127.0.0.1:30001".parse().unwrap();
            let held = (tcp(any).unwrap(), udp(any).unwrap());
            let in_use =
                |result: io::Result<()>| result.unwrap_err().kind() == ErrorKind::AddrInUse;
            for address in [any, here] {
                assert!(in_use(TcpListener::bind(address).map(drop)));
                assert!(in_use(UdpSocket::bind(address).map(drop)));
            }
            assert!(in_use(tcp(any).map(drop)) && in_use(udp(any).map(drop)));
            let refused = TcpStream::connect(here).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            drop(held);
            TcpListener::bind(any).unwrap();
            UdpSocket::bind(any).unwrap();
        });
    }
}
