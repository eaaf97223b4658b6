//! `ferrule verify`: how the kernel differs from what is desired.
//!
//! In: the cluster, once, from files or an API server, and the kernel. Out: every difference on a line
//! of its own, in the words of the mode's own tool, and an exit code. Nothing is written.
//!
//! A proxy may be writing meanwhile, and what it has received may be newer than what we have. So a
//! difference counts only if it is still there at a second look, for which changes are awaited.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_dataplane::error_chain;
use ferrule_dataplane::host::{Addresses, Host};
use ferrule_dataplane::verify::{Discrepancy, Report};

use crate::cli::{Output, VerifyArgs};
use crate::config::Config;
use crate::inspect::{self, ClusterView};
use crate::print_error;

mod cluster;
mod print;

use cluster::Source;
use print::Sheet;

/// How long a proxy may take to write what it has received; its shortest interval is a second.
const SETTLING: Duration = Duration::from_secs(1);

/// Why the comparison could not be made.
#[derive(Debug)]
pub enum Failure {
    /// What the user gave makes no sense.
    Input(anyhow::Error),
    /// The kernel's tables cannot be read.
    Kernel(String),
    /// The API server does not answer.
    Cluster(String),
    /// Nobody reads what is printed.
    Output(io::Error),
}

impl Failure {
    /// 1 says that something differs, and 2 is clap's for a command line that makes no sense.
    fn code(&self) -> ExitCode {
        match self {
            Self::Input(_) => ExitCode::from(2),
            Self::Kernel(_) => ExitCode::from(3),
            Self::Cluster(_) => ExitCode::from(4),
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Self::Output(_) => ExitCode::from(5),
        }
    }

    fn print(&self) {
        match self {
            Self::Input(error) => print_error(&format!("Error: {error:#}")),
            Self::Kernel(text) | Self::Cluster(text) => print_error(&format!("Error: {text}")),
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Self::Output(error) => print_error(&format!("Error: {}", error_chain(error))),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// What was found, by family. Families that are not compared are left out.
pub type Found = BTreeMap<Family, Report>;

/// Compares and prints; with `--watch` again and again.
pub fn run(arguments: &VerifyArgs) -> ExitCode {
    verify(arguments).unwrap_or_else(|failure| {
        failure.print();
        failure.code()
    })
}

fn verify(arguments: &VerifyArgs) -> Result<ExitCode, Failure> {
    let cluster = arguments.cluster(node_name(arguments)?);
    let (mut config, gates) =
        inspect::config(&cluster, arguments.proxy_mode).map_err(Failure::Input)?;
    if let Some(bit) = arguments.iptables_masquerade_bit {
        config.iptables_masquerade_bit = bit;
    }
    let mut source = Source::open(arguments, &cluster.node, &config, &gates)?;
    let mut view = ClusterView::new(&cluster, config.settings(&gates));
    view.take_in(source.list()?);
    let node = Node {
        families: inspect::families(&cluster),
        config,
    };
    let mut sheet = Sheet::new(arguments.output, &cluster.node, node.config.mode().name);
    let found = node.settled(&mut view, &mut source)?;
    sheet.print_all(&found)?;
    if !arguments.watch {
        let right = found.values().all(|report| report.discrepancies.is_empty());
        return Ok(ExitCode::from(u8::from(!right)));
    }
    loop {
        view.take_in(source.changes(Duration::from_secs(arguments.every)));
        match node.settled(&mut view, &mut source) {
            Ok(found) => sheet.print_changes(&found)?,
            // One that can be read again at the next look.
            Err(Failure::Kernel(text)) => print_error(&format!("warning: {text}")),
            Err(failure) => return Err(failure),
        }
    }
}

/// The name of the Node, by default that of this machine, as the proxy has it.
fn node_name(arguments: &VerifyArgs) -> Result<String, Failure> {
    if let Some(name) = &arguments.node {
        return Ok(name.clone());
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = name.map_err(|error| {
        let error = anyhow::Error::new(error).context("cannot find the node's name; give --node");
        Failure::Input(error)
    })?;
    Ok(name.trim().to_lowercase())
}

/// This machine, as it is compared.
struct Node {
    families: Vec<Family>,
    config: Config,
}

impl Node {
    /// What differs, and still does after a while if anything did.
    fn settled(&self, view: &mut ClusterView<'_>, source: &mut Source) -> Result<Found, Failure> {
        let first = self.look(view)?;
        if first.values().all(|report| report.discrepancies.is_empty()) {
            return Ok(first);
        }
        view.take_in(source.changes(SETTLING));
        let second = self.look(view)?;
        let confirmed = first.into_iter().filter_map(|(family, report)| {
            let later = second.get(&family)?;
            Some((family, report.confirmed_by(later)))
        });
        Ok(confirmed.collect())
    }

    /// What differs now.
    fn look(&self, view: &ClusterView<'_>) -> Result<Found, Failure> {
        let host = Host::default();
        let local = Addresses::open().map_err(|error| {
            let err = error_chain(&error);
            Failure::Kernel(format!("cannot list addresses of interfaces: {err}"))
        })?;
        let (mut found, mut left_out) = (Found::new(), Vec::new());
        for family in &self.families {
            if let Err(why) = host.check(*family) {
                left_out.push((*family, why.to_string()));
                continue;
            }
            let mode = self.config.mode();
            match (mode.verify)(&view.desired, *family, &self.config, &local.list()) {
                Ok(report) => drop(found.insert(*family, report)),
                Err(error) => match error.kind() {
                    io::ErrorKind::PermissionDenied => return Err(denied()),
                    // A family that this machine cannot program, if it can the other one.
                    io::ErrorKind::Unsupported | io::ErrorKind::NotFound => {
                        left_out.push((*family, error_chain(&error)));
                    }
                    _ => {
                        let err = error_chain(&error);
                        let text = format!("cannot read the kernel's tables for {family}: {err}");
                        return Err(Failure::Kernel(text));
                    }
                },
            }
        }
        match (found.values_mut().next(), left_out.first()) {
            (Some(report), _) => {
                for (family, why) in left_out {
                    report.note(format!("{family} is not compared: {why}"));
                }
            }
            (None, Some((family, why))) => {
                let text = format!("cannot read the kernel's tables for {family}: {why}");
                return Err(Failure::Kernel(text));
            }
            (None, None) => {}
        }
        Ok(found)
    }
}

fn denied() -> Failure {
    let text = "no permission to read the kernel's rules: run as root, or with CAP_NET_ADMIN in \
                the network of the node";
    Failure::Kernel(text.to_owned())
}

/// All differences, with their family.
fn all(found: &Found) -> BTreeSet<(Family, Discrepancy)> {
    let reports = found.iter();
    reports
        .flat_map(|(family, report)| {
            let discrepancies = report.discrepancies.iter();
            discrepancies.map(|discrepancy| (*family, discrepancy.clone()))
        })
        .collect()
}

impl From<Output> for print::Form {
    fn from(output: Output) -> Self {
        match output {
            Output::Text => Self::Text,
            Output::Json => Self::Json,
        }
    }
}

/// Flushes what was written, so that a reader has whole lines.
fn flush(mut out: impl Write) -> Result<(), Failure> {
    out.flush().map_err(Failure::from)
}
