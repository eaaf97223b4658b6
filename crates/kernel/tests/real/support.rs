//! Goldens and a tapped socket for tests.

use std::fmt::Write;
use std::io;
use std::path::PathBuf;

use ferrule_kernel::socket::{Protocol, Socket, Transport};
pub use ferrule_testbed::{in_namespace, run, variable};

/// Compares with a file in `testdata`, or renews that file when `UPDATE_EXPECT` is set.
pub fn expect(name: &str, actual: &str) {
    ferrule_testbed::expect(&testdata(name), actual);
}

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

fn testdata(name: &str) -> PathBuf {
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
    pub fn open() -> Self {
        Self {
            socket: Socket::open(Protocol::Netfilter).unwrap(),
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
