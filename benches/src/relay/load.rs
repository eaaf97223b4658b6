//! Clients and the endpoint they reach.
//!
//! The first byte of a connection says what the client wants: a stream, replies, or nothing more.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Done, Outcome};

const STREAM: u8 = b's';
const REPLY: u8 = b'r';
const HOLD: u8 = b'h';

/// Bytes of a request and of its reply.
const MESSAGE: usize = 128;

/// Connections served at a time, besides those that are held.
const THREADS: usize = 48;

/// Nothing that works takes longer.
const LONG: Duration = Duration::from_secs(30);

/// Switches loopback on in the network of this thread.
pub(super) fn loopback_up() -> Outcome<()> {
    let up = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status()?;
    if !up.success() {
        return Err("ip link set lo up: failed".into());
    }
    Ok(())
}

/// Serves for as long as this program runs.
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
}

impl Endpoint {
    pub(super) fn start(stream: u64) -> Outcome<Self> {
        let listener = Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
        let address = listener.local_addr()?;
        let held = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..THREADS {
            let (listener, held) = (Arc::clone(&listener), Arc::clone(&held));
            std::thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    if let Ok(Some(client)) = attend(client, stream) {
                        held.lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(client);
                    }
                }
            });
        }
        Ok(Self { address })
    }
}

/// Serves one connection; returns it if it is to be held.
fn attend(mut client: TcpStream, stream: u64) -> std::io::Result<Option<TcpStream>> {
    client.set_nodelay(true)?;
    let mut wanted = [0];
    client.read_exact(&mut wanted)?;
    match wanted[0] {
        STREAM => {
            let block = vec![7; 256 * 1024];
            let mut left = stream;
            while left > 0 {
                let len = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                client.write_all(&block[..len])?;
                left -= len as u64;
            }
            Ok(None)
        }
        REPLY => {
            let mut message = [0; MESSAGE];
            while client.read_exact(&mut message).is_ok() {
                client.write_all(&message)?;
            }
            Ok(None)
        }
        _ => {
            client.write_all(&wanted)?;
            Ok(Some(client))
        }
    }
}

fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let client = TcpStream::connect(to)?;
    client.set_nodelay(true)?;
    client.set_read_timeout(Some(LONG))?;
    Ok(client)
}

/// Does the same in several threads; sums up.
fn together(threads: usize, work: impl Fn() -> std::io::Result<Done> + Sync) -> Outcome<Done> {
    let parts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(&work)).collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect::<Result<Vec<_>, _>>()
    })?;
    Ok(Done {
        units: parts.iter().map(|part| part.units).sum(),
        times: parts.into_iter().flat_map(|part| part.times).collect(),
    })
}

/// Streams from the endpoint; the unit is a MiB.
pub(super) fn streams(to: SocketAddr, clients: usize, len: u64) -> Outcome<Done> {
    together(clients, || {
        let mut client = connect(to)?;
        client.write_all(&[STREAM])?;
        let mut buffer = vec![0; 256 * 1024];
        let mut left = len;
        while left > 0 {
            match client.read(&mut buffer)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                read => left = left.saturating_sub(read as u64),
            }
        }
        Ok(Done {
            units: len >> 20,
            times: Vec::new(),
        })
    })
}

/// Requests and replies on connections that stay.
pub(super) fn requests(to: SocketAddr, clients: usize, each: usize) -> Outcome<Done> {
    together(clients, || {
        let mut client = connect(to)?;
        client.write_all(&[REPLY])?;
        let mut times = Vec::with_capacity(each);
        let mut message = [1; MESSAGE];
        for _ in 0..each {
            let start = Instant::now();
            client.write_all(&message)?;
            client.read_exact(&mut message)?;
            times.push(start.elapsed());
        }
        Ok(Done {
            units: each as u64,
            times,
        })
    })
}

/// One request and reply per connection.
pub(super) fn connections(to: SocketAddr, clients: usize, each: usize) -> Outcome<Done> {
    together(clients, || {
        let mut times = Vec::with_capacity(each);
        let mut request = [1; MESSAGE + 1];
        request[0] = REPLY;
        let mut reply = [0; MESSAGE];
        for _ in 0..each {
            let start = Instant::now();
            let mut client = connect(to)?;
            client.write_all(&request)?;
            client.read_exact(&mut reply)?;
            drop(client);
            times.push(start.elapsed());
        }
        Ok(Done {
            units: each as u64,
            times,
        })
    })
}

/// Connections that have carried a byte each way and nothing since.
pub(super) struct Idle(#[expect(dead_code, reason = "held open")] Vec<TcpStream>);

impl Idle {
    pub(super) fn open(to: SocketAddr, count: usize) -> Outcome<Self> {
        let open = (0..count).map(|_| {
            let mut client = connect(to)?;
            client.write_all(&[HOLD])?;
            client.read_exact(&mut [0])?;
            Ok(client)
        });
        Ok(Self(open.collect::<std::io::Result<Vec<_>>>()?))
    }
}
