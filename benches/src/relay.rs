//! The relay of mode userspace beside HAProxy, on loopback in a network of its own.
//!
//! Both stand between the same clients and the same endpoint, which this program plays, take turns
//! within each round, and run in a process of their own with one thread. On a shared machine
//! the rates are noisy; the processor time that a proxy needs for a unit of work is less so.
//!
//! Without the program `haproxy` only the relay is measured.

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ferrule_kernel::inet::limits;
use ferrule_kernel::netns;

use crate::spread::Spread;

mod load;
mod proxy;

use load::{Endpoint, Idle};
use proxy::Proxy;
pub use proxy::serve;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Turns of each proxy.
    pub rounds: usize,
    /// Bytes of one stream; two run at a time.
    pub stream: u64,
    /// Requests on each of [`CLIENTS`] connections.
    pub requests: usize,
    /// Connections made by each of [`CLIENTS`] clients.
    pub connections: usize,
    /// Connections that idle.
    pub idle: usize,
}

/// Clients at a time, except for streams.
const CLIENTS: usize = 16;
const STREAMS: usize = 2;

/// What one turn came to: units per second, processor time per unit, and the slowest percent.
struct Turn {
    rate: f64,
    cost: Duration,
    slow: Option<Duration>,
}

/// Prints a table.
///
/// # Errors
/// What could not be started or was refused.
pub fn run(extent: &Extent, haproxy: Option<&str>) -> Outcome<()> {
    netns::isolated(|| measure(extent, haproxy))?
}

fn measure(extent: &Extent, haproxy: Option<&str>) -> Outcome<()> {
    load::loopback_up()?;
    // Clients and endpoint are both here.
    limits::raise_descriptors()?;
    let endpoint = Endpoint::start(extent.stream)?;
    let mut names = vec![proxy::Kind::Relay];
    match haproxy {
        Some(program) => names.push(proxy::Kind::Haproxy(program.to_owned())),
        None => println!("haproxy was not found: the relay alone.\n"),
    }
    println!(
        "{} rounds, {CLIENTS} clients, {STREAMS} streams of {} MiB; median (least–most).\n",
        extent.rounds,
        extent.stream >> 20
    );
    println!("| what | proxy | per second | processor time each | 99 % within |");
    println!("|---|---|---:|---:|---:|");
    let streams = |to| load::streams(to, STREAMS, extent.stream);
    row(&names, &endpoint, extent.rounds, "MiB streamed", streams)?;
    let requests = |to| load::requests(to, CLIENTS, extent.requests);
    row(&names, &endpoint, extent.rounds, "requests", requests)?;
    let connections = |to| load::connections(to, CLIENTS, extent.connections);
    row(&names, &endpoint, extent.rounds, "connections", connections)?;
    println!("\nMemory of {} idle connections:\n", extent.idle);
    println!("| proxy | bytes each |\n|---|---:|");
    for kind in &names {
        let proxy = Proxy::start(kind, endpoint.address)?;
        // What is needed once.
        drop(Idle::open(proxy.address, 16)?);
        let before = proxy.resident()?;
        let idle = Idle::open(proxy.address, extent.idle)?;
        let each = proxy.resident()?.saturating_sub(before) / extent.idle;
        drop(idle);
        println!("| {kind} | {each} |");
    }
    Ok(())
}

/// What a load did: units, and how long single ones took, where that means something.
pub(crate) struct Done {
    pub(crate) units: u64,
    pub(crate) times: Vec<Duration>,
}

fn row(
    kinds: &[proxy::Kind],
    endpoint: &Endpoint,
    rounds: usize,
    what: &str,
    load: impl Fn(SocketAddr) -> Outcome<Done>,
) -> Outcome<()> {
    let proxies = kinds
        .iter()
        .map(|kind| Proxy::start(kind, endpoint.address))
        .collect::<Outcome<Vec<_>>>()?;
    let mut turns: Vec<Vec<Turn>> = kinds.iter().map(|_| Vec::new()).collect();
    for proxy in &proxies {
        load(proxy.address)?;
    }
    for _ in 0..rounds {
        for (proxy, turns) in proxies.iter().zip(&mut turns) {
            turns.push(turn(proxy, &load)?);
        }
    }
    for (kind, turns) in kinds.iter().zip(&turns) {
        let rates: Vec<f64> = sorted(turns.iter().map(|turn| turn.rate).collect());
        let costs = Spread::new(turns.iter().map(|turn| turn.cost).collect());
        let slow: Vec<Duration> = turns.iter().filter_map(|turn| turn.slow).collect();
        let slow = if slow.is_empty() {
            String::new()
        } else {
            Spread::new(slow).to_string()
        };
        println!(
            "| {what} | {kind} | {:.0} ({:.0}–{:.0}) | {costs} | {slow} |",
            rates[rates.len() / 2],
            rates[0],
            rates[rates.len() - 1],
        );
    }
    Ok(())
}

fn turn(proxy: &Proxy, load: impl Fn(SocketAddr) -> Outcome<Done>) -> Outcome<Turn> {
    let (before, start) = (proxy.work()?, Instant::now());
    let done = load(proxy.address)?;
    let (passed, work) = (start.elapsed(), proxy.work()?.saturating_sub(before));
    let units = u32::try_from(done.units)?;
    let slow = (!done.times.is_empty()).then(|| Spread::new(done.times).percentile(99));
    Ok(Turn {
        rate: f64::from(units) / passed.as_secs_f64(),
        cost: work / units,
        slow,
    })
}

fn sorted(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers
}
