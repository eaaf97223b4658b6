//! Tests that could not run here: they write their names and reasons to a file, one line each.
//!
//! In: that file. Out: a line for each reason with the number of its tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// Tells tests the name of the file (`crates/testbed` reads it).
pub(crate) const VARIABLE: &str = "FERRULE_LEFT_OUT";

/// Removes what an earlier run left, and returns the name of the file.
pub(crate) fn begin() -> Result<String> {
    let file = file().context("xtask lies in a folder")?;
    match fs::remove_file(&file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).context(format!("cannot remove {}", file.display()));
        }
        _ => {}
    }
    let name = file
        .to_str()
        .context("the target folder's name is not text")?;
    Ok(name.to_owned())
}

/// What to tell the reader at the end.
pub(crate) fn read() -> Vec<String> {
    let written = file().and_then(|file| fs::read_to_string(file).ok());
    count(&written.unwrap_or_default())
}

fn file() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    Some(own.parent()?.join("ferrule-tests-left-out"))
}

/// A test that is left out several times for one reason counts once.
fn count(written: &str) -> Vec<String> {
    let mut reasons: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (test, reason) in written.lines().filter_map(|line| line.split_once('\t')) {
        reasons.entry(reason).or_default().insert(test);
    }
    reasons
        .into_iter()
        .map(|(reason, tests)| match tests.len() {
            1 => format!("1 test left out: {reason}"),
            count => format!("{count} tests left out: {reason}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_once_for_each_reason() {
        let written = "a::x\tno rights\na::x\tno rights\na::y\tno rights\na::y\tno SCTP\ncut off";
        let lines = ["1 test left out: no SCTP", "2 tests left out: no rights"];
        assert_eq!(count(written), lines);
        assert_eq!(count(""), [""; 0]);
    }
}
