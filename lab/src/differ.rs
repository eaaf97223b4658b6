//! Random clusters: the same ones in all worlds at the same time, and everything that can be asked
//! there compared.
//!
//! In: a running lab, a seed and a number. Cluster number i is drawn from seed + i, so a failing
//! one is repeated alone. Out: whether all worlds always answered the same; for a cluster in which
//! they did not, the smallest one found that shows it, as a story.

mod ask;
mod cluster;
mod dice;
mod draw;
mod matrix;
mod shrink;
mod sticky;
mod tale;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::lab::Lab;
use crate::plan::{self, Family};
use crate::probe::{self, Answers};
use crate::story::short::Memory;
use crate::{api, os, rules};
use ask::Asker;
use cluster::State;
use matrix::{Cell, CellKey, Difference};
use sticky::Met;

/// Where the objects of random clusters lie.
pub const NAMESPACE: &str = "differ";
/// Silence is believed after this long at first; where it makes a difference, after longer.
const GLANCE: Duration = Duration::from_millis(60);
const STARE: Duration = Duration::from_millis(1500);
/// Clusters that are cut down; of more, only the seed is printed.
const MOST_TOLD: usize = 3;
/// A word after so many clusters.
const PROGRESS: u64 = 50;
/// Writers at work at the same time.
const WRITERS: usize = 4;

/// Which clusters.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Order {
    /// The first cluster's seed; each one after it has the next.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many clusters.
    #[arg(long, default_value_t = 200)]
    pub count: u64,
}

/// Runs clusters and says how they compare; false when worlds differed.
pub fn run(lab: &mut Lab, order: Order, folder: &Path) -> Result<bool> {
    let begun = os::now();
    let ipvs = lab.worlds.iter().any(|world| world.key.mode == "ipvs");
    let mut differ = Differ::begin(lab)?;
    let mut failed = Vec::new();
    for seed in order.seed..order.seed + order.count {
        let done = seed - order.seed;
        if done > 0 && done.is_multiple_of(PROGRESS) {
            println!(
                "{done} clusters after {:.0} s",
                begun.elapsed().as_secs_f64()
            );
        }
        let mut history = draw::history(seed);
        if ipvs {
            draw::without_policies(&mut history);
        }
        let found = differ
            .cluster(seed, &history)
            .with_context(|| format!("cluster with seed {seed}"))?;
        if let Some(found) = found {
            println!("FAILED cluster with seed {seed}");
            if failed.len() < MOST_TOLD {
                differ.explain(seed, &found, folder)?;
            }
            failed.push(seed);
        }
    }
    differ.end()?;
    let tally = differ.tally;
    println!(
        "{} clusters in {} states: {} questions put to each world, {} differed; {:.1} s \
         ({:.1} writing, {:.1} waiting for proxies, {:.1} asking)",
        order.count,
        tally.states,
        tally.cells,
        failed.len(),
        begun.elapsed().as_secs_f64(),
        tally.writing.as_secs_f64(),
        tally.waiting.as_secs_f64(),
        tally.asking.as_secs_f64(),
    );
    if tally.passing > 0 {
        println!("{} questions differed once and not again", tally.passing);
    }
    if !failed.is_empty() {
        println!("seeds that differed: {failed:?}; `--seed N --count 1` repeats one");
    }
    Ok(failed.is_empty())
}

/// The states up to the one in which worlds differed, and how.
struct Found {
    history: Vec<State>,
    differences: Vec<Difference>,
}

/// What was seen in a state, by world.
#[derive(Default)]
struct Seen {
    met: Met,
    answers: Vec<BTreeMap<CellKey, Answers>>,
}

impl Seen {
    /// What was only looked at again is still known from before; what is new there shows.
    fn add_to(&self, cells: &[Cell], answers: &mut [Vec<Answers>]) {
        for (world, before) in answers.iter_mut().zip(&self.answers) {
            for (cell, answers) in cells.iter().zip(world) {
                if cell.brief
                    && !cell.sticky
                    && let Some(known) = before.get(&cell.key())
                {
                    answers.extend(known.iter().cloned());
                }
            }
        }
    }
}

fn by_cell(cells: &[Cell], answers: Vec<Answers>) -> BTreeMap<CellKey, Answers> {
    cells.iter().map(Cell::key).zip(answers).collect()
}

#[derive(Default)]
struct Tally {
    states: usize,
    cells: usize,
    /// Cells that differed at first sight only.
    passing: usize,
    writing: Duration,
    waiting: Duration,
    asking: Duration,
}

struct Differ<'a> {
    lab: &'a mut Lab,
    asker: Asker,
    /// What the API server has, by path.
    written: BTreeMap<String, Value>,
    tally: Tally,
}

impl<'a> Differ<'a> {
    fn begin(lab: &'a mut Lab) -> Result<Self> {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE },
        });
        lab.control.api.apply(&namespace)?;
        // What one left behind that broke off.
        for kind in ["Service", "EndpointSlice"] {
            lab.control.api.delete_all(kind, NAMESPACE)?;
        }
        let mut differ = Self {
            lab,
            asker: Asker::default(),
            written: BTreeMap::new(),
            tally: Tally::default(),
        };
        let zones = draw::ZONES.map(|zone| json!(zone));
        differ.label_nodes(&zones)?;
        Ok(differ)
    }

    fn label_nodes(&mut self, zones: &[Value]) -> Result<()> {
        for (node, zone) in plan::nodes().zip(zones) {
            let labels = json!({ "topology.kubernetes.io/zone": zone });
            let change = json!({ "metadata": { "labels": labels } });
            let path = format!("/api/v1/nodes/{}", node.name);
            self.lab.control.api.merge(&path, &change)?;
        }
        self.lab.settle(true)
    }

    /// Leaves the lab as it was.
    fn end(&mut self) -> Result<()> {
        self.write(&State::default(), true)?;
        self.label_nodes(&[Value::Null, Value::Null])
    }

    /// Lives through the states of a cluster, up to one in which worlds differ.
    fn cluster(&mut self, seed: u64, history: &[State]) -> Result<Option<Found>> {
        let mut before = Seen::default();
        for number in 0..history.len() {
            let past = &history[..=number];
            self.write(&past[number], number == 0)?;
            let (mut differences, after) = self.look(seed, past, &before)?;
            differences.extend(after.met.scattered(&past[number]));
            if number > 0 {
                let moved = after
                    .met
                    .moved(&before.met, &past[number - 1], &past[number]);
                differences.extend(moved);
            }
            if !differences.is_empty() {
                return Ok(Some(Found {
                    history: past.to_vec(),
                    differences,
                }));
            }
            before = after;
        }
        Ok(None)
    }

    /// Makes the API server say what a state says: what is new before what is gone, so that nothing
    /// is missing in between. A fresh cluster shares nothing with the one before it, even where
    /// names are the same.
    fn write(&mut self, state: &State, fresh: bool) -> Result<()> {
        let begun = os::now();
        let wanted = objects(state)?;
        let api = &self.lab.control.api;
        if fresh {
            let old: Vec<_> = std::mem::take(&mut self.written).into_values().collect();
            at_once(&old, |object| api.delete(object))?;
        }
        let changed = wanted
            .iter()
            .filter(|(path, object)| self.written.get(*path) != Some(object));
        let changed: Vec<_> = changed.map(|(_, object)| object).collect();
        at_once(&changed, |object| api.apply(object))?;
        let gone = self.written.iter();
        let gone = gone.filter(|(path, _)| !wanted.contains_key(*path));
        let gone: Vec<_> = gone.map(|(_, object)| object).collect();
        at_once(&gone, |object| api.delete(object))?;
        self.written = wanted;
        self.tally.writing += begun.elapsed();
        let begun = os::now();
        self.lab.glance()?;
        self.tally.waiting += begun.elapsed();
        Ok(())
    }

    /// Asks everything in all worlds and compares.
    fn look(
        &mut self,
        seed: u64,
        past: &[State],
        before: &Seen,
    ) -> Result<(Vec<Difference>, Seen)> {
        let begun = os::now();
        let cells = matrix::cells(seed, past);
        self.tally.states += 1;
        self.tally.cells += cells.len();
        let mut answers = self.asker.ask(&self.lab.worlds, &cells, GLANCE)?;
        before.add_to(&cells, &mut answers);
        self.ask_again(&cells, &mut answers)?;
        let mut differences: Vec<_> = matrix::differing(&cells, &answers)
            .into_iter()
            .map(|number| {
                let shown = answers.iter().map(|world| world[number].clone());
                matrix::difference(&cells[number], shown.collect())
            })
            .collect();
        differences.extend(self.health(past)?);
        differences.extend(self.rules()?);
        self.tally.asking += begun.elapsed();
        let met = Met::of(&cells, &answers);
        let answers = answers.into_iter().map(|world| by_cell(&cells, world));
        let answers = answers.collect();
        Ok((differences, Seen { met, answers }))
    }

    /// Where worlds differ, asks once more: later, longer and with more timeout.
    fn ask_again(&mut self, cells: &[Cell], answers: &mut [Vec<Answers>]) -> Result<()> {
        let doubtful = matrix::differing(cells, answers);
        if doubtful.is_empty() {
            return Ok(());
        }
        self.lab.settle(false)?;
        let whole = |&number: &usize| Cell {
            brief: false,
            ..cells[number]
        };
        let again: Vec<_> = doubtful.iter().map(whole).collect();
        let second = self.asker.ask(&self.lab.worlds, &again, STARE)?;
        for (world, second) in answers.iter_mut().zip(second) {
            for (&number, answer) in doubtful.iter().zip(second) {
                world[number] = answer;
            }
        }
        self.tally.passing += doubtful.len() - matrix::differing(cells, answers).len();
        Ok(())
    }

    /// What nodes say on the health ports of Services.
    fn health(&self, past: &[State]) -> Result<Vec<Difference>> {
        let mut differences = Vec::new();
        for port in matrix::health_ports(past) {
            for node in plan::nodes() {
                let to = SocketAddr::new(node.address(Family::V4), port);
                let look = || -> Result<Vec<_>> {
                    let worlds = self.lab.worlds.iter();
                    worlds
                        .map(|world| world.place("outside1")?.run(|| health(to)))
                        .collect()
                };
                // It follows the rules a moment later.
                let same = |shown: &Vec<String>| shown.iter().all(|other| *other == shown[0]);
                let shown = match os::poll(STARE, || look().ok().filter(same)) {
                    Some(_) => continue,
                    None => look()?,
                };
                if shown.iter().any(|other| *other != shown[0]) {
                    differences.push(Difference {
                        what: format!("outside1 -> {to}/ (health)"),
                        cell: None,
                        shown,
                        answers: Vec::new(),
                    });
                }
            }
        }
        Ok(differences)
    }

    /// What `iptables-save` prints on every node.
    fn rules(&self) -> Result<Vec<Difference>> {
        let worlds: Vec<_> = self.lab.worlds.iter().collect();
        let differences = rules::compare(&worlds)?.into_iter();
        let described = differences.map(|difference| Difference {
            what: difference.what,
            cell: None,
            shown: difference.shown,
            answers: Vec::new(),
        });
        Ok(described.collect())
    }

    /// Cuts a failing cluster down and prints it as a story.
    fn explain(&mut self, seed: u64, found: &Found, folder: &Path) -> Result<()> {
        print_differences(&found.differences, &self.lab.worlds);
        let Some(again) = self.cluster(seed, &found.history)? else {
            println!("  the same cluster again, alone, did not differ");
            return Ok(());
        };
        let mut smallest = again;
        let history = std::mem::take(&mut smallest.history);
        let history = shrink::shrink(history, |candidate| {
            // What the API server refuses is no candidate.
            let Ok(Some(found)) = self.cluster(seed, candidate) else {
                return Ok(false);
            };
            let fails = found.history.len() == candidate.len();
            if fails {
                smallest.differences = found.differences;
            }
            Ok(fails)
        })?;
        let reference = self
            .lab
            .worlds
            .iter()
            .position(|world| world.key.program == "kube-proxy")
            .unwrap_or(0);
        let text = tale::text(&history, &smallest.differences, reference)?;
        let file = folder.join(format!("seed-{seed}.yaml"));
        std::fs::write(&file, &text)?;
        println!(
            "  smallest cluster found that differs, also in {}:",
            file.display()
        );
        println!("{text}");
        Ok(())
    }
}

/// Works on all items, a few at a time.
fn at_once<T: Sync>(items: &[T], work: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    let work = &work;
    std::thread::scope(|scope| {
        let share = items.len().div_ceil(WRITERS).max(1);
        let threads: Vec<_> = items
            .chunks(share)
            .map(|share| scope.spawn(move || share.iter().try_for_each(work)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

/// The Kubernetes objects of a state, by path.
/// The objects of the cluster with this seed, in its last state.
pub fn cluster_of(seed: u64) -> Result<Vec<Value>> {
    let history = draw::history(seed);
    let last = history.last().context("a cluster without states")?;
    Ok(objects(last)?.into_values().collect())
}

fn objects(state: &State) -> Result<BTreeMap<String, Value>> {
    let mut memory = Memory::default();
    let mut all = BTreeMap::new();
    for item in state.items()? {
        for object in memory.objects(&item, NAMESPACE)? {
            all.insert(api::path(&object)?, object);
        }
    }
    Ok(all)
}

/// Status, weight and body; the rest of the headers holds times.
fn health(to: SocketAddr) -> String {
    match probe::get(to, "/", STARE) {
        Ok((code, text)) => {
            let weight = text.lines().find(|line| line.starts_with("X-Load"));
            let body = text.rsplit("\r\n\r\n").next().unwrap_or("");
            format!("{code} {} {body}", weight.unwrap_or("").trim())
        }
        Err(error) => probe::from_error(&error).to_string(),
    }
}

fn print_differences(differences: &[Difference], worlds: &[crate::world::World]) {
    for difference in differences.iter().take(12) {
        println!("  {}", difference.what);
        for (world, shown) in worlds.iter().zip(&difference.shown) {
            println!("      {}: {shown}", world.key);
        }
    }
    if differences.len() > 12 {
        println!("  and {} more", differences.len() - 12);
    }
}
