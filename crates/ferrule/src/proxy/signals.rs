//! Signals: leave at once, and leave the rules where they are.
//!
//! As the first process of a container nothing happens on SIGTERM unless it is asked for.

use std::io;
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end us, and the one that must not.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    quit: Signal,
    /// Go programs ignore it; somebody may send it by habit.
    _user: Signal,
}

impl Signals {
    /// Listens from now on.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            _user: signal(SignalKind::user_defined1())?,
        })
    }

    /// Waits for the next one; the exit code is what a shell shows for it.
    pub async fn next(&mut self) -> ExitCode {
        let (name, code) = tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", 143),
            _ = self.interrupt.recv() => ("SIGINT", 130),
            _ = self.hang_up.recv() => ("SIGHUP", 129),
            _ = self.quit.recv() => ("SIGQUIT", 2),
        };
        tracing::info!(signal = name, "Received signal; stopping");
        ExitCode::from(code)
    }
}
