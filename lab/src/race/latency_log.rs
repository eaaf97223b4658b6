//! The latency log of changes: when each was sent, and when it arrived.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Changes in the order in which they were sent. Their numbers need not begin with 0, but have no
/// gaps.
#[derive(Default)]
pub struct LatencyLog {
    first: u32,
    entries: Vec<Entry>,
    /// Changes of a Service that are still on their way, the oldest first.
    waiting: BTreeMap<u32, Vec<u32>>,
}

struct Entry {
    service: u32,
    sent: Instant,
    seen: Option<Instant>,
    arrived: Option<Instant>,
}

impl LatencyLog {
    /// Enters a change that is sent now.
    pub fn send(&mut self, number: u32, service: u32, now: Instant) {
        if self.entries.is_empty() {
            self.first = number;
        }
        self.entries.push(Entry {
            service,
            sent: now,
            seen: None,
            arrived: None,
        });
        self.waiting.entry(service).or_default().push(number);
    }

    /// A change arrived. Earlier ones of the same Service that did not are overtaken by it: they
    /// count as arrived too. One that is not in the log is not ours.
    pub fn arrive(&mut self, number: u32, now: Instant) {
        let Some(entry) = self.entry(number) else {
            return;
        };
        let service = entry.service;
        let Some(waiting) = self.waiting.get_mut(&service) else {
            return;
        };
        let Some(at) = waiting.iter().position(|&other| other == number) else {
            return;
        };
        let done: Vec<_> = waiting.drain(..=at).collect();
        if waiting.is_empty() {
            self.waiting.remove(&service);
        }
        for number in done {
            if let Some(entry) = self.entry(number) {
                entry.arrived = Some(now);
            }
        }
    }

    /// A bare watch of the API server received a change.
    pub fn see(&mut self, number: u32, now: Instant) {
        if let Some(entry) = self.entry(number) {
            entry.seen.get_or_insert(now);
        }
    }

    fn entry(&mut self, number: u32) -> Option<&mut Entry> {
        let at = number.checked_sub(self.first)?;
        self.entries.get_mut(usize::try_from(at).ok()?)
    }

    /// Changes on their way, each with its Service: the newest of every Service.
    pub fn waiting(&self) -> Vec<(u32, u32)> {
        let newest = |(&service, numbers): (&u32, &Vec<u32>)| Some((*numbers.last()?, service));
        self.waiting.iter().filter_map(newest).collect()
    }

    pub fn is_settled(&self) -> bool {
        self.waiting.is_empty()
    }

    /// From sending to arrival.
    pub fn lags(&self) -> Vec<Duration> {
        self.between(|entry| Some((entry.sent, entry.arrived?)))
    }

    /// From sending until a bare watch received it: the part of the API server.
    pub fn echoes(&self) -> Vec<Duration> {
        self.between(|entry| Some((entry.sent, entry.seen?)))
    }

    /// From when a bare watch received it to arrival: the program's own part, in seconds.
    /// Below zero when the program received it first.
    pub fn parts(&self) -> Vec<f64> {
        let part = |entry: &Entry| {
            let (seen, arrived) = (entry.seen?, entry.arrived?);
            let late = arrived.saturating_duration_since(seen).as_secs_f64();
            let early = seen.saturating_duration_since(arrived).as_secs_f64();
            Some(late - early)
        };
        self.entries.iter().filter_map(part).collect()
    }

    fn between(&self, moments: impl Fn(&Entry) -> Option<(Instant, Instant)>) -> Vec<Duration> {
        let span = |entry| {
            moments(entry).map(|(from, to): (Instant, Instant)| to.saturating_duration_since(from))
        };
        self.entries.iter().filter_map(span).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os;

    #[test]
    fn a_later_change_of_a_service_overtakes_earlier_ones() {
        let now = os::now();
        let at = |millis| now + Duration::from_millis(millis);
        let mut log = LatencyLog::default();
        log.send(10, 1, at(0));
        log.send(11, 2, at(1));
        log.send(12, 1, at(2));
        log.arrive(9, at(3));
        log.arrive(12, at(5));
        assert_eq!(log.waiting(), [(11, 2)]);
        log.arrive(10, at(9));
        log.arrive(11, at(9));
        assert!(log.is_settled());
        assert_eq!(log.lags(), [5, 8, 3].map(Duration::from_millis));
    }

    #[test]
    fn what_was_not_seen_has_no_echo() {
        let now = os::now();
        let mut log = LatencyLog::default();
        log.send(0, 1, now);
        log.send(1, 2, now);
        log.see(1, now + Duration::from_millis(4));
        log.see(1, now + Duration::from_millis(6));
        assert_eq!(log.echoes(), [Duration::from_millis(4)]);
        log.arrive(1, now + Duration::from_millis(3));
        let parts: Vec<_> = log.parts().iter().map(|part| part.signum()).collect();
        assert_eq!(parts, [-1.0]);
    }
}
