//! The only place in the lab where a program starts or the clock is read.

use std::ffi::OsStr;
use std::io::Write as _;
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

/// Runs a program to its end with this text as its input.
pub fn feed(command: &mut Command, text: &str) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("`{name}` cannot be started"))?;
    let mut stdin = child.stdin.take().context("stdin was asked for")?;
    stdin.write_all(text.as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{name}` ended with {}: {}", output.status, said.trim());
    }
    Ok(())
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
