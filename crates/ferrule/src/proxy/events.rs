//! How many events about Services are sent: some per Service, some over all, none twice.
//!
//! In: what an event would say, and the time. Out: whether to send it. Anybody who may write a Service can
//! make it wrong again and again, and there is a proxy on every node. What is held back is in the log and in
//! the metrics all the same.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ferrule_core::model::ServiceKey;

/// So many at once, and then one every so often.
#[derive(Clone, Copy, Debug)]
struct Rate {
    burst: u32,
    every: Duration,
}

const ALL: Rate = Rate {
    burst: 25,
    every: Duration::from_secs(10),
};
const SERVICE: Rate = Rate {
    burst: 5,
    every: Duration::from_mins(5),
};
/// The same event is sent again after this time at the earliest; the API server keeps events as long.
const SAME: Duration = Duration::from_hours(1);

/// How many events there is room for.
#[derive(Debug)]
struct Bucket {
    rate: Rate,
    room: u32,
    /// Since when room grows.
    since: Instant,
}

impl Bucket {
    const fn full(rate: Rate, now: Instant) -> Self {
        Self {
            rate,
            room: rate.burst,
            since: now,
        }
    }

    /// Lets time pass.
    fn grow(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        let grown = passed.as_millis() / self.rate.every.as_millis();
        let grown = u32::try_from(grown).unwrap_or(u32::MAX);
        if grown >= self.rate.burst - self.room {
            *self = Self::full(self.rate, now);
        } else {
            self.room += grown;
            self.since += self.rate.every * grown;
        }
    }

    const fn is_full(&self) -> bool {
        self.room == self.rate.burst
    }
}

/// What was sent lately. It is as large as what [`ALL`] lets through within [`SAME`].
#[derive(Debug, Default)]
pub struct EventLimit {
    all: Option<Bucket>,
    services: BTreeMap<ServiceKey, Bucket>,
    sent: BTreeMap<(ServiceKey, &'static str, String), Instant>,
}

impl EventLimit {
    /// Whether to send this event; then it counts as sent.
    pub fn admits(
        &mut self,
        service: &ServiceKey,
        reason: &'static str,
        note: &str,
        now: Instant,
    ) -> bool {
        self.sent
            .retain(|_, sent| now.saturating_duration_since(*sent) < SAME);
        let event = (service.clone(), reason, note.to_owned());
        if self.sent.contains_key(&event) {
            return false;
        }
        self.services.retain(|_, bucket| {
            bucket.grow(now);
            !bucket.is_full()
        });
        let all = self.all.get_or_insert(Bucket::full(ALL, now));
        all.grow(now);
        let room = self.services.get(service).map_or(SERVICE.burst, |b| b.room);
        if all.room == 0 || room == 0 {
            return false;
        }
        all.room -= 1;
        let own = self.services.entry(service.clone());
        own.or_insert_with(|| Bucket::full(SERVICE, now)).room -= 1;
        self.sent.insert(event, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "time is moved on from here")]
    fn start() -> Instant {
        Instant::now()
    }

    fn key(name: &str) -> ServiceKey {
        ServiceKey::new("shop", name)
    }

    #[test]
    fn the_same_event_is_sent_once_an_hour() {
        let (mut limit, now) = (EventLimit::default(), start());
        assert!(limit.admits(&key("a"), "Refused", "no room", now));
        assert!(!limit.admits(&key("a"), "Refused", "no room", now));
        assert!(limit.admits(&key("a"), "Refused", "other", now));
        assert!(limit.admits(&key("b"), "Refused", "no room", now));
        assert!(!limit.admits(&key("a"), "Refused", "no room", now + SAME / 2));
        assert!(limit.admits(&key("a"), "Refused", "no room", now + SAME));
    }

    #[test]
    fn one_service_cannot_use_up_what_is_there_for_all() {
        let (mut limit, now) = (EventLimit::default(), start());
        let mut sent = |name: &str, from: usize, now| {
            let notes = (from..from + 100).map(|number| number.to_string());
            notes
                .filter(|note| limit.admits(&key(name), "Refused", note, now))
                .count()
        };
        assert_eq!(sent("a", 0, now), 5);
        assert_eq!(sent("a", 100, now + Duration::from_mins(4)), 0);
        assert_eq!(sent("a", 200, now + Duration::from_mins(10)), 2);
        assert_eq!(sent("a", 300, now + Duration::from_hours(9)), 5);
    }

    #[test]
    fn all_services_together_have_a_limit_and_what_is_remembered_too() {
        let (mut limit, mut now) = (EventLimit::default(), start());
        let mut sent = 0;
        for round in 0..720_u32 {
            for number in 0..50 {
                let name = key(&format!("s{round}-{number}"));
                sent += usize::from(limit.admits(&name, "Refused", "no room", now));
            }
            now += Duration::from_secs(10);
        }
        assert_eq!(sent, 25 + 719);
        assert!(limit.sent.len() <= 25 + 360, "{}", limit.sent.len());
        assert!(limit.services.len() <= 60, "{}", limit.services.len());
    }
}
