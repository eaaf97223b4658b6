//! Asking a Service, and what came of it.

use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

use ferrule_core::model::Family;
use socket2::{Domain, Socket, Type};

use crate::place::Place;
use crate::sctp::Packet;

/// The protocol's number.
pub const SCTP: i32 = 132;

/// Over what is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A connection.
    Tcp,
    /// A datagram.
    Udp,
    /// The first packet of an association, made by hand.
    Sctp,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// A pod answered.
    Served {
        /// Its number.
        by: u8,
        /// The address that it saw.
        seen: IpAddr,
    },
    /// An ICMP error: port unreachable.
    Refused,
    /// The connection was reset: it arrived where nobody listens.
    Reset,
    /// Nothing came.
    Silence,
}

/// A question.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// From which address; any if not said.
    pub from: Option<IpAddr>,
    /// Over what.
    pub protocol: Protocol,
    /// Which address.
    pub to: IpAddr,
    /// Which port.
    pub port: u16,
}

/// How long an answer may take. Only a failing test waits so long.
const TIMEOUT: Duration = Duration::from_secs(8);

/// How long nothing must come to count as silence: less than it takes TCP to ask again.
const SILENCE: Duration = Duration::from_millis(250);

impl Ask {
    /// A question from any address.
    pub const fn new(protocol: Protocol, to: IpAddr, port: u16) -> Self {
        Self {
            from: None,
            protocol,
            to,
            port,
        }
    }

    /// The same from this address.
    #[must_use]
    pub const fn from(mut self, from: IpAddr) -> Self {
        self.from = Some(from);
        self
    }

    /// Asks, and waits for an answer.
    pub fn put(self, place: &Place) -> Answer {
        Asked::begin(self, place).wait(TIMEOUT)
    }

    /// Asks again and again until a pod answers, with a longer timeout each time: on a busy machine
    /// every answer may come late.
    pub fn until_served(self, place: &Place) {
        for timeout in 1..40 {
            let answer = Asked::begin(self, place).wait(Duration::from_millis(20 * timeout));
            if matches!(answer, Answer::Served { .. }) {
                return;
            }
        }
        panic!("{self:?}: nobody answers");
    }

    /// Puts all of these at once, and returns those that were answered within a short time.
    pub fn unanswered(asks: &[(&Place, Self)]) -> Vec<(Self, Answer)> {
        let begin = |(place, ask): &(&Place, Self)| Asked::begin(*ask, place);
        let asked: Vec<_> = asks.iter().map(begin).collect();
        thread::sleep(SILENCE);
        asked
            .into_iter()
            .map(|mut asked| (asked.ask, asked.wait(Duration::ZERO)))
            .filter(|(_, answer)| *answer != Answer::Silence)
            .collect()
    }

    fn family(self) -> Family {
        if self.to.is_ipv4() {
            Family::V4
        } else {
            Family::V6
        }
    }
}

/// A question that was put.
struct Asked {
    ask: Ask,
    open: Open,
    /// Receives ICMP errors.
    icmp: UdpSocket,
}

enum Open {
    Tcp(Socket),
    Udp(UdpSocket),
    Sctp(UdpSocket, u16),
}

impl Asked {
    fn begin(ask: Ask, place: &Place) -> Self {
        place.run(move || {
            let icmp = raw(ask.family(), if ask.to.is_ipv4() { 1 } else { 58 });
            icmp.set_nonblocking(true).unwrap();
            let open = match ask.protocol {
                Protocol::Tcp => Open::Tcp(begin_tcp(ask)),
                Protocol::Udp => Open::Udp(begin_udp(ask)),
                Protocol::Sctp => begin_sctp(ask),
            };
            Self { ask, open, icmp }
        })
    }

    fn wait(&mut self, timeout: Duration) -> Answer {
        let mut waited = Duration::ZERO;
        let mut pause = Duration::from_micros(50);
        loop {
            if let Some(answer) = self.look() {
                return answer;
            }
            if waited >= timeout {
                return Answer::Silence;
            }
            thread::sleep(pause);
            waited += pause;
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }

    fn look(&mut self) -> Option<Answer> {
        if self.is_refused() {
            return Some(Answer::Refused);
        }
        let text = match &self.open {
            Open::Tcp(socket) => match read_tcp(socket) {
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Some(Answer::Reset);
                }
                // The word of ICMP counts, not how the socket took it.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return (!self.hears_icmp()).then_some(Answer::Reset);
                }
                result => result.ok()?,
            },
            Open::Udp(socket) => receive(socket)?,
            Open::Sctp(socket, port) => {
                let datagram = receive(socket)?;
                let packet = Packet::read(transport_part(self.ask.family(), &datagram))?;
                let ours = packet.to == *port && packet.from == self.ask.port;
                assert!(ours && packet.answers == Some(TAG), "{packet:?}");
                packet.text
            }
        };
        Some(served(&text))
    }

    /// A refused connection is one of ICMP if that arrives within a moment.
    fn hears_icmp(&self) -> bool {
        (0..20).any(|_| {
            thread::sleep(Duration::from_millis(1));
            self.is_refused()
        })
    }

    /// Whether an ICMP error says that our port is unreachable.
    fn is_refused(&self) -> bool {
        std::iter::from_fn(|| receive(&self.icmp)).any(|message| self.refuses(&message))
    }

    fn refuses(&self, message: &[u8]) -> bool {
        let (kind, header) = match self.ask.to {
            IpAddr::V4(_) => ([3, 3], transport_part(Family::V4, message)),
            IpAddr::V6(_) => ([1, 4], message),
        };
        let Some((head, quoted)) = header.split_at_checked(8) else {
            return false;
        };
        let (protocol, to, rest) = match self.ask.to {
            IpAddr::V4(_) => {
                let to = quoted.get(16..20).and_then(|ip| ip.first_chunk::<4>());
                let to = to.map(|ip| IpAddr::from(Ipv4Addr::from(*ip)));
                (quoted.get(9), to, transport_part(Family::V4, quoted))
            }
            IpAddr::V6(_) => {
                let to = quoted.get(24..40).and_then(|ip| ip.first_chunk::<16>());
                let to = to.map(|ip| IpAddr::from(Ipv6Addr::from(*ip)));
                (quoted.get(6), to, quoted.get(40..).unwrap_or_default())
            }
        };
        head[..2] == kind
            && protocol == Some(&self.ask.protocol.number())
            && to == Some(self.ask.to)
            && rest.get(2..4) == Some(&self.ask.port.to_be_bytes())
    }
}

const TAG: u32 = 0x00c0_ffee;

fn begin_tcp(ask: Ask) -> Socket {
    let socket = Socket::new(domain(ask.family()), Type::STREAM, None).unwrap();
    if let Some(from) = ask.from {
        socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
    }
    socket.set_nonblocking(true).unwrap();
    // What comes of it is seen later.
    drop(socket.connect(&SocketAddr::new(ask.to, ask.port).into()));
    socket
}

fn begin_udp(ask: Ask) -> UdpSocket {
    let any: IpAddr = match ask.to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = bind_udp(ask.from.unwrap_or(any));
    socket.set_nonblocking(true).unwrap();
    socket.connect((ask.to, ask.port)).unwrap();
    // Dropped on the way out it is an error too.
    drop(socket.send(b"?"));
    socket
}

/// Connects from this address and port. The connection is reset at its end, so that the port can be
/// used again at once.
///
/// # Errors
/// What the kernel said.
pub fn connect_from(from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    // While another test starts a program, that has a copy of every socket for a moment.
    for _ in 0..1000 {
        match try_from(from, to) {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                thread::sleep(Duration::from_millis(2));
            }
            result => return result,
        }
    }
    try_from(from, to)
}

fn try_from(from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_linger(Some(Duration::ZERO))?;
    socket.bind(&from.into())?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

/// A port that no question was put from before: the kernel tracks flows of both protocols by their
/// ports alone, and leads a packet of an old flow where that one went.
fn fresh_port() -> u16 {
    static PORTS: AtomicU16 = AtomicU16::new(0);
    0x4000 + PORTS.fetch_add(1, Ordering::Relaxed) % 0xb000
}

fn bind_udp(from: IpAddr) -> UdpSocket {
    loop {
        match UdpSocket::bind((from, fresh_port())) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            result => return result.unwrap(),
        }
    }
}

fn begin_sctp(ask: Ask) -> Open {
    let port = fresh_port();
    let socket = raw(ask.family(), SCTP);
    if let Some(from) = ask.from {
        let socket = socket2::SockRef::from(&socket);
        socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
    }
    socket.set_nonblocking(true).unwrap();
    socket.connect((ask.to, 0)).unwrap();
    let packet = Packet {
        from: port,
        to: ask.port,
        tag: TAG,
        answers: None,
        text: Vec::new(),
    };
    drop(socket.send(&packet.bytes()));
    Open::Sctp(socket, port)
}

/// The first line, or why there is none yet.
fn read_tcp(socket: &Socket) -> io::Result<Vec<u8>> {
    socket.take_error()?.map_or(Ok(()), Err)?;
    socket.peer_addr()?;
    let mut stream: TcpStream = socket.try_clone()?.into();
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') {
        stream.read_exact(&mut byte)?;
        line.extend(byte);
    }
    Ok(line)
}

fn receive(socket: &UdpSocket) -> Option<Vec<u8>> {
    let mut buffer = [0; 2048];
    let len = socket.recv(&mut buffer).ok()?;
    Some(buffer[..len].to_vec())
}

fn served(text: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().next().unwrap_or_default();
    let (number, seen) = line.split_once(' ').unwrap();
    Answer::Served {
        by: number.parse().unwrap(),
        seen: seen.parse().unwrap(),
    }
}

const fn domain(family: Family) -> Domain {
    match family {
        Family::V4 => Domain::IPV4,
        Family::V6 => Domain::IPV6,
    }
}

/// A socket for packets of a protocol without what the kernel does for it. Only its calls are
/// those of UDP.
pub fn raw(family: Family, protocol: i32) -> UdpSocket {
    let protocol = socket2::Protocol::from(protocol);
    let socket = Socket::new(domain(family), Type::RAW, Some(protocol)).unwrap();
    socket.into()
}

/// What follows the header of a packet; of IPv6 the kernel keeps that header to itself.
pub fn transport_part(family: Family, packet: &[u8]) -> &[u8] {
    match family {
        Family::V6 => packet,
        Family::V4 => {
            let words = packet.first().map_or(5, |byte| byte & 15);
            packet.get(usize::from(words) * 4..).unwrap_or_default()
        }
    }
}
