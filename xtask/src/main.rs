//! The one front door for people and CI: `cargo xtask <verb>`.
//!
//! In: a verb. Out: the programs it runs, with their own output as it comes, and an exit code.
//! Verbs only put commands in order; what is tested or measured lives in the crates themselves.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it talks to a terminal"
)]

mod demo;
mod deny;
mod dist;
mod fuzz;
mod lab;
mod left_out;
mod run;
mod ship;
mod test;
mod tools;
mod uml;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Test(options) => test::all(&options),
        Verb::Tidy => test::tidy(),
        Verb::Uml(options) => uml::uml(&options),
        Verb::Bench { subject } => bench(&subject),
        Verb::Demo { keep } => demo::run(keep),
        Verb::Fuzz(options) => fuzz::run(&options),
        Verb::Dist(options) => dist::dist(&options),
        Verb::ImageCheck => ship::images(),
        Verb::DeployCheck { renew } => ship::manifests(renew),
        Verb::Lab { words } => lab::lab(&words),
        Verb::Differ { words } => lab::differ(&words),
        Verb::Race { words } => lab::race(&words),
        Verb::E2e { words } => lab::e2e(&words),
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
    /// In order: tools, formatting, tests, clippy, dependency rules, documentation, instruction
    /// counts, stories in the lab, tests that need IPVS. In CI the other tests come last, and
    /// everything must be able to run there.
    /// Stops at the first failure, and lists at the end what could not run here.
    Test(test::Options),
    /// Formats the code and checks headers, documents and the parity table. Takes seconds.
    Tidy,
    /// Tests that need IPVS, in a User Mode Linux that has it.
    ///
    /// Few kernels have IPVS. This one runs as a program, needs no rights and boots in two seconds.
    Uml(uml::Options),
    /// A real cluster in namespaces: `up`, `down`, `status`, `test [STORY]...`, `--help`.
    ///
    /// Needs root and `go`. Kubernetes' own programs are built from source once, which takes about
    /// ten minutes.
    #[command(disable_help_flag = true)]
    Lab {
        /// Goes to the lab as is.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Compares ferrule with kube-proxy in random clusters: `--seed`, `--count`, `--mode`, `--help`.
    ///
    /// Needs root and `go`, as the lab does. A cluster in which they differ is cut down and printed
    /// as a story.
    #[command(disable_help_flag = true)]
    Differ {
        /// Goes to the lab as is.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Races ferrule against kube-proxy on the lab's API server: `--services`, `--endpoints`,
    /// `--mode`, `--quick`, `--help`.
    ///
    /// Needs root and `go`, and takes the better part of an hour; `--quick` takes five minutes.
    #[command(disable_help_flag = true)]
    Race {
        /// Goes to the race as is.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Runs upstream's e2e tests in a cluster of three nodes that runs pods: `--mode`, `--programs`,
    /// `--focus`, `--smoke`, `--help`.
    ///
    /// Needs root, `go` and a Debian machine with package lists up to date. What it runs is built from
    /// source once, which takes about half an hour; then `--smoke` takes minutes.
    #[command(disable_help_flag = true)]
    E2e {
        /// Goes to the lab as is.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Measures cost and growth.
    Bench {
        #[command(subcommand)]
        subject: Subject,
    },
    /// Feeds the reader of what the API server sends with anything, for a minute or `--seconds`.
    ///
    /// Builds ferrule with instruments, once, which takes minutes, and needs a C++ compiler.
    Fuzz(fuzz::Options),
    /// Builds a release in `target/packages`: static program, images, manual, bill of materials, checksums.
    ///
    /// Needs a Debian machine with package lists up to date, for certificates and iptables.
    Dist(dist::Options),
    /// Runs the images of `dist` by `runc`, with the rights that `deploy/` lists and with fewer.
    ///
    /// Needs root, `cargo xtask dist` before, and a Debian machine: the packages with `runc` and its
    /// profile of system calls are unpacked, not installed.
    ImageCheck,
    /// Compares kustomize's manifests with the chart's, and has a cluster take them.
    ///
    /// Needs what `image-check` needs, and `go`: it builds kubectl and Helm once, which takes minutes,
    /// and what the lab needs.
    DeployCheck {
        /// Writes `deploy/rendered` anew.
        #[arg(long)]
        renew: bool,
    },
    /// Shows a node with pods and a rollout under load, in namespaces that vanish.
    ///
    /// Needs neither root nor a cluster.
    Demo {
        /// Keep running afterwards and print how to inspect it.
        #[arg(long)]
        keep: bool,
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
    /// Mode nftables on the real kernel: everything at once, one changed endpoint, restart, memory.
    ///
    /// Runs in network namespaces of its own; who is not root gets a user namespace first.
    Nftables {
        /// Smaller clusters and fewer rounds, and not the program's memory.
        #[arg(long)]
        quick: bool,
    },
    /// The relay of mode userspace beside HAProxy, on loopback: streams, requests, connections,
    /// hostile clients, memory; and beside nginx: datagrams.
    ///
    /// Needs root and `taskset`, and `haproxy` and `nginx` (with its module for streams) on the path
    /// for something to compare with.
    Relay {
        /// Less of everything, to see that it runs at all.
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
        Subject::Nftables { quick } => return bench_nftables(*quick),
        Subject::Relay { quick } => return bench_relay(*quick),
        Subject::Check { renew } => {
            tools::ensure_for(&[tools::Need::Counts])?;
            return bench_check(*renew);
        }
    };
    bench_with(arguments)
}

const BENCH: [&str; 7] = [
    "run",
    "--profile",
    "bench",
    "--locked",
    "-p",
    "ferrule-bench",
    "--",
];

/// Runs the program that measures.
pub(crate) fn bench_with<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<()> {
    run::cargo(BENCH.into_iter().chain(arguments))
}

/// Counts instructions. The example of ferrule is built as the tests' run builds it, with all features
/// that the workspace asks for, so that nothing is compiled for this alone.
pub(crate) fn bench_check(renew: bool) -> Result<()> {
    let example = ["--example", "paths"];
    run::cargo(
        ["build", "--workspace", "--locked"]
            .into_iter()
            .chain(example),
    )?;
    // This program is in the folder of the same profile.
    let example = std::env::current_exe()?.with_file_name("examples/paths");
    let example = example
        .to_str()
        .context("the target folder's name is not text")?;
    let renew = renew.then_some("--renew");
    bench_with(["check"].into_iter().chain(renew).chain([example]))
}

fn bench_relay(quick: bool) -> Result<()> {
    let find = |flag, name| {
        let program = run::find(name)?.display().to_string();
        Some([flag, program])
    };
    let programs = [
        find("--haproxy".to_owned(), "haproxy"),
        find("--nginx".to_owned(), "nginx"),
    ];
    let programs = programs.iter().flatten().flatten().map(String::as_str);
    let arguments = ["relay"].into_iter().chain(quick.then_some("--quick"));
    bench_with(arguments.chain(programs))
}

fn bench_nftables(quick: bool) -> Result<()> {
    tools::ensure_for(&[tools::Need::Tests])?;
    let measure = |arguments: &[&'static str]| {
        let cargo = BENCH.into_iter().chain(arguments.iter().copied());
        if tools::is_root() {
            return run::cargo(cargo);
        }
        let root = ["--map-root-user", "--net", "cargo"];
        run::program("unshare", root.into_iter().chain(cargo), &[])
    };
    if quick {
        return measure(&["nftables", "--quick"]);
    }
    measure(&["nftables"])?;
    run::cargo(["build", "--release", "--locked", "-p", "ferrule"])?;
    measure(&["memory"])
}

#[cfg(test)]
#[path = "../../tests/src/console.rs"]
mod console;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_word_after_lab_goes_to_the_lab() {
        let cli = Cli::try_parse_from(["xtask", "lab", "test", "--worlds=x", "--help"]);
        let Verb::Lab { words } = cli.unwrap().verb else {
            panic!("another verb")
        };
        assert_eq!(words, ["test", "--worlds=x", "--help"]);
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

    #[test]
    fn documents_show_commands_that_there_are() {
        let root = run::root();
        let folder = std::fs::read_dir(root.join("docs")).unwrap();
        let pages = folder.map(|page| page.unwrap().path());
        let own = ["README.md", "CONTRIBUTING.md"].map(|page| root.join(page));
        let mut shown = 0;
        for page in pages.chain(own).filter(|page| page.is_file()) {
            for words in console::commands(&std::fs::read_to_string(&page).unwrap()) {
                let [cargo, xtask, rest @ ..] = &words[..] else {
                    continue;
                };
                if [cargo, xtask] != ["cargo", "xtask"] {
                    continue;
                }
                let parsed = Cli::try_parse_from(
                    ["xtask"].into_iter().chain(rest.iter().map(String::as_str)),
                );
                let error = parsed.err().map(|error| error.to_string());
                assert_eq!(error, None, "{}: {words:?}", page.display());
                shown += 1;
            }
        }
        assert!(shown > 20, "only {shown} commands are found");
    }
}
