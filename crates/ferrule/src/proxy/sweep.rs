//! Removes what other modes left behind, once ours is programmed: two answers are better than none.
//!
//! In: parts of the kernel's state that are ours now. On a thread of its own, as looking for rules
//! may take long where there are many external ones. What fails is tried again, ever later.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use ferrule_dataplane::error_chain;

use crate::logging::info_v;
use crate::modes::{Mode, Part};

/// The first wait after a failure, and the longest.
const FIRST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_mins(10);

/// Sweeps the parts it is given.
pub struct Sweep(Sender<Part>);

impl Sweep {
    /// Sweeps for this mode.
    pub fn start(mode: &'static Mode) -> Self {
        let (sender, parts) = mpsc::channel();
        let thread = thread::Builder::new().name("sweep".to_owned());
        if let Err(error) = thread.spawn(move || run(mode, &parts)) {
            let err = error_chain(&error);
            tracing::error!(err, "Failed to start removing the rules of other modes");
        }
        Self(sender)
    }

    /// This part is programmed: what other modes have there goes.
    pub fn part(&self, part: Part) {
        // The thread only ends when we do, or never began.
        _ = self.0.send(part);
    }
}

fn run(mode: &'static Mode, parts: &Receiver<Part>) {
    let mut pending: Vec<(&Mode, Part)> = Vec::new();
    let mut wait = FIRST;
    loop {
        let part = if pending.is_empty() {
            parts.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            parts.recv_timeout(wait)
        };
        match part {
            Ok(part) => {
                let todo = mode.others(part).map(|other| (other, part));
                pending.extend(todo.filter(|(other, part)| !remove(other, *part, true)));
                wait = FIRST;
            }
            Err(RecvTimeoutError::Timeout) => {
                pending.retain(|(other, part)| !remove(other, *part, false));
                wait = (wait * 2).min(LONGEST);
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Removes a mode's part; whether that succeeded.
fn remove(mode: &Mode, part: Part, first: bool) -> bool {
    let (name, family) = (mode.name, part.to_string());
    match (mode.remove)(part) {
        Ok(applied) => {
            if applied.steps > 0 {
                tracing::info!(
                    ipFamily = family,
                    mode = name,
                    "Removed the rules of another mode"
                );
            }
            true
        }
        Err(error) => {
            let err = format!("{error:#}");
            if first {
                tracing::warn!(
                    ipFamily = family,
                    mode = name,
                    err,
                    "Failed to remove the rules of another mode; will retry"
                );
            } else {
                info_v!(
                    2,
                    ipFamily = family,
                    mode = name,
                    err,
                    "Failed to remove the rules of another mode; will retry"
                );
            }
            false
        }
    }
}
