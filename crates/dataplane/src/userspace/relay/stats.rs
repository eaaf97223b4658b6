//! What a Service port has done so far.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::Class;

/// Upper bounds of the buckets of a [`Histogram`] in microseconds; one more takes the rest.
const BOUNDS: [u64; 12] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 250_000, 500_000, 1_000_000, 4_000_000,
];

/// Why a client was not connected, or an attempt to connect it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// An endpoint refused.
    Refused,
    /// An endpoint did not answer in time.
    TimedOut,
    /// There is no route to an endpoint.
    Unreachable,
    /// No descriptor, no memory or no local port was left.
    Exhausted,
    /// Something else.
    Other,
}

impl Failure {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Refused,
        Self::TimedOut,
        Self::Unreachable,
        Self::Exhausted,
        Self::Other,
    ];

    /// The word in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::TimedOut => "timeout",
            Self::Unreachable => "unreachable",
            Self::Exhausted => "exhausted",
            Self::Other => "other",
        }
    }

    /// What an error of a connection attempt means.
    pub(super) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => Self::Refused,
            io::ErrorKind::TimedOut => Self::TimedOut,
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => Self::Unreachable,
            io::ErrorKind::AddrNotAvailable => Self::Exhausted,
            _ if ferrule_kernel::inet::is_exhausted(error) => Self::Exhausted,
            _ => Self::Other,
        }
    }

    const fn index(self) -> usize {
        self as usize
    }
}

/// How long things took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Upper bounds, each with how many were not longer than it and longer than the one before.
    pub buckets: Vec<(Duration, u64)>,
    /// How many were longer than all bounds.
    pub longer: u64,
    /// All times together.
    pub sum: Duration,
}

impl Histogram {
    /// The upper bounds of its buckets.
    pub fn bounds() -> impl Iterator<Item = Duration> {
        BOUNDS.into_iter().map(Duration::from_micros)
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.longer + self.buckets.iter().map(|(_, count)| count).sum::<u64>()
    }
}

/// What one class of a Service port has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Clients accepted.
    pub accepted: u64,
    /// Clients reset at once: connected to the proxy port itself, or from a source that is not
    /// allowed.
    pub denied: u64,
}

/// What a Service port has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Which one it was of all Service ports that were opened.
    pub number: u64,
    /// By class.
    pub lanes: BTreeMap<Class, LaneStats>,
    /// Connections that are open, and those being made.
    pub open: usize,
    /// UDP associations.
    pub associations: usize,
    /// UDP associations made so far.
    pub associated: u64,
    /// Bytes from clients to endpoints.
    pub bytes_to_endpoints: u64,
    /// Bytes from endpoints to clients.
    pub bytes_to_clients: u64,
    /// Further attempts after a first one failed.
    pub retries: u64,
    /// Attempts that failed, by cause.
    pub failures: BTreeMap<Failure, u64>,
    /// Clients for whom there was no endpoint.
    pub no_endpoint: u64,
    /// Clients for whom every attempt failed.
    pub given_up: u64,
    /// How long it took to connect a client to an endpoint, failed attempts included.
    pub connect: Histogram,
    /// Connections to endpoints with the client's own address.
    pub transparent: u64,
    /// Datagrams that reached nobody.
    pub dropped_datagrams: u64,
    /// Associations that made room for others.
    pub evicted: u64,
    /// Connections reset because their endpoint was gone.
    pub expired: u64,
    /// Times at which new clients had to wait for descriptors or memory.
    pub pauses: u64,
    /// Endpoints that are passed over now because they fail.
    pub ejected: usize,
}

impl Stats {
    /// Whether any client has come.
    pub fn has_been_used(&self) -> bool {
        let accepted = self.lanes.values().any(|lane| lane.accepted > 0);
        accepted || self.associated > 0 || self.no_endpoint > 0
    }
}

/// Descriptors of clients and endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptors {
    /// In use.
    pub used: usize,
    /// There may be.
    pub most: usize,
}

/// The same while it is being counted.
#[derive(Debug, Default)]
pub(super) struct Counters {
    accepted: [AtomicU64; 2],
    denied: [AtomicU64; 2],
    pub(super) open: AtomicUsize,
    pub(super) associations: AtomicUsize,
    pub(super) associated: AtomicU64,
    pub(super) to_endpoints: AtomicU64,
    pub(super) to_clients: AtomicU64,
    pub(super) retries: AtomicU64,
    failures: [AtomicU64; Failure::ALL.len()],
    pub(super) no_endpoint: AtomicU64,
    pub(super) given_up: AtomicU64,
    connect: [AtomicU64; BOUNDS.len() + 1],
    connect_micros: AtomicU64,
    pub(super) transparent: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) pauses: AtomicU64,
}

/// Counts one.
pub(super) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

/// Counts many.
pub(super) fn add(counter: &AtomicU64, many: u64) {
    counter.fetch_add(many, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn accepted(&self, class: Class) {
        count(&self.accepted[class as usize]);
    }

    pub(super) fn denied(&self, class: Class) {
        count(&self.denied[class as usize]);
    }

    pub(super) fn failed(&self, failure: Failure) {
        count(&self.failures[failure.index()]);
    }

    pub(super) fn connected(&self, after: Duration) {
        let micros = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        count(&self.connect[bucket]);
        add(&self.connect_micros, micros);
    }

    /// Connections and associations.
    pub(super) fn in_use(&self) -> usize {
        self.open.load(Ordering::Relaxed) + self.associations.load(Ordering::Relaxed)
    }

    pub(super) fn snapshot(&self, number: u64, ejected: usize) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let lane = |class: Class| LaneStats {
            accepted: read(&self.accepted[class as usize]),
            denied: read(&self.denied[class as usize]),
        };
        Stats {
            number,
            lanes: Class::ALL.map(|class| (class, lane(class))).into(),
            open: self.open.load(Ordering::Relaxed),
            associations: self.associations.load(Ordering::Relaxed),
            associated: read(&self.associated),
            bytes_to_endpoints: read(&self.to_endpoints),
            bytes_to_clients: read(&self.to_clients),
            retries: read(&self.retries),
            failures: Failure::ALL
                .map(|failure| (failure, read(&self.failures[failure.index()])))
                .into(),
            no_endpoint: read(&self.no_endpoint),
            given_up: read(&self.given_up),
            connect: Histogram {
                buckets: Histogram::bounds()
                    .zip(self.connect.iter().map(read))
                    .collect(),
                longer: read(&self.connect[BOUNDS.len()]),
                sum: Duration::from_micros(read(&self.connect_micros)),
            },
            transparent: read(&self.transparent),
            dropped_datagrams: read(&self.dropped),
            evicted: read(&self.evicted),
            expired: read(&self.expired),
            pauses: read(&self.pauses),
            ejected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_in_the_first_bucket_that_is_not_shorter() {
        let counters = Counters::default();
        for micros in [1, 250, 251, 4_000_000, 4_000_001] {
            counters.connected(Duration::from_micros(micros));
        }
        let histogram = counters.snapshot(0, 0).connect;
        assert_eq!(histogram.buckets[0], (Duration::from_micros(250), 2));
        assert_eq!(histogram.buckets[1], (Duration::from_micros(500), 1));
        assert_eq!(histogram.buckets[11], (Duration::from_secs(4), 1));
        assert_eq!((histogram.longer, histogram.count()), (1, 5));
        assert_eq!(histogram.sum, Duration::from_micros(8_000_503));
    }
}
