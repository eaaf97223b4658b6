//! Many datagrams with one system call, each with the address it arrived at.
#![expect(
    unsafe_code,
    reason = "system calls take pointers; each block says why its pointers are good"
)]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::from_mut;

use libc::{c_int, c_void, cmsghdr, in_pktinfo, in6_pktinfo, mmsghdr, sockaddr_storage};

use super::sys::{check, decode, encode, length_of};

/// Datagrams per system call.
const COUNT: libc::c_uint = 32;

/// The same for arrays.
pub const MOST: usize = COUNT as usize;

/// Longer than any datagram: 65,535 bytes are the most that an IP packet holds.
const ROOM: usize = 65_536;

/// Room for one piece of control data with the larger of the two kinds of address.
const CONTROL: usize = 64;

/// Aligned as control data must be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// An address of this machine at which a datagram arrived or from which it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Local {
    /// The address.
    pub ip: IpAddr,
    /// The interface; 0 lets routes decide.
    pub interface: u32,
}

/// What is known of a datagram besides its bytes.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    len: usize,
    peer: Option<SocketAddr>,
    local: Option<Local>,
}

/// A datagram that was received.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Its bytes, all of them.
    pub bytes: &'a [u8],
    /// Who sent it.
    pub peer: SocketAddr,
    /// Where it arrived, if the socket says so.
    pub local: Option<Local>,
}

/// Room for [`MOST`] datagrams. Memory that no datagram has filled yet costs nothing.
#[derive(Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    arrived: Vec<Arrived>,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            bytes: vec![0; MOST * ROOM],
            arrived: Vec::with_capacity(MOST),
        }
    }

    /// Replaces what is here by datagrams that have arrived; returns how many.
    ///
    /// # Errors
    /// `WouldBlock` when none has; on a connected socket also what its peer's machine reported.
    pub fn receive(&mut self, fd: &impl AsFd) -> io::Result<usize> {
        self.arrived.clear();
        // SAFETY: all zeros is an address without family.
        let mut names: [sockaddr_storage; MOST] = unsafe { zeroed() };
        let mut controls = [Control([0; CONTROL]); MOST];
        // SAFETY: all zeros is a part without bytes.
        let mut parts: [libc::iovec; MOST] = unsafe { zeroed() };
        // SAFETY: all zeros is a message without address, parts and control data.
        let mut headers: [mmsghdr; MOST] = unsafe { zeroed() };
        for (at, room) in self.bytes.chunks_exact_mut(ROOM).enumerate() {
            parts[at].iov_base = room.as_mut_ptr().cast::<c_void>();
            parts[at].iov_len = ROOM;
            let header = &mut headers[at].msg_hdr;
            header.msg_name = from_mut(&mut names[at]).cast();
            header.msg_namelen = length_of::<sockaddr_storage>();
            header.msg_iov = from_mut(&mut parts[at]);
            header.msg_iovlen = 1;
            header.msg_control = from_mut(&mut controls[at]).cast();
            header.msg_controllen = CONTROL as _;
        }
        let raw = fd.as_fd().as_raw_fd();
        // SAFETY: every header points to memory that outlives the call, with its true lengths.
        let received = unsafe {
            libc::recvmmsg(
                raw,
                headers.as_mut_ptr(),
                COUNT,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let received = check(received as isize)?.min(MOST);
        for at in 0..received {
            let header = &headers[at];
            self.arrived.push(Arrived {
                len: (header.msg_len as usize).min(ROOM),
                peer: decode(&names[at]).ok(),
                local: local_in(&controls[at], header.msg_hdr.msg_controllen as usize),
            });
        }
        Ok(received)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.arrived.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.arrived.is_empty()
    }

    /// One of them; `None` when there is no such one or its sender has no address.
    pub fn get(&self, at: usize) -> Option<Datagram<'_>> {
        let arrived = self.arrived.get(at)?;
        Some(Datagram {
            bytes: self.bytes.get(at * ROOM..at * ROOM + arrived.len)?,
            peer: arrived.peer?,
            local: arrived.local,
        })
    }

    /// The bytes of one of them.
    pub fn bytes(&self, at: usize) -> &[u8] {
        let len = self.arrived.get(at).map_or(0, |arrived| arrived.len);
        self.bytes.get(at * ROOM..at * ROOM + len).unwrap_or(&[])
    }

    /// Sends some of them, all to the same peer and from the same address; without `to`, to whom the
    /// socket is connected. Returns how many were sent.
    ///
    /// # Errors
    /// None was sent: there is no room, or the peer's machine had reported something.
    pub fn send(
        &self,
        fd: &impl AsFd,
        which: Range<usize>,
        to: Option<(SocketAddr, Option<Local>)>,
    ) -> io::Result<usize> {
        let which = which.start..which.end.min(self.len());
        if which.is_empty() {
            return Ok(0);
        }
        let mut name = to.map(|(peer, _)| encode(peer));
        let mut control = Control([0; CONTROL]);
        let control_len = to
            .and_then(|(_, local)| local)
            .map_or(0, |local| write_local(&mut control, local));
        // SAFETY: all zeros is a part without bytes.
        let mut parts: [libc::iovec; MOST] = unsafe { zeroed() };
        // SAFETY: all zeros is a message without address, parts and control data.
        let mut headers: [mmsghdr; MOST] = unsafe { zeroed() };
        let count = which.len().min(MOST);
        for (at, datagram) in which.take(count).enumerate() {
            let bytes = self.bytes(datagram);
            // The kernel only reads them; the type has no const.
            parts[at].iov_base = bytes.as_ptr().cast_mut().cast::<c_void>();
            parts[at].iov_len = bytes.len();
            let header = &mut headers[at].msg_hdr;
            if let Some((storage, len)) = &mut name {
                header.msg_name = from_mut(storage).cast();
                header.msg_namelen = *len;
            }
            header.msg_iov = from_mut(&mut parts[at]);
            header.msg_iovlen = 1;
            if control_len > 0 {
                header.msg_control = from_mut(&mut control).cast();
                header.msg_controllen = control_len as _;
            }
        }
        let raw = fd.as_fd().as_raw_fd();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let count = libc::c_uint::try_from(count).unwrap_or(COUNT);
        // SAFETY: every header points to memory that outlives the call, with its true lengths.
        let sent = unsafe { libc::sendmmsg(raw, headers.as_mut_ptr(), count, flags) };
        check(sent as isize)
    }
}

/// The address in the control data of a datagram.
fn local_in(control: &Control, len: usize) -> Option<Local> {
    let bytes = control.0.get(..len.min(CONTROL))?;
    let head = size_of::<cmsghdr>();
    // SAFETY: as long as a header, aligned as one, and any bits are one.
    let header: cmsghdr = unsafe {
        bytes
            .get(..head)?
            .as_ptr()
            .cast::<cmsghdr>()
            .read_unaligned()
    };
    let data = bytes.get(head..)?;
    match (header.cmsg_level, header.cmsg_type) {
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            let data = data.get(..size_of::<in_pktinfo>())?;
            // SAFETY: as long as the type, and any bits are one.
            let info: in_pktinfo = unsafe { data.as_ptr().cast::<in_pktinfo>().read_unaligned() };
            Some(Local {
                ip: Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into(),
                // What this machine sent itself and rules led elsewhere arrives, by its own account, by
                // the interface that it was first going to leave by. Answers must not leave there.
                interface: 0,
            })
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            let data = data.get(..size_of::<in6_pktinfo>())?;
            // SAFETY: as long as the type, and any bits are one.
            let info: in6_pktinfo = unsafe { data.as_ptr().cast::<in6_pktinfo>().read_unaligned() };
            let ip = Ipv6Addr::from(info.ipi6_addr.s6_addr);
            Some(Local {
                ip: ip.into(),
                // As above; but an address of one link means nothing without the link.
                interface: if ip.is_unicast_link_local() {
                    info.ipi6_ifindex
                } else {
                    0
                },
            })
        }
        _ => None,
    }
}

/// Writes control data that sends from this address; returns its length.
fn write_local(control: &mut Control, local: Local) -> usize {
    match local.ip {
        IpAddr::V4(ip) => {
            let address = libc::in_addr {
                s_addr: u32::from_ne_bytes(ip.octets()),
            };
            let info = in_pktinfo {
                ipi_ifindex: c_int::try_from(local.interface).unwrap_or(0),
                ipi_spec_dst: address,
                ipi_addr: address,
            };
            write_control(control, libc::IPPROTO_IP, libc::IP_PKTINFO, info)
        }
        IpAddr::V6(ip) => {
            let info = in6_pktinfo {
                ipi6_addr: libc::in6_addr {
                    s6_addr: ip.octets(),
                },
                ipi6_ifindex: local.interface,
            };
            write_control(control, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info)
        }
    }
}

fn write_control<T>(control: &mut Control, level: c_int, kind: c_int, value: T) -> usize {
    let head = size_of::<cmsghdr>();
    // SAFETY: all zeros is a header.
    let mut header: cmsghdr = unsafe { zeroed() };
    header.cmsg_len = (head + size_of::<T>()) as _;
    header.cmsg_level = level;
    header.cmsg_type = kind;
    const { assert!(size_of::<cmsghdr>() + size_of::<T>() <= CONTROL) };
    // SAFETY: both fit, as was asserted, and the writes do not ask for alignment.
    unsafe {
        let start = control.0.as_mut_ptr();
        start.cast::<cmsghdr>().write_unaligned(header);
        start.add(head).cast::<T>().write_unaligned(value);
    }
    // Control data comes in units of a header's alignment.
    (head + size_of::<T>()).next_multiple_of(size_of::<usize>())
}
