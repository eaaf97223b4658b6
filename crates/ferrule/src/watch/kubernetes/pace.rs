//! When to try again, and when to log it.
//!
//! Pure: the caller brings the clock. Many proxies lose the same API server at the same moment,
//! so delays grow and are scattered.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Timeouts and delays. The default is what production uses; tests cannot wait so long.
#[derive(Clone, Debug)]
pub struct Timings {
    /// Until the server begins to answer, or goes on with an answer that is not a watch.
    ///
    /// The server itself gives up on a request after 60 seconds.
    pub answer: Duration,
    /// How long the server is asked to keep a watch, in seconds.
    ///
    /// At random, so that not all watches begin anew at once.
    pub watch_seconds: Range<u64>,
    /// How much longer than that a watch may be silent.
    pub slack: Duration,
    /// How long a watch may be silent that has sent a bookmark.
    ///
    /// Servers send one a minute, as long as there is anything newer than where the watch began;
    /// so the first one proves that there will be more, and the end of a streamed list does not.
    pub bookmarks: Duration,
    /// A watch that ends sooner than this, without an event, is a failure.
    pub short: Duration,
    /// The first delay after a failure; it doubles with each further one.
    pub first_delay: Duration,
    /// The longest delay, before it is scattered.
    pub longest_delay: Duration,
    /// Without failures for so long, the next one is a first one again.
    pub forget: Duration,
    /// How long a collection that was there must be missing before we do without it.
    pub absence: Duration,
    /// Between questions for what the server may not offer at all.
    pub rarely: Duration,
    /// Until the same failure is logged again.
    pub repeat_log: Duration,
    /// How long a refusal of an optional feature holds.
    pub refusal_lasts: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(75),
            watch_seconds: 300..600,
            slack: Duration::from_secs(30),
            bookmarks: Duration::from_mins(3),
            short: Duration::from_secs(1),
            first_delay: Duration::from_millis(800),
            longest_delay: Duration::from_secs(30),
            forget: Duration::from_mins(2),
            absence: Duration::from_secs(30),
            rarely: Duration::from_mins(5),
            repeat_log: Duration::from_mins(5),
            refusal_lasts: Duration::from_hours(1),
        }
    }
}

/// Until when nobody acts on news: set by who acts, read by who listens. Clones share it.
///
/// Where changes come all the time, listening to each as it comes is most of their cost. What comes
/// while nobody acts on it can be received together.
#[derive(Clone, Debug, Default)]
pub struct Rest(Arc<Mutex<Option<Asleep>>>);

/// When nobody acts on news.
#[derive(Clone, Copy, Debug)]
struct Asleep {
    until: Instant,
    /// So long before that we listen again, so that all is received by then.
    awake: Duration,
}

/// The longest pause: not everything rests at the same time, and what is not received piles up at
/// the other end.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The most time to receive what came during a rest, before it ends.
const AWAKE: Duration = Duration::from_millis(50);

/// Of a rest shorter than four times that, this part.
const AWAKE_PART: u32 = 4;

impl Rest {
    /// From `now` on nobody acts before `until`.
    pub fn until(&self, now: Instant, until: Instant) {
        let part = until.saturating_duration_since(now) / AWAKE_PART;
        let awake = part.min(AWAKE);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Asleep { until, awake });
    }

    /// How long not to listen.
    pub fn pause(&self, now: Instant) -> Duration {
        let asleep = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asleep.map_or(Duration::ZERO, |Asleep { until, awake }| {
            let left = until.saturating_duration_since(now);
            left.saturating_sub(awake).min(LONGEST_PAUSE)
        })
    }
}

/// Delays that grow while failures follow each other.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
    /// When the last delay was over.
    resumed: Option<Instant>,
}

impl Backoff {
    /// No failure has been seen for long.
    pub fn is_rested(&self, now: Instant, timings: &Timings) -> bool {
        self.resumed
            .is_none_or(|at| now.saturating_duration_since(at) >= timings.forget)
    }

    /// How long to wait after one more failure.
    pub fn next(&mut self, now: Instant, timings: &Timings, random: &mut Random) -> Duration {
        if self.is_rested(now, timings) {
            self.failures = 0;
        }
        let grown = 2_u32.saturating_pow(self.failures);
        let delay = timings
            .first_delay
            .saturating_mul(grown)
            .min(timings.longest_delay);
        let delay = delay.mul_f64(1.0 + random.fraction());
        self.failures = self.failures.saturating_add(1);
        self.resumed = Some(now + delay);
        delay
    }

    /// Counts a failure that needs no waiting.
    pub fn note(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.resumed = Some(now);
    }
}

/// Answers that a collection does not exist, though it did before.
#[derive(Clone, Copy, Debug)]
pub struct Absence {
    since: Instant,
    answers: u32,
}

impl Absence {
    /// So many answers at least: one may come from a proxy whose servers are all away.
    const FEWEST_ANSWERS: u32 = 4;

    /// The first such answer.
    pub fn new(now: Instant) -> Self {
        Self {
            since: now,
            answers: 1,
        }
    }

    /// One more such answer.
    #[must_use]
    pub fn again(self) -> Self {
        Self {
            answers: self.answers.saturating_add(1),
            ..self
        }
    }

    /// Whether to believe it: there were enough such answers, over long enough.
    pub fn is_lasting(self, now: Instant, timings: &Timings) -> bool {
        let lasted = now.saturating_duration_since(self.since);
        self.answers >= Self::FEWEST_ANSWERS && lasted >= timings.absence
    }
}

/// Remembers which failure was logged last, so that an outage does not fill the log.
#[derive(Debug, Default)]
pub struct LogThrottle {
    last: Option<(String, Instant)>,
    /// The log does not say yet that it is over.
    open: bool,
}

impl LogThrottle {
    /// Whether to log this now: it is new, or it has not been logged for long.
    pub fn is_due(&mut self, text: &str, now: Instant, timings: &Timings) -> bool {
        // Times and ports in it do not make it another failure.
        let text = text.replace(|c: char| c.is_ascii_digit(), "");
        let due = self.last.as_ref().is_none_or(|(logged, at)| {
            *logged != text || now.saturating_duration_since(*at) >= timings.repeat_log
        });
        if due {
            self.last = Some((text, now));
            self.open = true;
        }
        due
    }

    /// All is well for now. Returns whether a failure had been logged.
    ///
    /// What follows soon after is still the old matter.
    pub fn recovered(&mut self) -> bool {
        std::mem::take(&mut self.open)
    }

    /// The failure is long over; its return will be news.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

/// Numbers nobody needs to predict and nobody is harmed by predicting (xorshift64*).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Another sequence each time.
    pub fn new() -> Self {
        // The standard library seeds its hash maps from the kernel; an empty hash is that seed.
        Self::seeded(RandomState::new().build_hasher().finish())
    }

    /// The sequence of this seed.
    pub fn seeded(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number within a range, or the start of an empty one.
    pub fn within(&mut self, range: &Range<u64>) -> u64 {
        let width = range.end.saturating_sub(range.start).max(1);
        range.start + self.number() % width
    }

    /// From 0 up to but not including 1.
    pub fn fraction(&mut self) -> f64 {
        let thousandths = u32::try_from(self.within(&(0..1000))).unwrap_or_default();
        f64::from(thousandths) / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The delays of failures at these seconds, without their scatter.
    fn delays(seconds: &[u64]) -> Vec<f64> {
        let timings = Timings::default();
        let start = Instant::now();
        let mut backoff = Backoff::default();
        let mut random = Random::seeded(7);
        let mut delay = |second: &u64| {
            let mut same = random.clone();
            let now = start + Duration::from_secs(*second);
            let delay = backoff.next(now, &timings, &mut random).as_secs_f64();
            let plain = delay / (1.0 + same.fraction());
            (plain * 10.0).round() / 10.0
        };
        seconds.iter().map(&mut delay).collect()
    }

    #[test]
    fn news_is_received_together_while_nobody_acts_on_it() {
        let (rest, now) = (Rest::default(), Instant::now());
        assert_eq!(rest.pause(now), Duration::ZERO, "nobody rests");
        rest.clone().until(now, now + Duration::from_secs(1));
        let pause = |after| rest.pause(now + Duration::from_millis(after)).as_millis();
        assert_eq!([0, 749, 800, 950, 2000].map(pause), [200, 200, 150, 0, 0]);
        rest.until(now, now + Duration::from_millis(8));
        assert_eq!([0, 3, 6, 8, 9].map(pause), [6, 3, 0, 0, 0], "a short rest");
    }

    #[test]
    fn delays_double_up_to_half_a_minute() {
        assert_eq!(
            delays(&[0, 1, 4, 10, 20, 40, 80, 120]),
            [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
        );
    }

    #[test]
    fn two_minutes_of_health_are_a_new_beginning() {
        assert_eq!(delays(&[0, 2, 100, 300]), [0.8, 1.6, 3.2, 0.8]);
    }

    #[test]
    fn delays_are_scattered_but_never_shorter() {
        let timings = Timings::default();
        let mut random = Random::new();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let delay = Backoff::default().next(Instant::now(), &timings, &mut random);
            assert!((timings.first_delay..timings.first_delay * 2).contains(&delay));
            seen.insert(delay);
        }
        assert!(seen.len() > 10, "{seen:?}");
    }

    #[test]
    fn an_absence_is_believed_after_several_answers_over_half_a_minute() {
        let (timings, start) = (Timings::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut absence = Absence::new(start);
        assert!(!absence.is_lasting(after(60), &timings), "one answer");
        for _ in 0..3 {
            absence = absence.again();
        }
        assert!(!absence.is_lasting(after(29), &timings), "too soon");
        assert!(absence.is_lasting(after(30), &timings));
    }

    #[test]
    fn a_failure_is_logged_again_when_it_changes_or_after_a_while() {
        let timings = Timings::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut throttle = LogThrottle::default();
        assert!(throttle.is_due("refused 1", start, &timings));
        assert!(!throttle.is_due("refused 2", after(99), &timings));
        assert!(!throttle.is_due("refused 33", after(100), &timings));
        assert!(throttle.is_due("forbidden", after(101), &timings));
        assert!(!throttle.is_due("forbidden", after(400), &timings));
        assert!(throttle.is_due("forbidden", after(401), &timings));
        assert!(throttle.recovered());
        assert!(!throttle.recovered());
        assert!(!throttle.is_due("forbidden", after(402), &timings));
        throttle.forget();
        assert!(throttle.is_due("forbidden", after(402), &timings));
    }

    #[test]
    fn random_numbers_stay_within_their_range() {
        let mut random = Random::new();
        for _ in 0..1000 {
            assert!((300..600).contains(&random.within(&(300..600))));
            assert_eq!(random.within(&(5..5)), 5);
            assert!((0.0..1.0).contains(&random.fraction()));
        }
    }
}
