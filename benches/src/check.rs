//! Counts instructions and compares them with the recorded ones: slower code shows, whatever else
//! the machine is doing.
//!
//! In: this program itself, run under callgrind once per path of [`super::paths`], and the example
//! `paths` of ferrule, which has the program's own. Out: a table, and a failure when a path needs
//! clearly more than it did.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::paths;

/// Growth that is not noise, in percent. Hash maps are seeded, so counts differ by about one.
const TOLERANCE: f64 = 10.0;

/// Paths of the example.
const OF_THE_PROGRAM: [&str; 3] = [
    "watch: protobuf lists",
    "watch: protobuf changes",
    "sync: pace",
];

/// Where the recorded counts are.
fn record() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.txt")
}

/// Runs one path, for callgrind to look at.
pub fn run_path(name: &str) -> Result<(), String> {
    let found = paths::ALL.iter().find(|(path, _)| *path == name);
    let (_, path) = found.ok_or_else(|| format!("no path is called {name:?}"))?;
    path();
    Ok(())
}

/// Compares, or with `renew` writes down what is now.
pub fn run(example: &Path, renew: bool) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let own = paths::ALL.iter().map(|(name, _)| (*name, own.as_path()));
    let all = own.chain(OF_THE_PROGRAM.map(|name| (name, example)));
    let recorded = if renew {
        BTreeMap::new()
    } else {
        read(&record())?
    };
    let mut faults = Vec::new();
    let mut text = header();
    println!("| path | recorded | now | change |\n|---|---:|---:|---:|");
    for (name, program) in all {
        let now = count(program, name)?;
        writeln!(text, "{now:>12}  {name}").map_err(|error| error.to_string())?;
        let Some(before) = recorded.get(name) else {
            println!("| {name} | – | {now} | |");
            if !renew {
                faults.push(format!("{name}: nothing is recorded"));
            }
            continue;
        };
        let change = percent(*before, now);
        println!("| {name} | {before} | {now} | {change:+.1} % |");
        if change > TOLERANCE {
            faults.push(format!("{name}: {change:.1} % more instructions"));
        }
    }
    if renew {
        return std::fs::write(record(), text).map_err(|error| error.to_string());
    }
    if faults.is_empty() {
        return Ok(());
    }
    let advice = "If that is worth it, say why and run `cargo xtask bench check --renew`.";
    Err(format!("{}\n{advice}", faults.join("\n")))
}

fn header() -> String {
    "# Instructions per path, counted by callgrind; see benches/src/paths.rs and\n\
     # crates/ferrule/examples/paths.rs.\n\
     # `cargo xtask bench check` compares, `--renew` writes this file.\n"
        .to_owned()
}

#[expect(clippy::cast_precision_loss, reason = "a percentage needs few digits")]
fn percent(before: u64, now: u64) -> f64 {
    (now as f64 / before as f64 - 1.0) * 100.0
}

fn read(file: &Path) -> Result<BTreeMap<String, u64>, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (count, name) = line.trim().split_once("  ").ok_or(line)?;
            Ok((name.to_owned(), count.parse().map_err(|_| line)?))
        })
        .collect::<Result<_, &str>>()
        .map_err(|line| format!("{}: not a count and a name: {line:?}", file.display()))
}

/// Instructions of one path.
fn count(program: &Path, name: &str) -> Result<u64, String> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*paths::measured*")
        .arg(program)
        .args(["path", name])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("valgrind cannot be started: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let counted = said.lines().find_map(|line| {
        let (_, count) = line.split_once("Collected :")?;
        count.trim().parse().ok()
    });
    match counted {
        Some(count) if output.status.success() && count > 0 => Ok(count),
        _ => Err(format!("{name}: nothing was counted\n{said}")),
    }
}
