//! Notices when a change is in the kernel.
//!
//! In mode nftables the kernel notifies listeners of what was committed, and the address of
//! a changed endpoint occurs nowhere else, so its four bytes in a message are the arrival. In
//! other modes a client connects to the changed Service until the new endpoint answers, which
//! takes as many tries as balancing wants.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::lane::{Lane, TRY, reach};
use super::latency_log::LatencyLog;
use super::load::{FRESH, address_of, cluster_ip};
use crate::os;

/// The multicast group of nftables, as a bit.
const GROUP: u32 = 1 << 6;
/// Room for the notifications of a large transaction.
const ROOM: usize = 256 << 20;
/// How long a thread sleeps before it looks whether it should end.
const NAP: Duration = Duration::from_millis(50);

/// Watches for changes and logs their arrival.
pub struct Arrivals {
    log: Arc<Mutex<LatencyLog>>,
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Arrivals {
    pub fn watch(lane: &Lane, mode: &str) -> Result<Self> {
        let log = Arc::new(Mutex::new(LatencyLog::default()));
        let ended = Arc::new(AtomicBool::new(false));
        let (notes, ending) = (Arc::clone(&log), Arc::clone(&ended));
        let thread = if mode == "nftables" {
            let ear = lane.node.run(listen)??;
            std::thread::spawn(move || receive(&ear, &notes, &ending))
        } else {
            let client = lane.client.duplicate()?;
            std::thread::spawn(move || client.run(|| poll(&notes, &ending)))
        };
        Ok(Self { log, ended, thread })
    }

    pub fn log(&self) -> MutexGuard<'_, LatencyLog> {
        lock(&self.log)
    }

    /// The log itself, for others who write into it.
    pub fn share(&self) -> Arc<Mutex<LatencyLog>> {
        Arc::clone(&self.log)
    }

    /// Ends watching and returns what was written down.
    pub fn end(self) -> Result<LatencyLog> {
        self.ended.store(true, Ordering::Relaxed);
        let result = self.thread.join();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(std::mem::take(&mut *lock(&self.log)))
    }
}

/// A panic elsewhere ends the race in any case.
pub fn lock(log: &Mutex<LatencyLog>) -> MutexGuard<'_, LatencyLog> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket that receives all changes of nftables in the network of the calling thread.
pub fn listen() -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let ear = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        flags,
        SockProtocol::NetlinkNetFilter,
    )?;
    setsockopt(&ear, sockopt::RcvBufForce, &ROOM)?;
    let nap = TimeVal::new(0, i64::from(NAP.subsec_micros()));
    setsockopt(&ear, sockopt::ReceiveTimeout, &nap)?;
    bind(ear.as_raw_fd(), &NetlinkAddr::new(0, GROUP)).context("cannot listen to nftables")?;
    Ok(ear)
}

/// The next message, if there is one soon.
pub fn next<'a>(ear: &OwnedFd, room: &'a mut [u8]) -> Result<Option<&'a [u8]>> {
    match recv(ear.as_raw_fd(), room, MsgFlags::empty()) {
        Ok(length) => Ok(Some(&room[..length])),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
        Err(error) => Err(error).context("messages of nftables were lost"),
    }
}

fn receive(ear: &OwnedFd, log: &Mutex<LatencyLog>, ended: &AtomicBool) -> Result<()> {
    let mut room = vec![0; 1 << 16];
    while !ended.load(Ordering::Relaxed) {
        if let Some(message) = next(ear, &mut room)? {
            let now = os::now();
            let mut log = lock(log);
            for number in fresh_in(message) {
                log.arrive(number, now);
            }
        }
    }
    Ok(())
}

/// Numbers of changed endpoints whose address occurs in a message.
fn fresh_in(message: &[u8]) -> impl Iterator<Item = u32> {
    // In a message everything begins at a multiple of four bytes, but not inside of names.
    let words = message.windows(4).filter(|word| word[0] == 10);
    words.filter_map(|word| {
        let address = u32::from_be_bytes(word.try_into().ok()?);
        address.checked_sub(FRESH)
    })
}

/// How many objects of nftables a datagram has: everything but new generations, of which
/// there is one per transaction.
pub fn objects(datagram: &[u8]) -> u32 {
    const NEW_GENERATION: u8 = 15;
    const HEADER: usize = 16;
    let mut rest = datagram;
    let mut count = 0;
    while rest.len() >= HEADER {
        let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]);
        let kind = u16::from_ne_bytes([rest[4], rest[5]]);
        count += u32::from(kind.to_le_bytes()[0] != NEW_GENERATION);
        let length = usize::try_from(length).unwrap_or(usize::MAX).max(HEADER);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    count
}

fn poll(log: &Mutex<LatencyLog>, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let waiting = lock(log).waiting();
        for (number, service) in waiting {
            if reach(cluster_ip(service), 80, TRY) == Some(address_of(number)) {
                lock(log).arrive(number, os::now());
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_anywhere_in_a_message() {
        let message = [1, 2, 10, 200, 1, 2, 0, 10, 3, 0, 0];
        let found: Vec<_> = fresh_in(&message)
            .filter(|&number| number < 1 << 19)
            .collect();
        assert_eq!(found, [258]);
    }

    #[test]
    fn generations_are_no_objects() {
        let message = |kind: u8| {
            let mut bytes = vec![0; 20];
            bytes[..4].copy_from_slice(&20_u32.to_ne_bytes());
            bytes[4..6].copy_from_slice(&u16::from_le_bytes([kind, 10]).to_ne_bytes());
            bytes
        };
        assert_eq!(objects(&[message(12), message(15), message(6)].concat()), 2);
        assert_eq!(objects(&message(12)[..9]), 0);
    }
}
