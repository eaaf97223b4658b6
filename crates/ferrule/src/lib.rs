//! The program: picks the verb, prints the one error that ends it, sets the exit code.
//!
//! A library only so that others can link its parts: `cargo xtask bench check` counts the instructions of
//! [`paths`], and `cargo xtask fuzz` feeds them with anything.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser as _;

mod admin;
mod bundle;
mod cli;
mod clock;
mod config;
mod desired;
mod explain;
mod file_watch;
mod health;
mod http;
mod inspect;
mod logging;
#[cfg(feature = "manual")]
mod manual;
mod metrics;
mod modes;
mod pages;
pub mod paths;
mod proxy;
mod render;
mod sync;
mod systemd;
#[cfg(test)]
mod test_log;
mod ui;
mod verify;
mod version;
mod watch;

/// Runs it with the arguments of this process.
pub fn main() -> ExitCode {
    run(std::env::args_os().collect())
}

/// The whole program; the first argument is its own name.
fn run(arguments: Vec<OsString>) -> ExitCode {
    let program = arguments.first().cloned().unwrap_or_default();
    // In kube-proxy's place we are kube-proxy; `ferrule proxy` is the same thing by our own name.
    if Path::new(&program).file_name() == Some(OsStr::new("kube-proxy")) {
        return proxy::main(&arguments[1..]);
    }
    if arguments.get(1).map(OsString::as_os_str) == Some(OsStr::new("proxy")) {
        return proxy::main(&arguments[2..]);
    }
    let done = |()| ExitCode::SUCCESS;
    let result = match cli::Cli::parse_from(arguments).verb {
        cli::Verb::Verify(arguments) => return verify::run(&arguments),
        cli::Verb::Desired(arguments) => desired::run(&arguments).map(done),
        cli::Verb::Render(arguments) => render::run(&arguments).map(done),
        cli::Verb::Explain(arguments) => explain::run(&arguments),
        cli::Verb::SupportBundle(arguments) => bundle::run(&arguments),
        cli::Verb::Proxy => return proxy::main(&[]),
        #[cfg(feature = "manual")]
        cli::Verb::Manual { folder } => manual::write(&folder).map(done),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&format!("Error: {error:#}"));
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
    reason = "the verbs for inspection write to the terminal"
)]
fn print_error(line: &str) {
    eprintln!("{line}");
}
