//! Clients and the endpoint they reach.
//!
//! The first byte of a connection says what the client wants: a stream, replies, or nothing more.
//! A datagram is sent back.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Done, Outcome};

const STREAM: u8 = b's';
const REPLY: u8 = b'r';
const HOLD: u8 = b'h';

/// Bytes of a request and of its reply.
const MESSAGE: usize = 128;

/// Connections served at a time, besides those that are held or streamed to.
const THREADS: usize = 48;

/// Those that have such clients at the same time.
const PROXIES: usize = 2;

/// Datagrams of one client that are on their way at a time.
const IN_FLIGHT: usize = 16;

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
    /// For datagrams.
    pub(super) datagrams: SocketAddr,
}

impl Endpoint {
    /// `mute` clients of each proxy will say nothing.
    pub(super) fn start(stream: u64, mute: usize) -> Outcome<Self> {
        let listener = Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
        let address = listener.local_addr()?;
        let held = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..THREADS + PROXIES * mute {
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
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let datagrams = socket.local_addr()?;
        for _ in 0..2 {
            let socket = socket.try_clone()?;
            std::thread::spawn(move || {
                let mut buffer = [0; 2048];
                loop {
                    // A client that is gone is reported as an error.
                    if let Ok((len, peer)) = socket.recv_from(&mut buffer) {
                        _ = socket.send_to(&buffer[..len], peer);
                    }
                }
            });
        }
        Ok(Self { address, datagrams })
    }
}

/// Serves one connection; returns it if it is to be held.
fn attend(mut client: TcpStream, stream: u64) -> std::io::Result<Option<TcpStream>> {
    client.set_nodelay(true)?;
    let mut wanted = [0];
    client.read_exact(&mut wanted)?;
    match wanted[0] {
        STREAM => {
            // Not here: some never read what they ask for.
            std::thread::spawn(move || give(client, stream));
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

fn give(mut client: TcpStream, stream: u64) {
    let block = vec![7; 256 * 1024];
    let mut left = stream;
    while left > 0 {
        let len = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if client.write_all(&block[..len]).is_err() {
            return;
        }
        left -= len as u64;
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

/// Datagrams there and back: each client has a few on their way. Lost ones are not counted.
pub(super) fn datagrams(to: SocketAddr, clients: usize, each: usize) -> Outcome<Done> {
    together(clients, || {
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        client.connect(to)?;
        client.set_read_timeout(Some(Duration::from_millis(200)))?;
        let mut message = [1; MESSAGE];
        let (mut units, mut times) = (0, Vec::with_capacity(each / IN_FLIGHT));
        for _ in 0..each / IN_FLIGHT {
            let start = Instant::now();
            for _ in 0..IN_FLIGHT {
                client.send(&message)?;
            }
            for _ in 0..IN_FLIGHT {
                match client.recv(&mut message) {
                    Ok(_) => units += 1,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            times.push(start.elapsed());
        }
        Ok(Done { units, times })
    })
}

/// Clients that ask for a stream and never read it, and others that connect and say nothing.
pub(super) struct Hostile(#[expect(dead_code, reason = "held open")] Vec<TcpStream>);

impl Hostile {
    pub(super) fn open(to: SocketAddr, deaf: usize, mute: usize) -> Outcome<Self> {
        let deaf = (0..deaf).map(|_| {
            let mut client = connect(to)?;
            client.write_all(&[STREAM])?;
            // The stream has begun: everything on the way fills up.
            client.peek(&mut [0])?;
            Ok(client)
        });
        let mute = (0..mute).map(|_| connect(to));
        Ok(Self(deaf.chain(mute).collect::<std::io::Result<Vec<_>>>()?))
    }
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
