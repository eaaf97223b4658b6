//! Requests that never pause: short connections and single datagrams to every kind of address, and
//! connections that stay open.
//!
//! In: a world. Out: how many there were, and the first that failed, with the step during which they
//! did.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::netns::Netns;
use crate::probe::{self, Answer, Flow, Protocol};
use crate::world::World;

pub const CLUSTER_IPS: [&str; 2] = ["10.96.8.45", "fd00:10:96::82d"];
pub const NODE_PORT: u16 = 30845;
pub const LOAD_BALANCER: &str = "192.0.2.85";

/// A busy machine answers late; an answer that is lost never comes.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Between two requests of a client, so that source ports last.
const PAUSE: Duration = Duration::from_millis(5);
/// Failures that are kept.
const MOST_KEPT: usize = 10;

/// Who asks what.
const CLIENTS: &[(&str, Protocol, &str)] = &[
    ("a3", Protocol::Tcp, "10.96.8.45:80"),
    ("a3", Protocol::Udp, "10.96.8.45:53"),
    ("b3", Protocol::Tcp, "[fd00:10:96::82d]:80"),
    ("b3", Protocol::Udp, "[fd00:10:96::82d]:53"),
    ("node1", Protocol::Tcp, "10.96.8.45:80"),
    ("node2", Protocol::Udp, "[fd00:10:96::82d]:53"),
    ("outside1", Protocol::Tcp, "172.18.0.1:30845"),
    ("outside2", Protocol::Tcp, "[fd00:172:18::2]:30845"),
    ("outside1", Protocol::Tcp, "192.0.2.85:80"),
    ("outside2", Protocol::Udp, "192.0.2.85:53"),
];

/// Clients at work.
pub struct Traffic {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    step: Mutex<String>,
    failed: Mutex<Vec<String>>,
    sent: AtomicU64,
    /// Datagrams that were sent once more.
    repeated: AtomicU64,
    /// A relay is about to end, and what it has received with it.
    relay_ends: AtomicBool,
    over: AtomicBool,
}

impl Traffic {
    /// Lets everybody ask, in a thread each.
    pub fn start(world: &World) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut threads = Vec::new();
        for &(sender, protocol, to) in CLIENTS {
            let place = world.place(sender)?.duplicate()?;
            let to: SocketAddr = to.parse()?;
            let shared = Arc::clone(&shared);
            let name = format!("{sender} -> {to} {protocol:?}");
            threads.push(std::thread::spawn(move || {
                ask(&place, protocol, to, &name, &shared);
            }));
        }
        Ok(Self { shared, threads })
    }

    /// What fails from now on fails during this step. When a relay ends in it, a datagram on its way
    /// through the process is lost, and whoever sent it asks once more, as every client of UDP does.
    pub fn begin(&self, step: &str, relay_ends: bool) {
        self.shared.relay_ends.store(relay_ends, Ordering::Relaxed);
        let mut current = self
            .shared
            .step
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        step.clone_into(&mut current);
    }

    /// Fails if a request did.
    pub fn check(&self) -> Result<()> {
        let failed = self
            .shared
            .failed
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        ensure!(failed.is_empty(), "requests failed:\n{}", failed.join("\n"));
        Ok(())
    }

    /// Ends everybody's asking; returns how many requests there were, and how many datagrams were
    /// sent once more.
    pub fn stop(self) -> (u64, u64) {
        self.shared.over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
        (count(&self.shared.sent), count(&self.shared.repeated))
    }
}

/// Connections that are opened before a step and must go on after it.
pub struct Open(Vec<(String, Flow, Answer)>);

impl Open {
    pub fn new(world: &World) -> Result<Self> {
        let mut flows = Vec::new();
        for &(sender, protocol, to) in CLIENTS {
            if protocol == Protocol::Udp {
                continue;
            }
            let name = format!("{sender} -> {to}");
            let to: SocketAddr = to.parse()?;
            let opened = world
                .place(sender)?
                .run(|| Flow::open(protocol, to, TIMEOUT))?;
            let (flow, first) = opened.with_context(|| format!("{name} does not open"))?;
            flows.push((name, flow, first));
        }
        Ok(Self(flows))
    }

    /// Fails if one of them does not reach whom it reached before.
    pub fn check(&mut self) -> Result<()> {
        for (name, flow, first) in &mut self.0 {
            let answer = flow.try_ask(TIMEOUT);
            ensure!(
                answer == *first,
                "an open connection, {name}: {first}, and now {answer}"
            );
        }
        Ok(())
    }
}

fn ask(place: &Netns, protocol: Protocol, to: SocketAddr, name: &str, shared: &Shared) {
    let work = || {
        while !shared.over.load(Ordering::Relaxed) {
            let mut answer = probe::once(protocol, to, TIMEOUT);
            let is_lost = !matches!(answer, Answer::Pod { .. });
            let relay_ends = shared.relay_ends.load(Ordering::Relaxed);
            if is_lost && relay_ends && protocol == Protocol::Udp {
                shared.repeated.fetch_add(1, Ordering::Relaxed);
                answer = probe::once(protocol, to, TIMEOUT);
            }
            shared.sent.fetch_add(1, Ordering::Relaxed);
            if !matches!(answer, Answer::Pod { .. }) {
                shared.fail(name, &answer.to_string());
            }
            std::thread::sleep(PAUSE);
        }
    };
    if let Err(error) = place.run(work) {
        shared.fail(name, &format!("{error:#}"));
    }
}

impl Shared {
    fn fail(&self, name: &str, answer: &str) {
        let step = self
            .step
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone();
        let mut failed = self
            .failed
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if failed.len() < MOST_KEPT {
            failed.push(format!("    {step}: {name}: {answer}"));
        }
    }
}
