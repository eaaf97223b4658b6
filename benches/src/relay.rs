//! The relay of mode userspace beside HAProxy, and for UDP beside nginx, on loopback in a network of its
//! own.
//!
//! Both stand between the same clients and the same endpoint, which this program plays, take turns
//! within each round, and run in a process of their own with one thread. On a shared machine
//! the rates are noisy; the processor time that a proxy needs for a unit of work is less so.
//!
//! Without the programs `haproxy` and `nginx` only the relay is measured.

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ferrule_kernel::inet::limits;
use ferrule_kernel::netns;

use crate::spread::Spread;

mod load;
mod proxy;

use load::{Endpoint, Hostile, Idle};
pub use proxy::serve;
use proxy::{Kind, Proxy, Transport};

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
    /// Datagrams sent by each of [`CLIENTS`] clients.
    pub datagrams: usize,
    /// Clients that never read, and clients that say nothing.
    pub hostile: (usize, usize),
}

/// What there is to compare with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Programs<'a> {
    /// `haproxy`
    pub haproxy: Option<&'a str>,
    /// `nginx`
    pub nginx: Option<&'a str>,
}

/// More than idle connections need on any side.
const DESCRIPTORS: usize = 65_536;

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
pub fn run(extent: &Extent, programs: Programs<'_>) -> Outcome<()> {
    netns::isolated(|| measure(extent, programs))?
}

fn measure(extent: &Extent, programs: Programs<'_>) -> Outcome<()> {
    load::loopback_up()?;
    // Clients and endpoint are both here, and proxies inherit it. To ask for more takes root.
    limits::set(DESCRIPTORS).or_else(|_| limits::raise_descriptors().map(drop))?;
    let endpoint = Endpoint::start(extent.stream, extent.hostile.1)?;
    let mut names = vec![Kind::Relay];
    match programs.haproxy {
        Some(program) => names.push(Kind::Haproxy(program.to_owned())),
        None => println!("haproxy was not found: TCP by the relay alone.\n"),
    }
    let mut of_udp = vec![Kind::Relay];
    match programs.nginx {
        Some(program) => of_udp.push(Kind::Nginx(program.to_owned())),
        None => println!("nginx was not found: UDP by the relay alone.\n"),
    }
    println!(
        "{} rounds, {CLIENTS} clients, {STREAMS} streams of {} MiB; median (least–most).\n",
        extent.rounds,
        extent.stream >> 20
    );
    println!("| what | proxy | per second | processor time each | 99 % within |");
    println!("|---|---|---:|---:|---:|");
    let proxies = start(&names, Transport::Tcp, endpoint.address)?;
    let streams = |to| load::streams(to, STREAMS, extent.stream);
    row(&proxies, extent.rounds, "MiB streamed", streams)?;
    let proxies = start(&names, Transport::Tcp, endpoint.address)?;
    let requests = |to| load::requests(to, CLIENTS, extent.requests);
    row(&proxies, extent.rounds, "requests", requests)?;
    let proxies = start(&names, Transport::Tcp, endpoint.address)?;
    let connections = |to| load::connections(to, CLIENTS, extent.connections);
    row(&proxies, extent.rounds, "connections", connections)?;
    let udp = start(&of_udp, Transport::Udp, endpoint.datagrams)?;
    let datagrams = |to| load::datagrams(to, CLIENTS, extent.datagrams);
    row(&udp, extent.rounds, "datagrams there and back", datagrams)?;
    let (deaf, mute) = extent.hostile;
    println!("\nBeside {deaf} clients that never read a stream and {mute} that say nothing:\n");
    println!("| what | proxy | per second | processor time each | 99 % within |");
    println!("|---|---|---:|---:|---:|");
    let proxies = start(&names, Transport::Tcp, endpoint.address)?;
    let hostile = proxies
        .iter()
        .map(|(_, proxy)| Hostile::open(proxy.address, deaf, mute));
    let _hostile = hostile.collect::<Outcome<Vec<_>>>()?;
    row(&proxies, extent.rounds, "requests", requests)?;
    drop(proxies);
    println!("\nMemory of {} idle connections:\n", extent.idle);
    println!("| proxy | bytes each |\n|---|---:|");
    for kind in &names {
        let proxy = Proxy::start(kind, Transport::Tcp, endpoint.address)?;
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

/// Starts each of them.
fn start(
    kinds: &[Kind],
    transport: Transport,
    endpoint: SocketAddr,
) -> Outcome<Vec<(&Kind, Proxy)>> {
    let proxies = kinds
        .iter()
        .map(|kind| Ok((kind, Proxy::start(kind, transport, endpoint)?)));
    proxies.collect()
}

fn row(
    proxies: &[(&Kind, Proxy)],
    rounds: usize,
    what: &str,
    load: impl Fn(SocketAddr) -> Outcome<Done>,
) -> Outcome<()> {
    let mut turns: Vec<Vec<Turn>> = proxies.iter().map(|_| Vec::new()).collect();
    for (_, proxy) in proxies {
        load(proxy.address)?;
    }
    for _ in 0..rounds {
        for ((_, proxy), turns) in proxies.iter().zip(&mut turns) {
            turns.push(turn(proxy, &load)?);
        }
    }
    for ((kind, _), turns) in proxies.iter().zip(&turns) {
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
