//! Guards what is programmed: waits for external changes, and has sync undo them.
//!
//! In: the watchers of a family, as soon as it is programmed. Out: [`Input::Resync`] for that
//! family. Each watcher has a thread of its own.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ferrule_core::model::Family;
use ferrule_dataplane::{Cadence, ExternalChange, Watcher, error_chain};
use tokio::sync::mpsc;

use crate::logging::info_v;
use crate::sync::Input;

#[cfg(test)]
mod tests;

/// How long a watcher waits for a notification; it only matters that it is long.
const TIMEOUT: Duration = Duration::from_hours(1);

/// How long to wait after a watcher failed.
const RETRY: Duration = Duration::from_secs(10);

/// One change often comes in many notifications; silence for so long ends it.
const PAUSE: Duration = Duration::from_millis(1);

/// So many notifications are read before sync is woken, however many follow.
const MOST: usize = 256;

/// Starts watchers, and tells sync what they notice.
pub struct Guard {
    sync: mpsc::Sender<Input>,
    period: Period,
}

impl Guard {
    /// Polled watchers inspect the kernel once per period.
    pub const fn new(sync: mpsc::Sender<Input>, period: Period) -> Self {
        Self { sync, period }
    }

    /// Guards a family from now on.
    pub fn start(&self, family: Family, watchers: Vec<Box<dyn Watcher>>) {
        for watcher in watchers {
            let (sync, period) = (self.sync.clone(), self.period.clone());
            let thread = thread::Builder::new().name("guard".to_owned());
            let spawned = thread.spawn(move || watch(watcher, family, &sync, &period));
            if let Err(error) = spawned {
                let err = error_chain(&error);
                tracing::error!(ipFamily = %family, err, "Failed to start watching for external changes");
            }
        }
    }
}

/// The sync period, which may change while others wait by it.
#[derive(Clone, Debug)]
pub struct Period(Arc<(Mutex<Duration>, Condvar)>);

impl Period {
    /// This long, for now.
    pub fn new(period: Duration) -> Self {
        Self(Arc::new((Mutex::new(period), Condvar::new())))
    }

    /// Another one, also for those who wait already.
    pub fn set(&self, period: Duration) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = period;
        self.0.1.notify_all();
    }

    /// Returns when a period has passed.
    #[expect(
        clippy::disallowed_methods,
        reason = "the time already waited counts when the period changes"
    )]
    pub fn wait(&self) {
        let begun = Instant::now();
        let (period, changed) = &*self.0;
        let mut period = period.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(left) = period.checked_sub(begun.elapsed()) {
            let waited = changed.wait_timeout(period, left);
            period = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Until sync is gone.
fn watch(
    mut watcher: Box<dyn Watcher>,
    family: Family,
    sync: &mpsc::Sender<Input>,
    period: &Period,
) {
    let mut failing = false;
    loop {
        if watcher.cadence() == Cadence::Polled {
            period.wait();
        }
        let result = changed(&mut *watcher);
        let failed_before = std::mem::replace(&mut failing, result.is_err());
        match result {
            Ok(None) => {}
            Ok(Some(change)) => {
                let process = change.process.as_ref();
                let (process, pid) = process.map(|p| (p.name.as_str(), p.id)).unzip();
                info_v!(2, ipFamily = %family, process, pid, "External change to our rules; resyncing");
                if sync.blocking_send(Input::Resync(family, change)).is_err() {
                    return;
                }
            }
            Err(error) => {
                warn(family, &error, failed_before);
                thread::sleep(RETRY);
            }
        }
        if sync.is_closed() {
            return;
        }
    }
}

/// Waits for one change, in however many notifications it comes. Waking sync by each would have it
/// compare everything again after it has repaired everything.
fn changed(watcher: &mut dyn Watcher) -> io::Result<Option<ExternalChange>> {
    let Some(mut change) = watcher.changed(TIMEOUT)? else {
        return Ok(None);
    };
    if watcher.cadence() == Cadence::Notified {
        for _ in 0..MOST {
            let Some(more) = watcher.changed(PAUSE)? else {
                break;
            };
            // Who made it comes last.
            change.process = more.process.or(change.process);
        }
    }
    Ok(Some(change))
}

/// The first failure of a series is worth a warning.
fn warn(family: Family, error: &io::Error, again: bool) {
    let err = error_chain(error);
    if again {
        info_v!(2, ipFamily = %family, err, "Failed to watch for external changes to our rules");
    } else {
        tracing::warn!(ipFamily = %family, err, "Failed to watch for external changes to our rules");
    }
}
