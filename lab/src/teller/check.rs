//! Looks at every world at once and says where it is not as a story tells.
//!
//! Two things must hold: every world shows what the line says, and all worlds for which it says
//! the same show the same, in everything that was seen and not only in what the line mentions.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Result;

use crate::plan::Family;
use crate::probe::{self, Answer, Answers};
use crate::story::Expectation;
use crate::story::line::{Outcome, Packet, Reply, Request, Series, number};
use crate::story::short::Memory;
use crate::world::World;

/// An answer that does come, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long silence must last to be believed when silence is expected.
const SILENCE: Duration = Duration::from_secs(1);
/// Senders at work at the same time.
const HANDS: usize = 32;

/// What one sender saw in one world.
pub struct Seen {
    /// For the reader.
    pub shown: String,
    /// Whether it is as the line says.
    pub fits: bool,
    /// What must be equal in all worlds; none where chance decides.
    pub same: Option<String>,
}

/// One look of one sender in one world.
struct Row<'a> {
    line: &'a Expectation,
    sender: String,
    world: &'a World,
    seen: Seen,
}

/// How a line is looked at.
#[derive(Clone, Copy)]
pub enum Look {
    Packets,
    Http,
    Metrics,
}

/// Everything that is not as it should be, as text; empty when all is well.
pub fn look(
    how: Look,
    lines: &[Expectation],
    worlds: &[&World],
    memory: &Memory,
) -> Result<String> {
    let mut jobs = Vec::new();
    for line in lines {
        for sender in senders(how, line)? {
            jobs.extend(worlds.iter().map(|world| (line, sender.clone(), *world)));
        }
    }
    let jobs = Mutex::new(jobs.into_iter());
    let rows = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        loop {
            let job = jobs.lock().expect("no worker panics").next();
            let Some((line, sender, world)) = job else {
                return Ok(());
            };
            let seen = see(how, line, &sender, world, memory)?;
            let row = Row {
                line,
                sender,
                world,
                seen,
            };
            rows.lock().expect("no worker panics").push(row);
        }
    };
    std::thread::scope(|scope| {
        let hands: Vec<_> = (0..HANDS).map(|_| scope.spawn(work)).collect();
        hands.into_iter().try_for_each(|hand| {
            hand.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    Ok(report(&rows.into_inner().expect("no worker panics")))
}

fn senders(how: Look, line: &Expectation) -> Result<Vec<String>> {
    Ok(match how {
        Look::Packets => Packet::parse(&line.subject)?.senders,
        Look::Http => Request::parse(&line.subject)?.senders,
        Look::Metrics => vec![Series::parse(&line.subject)?.node],
    })
}

fn see(
    how: Look,
    line: &Expectation,
    sender: &str,
    world: &World,
    memory: &Memory,
) -> Result<Seen> {
    let outcome = line.outcome(&world.key);
    let services = |name: &str, family: Family| memory.address(name, family);
    let place = world.place(sender)?;
    match how {
        Look::Packets => {
            let packet = Packet::parse(&line.subject)?;
            let to = packet.target(services)?;
            let outcome = Outcome::parse(outcome)?;
            place.run(|| see_packets(&packet, to, &outcome, sender))
        }
        Look::Http => {
            let request = Request::parse(&line.subject)?;
            let to = request.target(services)?;
            let reply = Reply::parse(outcome)?;
            place.run(|| see_reply(to, &request.path, &reply))
        }
        Look::Metrics => {
            let series = Series::parse(&line.subject)?;
            let wanted = number(outcome)?;
            place.run(|| see_metric(&series, wanted))
        }
    }
}

fn see_packets(packet: &Packet, to: SocketAddr, outcome: &Outcome, sender: &str) -> Seen {
    let patience = match outcome {
        Outcome::Timeout => SILENCE,
        _ => PATIENCE,
    };
    let answers = probe::balanced(packet.protocol, to, outcome.choices(), patience);
    judge(&answers, outcome, sender)
}

/// Holds answers against what was expected.
pub fn judge(answers: &Answers, outcome: &Outcome, sender: &str) -> Seen {
    let shown = probe::show(answers);
    Seen {
        fits: outcome.fits(answers, sender),
        same: (!outcome.is_open()).then(|| shown.clone()),
        shown,
    }
}

fn see_reply(to: SocketAddr, path: &str, wanted: &Reply) -> Seen {
    match probe::get(to, path, SILENCE) {
        Ok((code, text)) => Seen {
            fits: wanted.fits(code, &text),
            // Bodies hold times.
            same: Some(code.to_string()),
            shown: format!("{code}: {}", text.rsplit("\r\n\r\n").next().unwrap_or("")),
        },
        Err(error) => {
            let answer = probe::told(&error);
            Seen {
                shown: answer.to_string(),
                same: Some(answer.to_string()),
                fits: *wanted == Reply::None(answer),
            }
        }
    }
}

fn see_metric(series: &Series, wanted: f64) -> Seen {
    let to = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);
    let page = probe::get(to, "/metrics", PATIENCE);
    let shown = match &page {
        Ok((_, page)) => series.find(page).unwrap_or("no such number").to_owned(),
        Err(error) => error.to_string(),
    };
    Seen {
        fits: number(&shown).is_ok_and(|value| (value - wanted).abs() < 1e-9),
        same: Some(shown.clone()),
        shown,
    }
}

/// The failures among what was seen.
fn report(rows: &[Row<'_>]) -> String {
    let mut text = String::new();
    for Row {
        line,
        sender,
        world,
        seen,
    } in rows
    {
        if !seen.fits {
            let wanted = line.outcome(&world.key);
            let subject = &line.subject;
            let _infallible = writeln!(
                text,
                "{}: {subject} (as {sender})\n    expected: {wanted}\n    seen:     {}",
                world.key, seen.shown
            );
        }
    }
    if text.is_empty() {
        text = disagreements(rows);
    }
    text
}

/// Worlds that are all as told, and yet not the same.
fn disagreements(rows: &[Row<'_>]) -> String {
    let mut groups: BTreeMap<(&str, &str, &str), Vec<&Row<'_>>> = BTreeMap::new();
    for row in rows {
        let outcome = row.line.outcome(&row.world.key);
        let group = (row.line.subject.as_str(), row.sender.as_str(), outcome);
        groups.entry(group).or_default().push(row);
    }
    let mut text = String::new();
    for ((subject, sender, _), rows) in groups {
        let first = &rows[0].seen.same;
        if rows.iter().any(|row| row.seen.same != *first) {
            let _infallible = writeln!(text, "worlds differ: {subject} (as {sender})");
            for row in rows {
                let _infallible = writeln!(text, "    {}: {}", row.world.key, row.seen.shown);
            }
        }
    }
    text
}

/// Whether a pod is among the answers.
pub fn is_answered(answers: &Answers) -> bool {
    answers
        .iter()
        .any(|answer| matches!(answer, Answer::Pod { .. }))
}
