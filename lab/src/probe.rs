//! Packets sent from a host, and what came back.
//!
//! All functions here run in a thread that is in the sender's network. Every try uses a new source
//! port, so every try is a new choice for whoever balances.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use crate::plan;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// What one try got.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// A pod answered on a port, and saw this client.
    Pod {
        name: String,
        port: u16,
        from: String,
    },
    /// A TCP reset or an ICMP error.
    Refused,
    /// Nothing came back.
    Timeout,
    /// An open connection was torn down.
    Closed,
    /// Anything else.
    Other(String),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { name, port, from } => write!(f, "{name}:{port} from {from}"),
            Self::Refused => write!(f, "refused"),
            Self::Timeout => write!(f, "timeout"),
            Self::Closed => write!(f, "closed"),
            Self::Other(text) => write!(f, "{text}"),
        }
    }
}

/// Everything that came back over several tries.
pub type Answers = BTreeSet<Answer>;

/// The tries as one line.
pub fn show(answers: &Answers) -> String {
    let words: Vec<_> = answers.iter().map(ToString::to_string).collect();
    words.join(", ")
}

/// Tries often enough that of `expected` equally likely answers none is missed, and one more than
/// expected would be seen: each with a probability below one in a million.
///
/// Stops at the first try without an answer from a pod: waiting again would show nothing new.
pub fn balanced(protocol: Protocol, to: SocketAddr, expected: usize, timeout: Duration) -> Answers {
    let mut answers = Answers::new();
    for _ in 0..tries(expected) {
        let answer = once(protocol, to, timeout);
        let lost = answer == Answer::Timeout;
        answers.insert(answer);
        if lost {
            break;
        }
    }
    answers
}

/// With n answers possible, t tries miss one with probability at most n (1 - 1/n)^t.
fn tries(expected: usize) -> usize {
    if expected == 0 {
        // A refusal is no matter of chance; the second try sees a rule that works only once.
        return 2;
    }
    // ln(1 - 1/n) < -1/n, and 14 > ln(10^6); the last term pays for the factor n.
    let possible = expected + 1;
    possible * 14 + possible * possible.ilog2() as usize
}

/// One try.
pub fn once(protocol: Protocol, to: SocketAddr, timeout: Duration) -> Answer {
    let result = match protocol {
        Protocol::Tcp => tcp(to, timeout),
        Protocol::Udp => Flow::open(Protocol::Udp, to, timeout).map(|(_, answer)| answer),
    };
    result.unwrap_or_else(|error| from_error(&error))
}

fn tcp(to: SocketAddr, timeout: Duration) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&to, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    let mut line = [0; 256];
    let count = stream.read(&mut line)?;
    Ok(read(&line[..count]))
}

/// A connection, or a UDP socket that keeps its port, that stays open for later.
pub enum Flow {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Flow {
    /// Opens one and returns the first answer with it.
    pub fn open(
        protocol: Protocol,
        to: SocketAddr,
        timeout: Duration,
    ) -> io::Result<(Self, Answer)> {
        match protocol {
            Protocol::Tcp => {
                let mut stream = TcpStream::connect_timeout(&to, timeout)?;
                stream.set_read_timeout(Some(timeout))?;
                let mut line = [0; 256];
                let count = stream.read(&mut line)?;
                Ok((Self::Tcp(stream), read(&line[..count])))
            }
            Protocol::Udp => {
                let any: IpAddr = match to {
                    SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
                    SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                };
                let socket = UdpSocket::bind((any, 0))?;
                socket.connect(to)?;
                // Nobody need be there yet: a socket stays open whatever comes back.
                let mut flow = Self::Udp(socket);
                let answer = flow.try_ask(timeout);
                Ok((flow, answer))
            }
        }
    }

    /// Sends something over it and waits for the answer.
    pub fn ask(&mut self, timeout: Duration) -> io::Result<Answer> {
        let mut line = [0; 256];
        let count = match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.write_all(b"?\n")?;
                stream.read(&mut line)?
            }
            Self::Udp(socket) => {
                socket.set_read_timeout(Some(timeout))?;
                // A rule on the sender's own way out makes sending fail. Whether it also said why
                // is only known by listening.
                match socket.send(b"?\n") {
                    Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                    other => _ = other?,
                }
                socket.recv(&mut line)?
            }
        };
        Ok(read(&line[..count]))
    }

    /// As [`Flow::ask`], with a failure as an answer too.
    pub fn try_ask(&mut self, timeout: Duration) -> Answer {
        self.ask(timeout).unwrap_or_else(|error| from_error(&error))
    }
}

/// What a pod said about itself and us.
pub fn read(line: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(line);
    if text.is_empty() {
        return Answer::Closed;
    }
    // A datagram or segment may hold more than one answer; they are all the same.
    let words: Vec<_> = text.lines().next().unwrap_or("").split(' ').collect();
    if let [name, from, port] = words[..]
        && let (Ok(from), Ok(port)) = (from.parse(), port.parse())
    {
        let from = plan::name_of(from);
        let name = name.to_owned();
        return Answer::Pod { name, port, from };
    }
    Answer::Other(format!("{text:?}"))
}

/// What the system says, as an answer.
pub fn from_error(error: &io::Error) -> Answer {
    match error.kind() {
        ErrorKind::ConnectionRefused => Answer::Refused,
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Answer::Timeout,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
            Answer::Closed
        }
        _ => Answer::Other(error.to_string()),
    }
}

/// An HTTP answer: status and the rest of the text, headers included.
pub fn get(to: SocketAddr, path: &str, timeout: Duration) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&to, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("not HTTP: {text:?}")))?;
    Ok((status, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_tries_to_miss_nobody() {
        for expected in 1..40_usize {
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let (n, t) = ((expected + 1) as f64, tries(expected) as f64);
            let missed = n * (1.0 - 1.0 / n).powf(t);
            assert!(missed < 1e-6, "{expected}: {missed}");
        }
    }

    #[test]
    fn a_pods_line_is_read() {
        let answer = read(b"a1 10.244.2.1 8080\na1 10.244.2.1 8080\n");
        assert_eq!(answer.to_string(), "a1:8080 from b1");
        assert_eq!(read(b""), Answer::Closed);
        assert!(matches!(read(b"hello"), Answer::Other(_)));
    }
}
