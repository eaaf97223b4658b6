//! A node with pods, a Service and a rollout under load, in namespaces that vanish with the process.
//!
//! In: the built `ferrule`, a folder with a Node and a Service, and the namespaces that
//! `cargo xtask demo` starts this in. Out: a small report, and whether every request was answered.
//!
//! This process is the first of its PID namespace: when it ends, for whatever reason, everything
//! that it started ends too, and with it the networks.

#![expect(clippy::print_stdout, reason = "it exists to be watched on a terminal")]
#![expect(
    clippy::disallowed_methods,
    reason = "it starts programs and looks at the clock, as a person would"
)]

mod cluster;
mod load;
mod metrics;
mod pod;
mod proxy;
mod show;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

/// Run by `cargo xtask demo`.
#[derive(Parser)]
enum Cli {
    /// The whole show
    Show {
        /// The built ferrule
        #[arg(long)]
        ferrule: PathBuf,
        /// Folder with a Node and a Service
        #[arg(long)]
        manifests: PathBuf,
        /// Keep running afterwards
        #[arg(long)]
        keep: bool,
    },
    /// One pod: a server that answers with its name
    Pod { name: String },
}

fn main() -> ExitCode {
    let result = match Cli::parse() {
        Cli::Show {
            ferrule,
            manifests,
            keep,
        } => {
            end_on_signals();
            show::run(&ferrule, &manifests, keep)
        }
        Cli::Pod { name } => pod::serve(&name).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("\nfailed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Without this the first process of a PID namespace receives no signal but the one that kills.
fn end_on_signals() {
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let mut interrupt = signal(SignalKind::interrupt())?;
            let mut terminate = signal(SignalKind::terminate())?;
            let mut hangup = signal(SignalKind::hangup())?;
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            println!("\nEnded; nothing is left.");
            std::process::exit(130);
            #[expect(unreachable_code, reason = "says what the block would give")]
            std::io::Result::Ok(())
        })
    });
}
