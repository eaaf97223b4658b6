//! The rights of root in a user namespace, for those who are not root.
//!
//! A process with several threads cannot enter a user namespace, and tests run in threads. But
//! nextest gives each test a process of its own, so that process can begin again as `unshare` and
//! come back as the same test with the rights that it needs, over networks of its own alone.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::variable;

/// Set where this process began again already.
const AGAIN: &str = "FERRULE_TESTS_BEGAN_AGAIN";

/// Runs this test again in a user namespace, and does not return. If that is not possible: why.
pub fn begin_again() -> String {
    // One thread alone: while it becomes another program, the others see that one's environment.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if variable(AGAIN) {
        return "a user namespace does not give it".to_owned();
    }
    if !variable("NEXTEST") {
        return "only nextest gives each test a process that can enter a user namespace".to_owned();
    }
    if let Err(why) = is_allowed() {
        return why;
    }
    let error = unshare()
        .arg(std::env::current_exe().unwrap())
        .args(std::env::args_os().skip(1))
        .env(AGAIN, "1")
        // That of the machine is root's. Whoever has a network of his own needs no other.
        .env(
            "XTABLES_LOCKFILE",
            std::env::temp_dir().join("ferrule-tests-xtables.lock"),
        )
        .exec();
    format!("unshare cannot be run: {error}")
}

/// Tried first: whoever has become `unshare` can only fail.
fn is_allowed() -> Result<(), String> {
    let tried = unshare().args(["--net", "true"]).output();
    let output = tried.map_err(|error| format!("unshare cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("user namespaces are not allowed: {}", said.trim()))
}

fn unshare() -> Command {
    #[expect(clippy::disallowed_methods, reason = "tests may run programs")]
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user"]);
    unshare
}
