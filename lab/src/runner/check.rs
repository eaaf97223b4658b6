//! Checks every world at once and reports where it is not as a story expects.
//!
//! Two things must hold: every world shows what the line says, and all worlds for which it says
//! the same show the same, in everything that was seen and not only in what the line mentions.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Result;

use crate::plan::{self, Family};
use crate::probe::{self, Answer, Answers};
use crate::story::Expectation;
use crate::story::line::{Outcome, Packet, Reply, Request, Series, number};
use crate::story::short::Memory;
use crate::world::{World, WorldKey};

/// An answer that does come, on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// How long silence must last to be believed when silence is expected.
pub const SILENCE: Duration = Duration::from_millis(500);
/// Senders at work at the same time.
const HANDS: usize = 48;

/// What one sender saw in one world.
pub struct Seen {
    /// For the reader.
    pub shown: String,
    /// Whether it is as the line says.
    pub fits: bool,
    /// What must be equal in all worlds; none where chance decides.
    pub same: Option<String>,
}

/// One look of one sender in one world, in the order of the story.
struct Row<'a> {
    number: usize,
    line: &'a Expectation,
    sender: String,
    world: &'a WorldKey,
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
    let mut jobs: Vec<_> = jobs.into_iter().enumerate().collect();
    // Who expects silence waits longest, so these begin first.
    jobs.sort_by_key(|(_, (line, _, world))| line.outcome(&world.key) != "timeout");
    let jobs = Mutex::new(jobs.into_iter());
    let rows = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        loop {
            let job = jobs.lock().expect("no worker panics").next();
            let Some((number, (line, sender, world))) = job else {
                return Ok(());
            };
            let seen = see(how, line, &sender, world, memory)?;
            let row = Row {
                number,
                line,
                sender,
                world: &world.key,
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
    let mut rows = rows.into_inner().expect("no worker panics");
    rows.sort_by_key(|row| row.number);
    Ok(report(&rows))
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
            let outcome = expected(outcome, &packet, to, sender, &world.key)?;
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

/// What a sender must see in a world. Where a relay stands in between pods see its node, and its rules
/// of iptables refuse nobody.
pub fn expected(
    text: &str,
    packet: &Packet,
    to: SocketAddr,
    sender: &str,
    world: &WorldKey,
) -> Result<Outcome> {
    let mut outcome = Outcome::parse(text)?;
    if world.portals_by_iptables {
        outcome = outcome.without_refusals();
    }
    if world.relays() && !packet.is_direct() {
        return Ok(outcome.relayed_by(&plan::nodes_on_the_way(sender, to.ip())));
    }
    Ok(outcome)
}

fn see_packets(packet: &Packet, to: SocketAddr, outcome: &Outcome, sender: &str) -> Seen {
    let timeout = match outcome {
        Outcome::Timeout | Outcome::Unserved => SILENCE,
        _ => TIMEOUT,
    };
    let answers = probe::balanced(packet.protocol, to, outcome.choices(), timeout);
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
    let timeout = match wanted {
        Reply::None(Answer::Timeout) => SILENCE,
        _ => TIMEOUT,
    };
    match probe::get(to, path, timeout) {
        Ok((code, text)) => Seen {
            fits: wanted.fits(code, &text),
            // Bodies hold times.
            same: Some(code.to_string()),
            shown: format!("{code}: {}", text.rsplit("\r\n\r\n").next().unwrap_or("")),
        },
        Err(error) => {
            let answer = probe::from_error(&error);
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
    let page = probe::get(to, "/metrics", TIMEOUT);
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

/// Every check that is not as expected, or not the same in all worlds; with what all worlds showed.
fn report(rows: &[Row<'_>]) -> String {
    let mut text = String::new();
    let one_look = |a: &Row<'_>, b: &Row<'_>| std::ptr::eq(a.line, b.line) && a.sender == b.sender;
    for rows in rows.chunk_by(one_look) {
        let as_expected = rows.iter().all(|row| row.seen.fits);
        if as_expected && agree(rows) {
            continue;
        }
        let why = if as_expected { ": worlds differ" } else { "" };
        let (subject, sender) = (&rows[0].line.subject, &rows[0].sender);
        let _infallible = writeln!(text, "{subject} (as {sender}){why}");
        for row in rows {
            let seen = &row.seen;
            let mark = if seen.fits {
                "as expected"
            } else {
                "NOT as expected"
            };
            let wanted = row.line.outcome(row.world);
            let world = row.world;
            let _infallible = writeln!(text, "    {world}, {mark}: {wanted}");
            let _infallible = writeln!(text, "        seen: {}", seen.shown);
        }
    }
    text
}

/// Whether worlds of which the same is expected show the same, also in what the line does not mention.
/// Those with a relay are compared among themselves.
fn agree(rows: &[Row<'_>]) -> bool {
    let mut shown = BTreeMap::new();
    rows.iter().all(|row| {
        let first = shown
            .entry((row.line.outcome(row.world), row.world.relays()))
            .or_insert(&row.seen.same);
        **first == row.seen.same
    })
}

/// Whether a pod is among the answers.
pub fn is_answered(answers: &Answers) -> bool {
    answers
        .iter()
        .any(|answer| matches!(answer, Answer::Pod { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Expectation {
        serde_json::from_str(text).unwrap()
    }

    fn row<'a>(line: &'a Expectation, world: &'a WorldKey, answers: &[(&str, &str)]) -> Row<'a> {
        let pod = |(name, from): &(&str, &str)| Answer::Pod {
            name: (*name).to_owned(),
            port: 8080,
            from: (*from).to_owned(),
        };
        let outcome = Outcome::parse(line.outcome(world)).unwrap();
        Row {
            number: 0,
            line,
            sender: "a2".to_owned(),
            world,
            seen: judge(&answers.iter().map(pod).collect(), &outcome, "a2"),
        }
    }

    fn worlds() -> (WorldKey, WorldKey) {
        let key = |text: &str| text.parse().unwrap();
        (key("ferrule/nftables"), key("kube-proxy/nftables"))
    }

    #[test]
    fn worlds_must_also_agree_on_what_a_line_does_not_mention() {
        let (ferrule, reference) = worlds();
        let line = line(r#""a2 -> web:80 = a1""#);
        let one = row(&line, &ferrule, &[("a1", "a2")]);
        let same = row(&line, &reference, &[("a1", "a2")]);
        assert_eq!(report(&[one, same]), "");
        let one = row(&line, &ferrule, &[("a1", "a2")]);
        let other = row(&line, &reference, &[("a1", "node1")]);
        let text = report(&[one, other]);
        assert!(
            text.contains("worlds differ") && text.contains("from node1"),
            "{text}"
        );
    }

    #[test]
    fn a_difference_that_goes_away_is_a_failure() {
        let (ferrule, reference) = worlds();
        let line =
            line(r#"{ "line": "a2 -> web:80 = a1", "kube-proxy": "b1", "differs": "Q-17" }"#);
        let one = row(&line, &ferrule, &[("a1", "a2")]);
        let other = row(&line, &reference, &[("b1", "a2")]);
        assert_eq!(report(&[one, other]), "");
        let one = row(&line, &ferrule, &[("a1", "a2")]);
        let gone = row(&line, &reference, &[("a1", "a2")]);
        assert!(report(&[one, gone]).contains("NOT as expected: b1"));
    }

    #[test]
    fn where_chance_decides_worlds_may_differ() {
        let (ferrule, reference) = worlds();
        let line = line(r#""a2 -> web:80 = one of a1 b1""#);
        let one = row(&line, &ferrule, &[("a1", "a2")]);
        let other = row(&line, &reference, &[("b1", "a2")]);
        assert_eq!(report(&[one, other]), "");
    }
}
