//! Passes over endpoints that fail again and again, for a while.
//!
//! An endpoint that answers is asked; one that failed [`ENOUGH`] times in a row is left alone for
//! [`FIRST`], then tried once more, and left alone for twice as long if that fails too. At most half
//! of a pool is passed over at any time: if more fail, the fault is more likely elsewhere.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Failures in a row.
const ENOUGH: u32 = 3;

/// How long an endpoint is passed over at first.
const FIRST: Duration = Duration::from_secs(5);

/// And at most.
const LONGEST: Duration = Duration::from_secs(80);

/// Endpoints with failures. Those without are not here.
#[derive(Debug, Default)]
pub(super) struct Outliers(HashMap<SocketAddr, Record>);

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    failures: u32,
    until: Option<Instant>,
}

impl Outliers {
    /// Whether this endpoint is to be passed over now.
    pub(super) fn passes_over(&self, endpoint: &SocketAddr, now: Instant) -> bool {
        !self.0.is_empty()
            && self
                .0
                .get(endpoint)
                .is_some_and(|record| record.is_out(now))
    }

    /// It answered.
    pub(super) fn succeeded(&mut self, endpoint: &SocketAddr) {
        if !self.0.is_empty() {
            self.0.remove(endpoint);
        }
    }

    /// It did not; the smallest pool it is in has so many.
    pub(super) fn failed(&mut self, endpoint: SocketAddr, pool: usize, now: Instant) {
        let ejected = self.ejected(now);
        let record = self.0.entry(endpoint).or_default();
        record.failures = record.failures.saturating_add(1);
        if record.failures >= ENOUGH && !record.is_out(now) && ejected < pool / 2 {
            let doublings = (record.failures - ENOUGH).min(8);
            let time = FIRST.saturating_mul(1 << doublings).min(LONGEST);
            record.until = Some(now + time);
        }
    }

    /// How many are passed over now.
    pub(super) fn ejected(&self, now: Instant) -> usize {
        let records = self.0.values();
        records.filter(|record| record.is_out(now)).count()
    }

    /// Forgets the others.
    pub(super) fn retain(&mut self, keep: impl Fn(&SocketAddr) -> bool) {
        self.0.retain(|endpoint, _| keep(endpoint));
    }
}

impl Record {
    fn is_out(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 80))
    }

    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    fn start() -> Instant {
        Instant::now()
    }

    #[test]
    fn each_failure_in_vain_doubles_the_time_and_a_success_forgets_all() {
        let (mut outliers, mut now) = (Outliers::default(), start());
        for _ in 0..ENOUGH - 1 {
            outliers.failed(endpoint(), 4, now);
        }
        assert!(!outliers.passes_over(&endpoint(), now));
        for seconds in [5, 10, 20, 40, 80, 80] {
            outliers.failed(endpoint(), 4, now);
            now += Duration::from_millis(seconds * 1000 - 1);
            assert!(outliers.passes_over(&endpoint(), now));
            now += Duration::from_millis(1);
            assert!(!outliers.passes_over(&endpoint(), now));
        }
        outliers.succeeded(&endpoint());
        outliers.failed(endpoint(), 4, now);
        assert!(!outliers.passes_over(&endpoint(), now));
    }
}
