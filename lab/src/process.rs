//! Programs of the lab that keep running, each with a log.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::os;

/// How long a program may take to end when asked to.
const FAREWELL: Duration = Duration::from_secs(10);

/// A running program. Dropping it ends the program.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program that writes to `<folder>/<name>.log`. Earlier lines in it stay.
    pub fn start(name: &str, command: &mut Command, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("`{name}` cannot be started"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Its process id, as seen in the lab.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, once it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Fails with the end of its log when it is no longer running.
    pub fn check(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(());
        };
        anyhow::bail!("{} ended with {status}; {}", self.name, self.log_end())
    }

    /// The last lines of its log, for an error.
    pub fn log_end(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(15).collect();
        let last: Vec<_> = lines.into_iter().rev().collect();
        format!("the end of {}:\n{}", self.log.display(), last.join("\n"))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let id = i32::try_from(self.child.id()).context("no process has such an id")?;
        kill(Pid::from_raw(id), signal).context("cannot send it a signal")
    }

    /// Asks it to end, and makes it end when it does not.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        self.signal(Signal::SIGTERM)?;
        match os::poll(FAREWELL, || self.ended()) {
            Some(status) => Ok(status),
            None => self.kill(),
        }
    }

    /// Ends it without asking.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.child.kill()?;
        Ok(self.child.wait()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It ends with the lab in any case.
        let _ended = self.kill();
    }
}
