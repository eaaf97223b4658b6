//! The pods of a Service are replaced one by one while clients connect, in all worlds at once.
//!
//! In: worlds. Out: how many connections failed in each, and how many were late. A client opens many
//! connections per second from few ports, so that it uses each port again while nodes still remember
//! its former connection. A pod answers until every proxy has learnt that it shuts down, as pods do
//! that wait before they end.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpSocket;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::lab::Lab;
use crate::netns::{self, Netns};
use crate::plan::{self, Family};
use crate::probe::{self, Answer};
use crate::story::short::Memory;
use crate::tools::Tools;
use crate::{Worlds, os};

const NAMESPACE: &str = "rollout";
const SERVICE: &str = "10.96.9.1:80";
/// Who asks.
const CLIENT: &str = "a4";
const OLD: [&str; 3] = ["a1", "a2", "a3"];
const NEW: [&str; 3] = ["b1", "b2", "b3"];
const FIRST_PORT: u16 = 30_000;
/// A connection that takes so long has failed.
const TIMEOUT: Duration = Duration::from_secs(15);
/// A packet that is lost is sent again after a second.
const LATE: Duration = Duration::from_millis(900);
/// Failures whose time is printed.
const MOST_SHOWN: usize = 20;

/// How it goes.
#[derive(Args, Clone)]
pub struct Options {
    #[command(flatten)]
    pub worlds: Worlds,
    /// New connections per second in each world.
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// Ports that the client uses again and again.
    #[arg(long, default_value_t = 500)]
    ports: u16,
    /// How many seconds pass before and after, and how long a pod answers after all proxies have
    /// learnt that it shuts down.
    #[arg(long, default_value_t = 5)]
    pause: u64,
    /// A pod ends so many seconds after it began to shut down, whatever proxies have learnt.
    #[arg(long)]
    grace: Option<u64>,
}

impl Options {
    /// The same as words of a command line.
    pub fn arguments(&self) -> Vec<String> {
        let mut words = self.worlds.arguments();
        words.push(format!("--rate={}", self.rate));
        words.push(format!("--ports={}", self.ports));
        words.push(format!("--pause={}", self.pause));
        words.extend(self.grace.map(|grace| format!("--grace={grace}")));
        words
    }
}

/// What became of connections.
#[derive(Debug, Default)]
struct Tally {
    served: BTreeMap<String, u32>,
    late: u32,
    failed: BTreeMap<String, u32>,
    /// The first that failed: port, when it began, when it failed.
    shown: Vec<String>,
    /// The client could not use its port yet.
    busy: u32,
    /// The client had no descriptor left.
    without_descriptor: u32,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let served: u32 = self.served.values().sum();
        let failed: u32 = self.failed.values().sum();
        write!(
            f,
            "{served} served {:?}, {failed} failed {:?}, {} late, {} without a free port, {} without a \
             descriptor",
            self.served, self.failed, self.late, self.busy, self.without_descriptor
        )?;
        self.shown
            .iter()
            .try_for_each(|one| write!(f, "\n    {one}"))
    }
}

/// One connection.
enum Outcome {
    Served {
        by: String,
        took: Duration,
    },
    Failed {
        how: String,
        port: u16,
        began: Duration,
        took: Duration,
    },
    Busy,
    WithoutDescriptor,
}

/// Starts a lab, replaces all pods, and prints what clients met.
pub fn run(options: &Options, folder: &Path) -> Result<()> {
    // Every connection of every world has two ends here.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let tools = Tools::ensure(options.worlds.ferrule.clone())?;
    let lab = &mut Lab::start(&tools, &options.worlds.worlds, folder)?;
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE },
    });
    lab.control.api.apply(&namespace)?;
    let mut rollout = Rollout {
        lab,
        options,
        memory: Memory::default(),
        begun: os::now(),
    };
    rollout.write(&OLD.map(str::to_owned))?;
    rollout.lab.settle(false)?;

    let stop = AtomicBool::new(false);
    let places: Vec<_> = rollout
        .lab
        .worlds
        .iter()
        .map(|world| Ok((world.key.to_string(), world.place(CLIENT)?.duplicate()?)))
        .collect::<Result<_>>()?;
    let begun = os::now();
    rollout.begun = begun;
    let results = std::thread::scope(|scope| {
        let clients: Vec<_> = places
            .iter()
            .map(|(name, place)| (name, scope.spawn(|| connect(place, options, begun, &stop))))
            .collect();
        let replaced = rollout.replace();
        stop.store(true, Ordering::Relaxed);
        let join = |client: std::thread::ScopedJoinHandle<'_, _>| {
            client
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let tallies: Vec<_> = clients
            .into_iter()
            .map(|(name, client)| (name, join(client)))
            .collect();
        replaced.map(|()| tallies)
    })?;
    for (name, tally) in results {
        println!("{name}: {}", tally?);
    }
    Ok(())
}

struct Rollout<'a> {
    lab: &'a mut Lab,
    options: &'a Options,
    memory: Memory,
    /// When clients began.
    begun: Instant,
}

impl Rollout<'_> {
    fn replace(&mut self) -> Result<()> {
        let pause = Duration::from_secs(self.options.pause);
        std::thread::sleep(pause);
        for (number, old) in OLD.into_iter().enumerate() {
            let begun = self.begun.elapsed();
            let rest = OLD[number + 1..].iter().chain(&NEW[..=number]);
            let rest: Vec<String> = rest.map(|name| (*name).to_owned()).collect();
            // A new pod is ready, and an old one shuts down.
            let mut both = rest.clone();
            both.push(format!("{old} terminating"));
            self.write(&both)?;
            if let Some(grace) = self.options.grace {
                let grace = Duration::from_secs(grace);
                std::thread::sleep((begun + grace).saturating_sub(self.begun.elapsed()));
            } else {
                self.lab.settle(false)?;
                std::thread::sleep(pause);
            }
            let ended = self.begun.elapsed();
            for world in &mut self.lab.worlds {
                world.stop_pod(old);
            }
            self.write(&rest)?;
            self.lab.settle(false)?;
            let times = [begun, ended, self.begun.elapsed()].map(|time| time.as_secs_f64());
            println!(
                "{old} shuts down at {:.1} s, ends at {:.1} s, is replaced at {:.1} s",
                times[0], times[1], times[2]
            );
        }
        std::thread::sleep(pause);
        Ok(())
    }

    /// Makes these and no others the endpoints of the Service.
    fn write(&mut self, endpoints: &[String]) -> Result<()> {
        let address: SocketAddr = SERVICE.parse()?;
        let item = json!({
            "service": "web",
            "ips": [address.ip()],
            "ports": ["80->8080"],
            "endpoints": endpoints,
        });
        for object in self.memory.objects(&item, NAMESPACE)? {
            self.lab.control.api.apply(&object)?;
        }
        Ok(())
    }
}

/// Connects again and again until it is to stop.
fn connect(place: &Netns, options: &Options, begun: Instant, stop: &AtomicBool) -> Result<Tally> {
    let client = plan::find(CLIENT).context("every world has this client")?;
    let (from, to) = (client.address(Family::V4), SERVICE.parse()?);
    place.run(|| {
        // As a busy client is set up: a port may be used again a second after its connection ended.
        netns::sysctl("ipv4/tcp_tw_reuse", "1")?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(connect_all(from, to, options, begun, stop)))
    })?
}

async fn connect_all(
    from: IpAddr,
    to: SocketAddr,
    options: &Options,
    begun: Instant,
    stop: &AtomicBool,
) -> Tally {
    let mut tally = Tally::default();
    let mut open = JoinSet::new();
    let mut ticks = interval(Duration::from_secs(1) / options.rate);
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        open.spawn(attempt(
            SocketAddr::new(from, FIRST_PORT + number),
            to,
            begun,
        ));
        number = (number + 1) % options.ports;
        while let Some(done) = open.try_join_next() {
            tally.add(done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())));
        }
    }
    while let Some(done) = open.join_next().await {
        tally.add(done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())));
    }
    tally
}

async fn attempt(from: SocketAddr, to: SocketAddr, origin: Instant) -> Outcome {
    let begun = os::now();
    let result = match timeout(TIMEOUT, ask(from, to)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::AddrInUse => return Outcome::Busy,
        Ok(Err(error)) if error.kind() == io::ErrorKind::AddrNotAvailable => return Outcome::Busy,
        Ok(Err(error)) if is_own(&error) => return Outcome::WithoutDescriptor,
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => probe::from_error(&error),
        Err(_) => Answer::Timeout,
    };
    match result {
        Answer::Pod { name, .. } => Outcome::Served {
            by: name,
            took: begun.elapsed(),
        },
        other => Outcome::Failed {
            how: other.to_string(),
            port: from.port(),
            began: begun.duration_since(origin),
            took: begun.elapsed(),
        },
    }
}

/// Whether the client failed before it sent anything.
fn is_own(error: &io::Error) -> bool {
    [Errno::EMFILE, Errno::ENFILE]
        .map(|errno| Some(errno as i32))
        .contains(&error.raw_os_error())
}

async fn ask(from: SocketAddr, to: SocketAddr) -> io::Result<Answer> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(from)?;
    let mut stream = socket.connect(to).await?;
    let mut line = [0; 256];
    let count = stream.read(&mut line).await?;
    Ok(probe::read(&line[..count]))
}

impl Tally {
    fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Served { by, took } => {
                *self.served.entry(by).or_default() += 1;
                self.late += u32::from(took > LATE);
            }
            Outcome::Failed {
                how,
                port,
                began,
                took,
            } => {
                if self.shown.len() < MOST_SHOWN {
                    let [began, took] = [began, took].map(|time| time.as_secs_f64());
                    self.shown.push(format!(
                        "port {port}: began at {began:.3} s, {how} after {took:.3} s"
                    ));
                }
                *self.failed.entry(how).or_default() += 1;
            }
            Outcome::Busy => self.busy += 1,
            Outcome::WithoutDescriptor => self.without_descriptor += 1,
        }
    }
}

/// Fails where nothing can be compared.
pub fn check(options: &Options) -> Result<()> {
    if options.rate == 0 || options.ports == 0 || FIRST_PORT.checked_add(options.ports).is_none() {
        bail!("there must be connections, and at most 35,535 ports");
    }
    Ok(())
}
