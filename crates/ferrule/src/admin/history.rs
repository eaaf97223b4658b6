//! What syncs did lately: a bounded memory for whoever asks later.
//!
//! In: each sync as it ends, and each repair of external changes. Out: the last of them, newest first,
//! and per family the last comparison of everything with the kernel. Syncs that changed only what was
//! asked for come often; those worth remembering longer (failures, full syncs, repairs) have a memory of
//! their own, so that churn does not push them out.

use std::collections::VecDeque;
use std::time::Duration;

use ferrule_core::model::{Family, PerFamily};
use ferrule_dataplane::Process;
use jiff::Timestamp;
use serde::Serialize;

/// Syncs that are remembered: the last ones, and the last ones worth it.
const MOST: usize = 240;
const MOST_NOTABLE: usize = 60;

/// One sync. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sync {
    /// Counts syncs since the start.
    pub number: u64,
    /// When it ended, RFC 3339.
    pub at: String,
    /// `IPv4`, `IPv6`
    pub family: String,
    /// Everything was compared with the kernel.
    pub full: bool,
    /// How long it took.
    pub took_micros: u64,
    /// Changes that were written.
    pub changes: usize,
    /// Service ports that the kernel refused.
    pub refused: usize,
    /// Why it failed.
    pub error: Option<String>,
    /// It undid external changes.
    pub repair: bool,
    /// Who made them, where that is known.
    pub process: Option<String>,
}

/// A sync that ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Which family.
    pub family: Family,
    /// When.
    pub at: Timestamp,
    /// How long it took.
    pub took: Duration,
    /// Everything was compared with the kernel.
    pub full: bool,
    /// Changes and refused Service ports, or why it failed.
    pub result: Result<(usize, usize), String>,
}

/// The last comparison of everything with the kernel, of one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Audit {
    /// When it ended, RFC 3339.
    pub at: String,
    /// Differences that it found, those of changes under way among them.
    pub changes: usize,
    /// It was the first one, which writes what was not there yet.
    pub first: bool,
}

/// What is remembered. It is put into words when somebody asks, not with every sync.
#[derive(Debug, Default)]
pub struct History {
    count: u64,
    recent: VecDeque<Kept>,
    notable: VecDeque<Kept>,
    /// The last comparison of everything: when, what it found, and whether it was the first.
    audits: PerFamily<Option<(Timestamp, usize, bool)>>,
}

/// A sync that is remembered.
#[derive(Debug)]
struct Kept {
    number: u64,
    ended: Ended,
    /// It undid external changes.
    repair: bool,
    /// Who made them, where that is known.
    process: Option<Process>,
}

impl Kept {
    fn sync(&self) -> Sync {
        let ended = &self.ended;
        let (changes, refused) = *ended.result.as_ref().unwrap_or(&(0, 0));
        Sync {
            number: self.number,
            at: written(ended.at),
            family: ended.family.to_string(),
            full: ended.full,
            took_micros: u64::try_from(ended.took.as_micros()).unwrap_or(u64::MAX),
            changes,
            refused,
            error: ended.result.as_ref().err().cloned(),
            repair: self.repair,
            process: self.process.as_ref().map(ToString::to_string),
        }
    }
}

impl History {
    /// A sync ended.
    pub fn ended(&mut self, ended: Ended) {
        self.count += 1;
        if let (true, Ok((changes, _))) = (ended.full, &ended.result) {
            let audit = &mut self.audits[ended.family];
            *audit = Some((ended.at, *changes, audit.is_none()));
        }
        let (queue, most) = if ended.full || ended.result.is_err() {
            (&mut self.notable, MOST_NOTABLE)
        } else {
            (&mut self.recent, MOST)
        };
        if queue.len() == most {
            queue.pop_front();
        }
        queue.push_back(Kept {
            number: self.count,
            ended,
            repair: false,
            process: None,
        });
    }

    /// The last sync of a family undid external changes, which is known only after it.
    pub fn repaired(&mut self, family: Family, process: Option<Process>) {
        // Only a full sync repairs.
        let mut kept = self.notable.iter_mut().rev();
        if let Some(kept) = kept.find(|kept| kept.ended.full && kept.ended.family == family) {
            kept.repair = true;
            kept.process = process;
        }
    }

    /// All syncs since the start.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// What is remembered, newest first.
    pub fn syncs(&self) -> Vec<Sync> {
        let kept = self.recent.iter().chain(&self.notable);
        let mut all: Vec<Sync> = kept.map(Kept::sync).collect();
        all.sort_unstable_by_key(|sync| std::cmp::Reverse(sync.number));
        all
    }

    /// The last audit of a family.
    pub fn audit(&self, family: Family) -> Option<Audit> {
        self.audits[family].map(|(at, changes, first)| Audit {
            at: written(at),
            changes,
            first,
        })
    }
}

/// A time as people and browsers read it.
fn written(time: Timestamp) -> String {
    let millis = Timestamp::from_millisecond(time.as_millisecond());
    millis.unwrap_or(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(full: bool, result: Result<(usize, usize), String>) -> Ended {
        Ended {
            family: Family::V4,
            at: Timestamp::UNIX_EPOCH,
            took: Duration::from_micros(1500),
            full,
            result,
        }
    }

    #[test]
    fn failures_and_full_syncs_are_remembered_through_churn() {
        let mut history = History::default();
        history.ended(ended(true, Ok((9, 1))));
        history.ended(ended(false, Err("no room".to_owned())));
        for _ in 0..10_000 {
            history.ended(ended(false, Ok((1, 0))));
        }
        let syncs = history.syncs();
        assert_eq!(syncs.len(), MOST + 2);
        assert_eq!(syncs[0].number, 10_002);
        assert_eq!(syncs[MOST].error.as_deref(), Some("no room"));
        assert_eq!(syncs[MOST + 1].refused, 1);
        assert_eq!(history.audit(Family::V4).unwrap().changes, 9);
        assert_eq!(history.audit(Family::V6), None);
    }

    #[test]
    fn a_repair_marks_the_full_sync_that_made_it() {
        let mut history = History::default();
        for changes in [9, 0, 3] {
            history.ended(ended(true, Ok((changes, 0))));
        }
        history.ended(ended(false, Ok((1, 0))));
        let process = Process {
            id: 4711,
            name: "nft".to_owned(),
        };
        history.repaired(Family::V4, Some(process));
        history.repaired(Family::V6, None);
        let syncs = history.syncs();
        let repairs: Vec<_> = syncs.iter().filter(|sync| sync.repair).collect();
        assert_eq!(repairs.len(), 1);
        assert_eq!(repairs[0].changes, 3);
        assert_eq!(repairs[0].process.as_deref(), Some("nft (PID 4711)"));
        assert!(history.audit(Family::V4).is_some_and(|audit| !audit.first));
    }
}
