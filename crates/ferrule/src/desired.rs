//! `ferrule desired`: what every Service address should do on one node.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::mpsc;

use anyhow::ensure;

use crate::cli::{DesiredArgs, Output};
use crate::inspect::{self, ClusterView};
use crate::print_error;
use crate::watch::manifests;

pub mod rows;
mod table;

use rows::Row;

/// Reads, decides, prints; with `--watch` again after every change.
pub fn run(arguments: &DesiredArgs) -> anyhow::Result<()> {
    let mut view = View::new(arguments)?;
    let cluster = &arguments.cluster;
    if !arguments.watch {
        let events = manifests::read(&cluster.manifests, &cluster.node)?;
        view.cluster.take_in(events);
        return view.print_all();
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    let _watch = manifests::watch(&cluster.manifests, &cluster.node, move |read| match sender
        .send(read)
    {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    })?;
    let mut first = true;
    for read in receiver {
        match read {
            Ok(events) => {
                view.cluster.take_in(events);
                if first {
                    view.print_all()?;
                } else {
                    view.print_difference()?;
                }
                first = false;
            }
            Err(error) if first => return Err(error.into()),
            // A file being edited is often broken for a moment: the last good state stands.
            Err(error) => print_error(&format!("warning: {:#}", anyhow::Error::from(error))),
        }
    }
    Ok(())
}

/// What is known, and what of it was shown.
struct View<'a> {
    arguments: &'a DesiredArgs,
    cluster: ClusterView<'a>,
    shown: Vec<Row>,
}

impl<'a> View<'a> {
    fn new(arguments: &'a DesiredArgs) -> anyhow::Result<Self> {
        let (config, gates) = inspect::config(&arguments.cluster, None)?;
        Ok(Self {
            arguments,
            cluster: ClusterView::new(&arguments.cluster, config.settings(&gates)),
            shown: Vec::new(),
        })
    }

    fn rows(&self) -> Vec<Row> {
        let families = inspect::families(&self.arguments.cluster);
        let mut rows = rows::rows(&self.cluster.desired, &families);
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
