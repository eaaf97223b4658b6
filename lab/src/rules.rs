//! Rules as `iptables-save` prints them, compared between worlds.
//!
//! In: worlds in iptables mode. Out: nothing when every node of theirs has the same rules in both
//! families, otherwise the lines in which they differ. Both flavours of iptables print the same
//! lines, so worlds of both are compared with each other.
//!
//! What does not count: comments and counters of the listing, the order of tables and chains, and
//! the order of Services in chains that all of them share.

mod listing;

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::os;
use crate::plan::{self, Family, Host};
use crate::world::World;
use listing::Listing;

/// Rules may follow a moment later where a controller has the last word.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Between two looks, while others work.
const PAUSE: Duration = Duration::from_millis(100);
/// Lines that are shown of each difference.
const MOST_SHOWN: usize = 14;

/// One node's rules of one family that are not the same everywhere.
pub struct Difference {
    /// Whose rules.
    pub what: String,
    /// By world: the lines that only it has, or that only it lacks.
    pub shown: Vec<String>,
}

/// Looks until all worlds have the same rules; what differs to the end is returned.
pub fn compare(worlds: &[&World]) -> Result<Vec<Difference>> {
    let begun = os::now();
    loop {
        let found = look(worlds);
        if found.as_ref().is_ok_and(Vec::is_empty) || begun.elapsed() > TIMEOUT {
            return found;
        }
        std::thread::sleep(PAUSE);
    }
}

/// The same as text.
pub fn report(differences: &[Difference], worlds: &[&World]) -> String {
    let mut text = String::new();
    let keys: Vec<_> = worlds
        .iter()
        .filter(|w| is_about(w))
        .map(|w| &w.key)
        .collect();
    for difference in differences {
        let _infallible = writeln!(text, "{}: worlds differ", difference.what);
        for (key, shown) in keys.iter().zip(&difference.shown) {
            let _infallible = writeln!(text, "    {key}: {shown}");
        }
    }
    text
}

/// Whether a world has such rules.
pub fn is_about(world: &World) -> bool {
    world.key.mode == "iptables"
}

/// What differs now.
pub fn look(worlds: &[&World]) -> Result<Vec<Difference>> {
    let worlds: Vec<&World> = worlds.iter().copied().filter(|w| is_about(w)).collect();
    if worlds.len() < 2 {
        return Ok(Vec::new());
    }
    // The reference for all others.
    let reference = worlds
        .iter()
        .position(|world| world.key.program == "kube-proxy");
    let reference = reference.unwrap_or(0);
    let mut differences = Vec::new();
    for node in plan::nodes() {
        for family in Family::BOTH {
            let listings = listings(&worlds, node, family)?;
            if listings.iter().any(|other| *other != listings[reference]) {
                let shown = |(number, listing): (usize, &Listing)| {
                    if number == reference {
                        "the reference".to_owned()
                    } else {
                        listing.against(&listings[reference], MOST_SHOWN)
                    }
                };
                differences.push(Difference {
                    what: format!("{}: {}", node.name, program(family)),
                    shown: listings.iter().enumerate().map(shown).collect(),
                });
            }
        }
    }
    Ok(differences)
}

/// Every world's rules, read at the same time.
fn listings(worlds: &[&World], node: &Host, family: Family) -> Result<Vec<Listing>> {
    std::thread::scope(|scope| {
        let read = |world| scope.spawn(move || read(world, node, family));
        let threads: Vec<_> = worlds.iter().copied().map(read).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

fn read(world: &World, node: &Host, family: Family) -> Result<Listing> {
    let mut save = os::command(program(family));
    if let Some(path) = world.search_path() {
        save.env("PATH", path);
    }
    let text = world.place(node.name)?.run(|| os::output(&mut save))?;
    let text = text.with_context(|| format!("{}: {}", world.key, node.name))?;
    Ok(Listing::parse(&text))
}

const fn program(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables-save",
        Family::V6 => "ip6tables-save",
    }
}
