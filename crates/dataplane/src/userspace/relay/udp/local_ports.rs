//! The local ports from which datagrams go to endpoints.
//!
//! A UDP socket whose port the kernel chose has that port alone on this machine: as many clients as
//! there are ports would take them from every program on the node. Here sockets share ports, no two
//! of those with the same endpoint, and there is a limit to how many ports are taken.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrule_core::model::{Family, PerFamily};
use ferrule_kernel::inet::{hold, limits};

use super::super::now as clock;
use crate::kernel_family;

/// Where the kernel does not say how many there are: half of its default.
const USUAL: usize = 14_116;

/// A port is not used for the same endpoint again for this long, if there is another one: a late reply
/// would reach the wrong client.
const QUARANTINE: Duration = Duration::from_secs(10);

/// So many endpoints are never looked at.
const FEW: usize = 64;

/// Of the ports that may be taken, one in so many is for clients that come before others are gone.
const SPARE: usize = 16;

/// Ports that were taken, and which endpoints are sent to from them.
#[derive(Debug)]
pub struct LocalPorts {
    /// In each family.
    most: usize,
    /// In both.
    taken: AtomicUsize,
    /// How many endpoints there may be before those that nobody uses are looked for.
    forget_at: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    taken: PerFamily<Vec<Shared>>,
    endpoints: HashMap<SocketAddr, Used>,
}

/// A port that sockets share, and what keeps it for them.
#[derive(Debug)]
struct Shared {
    port: u16,
    _held: OwnedFd,
}

/// Ports that one endpoint is sent to from, by their place among those taken.
#[derive(Debug, Default)]
struct Used {
    count: usize,
    /// Places up to here have been used at some time.
    next: usize,
    /// Those of them that are free again, and since when.
    free: VecDeque<(usize, Instant)>,
}

impl Used {
    /// Nobody uses it, and nobody has lately.
    fn is_forgotten(&self, now: Instant) -> bool {
        let last = self.free.back();
        let rested =
            last.is_none_or(|(_, since)| now.saturating_duration_since(*since) >= QUARANTINE);
        self.count == 0 && rested
    }

    /// A place that nobody uses.
    fn place(&mut self, most: usize, now: Instant) -> Option<usize> {
        let rested = |&(_, since): &(usize, Instant)| {
            self.next >= most || now.saturating_duration_since(since) >= QUARANTINE
        };
        if self.free.front().is_some_and(rested) {
            return self.free.pop_front().map(|(place, _)| place);
        }
        (self.next < most).then_some(self.next)
    }
}

/// A port for one socket, until this is dropped.
#[derive(Debug)]
pub struct LocalPort {
    ports: Arc<LocalPorts>,
    endpoint: SocketAddr,
    place: usize,
    pub port: u16,
    /// There are few others left for this endpoint.
    pub is_one_of_the_last: bool,
}

impl LocalPorts {
    /// At most so many; otherwise half of those from which the kernel chooses.
    pub fn new(most: Option<usize>) -> Arc<Self> {
        let half = || limits::local_ports().map_or(USUAL, |ports| ports / 2);
        Arc::new(Self {
            most: most.unwrap_or_else(half).max(1),
            taken: AtomicUsize::new(0),
            forget_at: AtomicUsize::new(FEW),
            inner: Mutex::default(),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A port from which no other socket sends to this endpoint.
    ///
    /// # Errors
    /// `AddrNotAvailable`: all are used for it.
    pub fn take(self: &Arc<Self>, endpoint: SocketAddr, now: Instant) -> io::Result<LocalPort> {
        let family = Family::of(endpoint.ip());
        let Inner { taken, endpoints } = &mut *self.inner();
        let taken = &mut taken[family];
        if endpoints.len() >= self.forget_at.load(Ordering::Relaxed) {
            endpoints.retain(|_, used| !used.is_forgotten(now));
            let many = (endpoints.len() * 2).max(FEW);
            self.forget_at.store(many, Ordering::Relaxed);
        }
        let used = endpoints.entry(endpoint).or_default();
        let Some(place) = used.place(self.most, now) else {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        };
        if place == taken.len() {
            match hold::shared_udp(kernel_family(family)) {
                Ok((held, port)) => {
                    taken.push(Shared { port, _held: held });
                    self.taken.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        used.next = used.next.max(place + 1);
        used.count += 1;
        Ok(LocalPort {
            ports: Arc::clone(self),
            endpoint,
            place,
            port: taken[place].port,
            is_one_of_the_last: used.count > self.most - self.most.div_ceil(SPARE),
        })
    }

    /// Ports that are taken: each costs a descriptor.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Drop for LocalPort {
    fn drop(&mut self) {
        let endpoints = &mut self.ports.inner().endpoints;
        if let Some(used) = endpoints.get_mut(&self.endpoint) {
            used.count -= 1;
            used.free.push_back((self.place, clock()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[test]
    fn endpoints_share_ports_and_sockets_with_one_endpoint_do_not() {
        let (ports, now) = (LocalPorts::new(Some(2)), clock());
        let first = ports.take(endpoint(1), now).unwrap();
        let second = ports.take(endpoint(1), now).unwrap();
        assert_ne!(first.port, second.port);
        let full = ports.take(endpoint(1), now).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::AddrNotAvailable);
        let other = ports.take(endpoint(2), now).unwrap();
        assert_eq!((other.port, ports.taken()), (first.port, 2));
        let port = second.port;
        drop(second);
        assert_eq!(ports.take(endpoint(1), now).unwrap().port, port);
    }

    #[test]
    fn a_port_rests_before_its_endpoint_is_sent_to_from_it_again() {
        let (ports, now) = (LocalPorts::new(Some(40)), clock());
        let first = ports.take(endpoint(1), now).unwrap().port;
        let second = ports.take(endpoint(1), now).unwrap().port;
        assert_ne!(first, second);
        let later = clock() + QUARANTINE;
        assert_eq!(ports.take(endpoint(1), later).unwrap().port, first);
    }

    #[test]
    fn the_last_ports_are_known_as_such_and_endpoints_are_forgotten() {
        let (ports, now) = (LocalPorts::new(Some(32)), clock());
        let take = |endpoint, now| ports.take(endpoint, now).unwrap();
        let taken: Vec<_> = (0..32).map(|_| take(endpoint(1), now)).collect();
        let last: Vec<_> = taken.iter().map(|port| port.is_one_of_the_last).collect();
        assert_eq!((last[29], last[30], last[31]), (false, true, true));
        for number in 2..1_000 {
            drop(take(endpoint(number), now));
        }
        for number in 1_000..2_000 {
            drop(take(endpoint(number), clock() + 2 * QUARANTINE));
        }
        let known = ports.inner().endpoints.len();
        assert!(known <= FEW, "{known}");
    }
}
