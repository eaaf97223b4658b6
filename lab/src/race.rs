//! The race: ferrule and kube-proxy on the same API server, one after the other, measured alike.
//!
//! In: how many Services, with how many endpoints, in which mode. Out: a table with ratios, a plot
//! of growth, and every single figure as a line of JSON, in the folder of the run.
//!
//! Programs take turns, and each starts from nothing in a lane of its own. Both have kube-proxy's
//! default periods: at most one sync per second. Single changes are therefore further apart than
//! that, and find an idle program.

mod arrivals;
mod changes;
mod lane;
mod latency_log;
mod load;
mod path;
mod plot;
mod report;
mod spread;
mod start;
mod usage;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;

use self::lane::Lane;
use self::load::Cluster;
use self::report::Record;
use crate::control::{self, Control};
use crate::tools::{self, Tools};
use crate::{lab, os};

/// What was measured, by name.
type Figures = BTreeMap<&'static str, f64>;

/// What is raced over.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The size at which everything is measured.
    #[arg(long, default_value_t = 10_000)]
    services: u32,
    /// Endpoints of each Service.
    #[arg(long, default_value_t = 2)]
    endpoints: u32,
    /// The mode of all programs.
    #[arg(long, default_value = "nftables", value_parser = ["nftables", "iptables", "ipvs"])]
    mode: String,
    /// Sizes at which growth is measured: the start, and single changes.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "100,1000,5000,10000,20000"
    )]
    sizes: Vec<u32>,
    /// Who runs, in turns.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "ferrule,kube-proxy,newest"
    )]
    programs: Vec<String>,
    /// How often everything is measured.
    #[arg(long, default_value_t = 2)]
    rounds: u32,
    /// How many single changes are made in a round.
    #[arg(long, default_value_t = 50)]
    changes: u32,
    /// Only the start from nothing.
    #[arg(long)]
    start_only: bool,
    /// A small race that ends within five minutes; overrides sizes, rounds and changes.
    #[arg(long)]
    quick: bool,
    /// The program to race, built for release; by default the one beside this program.
    #[arg(long)]
    ferrule: Option<PathBuf>,
    /// Another build of ferrule, which runs last and is called `before`: what a change cost shows
    /// in the ratio.
    #[arg(long)]
    before: Option<PathBuf>,
    /// Makes table and plot anew from the figures of earlier races, and runs nothing.
    #[arg(long)]
    from: Vec<PathBuf>,
}

impl Options {
    /// The same with everything that `quick` means.
    fn complete(mut self) -> Result<Self> {
        if self.quick {
            self.services = 1000;
            self.sizes = vec![100, 1000];
            self.rounds = 1;
            self.changes = 8;
        }
        if !self.sizes.contains(&self.services) {
            self.sizes.push(self.services);
        }
        self.sizes.sort_unstable();
        self.sizes.dedup();
        let fits = |size: &u32| (1..=load::MOST_SERVICES).contains(size);
        ensure!(
            self.sizes.iter().all(fits),
            "at most {} Services, and at least one",
            load::MOST_SERVICES
        );
        ensure!(
            (1..=60).contains(&self.endpoints),
            "between 1 and 60 endpoints"
        );
        Ok(self)
    }

    fn churn_seconds(&self) -> u32 {
        if self.quick { 5 } else { 30 }
    }

    /// How long a program may rest before its memory counts as steady.
    fn rest(&self) -> Duration {
        Duration::from_secs(if self.quick { 2 } else { 10 })
    }
}

/// A program that runs.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Its name and version.
    pub name: String,
    pub program: PathBuf,
    /// Whether it is started as `ferrule proxy`.
    pub is_ferrule: bool,
}

/// Builds what is missing, as long as there is a network outside of the lab.
pub fn prepare(options: &Options) -> Result<()> {
    contenders(options, &Tools::ensure(options.ferrule.clone())?).map(|_| ())
}

/// Whether figures of earlier races are all that is wanted; then it is done.
pub fn is_told_again(options: &Options) -> Result<bool> {
    if options.from.is_empty() {
        return Ok(false);
    }
    let mut records = Vec::new();
    for file in &options.from {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        for line in text.lines() {
            records.push(serde_json::from_str(line)?);
        }
    }
    let options = options.clone().complete()?;
    print!("{}", report::table(&records, options.services));
    let folder = options.from[0].parent().unwrap_or(Path::new("."));
    let plot = folder.join("race.svg");
    std::fs::write(&plot, plot::draw(&records))?;
    println!("plot: {}", plot.display());
    Ok(true)
}

/// Races; the inner half.
pub fn run(options: &Options, folder: &Path) -> Result<()> {
    let options = options.clone().complete()?;
    let tools = Tools::ensure(options.ferrule.clone())?;
    let contenders = contenders(&options, &tools)?;
    control::lay_network()?;
    let mut control = Control::start(&tools, folder, &lab::runtime()?)?;
    control.end_controllers();
    let mut race = Race {
        cluster: Cluster::new(&control.api, options.endpoints)?,
        figures: File::create(folder.join("figures.jsonl"))?,
        folder: folder.to_owned(),
        options,
        begun: os::now(),
        lanes: 0,
        records: Vec::new(),
        server: control.server(),
    };
    race.say("the API server is up");
    race.all(&contenders)?;
    let table = report::table(&race.records, race.options.services);
    std::fs::write(folder.join("race.md"), &table)?;
    std::fs::write(folder.join("race.svg"), plot::draw(&race.records))?;
    print!("\n{table}");
    println!("table, plot, figures and logs: {}", folder.display());
    Ok(())
}

fn contenders(options: &Options, tools: &Tools) -> Result<Vec<Contender>> {
    let find = |name: &String| {
        let (name, program) = match name.as_str() {
            "ferrule" => {
                tools.require_ferrule()?;
                (name.clone(), tools.program("ferrule"))
            }
            "kube-proxy" => (
                format!("kube-proxy {}", tools::version()),
                tools.program("kube-proxy"),
            ),
            "newest" => (
                format!("kube-proxy {}", tools::newest_version()),
                tools::newest()?,
            ),
            other => anyhow::bail!("{other} is none of ferrule, kube-proxy and newest"),
        };
        let is_ferrule = name == "ferrule";
        Ok(Contender {
            name,
            program,
            is_ferrule,
        })
    };
    let before = options.before.iter().map(|program| {
        Ok(Contender {
            name: "before".to_owned(),
            program: program.clone(),
            is_ferrule: true,
        })
    });
    options.programs.iter().map(find).chain(before).collect()
}

struct Race {
    options: Options,
    cluster: Cluster,
    folder: PathBuf,
    figures: File,
    begun: Instant,
    lanes: u32,
    records: Vec<Record>,
    /// The API server's process.
    server: u32,
}

impl Race {
    fn all(&mut self, contenders: &[Contender]) -> Result<()> {
        for size in self.options.sizes.clone() {
            self.load(size)?;
            let rounds = if size == self.options.services {
                self.options.rounds
            } else {
                1
            };
            for round in 1..=rounds {
                for contender in contenders {
                    self.say(&format!(
                        "{size} Services, round {round}: {}",
                        contender.name
                    ));
                    self.turn(contender, size)
                        .with_context(|| format!("{} at {size} Services", contender.name))?;
                }
            }
        }
        Ok(())
    }

    fn load(&mut self, size: u32) -> Result<()> {
        let mut cluster = self.cluster.clone();
        let begun = self.begun;
        cluster.grow(size, |n| {
            eprint!(
                "\r{:6.0} s  loaded {n} of {size} Services ",
                begun.elapsed().as_secs_f64()
            );
        })?;
        eprintln!();
        self.cluster = cluster;
        Ok(())
    }

    /// One program, from an empty lane to the end.
    fn turn(&mut self, contender: &Contender, size: u32) -> Result<()> {
        self.lanes += 1;
        let load = usage::load();
        let lane = Lane::lay(self.lanes, &self.folder)?;
        let mode = self.options.mode.clone();
        let (mut process, mut figures) = start::cold(
            &lane,
            contender,
            &mode,
            size,
            self.options.rest(),
            self.server,
        )?;
        self.report(&figures, &["reachable", "sync", "cpu", "peak"]);
        if !self.options.start_only {
            let changes = if size == self.options.services {
                self.options.changes
            } else {
                self.options.changes.min(20)
            };
            figures.extend(changes::single(&lane, &mode, &self.cluster, changes)?);
            self.report(
                &figures,
                &["change p50", "change p99", "echo p50", "part p50"],
            );
            if size == self.options.services {
                let others = self.everything_else(&lane, contender, &mut process)?;
                figures.extend(others);
            }
        }
        process.stop()?;
        lane.clear()?;
        figures.insert("load", load.max(usage::load()));
        self.note(contender, size, figures)
    }

    /// What is measured at one size only.
    fn everything_else(
        &self,
        lane: &Lane,
        contender: &Contender,
        process: &mut crate::process::Process,
    ) -> Result<Figures> {
        let (mode, size) = (self.options.mode.as_str(), self.options.services);
        let seconds = self.options.churn_seconds();
        let mut figures = changes::churn(lane, mode, &self.cluster, process, seconds, self.server)?;
        self.report(
            &figures,
            &["churn p50", "churn p99", "churn cpu", "churn rate"],
        );
        let count = if self.options.quick { 4000 } else { 20_000 };
        figures.extend(path::connect(lane, size, count)?);
        self.report(
            &figures,
            &["connect p50", "direct p50", "connect rate", "direct rate"],
        );
        process.stop()?;
        let (next, others) = start::restart(lane, contender, mode)?;
        *process = next;
        figures.extend(others);
        // What is written in mode ipvs no kernel tells.
        if mode != "ipvs" {
            process.stop()?;
            let (next, others) = start::counted(lane, contender, mode)?;
            *process = next;
            figures.extend(others);
        }
        self.report(&figures, &["restart", "restart cpu", "restart writes"]);
        Ok(figures)
    }

    fn note(&mut self, contender: &Contender, size: u32, mut figures: Figures) -> Result<()> {
        let bytes = std::fs::metadata(&contender.program)?.len();
        #[expect(clippy::cast_precision_loss, reason = "no program has 2^52 bytes")]
        figures.insert("binary", bytes as f64 / f64::from(1 << 20));
        let record = Record {
            program: contender.name.clone(),
            mode: self.options.mode.clone(),
            services: size,
            endpoints: self.options.endpoints,
            figures: figures
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v))
                .collect(),
        };
        writeln!(self.figures, "{}", serde_json::to_string(&record)?)?;
        self.records.push(record);
        Ok(())
    }

    fn report(&self, figures: &Figures, names: &[&str]) {
        let words = names.iter().filter_map(|name| {
            let value = figures.get(name)?;
            Some(format!("{name} {}", report::show(name, *value)))
        });
        self.say(&format!("  {}", words.collect::<Vec<_>>().join(", ")));
    }

    fn say(&self, text: &str) {
        println!("{:6.0} s  {text}", self.begun.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &[&str]) -> Result<Options> {
        let words = ["race"].iter().chain(words);
        Line::try_parse_from(words)?.options.complete()
    }

    #[test]
    fn the_main_size_is_one_of_the_sizes() {
        let options = options(&["--services=3000", "--sizes=5000,100"]).unwrap();
        assert_eq!(options.sizes, [100, 3000, 5000]);
    }

    #[test]
    fn a_quick_race_is_small() {
        let options = options(&["--quick"]).unwrap();
        assert_eq!((options.services, options.rounds), (1000, 1));
        assert_eq!(options.sizes, [100, 1000]);
    }

    #[test]
    fn there_are_only_so_many_addresses() {
        assert!(options(&["--services=70000"]).is_err());
        assert!(options(&["--endpoints=0"]).is_err());
    }
}
