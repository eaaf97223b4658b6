//! A tapped socket, and messages kept in `testdata`.

use std::fmt::Write;
use std::io;
use std::path::PathBuf;

use ferrule_kernel::socket::{Protocol, Socket, Transport};
use ferrule_kernel::wire::{HEADER, messages};
use ferrule_testbed::variable;

/// The bytes in a file of `testdata`, which is first written when `UPDATE_EXPECT` is set.
///
/// Kernels differ in what they add to a message, so what is received is not compared with it
/// byte by byte.
pub fn captured(name: &str, caption: &str, bytes: &[u8]) -> Vec<u8> {
    let path = testdata(name);
    if variable("UPDATE_EXPECT") {
        let mut text = String::new();
        for line in caption.lines() {
            writeln!(text, "# {}", line.trim()).unwrap();
        }
        for row in bytes.chunks(16) {
            let row: Vec<_> = row.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "{}", row.join(" ")).unwrap();
        }
        std::fs::write(&path, text).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.flat_map(str::split_whitespace)
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

pub fn testdata(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("testdata")
        .join(name)
}

/// A socket that keeps what it sent and received.
pub struct Tap {
    socket: Socket,
    pub sent: Vec<Vec<u8>>,
    pub received: Vec<Vec<u8>>,
}

impl Tap {
    pub fn open(protocol: Protocol) -> Self {
        Self {
            socket: Socket::open(protocol).unwrap(),
            sent: Vec::new(),
            received: Vec::new(),
        }
    }
}

impl Transport for Tap {
    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.sent.push(parts.concat());
        self.socket.send(parts)
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        let datagram = self.socket.receive()?;
        self.received.push(datagram.to_vec());
        Ok(datagram)
    }

    fn receive_now(&mut self) -> io::Result<&[u8]> {
        self.socket.receive_now()
    }

    fn port(&self) -> u32 {
        self.socket.port()
    }
}

/// The first message of this kind, with the port and the number of the request taken out.
pub fn pick(datagrams: &[Vec<u8>], kind: u16) -> Vec<u8> {
    for datagram in datagrams {
        let mut at = 0;
        while let Some(Ok(message)) = messages(&datagram[at..]).next() {
            let len = HEADER + message.body.len();
            if message.kind == kind {
                let mut bytes = datagram[at..at + len].to_vec();
                bytes[8..16].fill(0);
                without_pointer(&mut bytes);
                return bytes;
            }
            at += len.next_multiple_of(4);
        }
    }
    panic!("no message of kind {kind:#x}");
}

/// A kernel without symbol names gives an address as the type of a set. It differs at every boot.
fn without_pointer(bytes: &mut [u8]) {
    const DIGITS: usize = 16;
    let found = bytes.windows(2 + DIGITS).position(|window| {
        window.starts_with(b"0x") && window[2..].iter().all(u8::is_ascii_hexdigit)
    });
    if let Some(at) = found {
        bytes[at + 2..at + 2 + DIGITS].fill(b'0');
    }
}
