//! A kernel for tests: records requests, replays answers, fails on request.
//!
//! Without instructions it is content with everything: it acknowledges what wants to be
//! acknowledged, answers dumps with nothing, and counts the generations of nftables.
//!
//! It does not remember what requests create.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use crate::socket::Transport;
use crate::wire::{
    Message, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_MULTI, NLMSG_DONE, NLMSG_ERROR, Writer,
    messages,
};

/// How to answer a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// With these datagrams, as they were captured; they get the request's number.
    Replay(Vec<Vec<u8>>),
    /// Refuse one message, counted from 0. In a batch, message 0 is its beginning: refusing that
    /// refuses the batch as a whole. The rest is answered as if all were well, which is what the
    /// kernel does.
    Refuse {
        /// Which message.
        message: usize,
        /// Why.
        errno: i32,
    },
    /// Send a dump whose parts do not fit together.
    Interrupt(Vec<Vec<u8>>),
    /// Lose the answer.
    Overrun,
    /// Do not take the request at all.
    Unsent(i32),
    /// Say nothing.
    Silence,
}

/// Shared between the recorder and the test that watches it.
#[derive(Clone, Debug, Default)]
pub struct Script(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    requests: Vec<Vec<u8>>,
    answers: VecDeque<Option<Answer>>,
    inbox: VecDeque<Result<Vec<u8>, i32>>,
    generation: u32,
}

impl Script {
    /// The next request that has no answer planned is answered so.
    pub fn answer(&self, answer: Answer) {
        self.with(|state| state.answers.push_back(Some(answer)));
    }

    /// The next request that has no answer planned is answered with contentment.
    pub fn agree(&self) {
        self.with(|state| state.answers.push_back(None));
    }

    /// Takes the requests made so far, each as it was sent.
    pub fn take_requests(&self) -> Vec<Vec<u8>> {
        self.with(|state| std::mem::take(&mut state.requests))
    }

    /// What nftables would call the present generation.
    pub fn generation(&self) -> u32 {
        self.with(|state| state.generation)
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The kernel's side of a [`Script`].
#[derive(Debug, Default)]
pub struct Recorder {
    script: Script,
    current: Vec<u8>,
}

impl Recorder {
    /// A kernel that follows this script.
    pub const fn new(script: Script) -> Self {
        Self {
            script,
            current: Vec::new(),
        }
    }

    fn next(&mut self, none: io::ErrorKind) -> io::Result<&[u8]> {
        match self.script.with(|state| state.inbox.pop_front()) {
            None => Err(none.into()),
            Some(Err(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Some(Ok(datagram)) => {
                self.current = datagram;
                Ok(&self.current)
            }
        }
    }
}

impl Transport for Recorder {
    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let request = parts.concat();
        self.script.with(|state| {
            let answer = state.answers.pop_front().flatten();
            if let Some(Answer::Unsent(errno)) = answer {
                return Err(io::Error::from_raw_os_error(errno));
            }
            state.take(&request, answer);
            state.requests.push(request);
            Ok(())
        })
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        self.next(io::ErrorKind::TimedOut)
    }

    fn receive_now(&mut self) -> io::Result<&[u8]> {
        self.next(io::ErrorKind::WouldBlock)
    }

    fn port(&self) -> u32 {
        PORT
    }
}

const PORT: u32 = 4711;
const BATCH_BEGIN: u16 = 0x10;
const GET_GENERATION: u16 = 0xa10;
const NEW_GENERATION: u16 = 0xa0f;
const GENERATION_ID: u16 = 1;

impl State {
    fn take(&mut self, request: &[u8], answer: Option<Answer>) {
        let parts: Vec<_> = messages(request).map_while(Result::ok).collect();
        let Some(first) = parts.first() else { return };
        let (refused, errno) = match answer {
            Some(Answer::Replay(datagrams)) => return self.replay(datagrams, first.sequence, 0),
            Some(Answer::Interrupt(datagrams)) => {
                self.replay(datagrams, first.sequence, NLM_F_DUMP_INTR);
                return self.done(first.sequence, NLM_F_DUMP_INTR);
            }
            Some(Answer::Overrun) => return self.inbox.push_back(Err(libc::ENOBUFS)),
            Some(Answer::Silence | Answer::Unsent(_)) => return,
            Some(Answer::Refuse { message, errno }) => (Some(message), errno),
            None => (None, 0),
        };
        let batch = first.kind == BATCH_BEGIN;
        for (index, part) in parts.iter().enumerate() {
            if refused == Some(index) {
                self.verdict(part.sequence, errno);
                // Nothing follows a refusal of the whole.
                if index == 0 {
                    return;
                }
            } else {
                self.content(part, batch);
            }
        }
        if batch && refused.is_none() {
            self.generation += 1;
        }
    }

    /// What a kernel says to one message that it has no objection to.
    fn content(&mut self, part: &Message<'_>, batch: bool) {
        if part.kind == GET_GENERATION {
            let generation = self.generation;
            self.push(NEW_GENERATION, 0, part.sequence, |writer| {
                writer.raw(&[0; 4]);
                writer.u32_be(GENERATION_ID, generation);
            });
        }
        if !batch && part.flags & NLM_F_DUMP == NLM_F_DUMP {
            self.done(part.sequence, 0);
        } else if part.flags & NLM_F_ACK != 0 {
            self.verdict(part.sequence, 0);
        }
    }

    fn replay(&mut self, datagrams: Vec<Vec<u8>>, sequence: u32, flags: u16) {
        for mut datagram in datagrams {
            let mut at = 0;
            while let Some(Ok(message)) = messages(&datagram[at..]).next() {
                let len = crate::wire::align(crate::wire::HEADER + message.body.len());
                let changed = (message.flags | flags).to_ne_bytes();
                datagram[at + 6..at + 8].copy_from_slice(&changed);
                datagram[at + 8..at + 12].copy_from_slice(&sequence.to_ne_bytes());
                at = (at + len).min(datagram.len());
            }
            self.inbox.push_back(Ok(datagram));
        }
    }

    fn done(&mut self, sequence: u32, flags: u16) {
        self.push(NLMSG_DONE, NLM_F_MULTI | flags, sequence, |writer| {
            writer.raw(&[0; 4]);
        });
    }

    fn verdict(&mut self, sequence: u32, errno: i32) {
        self.push(NLMSG_ERROR, 0, sequence, |writer| {
            writer.raw(&errno.wrapping_neg().to_ne_bytes());
            let request = writer.begin(0, 0, sequence);
            writer.end(request);
        });
    }

    fn push(&mut self, kind: u16, flags: u16, sequence: u32, body: impl FnOnce(&mut Writer)) {
        let mut writer = Writer::new();
        let start = writer.begin(kind, flags, sequence);
        body(&mut writer);
        writer.end(start);
        self.inbox.push_back(Ok(writer.bytes().to_vec()));
    }
}
