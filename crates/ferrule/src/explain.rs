//! `ferrule explain`: what an address or a Service does on this node, and why.
//!
//! In: a target, and where to find out: the running proxy by its admin socket, or manifests. Out:
//! plain sentences or JSON, and an exit code. The answer is made by the same code in both cases.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::ensure;
use ferrule_core::desired::explain::{Known, News};
use ferrule_core::issue::Issue;
use ferrule_core::track::Tracker;

use crate::admin::SOCKET;
use crate::cli::{ExplainArgs, Output};
use crate::inspect;
use crate::watch::manifests::{self, Read};

mod advice;
pub mod answer;
pub mod ask;
mod compare;
mod live;
mod missing;
mod probe;
pub mod target;
mod words;

use answer::{Answer, Question, State, View, answer};

/// Answers, prints, and says in the exit code whether it works: 0, 3 for what does not exist, 4 for
/// what exists and cannot work.
pub fn run(arguments: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let question = Question::new(arguments.target.clone(), arguments.from)?;
    let mut answer = match &arguments.manifests {
        Some(_) => from_manifests(arguments, &question)?,
        None => from_proxy(arguments, &question)?,
    };
    if let (Some(_), Some(_)) = (&arguments.manifests, &arguments.socket) {
        compare::with_running(&mut answer, &from_proxy(arguments, &question)?);
    }
    if arguments.probe {
        probe::probe(&mut answer);
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    match arguments.output {
        Output::Text => {
            for line in &answer.lines {
                // Text of objects must not steer a terminal.
                let clean: String = line.chars().filter(|c| !c.is_control()).collect();
                writeln!(out, "{clean}")?;
            }
        }
        Output::Json => {
            serde_json::to_writer_pretty(&mut out, &answer)?;
            writeln!(out)?;
        }
    }
    out.flush()?;
    Ok(match answer.state {
        State::Works | State::Partly | State::Elsewhere => ExitCode::SUCCESS,
        State::Missing => ExitCode::from(3),
        State::Broken => ExitCode::from(4),
    })
}

/// What the running proxy says, and what the kernel knows beyond.
fn from_proxy(arguments: &ExplainArgs, question: &Question) -> anyhow::Result<Answer> {
    let socket = arguments.socket.as_deref().unwrap_or(Path::new(SOCKET));
    let mut answer = ask::ask(socket, question)?;
    live::add(&mut answer, question.from);
    Ok(answer)
}

/// What the proxy would do with these manifests.
fn from_manifests(arguments: &ExplainArgs, question: &Question) -> anyhow::Result<Answer> {
    let cluster = arguments.cluster();
    ensure!(
        !cluster.node.is_empty(),
        "--manifests needs --node, the name of the node to decide for"
    );
    let (config, gates) = inspect::config(&cluster, None)?;
    let Read { events, unserved } = manifests::read_all(&cluster.manifests, &cluster.node)?;
    // No trigger times are measured here, so the tracker needs no clock.
    let mut tracker = Tracker::new(SystemTime::UNIX_EPOCH);
    for event in events {
        tracker.on(event);
    }
    let mut known = Known::new(config.settings(&gates));
    if let Some(changes) = tracker.take() {
        known.learn(News::of(&tracker, &changes));
    }
    let issues: Vec<Issue> = tracker.issues().cloned().collect();
    let view = View {
        known: &known,
        node: &cluster.node,
        mode: config.mode().name,
        issues: &issues,
        local: &[],
        unserved: &unserved,
        kernel: None,
    };
    let mut answer = answer(&view, question);
    if known.node().is_none() {
        answer.lines.push(format!(
            "Note: the manifests have no Node {}: its zone and addresses are unknown.",
            cluster.node
        ));
    }
    Ok(answer)
}
