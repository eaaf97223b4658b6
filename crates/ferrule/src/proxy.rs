//! `ferrule proxy`: kube-proxy's command line, from start to exit code.
//!
//! Flags, file and validation come first and end in [`Options`]; then either one of the short
//! errands (`--version`, `--write-config-to`, …) or [`run::run`], which returns only when the
//! program must stop. Rules stay in the kernel whatever the reason.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;

use crate::config::flags::{self, Request};
use crate::config::options::{self, Failure, Notice, Options};
use crate::config::{encode, v1alpha1::LoggingConfiguration};
use crate::logging;
use crate::print_error;

mod addresses;
mod checks;
mod cluster;
mod dataplanes;
mod events;
mod guard;
mod reload;
mod reporter;
mod run;
mod servers;
mod signals;
mod source;
mod startup;
mod succession;
mod sweep;

/// Runs the daemon with these arguments, the program's name not among them.
pub fn main(arguments: &[OsString]) -> ExitCode {
    // What is not UTF-8 is no flag of ours; the message shows where it broke.
    let words = arguments
        .iter()
        .map(|word| word.to_string_lossy().into_owned());
    let flags = match flags::parse(words) {
        Ok(flags) => flags,
        Err(error) => {
            print_error(error.report().trim_end());
            return ExitCode::FAILURE;
        }
    };
    for notice in &flags.notices {
        print_error(notice);
    }
    if let Request::Print(text) = flags.request() {
        // Whoever closed the pipe has read enough.
        _ = io::stdout().write_all(text.as_bytes());
        return ExitCode::SUCCESS;
    }
    let options = match options::complete(flags, |path| fs::read_to_string(path), os_hostname) {
        Ok(options) => options,
        Err(failure) => return fail_early(&failure),
    };
    logging::install(&options.config.logging);
    tell(&options.notices);
    let code = errand_or_run(&options).unwrap_or_else(|error| {
        let err = format!("{error:#}");
        tracing::error!(err, "Error running ProxyServer");
        tracing::error!(err, "command failed");
        ExitCode::FAILURE
    });
    logging::flush();
    code
}

fn errand_or_run(options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(file) = &options.write_config_to {
        fs::write(file, encode::yaml(&options.config))
            .with_context(|| format!("cannot write the configuration to {}", file.display()))?;
        tracing::info!(file = %file.display(), "Wrote configuration");
        return Ok(ExitCode::SUCCESS);
    }
    if options.cleanup {
        dataplanes::clean_up(options)?;
        return Ok(ExitCode::SUCCESS);
    }
    run::run(options)
}

/// A configuration that cannot be used.
fn fail_early(failure: &Failure) -> ExitCode {
    let default = LoggingConfiguration::default();
    logging::install(failure.logging.as_ref().unwrap_or(&default));
    tell(&failure.notices);
    tracing::error!(err = %failure.error, "command failed");
    logging::flush();
    ExitCode::FAILURE
}

/// Logs what was noticed before logging was set up.
fn tell(notices: &[Notice]) {
    for notice in notices {
        notice.log();
    }
}

fn os_hostname() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/hostname")
}
