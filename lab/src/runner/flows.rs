//! Connections that stay open while the story goes on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Scene;
use super::check::{self, Seen};
use crate::probe::{Answer, Answers, Flow};
use crate::story::Expectation;
use crate::story::line::{self, Outcome, Packet};
use crate::world::World;

/// By name, one for each world in the order of worlds.
pub type Flows = BTreeMap<String, Vec<Opened>>;

/// An open connection.
pub struct Opened {
    flow: Flow,
    sender: String,
    packet: Packet,
    to: SocketAddr,
    /// Who answered when it was opened.
    first: Answer,
}

/// Opens connections and returns what is not as expected.
pub fn open(
    lines: &BTreeMap<String, String>,
    worlds: &[&World],
    scene: &mut Scene,
) -> Result<String> {
    let mut wrong = String::new();
    for (name, text) in lines {
        let (subject, outcome) = line::split(text)?;
        let packet = Packet::parse(subject)?;
        let [sender] = &packet.senders[..] else {
            bail!("{text:?}: a connection has one sender");
        };
        let to = packet.target(|name, family| scene.memory.address(name, family))?;
        let mut flows = Vec::new();
        for world in worlds {
            let outcome = check::expected(outcome, &packet, to, sender, &world.key)?;
            let place = world.place(sender)?;
            let timeout = timeout(&outcome);
            let opened = place.run(|| Flow::open(packet.protocol, to, timeout))?;
            let (flow, answer) =
                opened.with_context(|| format!("{}: {text} did not open", world.key))?;
            let seen = check::judge(&Answers::from([answer.clone()]), &outcome, sender);
            if !seen.fits {
                writeln!(wrong, "{}: {text}\n    seen: {}", world.key, seen.shown)?;
            }
            flows.push(Opened {
                flow,
                sender: sender.clone(),
                packet: packet.clone(),
                to,
                first: answer,
            });
        }
        scene.flows.insert(name.clone(), flows);
    }
    Ok(wrong)
}

/// Sends over all of them at once and returns what is not as expected.
pub fn send(
    lines: &BTreeMap<String, Expectation>,
    worlds: &[&World],
    scene: &mut Scene,
) -> Result<String> {
    for name in lines.keys() {
        let known = scene.flows.contains_key(name);
        anyhow::ensure!(known, "no connection {name} was opened");
    }
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (name, flows) in &mut scene.flows {
            let Some(line) = lines.get(name) else {
                continue;
            };
            for (world, opened) in worlds.iter().zip(flows) {
                let wanted = line.outcome(&world.key);
                let Opened {
                    packet, to, sender, ..
                } = &*opened;
                let outcome = check::expected(wanted, packet, *to, sender, &world.key)?;
                let asked = scope.spawn(move || opened.ask(&outcome));
                threads.push((format!("{}: {name} = {wanted}", world.key), asked));
            }
        }
        let mut wrong = String::new();
        for (text, thread) in threads {
            let seen = thread.join();
            let seen = seen.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            if !seen.fits {
                writeln!(wrong, "{text}\n    seen: {}", seen.shown)?;
            }
        }
        Ok(wrong)
    })
}

impl Opened {
    fn ask(&mut self, outcome: &Outcome) -> Seen {
        let answer = self.flow.try_ask(timeout(outcome));
        let same = *outcome == Outcome::Same && answer == self.first;
        let mut seen = check::judge(&Answers::from([answer]), outcome, &self.sender);
        seen.fits |= same;
        seen
    }
}

fn timeout(outcome: &Outcome) -> Duration {
    match outcome {
        Outcome::Timeout | Outcome::Unserved => check::SILENCE,
        _ => check::TIMEOUT,
    }
}
