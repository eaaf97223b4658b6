//! The program's entrance: picks the verb, prints the one error that ends it, sets the exit code.

use std::process::ExitCode;

use clap::Parser as _;

mod cli;
mod config;
mod desired;
mod follow;
mod health;
mod http;
mod logging;
mod metrics;
mod moment;
mod pages;
mod sync;
mod watch;

fn main() -> ExitCode {
    let result = match cli::Cli::parse().verb {
        cli::Verb::Desired(arguments) => desired::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("Error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Whoever read our output has seen enough (`ferrule desired … | head`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// One line on standard error.
#[expect(
    clippy::print_stderr,
    reason = "the verbs that look inside tell people directly"
)]
fn complain(line: &str) {
    eprintln!("{line}");
}
