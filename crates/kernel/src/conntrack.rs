//! Tracked flows: looked at, and removed when what they were translated to is gone.
//!
//! In: a [`Filter`]. Out: the [`Flow`]s that match it, read or removed. The kernel does the
//! matching, so that a large table costs little when few flows match.
//!
//! Which flows are stale is not decided here.

use std::io;

use crate::Family;
use crate::exchange::{Exchange, Next, RequestError, Verdict};
use crate::socket::{Protocol, Socket, Transport};
use crate::wire::{
    Malformed, Message, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NLMSG_ERROR, Writer,
    messages,
};

mod filter;
mod flow;
#[cfg(test)]
mod tests;

pub use filter::{Filter, Match};
pub use flow::{Flow, Tuple};

const NEW: u16 = 0x100;
const GET: u16 = 0x101;
const DELETE: u16 = 0x102;

/// A protocol's own header behind that of a message.
const NFGEN: usize = 4;

/// How often an interrupted dump is begun again.
const ATTEMPTS: usize = 5;

/// Deletions per datagram: enough to spare system calls, few enough that all answers fit.
const CHUNK: usize = 64;

/// A conversation about tracked flows.
#[derive(Debug)]
pub struct Conntrack<T = Socket> {
    exchange: Exchange<T>,
    /// Whether the kernel understands conditions on answers. Not known until asked.
    replies: Option<bool>,
}

/// Flows that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// The flows.
    pub flows: Vec<Flow>,
    /// Whether these are all. The table may change all the time; then some may be missing.
    pub complete: bool,
}

impl Conntrack {
    /// Opens a conversation in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn open() -> io::Result<Self> {
        Socket::open(Protocol::Netfilter).map(Self::new)
    }
}

impl<T: Transport> Conntrack<T> {
    /// A conversation over this transport.
    pub const fn new(transport: T) -> Self {
        Self {
            exchange: Exchange::new(transport),
            replies: None,
        }
    }

    /// The transport, to look at what it recorded.
    pub const fn transport_mut(&mut self) -> &mut T {
        self.exchange.transport_mut()
    }

    /// The flows that match and are `wanted`. Only those are kept, however many there are.
    ///
    /// # Errors
    /// See [`RequestError`]; an interrupted dump is none.
    pub fn flows(
        &mut self,
        filter: &Filter,
        wanted: impl Fn(&Flow) -> bool,
    ) -> Result<Flows, RequestError> {
        let asked = filter.understood(self.understands_replies()?);
        let mut read = Flows::default();
        for _ in 0..ATTEMPTS {
            read.flows.clear();
            let result = self.exchange.dump(
                GET,
                |writer| {
                    writer.raw(&header(filter.family));
                    asked.write(writer);
                },
                &mut |message| {
                    // What could not be asked for is looked at here; before Linux 5.8 all of it.
                    read.flows.extend(
                        read_flow(message)?.filter(|flow| filter.matches(flow) && wanted(flow)),
                    );
                    Ok(())
                },
            );
            match result {
                Ok(()) => {
                    read.complete = true;
                    return Ok(read);
                }
                Err(error) if error.is_interrupted() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Removes exactly these flows. Returns how many of them were still there.
    ///
    /// # Errors
    /// See [`RequestError`]; flows before the one at fault are removed.
    pub fn delete(&mut self, flows: &[Flow]) -> Result<usize, RequestError> {
        let mut deleted = 0;
        for chunk in flows.chunks(CHUNK) {
            deleted += self.delete_chunk(chunk)?;
        }
        Ok(deleted)
    }

    /// Enters a flow, as if its first packet had been seen.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn insert(&mut self, flow: &Flow) -> Result<(), RequestError> {
        self.exchange
            .acknowledged(NEW, NLM_F_CREATE | NLM_F_EXCL, |writer| {
                writer.raw(&header(flow.original.family()));
                flow.write_new(writer);
            })
    }

    /// Whether this kernel understands conditions on answers.
    fn understands_replies(&mut self) -> Result<bool, RequestError> {
        if let Some(known) = self.replies {
            return Ok(known);
        }
        let faulty = self.exchange.dump(
            GET,
            |writer| {
                writer.raw(&header(Family::V4));
                filter::write_faulty_filter(writer);
            },
            &mut |_| Ok(()),
        );
        let known = !was_accepted(faulty)?;
        self.replies = Some(known);
        Ok(known)
    }

    fn delete_chunk(&mut self, flows: &[Flow]) -> Result<usize, RequestError> {
        let mut writer = Writer::new();
        let mut last = 0;
        for flow in flows {
            last += 1;
            let start = writer.begin(DELETE, NLM_F_REQUEST | NLM_F_ACK, last);
            writer.raw(&header(flow.original.family()));
            flow.write_identity(&mut writer);
            writer.end(start);
        }
        let mut answered = 0;
        let mut deleted = 0;
        let mut fault = None;
        self.exchange
            .converse(&[writer.bytes()], &mut |datagram| {
                let read = datagram
                    .map_err(RequestError::Lost)
                    .and_then(|bytes| read_verdicts(bytes, last));
                match read {
                    Err(error) => {
                        fault = Some(error);
                        return Next::GiveUp;
                    }
                    Ok(verdicts) => {
                        for verdict in verdicts {
                            answered += 1;
                            match verdict.into_result() {
                                Ok(()) => deleted += 1,
                                Err(error) if error.is_not_found() => {}
                                Err(error) => drop(fault.get_or_insert(error)),
                            }
                        }
                    }
                }
                if answered == last {
                    Next::Finished
                } else {
                    Next::Wait
                }
            })
            .map_err(RequestError::Lost)?;
        fault.map_or(Ok(deleted), Err)
    }
}

/// Whether the kernel agreed, if it said anything.
fn was_accepted(answer: Result<(), RequestError>) -> Result<bool, RequestError> {
    match answer {
        Ok(()) | Err(RequestError::Interrupted) => Ok(true),
        Err(RequestError::Refused { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn read_verdicts(datagram: &[u8], last: u32) -> Result<Vec<Verdict>, RequestError> {
    let mut verdicts = Vec::new();
    for message in messages(datagram) {
        let message = message?;
        if message.kind == NLMSG_ERROR && (1..=last).contains(&message.sequence) {
            verdicts.push(Verdict::read(&message)?);
        }
    }
    Ok(verdicts)
}

/// `None` if the message is about a flow of another family than ours.
fn read_flow(message: &Message<'_>) -> Result<Option<Flow>, Malformed> {
    if message.kind != NEW {
        return Ok(None);
    }
    Flow::read(message.attributes(NFGEN)?)
}

const fn header(family: Family) -> [u8; NFGEN] {
    [family.number(), 0, 0, 0]
}
