//! Tracked flows: looked at, and removed when what they were translated to is gone.
//!
//! In: a [`Filter`]. Out: the [`Flow`]s that match it, read or removed. The kernel does the
//! matching, so that a large table costs little when few flows match.
//!
//! Which flows are stale is not decided here.

use std::io;

use crate::Family;
use crate::exchange::{Exchange, RequestError};
use crate::socket::{Protocol, Socket, Transport};
use crate::wire::{Malformed, Message, NLM_F_CREATE, NLM_F_EXCL};

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
    /// See [`RequestError`]; the other flows are removed.
    pub fn delete(&mut self, flows: &[Flow]) -> Result<usize, RequestError> {
        let refused = self.exchange.acknowledged_each(
            flows,
            |_| (DELETE, 0),
            |flow, writer| {
                writer.raw(&header(flow.original.family()));
                flow.write_identity(writer);
            },
        )?;
        let deleted = flows.len() - refused.len();
        let fault = refused.into_iter().find(|r| !r.error.is_not_found());
        fault.map_or(Ok(deleted), |refused| Err(refused.error))
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
}

/// Whether the kernel agreed, if it said anything.
fn was_accepted(answer: Result<(), RequestError>) -> Result<bool, RequestError> {
    match answer {
        Ok(()) | Err(RequestError::Interrupted) => Ok(true),
        Err(RequestError::Refused { .. }) => Ok(false),
        Err(error) => Err(error),
    }
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
