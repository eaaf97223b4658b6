//! Tests that cannot run here.

use std::fs::OpenOptions;
use std::io::Write as _;

use crate::variable;

/// Where `cargo xtask test` reads which tests were left out, and why.
const FILE: &str = "FERRULE_LEFT_OUT";

/// Reports that the calling test, or a part of it, cannot run here. Where `CI` is set that is a
/// failure.
pub fn leave_out(why: &str) {
    assert!(!variable("CI"), "cannot run here: {why}");
    eprintln!("NOT RUN: {why}");
    let Some(file) = std::env::var_os(FILE) else {
        return;
    };
    let line = format!("{}\t{}\n", name(), why.replace(['\t', '\n'], " "));
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .unwrap();
    // At once: tests that run at the same time write to it, too.
    file.write_all(line.as_bytes()).unwrap();
}

/// Which test this is, as far as it is known.
fn name() -> String {
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    // nextest runs each test by its name. Otherwise its thread has that name.
    let test = if variable("NEXTEST") {
        arguments.find(|argument| !argument.starts_with('-'))
    } else {
        std::thread::current().name().map(str::to_owned)
    };
    format!("{program} {}", test.unwrap_or_default())
}
