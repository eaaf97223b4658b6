//! `ferrule-lab`: builds, raises and ends labs, and tells stories in them.
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
mod lab;
mod netns;
mod os;
mod plan;
mod pod;
mod probe;
mod process;
mod story;
mod teller;
mod tools;
mod trials;
mod up;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};

use crate::lab::Lab;
use crate::story::Story;
use crate::teller::Teller;
use crate::tools::Tools;
use crate::trials::Trial;
use crate::world::WorldKey;

/// A real cluster in namespaces, where ferrule and kube-proxy live the same stories.
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
    /// Starts a lab in the background and says how to look inside.
    Up(Worlds),
    /// Ends the lab that is up.
    Down,
    /// Says whether a lab is up and how to look inside.
    Status,
    /// Tells stories in a lab of its own, puts ferrule to the test, and compares random clusters.
    Test(Stories),
    /// Compares ferrule with kube-proxy in random clusters.
    Differ(Clusters),
    /// The outer half of a lab that stays up.
    #[command(hide = true)]
    Supervise(Worlds),
    /// The inner half of a lab that stays up.
    #[command(hide = true)]
    Stay(Worlds),
    /// The inner half of `test`.
    #[command(hide = true)]
    Tell(Stories),
    /// The inner half of `differ`.
    #[command(hide = true)]
    Compare(Clusters),
}

#[derive(Args, Clone)]
struct Worlds {
    /// The worlds to build.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "ferrule/nftables,kube-proxy/nftables"
    )]
    worlds: Vec<WorldKey>,
    /// The program to test; by default the one beside this program.
    #[arg(long)]
    ferrule: Option<PathBuf>,
}

#[derive(Args, Clone)]
struct Stories {
    #[command(flatten)]
    worlds: Worlds,
    /// Few random clusters, and no trial that takes long.
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
        Verb::Up(worlds) => {
            Tools::ensure(worlds.ferrule.clone())?;
            up::up(&worlds.arguments())?;
        }
        Verb::Down => up::down()?,
        Verb::Status => up::status()?,
        Verb::Test(stories) => return test(&stories),
        Verb::Differ(clusters) => return differ(&clusters),
        Verb::Supervise(worlds) => {
            let mut inner = os::command(std::env::current_exe()?);
            return up::supervise(inner.arg("stay").args(worlds.arguments()));
        }
        Verb::Stay(worlds) => {
            cage::enter()?;
            up::stay(&Tools::ensure(worlds.ferrule)?, &worlds.worlds)?;
        }
        Verb::Tell(stories) => {
            cage::enter()?;
            return tell(&stories);
        }
        Verb::Compare(clusters) => {
            cage::enter()?;
            return compare(&clusters);
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Worlds {
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
    chosen(stories)?;
    Tools::ensure(stories.worlds.ferrule.clone())?;
    let (_folder, _lock) = up::claim("test")?;
    let mut inner = os::command(std::env::current_exe()?);
    inner
        .arg("tell")
        .args(stories.worlds.arguments())
        .args(stories.quick.then_some("--quick"))
        .args(&stories.names);
    cage::run(&mut inner, |_| {})
}

/// As [`test`], for random clusters.
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

fn chosen(stories: &Stories) -> Result<(Vec<Story>, Vec<&'static Trial>)> {
    let mut all = story::all(&story::folder())?;
    let names = &stories.names;
    let is_named = |name: &str| names.is_empty() || names.iter().any(|part| name.contains(part));
    all.retain(|story| is_named(&story.name));
    let trials = trials::ALL.iter().filter(|trial| is_named(trial.name));
    let trials: Vec<_> = trials.collect();
    if all.is_empty() && trials.is_empty() {
        bail!("no story and no trial is called {names:?}");
    }
    Ok((all, trials))
}

/// How everything went so far.
#[derive(Default)]
struct Results {
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<String>,
}

impl Results {
    fn add(&mut self, name: &str, title: &str, work: impl FnOnce() -> Result<()>) {
        let begun = os::now();
        let result = work();
        let seconds = begun.elapsed().as_secs_f64();
        let word = if result.is_ok() { "ok    " } else { "FAILED" };
        println!("{word} {seconds:5.1} s  {name}: {title}");
        match result {
            Ok(()) => self.passed += 1,
            Err(error) => {
                println!("{}", indented(&format!("{error:#}")));
                self.failed.push(name.to_owned());
            }
        }
    }
}

fn tell(stories: &Stories) -> Result<ExitCode> {
    let tools = Tools::ensure(stories.worlds.ferrule.clone())?;
    let folder = up::folder("test")?;
    let begun = os::now();
    let lab = Lab::start(&tools, &stories.worlds.worlds, &folder)?;
    println!("lab up in {:.1} s", begun.elapsed().as_secs_f64());
    let mut teller = Teller::new(lab);
    let mut results = Results::default();
    let (all, trials) = chosen(stories)?;
    for story in &all {
        if teller.knows(story) {
            results.add(&story.name, &story.title, || teller.tell(story));
        } else {
            let modes = story.modes.join(" or ");
            let reason = format!("{} (no world in mode {modes})", story.name);
            results.skipped.push(reason);
        }
    }
    let clusters = stories.names.is_empty();
    if clusters || !trials.is_empty() {
        let lab = teller.rested()?;
        prove(stories, &trials, lab, &folder, &mut results);
        if clusters {
            compare_some(stories, lab, &folder, &mut results);
        }
    }
    println!(
        "{} passed, {} failed, in {:.1} s",
        results.passed,
        results.failed.len(),
        begun.elapsed().as_secs_f64()
    );
    for reason in results.skipped {
        println!("skipped: {reason}");
    }
    if results.failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("failed: {}", results.failed.join(", "));
    println!("logs: {}", teller.logs().join("\n      "));
    Ok(ExitCode::FAILURE)
}

/// Puts ferrule through its trials.
fn prove(
    stories: &Stories,
    trials: &[&Trial],
    lab: &mut Lab,
    folder: &Path,
    results: &mut Results,
) {
    let ours = |world: &world::World| world.key.to_string() == "ferrule/nftables";
    let ferrule = lab.worlds.iter().any(ours);
    for trial in trials {
        let name = trial.name;
        if !ferrule {
            let reason = format!("{name} (no world ferrule/nftables)");
            results.skipped.push(reason);
        } else if trial.long && stories.quick {
            results.skipped.push(format!("{name} (takes long)"));
        } else {
            results.add(name, trial.title, || trials::run(trial, lab, folder));
        }
    }
}

/// Random clusters, in all worlds that are there.
fn compare_some(stories: &Stories, lab: &mut Lab, folder: &Path, results: &mut Results) {
    if lab.worlds.len() < 2 {
        let reason = "random clusters (one world has nothing to be compared with)";
        results.skipped.push(reason.to_owned());
        return;
    }
    let order = differ::Order {
        seed: 1,
        count: if stories.quick { 10 } else { 200 },
    };
    let title = format!("{} random clusters are the same in all worlds", order.count);
    results.add("differ", &title, || {
        let same = differ::run(lab, order, folder)?;
        anyhow::ensure!(same, "worlds differ, see above");
        Ok(())
    });
}

fn indented(text: &str) -> String {
    let lines = text
        .trim_end()
        .lines()
        .map(|line| format!("         {line}"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
