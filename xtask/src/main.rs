//! The one front door for people and CI: `cargo xtask <verb>`.
//!
//! In: a verb. Out: the programs it runs, with their own output as it comes, and an exit code.
//! Verbs only put commands in order; what is tested or measured lives in the crates themselves.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it talks to a terminal"
)]

mod deny;
mod run;
mod test;
mod tools;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Test(options) => test::all(&options),
        Verb::Tidy => test::tidy(),
        Verb::Bench { subject } => bench(&subject),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nfailed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Builds, tests and measures ferrule.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Runs every check that a change must pass; CI runs exactly this.
    ///
    /// In order: tools, formatting, clippy, dependency rules, tests, doc tests, documentation.
    /// Stops at the first failure. Missing tools are installed first, which takes a few minutes
    /// once.
    Test(test::Options),
    /// Formats the code and checks headers, documents and the parity table. Takes seconds.
    Tidy,
    /// Measures cost and growth.
    Bench {
        #[command(subcommand)]
        subject: Subject,
    },
}

#[derive(Subcommand)]
enum Subject {
    /// The pure part: events in, desired state out, at growing cluster sizes.
    Core {
        /// Smaller clusters and fewer rounds, to see that it runs at all.
        #[arg(long)]
        quick: bool,
    },
    /// Counts instructions of the paths that matter and compares them with the recorded ones.
    Check {
        /// Records what is now.
        #[arg(long)]
        renew: bool,
    },
}

fn bench(subject: &Subject) -> Result<()> {
    let arguments = match subject {
        Subject::Core { quick } => ["core"].into_iter().chain(quick.then_some("--quick")),
        Subject::Check { renew } => {
            tools::ensure(&[])?;
            ["check"].into_iter().chain(renew.then_some("--renew"))
        }
    };
    bench_with(arguments)
}

/// Runs the program that measures.
pub(crate) fn bench_with<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let cargo = [
        "run",
        "--profile",
        "bench",
        "--locked",
        "-p",
        "ferrule-bench",
        "--",
    ];
    run::cargo(cargo.into_iter().chain(arguments))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_follows_two_dashes_goes_to_nextest() {
        let cli =
            Cli::try_parse_from(["xtask", "test", "--quick", "--", "--no-capture", "core_079"]);
        let Verb::Test(options) = cli.unwrap().verb else {
            panic!("another verb")
        };
        assert!(options.quick);
        assert_eq!(options.nextest, ["--no-capture", "core_079"]);
    }
}
