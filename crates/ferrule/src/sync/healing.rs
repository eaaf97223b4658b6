//! When to undo external changes: at once, and ever later while another process makes them again.
//!
//! Two proxies that undo each other's changes would otherwise write all rules every second for ever.
//! A pure state machine; the caller brings the clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ferrule_dataplane::{ExternalChange, Process};

/// So many repairs within [`WINDOW`] show that another process does not give up.
const MOST: usize = 3;
const WINDOW: Duration = Duration::from_mins(1);

/// The first wait after that; it doubles with every repair.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// External changes to one family's rules, and their repair.
#[derive(Clone, Debug, Default)]
pub struct Healing {
    state: State,
    /// When the last repairs ended.
    repairs: VecDeque<Instant>,
    /// Between a repair and the next one, while another process does not give up.
    wait: Option<Duration>,
    /// Who made the last change whose author is known.
    process: Option<Process>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Quiet,
    /// A change is to be repaired then.
    Noticed(Instant),
    /// The next full sync repairs it.
    Begun,
}

/// A repair that wrote something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Changes that were written.
    pub steps: usize,
    /// Who made what was repaired, if that is known.
    pub process: Option<Process>,
    /// How the next external change is dealt with.
    pub contest: Contest,
}

/// Whether another process keeps changing our rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contest {
    /// No: the next change is repaired at once.
    None,
    /// Since this repair: the next change is repaired after this time.
    Begins(Duration),
    /// As before: the next change is repaired after this time.
    Lasts(Duration),
}

impl Healing {
    /// Another process changed our rules.
    pub fn noticed(&mut self, now: Instant, change: ExternalChange) {
        if change.process.is_some() {
            self.process = change.process;
        }
        if self.state == State::Quiet {
            let earliest = self.wait.zip(self.repairs.back());
            let earliest = earliest.map_or(now, |(wait, last)| *last + wait);
            self.state = State::Noticed(earliest.max(now));
        }
    }

    /// When [`Healing::begin`] will say yes, if it has not yet.
    pub const fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Noticed(due) => Some(due),
            State::Quiet | State::Begun => None,
        }
    }

    /// Whether a repair is to begin now; says so once.
    pub fn begin(&mut self, now: Instant) -> bool {
        let due = self.deadline().is_some_and(|due| due <= now);
        if due {
            self.state = State::Begun;
        }
        due
    }

    /// A full sync has succeeded, whatever it was for. Returns what it repaired, if anything.
    /// `most` is the longest wait.
    pub fn synced(&mut self, now: Instant, steps: usize, most: Duration) -> Option<Repair> {
        if std::mem::take(&mut self.state) == State::Quiet {
            return None;
        }
        let process = self.process.take();
        if steps == 0 {
            return None;
        }
        let contest = self.contest(now, most);
        Some(Repair {
            steps,
            process,
            contest,
        })
    }

    fn contest(&mut self, now: Instant, most: Duration) -> Contest {
        let last = self.repairs.back().copied();
        if self.repairs.len() == MOST {
            self.repairs.pop_front();
        }
        self.repairs.push_back(now);
        if let (Some(wait), Some(last)) = (self.wait, last) {
            if now - last <= WINDOW.max(wait * 2) {
                let wait = (wait * 2).min(most);
                self.wait = Some(wait);
                return Contest::Lasts(wait);
            }
            // It gave up, and this is another story.
            self.wait = None;
            self.repairs.drain(..self.repairs.len() - 1);
        }
        let first = self.repairs.front();
        let often = self.repairs.len() == MOST && first.is_some_and(|at| now - *at <= WINDOW);
        if !often {
            return Contest::None;
        }
        let wait = FIRST_WAIT.min(most);
        self.wait = Some(wait);
        Contest::Begins(wait)
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "an Instant can only be made from the clock"
)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(30);

    fn by(name: &str) -> ExternalChange {
        let process = Some(Process {
            id: 7,
            name: name.to_owned(),
        });
        ExternalChange { process }
    }

    /// A change is noticed and repaired as soon as it may be; when that was, and what was said.
    fn repair(healing: &mut Healing, now: Instant, most: Duration) -> (Instant, Contest) {
        healing.noticed(now, by("nft"));
        let due = healing.deadline().unwrap();
        assert!(due <= now || !healing.begin(now), "not before");
        assert!(healing.begin(due));
        assert!(!healing.begin(due), "once");
        let repair = healing.synced(due, 5, most).unwrap();
        assert_eq!(repair.process.unwrap().name, "nft");
        (due, repair.contest)
    }

    #[test]
    fn whoever_does_not_give_up_is_answered_ever_later() {
        let start = Instant::now();
        let mut healing = Healing::default();
        let mut now = start;
        let mut waits = Vec::new();
        for number in 0..10 {
            let (at, contest) = repair(&mut healing, now, PERIOD);
            match contest {
                Contest::None => assert!(number < 2),
                Contest::Begins(_) => assert_eq!(number, 2),
                Contest::Lasts(_) => assert!(number > 2),
            }
            waits.push((at - now).as_secs());
            // It answers at once.
            now = at;
        }
        assert_eq!(waits, [0, 0, 0, 1, 2, 4, 8, 16, 30, 30]);
        // A while of silence, and all is forgotten.
        let later = now + PERIOD * 2 + Duration::from_secs(1);
        for _ in 0..2 {
            assert_eq!(repair(&mut healing, later, PERIOD), (later, Contest::None));
        }
        let third = repair(&mut healing, later, PERIOD).1;
        assert_eq!(third, Contest::Begins(FIRST_WAIT));
    }

    #[test]
    fn changes_now_and_then_are_repaired_at_once() {
        let mut now = Instant::now();
        let mut healing = Healing::default();
        for _ in 0..20 {
            now += Duration::from_secs(31);
            assert_eq!(repair(&mut healing, now, PERIOD), (now, Contest::None));
        }
    }

    #[test]
    fn a_long_period_ends_no_contest() {
        let mut now = Instant::now();
        let period = Duration::from_mins(10);
        let mut healing = Healing::default();
        for _ in 0..20 {
            now = repair(&mut healing, now, period).0;
        }
        let (at, contest) = repair(&mut healing, now, period);
        assert_eq!((at - now, contest), (period, Contest::Lasts(period)));
    }

    #[test]
    fn a_change_that_needs_no_repair_is_none() {
        let now = Instant::now();
        let mut healing = Healing::default();
        for _ in 0..10 {
            healing.noticed(now, ExternalChange::default());
            assert!(healing.begin(now));
            assert_eq!(healing.synced(now, 0, PERIOD), None);
        }
        assert_eq!(repair(&mut healing, now, PERIOD), (now, Contest::None));
        assert_eq!(healing.synced(now, 5, PERIOD), None, "nobody's but ours");
    }

    #[test]
    fn a_full_sync_for_another_reason_repairs_what_waits() {
        let now = Instant::now();
        let mut healing = Healing::default();
        for _ in 0..3 {
            repair(&mut healing, now, PERIOD);
        }
        healing.noticed(now, by("nft"));
        assert!(!healing.begin(now));
        let repair = healing.synced(now, 2, PERIOD).unwrap();
        assert_eq!(repair.contest, Contest::Lasts(FIRST_WAIT * 2));
        assert_eq!(healing.deadline(), None);
    }
}
