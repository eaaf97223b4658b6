//! When to sync: at once, after a rest, again after a failure, and once in a long while anyway.
//!
//! A pure state machine; the caller brings the clock.

use std::time::{Duration, Instant};

/// The intervals that rule one family's syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rest after a sync completes, so that a burst of changes becomes one sync.
    pub min: Duration,
    /// `syncPeriod`: the longest wait after a failure.
    pub retry: Duration,
    /// Without any change a sync runs after so long all the same.
    pub max: Duration,
}

/// The first wait after a failure, unless the rest is longer. kube-proxy waits for the whole
/// sync period; most failures are gone after a moment.
const FIRST_RETRY: Duration = Duration::from_millis(500);

/// Decides when the next sync runs.
#[derive(Clone, Debug)]
pub struct Pace {
    limits: Limits,
    wanted: bool,
    /// No sync before this.
    rest_until: Option<Instant>,
    retry_at: Option<Instant>,
    audit_at: Instant,
    failures: u32,
}

impl Pace {
    /// Nothing is wanted yet. A `max` below `min` would never rest, so it counts as `min`.
    pub fn new(limits: Limits, now: Instant) -> Self {
        let limits = Limits {
            max: limits.max.max(limits.min),
            ..limits
        };
        Self {
            limits,
            wanted: false,
            rest_until: None,
            retry_at: None,
            audit_at: now + limits.max,
            failures: 0,
        }
    }

    /// Other intervals from now on.
    pub fn set_limits(&mut self, limits: Limits, now: Instant) {
        if limits == self.limits {
            return;
        }
        let Self {
            wanted, failures, ..
        } = *self;
        let retry = self.retry_at.is_some();
        *self = Self::new(limits, now);
        self.wanted = wanted || retry;
        self.failures = failures;
    }

    /// The intervals.
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Something changed.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// The end of the rest after the last sync.
    pub fn rest_until(&self) -> Option<Instant> {
        self.rest_until
    }

    /// When [`Pace::is_due`] will say yes, if nothing else happens.
    pub fn deadline(&self, now: Instant) -> Instant {
        let next = if self.wanted {
            now
        } else {
            self.retry_at.unwrap_or(self.audit_at)
        };
        self.rest_until.map_or(next, |rest| next.max(rest))
    }

    /// Whether a sync should run now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.deadline(now) <= now
    }

    /// Whether everything should be compared with the kernel, however much changes in between.
    pub fn is_audit_due(&self, now: Instant) -> bool {
        self.audit_at <= now
    }

    /// A sync has completed; `full` if it compared everything.
    pub fn finished(&mut self, now: Instant, success: bool, full: bool) {
        self.wanted = false;
        self.rest_until = Some(now + self.limits.min);
        if full && success {
            self.audit_at = now + self.limits.max;
        }
        if success {
            self.failures = 0;
            self.retry_at = None;
        } else {
            self.retry_at = Some(now + self.wait(self.failures));
            self.failures += 1;
        }
    }

    /// The failure just reported was itself a long wait. So it is tried again soon, however often: what
    /// was waited for may be there any moment, and the next try waits for it by itself.
    pub fn again(&mut self, now: Instant) {
        self.retry_at = Some(now + self.wait(0));
    }

    /// How long to wait after so many failures and one more.
    fn wait(&self, failures: u32) -> Duration {
        let first = FIRST_RETRY.max(self.limits.min);
        let wait = first.saturating_mul(1 << failures.min(16));
        wait.min(self.limits.retry).min(self.limits.max)
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "an Instant can only be made from the clock"
)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        min: Duration::from_secs(1),
        retry: Duration::from_secs(30),
        max: Duration::from_hours(1),
    };

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn core_100_the_first_request_runs_at_once_and_a_burst_becomes_one_later_run() {
        let start = Instant::now();
        let mut pace = Pace::new(LIMITS, start);
        assert!(!pace.is_due(start), "starting runs nothing");
        pace.want();
        assert!(pace.is_due(start));
        // It takes 300 ms; the rest counts from its end.
        let done = start + ms(300);
        pace.finished(done, true, true);
        for offset in [10, 200, 999] {
            pace.want();
            assert!(!pace.is_due(done + ms(offset)));
            assert_eq!(pace.deadline(done + ms(offset)), done + ms(1000));
        }
        assert!(pace.is_due(done + ms(1000)));
        pace.finished(done + ms(1000), true, true);
        assert!(!pace.is_due(done + ms(5000)), "nothing is left over");
    }

    #[test]
    fn core_101_a_failure_is_retried_ever_later_and_a_success_ends_that() {
        let start = Instant::now();
        let mut pace = Pace::new(LIMITS, start);
        pace.want();
        let mut now = start;
        let mut waits = Vec::new();
        for _ in 0..8 {
            pace.finished(now, false, true);
            let next = pace.deadline(now);
            waits.push((next - now).as_secs());
            assert!(!pace.is_due(now + (next - now) / 2));
            assert!(pace.is_due(next));
            now = next;
        }
        assert_eq!(
            waits,
            [1, 2, 4, 8, 16, 30, 30, 30],
            "never before the rest is over"
        );
        pace.finished(now, true, true);
        assert_eq!(
            pace.deadline(now),
            now + LIMITS.max,
            "back to the long interval"
        );
        assert!(pace.is_due(now + LIMITS.max));
    }

    #[test]
    fn what_waits_by_itself_is_tried_again_soon_however_often() {
        let start = Instant::now();
        let mut pace = Pace::new(LIMITS, start);
        for _ in 0..12 {
            pace.finished(start, false, true);
            pace.again(start);
            assert_eq!(pace.deadline(start), start + ms(1000));
        }
        pace.finished(start, false, true);
        assert_eq!(pace.deadline(start), start + LIMITS.retry, "not forgotten");
    }

    #[test]
    fn core_102_everything_is_looked_at_in_time_though_changes_never_stop() {
        let start = Instant::now();
        let mut pace = Pace::new(LIMITS, start);
        let mut now = start;
        let mut audits = 0;
        for _ in 0..48 {
            now += Duration::from_mins(30);
            pace.want();
            let full = pace.is_audit_due(now);
            audits += usize::from(full);
            pace.finished(now, true, full);
        }
        assert_eq!(audits, 24, "once an hour for a day");
    }

    #[test]
    fn a_change_after_a_failure_does_not_wait_for_the_retry() {
        let start = Instant::now();
        let mut pace = Pace::new(LIMITS, start);
        for _ in 0..5 {
            pace.finished(start, false, true);
        }
        pace.want();
        assert!(!pace.is_due(start + ms(999)));
        assert!(pace.is_due(start + ms(1000)));
    }

    #[test]
    fn without_a_rest_every_change_runs_at_once() {
        let start = Instant::now();
        let limits = Limits {
            min: Duration::ZERO,
            ..LIMITS
        };
        let mut pace = Pace::new(limits, start);
        pace.want();
        pace.finished(start, true, true);
        pace.want();
        assert!(pace.is_due(start));
    }

    #[test]
    fn new_limits_keep_what_is_wanted() {
        let start = Instant::now();
        let mut pace = Pace::new(LIMITS, start);
        pace.finished(start, false, true);
        let limits = Limits {
            min: Duration::ZERO,
            ..LIMITS
        };
        pace.set_limits(limits, start);
        assert!(pace.is_due(start));
    }

    #[test]
    fn a_rest_longer_than_the_long_interval_is_respected() {
        let start = Instant::now();
        let limits = Limits {
            min: Duration::from_hours(2),
            ..LIMITS
        };
        let mut pace = Pace::new(limits, start);
        pace.want();
        pace.finished(start, true, true);
        assert_eq!(pace.deadline(start), start + limits.min);
    }
}
