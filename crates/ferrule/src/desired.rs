//! `ferrule desired`: what every Service address should do on one node.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::mpsc;
use std::time::SystemTime;

use anyhow::ensure;
use ferrule_core::desired::Desired;
use ferrule_core::facts::{DetectLocal, NodePortAddresses, Settings};
use ferrule_core::issue::{Issue, Severity};
use ferrule_core::model::Family;
use ferrule_core::track::{Event, Tracker};

use crate::cli::{DesiredArgs, Output};
use crate::complain;
use crate::watch::manifests;

mod rows;
mod table;

use rows::Row;

/// Reads, decides, prints; with `--watch` again after every change.
pub fn run(arguments: &DesiredArgs) -> anyhow::Result<()> {
    let mut view = View::new(arguments)?;
    if !arguments.watch {
        view.take_in(manifests::read(&arguments.manifests, &arguments.node)?);
        return view.print_all();
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    let _watch = manifests::watch(
        &arguments.manifests,
        &arguments.node,
        move |read| match sender.send(read) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        },
    )?;
    let mut first = true;
    for read in receiver {
        match read {
            Ok(events) => {
                view.take_in(events);
                if first {
                    view.print_all()?;
                } else {
                    view.print_difference()?;
                }
                first = false;
            }
            Err(error) if first => return Err(error.into()),
            // A file being edited is often broken for a moment: the last good state stands.
            Err(error) => complain(&format!("warning: {:#}", anyhow::Error::from(error))),
        }
    }
    Ok(())
}

/// What is known, and what of it was shown.
struct View<'a> {
    arguments: &'a DesiredArgs,
    tracker: Tracker,
    desired: Desired,
    shown: Vec<Row>,
    told: BTreeSet<String>,
}

impl<'a> View<'a> {
    fn new(arguments: &'a DesiredArgs) -> anyhow::Result<Self> {
        Ok(Self {
            arguments,
            // No trigger times are measured here, so the tracker needs no clock.
            tracker: Tracker::new(SystemTime::UNIX_EPOCH),
            desired: Desired::new(settings(arguments)?),
            shown: Vec::new(),
            told: BTreeSet::new(),
        })
    }

    fn take_in(&mut self, events: Vec<Event>) {
        for event in events {
            self.tracker.on(event);
        }
        if let Some(changes) = self.tracker.take() {
            self.desired.update(&self.tracker, changes);
        }
        self.report();
    }

    /// Tells what was left out, once, on standard error: standard output stays the answer.
    fn report(&mut self) {
        let mut lines = BTreeSet::new();
        if self.tracker.node().is_none() {
            let node = &self.arguments.node;
            lines.insert(format!(
                "note: there is no Node {node}: its zone and address are unknown"
            ));
        }
        let issues = self.tracker.issues().chain(self.desired.issues());
        lines.extend(issues.map(|issue: &Issue| match issue.severity {
            Severity::Note => format!("note: {issue}"),
            Severity::Warning => format!("warning: {issue}"),
        }));
        for line in lines.difference(&self.told) {
            complain(line);
        }
        self.told = lines;
    }

    fn rows(&self) -> Vec<Row> {
        let families = match self.arguments.family {
            Some(family) => vec![Family::from(family)],
            None => Family::ALL.to_vec(),
        };
        let mut rows = rows::rows(&self.desired, &families);
        if let Some(service) = &self.arguments.service {
            rows.retain(|row| row.service == *service);
        }
        rows
    }

    fn print_all(&mut self) -> anyhow::Result<()> {
        self.shown = self.rows();
        if let Some(service) = &self.arguments.service {
            let there = !self.shown.is_empty() || self.arguments.watch;
            ensure!(
                there,
                "there is no Service {service} with an address on this node"
            );
        }
        let mut out = io::BufWriter::new(io::stdout().lock());
        match self.arguments.output {
            Output::Text => table::write(&mut out, &self.shown)?,
            Output::Json => write_json(&mut out, &self.shown)?,
        }
        Ok(out.flush()?)
    }

    fn print_difference(&mut self) -> anyhow::Result<()> {
        let rows = self.rows();
        let gone: Vec<&Row> = self
            .shown
            .iter()
            .filter(|row| !rows.contains(row))
            .collect();
        let new: Vec<&Row> = rows
            .iter()
            .filter(|row| !self.shown.contains(row))
            .collect();
        if !(gone.is_empty() && new.is_empty()) {
            let mut out = io::BufWriter::new(io::stdout().lock());
            match self.arguments.output {
                Output::Text => table::write_difference(&mut out, &gone, &new)?,
                Output::Json => {
                    let difference = serde_json::json!({ "removed": gone, "added": new });
                    write_json(&mut out, &difference)?;
                }
            }
            out.flush()?;
        }
        self.shown = rows;
        Ok(())
    }
}

fn write_json(out: &mut impl Write, value: &impl serde::Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

fn settings(arguments: &DesiredArgs) -> anyhow::Result<Settings> {
    let node_port_addresses = NodePortAddresses::parse(&arguments.nodeport_addresses)
        .map_err(|entry| anyhow::anyhow!("--nodeport-addresses: {entry:?} is not a network"))?;
    Ok(Settings {
        masquerade_all: arguments.masquerade_all,
        detect_local: DetectLocal::ClusterCidr(arguments.cluster_cidr.as_slice().into()),
        node_port_addresses,
        ..Settings::default()
    })
}
