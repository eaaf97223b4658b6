//! `ferrule-lab`: builds, raises and ends labs, and runs stories in them.
//!
//! A lab is a real cluster on one machine: etcd, an API server, and worlds of nodes and pods. A
//! *world* is one program in one mode, such as kube-proxy in nftables mode, on a network of its
//! own. All worlds have the same hosts with the same addresses, see the same objects from one API
//! server, and get the same packets; a *story* says what is written and what must come back.
//!
//! Everything runs in namespaces and ends with the process that made them, however it ends.
//! `cargo xtask lab` is the front door; it makes sure that everything is there and comes here.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it talks to a terminal"
)]

mod api;
mod barrier;
mod cage;
mod control;
mod differ;
mod e2e;
mod lab;
mod legacy;
mod netns;
mod os;
mod plan;
mod pod;
mod probe;
mod process;
mod race;
mod rollout;
mod rules;
mod runner;
mod ship;
mod story;
mod test;
mod tools;
mod trials;
mod up;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::lab::Lab;
use crate::tools::Tools;
use crate::world::WorldKey;

/// A real cluster in namespaces, where ferrule and kube-proxy run the same stories.
#[derive(Parser)]
#[command(name = "ferrule-lab", bin_name = "cargo xtask lab")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Builds Kubernetes' programs, once per version.
    Build,
    /// Starts a lab in the background and prints how to inspect it.
    Up(Worlds),
    /// Ends the lab that is up.
    Down,
    /// Prints whether a lab is up and how to inspect it.
    Status,
    /// Runs stories and trials in a lab of its own, and compares random clusters.
    Test(Stories),
    /// Compares ferrule with kube-proxy in random clusters.
    Differ(Clusters),
    /// Races ferrule against kube-proxy: time, memory and processor at growing sizes.
    Race(race::Options),
    /// Replaces the pods of a Service one by one under load, and counts what fails.
    Rollout(rollout::Options),
    /// The inner half of `rollout`.
    #[command(hide = true)]
    Replace(rollout::Options),
    /// Serves a node by a container with the listed rights, in every mode.
    Image(ship::Options),
    /// Compares the manifests in `deploy/` and installs them in a cluster.
    Deploy(ship::Options),
    /// Runs upstream's e2e tests of sig-network in a cluster that runs pods.
    E2e(e2e::Options),
    /// `e2e` with one program.
    #[command(hide = true)]
    E2eWith(e2e::Options),
    /// The inner half of `e2e`.
    #[command(hide = true)]
    RunE2e(e2e::Options),
    /// Has the mounts of a node in `e2e`.
    #[command(hide = true)]
    HoldNode { name: String, folder: PathBuf },
    /// The inner half of `image`.
    #[command(hide = true)]
    RunImage(ship::Options),
    /// The inner half of `deploy`.
    #[command(hide = true)]
    RunDeploy(ship::Options),
    /// The inner half of `race`.
    #[command(hide = true)]
    Run(race::Options),
    /// The outer half of a lab that stays up.
    #[command(hide = true)]
    Supervise(Worlds),
    /// The inner half of a lab that stays up.
    #[command(hide = true)]
    Stay(Worlds),
    /// The inner half of `test`.
    #[command(hide = true)]
    RunStories(Stories),
    /// The inner half of `differ`.
    #[command(hide = true)]
    Compare(Clusters),
}

#[derive(Args, Clone)]
struct Worlds {
    /// The worlds to build, such as ferrule/nftables; stories run in all there are unless some
    /// are named, and a lab that stays up has two.
    #[arg(long, value_delimiter = ',')]
    worlds: Vec<WorldKey>,
    /// The program to test; by default the one beside this program.
    #[arg(long)]
    ferrule: Option<PathBuf>,
}

#[derive(Args, Clone)]
struct Stories {
    #[command(flatten)]
    worlds: Worlds,
    /// Few random clusters.
    #[arg(long)]
    quick: bool,
    /// Only stories and trials with one of these in their name, and no random clusters.
    names: Vec<String>,
}

#[derive(Args, Clone)]
struct Clusters {
    #[command(flatten)]
    order: differ::Order,
    /// The mode of both programs.
    #[arg(long, default_value = "nftables")]
    mode: String,
    /// The program to test; by default the one beside this program.
    #[arg(long)]
    ferrule: Option<PathBuf>,
}

/// Every mode there are worlds of both programs for.
const MODES: [&str; 3] = ["nftables", "iptables", "iptables-legacy"];
/// Those that only ferrule has.
const OWN_MODES: [&str; 2] = ["userspace", "userspace-iptables"];

fn main() -> ExitCode {
    match run(Cli::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Build => println!("{}", tools::build()?.display()),
        Verb::Up(mut worlds) => {
            worlds.unless_named(&["nftables"], &[])?;
            Tools::ensure(worlds.ferrule.clone())?;
            up::up(&worlds.arguments())?;
        }
        Verb::Down => up::down()?,
        Verb::Status => up::status()?,
        Verb::Test(mut stories) => {
            stories.worlds.unless_named(&MODES, &OWN_MODES)?;
            return test(&stories);
        }
        Verb::Differ(clusters) => return differ(&clusters),
        Verb::Race(options) => return race(&options),
        Verb::Rollout(mut options) => {
            options.worlds.unless_named(&MODES, &[])?;
            return rollout(&options);
        }
        Verb::Replace(options) => {
            cage::enter()?;
            rollout::run(&options, &up::folder("rollout")?)?;
        }
        Verb::Image(options) => return shipped("image", &options),
        Verb::Deploy(options) => {
            let folder = up::folder("charts")?;
            std::fs::create_dir_all(&folder)?;
            ship::prepare(&options, &folder)?;
            Tools::ensure(None)?;
            return shipped("deploy", &options);
        }
        Verb::E2e(options) => return e2e::run(options),
        Verb::E2eWith(options) => return e2e::with(options),
        Verb::RunE2e(options) => e2e::inside(options)?,
        Verb::HoldNode { name, folder } => e2e::hold(&name, &folder)?,
        Verb::RunImage(options) => {
            cage::enter()?;
            ship::node(&options, &up::folder("image")?)?;
        }
        Verb::RunDeploy(options) => {
            cage::enter()?;
            ship::cluster(&options, &up::folder("deploy")?)?;
        }
        Verb::Run(options) => {
            cage::enter()?;
            race::run(&options, &up::folder("race")?)?;
        }
        Verb::Supervise(worlds) => {
            let mut inner = os::command(std::env::current_exe()?);
            return up::supervise(inner.arg("stay").args(worlds.arguments()));
        }
        Verb::Stay(worlds) => {
            cage::enter()?;
            up::stay(&Tools::ensure(worlds.ferrule)?, &worlds.worlds)?;
        }
        Verb::RunStories(stories) => {
            cage::enter()?;
            return test::run(&stories);
        }
        Verb::Compare(clusters) => {
            cage::enter()?;
            return compare(&clusters);
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Worlds {
    /// Both programs in these modes and ferrule in its own, where no worlds were named.
    fn unless_named(&mut self, modes: &[&str], own: &[&str]) -> Result<()> {
        if self.worlds.is_empty() {
            let both = modes.iter().flat_map(|mode| {
                ["ferrule", "kube-proxy"].map(|program| format!("{program}/{mode}"))
            });
            let own = own.iter().map(|mode| format!("ferrule/{mode}"));
            let all = both.chain(own).map(|world| world.parse());
            self.worlds = all.collect::<Result<_>>()?;
        }
        Ok(())
    }

    /// The same as words of a command line.
    fn arguments(&self) -> Vec<String> {
        let worlds: Vec<_> = self.worlds.iter().map(ToString::to_string).collect();
        let mut flags = vec![format!("--worlds={}", worlds.join(","))];
        if let Some(path) = &self.ferrule {
            flags.push(format!("--ferrule={}", path.display()));
        }
        flags
    }
}

/// Builds what is missing while there is a network, then goes inside.
fn test(stories: &Stories) -> Result<ExitCode> {
    cage::require_root()?;
    test::chosen(stories)?;
    Tools::ensure(stories.worlds.ferrule.clone())?;
    let (_folder, _lock) = up::claim("test")?;
    let mut inner = os::command(std::env::current_exe()?);
    inner
        .arg("run-stories")
        .args(stories.worlds.arguments())
        .args(stories.quick.then_some("--quick"))
        .args(&stories.names);
    cage::run(&mut inner, |_| {})
}

/// As [`test()`], for a rollout.
fn rollout(options: &rollout::Options) -> Result<ExitCode> {
    cage::require_root()?;
    rollout::check(options)?;
    Tools::ensure(options.worlds.ferrule.clone())?;
    let (_folder, _lock) = up::claim("rollout")?;
    let mut inner = os::command(std::env::current_exe()?);
    inner.arg("replace").args(options.arguments());
    cage::run(&mut inner, |_| {})
}

/// As [`test()`], for random clusters.
fn differ(clusters: &Clusters) -> Result<ExitCode> {
    cage::require_root()?;
    let worlds = clusters.worlds()?;
    Tools::ensure(worlds.ferrule)?;
    let (_folder, _lock) = up::claim("differ")?;
    let mut inner = os::command(std::env::current_exe()?);
    let order = clusters.order;
    inner
        .arg("compare")
        .args(["--seed", &order.seed.to_string()])
        .args(["--count", &order.count.to_string()])
        .args(["--mode", &clusters.mode]);
    if let Some(path) = &clusters.ferrule {
        inner.arg("--ferrule").arg(path);
    }
    cage::run(&mut inner, |_| {})
}

fn compare(clusters: &Clusters) -> Result<ExitCode> {
    let worlds = clusters.worlds()?;
    let tools = Tools::ensure(worlds.ferrule)?;
    let folder = up::folder("differ")?;
    let mut lab = Lab::start(&tools, &worlds.worlds, &folder)?;
    let same = differ::run(&mut lab, clusters.order, &folder)?;
    Ok(if same {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl Clusters {
    /// Both programs in the mode.
    fn worlds(&self) -> Result<Worlds> {
        let key = |program: &str| format!("{program}/{}", self.mode).parse();
        Ok(Worlds {
            worlds: vec![key("ferrule")?, key("kube-proxy")?],
            ferrule: self.ferrule.clone(),
        })
    }
}

/// Goes inside with what is shipped.
fn shipped(name: &str, options: &ship::Options) -> Result<ExitCode> {
    cage::require_root()?;
    let (_folder, _lock) = up::claim(name)?;
    let mut inner = os::command(std::env::current_exe()?);
    inner.arg(format!("run-{name}")).args(options.arguments());
    cage::run(&mut inner, |_| {})
}

/// Builds what is missing while there is a network, then goes inside with the same words.
fn race(options: &race::Options) -> Result<ExitCode> {
    if race::is_told_again(options)? {
        return Ok(ExitCode::SUCCESS);
    }
    cage::require_root()?;
    race::prepare(options)?;
    let (_folder, _lock) = up::claim("race")?;
    let mut inner = os::command(std::env::current_exe()?);
    inner.arg("run").args(std::env::args_os().skip(2));
    cage::run(&mut inner, |_| {})
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
    fn stories_are_told_everywhere_unless_worlds_are_named() {
        let mut worlds = Worlds {
            worlds: Vec::new(),
            ferrule: None,
        };
        worlds.unless_named(&MODES, &OWN_MODES).unwrap();
        assert_eq!(worlds.worlds.len(), 2 * MODES.len() + OWN_MODES.len());
        worlds.worlds.truncate(1);
        worlds.unless_named(&MODES, &OWN_MODES).unwrap();
        assert_eq!(worlds.arguments(), ["--worlds=ferrule/nftables"]);
    }
}
