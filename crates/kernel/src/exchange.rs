//! Requests and the answers that belong to them.
//!
//! In: a request as a message. Out: its acknowledgement, its one answer, or all parts of a dump;
//! or a [`RequestError`]. Answers to requests that were given up earlier are skipped.
//!
//! What the messages mean is not known here.

use std::io;

use crate::socket::Transport;
use crate::wire::{
    Malformed, Message, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR,
    NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, Writer, align, attributes, messages,
};

mod many;
#[cfg(test)]
mod tests;

pub use many::Refused;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The kernel refused.
    #[error("the kernel refused the request{}", explained(message.as_deref()))]
    Refused {
        /// The extended ACK message of the kernel, if any.
        message: Option<String>,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The kernel's state changed during a dump, so its parts do not fit together.
    #[error("an external change interrupted the dump")]
    Interrupted,
    /// The request was not sent, or answers to it were lost.
    #[error("the netlink reply was lost")]
    Lost(#[source] io::Error),
    /// The reply is malformed.
    #[error("malformed netlink reply")]
    Malformed(#[from] Malformed),
}

impl RequestError {
    /// Whether what was asked for does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the same request may well succeed if made again at once.
    pub fn is_interrupted(&self) -> bool {
        match self {
            Self::Interrupted => true,
            Self::Refused { source, .. } => source.kind() == io::ErrorKind::Interrupted,
            _ => false,
        }
    }
}

pub(crate) fn explained(message: Option<&str>) -> String {
    message.map_or_else(String::new, |message| format!(": {message}"))
}

/// An acknowledgement or an error, as the kernel words it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// 0 means that all is well.
    pub errno: i32,
    /// The explanation in words.
    pub message: Option<String>,
    /// Where in the request the fault is, counted from the start of its header.
    pub offset: Option<u32>,
}

const ERROR_MESSAGE: u16 = 1;
const ERROR_OFFSET: u16 = 2;

impl Verdict {
    /// Reads an answer of kind [`NLMSG_ERROR`].
    ///
    /// # Errors
    /// It is none.
    pub fn read(answer: &Message<'_>) -> Result<Self, Malformed> {
        const CUT_OFF: Malformed = Malformed("error: truncated");
        let (code, rest) = answer.body.split_first_chunk::<4>().ok_or(CUT_OFF)?;
        let mut verdict = Self {
            errno: i32::from_ne_bytes(*code).wrapping_neg(),
            message: None,
            offset: None,
        };
        if answer.flags & NLM_F_ACK_TLVS == 0 {
            return Ok(verdict);
        }
        // Behind the code: the request's header, and unless capped its body.
        let request = rest.first_chunk::<4>().ok_or(CUT_OFF)?;
        let skipped = if answer.flags & NLM_F_CAPPED == 0 {
            align(u32::from_ne_bytes(*request) as usize)
        } else {
            crate::wire::HEADER
        };
        for attr in attributes(rest.get(skipped..).ok_or(CUT_OFF)?) {
            let attr = attr?;
            match attr.kind {
                ERROR_MESSAGE => verdict.message = Some(attr.text().into_owned()),
                ERROR_OFFSET => verdict.offset = Some(attr.u32_ne()?),
                _ => {}
            }
        }
        Ok(verdict)
    }

    /// The same as an error, unless all is well.
    ///
    /// # Errors
    /// [`RequestError::Refused`].
    pub fn into_result(self) -> Result<(), RequestError> {
        if self.errno == 0 {
            return Ok(());
        }
        Err(RequestError::Refused {
            message: self.message,
            source: io::Error::from_raw_os_error(self.errno),
        })
    }
}

/// Requests are numbered from here, so that none is taken for a message of a batch.
const FIRST_SEQUENCE: u32 = 1 << 31;

/// How often an interrupted dump is begun again.
const ATTEMPTS: usize = 5;

/// One side of a conversation with the kernel.
#[derive(Debug)]
pub struct Exchange<T> {
    transport: T,
    sequence: u32,
    /// Answers to an earlier request may still be there to read.
    unfinished: bool,
}

impl<T: Transport> Exchange<T> {
    /// A conversation over this transport.
    pub const fn new(transport: T) -> Self {
        Self {
            transport,
            sequence: FIRST_SEQUENCE,
            unfinished: false,
        }
    }

    /// The transport.
    pub const fn transport(&self) -> &T {
        &self.transport
    }

    /// The transport, to look at what it recorded.
    pub const fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Makes a request of this kind that is answered by an acknowledgement.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn acknowledged(
        &mut self,
        kind: u16,
        flags: u16,
        content: impl FnOnce(&mut Writer),
    ) -> Result<(), RequestError> {
        self.acknowledged_or(kind, flags, content, &mut |_| ())
    }

    /// The same; a refusal is shown to `refusal` as it was received.
    pub(crate) fn acknowledged_or(
        &mut self,
        kind: u16,
        flags: u16,
        content: impl FnOnce(&mut Writer),
        refusal: &mut dyn FnMut(&Message<'_>),
    ) -> Result<(), RequestError> {
        let sequence = self.request(kind, flags | NLM_F_ACK, content)?;
        self.read_or(sequence, &mut |_| Ok(()), false, refusal)
    }

    /// Makes a request of this kind that is answered by one message.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn one<A>(
        &mut self,
        kind: u16,
        content: impl FnOnce(&mut Writer),
        decode: impl Fn(&Message<'_>) -> Result<A, Malformed>,
    ) -> Result<A, RequestError> {
        // The acknowledgement behind the answer tells an absent answer from a late one.
        let sequence = self.request(kind, NLM_F_ACK, content)?;
        let mut answer = None;
        self.read(
            sequence,
            &mut |message| {
                answer = Some(decode(message)?);
                Ok(())
            },
            false,
        )?;
        answer.ok_or(RequestError::Malformed(Malformed("reply: missing")))
    }

    /// Makes a request of this kind that is answered by any number of messages and an
    /// acknowledgement.
    ///
    /// # Errors
    /// See [`RequestError`]. What `each` was shown before a refusal counts.
    pub fn several(
        &mut self,
        kind: u16,
        content: impl FnOnce(&mut Writer),
        each: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<(), RequestError> {
        let sequence = self.request(kind, NLM_F_ACK, content)?;
        self.read(sequence, each, false)
    }

    /// Makes a request of this kind that is answered by a dump.
    ///
    /// # Errors
    /// See [`RequestError`]. What `each` was shown before an error may be incomplete or twice.
    pub fn dump(
        &mut self,
        kind: u16,
        content: impl FnOnce(&mut Writer),
        each: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<(), RequestError> {
        let sequence = self.request(kind, NLM_F_DUMP, content)?;
        self.read(sequence, each, true)
    }

    /// Makes a request of this kind that is answered by a dump, and again if a change interrupts
    /// it. Returns what `decode` made of its parts.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn dump_all<A>(
        &mut self,
        kind: u16,
        content: impl Fn(&mut Writer),
        decode: impl Fn(&Message<'_>, &mut Vec<A>) -> Result<(), Malformed>,
    ) -> Result<Vec<A>, RequestError> {
        self.dump_until(kind, content, decode, |_| false)
    }

    /// The same, but parts that are interrupted and yet the same twice are taken: what changed was
    /// something else. Long dumps would otherwise never end beside a process that writes all the time.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn dump_settled<A: PartialEq + Clone>(
        &mut self,
        kind: u16,
        content: impl Fn(&mut Writer),
        decode: impl Fn(&Message<'_>, &mut Vec<A>) -> Result<(), Malformed>,
    ) -> Result<Vec<A>, RequestError> {
        let mut former: Vec<A> = Vec::new();
        self.dump_until(kind, content, decode, |all| {
            // Nothing twice may as well be twice too early.
            let settled = !all.is_empty() && *all == *former;
            former.clear();
            former.extend_from_slice(all);
            settled
        })
    }

    /// Repeats an interrupted dump for a while, unless `settled` takes what there is.
    fn dump_until<A>(
        &mut self,
        kind: u16,
        content: impl Fn(&mut Writer),
        decode: impl Fn(&Message<'_>, &mut Vec<A>) -> Result<(), Malformed>,
        mut settled: impl FnMut(&[A]) -> bool,
    ) -> Result<Vec<A>, RequestError> {
        let mut attempt = 1;
        loop {
            let mut all = Vec::new();
            let result = self.dump(kind, &content, &mut |message| decode(message, &mut all));
            match result {
                Err(RequestError::Interrupted) if settled(&all) => return Ok(all),
                Err(error) if error.is_interrupted() && attempt < ATTEMPTS => attempt += 1,
                result => return result.map(|()| all),
            }
        }
    }

    /// Sends messages that the caller numbered, as one datagram, and shows every datagram that comes
    /// back to `each` until that says that the last one was there.
    ///
    /// # Errors
    /// What sending or receiving met; answers may then be missing. `sent` tells which it was.
    pub(crate) fn converse(
        &mut self,
        parts: &[&[u8]],
        each: &mut dyn FnMut(io::Result<&[u8]>) -> Next,
    ) -> io::Result<()> {
        self.drain();
        self.transport.send(parts)?;
        self.unfinished = true;
        let mut wait = true;
        loop {
            let datagram = if wait {
                self.transport.receive()
            } else {
                self.transport.receive_now()
            };
            match each(datagram) {
                Next::Wait => wait = true,
                Next::IfThere => wait = false,
                Next::Finished => {
                    self.unfinished = false;
                    return Ok(());
                }
                Next::GiveUp => return Ok(()),
            }
        }
    }

    fn request(
        &mut self,
        kind: u16,
        flags: u16,
        content: impl FnOnce(&mut Writer),
    ) -> Result<u32, RequestError> {
        self.drain();
        self.sequence = self.sequence.wrapping_add(1) | FIRST_SEQUENCE;
        let mut writer = Writer::new();
        let start = writer.begin(kind, flags | NLM_F_REQUEST, self.sequence);
        content(&mut writer);
        writer.end(start);
        if writer.overflowed() {
            return Err(Malformed("request: too long").into());
        }
        self.transport
            .send(&[writer.bytes()])
            .map_err(RequestError::Lost)?;
        self.unfinished = true;
        Ok(self.sequence)
    }

    /// Reads the answers to one request up to the last.
    fn read(
        &mut self,
        sequence: u32,
        each: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
        dump: bool,
    ) -> Result<(), RequestError> {
        self.read_or(sequence, each, dump, &mut |_| ())
    }

    /// The same; a refusal is shown to `refusal` as it was received.
    fn read_or(
        &mut self,
        sequence: u32,
        each: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
        dump: bool,
        refusal: &mut dyn FnMut(&Message<'_>),
    ) -> Result<(), RequestError> {
        let mut interrupted = false;
        loop {
            let datagram = self.transport.receive().map_err(RequestError::Lost)?;
            for message in messages(datagram) {
                let message = message?;
                if message.sequence != sequence {
                    continue;
                }
                interrupted |= dump && message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_ERROR => {
                        let verdict = Verdict::read(&message)?;
                        self.unfinished = false;
                        if verdict.errno != 0 {
                            refusal(&message);
                        }
                        return verdict.into_result();
                    }
                    NLMSG_DONE => {
                        self.unfinished = false;
                        // Behind the mark there may be an error that ended the dump early.
                        if message.body.len() >= 4 {
                            Verdict::read(&Message {
                                flags: 0,
                                ..message
                            })?
                            .into_result()?;
                        }
                        return if interrupted {
                            Err(RequestError::Interrupted)
                        } else {
                            Ok(())
                        };
                    }
                    _ => each(&message)?,
                }
            }
        }
    }

    /// Throws away answers to requests that were given up.
    fn drain(&mut self) {
        while self.unfinished {
            match self.transport.receive_now() {
                Ok(_) => {}
                // The mark of an overrun is taken away by reading it; datagrams may follow.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(_) => self.unfinished = false,
            }
        }
    }
}

/// What to do after a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Wait for another one.
    Wait,
    /// Look whether another one is there already.
    IfThere,
    /// That was the last one.
    Finished,
    /// Stop, though more may come.
    GiveUp,
}
