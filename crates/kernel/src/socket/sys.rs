//! The system calls of netlink. All raw memory access of the program is in this file,
//! [`crate::memory`] and [`crate::inet`].
//!
//! Every function hands the kernel memory that lives for the call and lengths taken from it; none
//! keeps a pointer. What they mean together is [`super`]'s business.
#![expect(
    unsafe_code,
    reason = "system calls take pointers; each block says why its pointers are good"
)]

use std::io::{self, IoSlice};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{from_mut, from_ref};
use std::time::Duration;

use libc::{c_int, c_void, sockaddr_nl, socklen_t};

/// A datagram that was put into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Bytes in the buffer.
    pub len: usize,
    /// Whether the buffer was too small for all of it.
    pub truncated: bool,
    /// Who sent it; 0 is the kernel.
    pub sender: u32,
}

/// Turns a return value below zero into the error it stands for.
fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// The length of a type, as socket calls want it.
fn length_of<T>() -> socklen_t {
    socklen_t::try_from(size_of::<T>()).expect("addresses and options are small")
}

/// Opens a netlink socket and lets the kernel choose its port.
pub fn open(protocol: c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) } as isize)?;
    let fd = c_int::try_from(fd).expect("file descriptors fit");
    // SAFETY: the kernel has just given us this descriptor and nobody else has it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let address = netlink_address();
    // SAFETY: the address outlives the call and the length is its own.
    let bound = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            from_ref(&address).cast(),
            length_of::<sockaddr_nl>(),
        )
    };
    check(bound as isize)?;
    Ok(fd)
}

/// The port that the kernel chose.
pub fn port(fd: &impl AsFd) -> io::Result<u32> {
    let mut address = netlink_address();
    let mut len = length_of::<sockaddr_nl>();
    // SAFETY: both outlive the call; the kernel writes at most `len` bytes.
    let result = unsafe {
        libc::getsockname(
            fd.as_fd().as_raw_fd(),
            from_mut(&mut address).cast(),
            from_mut(&mut len),
        )
    };
    check(result as isize)?;
    Ok(address.nl_pid)
}

/// Sets an option that is a number.
pub fn set_option(fd: &impl AsFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set_any(fd, level, name, &value)
}

/// Lets a receive that waits give up after this time.
pub fn set_timeout(fd: &impl AsFd, timeout: Duration) -> io::Result<()> {
    let seconds = libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX);
    let value = libc::timeval {
        tv_sec: seconds,
        tv_usec: timeout.subsec_micros().into(),
    };
    set_any(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &value)
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

/// Drops datagrams whose first message has one of these ports as its sender.
pub fn drop_messages_of(fd: &impl AsFd, ports: &[u32]) -> io::Result<()> {
    const SENDER: u32 = 12; // where a netlink header has it
    const ALL: u32 = u32::MAX;
    let instruction = |code: u32, jt, jf, k| libc::sock_filter {
        code: u16::try_from(code).expect("instructions of classic BPF are small"),
        jt,
        jf,
        k,
    };
    let sender = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let mut program = vec![instruction(sender, 0, 0, SENDER)];
    for port in ports {
        // The filter reads numbers in network order, whatever order the kernel wrote them in.
        let port = u32::from_be_bytes(port.to_ne_bytes());
        program.extend([
            instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, port),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        ]);
    }
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, ALL));
    let too_many = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(too_many)?,
        filter: program.as_mut_ptr(),
    };
    set_any(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

/// Sends the parts as one datagram to the kernel.
pub fn send(fd: &impl AsFd, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    // SAFETY: all zeros is a message without address, parts and control data.
    let mut message: libc::msghdr = unsafe { zeroed() };
    // The kernel only reads the parts; the type has no const. `IoSlice` is promised to be iovec.
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: `parts` and what they point to outlive the call.
    check(unsafe { libc::sendmsg(fd.as_fd().as_raw_fd(), from_ref(&message), 0) })
}

/// Receives one datagram; without `wait` only one that is there already.
pub fn receive(fd: &impl AsFd, into: &mut [u8], wait: bool) -> io::Result<Arrived> {
    let mut sender = netlink_address();
    let mut part = libc::iovec {
        iov_base: into.as_mut_ptr().cast::<c_void>(),
        iov_len: into.len(),
    };
    // SAFETY: all zeros is a message without address, parts and control data.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_name = from_mut(&mut sender).cast();
    message.msg_namelen = length_of::<sockaddr_nl>();
    message.msg_iov = from_mut(&mut part);
    message.msg_iovlen = 1;
    let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: the buffer, the address and the part outlive the call and have the lengths given.
    let result = unsafe { libc::recvmsg(fd.as_fd().as_raw_fd(), from_mut(&mut message), flags) };
    let len = check(result)?;
    Ok(Arrived {
        len,
        truncated: message.msg_flags & libc::MSG_TRUNC != 0,
        sender: sender.nl_pid,
    })
}

/// Waits until something can be received, for at most this time. Returns whether it can.
pub fn wait(fd: &impl AsFd, timeout: Duration) -> io::Result<bool> {
    let mut watched = libc::pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let millis = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: one entry, which outlives the call.
    let ready = unsafe { libc::poll(from_mut(&mut watched), 1, millis) };
    Ok(check(ready as isize)? > 0)
}

/// Gives the calling thread a network namespace of its own.
pub fn unshare_network() -> io::Result<()> {
    // SAFETY: no pointers; only this thread's view of the network changes.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) } as isize).map(drop)
}

fn netlink_address() -> sockaddr_nl {
    // SAFETY: all zeros is an address: no port, no groups.
    let mut address: sockaddr_nl = unsafe { zeroed() };
    address.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).expect("a small constant");
    address
}
