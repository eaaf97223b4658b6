//! The real kernel with bad days: some requests are answered by a recorder instead, some answers
//! are lost, and somebody else meddles in between.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use ferrule_core::facts::Settings;
use ferrule_core::model::Family;
use ferrule_kernel::nft::{Batch, Nft, Table};
use ferrule_kernel::recorder::{Answer, Recorder, Script};
use ferrule_kernel::socket::{Protocol, Socket, Transport};
use nix::errno::Errno;

use crate::support::*;

/// What goes wrong.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The kernel never hears of a transaction, and this is the answer.
    Batch(Answer),
    /// The same for a dump.
    Dump(Answer),
    /// A transaction whose last message is refused so.
    RefuseLast(Errno),
    /// A transaction is made, and nobody hears of it.
    Unheard,
    /// Somebody changes a table of his own just before a transaction.
    Meddle,
    /// Somebody loads a file for `nft` just before a transaction.
    Load(String),
}

/// Faults to come, each with the first request that it fits.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<VecDeque<Fault>>>, Arc<Mutex<Poison>>);

/// What the kernel refuses each time that it meets it.
#[derive(Debug, Default)]
struct Poison {
    /// What new objects must not contain.
    patterns: Vec<Vec<u8>>,
    /// Bytes of each transaction since this was asked last.
    sent: Vec<usize>,
}

impl Faults {
    pub fn add(&self, fault: Fault) {
        self.0.lock().unwrap().push_back(fault);
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }

    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    /// From now on the kernel refuses new objects that contain one of these addresses. It is the
    /// real one that refuses: it is sent a damaged request.
    pub fn poison(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        let bytes = |ip| match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        self.1.lock().unwrap().patterns = addresses.into_iter().map(bytes).collect();
    }

    /// Bytes of each transaction since this was asked last.
    pub fn take_sent(&self) -> Vec<usize> {
        std::mem::take(&mut self.1.lock().unwrap().sent)
    }

    /// Damages a transaction where it contains what is to be refused.
    fn damage(&self, request: &mut [u8]) {
        let mut poison = self.1.lock().unwrap();
        if request[4..6] != 0x10_u16.to_ne_bytes() {
            return;
        }
        poison.sent.push(request.len());
        let bad = |bytes: &[u8]| {
            let mut patterns = poison.patterns.iter();
            patterns.any(|pattern| bytes.windows(pattern.len()).any(|part| part == pattern))
        };
        if poison.patterns.is_empty() {
            return;
        }
        for (at, len) in items(request, 0, request.len(), 4, 0) {
            let message = &mut request[at..at + len];
            match u16::from_ne_bytes([message[4], message[5]]) {
                NEW_ELEMENTS => {
                    let lists = items(message, 20, len, 2, 3);
                    for (list, list_len) in lists {
                        for (element, len) in items(message, list + 4, list + list_len, 2, 1) {
                            let bytes = &mut message[element..element + len];
                            if bad(bytes) {
                                // Without its key it is none.
                                let (key, _) = items(bytes, 4, len, 2, 1)[0];
                                bytes[key + 2] = 60;
                            }
                        }
                    }
                }
                // Without its kind, it is nothing.
                NEW_CHAIN | NEW_RULE | NEW_SET if bad(message) => message[4] = 0x7f,
                _ => {}
            }
        }
    }

    fn take(&self, request: &[u8]) -> Option<Fault> {
        let mut faults = self.0.lock().unwrap();
        let batch = request[4..6] == 0x10_u16.to_ne_bytes();
        let dump = request[7] & 3 == 3;
        let fits = match faults.front()? {
            Fault::Dump(_) => dump,
            _ => batch,
        };
        if fits { faults.pop_front() } else { None }
    }
}

const NEW_CHAIN: u16 = 0xa03;
const NEW_RULE: u16 = 0xa06;
const NEW_SET: u16 = 0xa09;
const NEW_ELEMENTS: u16 = 0xa0c;

/// Where messages, or attributes of one kind, are and how long they are. The length of each is in
/// its first bytes; messages have four for that and attributes two.
fn items(bytes: &[u8], start: usize, end: usize, width: usize, kind: u16) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = start;
    while at + width < end {
        let len = match width {
            4 => u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()) as usize,
            _ => u16::from_ne_bytes([bytes[at], bytes[at + 1]]).into(),
        };
        let flags_off = u16::from_ne_bytes([bytes[at + 2], bytes[at + 3]]) & 0x3fff;
        if width == 4 || flags_off == kind {
            found.push((at, len));
        }
        at += len.next_multiple_of(4).max(4);
    }
    found
}

/// Refuses the message of this number; that of number 0 is the transaction itself.
pub fn refuse(message: usize, errno: Errno) -> Answer {
    Answer::Refuse {
        message,
        errno: errno as i32,
    }
}

enum Voice {
    Kernel,
    Recorder,
    Nobody,
}

/// A conversation with such a kernel.
pub struct Flaky {
    socket: Socket,
    script: Script,
    recorder: Recorder,
    voice: Voice,
    faults: Faults,
}

impl Flaky {
    pub fn open(faults: Faults) -> Nft<Self> {
        let script = Script::default();
        Nft::new(Self {
            socket: Socket::open(Protocol::Netfilter).unwrap(),
            recorder: Recorder::new(script.clone()),
            script,
            voice: Voice::Kernel,
            faults,
        })
    }

    fn instead(&mut self, answer: Answer, parts: &[&[u8]]) -> io::Result<()> {
        self.voice = Voice::Recorder;
        self.script.answer(answer);
        self.recorder.send(parts)
    }
}

impl Transport for Flaky {
    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let mut request = parts.concat();
        self.faults.damage(&mut request);
        let parts = &[&*request];
        self.voice = Voice::Kernel;
        match self.faults.take(&request) {
            Some(Fault::Batch(Answer::Refuse { message, errno })) => {
                // The kernel never refuses the message that closes a transaction.
                let message = message.min(messages(&request) - 2);
                self.instead(Answer::Refuse { message, errno }, parts)
            }
            Some(Fault::Batch(answer) | Fault::Dump(answer)) => self.instead(answer, parts),
            Some(Fault::RefuseLast(errno)) => {
                let last = messages(&request) - 2;
                self.instead(refuse(last, errno), parts)
            }
            Some(Fault::Unheard) => {
                self.socket.send(parts)?;
                while self.socket.receive_now().is_ok() {}
                self.voice = Voice::Nobody;
                Ok(())
            }
            Some(Fault::Meddle) => {
                meddle();
                self.socket.send(parts)
            }
            Some(Fault::Load(text)) => {
                ferrule_testbed::feed("nft", &["-f", "-"], &text);
                self.socket.send(parts)
            }
            None => self.socket.send(parts),
        }
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        match self.voice {
            Voice::Kernel => self.socket.receive(),
            Voice::Recorder => self.recorder.receive(),
            Voice::Nobody => {
                self.voice = Voice::Kernel;
                Err(Errno::ENOBUFS.into())
            }
        }
    }

    fn receive_now(&mut self) -> io::Result<&[u8]> {
        match self.voice {
            Voice::Recorder => self.recorder.receive_now(),
            _ => self.socket.receive_now(),
        }
    }

    fn port(&self) -> u32 {
        self.socket.port()
    }
}

fn messages(mut request: &[u8]) -> usize {
    let mut count = 0;
    while let Some(len) = request.first_chunk() {
        let len = u32::from_ne_bytes(*len) as usize;
        request = &request[len.next_multiple_of(4)..];
        count += 1;
    }
    count
}

/// Changes a table that is none of ours.
fn meddle() {
    let mut nft = open_here();
    let mut batch = Batch::new(ferrule_kernel::Family::V4, "somebody-else");
    batch.add_table(&Table::new("somebody-else"));
    batch.delete_table();
    nft.commit(&batch).unwrap();
}

impl Scene<Flaky> {
    /// In the namespace of the calling thread, with these faults.
    pub fn flaky(family: Family, faults: &Faults) -> Self {
        let faults = faults.clone();
        let open = Box::new(move || Flaky::open(faults.clone()));
        Self::over(family, Settings::default(), open, Box::new(open_here))
    }
}
