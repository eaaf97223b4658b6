//! Checks dependencies against deny.toml and the database of known vulnerabilities.
//!
//! Where cargo-deny is not installed both are skipped; CI has it. The rules need no network and
//! always count. The database is a git repository that may be out
//! of reach: then a copy from an earlier run is used, and without one the check is skipped and
//! says so. A vulnerability that was found is never skipped.

use anyhow::{Result, bail};

use crate::run::{self, Captured};
use crate::test::{Outcome, skip};
use crate::tools;

/// Bans, licences and sources.
pub(crate) fn rules() -> Result<Outcome> {
    if let Some(reason) = not_installed() {
        return skip(format!("dependency rules: {reason}"));
    }
    run::cargo(["deny", "--locked", "check", "bans", "licenses", "sources"])?;
    Ok(Outcome::Done)
}

/// Known vulnerabilities and yanked versions.
pub(crate) fn advisories() -> Result<Outcome> {
    if let Some(reason) = not_installed() {
        return skip(format!("known vulnerabilities: {reason}"));
    }
    let ask = |network: &[&'static str]| {
        let first = ["deny", "--locked", "--color", "never"].into_iter();
        run::capture(
            "cargo",
            first
                .chain(network.iter().copied())
                .chain(["check", "advisories"]),
        )
    };
    let online = ask(&[])?;
    let Verdict::OutOfReach(why) = verdict(&online) else {
        return report(&online);
    };
    let offline = ask(&["--offline"])?;
    if let Verdict::OutOfReach(_) = verdict(&offline) {
        return Ok(Outcome::Skipped(format!(
            "known vulnerabilities: the advisory database cannot be fetched ({why})"
        )));
    }
    println!("   the advisory database cannot be fetched ({why}); using an earlier copy");
    report(&offline)
}

/// Why cargo-deny cannot be asked. CI has it; for anyone else building it takes too long.
fn not_installed() -> Option<String> {
    let install = tools::DENY.install_command();
    let reason = format!("cargo-deny is not installed; CI asks it, or after {install}");
    (!tools::DENY.is_installed()).then_some(reason)
}

/// Shows what cargo-deny printed and takes over its judgement.
fn report(output: &Captured) -> Result<Outcome> {
    print!("{}{}", output.stderr, output.stdout);
    match verdict(output) {
        Verdict::Clean => Ok(Outcome::Done),
        Verdict::Found => bail!("a dependency has a known vulnerability or was yanked; see above"),
        Verdict::OutOfReach(why) | Verdict::Broken(why) => bail!("cargo-deny failed: {why}"),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Clean,
    Found,
    /// It never got to judge, because there is no database.
    OutOfReach(String),
    /// It never got to judge for a reason of its own.
    Broken(String),
}

/// Reads cargo-deny's closing line. Its exit code cannot tell a vulnerability from a failure.
fn verdict(output: &Captured) -> Verdict {
    let closing = |word: &str| output.stdout.lines().any(|line| line.trim() == word);
    if closing("advisories ok") && output.success {
        return Verdict::Clean;
    }
    if closing("advisories FAILED") {
        return Verdict::Found;
    }
    let why = output
        .stderr
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("no reason");
    let why = why.trim_start_matches("fatal: ").trim().to_owned();
    let no_database = [
        "failed to fetch advisory database",
        "failed to get 'FETCH_HEAD' metadata",
    ];
    if no_database.iter().any(|text| output.stderr.contains(text)) {
        Verdict::OutOfReach(why)
    } else {
        Verdict::Broken(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(success: bool, stdout: &str, stderr: &str) -> Captured {
        Captured {
            success,
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
        }
    }

    #[test]
    fn a_found_vulnerability_is_not_a_missing_database() {
        let stderr = "error[vulnerability]: failed to fetch advisory database\n";
        assert_eq!(
            verdict(&output(false, "advisories FAILED\n", stderr)),
            Verdict::Found
        );
    }

    #[test]
    fn a_database_out_of_reach_gives_the_reason() {
        let stderr = "[ERROR] failed to fetch advisory database https://x with cli: failed\n\
                      fatal: unable to access 'https://x/': Could not resolve host: x\n\n";
        let why = "unable to access 'https://x/': Could not resolve host: x".to_owned();
        assert_eq!(
            verdict(&output(false, "", stderr)),
            Verdict::OutOfReach(why)
        );
    }

    #[test]
    fn a_broken_configuration_is_neither_clean_nor_skipped() {
        let stderr = "[ERROR] failed to validate configuration file deny.toml\n";
        assert!(matches!(
            verdict(&output(false, "", stderr)),
            Verdict::Broken(_)
        ));
        assert!(matches!(
            verdict(&output(false, "advisories ok\n", "odd")),
            Verdict::Broken(_)
        ));
        assert_eq!(
            verdict(&output(true, "advisories ok\n", "")),
            Verdict::Clean
        );
    }
}
