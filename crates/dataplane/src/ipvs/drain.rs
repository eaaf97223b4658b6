//! Destinations that get no new connections, and when they are deleted.
//!
//! An endpoint that is listed but must not receive, most often because its pod shuts down, keeps
//! its open connections: its destination has weight 0 until they have ended. One that is listed
//! nowhere is not here: its address may belong to another pod any moment, so it is deleted at once.
//! That also bounds the wait: a pod that has ended leaves its slice.
//!
//! In: the time, and how many connections the kernel counts. Out: what to delete. Nothing is
//! remembered over a restart: destinations with weight 0 are found in the kernel.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ferrule_kernel::ipvs::ServerKey;

/// How often connections are counted.
const TICK: Duration = Duration::from_secs(5);

/// How long connections that are neither established nor forgotten keep a destination. Some of
/// them are just beginning, or closed by one side only; most have ended and are kept for two
/// minutes to catch stray packets.
pub const LINGER: Duration = Duration::from_secs(10);

/// One destination on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// It was closed just now; nothing was counted yet.
    Closed,
    /// It has established connections.
    Busy,
    /// It has none since then, but connections in other states.
    Lingering(Instant),
}

/// Connections of a destination as the kernel counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Established.
    pub active: u32,
    /// In all other states; all flows of UDP.
    pub inactive: u32,
}

impl Drain {
    /// The next state; `None` when the destination can be deleted.
    pub fn next(self, count: Count, now: Instant, linger: Duration) -> Option<Self> {
        if count.active > 0 {
            return Some(Self::Busy);
        }
        let since = match self {
            Self::Lingering(since) => since,
            Self::Closed | Self::Busy => now,
        };
        let over = count.inactive == 0 || now.duration_since(since) >= linger;
        (!over).then_some(Self::Lingering(since))
    }
}

/// All destinations on their way out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drains {
    by_server: BTreeMap<ServerKey, BTreeMap<SocketAddr, Drain>>,
    /// When connections are to be counted again; `None` at once.
    next: Option<Instant>,
}

impl Drains {
    /// The destinations of this virtual server that are closed now, and no others.
    pub fn set(&mut self, server: ServerKey, closed: impl IntoIterator<Item = SocketAddr>) {
        let mut former = self.by_server.remove(&server).unwrap_or_default();
        let mut new = false;
        let now: BTreeMap<_, _> = closed
            .into_iter()
            .map(|address| {
                let drain = former.remove(&address);
                new |= drain.is_none();
                (address, drain.unwrap_or(Drain::Closed))
            })
            .collect();
        if new {
            self.next = None;
        }
        if !now.is_empty() {
            self.by_server.insert(server, now);
        }
    }

    /// Keeps only those that are closed now; what is known of them stays known.
    pub fn replace(&mut self, closed: &[(ServerKey, SocketAddr)]) {
        let mut by_server: BTreeMap<ServerKey, Vec<SocketAddr>> = BTreeMap::new();
        for (server, address) in closed {
            by_server.entry(*server).or_default().push(*address);
        }
        self.by_server
            .retain(|server, _| by_server.contains_key(server));
        for (server, closed) in by_server {
            self.set(server, closed);
        }
    }

    /// Those of one virtual server.
    pub fn of(&self, server: &ServerKey) -> impl Iterator<Item = SocketAddr> {
        let drains = self.by_server.get(server).into_iter();
        drains.flat_map(|drains| drains.keys().copied())
    }

    /// Virtual servers whose connections are to be counted now.
    pub fn due(&self, now: Instant) -> Vec<ServerKey> {
        if self.next.is_some_and(|next| now < next) {
            return Vec::new();
        }
        self.by_server.keys().copied().collect()
    }

    /// Takes the counts of a virtual server. Returns destinations to delete; those without a count
    /// are gone already.
    pub fn count(
        &mut self,
        server: &ServerKey,
        counts: &BTreeMap<SocketAddr, Count>,
        now: Instant,
        linger: Duration,
    ) -> Vec<SocketAddr> {
        let mut over = Vec::new();
        let Some(drains) = self.by_server.get_mut(server) else {
            return over;
        };
        drains.retain(|address, drain| {
            let Some(count) = counts.get(address) else {
                return false;
            };
            let next = drain.next(*count, now, linger);
            match next {
                Some(next) => *drain = next,
                None => over.push(*address),
            }
            next.is_some()
        });
        if drains.is_empty() {
            self.by_server.remove(server);
        }
        over
    }

    /// Everything was counted; when it is next.
    pub fn counted(&mut self, now: Instant) -> Option<Instant> {
        self.next = (!self.by_server.is_empty()).then_some(now + TICK);
        self.next
    }

    /// When connections are to be counted; `None` if there is nothing to count.
    pub fn wake(&self, now: Instant) -> Option<Instant> {
        (!self.by_server.is_empty()).then(|| self.next.unwrap_or(now))
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "an Instant can only be made from the clock"
)]
mod tests {
    use super::*;

    fn count(active: u32, inactive: u32) -> Count {
        Count { active, inactive }
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn server() -> ServerKey {
        ServerKey {
            protocol: 6,
            address: [10, 96, 0, 1].into(),
            port: 80,
        }
    }

    fn pod(last: u8) -> SocketAddr {
        ([10, 1, 0, last], 8080).into()
    }

    #[test]
    fn ipvs_058_a_destination_without_connections_is_deleted_at_once() {
        let now = Instant::now();
        assert_eq!(Drain::Closed.next(count(0, 0), now, LINGER), None);
    }

    #[test]
    fn ipvs_060_a_destination_is_deleted_when_its_connections_have_ended() {
        let start = Instant::now();
        let busy = Drain::Closed.next(count(2, 5), start, LINGER).unwrap();
        assert_eq!(busy, Drain::Busy);
        let hours = start + Duration::from_hours(5);
        assert_eq!(busy.next(count(1, 0), hours, LINGER), Some(Drain::Busy));
        assert_eq!(busy.next(count(0, 0), hours, LINGER), None);
    }

    #[test]
    fn ended_connections_that_the_kernel_still_keeps_do_not_hold_a_destination_for_long() {
        let start = Instant::now();
        let lingering = Drain::Busy.next(count(0, 7), start, LINGER).unwrap();
        assert_eq!(lingering, Drain::Lingering(start));
        let later = lingering.next(count(0, 7), start + seconds(9), LINGER);
        assert_eq!(later, Some(lingering), "it counts from the beginning");
        let new = lingering.next(count(1, 7), start + seconds(9), LINGER);
        assert_eq!(new, Some(Drain::Busy), "one was still beginning");
        assert_eq!(lingering.next(count(0, 7), start + LINGER, LINGER), None);
        // Where a reused port would be sent to it all the same.
        assert_eq!(Drain::Closed.next(count(0, 7), start, Duration::ZERO), None);
    }

    #[test]
    fn what_drains_is_counted_at_once_and_then_every_few_seconds() {
        let start = Instant::now();
        let mut drains = Drains::default();
        assert_eq!(drains.wake(start), None);
        drains.set(server(), [pod(1), pod(2)]);
        assert_eq!(drains.wake(start), Some(start));
        assert_eq!(drains.due(start), [server()]);
        let counts = BTreeMap::from([(pod(1), count(1, 0)), (pod(2), count(0, 0))]);
        let over = drains.count(&server(), &counts, start, LINGER);
        assert_eq!(over, [pod(2)]);
        assert_eq!(drains.counted(start), Some(start + TICK));
        assert!(drains.due(start + seconds(1)).is_empty());
        // Another one is closed: it may have no connections.
        drains.set(server(), [pod(1), pod(3)]);
        assert_eq!(drains.due(start + seconds(1)), [server()]);
        // Somebody else deleted both.
        let over = drains.count(&server(), &BTreeMap::new(), start, LINGER);
        assert!(over.is_empty());
        assert_eq!(drains.counted(start), None);
        assert_eq!(drains, Drains::default());
    }

    #[test]
    fn what_is_open_again_drains_no_more() {
        let mut drains = Drains::default();
        drains.set(server(), [pod(1)]);
        drains.set(server(), []);
        assert_eq!(drains.of(&server()).count(), 0);
        drains.set(server(), [pod(1)]);
        drains.replace(&[]);
        assert_eq!(drains, Drains::default());
    }
}
