//! When to sync: at once, after a rest, again after a failure, and once in a long while anyway.
//!
//! A pure state machine; the caller brings the clock, and what each sync cost.

use std::time::{Duration, Instant};

/// The intervals that rule one family's syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `minSyncPeriod`: the longest rest after a sync completes, and the rest after a failure.
    pub min: Duration,
    /// What the rest depends on.
    pub rest: RestBy,
    /// `syncPeriod`: the longest wait after a failure.
    pub retry: Duration,
    /// Without any change a sync runs after so long all the same.
    pub max: Duration,
}

/// What the rest after a sync depends on. It makes one sync of a burst of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestBy {
    /// On what the sync cost: cheap syncs follow each other sooner than `minSyncPeriod` allows.
    #[default]
    Cost,
    /// On nothing: it is always `minSyncPeriod`, as in kube-proxy.
    Fixed,
}

/// So many times longer than the sync is the rest after it, so that syncs take less than 5 % of one
/// core.
const TIMES: u32 = 20;

/// The shortest rest, unless `minSyncPeriod` is shorter: what one change brings often comes in several
/// objects.
const SHORTEST: Duration = Duration::from_millis(5);

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

    /// A sync has completed and took `cost`; `full` if it compared everything.
    pub fn finished(&mut self, now: Instant, cost: Duration, success: bool, full: bool) {
        self.wanted = false;
        self.rest_until = Some(now + self.rest(cost, success));
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

    /// How long to rest after a sync that took `cost`.
    fn rest(&self, cost: Duration, success: bool) -> Duration {
        match self.limits.rest {
            RestBy::Cost if success => {
                let rest = cost.saturating_mul(TIMES).max(SHORTEST);
                rest.min(self.limits.min)
            }
            // What fails often fails at once. It would be tried, and logged, 200 times a second.
            RestBy::Cost | RestBy::Fixed => self.limits.min,
        }
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
        rest: RestBy::Fixed,
        retry: Duration::from_secs(30),
        max: Duration::from_hours(1),
    };

    /// Of syncs whose cost does not matter.
    const COST: Duration = Duration::from_millis(300);

    const BY_COST: Limits = Limits {
        rest: RestBy::Cost,
        ..LIMITS
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
        pace.finished(done, COST, true, true);
        for offset in [10, 200, 999] {
            pace.want();
            assert!(!pace.is_due(done + ms(offset)));
            assert_eq!(pace.deadline(done + ms(offset)), done + ms(1000));
        }
        assert!(pace.is_due(done + ms(1000)));
        pace.finished(done + ms(1000), COST, true, true);
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
            pace.finished(now, COST, false, true);
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
        pace.finished(now, COST, true, true);
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
            pace.finished(start, COST, false, true);
            pace.again(start);
            assert_eq!(pace.deadline(start), start + ms(1000));
        }
        pace.finished(start, COST, false, true);
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
            pace.finished(now, COST, true, full);
        }
        assert_eq!(audits, 24, "once an hour for a day");
    }

    #[test]
    fn a_change_after_a_failure_does_not_wait_for_the_retry() {
        let start = Instant::now();
        let mut pace = Pace::new(LIMITS, start);
        for _ in 0..5 {
            pace.finished(start, COST, false, true);
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
        pace.finished(start, COST, true, true);
        pace.want();
        assert!(pace.is_due(start));
    }

    #[test]
    fn new_limits_keep_what_is_wanted() {
        let start = Instant::now();
        let mut pace = Pace::new(LIMITS, start);
        pace.finished(start, COST, false, true);
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
        pace.finished(start, COST, true, true);
        assert_eq!(pace.deadline(start), start + limits.min);
    }

    /// The rest after a sync that took `cost`.
    fn rest(limits: Limits, cost: Duration, success: bool) -> Duration {
        let start = Instant::now();
        let mut pace = Pace::new(limits, start);
        pace.finished(start, cost, success, true);
        pace.want();
        pace.deadline(start) - start
    }

    #[test]
    fn after_a_sync_of_200_ms_the_rest_is_one_second() {
        assert_eq!(rest(BY_COST, ms(200), true), ms(1000));
        assert_eq!(rest(BY_COST, Duration::MAX, true), ms(1000));
    }

    #[test]
    fn a_rest_is_20_times_its_sync_and_never_less_than_5_ms() {
        for (micros, millis) in [(49_999, 1000), (10_000, 200), (300, 6), (250, 5), (0, 5)] {
            let rest = rest(BY_COST, Duration::from_micros(micros), true);
            assert_eq!(rest.as_micros().div_ceil(1000), millis, "{micros}");
        }
    }

    #[test]
    fn no_rest_is_longer_than_the_minimum_even_where_that_is_very_short() {
        for min in [ms(0), ms(3), ms(50)] {
            let limits = Limits { min, ..BY_COST };
            assert_eq!(rest(limits, ms(200), true), min);
            assert!(rest(limits, ms(0), true) <= min);
        }
    }

    #[test]
    fn a_fixed_rest_does_not_depend_on_the_cost() {
        for millis in [0, 1, 5000] {
            assert_eq!(rest(LIMITS, ms(millis), true), LIMITS.min);
        }
    }

    #[test]
    fn a_failure_is_not_repeated_before_the_minimum_however_cheap() {
        assert_eq!(rest(BY_COST, ms(0), false), LIMITS.min);
    }

    /// Changes come at equal intervals for ten seconds, and each sync takes `cost`. The longest time
    /// from a change to the end of its sync, and the share of time spent in syncs in percent.
    fn churn(limits: Limits, interval: Duration, cost: Duration) -> (Duration, u128) {
        let start = Instant::now();
        let span = Duration::from_secs(10);
        let mut pace = Pace::new(limits, start);
        let (mut now, mut next, mut waiting) = (start, start, None);
        let (mut lag, mut spent) = (Duration::ZERO, Duration::ZERO);
        while now < start + span {
            while next <= now {
                pace.want();
                waiting = waiting.or(Some(next));
                next += interval;
            }
            if pace.is_due(now) {
                now += cost;
                spent += cost;
                pace.finished(now, cost, true, false);
                lag = lag.max(waiting.take().map_or(Duration::ZERO, |since| now - since));
            } else {
                now = pace.deadline(now).min(next);
            }
        }
        (lag, spent.as_nanos() * 100 / span.as_nanos())
    }

    #[test]
    fn of_100_changes_a_second_each_is_programmed_within_7_ms_if_a_sync_takes_a_third() {
        let cost = Duration::from_micros(300);
        let (lag, share) = churn(BY_COST, ms(10), cost);
        assert!(lag < ms(7), "{lag:?}");
        assert!(share < 5, "{share} %");
        let (fixed, _) = churn(LIMITS, ms(10), cost);
        assert!(fixed > ms(990), "{fixed:?}");
    }

    #[test]
    fn however_many_changes_come_syncs_take_less_than_5_percent() {
        for (micros, most) in [(1, 6), (300, 7), (1_000, 22), (10_000, 220), (45_000, 1000)] {
            let cost = Duration::from_micros(micros);
            let (lag, share) = churn(BY_COST, Duration::from_micros(100), cost);
            assert!(lag <= ms(most), "{cost:?}: {lag:?}");
            assert!(share < 5, "{cost:?}: {share} %");
        }
    }

    #[test]
    fn an_expensive_sync_rests_as_long_as_with_a_fixed_rest() {
        for millis in [50, 200, 3000] {
            let [by_cost, fixed] =
                [BY_COST, LIMITS].map(|limits| churn(limits, ms(10), ms(millis)));
            assert_eq!(by_cost, fixed);
        }
    }
}
