//! A dataplane for tests: remembers what it was asked, and fails on request.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use ferrule_core::model::{Family, PortKey};

use crate::{Applied, ApplyError, Dataplane, Scope, Work};

/// What the recorder was asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// All of it; the keys of all exposures.
    Whole(Family, Vec<PortKey>),
    /// A delta; the keys that changed and those that went.
    Delta(Family, Vec<PortKey>, Vec<PortKey>),
}

/// Shared between the recorder and the test that watches it.
#[derive(Clone, Debug, Default)]
pub struct Script(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
    failures: VecDeque<io::ErrorKind>,
}

impl Script {
    /// The next call that is not already to fail fails so.
    pub fn fail_next(&self, kind: io::ErrorKind) {
        self.with(|state| state.failures.push_back(kind));
    }

    /// Takes the calls made so far.
    pub fn take_calls(&self) -> Vec<Call> {
        self.with(|state| std::mem::take(&mut state.calls))
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The dataplane side of a [`Script`].
#[derive(Debug)]
pub struct Recorder(pub Script);

impl Dataplane for Recorder {
    fn apply(&mut self, work: &Work<'_>) -> Result<Applied, ApplyError> {
        let (call, steps) = match work.scope {
            Scope::Whole => {
                let all = work.desired.exposures(work.family);
                let keys: Vec<_> = all.into_iter().map(|e| e.key.clone()).collect();
                let steps = keys.len();
                (Call::Whole(work.family, keys), steps)
            }
            Scope::Delta(delta) => {
                let changed = delta.changed().map(|(key, _)| key.clone()).collect();
                let removed = delta.removed().cloned().collect();
                (
                    Call::Delta(work.family, changed, removed),
                    delta.changes.len(),
                )
            }
        };
        self.0.with(|state| {
            state.calls.push(call);
            match state.failures.pop_front() {
                None => Ok(Applied { steps }),
                Some(kind) => Err(ApplyError::Refused {
                    step: "what the test wanted".to_owned(),
                    source: kind.into(),
                }),
            }
        })
    }
}
