//! Asks very many questions at once: every cell of a matrix, in every world, often enough to meet
//! everyone who answers.
//!
//! In: cells, and which host asks. Out: for every world and cell the answers. One thread per host
//! asks, and it asks all its cells side by side. Every try has a source port of its own that is not
//! used again soon, so no try meets the tracked flow of an earlier one.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::matrix::Cell;
use crate::plan::{self, Family, Kind};
use crate::probe::{self, Answer, Answers, Protocol};
use crate::world::World;

/// Above the node ports, where proxies may listen.
const FIRST_PORT: u16 = 33000;
/// Cells of one host under way at the same time, after their first try.
const AT_ONCE: usize = 3;
/// Tries of one cell under way at the same time.
const TOGETHER: usize = 4;
/// Tries where nothing is expected to be new.
const GLANCES: usize = 2;
/// An answer that does come, on a very busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Source ports of every host in every world.
#[derive(Default)]
pub struct Asker {
    ports: BTreeMap<(usize, &'static str), Arc<AtomicU16>>,
}

/// One host that asks.
struct Host {
    ports: Arc<AtomicU16>,
    /// A pod to ask directly, past every Service.
    control: Ipv4Addr,
    /// How long silence lasts at least before it is believed.
    silence: Duration,
    hands: Semaphore,
}

impl Asker {
    /// The answers of every world to every cell, in the order of both.
    pub fn ask(
        &mut self,
        worlds: &[World],
        cells: &[Cell],
        silence: Duration,
    ) -> Result<Vec<Vec<Answers>>> {
        let mut by_sender: BTreeMap<&'static str, Vec<(usize, Cell)>> = BTreeMap::new();
        for (number, cell) in cells.iter().enumerate() {
            let own = by_sender.entry(cell.sender).or_default();
            own.push((number, *cell));
        }
        let mut all = vec![vec![Answers::new(); cells.len()]; worlds.len()];
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (world_number, world) in worlds.iter().enumerate() {
                for (sender, cells) in &by_sender {
                    let host = self.host(world_number, sender, silence);
                    let ask = move || world.place(sender)?.run(|| host_asks(host, cells))?;
                    threads.push((world_number, scope.spawn(ask)));
                }
            }
            for (world, thread) in threads {
                let answers = thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                for (cell, answers) in answers {
                    all[world][cell] = answers;
                }
            }
            anyhow::Ok(())
        })?;
        Ok(all)
    }

    fn host(&mut self, world: usize, sender: &'static str, silence: Duration) -> Arc<Host> {
        let ports = self.ports.entry((world, sender)).or_default();
        let control = control(sender).map_or(Ipv4Addr::LOCALHOST, |pod| pod.v4);
        Arc::new(Host {
            ports: Arc::clone(ports),
            control,
            silence,
            hands: Semaphore::new(AT_ONCE),
        })
    }
}

/// A pod that a sender reaches whatever the rules: one on the node through which its packets go. An
/// answer from elsewhere would come back another way, and some rules drop what belongs to a
/// connection that they saw only half of.
fn control(sender: &str) -> Option<&'static plan::Host> {
    let sender = plan::find(sender)?;
    let near = match sender.kind {
        Kind::Pod(node) | Kind::Outside(node) => node,
        Kind::Node | Kind::Wire => sender.number(),
    };
    plan::pods().find(|pod| pod.kind == Kind::Pod(near) && pod.name != sender.name)
}

/// Runs in a thread that is in the host's network.
fn host_asks(host: Arc<Host>, cells: &[(usize, Cell)]) -> Result<Vec<(usize, Answers)>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        // Where a client stays with its endpoint, the first answer decides about the next ones:
        // these are asked one after the other.
        let (sticky, free): (Vec<_>, Vec<_>) = cells.iter().partition(|(_, cell)| cell.sticky);
        for (number, cell) in free {
            let host = Arc::clone(&host);
            tasks.spawn(async move { vec![(number, host.cell(cell).await)] });
        }
        tasks.spawn(async move {
            let mut all = Vec::new();
            for (number, cell) in sticky {
                all.push((number, Arc::clone(&host).cell(cell).await));
            }
            all
        });
        let mut all = Vec::new();
        while let Some(answers) = tasks.join_next().await {
            all.extend(answers.context("a question was not answered")?);
        }
        Ok(all)
    })
}

impl Host {
    /// Asks until one more answer would have been met, with a probability of all but one in a
    /// million. Silence is an answer like any other: an endpoint may be out of reach.
    async fn cell(self: Arc<Self>, cell: Cell) -> Answers {
        let mut answers = self.several(cell, 1, self.silence).await;
        let mut tries = 1;
        loop {
            let met = if answers == Answers::from([Answer::Refused]) {
                // A refusal is no matter of chance.
                0
            } else {
                answers.len()
            };
            let wanted = if cell.brief { GLANCES } else { enough(met) };
            let missing = wanted.saturating_sub(tries);
            if missing == 0 {
                return answers;
            }
            // What was silent once is likely to be silent again; then all may be so together.
            let silent = answers.contains(&Answer::Timeout);
            let (count, silence) = if silent {
                (missing, self.silence)
            } else {
                (missing.min(TOGETHER), self.silence.max(TIMEOUT / 10))
            };
            // A sticky client's first answers decide, so they come one after the other.
            let count = if cell.sticky && !silent && tries < 4 {
                1
            } else {
                count
            };
            let _hand = self.hands.acquire().await;
            answers.extend(self.several(cell, count, silence).await);
            tries += count;
        }
    }

    /// Several tries at once. Silence is believed after a while, and when a pod that was asked
    /// later, and directly, has answered: then this machine is not merely slow.
    async fn several(self: &Arc<Self>, cell: Cell, count: usize, silence: Duration) -> Answers {
        let mut tries = JoinSet::new();
        for _ in 0..count {
            let host = Arc::clone(self);
            tries.spawn(async move { host.exchange(cell.protocol, cell.to).await });
        }
        let mut answers = Answers::new();
        if timeout(silence, collect(&mut tries, &mut answers))
            .await
            .is_err()
        {
            let pod = SocketAddr::new(self.control.into(), plan::POD_PORTS[0]);
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                // Nobody balances here, so whatever it says is an answer.
                let _answered = timeout(TIMEOUT, self.exchange(protocol, pod)).await;
            }
            let soon = Duration::from_millis(2);
            if timeout(soon, collect(&mut tries, &mut answers))
                .await
                .is_err()
            {
                answers.insert(Answer::Timeout);
            }
        }
        answers
    }

    async fn exchange(&self, protocol: Protocol, to: SocketAddr) -> io::Result<Answer> {
        let mut line = [0; 256];
        let count = match protocol {
            Protocol::Tcp => {
                let socket = self.bind(to, |from| {
                    let socket = match Family::of(to.ip()) {
                        Family::V4 => TcpSocket::new_v4(),
                        Family::V6 => TcpSocket::new_v6(),
                    }?;
                    socket.bind(from)?;
                    Ok(socket)
                })?;
                // Nothing of it is left when it is closed.
                socket.set_zero_linger()?;
                let mut stream = socket.connect(to).await?;
                stream.read(&mut line).await?
            }
            Protocol::Udp => {
                let socket = self.bind(to, std::net::UdpSocket::bind)?;
                socket.set_nonblocking(true)?;
                let socket = UdpSocket::from_std(socket)?;
                socket.connect(to).await?;
                // A rule on the sender's own way out makes sending fail. Whether it also said why
                // is only known by listening.
                match socket.send(b"?\n").await {
                    Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                    other => _ = other?,
                }
                socket.recv(&mut line).await?
            }
        };
        Ok(probe::read(&line[..count]))
    }

    /// A socket with the next free source port.
    fn bind<T>(&self, to: SocketAddr, open: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
        let any: IpAddr = match Family::of(to.ip()) {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        let span = u16::MAX - FIRST_PORT;
        loop {
            let next = self.ports.fetch_add(1, Ordering::Relaxed);
            match open(SocketAddr::new(any, FIRST_PORT + next % span)) {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                other => return other,
            }
        }
    }
}

async fn collect(tries: &mut JoinSet<io::Result<Answer>>, answers: &mut Answers) {
    while let Some(answer) = tries.join_next().await {
        let answer = match answer {
            Ok(answer) => answer.unwrap_or_else(|error| probe::from_error(&error)),
            Err(error) => Answer::Other(error.to_string()),
        };
        answers.insert(answer);
    }
}

/// How many tries it takes to have met everyone, when so many were met.
///
/// If there was one more, so n in all, t tries miss somebody with probability at most
/// n (1 - 1/n)^t.
fn enough(met: usize) -> usize {
    const TRIES: [usize; 12] = [2, 21, 37, 53, 70, 86, 103, 120, 137, 154, 171, 188];
    TRIES.get(met).copied().unwrap_or(met * 17 + 17)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_asked_to_be_sure_is_near() {
        let near = |sender| control(sender).map(|pod| pod.name);
        let senders = ["outside1", "outside2", "node2", "a1", "b1"];
        let pods = ["a1", "b1", "b1", "a2", "b2"].map(Some);
        assert_eq!(senders.map(near), pods);
    }

    #[test]
    fn enough_tries_to_miss_nobody() {
        for met in 1..30_usize {
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let (n, t) = ((met + 1) as f64, enough(met) as f64);
            let missed = n * (1.0 - 1.0 / n).powf(t);
            assert!(missed < 1e-6, "{met}: {missed}");
        }
    }
}
