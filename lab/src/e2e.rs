//! Upstream's e2e tests of sig-network in a cluster that runs pods, with ferrule or kube-proxy.
//!
//! In: programs and a mode. Out: what became of each test, compared, and on request the table in
//! `docs/conformance.md`. Each program gets a new cluster on new networks: three nodes in three zones
//! with containerd and a kubelet, controllers, a scheduler, `CoreDNS`, IPv4 and IPv6. Nothing of it is
//! left but logs in `target/lab/e2e-<program>-<mode>`.

mod config;
mod images;
mod node;
mod packages;
mod suite;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

pub use node::hold;

use self::node::{Groups, Node};
use self::table::{Outcome, Table};
use crate::control::{self, Control, Variant};
use crate::process::Process;
use crate::tools::{self, Cluster, Tools};
use crate::{cage, lab, os, up};

/// A cluster is up in a minute; on a busy machine it takes several.
const TIMEOUT: Duration = Duration::from_mins(10);
/// Has the process id of the inner half, as seen from outside.
const INNER: &str = "inner";

#[derive(clap::Args, Clone)]
pub struct Options {
    /// The mode of the proxies: nftables, iptables or userspace.
    #[arg(long, default_value = "nftables")]
    mode: String,
    /// The programs to run the tests with; both, if both have the mode.
    #[arg(long, value_delimiter = ',')]
    programs: Vec<String>,
    /// Only tests whose name matches this regular expression.
    #[arg(long)]
    focus: Option<String>,
    /// Only a few tests.
    #[arg(long, conflicts_with = "focus")]
    smoke: bool,
    /// How many tests run at once.
    #[arg(long, default_value_t = 8)]
    processes: u8,
    /// Writes the results into `docs/conformance.md`.
    #[arg(long)]
    record: bool,
    /// Runs no tests and keeps the cluster up until it is interrupted.
    #[arg(long)]
    hold: bool,
    /// The program to test; by default the one beside this program.
    #[arg(long)]
    ferrule: Option<PathBuf>,
}

impl Options {
    /// The same as words of a command line, with one program.
    fn words(&self, program: &str) -> Vec<String> {
        let mut words = vec![
            format!("--mode={}", self.mode),
            format!("--programs={program}"),
            format!("--processes={}", self.processes),
        ];
        words.extend(self.focus.iter().map(|focus| format!("--focus={focus}")));
        let flags = [(self.smoke, "--smoke"), (self.hold, "--hold")];
        words.extend(flags.iter().filter(|flag| flag.0).map(|flag| flag.1.into()));
        let path = self.ferrule.iter();
        words.extend(path.map(|path| format!("--ferrule={}", path.display())));
        words
    }

    fn check(&mut self) -> Result<()> {
        let programs: &[&str] = match self.mode.as_str() {
            "nftables" | "iptables" => &["kube-proxy", "ferrule"],
            "userspace" => &["ferrule"],
            "ipvs" => bail!("mode ipvs needs a kernel with IPVS on every node"),
            other => bail!("there is no mode {other}"),
        };
        if self.programs.is_empty() {
            self.programs = programs.iter().map(|&program| program.to_owned()).collect();
        }
        for program in &self.programs {
            ensure!(
                programs.contains(&program.as_str()),
                "{program} has no mode {}",
                self.mode
            );
        }
        Ok(())
    }

    fn folder(&self, program: &str) -> String {
        format!("e2e-{program}-{}", self.mode)
    }
}

/// Builds what is missing while there is a network, then runs the tests with one program after the
/// other and compares.
pub fn run(mut options: Options) -> Result<ExitCode> {
    cage::require_root()?;
    options.check()?;
    Tools::ensure(options.ferrule.clone())?.require_ferrule()?;
    let cluster = tools::cluster()?;
    packages::node()?;
    packages::containers()?;
    let mut results = Vec::new();
    for program in &options.programs {
        let words = options.words(program);
        // A process can make such a cage once.
        let mut outer = os::command(std::env::current_exe()?);
        let status = outer.arg("e2e-with").args(words).status()?;
        ensure!(status.success(), "no results with {program}");
        if !options.hold {
            let report = up::folder(&options.folder(program))?.join(suite::REPORT);
            results.push((program.as_str(), suite::read(&report)?));
        }
    }
    drop(cluster);
    for (program, outcomes) in &results {
        println!("{program}: {}", suite::summary(outcomes));
    }
    if options.record {
        let mut table = Table::read()?;
        for (program, outcomes) in &results {
            table.put(program, &options.mode, outcomes);
        }
        table.write()?;
    }
    let lost = lost(&results);
    for line in &lost {
        println!("{line}");
    }
    Ok(if lost.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Tests that ferrule fails and that kube-proxy passes or was not asked.
fn lost(results: &[(&str, suite::Outcomes)]) -> Vec<String> {
    let of = |program: &str| results.iter().find(|(name, _)| *name == program);
    let Some((_, ours)) = of("ferrule") else {
        return Vec::new();
    };
    let theirs = of("kube-proxy").map(|(_, outcomes)| outcomes);
    let mut lines = Vec::new();
    for (test, outcome) in ours {
        let Outcome::Failed(reason) = outcome else {
            continue;
        };
        let passes = |outcome: &Outcome| matches!(outcome, Outcome::Passed | Outcome::PassedAgain);
        match theirs {
            Some(theirs) if !theirs.get(test).is_some_and(passes) => {}
            _ => lines.push(format!("lost: {test}: {reason}")),
        }
    }
    lines
}

/// The outer half of one run: everything that outlives a cage, and its end.
pub fn with(mut options: Options) -> Result<ExitCode> {
    options.check()?;
    let [program] = &options.programs[..] else {
        bail!("a cluster has one proxy");
    };
    let name = options.folder(program);
    let (folder, _lock) = up::claim(&name)?;
    let groups = Groups::new(&name);
    groups.remove()?;
    images::build(&tools::cluster()?, &folder)?;
    let mut inner = os::command(std::env::current_exe()?);
    inner.arg("run-e2e").args(options.words(program));
    let file = folder.join(INNER);
    let code = cage::run(&mut inner, |pid| {
        // Without it only the line that shows the way in is less helpful.
        let _unwritten = std::fs::write(&file, pid.to_string());
    });
    groups.remove()?;
    node::remove_state(&folder)?;
    std::fs::remove_file(folder.join(images::ARCHIVE))?;
    code
}

/// The inner half: the cluster and the tests.
pub fn inside(mut options: Options) -> Result<()> {
    options.check()?;
    cage::enter()?;
    node::cover_settings()?;
    let program = options.programs[0].clone();
    let name = options.folder(&program);
    let folder = up::folder(&name)?;
    let tools = Tools::ensure(options.ferrule.clone())?;
    let mut raised = Raised::start(&tools, &folder, &Groups::new(&name))?;
    for node in &mut raised.nodes {
        node.start_proxy(&tools, &program, &options.mode)?;
    }
    raised.wait()?;
    raised.prove(&program, &options.mode)?;
    println!("the cluster is up, with {program} in mode {}", options.mode);
    if options.hold {
        println!(
            "  enter it:   nsenter -t $(cat {}) -m -n -p\n  kubeconfig: {}",
            folder.join(INNER).display(),
            control::kubeconfig(&folder).display()
        );
        loop {
            std::thread::park();
        }
    }
    suite::run(&raised.cluster, &folder, &options.selection(), || {
        raised_check(&mut raised.nodes)
    })
}

fn raised_check(nodes: &mut [Node]) -> Result<()> {
    nodes.iter_mut().try_for_each(Node::check)
}

impl Options {
    fn selection(&self) -> suite::Selection<'_> {
        suite::Selection {
            focus: match (&self.focus, self.smoke) {
                (Some(focus), _) => focus,
                (None, true) => suite::SMOKE,
                (None, false) => suite::FOCUS,
            },
            processes: self.processes,
        }
    }
}

/// A cluster whose nodes have no proxy yet.
struct Raised {
    cluster: Cluster,
    folder: PathBuf,
    control: Control,
    scheduler: Process,
    nodes: Vec<Node>,
}

impl Raised {
    fn start(tools: &Tools, folder: &Path, groups: &Groups) -> Result<Self> {
        let cluster = tools::cluster()?;
        control::lay_network()?;
        let mut nodes = (1..=node::COUNT)
            .map(|number| Node::build(number, folder))
            .collect::<Result<Vec<_>>>()?;
        let runtime = lab::runtime()?;
        let mut guests: Vec<_> = (1..=node::COUNT).map(Node::guest).collect();
        guests.push(node::PROXY);
        let variant = Variant {
            guests,
            whole: true,
            ..Variant::default()
        };
        let images = folder.join(images::ARCHIVE);
        let control = std::thread::scope(|scope| {
            let control = scope.spawn(|| Control::start_as(variant, tools, folder, &runtime));
            for node in &mut nodes {
                node.start_containerd(&cluster, &images)?;
            }
            control
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let scheduler = scheduler(&cluster, folder)?;
        for node in &mut nodes {
            control.api.apply(&node.object())?;
            node.start_kubelet(&cluster, groups)?;
        }
        let raised = Self {
            cluster,
            folder: folder.to_owned(),
            control,
            scheduler,
            nodes,
        };
        let names = folder.join("names.json");
        std::fs::write(&names, config::names().to_string())?;
        raised.kubectl(&["apply", "--filename", &names.display().to_string()])?;
        Ok(raised)
    }

    fn kubectl(&self, words: &[&str]) -> Result<String> {
        let mut command = os::command(self.cluster.kubernetes.join("kubectl"));
        command
            .arg(format!(
                "--kubeconfig={}",
                control::kubeconfig(&self.folder).display()
            ))
            .args(words)
            .env("HOME", &self.folder);
        os::output(&mut command)
    }

    /// Waits until all nodes are ready and pods can ask for names.
    fn wait(&mut self) -> Result<()> {
        let ready = os::poll(TIMEOUT, || {
            if let Err(error) = self.check() {
                return Some(Err(error));
            }
            // They are asked rarely: each question is a new process.
            std::thread::sleep(Duration::from_millis(500));
            let nodes = self.kubectl(&["get", "nodes", "--no-headers"]).ok()?;
            let is_ready = |line: &str| line.split_whitespace().nth(1) == Some("Ready");
            let up = nodes.lines().filter(|line| is_ready(line)).count();
            let available = "jsonpath={.status.availableReplicas}";
            let dns = [
                "-n",
                "kube-system",
                "get",
                "deployment",
                "coredns",
                "-o",
                available,
            ];
            let answer = self.kubectl(&dns).ok()?;
            (up == usize::from(node::COUNT) && answer == "2").then_some(Ok(()))
        });
        match ready {
            Some(outcome) => outcome,
            None => bail!(
                "the cluster is not ready:\n{}{}",
                self.kubectl(&["get", "nodes,pods", "-A", "-o", "wide"])?,
                self.kubectl(&["get", "events", "-A"])?
            ),
        }
    }

    fn check(&mut self) -> Result<()> {
        self.control.check()?;
        self.scheduler.check()?;
        raised_check(&mut self.nodes)
    }

    /// Fails unless the proxies of all nodes are this program in this mode.
    fn prove(&self, program: &str, mode: &str) -> Result<()> {
        for node in &self.nodes {
            let metrics = node.page("metrics")?;
            let is_ferrule = metrics.contains("\nferrule_");
            ensure!(
                is_ferrule == (program == "ferrule"),
                "the proxy of {} is not {program}",
                node.name
            );
            let answer = node.page("proxyMode")?;
            ensure!(answer.trim() == mode, "{} is in mode {answer}", node.name);
        }
        Ok(())
    }
}

fn scheduler(cluster: &Cluster, folder: &Path) -> Result<Process> {
    let mut command = os::command(cluster.kubernetes.join("kube-scheduler"));
    let kubeconfig = control::kubeconfig(folder);
    let kubeconfig = kubeconfig.display();
    command.args([
        &format!("--kubeconfig={kubeconfig}"),
        &format!("--authentication-kubeconfig={kubeconfig}"),
        &format!("--authorization-kubeconfig={kubeconfig}"),
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--cert-dir=/run/lab/scheduler",
    ]);
    Process::start("kube-scheduler", &mut command, folder).context("no scheduler")
}
