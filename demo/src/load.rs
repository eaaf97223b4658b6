//! Clients that ask a Service for the name of the pod behind it, each time on a new connection.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use nix::sched::{CloneFlags, setns};

use crate::stage;

/// Nothing here takes so long; a lost packet is sent again after one second.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Between two requests of a client. More would wear out its ports within the show.
const PAUSE: Duration = Duration::from_millis(2);

/// Who asks.
#[derive(Clone, Copy)]
pub struct Client {
    /// What to call it.
    pub name: &'static str,
    /// Its network, if it is not the node's.
    pub network: Option<&'static str>,
    /// Whom it asks.
    pub to: SocketAddr,
}

/// What clients were answered.
#[derive(Clone, Default)]
pub struct Tally {
    /// How often each pod answered.
    pub pods: BTreeMap<String, u64>,
    /// How requests failed.
    pub failures: Vec<String>,
    /// The longest that a request took.
    pub slowest: Duration,
}

impl Tally {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.pods.values().sum::<u64>() + self.failures.len() as u64
    }

    /// Adds what others were answered.
    pub fn add(&mut self, other: &Self) {
        for (pod, count) in &other.pods {
            *self.pods.entry(pod.clone()).or_default() += count;
        }
        self.failures.extend(other.failures.iter().cloned());
        self.slowest = self.slowest.max(other.slowest);
    }

    fn ask(&mut self, client: &Client) {
        let begun = Instant::now();
        match ask(client.to) {
            Ok(pod) => *self.pods.entry(pod).or_default() += 1,
            Err(error) => self.failures.push(format!("{}: {error}", client.name)),
        }
        self.slowest = self.slowest.max(begun.elapsed());
    }
}

/// Clients that ask until they are stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Result<Tally>>>,
}

impl Load {
    /// Lets all clients ask at the same time, each at most so often.
    pub fn start(clients: &[Client], most: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |client: &Client| {
            let (client, stop) = (*client, Arc::clone(&stop));
            std::thread::spawn(move || {
                enter(&client)?;
                let mut tally = Tally::default();
                while !stop.load(Ordering::Relaxed) && tally.requests() < most {
                    tally.ask(&client);
                    std::thread::sleep(PAUSE);
                }
                Ok(tally)
            })
        };
        let clients = clients.iter().map(start).collect();
        Self { stop, clients }
    }

    /// What the clients were answered, in their order, once each asked as often as it should.
    pub fn finish(self) -> Result<Vec<Tally>> {
        let clients = self.clients.into_iter();
        clients
            .map(|client| client.join().map_err(|_| anyhow!("a client panicked"))?)
            .collect()
    }

    /// The same, and they stop asking now.
    pub fn stop(self) -> Result<Vec<Tally>> {
        self.stop.store(true, Ordering::Relaxed);
        self.finish()
    }
}

/// Moves the calling thread to the client's network.
fn enter(client: &Client) -> Result<()> {
    let Some(name) = client.network else {
        return Ok(());
    };
    let network = File::open(stage::network(name))?;
    setns(network, CloneFlags::CLONE_NEWNET).context("cannot enter a network")
}

/// Asks once; the name of whoever answered.
pub fn ask(to: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(stream, "GET / HTTP/1.1\r\nHost: {to}\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut part = [0; 1024];
    loop {
        if let Some(name) = body(&answer) {
            return Ok(name);
        }
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => answer.extend_from_slice(&part[..count]),
        }
    }
}

/// The one line behind the header, once it is complete.
fn body(answer: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(answer).ok()?;
    let (_, body) = text.split_once("\r\n\r\n")?;
    body.strip_suffix('\n').map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_once_it_is_complete() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nweb\n";
        assert_eq!(body(whole).as_deref(), Some("web"));
        for end in 0..whole.len() {
            assert_eq!(body(&whole[..end]), None, "{end}");
        }
    }

    #[test]
    fn tallies_add_up() {
        let one = Tally {
            pods: [("a".to_owned(), 2)].into(),
            failures: vec!["x".to_owned()],
            slowest: Duration::from_secs(1),
        };
        let mut sum = one.clone();
        sum.add(&one);
        assert_eq!((sum.requests(), sum.pods["a"]), (6, 4));
    }
}
