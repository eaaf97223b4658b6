//! `test` inside the lab: runs stories and trials, and compares random
//! clusters. Out: what passed, what failed and where to look, what was skipped and why.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};

use crate::lab::Lab;
use crate::runner::Runner;
use crate::story::Story;
use crate::tools::Tools;
use crate::trials::{self, Trial};
use crate::world::World;
use crate::{Stories, differ, os, story, up};

/// The first cluster of every run. Another one is a matter of `differ --seed`.
const SEED: u64 = 1;

/// Runs everything that was asked for.
pub fn run(stories: &Stories) -> Result<ExitCode> {
    let tools = Tools::ensure(stories.worlds.ferrule.clone())?;
    let folder = up::folder("test")?;
    let begun = os::now();
    let lab = Lab::start(&tools, &stories.worlds.worlds, &folder)?;
    println!("lab up in {:.1} s", begun.elapsed().as_secs_f64());
    let mut runner = Runner::new(lab);
    let mut results = Results::default();
    let (all, trials) = chosen(stories)?;
    for story in &all {
        if runner.knows(story) {
            results.add(&story.name, &story.title, || runner.run(story));
        } else {
            let modes = story.modes.join(" or ");
            let reason = format!("{} (no world in mode {modes})", story.name);
            results.skipped.push(reason);
        }
    }
    let clusters = stories.names.is_empty();
    if clusters || !trials.is_empty() {
        let lab = runner.rested()?;
        prove(&trials, lab, &folder, &mut results);
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
    println!("logs: {}", runner.logs().join("\n      "));
    Ok(ExitCode::FAILURE)
}

/// Stories and trials that were asked for.
pub fn chosen(stories: &Stories) -> Result<(Vec<Story>, Vec<&'static Trial>)> {
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
        let verdict = if result.is_ok() { "ok    " } else { "FAILED" };
        println!("{verdict} {seconds:5.1} s  {name}: {title}");
        match result {
            Ok(()) => self.passed += 1,
            Err(error) => {
                println!("{}", indented(&format!("{error:#}")));
                self.failed.push(name.to_owned());
            }
        }
    }
}

/// Puts ferrule through its trials.
fn prove(trials: &[&Trial], lab: &mut Lab, folder: &Path, results: &mut Results) {
    let ours = |world: &World| world.key.to_string() == "ferrule/nftables";
    let ferrule = lab.worlds.iter().any(ours);
    for trial in trials {
        let name = trial.name;
        if ferrule {
            results.add(name, trial.title, || trials::run(trial, lab, folder));
        } else {
            let reason = format!("{name} (no world ferrule/nftables)");
            results.skipped.push(reason);
        }
    }
}

/// Random clusters, mode by mode: what a mode itself does otherwise is a matter of stories.
fn compare_some(stories: &Stories, lab: &mut Lab, folder: &Path, results: &mut Results) {
    let modes: BTreeSet<_> = lab.worlds.iter().map(|world| world.key.variety()).collect();
    for mode in modes {
        let all = std::mem::take(&mut lab.worlds).into_iter();
        let (these, others) = all.partition(|world| world.key.variety() == mode);
        lab.worlds = these;
        let count = if stories.quick { 10 } else { 200 };
        let order = differ::Order { seed: SEED, count };
        compare_mode(&mode, order, lab, folder, results);
        lab.worlds.extend::<Vec<_>>(others);
    }
}

fn compare_mode(
    mode: &str,
    order: differ::Order,
    lab: &mut Lab,
    folder: &Path,
    results: &mut Results,
) {
    if lab.worlds.len() < 2 {
        let reason = format!("random clusters in mode {mode} (one world has no other)");
        results.skipped.push(reason);
        return;
    }
    let title = format!("{} random clusters are the same in all worlds", order.count);
    results.add(&format!("differ in mode {mode}"), &title, || {
        let same = differ::run(lab, order, folder)?;
        ensure!(same, "worlds differ, see above");
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
