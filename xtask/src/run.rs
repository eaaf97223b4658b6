//! Runs other programs in the root of the repository.
//!
//! The only place in xtask where a program starts or the clock is read.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Runs cargo and shows its output; fails when it does.
pub(crate) fn cargo<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<()> {
    program("cargo", arguments, &[])
}

/// Runs a program with more environment and shows its output; fails when it does.
pub(crate) fn program<'a>(
    name: &str,
    arguments: impl IntoIterator<Item = &'a str>,
    environment: &[(&str, &str)],
) -> Result<()> {
    let mut command = command(name);
    command.args(arguments).envs(environment.iter().copied());
    let line = line(&command);
    println!("   {line}");
    let status = command
        .status()
        .with_context(|| format!("`{name}` cannot be started"))?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// What a program printed, when the caller must read it.
pub(crate) struct Captured {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a program quietly and returns what it printed; fails only when it cannot be started.
pub(crate) fn capture<'a>(
    name: &str,
    arguments: impl IntoIterator<Item = &'a str>,
) -> Result<Captured> {
    let output = command(name)
        .args(arguments)
        // Nobody sees a question, so nobody can answer one.
        .env("GIT_TERMINAL_PROMPT", "0")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("`{name}` cannot be started"))?;
    Ok(Captured {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Runs a program whose output goes to a file, and shows what appears in another file meanwhile.
/// Returns how it ended.
pub(crate) fn quietly<'a>(
    name: &str,
    arguments: impl IntoIterator<Item = &'a str>,
    output: &Path,
    shown: &Path,
) -> Result<ExitStatus> {
    let file =
        File::create(output).with_context(|| format!("{} is in the way", output.display()))?;
    let mut command = command(name);
    command.args(arguments);
    command.stdin(Stdio::null());
    command.stderr(file.try_clone()?).stdout(file);
    println!("   {}", line(&command));
    let mut child = command
        .spawn()
        .with_context(|| format!("`{name}` cannot be started"))?;
    let mut at = 0;
    loop {
        let ended = child.try_wait()?;
        // Also what was written between the last look and the end.
        at = show(shown, at)?;
        if let Some(status) = ended {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Shows what is behind this place of a file, if there is one; returns the place behind it.
fn show(path: &Path, at: u64) -> Result<u64> {
    let Ok(mut file) = File::open(path) else {
        return Ok(at);
    };
    file.seek(SeekFrom::Start(at))?;
    Ok(at + io::copy(&mut file, &mut io::stdout())?)
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .expect("xtask lies in the root of the repository")
        .to_owned()
}

/// A variable of the environment.
pub(crate) fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Where a program is on the search path.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&search_path()?)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// `PATH`, and where `nft`, `iptables` and `ip` are: on Debian these folders are on the search path
/// of root alone.
fn search_path() -> Option<OsString> {
    let path = std::env::var_os("PATH")?;
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    for folder in ["/usr/local/sbin", "/usr/sbin", "/sbin"] {
        if !folders.iter().any(|known| known == Path::new(folder)) {
            folders.push(folder.into());
        }
    }
    // What came from one search path can be put into another.
    std::env::join_paths(folders).ok()
}

/// Whether this is CI, where a step that cannot run is a failure.
pub(crate) fn is_ci() -> bool {
    variable("CI").is_some()
}

#[expect(
    clippy::disallowed_methods,
    reason = "headings show how long a step took"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "every program xtask runs starts here"
)]
fn command(name: &str) -> Command {
    let mut command = Command::new(name);
    command.envs(search_path().map(|path| ("PATH", path)));
    command.current_dir(root());
    command
}

/// The command as one would type it.
fn line(command: &Command) -> String {
    let environment = command.get_envs().filter(|(name, _)| *name != "PATH");
    let environment = environment.filter_map(|(name, value)| {
        Some(format!(
            "{}={}",
            name.to_string_lossy(),
            value?.to_string_lossy()
        ))
    });
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    environment
        .chain(words.map(|word| word.to_string_lossy().into_owned()))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_program_is_named_with_its_exit_code() {
        let error = program("sh", ["-c", "exit 7"], &[])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("sh -c exit 7") && error.contains('7'),
            "{error}"
        );
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = program("no-such-program", [], &[]).unwrap_err().to_string();
        assert!(error.contains("no-such-program"), "{error}");
        assert_eq!(find("no-such-program"), None);
    }

    #[test]
    fn programs_of_administrators_are_found_whatever_the_search_path() {
        let output = capture("sh", ["-c", "echo $PATH"]).unwrap();
        let folders: Vec<_> = output.stdout.trim().split(':').collect();
        assert!(folders.contains(&"/usr/sbin"), "{folders:?}");
    }

    #[test]
    fn programs_start_in_the_root_of_the_repository() {
        assert!(capture("test", ["-f", "deny.toml"]).unwrap().success);
    }
}
