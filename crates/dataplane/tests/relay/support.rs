//! A relay with one Service port, endpoints that answer, and clients.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrule_core::desired::Pool;
use ferrule_core::model::{Family, PortKey, Protocol, ServiceKey};
use ferrule_dataplane::userspace::relay::{
    Backends, Class, Key, Listen, Options, Relay, Route, Stats,
};

/// Long enough for anything that happens at all.
pub const LONG: Duration = Duration::from_secs(20);

pub const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[expect(
    clippy::disallowed_methods,
    reason = "how long something must take at least is measured"
)]
pub fn now() -> Instant {
    Instant::now()
}

/// A relay with one Service port.
pub struct Scene {
    pub relay: Relay,
    pub key: Key,
    pub address: SocketAddr,
}

/// Options under which clients may connect to proxy ports.
pub fn options() -> Options {
    Options {
        workers: 2,
        direct: true,
        ..Options::default()
    }
}

pub fn start(options: Options) -> Relay {
    Relay::start(options, Arc::new(|_| {})).unwrap()
}

pub fn key(name: &str, protocol: Protocol) -> Key {
    Key {
        port: PortKey {
            service: ServiceKey::new("ns", name),
            name: "".into(),
            protocol,
        },
        family: Family::V4,
    }
}

/// Everybody is served by these.
pub fn backends(endpoints: &[SocketAddr]) -> Backends {
    Backends {
        cluster: endpoints.to_vec(),
        internal: Route::all(Pool::Cluster),
        external: Route::all(Pool::Cluster),
        ..Backends::default()
    }
}

impl Scene {
    pub fn tcp(endpoints: &[SocketAddr]) -> Self {
        Self::new(options(), Protocol::Tcp, backends(endpoints))
    }

    pub fn udp(endpoints: &[SocketAddr]) -> Self {
        Self::new(options(), Protocol::Udp, backends(endpoints))
    }

    pub fn new(options: Options, protocol: Protocol, backends: Backends) -> Self {
        let relay = start(options);
        let key = key("n", protocol);
        let port = relay
            .open(&key, Class::Internal, Listen::at(LOCALHOST))
            .unwrap();
        relay.set(&key, backends);
        Self {
            relay,
            key,
            address: SocketAddr::new(LOCALHOST, port),
        }
    }

    pub fn set(&self, backends: Backends) {
        self.relay.set(&self.key, backends);
    }

    pub fn stats(&self) -> Stats {
        self.relay.stats().remove(&self.key).unwrap()
    }

    /// Waits until that holds.
    pub fn until(&self, what: &str, holds: impl Fn(&Stats) -> bool) {
        let mut last = Stats::default();
        for _ in 0..4000 {
            last = self.stats();
            if holds(&last) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("never: {what}: {last:?}");
    }

    /// A client that is patient.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        stream
    }

    /// Which endpoint a new client reaches, if endpoints say their name at once.
    pub fn ask(&self) -> String {
        let mut name = String::new();
        self.connect().read_to_string(&mut name).unwrap();
        name
    }
}

/// Listens on any port of 127.0.0.1 and does this with every connection, each in a thread.
pub fn endpoint(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind((LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = Arc::clone(&serve);
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// An endpoint that says its own port and ends.
pub fn named() -> SocketAddr {
    endpoint(|mut stream| {
        let name = stream.local_addr().unwrap().port().to_string();
        drop(stream.write_all(name.as_bytes()));
    })
}

/// An endpoint that sends back what it receives.
pub fn echo() -> SocketAddr {
    endpoint(send_back)
}

/// Sends back what it receives until the other side ends.
pub fn send_back(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..len]).is_err() {
            return;
        }
    }
}

/// An address where nobody listens.
pub fn closed() -> SocketAddr {
    TcpListener::bind((LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap()
}

/// A UDP endpoint that replies with its own port and what it received.
pub fn udp_echo() -> (SocketAddr, JoinHandle<()>) {
    let socket = UdpSocket::bind((LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((len, peer)) = socket.recv_from(&mut buffer) {
            if &buffer[..len] == b"end" {
                return;
            }
            drop(socket.send_to(&buffer[..len], peer));
        }
    });
    (address, thread)
}

/// A UDP endpoint that replies with its own port.
pub fn udp_named() -> SocketAddr {
    let socket = UdpSocket::bind((LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
            drop(socket.send_to(address.port().to_string().as_bytes(), peer));
        }
    });
    address
}

pub fn udp_client(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((LOCALHOST, 0)).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket
}

/// Sends something and returns the reply.
pub fn exchange(client: &UdpSocket, bytes: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    client.send(bytes).unwrap();
    let len = client.recv(&mut buffer).unwrap();
    buffer.truncate(len);
    buffer
}

/// What became of a connection that is only read from.
pub fn outcome(mut stream: TcpStream) -> Result<Vec<u8>, std::io::ErrorKind> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(error.kind()),
    }
}
