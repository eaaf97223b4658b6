//! Pipes that carry bytes from one socket to another without copying them.
#![expect(
    unsafe_code,
    reason = "system calls take pointers; each block says why its pointers are good"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::null_mut;

use libc::c_int;

use super::sys::{check, owned};

const HOW: libc::c_uint = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;

/// A pipe.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    size: usize,
}

impl Pipe {
    /// Makes one that holds this many bytes, or as many as this user may.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn open(size: usize) -> io::Result<Self> {
        let mut ends: [c_int; 2] = [0; 2];
        // SAFETY: room for the two numbers that the kernel writes.
        let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) };
        check(made as isize)?;
        let (read, write) = (owned(ends[0])?, owned(ends[1])?);
        let asked = c_int::try_from(size).unwrap_or(c_int::MAX);
        // Refused above the user's limit; the pipe then keeps the size it has.
        // SAFETY: no pointers.
        let _ = unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, asked) };
        // SAFETY: no pointers.
        let size = check(unsafe { libc::fcntl(write.as_raw_fd(), libc::F_GETPIPE_SZ) } as isize)?;
        Ok(Self { read, write, size })
    }

    /// How many bytes it can hold.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Moves up to `most` bytes from a socket into the pipe; 0 is the peer's end.
    ///
    /// # Errors
    /// `WouldBlock` when the socket has nothing or the pipe no room; `InvalidInput` when the kernel
    /// cannot do this with such a socket.
    pub fn fill(&self, from: &impl AsFd, most: usize) -> io::Result<usize> {
        splice(from, &self.write, most)
    }

    /// Moves up to `most` bytes from the pipe into a socket.
    ///
    /// # Errors
    /// As [`Pipe::fill`].
    pub fn drain(&self, into: &impl AsFd, most: usize) -> io::Result<usize> {
        splice(&self.read, into, most)
    }
}

fn splice(from: &impl AsFd, into: &impl AsFd, most: usize) -> io::Result<usize> {
    let (from, into) = (from.as_fd().as_raw_fd(), into.as_fd().as_raw_fd());
    // SAFETY: without offsets there are no pointers.
    check(unsafe { libc::splice(from, null_mut(), into, null_mut(), most, HOW) })
}
