//! Sets that rules of iptables can name.
//!
//! In: sets to create, rename, swap and destroy, and entries to add and delete. Out: what there
//! is, as [`Entry`]s; and which entries the kernel refused.
//!
//! Which sets there should be is not decided here.

use std::io;
use std::ops::RangeInclusive;

use crate::Family;
use crate::exchange::{Exchange, Refused, RequestError};
use crate::socket::{Protocol, Socket, Transport};
use crate::wire::{Attribute, Malformed, Message, NLM_F_EXCL, Writer};

mod entry;
mod errors;
mod listing;
#[cfg(test)]
mod tests;

pub use entry::{Entry, IpPort, Network, Type};
pub use listing::{Header, Listing};

const SUBSYSTEM: u16 = 6 << 8;
const CREATE: u16 = SUBSYSTEM | 2;
const DESTROY: u16 = SUBSYSTEM | 3;
const FLUSH: u16 = SUBSYSTEM | 4;
const RENAME: u16 = SUBSYSTEM | 5;
const SWAP: u16 = SUBSYSTEM | 6;
const LIST: u16 = SUBSYSTEM | 7;
const ADD: u16 = SUBSYSTEM | 9;
const DELETE: u16 = SUBSYSTEM | 0xa;
const TYPE: u16 = SUBSYSTEM | 0xd;

const VERSION: u16 = 1;
const NAME: u16 = 2;
const TYPE_NAME: u16 = 3;
/// The other name of a renaming or swapping has the number of the type's name.
const OTHER_NAME: u16 = 3;
const REVISION: u16 = 4;
const FAMILY: u16 = 5;
const FLAGS: u16 = 6;
const DATA: u16 = 7;
const ENTRIES: u16 = 8;
const LINE: u16 = 9;
const OLDEST_REVISION: u16 = 10;

const PORT: u16 = 4;
const PORT_TO: u16 = 5;
const HASH_SIZE: u16 = 18;
const MAX_ELEMENTS: u16 = 19;

/// Marks an attribute whose number is in network order.
const NETWORK_ORDER: u16 = 0x4000;

/// In a request for a listing: no entries.
const ONLY_HEADERS: u32 = 0x4;

/// The version of the protocol that every kernel speaks.
const PROTOCOL_VERSION: u8 = 6;

/// A protocol's own header behind that of a message. It wants some family, and does not use it.
const HEADER: [u8; 4] = [2, 0, 0, 0];

/// Entries per request. A list of the longest fits into an attribute's 64 KiB.
const CHUNK: usize = 500;

/// Slots that a hash begins with. It grows by itself.
const FIRST_SIZE: u32 = 1024;

/// Ports that a bitmap has room for.
const BITMAP: RangeInclusive<u16> = 0..=u16::MAX;

/// A set to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name, at most 31 bytes.
    pub name: String,
    /// What it consists of.
    pub kind: Type,
    /// The family of its addresses. Ports have none: for [`Type::BitmapPort`] it is not used.
    pub family: Family,
    /// How many entries it may have; for [`Type::BitmapPort`] it is not used: that has all ports.
    pub max_entries: u32,
}

/// A conversation about sets.
#[derive(Debug)]
pub struct Ipset<T = Socket> {
    exchange: Exchange<T>,
}

impl Ipset {
    /// Opens a conversation in the network namespace of the calling thread; `None` if this kernel
    /// has no netfilter, and so no sets.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn open() -> io::Result<Option<Self>> {
        match Socket::open(Protocol::Netfilter) {
            Ok(socket) => Ok(Some(Self::new(socket))),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl<T: Transport> Ipset<T> {
    /// A conversation over this transport.
    pub const fn new(transport: T) -> Self {
        Self {
            exchange: Exchange::new(transport),
        }
    }

    /// The transport, to look at what it recorded.
    pub const fn transport_mut(&mut self) -> &mut T {
        self.exchange.transport_mut()
    }

    /// The revisions of a type that this kernel has, loaded first if need be; `None` if it has none.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn revisions(
        &mut self,
        kind: Type,
        family: Family,
    ) -> Result<Option<RangeInclusive<u8>>, RequestError> {
        let answer = self.exchange.one(
            TYPE,
            |writer| {
                begin(writer);
                writer.text(TYPE_NAME, kind.name());
                writer.u8(FAMILY, family_number(kind, family));
            },
            read_revisions,
        );
        match answer.map_err(errors::explained) {
            Ok(revisions) => Ok(Some(revisions)),
            Err(error) if is_unsupported(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a set; one of the same shape that is there already stays as it is.
    ///
    /// # Errors
    /// See [`RequestError`]; `AlreadyExists` if a set of another shape has the name, `Unsupported`
    /// if this kernel has no sets of this type.
    pub fn create(&mut self, set: &Set) -> Result<(), RequestError> {
        self.create_with(set, 0)
    }

    /// Creates a set that must not be there.
    ///
    /// # Errors
    /// The same; `AlreadyExists` if a set has the name.
    pub fn create_new(&mut self, set: &Set) -> Result<(), RequestError> {
        self.create_with(set, NLM_F_EXCL)
    }

    fn create_with(&mut self, set: &Set, flags: u16) -> Result<(), RequestError> {
        let Some(revisions) = self.revisions(set.kind, set.family)? else {
            return Err(RequestError::Refused {
                message: Some(format!("no sets of type {}", set.kind.name())),
                source: io::ErrorKind::Unsupported.into(),
            });
        };
        let revision = set
            .kind
            .revision()
            .clamp(*revisions.start(), *revisions.end());
        self.request(CREATE, flags, |writer| {
            writer.text(NAME, &set.name);
            writer.text(TYPE_NAME, set.kind.name());
            writer.u8(REVISION, revision);
            writer.u8(FAMILY, family_number(set.kind, set.family));
            writer.nest(DATA, |writer| {
                if set.kind == Type::BitmapPort {
                    writer.u16_be(PORT | NETWORK_ORDER, *BITMAP.start());
                    writer.u16_be(PORT_TO | NETWORK_ORDER, *BITMAP.end());
                } else {
                    writer.u32_be(HASH_SIZE | NETWORK_ORDER, FIRST_SIZE);
                    writer.u32_be(MAX_ELEMENTS | NETWORK_ORDER, set.max_entries);
                }
            });
        })
    }

    /// Destroys a set with everything in it. Whether there was one: a kernel without sets has none.
    ///
    /// # Errors
    /// See [`RequestError`]; a set that a rule names is `ResourceBusy`.
    pub fn destroy(&mut self, name: &str) -> Result<bool, RequestError> {
        // Without this, newer kernels are content with a set that is not there.
        let strictly = NLM_F_EXCL;
        match self.request(DESTROY, strictly, |writer| writer.text(NAME, name)) {
            Ok(()) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes all entries of a set.
    ///
    /// # Errors
    /// See [`RequestError`]; `NotFound` if there is no such set.
    pub fn flush(&mut self, name: &str) -> Result<(), RequestError> {
        self.request(FLUSH, 0, |writer| writer.text(NAME, name))
    }

    /// Gives a set another name. No rule may use it, and no set may have that name.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), RequestError> {
        self.request(RENAME, 0, |writer| {
            writer.text(NAME, from);
            writer.text(OTHER_NAME, to);
        })
    }

    /// Exchanges the names of two sets of one type and family at once. Rules that use a name use
    /// the other set from then on: a full set is replaced so by a larger copy.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn swap(&mut self, one: &str, other: &str) -> Result<(), RequestError> {
        self.request(SWAP, 0, |writer| {
            writer.text(NAME, one);
            writer.text(OTHER_NAME, other);
        })
    }

    /// Adds these entries; one that is there already stays. Returns those that were refused:
    /// `StorageFull` if there is no room.
    ///
    /// # Errors
    /// See [`RequestError`]; entries before the one at fault may have been added.
    pub fn add(&mut self, name: &str, entries: &[Entry]) -> Result<Vec<Refused>, RequestError> {
        self.change(ADD, name, entries)
    }

    /// Deletes these entries; one that is not there needs none. Returns those that were refused.
    ///
    /// # Errors
    /// See [`RequestError`]; entries before the one at fault may have been deleted.
    pub fn delete(&mut self, name: &str, entries: &[Entry]) -> Result<Vec<Refused>, RequestError> {
        self.change(DELETE, name, entries)
    }

    /// What a set consists of, and its entries; `None` if there is no such set.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn list(&mut self, name: &str) -> Result<Option<Listing>, RequestError> {
        match self.dump(Some(name), 0) {
            Ok(listings) => Ok(listings.into_iter().find(|set| set.header.name == name)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All sets of this network namespace, whoever made them, without their entries.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn headers(&mut self) -> Result<Vec<Header>, RequestError> {
        match self.dump(None, ONLY_HEADERS) {
            Ok(listings) => Ok(listings.into_iter().map(|set| set.header).collect()),
            Err(error) if is_absent(&error) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn dump(&mut self, name: Option<&str>, flags: u32) -> Result<Vec<Listing>, RequestError> {
        let mut parts = self
            .exchange
            .dump_all(
                LIST,
                |writer| {
                    begin(writer);
                    if let Some(name) = name {
                        writer.text(NAME, name);
                    }
                    if flags != 0 {
                        writer.u32_be(FLAGS | NETWORK_ORDER, flags);
                    }
                },
                |message, parts: &mut Vec<Listing>| listing::read(message, parts),
            )
            .map_err(errors::explained)?;
        for part in &mut parts {
            part.entries.sort_unstable();
            part.entries.dedup();
        }
        Ok(parts)
    }

    fn request(
        &mut self,
        kind: u16,
        flags: u16,
        content: impl FnOnce(&mut Writer),
    ) -> Result<(), RequestError> {
        self.exchange
            .acknowledged(kind, flags, |writer| {
                begin(writer);
                content(writer);
            })
            .map_err(errors::explained)
    }

    fn change(
        &mut self,
        kind: u16,
        name: &str,
        entries: &[Entry],
    ) -> Result<Vec<Refused>, RequestError> {
        let mut refused = Vec::new();
        let mut done = 0;
        while done < entries.len() {
            let chunk = &entries[done..entries.len().min(done + CHUNK)];
            match self.change_chunk(kind, name, chunk) {
                Ok(()) => done += chunk.len(),
                // Everything before the one at fault is done, and nothing behind it.
                Err((error, Some(at))) if at < chunk.len() => {
                    let index = done + at;
                    refused.push(Refused { index, error });
                    done = index + 1;
                }
                Err((error, _)) => return Err(error),
            }
        }
        Ok(refused)
    }

    /// The error comes with the number of the entry that is at fault, if it is one.
    fn change_chunk(
        &mut self,
        kind: u16,
        name: &str,
        entries: &[Entry],
    ) -> Result<(), (RequestError, Option<usize>)> {
        let mut at = None;
        let result = self.exchange.acknowledged_or(
            kind,
            0,
            |writer| {
                begin(writer);
                writer.text(NAME, name);
                // Has the kernel say which entry is at fault.
                writer.u32_be(LINE | NETWORK_ORDER, 0);
                writer.nest(ENTRIES, |writer| {
                    for (line, entry) in (1..).zip(entries) {
                        writer.nest(DATA, |writer| entry.write(writer, line));
                    }
                });
            },
            &mut |refusal| at = read_line(refusal),
        );
        result.map_err(|error| (errors::explained(error), at))
    }
}

/// What every request begins with.
fn begin(writer: &mut Writer) {
    writer.raw(&HEADER);
    writer.u8(VERSION, PROTOCOL_VERSION);
}

/// Sets of ports are of no family.
const fn family_number(kind: Type, family: Family) -> u8 {
    match kind {
        Type::BitmapPort => 0,
        _ => family.number(),
    }
}

/// Whether there is no such set, perhaps because this kernel has none at all: then nobody listens
/// to messages about them.
fn is_absent(error: &RequestError) -> bool {
    error.is_not_found() || is_invalid(error)
}

/// Whether there is no such type, or nobody who knows types.
fn is_unsupported(error: &RequestError) -> bool {
    is_invalid(error)
        || matches!(error, RequestError::Refused { source, .. }
            if source.kind() == io::ErrorKind::Unsupported)
}

fn is_invalid(error: &RequestError) -> bool {
    matches!(error, RequestError::Refused { source, .. }
        if source.raw_os_error() == Some(libc::EINVAL))
}

fn read_revisions(message: &Message<'_>) -> Result<RangeInclusive<u8>, Malformed> {
    let (mut newest, mut oldest) = (None, None);
    for attr in message.attributes(HEADER.len())? {
        let attr = attr?;
        match attr.kind {
            REVISION => newest = Some(attr.u8()?),
            OLDEST_REVISION => oldest = Some(attr.u8()?),
            _ => {}
        }
    }
    let newest = newest.ok_or(Malformed("type of set: no revision"))?;
    let oldest = oldest.unwrap_or(newest);
    if oldest > newest {
        return Err(Malformed("type of set: wrong revisions"));
    }
    Ok(oldest..=newest)
}

/// Which entry is at fault, out of the request that the kernel repeats with an error.
fn read_line(refusal: &Message<'_>) -> Option<usize> {
    const REQUEST: usize = 4 + crate::wire::HEADER + HEADER.len();
    let attributes = refusal.attributes(REQUEST).ok()?;
    let line = attributes
        .flatten()
        .find(|attr| attr.kind == LINE)
        .and_then(|attr: Attribute<'_>| attr.u32_be().ok())?;
    usize::try_from(line.checked_sub(1)?).ok()
}
