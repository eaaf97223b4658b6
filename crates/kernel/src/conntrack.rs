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
    /// Not known until asked.
    abilities: Option<Abilities>,
}

/// What this kernel can do with filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Abilities {
    /// It understands conditions on answers.
    replies: bool,
    /// It takes a filter with a request to delete. Others read the same request as one to delete
    /// the flow with exactly this tuple.
    delete: bool,
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
            abilities: None,
        }
    }

    /// The transport, to look at what it recorded.
    pub const fn transport_mut(&mut self) -> &mut T {
        self.exchange.transport_mut()
    }

    /// The flows that match.
    ///
    /// # Errors
    /// See [`RequestError`]; an interrupted dump is none.
    pub fn flows(&mut self, filter: &Filter) -> Result<Flows, RequestError> {
        let (asked, _) = filter.understood(self.abilities()?.replies);
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
                    read.flows
                        .extend(read_flow(message)?.filter(|flow| filter.matches(flow)));
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

    /// Removes all flows that match: in one step if the kernel can and understands the filter,
    /// else one by one. Returns how many, if they were counted.
    ///
    /// # Errors
    /// See [`RequestError`]. A filter without conditions is refused: it would remove everything.
    pub fn delete_matching(&mut self, filter: &Filter) -> Result<Option<usize>, RequestError> {
        if filter.is_empty() {
            return Err(RequestError::Malformed(Malformed("filter: no condition")));
        }
        let abilities = self.abilities()?;
        if abilities.delete && filter.understood(abilities.replies).1 {
            self.delete_by_filter(filter)?;
            return Ok(None);
        }
        let flows = self.flows(filter)?.flows;
        self.delete(&flows).map(Some)
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

    fn abilities(&mut self) -> Result<Abilities, RequestError> {
        if let Some(known) = self.abilities {
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
        // No flow can have this tuple, so that nothing is deleted whatever the kernel makes of it:
        // by filter that is a success, by tuple it is not found.
        let delete = self.delete_by_filter(&Filter::nobody());
        let known = Abilities {
            replies: !was_accepted(faulty)?,
            delete: was_accepted(delete)?,
        };
        self.abilities = Some(known);
        Ok(known)
    }

    fn delete_by_filter(&mut self, filter: &Filter) -> Result<(), RequestError> {
        self.exchange.acknowledged(DELETE, 0, |writer| {
            // Version 1 asks the kernel to heed the family also when more than one flow may go;
            // with version 0 some kernels empty the tables of both.
            let [family, _, a, b] = header(filter.family);
            writer.raw(&[family, 1, a, b]);
            filter.write(writer);
        })
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
