//! A dataplane for tests: remembers what it was asked, and fails on request.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferrule_core::model::{Family, PortKey};
use ferrule_dataplane::{Applied, ApplyError, Dataplane, Scope, Watcher, Work};

/// What the recorder was asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// All of it; the keys of all exposures.
    Full(Family, Vec<PortKey>),
    /// A delta; the keys that changed and those that went.
    Delta(Family, Vec<PortKey>, Vec<PortKey>),
    /// To remove everything.
    Remove(Family),
    /// To do what comes due by itself; noted only where that was planned.
    Tick,
}

/// Shared between the recorder and the test that watches it.
#[derive(Clone, Debug, Default)]
pub struct Script(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
    local: Vec<IpAddr>,
    failures: VecDeque<io::ErrorKind>,
    broken: Option<Family>,
    /// What the next ticks return: when the one after is due, or a failure.
    ticks: VecDeque<Option<Duration>>,
}

impl Script {
    /// The next call that is not already to fail fails so.
    pub fn fail_next(&self, kind: io::ErrorKind) {
        self.with(|state| state.failures.push_back(kind));
    }

    /// Every call for this family fails.
    pub fn break_family(&self, family: Family) {
        self.with(|state| state.broken = Some(family));
    }

    /// The next tick is followed by another one after so long; `None` fails.
    pub fn tick_again(&self, after: Option<Duration>) {
        self.with(|state| state.ticks.push_back(after));
    }

    /// Takes the calls made so far.
    pub fn take_calls(&self) -> Vec<Call> {
        self.with(|state| std::mem::take(&mut state.calls))
    }

    /// Whether a call was made that was not taken.
    pub fn was_called(&self) -> bool {
        self.with(|state| !state.calls.is_empty())
    }

    /// The addresses of interfaces that came with the last call.
    pub fn local(&self) -> Vec<IpAddr> {
        self.with(|state| state.local.clone())
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The dataplane side of a [`Script`].
#[derive(Debug)]
pub struct Recorder(pub Family, pub Script);

impl Dataplane for Recorder {
    fn apply(&mut self, work: &Work<'_>) -> Result<Applied, ApplyError> {
        let (call, steps) = match work.scope {
            Scope::Full => {
                let all = work.desired.exposures(self.0);
                let keys: Vec<_> = all.into_iter().map(|e| e.key.clone()).collect();
                let steps = keys.len();
                (Call::Full(self.0, keys), steps)
            }
            Scope::Delta(delta) => {
                let changed = delta.changed().map(|(key, _)| key.clone()).collect();
                let removed = delta.removed().cloned().collect();
                let call = Call::Delta(self.0, changed, removed);
                (call, delta.changes.len())
            }
        };
        let failure = self.1.with(|state| {
            state.calls.push(call);
            state.local = work.local.to_vec();
            let broken = (state.broken == Some(self.0)).then_some(io::ErrorKind::Unsupported);
            broken.or_else(|| state.failures.pop_front())
        });
        match failure {
            None => Ok(Applied::steps(steps)),
            Some(kind) => Err(ApplyError::Refused {
                step: "what the test wanted".to_owned(),
                source: kind.into(),
            }),
        }
    }

    fn remove(&mut self) -> Result<Applied, ApplyError> {
        self.1.with(|state| state.calls.push(Call::Remove(self.0)));
        Ok(Applied::steps(1))
    }

    fn watch(&mut self) -> Vec<Box<dyn Watcher>> {
        Vec::new()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, ApplyError> {
        let planned = self.1.with(|state| {
            let planned = state.ticks.pop_front();
            state.calls.extend(planned.map(|_| Call::Tick));
            planned
        });
        match planned {
            None => Ok(None),
            Some(Some(after)) => Ok(Some(now + after)),
            Some(None) => Err(ApplyError::OutOfSync(io::ErrorKind::TimedOut.into())),
        }
    }
}
