//! The system calls of [`super`].
//!
//! Every function hands the kernel memory that lives for the call and lengths taken from it; none
//! keeps a pointer.
#![expect(
    unsafe_code,
    reason = "system calls take pointers; each block says why its pointers are good"
)]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{from_mut, from_ref};

use libc::{c_int, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::Family;

/// Flags of every socket here.
const FLAGS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

/// Turns a return value below zero into the error it stands for.
pub(super) fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// A descriptor that a system call returned.
pub(super) fn owned(result: c_int) -> io::Result<OwnedFd> {
    check(result as isize)?;
    // SAFETY: the kernel has just given us this descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// The length of a type, as socket calls want it.
pub(super) fn length_of<T>() -> socklen_t {
    socklen_t::try_from(size_of::<T>()).expect("addresses and options are small")
}

/// An address as the kernel wants it, and its length.
pub(super) fn encode(address: SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: all zeros is an address without family.
    let mut storage: sockaddr_storage = unsafe { zeroed() };
    let len = match address {
        SocketAddr::V4(v4) => {
            let raw = sockaddr_in {
                sin_family: family_number(Family::V4),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger than any address and aligned for all of them.
            unsafe { from_mut(&mut storage).cast::<sockaddr_in>().write(raw) };
            length_of::<sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let raw = sockaddr_in6 {
                sin6_family: family_number(Family::V6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { from_mut(&mut storage).cast::<sockaddr_in6>().write(raw) };
            length_of::<sockaddr_in6>()
        }
    };
    (storage, len)
}

/// An address that the kernel wrote.
pub(super) fn decode(storage: &sockaddr_storage) -> io::Result<SocketAddr> {
    if storage.ss_family == family_number(Family::V4) {
        // SAFETY: the storage is larger than any address and aligned for all of them; every
        // pattern of bits is an address.
        let raw: sockaddr_in = unsafe { from_ref(storage).cast::<sockaddr_in>().read() };
        let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
        Ok(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
    } else if storage.ss_family == family_number(Family::V6) {
        // SAFETY: as above.
        let raw: sockaddr_in6 = unsafe { from_ref(storage).cast::<sockaddr_in6>().read() };
        let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
        let port = u16::from_be(raw.sin6_port);
        Ok(SocketAddrV6::new(ip, port, 0, raw.sin6_scope_id).into())
    } else {
        Err(io::Error::from(io::ErrorKind::InvalidData))
    }
}

fn family_number(family: Family) -> libc::sa_family_t {
    family.number().into()
}

pub(super) fn socket(family: Family, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::socket(family.number().into(), kind | FLAGS, protocol) })
}

pub(super) fn bind(fd: &impl AsFd, address: SocketAddr) -> io::Result<()> {
    let (storage, len) = encode(address);
    // SAFETY: the address outlives the call and the length is its own.
    let result = unsafe { libc::bind(fd.as_fd().as_raw_fd(), from_ref(&storage).cast(), len) };
    check(result as isize).map(drop)
}

pub(super) fn connect(fd: &impl AsFd, address: SocketAddr) -> io::Result<()> {
    let (storage, len) = encode(address);
    // SAFETY: the address outlives the call and the length is its own.
    let result = unsafe { libc::connect(fd.as_fd().as_raw_fd(), from_ref(&storage).cast(), len) };
    check(result as isize).map(drop)
}

pub(super) fn listen(fd: &impl AsFd, backlog: c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::listen(fd.as_fd().as_raw_fd(), backlog) } as isize).map(drop)
}

pub(super) fn accept(fd: &impl AsFd) -> io::Result<(OwnedFd, SocketAddr)> {
    // SAFETY: all zeros is an address without family.
    let mut storage: sockaddr_storage = unsafe { zeroed() };
    let mut len = length_of::<sockaddr_storage>();
    // SAFETY: both outlive the call; the kernel writes at most `len` bytes.
    let accepted = owned(unsafe {
        libc::accept4(
            fd.as_fd().as_raw_fd(),
            from_mut(&mut storage).cast(),
            from_mut(&mut len),
            FLAGS,
        )
    })?;
    Ok((accepted, decode(&storage)?))
}

pub(super) fn local_address(fd: &impl AsFd) -> io::Result<SocketAddr> {
    // SAFETY: all zeros is an address without family.
    let mut storage: sockaddr_storage = unsafe { zeroed() };
    let mut len = length_of::<sockaddr_storage>();
    // SAFETY: both outlive the call; the kernel writes at most `len` bytes.
    let result = unsafe {
        libc::getsockname(
            fd.as_fd().as_raw_fd(),
            from_mut(&mut storage).cast(),
            from_mut(&mut len),
        )
    };
    check(result as isize)?;
    decode(&storage)
}

pub(super) fn has_peer(fd: &impl AsFd) -> bool {
    // SAFETY: all zeros is an address without family.
    let mut storage: sockaddr_storage = unsafe { zeroed() };
    let mut len = length_of::<sockaddr_storage>();
    // SAFETY: both outlive the call; the kernel writes at most `len` bytes.
    let result = unsafe {
        libc::getpeername(
            fd.as_fd().as_raw_fd(),
            from_mut(&mut storage).cast(),
            from_mut(&mut len),
        )
    };
    result == 0
}

/// Sets an option that is a number.
pub(super) fn set_option(
    fd: &impl AsFd,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    set_any(fd, level, name, &value)
}

fn set_any<T>(fd: &impl AsFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value outlives the call and the length is its own.
    let result = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            from_ref(value).cast(),
            length_of::<T>(),
        )
    };
    check(result as isize).map(drop)
}

/// An option that is a number.
pub(super) fn option(fd: &impl AsFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = length_of::<c_int>();
    // SAFETY: both outlive the call; the kernel writes at most `len` bytes.
    let result = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            from_mut(&mut value).cast(),
            from_mut(&mut len),
        )
    };
    check(result as isize)?;
    Ok(value)
}

/// An option that is an address.
pub(super) fn address_option(fd: &impl AsFd, level: c_int, name: c_int) -> io::Result<SocketAddr> {
    // SAFETY: all zeros is an address without family.
    let mut storage: sockaddr_storage = unsafe { zeroed() };
    let mut len = length_of::<sockaddr_storage>();
    // SAFETY: both outlive the call; the kernel writes at most `len` bytes.
    let result = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            from_mut(&mut storage).cast(),
            from_mut(&mut len),
        )
    };
    check(result as isize)?;
    decode(&storage)
}

/// Sets `SO_LINGER` to zero seconds.
pub(super) fn linger_not(fd: &impl AsFd) -> io::Result<()> {
    let value = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    set_any(fd, libc::SOL_SOCKET, libc::SO_LINGER, &value)
}

pub(super) fn shut_down_sending(fd: &impl AsFd) -> io::Result<()> {
    // SAFETY: no pointers.
    let result = unsafe { libc::shutdown(fd.as_fd().as_raw_fd(), libc::SHUT_WR) };
    check(result as isize).map(drop)
}

pub(super) fn receive(fd: &impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    let raw = fd.as_fd().as_raw_fd();
    // SAFETY: the buffer outlives the call and the length is its own.
    check(unsafe {
        libc::recv(
            raw,
            into.as_mut_ptr().cast(),
            into.len(),
            libc::MSG_DONTWAIT,
        )
    })
}

pub(super) fn send(fd: &impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    const QUIETLY: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let raw = fd.as_fd().as_raw_fd();
    // SAFETY: the bytes outlive the call and the length is their own.
    check(unsafe { libc::send(raw, bytes.as_ptr().cast(), bytes.len(), QUIETLY) })
}
