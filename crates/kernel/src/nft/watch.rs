//! Hearing of changes to the rules, by whomever they are made.
//!
//! Every change is told with the port of the socket that asked for it, so that our own can be told
//! from those of others. A transaction ends with a new generation, which also names the process.
//!
//! While somebody listens the kernel describes every element of every transaction, and what is not
//! read in time is lost: then [`Event::Missed`] says that anything may have happened.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::batch::NFGEN;
use super::object::Object;
use super::uapi::{GROUP_NFTABLES, msg};
use crate::Family;
use crate::socket::{Protocol, Received, Socket};
use crate::wire::{Malformed, Message, messages};

/// Somebody who listens to all changes of nftables.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
}

/// Something that was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A change.
    Change(Box<Change>),
    /// Something was lost or not understood; look at the rules themselves.
    Missed,
}

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The socket that asked for it; see [`Nft::port`](super::Nft::port).
    pub port: u32,
    /// The family of its table, if it is one of ours.
    pub family: Option<Family>,
    /// Whether the object is gone. If not, it is new or different.
    pub gone: bool,
    /// What was changed.
    pub object: Object,
}

impl Watch {
    /// Listens in the network namespace of the calling thread, from now on.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn open() -> io::Result<Self> {
        let socket = Socket::open(Protocol::Netfilter)?;
        socket.join(GROUP_NFTABLES)?;
        Ok(Self { socket })
    }

    /// The next few events in order; none if nothing happens for so long.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn next(&mut self, patience: Duration) -> io::Result<Vec<Event>> {
        self.hear(patience, |_| true)
    }

    /// The next few events in order, without changes made by the sockets `own`; none if nothing
    /// happens for so long, or only what was expected.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn foreign(&mut self, own: &[u32], patience: Duration) -> io::Result<Vec<Event>> {
        self.hear(patience, |message| {
            message.kind != msg::NEWGEN && !own.contains(&message.port)
        })
    }

    fn hear(
        &mut self,
        patience: Duration,
        pick: impl Fn(&Message<'_>) -> bool,
    ) -> io::Result<Vec<Event>> {
        Ok(match self.socket.listen(patience)? {
            Received::Nothing => Vec::new(),
            Received::Missed => vec![Event::Missed],
            Received::Datagram(datagram) => read(datagram, pick),
        })
    }

    /// The families in which somebody changed a table of this name, other than by the sockets
    /// `own`. All of them when something was lost; none if nothing happens for so long.
    ///
    /// What exactly was changed is not looked at, so that it costs little to hear of one's own
    /// changes.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn others(
        &mut self,
        table: &str,
        own: &[u32],
        patience: Duration,
    ) -> io::Result<BTreeSet<Family>> {
        Ok(match self.socket.listen(patience)? {
            Received::Nothing => BTreeSet::new(),
            Received::Missed => BTreeSet::from([Family::V4, Family::V6]),
            Received::Datagram(datagram) => messages(datagram)
                .filter_map(Result::ok)
                .filter(|message| !own.contains(&message.port) && is_about(message, table))
                .filter_map(|message| Family::from_number(*message.body.first()?))
                .collect(),
        })
    }
}

/// Every object names its table in its first kind of attribute; only generations have none.
fn is_about(message: &Message<'_>, table: &str) -> bool {
    const TABLE: u16 = 1;
    let Ok(attributes) = message.attributes(NFGEN) else {
        return false;
    };
    message.kind != msg::NEWGEN
        && attributes
            .filter_map(Result::ok)
            .any(|attribute| attribute.kind == TABLE && attribute.text() == table)
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub(super) fn read(datagram: &[u8], pick: impl Fn(&Message<'_>) -> bool) -> Vec<Event> {
    messages(datagram)
        .filter(|message| message.as_ref().map_or(true, &pick))
        .map(|message| {
            message
                .and_then(|message| read_one(&message))
                .map_or(Event::Missed, |change| Event::Change(Box::new(change)))
        })
        .collect()
}

fn read_one(message: &Message<'_>) -> Result<Change, Malformed> {
    let object = Object::read(message)?;
    let family = message.body.first().copied();
    Ok(Change {
        port: message.port,
        family: family.and_then(Family::from_number),
        gone: matches!(
            message.kind,
            msg::DELTABLE | msg::DELCHAIN | msg::DELRULE | msg::DELSET | msg::DELSETELEM
        ),
        object,
    })
}
