//! Descriptors that one process passes to another, each with a message, over a Unix socket.
//!
//! A message is its length in two bytes and then its bytes. A descriptor travels with the first of
//! them, and the kernel never joins the bytes of two descriptors in one read.
#![expect(
    unsafe_code,
    reason = "system calls take pointers; each block says why its pointers are good"
)]

use std::io::{self, ErrorKind, Read, Write};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr::{from_mut, null_mut};

use libc::{c_uint, cmsghdr, iovec, msghdr, socklen_t, ucred};

/// Room for a control message with a few descriptors, as it must be aligned.
#[repr(C)]
union Control {
    header: cmsghdr,
    bytes: [u8; 64],
}

/// The length of a message, before it.
const LENGTH: usize = 2;

/// Sends a message, and a descriptor with it. The descriptor stays open here.
///
/// # Errors
/// `InvalidInput` for a message of more than 65535 bytes, or what the kernel said.
pub fn send(stream: &UnixStream, bytes: &[u8], passed: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let length = u16::try_from(bytes.len()).map_err(|_| ErrorKind::InvalidInput)?;
    let mut first = length.to_ne_bytes();
    let sent = send_some(stream, &mut first, passed)?;
    let mut stream = stream;
    // A descriptor went with whatever was sent.
    stream.write_all(first.get(sent..).unwrap_or(&[]))?;
    stream.write_all(bytes)
}

/// Receives a message, and the descriptor that came with it; `None` at the end.
///
/// # Errors
/// What the kernel said; `UnexpectedEof` in the middle of a message.
pub fn receive(stream: &UnixStream) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut first = [0; LENGTH];
    let (received, passed) = receive_some(stream, &mut first)?;
    if received == 0 {
        return Ok(None);
    }
    let mut stream = stream;
    stream.read_exact(first.get_mut(received..).unwrap_or(&mut []))?;
    let mut bytes = vec![0; u16::from_ne_bytes(first).into()];
    stream.read_exact(&mut bytes)?;
    Ok(Some((bytes, passed)))
}

/// The user whose process is on the other side.
///
/// # Errors
/// What the kernel said.
pub fn peer_user(stream: &UnixStream) -> io::Result<u32> {
    let mut peer = ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    #[expect(clippy::cast_possible_truncation, reason = "it is twelve")]
    let mut len = size_of::<ucred>() as socklen_t;
    // SAFETY: both outlive the call; the kernel writes at most `len` bytes.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            from_mut(&mut peer).cast(),
            from_mut(&mut len),
        )
    };
    check(result as isize)?;
    Ok(peer.uid)
}

/// The user whose process this is.
pub fn own_user() -> u32 {
    // SAFETY: no pointers; it cannot fail.
    unsafe { libc::geteuid() }
}

fn send_some(
    stream: &UnixStream,
    bytes: &mut [u8],
    passed: Option<BorrowedFd<'_>>,
) -> io::Result<usize> {
    let mut control = Control { bytes: [0; 64] };
    let mut part = iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut message = message(&mut part, &mut control);
    if let Some(passed) = passed {
        // SAFETY: no pointers.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(ONE) } as _;
        // SAFETY: the message has room for one header with one descriptor, as its length says.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(ONE) as _;
            let data = libc::CMSG_DATA(header).cast::<[u8; size_of::<RawFd>()]>();
            data.write(passed.as_raw_fd().to_ne_bytes());
        }
    } else {
        message.msg_control = null_mut();
        message.msg_controllen = 0;
    }
    again(|| {
        // SAFETY: the message and all it points to outlive the call.
        unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) }
    })
}

fn receive_some(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = Control { bytes: [0; 64] };
    let mut part = iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut message = message(&mut part, &mut control);
    let received = again(|| {
        // SAFETY: the message and all it points to outlive the call; lengths are their own.
        unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) }
    })?;
    // SAFETY: the kernel has just written the control messages that the message describes.
    let mut passed = unsafe { descriptors(&message) };
    passed.truncate(1);
    Ok((received, passed.pop()))
}

/// A message of one part, with all of the room for control messages.
fn message(part: &mut iovec, control: &mut Control) -> msghdr {
    // SAFETY: all zeros is a message of nothing.
    let mut message: msghdr = unsafe { zeroed() };
    message.msg_iov = from_mut(part);
    message.msg_iovlen = 1;
    message.msg_control = from_mut(control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    message
}

/// The descriptors that came with a message. All of them are taken, so that none stays open unseen.
///
/// # Safety
/// The kernel wrote the control messages, and nobody has taken their descriptors.
unsafe fn descriptors(message: &msghdr) -> Vec<OwnedFd> {
    let mut passed = Vec::new();
    // SAFETY: the pointers walk the control messages within the length that the kernel wrote.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let head = &*header;
            if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
                let length = head.cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<[u8; size_of::<RawFd>()]>();
                for at in 0..length / size_of::<RawFd>() {
                    let number = RawFd::from_ne_bytes(data.add(at).read());
                    passed.push(OwnedFd::from_raw_fd(number));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    passed
}

/// The size of one descriptor.
#[expect(clippy::cast_possible_truncation, reason = "it is four")]
const ONE: c_uint = size_of::<RawFd>() as c_uint;

/// Repeats a call that a signal interrupted.
fn again(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match check(call()) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_listening_socket_goes_on_in_whoever_receives_it() {
        let (here, there) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        send(&here, b"first", Some(listener.as_fd())).unwrap();
        send(&here, b"", None).unwrap();
        drop((listener, here));
        let (bytes, passed) = receive(&there).unwrap().unwrap();
        assert_eq!(bytes, b"first");
        let listener = TcpListener::from(passed.unwrap());
        let client = TcpStream::connect(address).unwrap();
        let (_, peer) = listener.accept().unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        let (bytes, passed) = receive(&there).unwrap().unwrap();
        assert!(bytes.is_empty() && passed.is_none());
        assert!(receive(&there).unwrap().is_none(), "the end");
    }

    #[test]
    fn many_messages_keep_their_descriptors_apart() {
        let (here, there) = UnixStream::pair().unwrap();
        let sockets: Vec<_> = (0..50)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
            .collect();
        let ports: Vec<u16> = sockets
            .iter()
            .map(|socket| socket.local_addr().unwrap().port())
            .collect();
        let sender = std::thread::spawn(move || {
            for (socket, port) in sockets.iter().zip(&ports) {
                send(&here, &port.to_be_bytes(), Some(socket.as_fd())).unwrap();
            }
        });
        let mut seen = 0;
        while let Some((bytes, passed)) = receive(&there).unwrap() {
            let socket = TcpListener::from(passed.unwrap());
            let port = socket.local_addr().unwrap().port();
            assert_eq!(bytes, port.to_be_bytes());
            seen += 1;
        }
        sender.join().unwrap();
        assert_eq!(seen, 50);
    }

    #[test]
    fn a_message_that_breaks_off_is_an_error() {
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(&9_u16.to_ne_bytes()).unwrap();
        here.write_all(b"half").unwrap();
        drop(here);
        let error = receive(&there).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn the_other_side_is_known_by_its_user() {
        let (here, _there) = UnixStream::pair().unwrap();
        assert_eq!(peer_user(&here).unwrap(), own_user());
    }
}
