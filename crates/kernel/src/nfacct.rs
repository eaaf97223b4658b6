//! Counters that rules of iptables can name.
//!
//! In: a name. Out: what was counted under it. A counter belongs to the network namespace and
//! outlives the rules that use it.

use std::io;

use crate::exchange::{Exchange, RequestError};
use crate::socket::{Protocol, Socket, Transport};
use crate::wire::{Malformed, Message, NLM_F_CREATE, NLM_F_EXCL};

const NEW: u16 = 0x700;
const GET: u16 = 0x701;

const NAME: u16 = 1;
const PACKETS: u16 = 2;
const BYTES: u16 = 3;

/// A protocol's own header behind that of a message: any family, version 0.
const HEADER: [u8; 4] = [0; 4];

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A conversation about counters.
#[derive(Debug)]
pub struct Nfacct<T = Socket> {
    exchange: Exchange<T>,
}

impl Nfacct {
    /// Opens a conversation in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn open() -> io::Result<Self> {
        Socket::open(Protocol::Netfilter).map(Self::new)
    }
}

impl<T: Transport> Nfacct<T> {
    /// A conversation over this transport.
    pub const fn new(transport: T) -> Self {
        Self {
            exchange: Exchange::new(transport),
        }
    }

    /// What was counted under this name; `None` if there is no such counter.
    ///
    /// # Errors
    /// See [`RequestError`]; a kernel without counters refuses.
    pub fn get(&mut self, name: &str) -> Result<Option<Count>, RequestError> {
        let result = self.exchange.one(
            GET,
            |writer| {
                writer.raw(&HEADER);
                writer.text(NAME, name);
            },
            read,
        );
        match result {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes sure that there is a counter with this name.
    ///
    /// # Errors
    /// See [`RequestError`]; a kernel without counters refuses.
    pub fn ensure(&mut self, name: &str) -> Result<(), RequestError> {
        if self.get(name)?.is_some() {
            return Ok(());
        }
        let result = self
            .exchange
            .acknowledged(NEW, NLM_F_CREATE | NLM_F_EXCL, |writer| {
                writer.raw(&HEADER);
                writer.text(NAME, name);
            });
        match result {
            // Another process was quicker.
            Err(RequestError::Refused { source, .. })
                if source.kind() == io::ErrorKind::AlreadyExists =>
            {
                Ok(())
            }
            result => result,
        }
    }
}

fn read(message: &Message<'_>) -> Result<Count, Malformed> {
    let mut count = Count::default();
    for attribute in message.attributes(HEADER.len())? {
        let attribute = attribute?;
        match attribute.kind {
            PACKETS => count.packets = attribute.u64_be()?,
            BYTES => count.bytes = attribute.u64_be()?,
            _ => {}
        }
    }
    Ok(count)
}
