//! How many descriptors this process may have.
#![expect(
    unsafe_code,
    reason = "system calls take pointers; each block says why its pointers are good"
)]

use std::io;
use std::ptr::{from_mut, from_ref};

use super::sys::check;

/// Raises the number of descriptors this process may have to the most it may ask for, and returns
/// that number.
///
/// # Errors
/// What the kernel said.
pub fn raise_descriptors() -> io::Result<usize> {
    let (soft, hard) = descriptors()?;
    if soft < hard {
        set_descriptors(hard, hard)?;
    }
    Ok(hard)
}

/// Lets this process have no more than this many descriptors.
///
/// # Errors
/// What the kernel said.
pub fn lower_descriptors(most: usize) -> io::Result<()> {
    set_descriptors(most, most)
}

/// What this process may have, and what it may ask for.
///
/// # Errors
/// What the kernel said.
pub fn descriptors() -> io::Result<(usize, usize)> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the value outlives the call.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, from_mut(&mut limit)) };
    check(result as isize)?;
    let number = |limit| usize::try_from(limit).unwrap_or(usize::MAX);
    Ok((number(limit.rlim_cur), number(limit.rlim_max)))
}

fn set_descriptors(soft: usize, hard: usize) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: soft as libc::rlim_t,
        rlim_max: hard as libc::rlim_t,
    };
    // SAFETY: the value outlives the call.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, from_ref(&limit)) };
    check(result as isize).map(drop)
}
