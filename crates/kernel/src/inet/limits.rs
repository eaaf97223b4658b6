//! How many descriptors this process may have, and how many ports there are to choose from.
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
        set(hard)?;
    }
    Ok(hard)
}

/// How many ports the kernel chooses from in this network namespace.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub fn local_ports() -> io::Result<usize> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?;
    let mut numbers = text.split_whitespace().map(str::parse::<usize>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(first)), Some(Ok(last))) if first <= last => Ok(last - first + 1),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
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

/// Lets this process have this many descriptors and ask for no more. More than it may ask for now
/// takes the rights of root.
///
/// # Errors
/// What the kernel said.
pub fn set(most: usize) -> io::Result<()> {
    let most = libc::rlim_t::try_from(most).unwrap_or(libc::RLIM_INFINITY);
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY: the value outlives the call.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, from_ref(&limit)) };
    check(result as isize).map(drop)
}
