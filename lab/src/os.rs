//! The only place in the lab where a program starts or the clock is read.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};

/// A program to be started.
#[expect(
    clippy::disallowed_methods,
    reason = "every program of the lab starts here"
)]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

#[expect(
    clippy::disallowed_methods,
    reason = "deadlines and the time a story took"
)]
pub fn now() -> Instant {
    Instant::now()
}

/// The time of day, which programs write into their metrics.
#[expect(
    clippy::disallowed_methods,
    reason = "times that other programs report are compared with ours"
)]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Runs a program to its end and returns what it printed.
pub fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("`{name}` cannot be started"))?;
    if !output.status.success() {
        bail!(
            "`{name}` ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Asks again and again, a few milliseconds apart, until there is an answer or time is up.
pub fn poll<T>(timeout: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = now();
    loop {
        let answer = ask();
        if answer.is_some() || begun.elapsed() > timeout {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(4));
    }
}
