//! A relay in a process of its own, and what idle connections cost there.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use ferrule_core::model::Protocol;
use ferrule_dataplane::userspace::relay::{Class, Listen, Options, Relay};
use ferrule_kernel::inet::limits;

use crate::support::{LOCALHOST, LONG, backends, key, options, send_back, start};

/// The variable that makes a test the child: where the endpoint is.
const VARIABLE: &str = "FERRULE_TEST_RELAY_ENDPOINT";

/// A test that was started again, as a process that only relays.
pub struct Child {
    process: std::process::Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub address: SocketAddr,
}

impl Child {
    /// Starts this test again.
    pub fn start(test: &str, endpoint: SocketAddr) -> Self {
        #[expect(clippy::disallowed_methods, reason = "tests may run programs")]
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(VARIABLE, endpoint.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut child = Self {
            process,
            input,
            output,
            address: SocketAddr::new(LOCALHOST, 0),
        };
        let port = child.expect("port ");
        child.address.set_port(port.parse().unwrap());
        child
    }

    /// Waits for a line that begins so, and returns its rest.
    pub fn expect(&mut self, start: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            // The test harness writes the test's name before the first line of ours.
            if let Some((_, rest)) = line.split_once(start) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("the child ended");
    }

    /// Asks for its memory in bytes and its open descriptors.
    pub fn ask(&mut self, what: &str) -> (usize, usize) {
        writeln!(self.input, "{what}").unwrap();
        let line = self.expect("memory ");
        let (memory, descriptors) = line.split_once(' ').unwrap();
        (memory.parse().unwrap(), descriptors.parse().unwrap())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// In the child: serves until the parent is gone, and returns true.
#[expect(clippy::print_stdout, reason = "the parent reads it")]
pub fn child(start: impl FnOnce(SocketAddr) -> (Relay, SocketAddr)) -> bool {
    #[expect(
        clippy::disallowed_methods,
        reason = "the parent says so by a variable"
    )]
    let Ok(endpoint) = std::env::var(VARIABLE) else {
        return false;
    };
    let (relay, server) = start(endpoint.parse().unwrap());
    let key = key("n", Protocol::Tcp);
    let port = relay.open(&key, Class::Internal, Listen::at(LOCALHOST));
    relay.set(&key, backends(&[server]));
    println!("port {}", port.unwrap());
    let page = 4096;
    for line in std::io::stdin().lines() {
        line.unwrap();
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let resident: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
        println!("memory {} {descriptors}", resident * page);
    }
    true
}

/// Lets this process have as many descriptors as it takes, or as many as it may; returns how many.
pub fn plenty() -> usize {
    const PLENTY: usize = 100_000;
    match limits::set(PLENTY) {
        Ok(()) => PLENTY,
        Err(_) => limits::raise_descriptors().unwrap(),
    }
}

#[test]
fn usp_044_ten_thousand_idle_connections_hold_no_pipes_and_little_memory() {
    const MOST_BYTES: usize = 2048;
    if child(|server| {
        let options = Options {
            descriptors: Some(4 * plenty()),
            ..options()
        };
        (start(options), server)
    }) {
        return;
    }
    // Both sides of every connection but the relay's are here. Where fewer descriptors are allowed
    // there are fewer connections; what each costs is the same.
    let connections = (plenty().saturating_sub(1000) / 2).min(10_000);
    assert!(connections >= 1000, "too few descriptors");
    let mut relay = Child::start(
        "memory::usp_044_ten_thousand_idle_connections_hold_no_pipes_and_little_memory",
        quiet_echo(),
    );
    // What is needed once, and pipes for streams.
    let streams: Vec<TcpStream> = (0..16).map(|_| stream(&relay)).collect();
    let (before, descriptors) = relay.ask("memory");
    let idle: Vec<TcpStream> = (0..connections).map(|_| used(&relay)).collect();
    let (after, more_descriptors) = relay.ask("memory");
    let each = after.saturating_sub(before) / connections;
    assert!(
        each <= MOST_BYTES,
        "{each} bytes for each of {connections} idle connections"
    );
    assert_eq!(more_descriptors - descriptors, 2 * connections);
    drop((streams, idle));
}

/// A connection that has carried a byte each way.
fn used(relay: &Child) -> TcpStream {
    let mut client = TcpStream::connect(relay.address).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
    client
}

/// A connection that has carried a stream each way.
fn stream(relay: &Child) -> TcpStream {
    const LEN: usize = 4 << 20;
    let client = TcpStream::connect(relay.address).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (&client).write_all(&vec![b's'; LEN]).unwrap());
        (&client).read_exact(&mut vec![0; LEN]).unwrap();
    });
    client
}

/// Sends one byte back on each connection; only streams get a thread of their own.
fn quiet_echo() -> SocketAddr {
    let listener = TcpListener::bind((LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            stream.write_all(&byte).unwrap();
            if byte == *b"s" {
                std::thread::spawn(move || send_back(stream));
            } else {
                kept.push(stream);
            }
        }
    });
    address
}
