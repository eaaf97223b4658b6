//! Notifications of changes to the rules, whoever makes them.
//!
//! Every notification names the port of the socket that asked for the change, so that our own can
//! be left out. A transaction ends with a new generation, which also names the process.
//!
//! While anybody listens the kernel describes every element of every transaction, and what is not
//! read in time is lost: then [`Event::Missed`] says that anything may have happened.

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::batch::NFGEN;
use super::object::Object;
use super::uapi::{GROUP_NFTABLES, msg};
use super::writers::Writers;
use crate::Family;
use crate::socket::{Protocol, Received, Socket};
use crate::wire::{Malformed, Message, messages};

/// Listens to changes of nftables.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
}

/// What a notification says.
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

    /// The same, without changes that these writers make: they do not even wake the listener. Who
    /// joins them later is not among them.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn external(writers: &Writers) -> io::Result<Self> {
        let socket = Socket::open(Protocol::Netfilter)?;
        // Before joining: nothing of ours may slip in.
        socket.ignore_senders(&writers.ports())?;
        socket.join(GROUP_NFTABLES)?;
        Ok(Self { socket })
    }

    /// The next few events in order; none if nothing happens until the timeout.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn next(&mut self, timeout: Duration) -> io::Result<Vec<Event>> {
        self.receive(timeout, |_| true)
    }

    /// The next few events in tables for which `concerns` holds, and new generations, in order;
    /// none if nothing happens until the timeout, or only elsewhere. What happens elsewhere costs
    /// next to nothing.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn next_in(
        &mut self,
        timeout: Duration,
        concerns: impl Fn(Family, &str) -> bool,
    ) -> io::Result<Vec<Event>> {
        self.receive(timeout, |message| {
            message.kind == msg::NEWGEN
                || table_of(message).is_some_and(|(family, table)| concerns(family, &table))
        })
    }

    fn receive(
        &mut self,
        timeout: Duration,
        pick: impl Fn(&Message<'_>) -> bool,
    ) -> io::Result<Vec<Event>> {
        Ok(match self.socket.listen(timeout)? {
            Received::Nothing => Vec::new(),
            Received::Missed => vec![Event::Missed],
            Received::Datagram(datagram) => read(datagram, pick),
        })
    }
}

/// Every object names its table in its first kind of attribute.
fn table_of<'m>(message: &Message<'m>) -> Option<(Family, Cow<'m, str>)> {
    const TABLE: u16 = 1;
    let family = Family::from_number(*message.body.first()?)?;
    let attributes = message.attributes(NFGEN).ok()?;
    let mut attributes = attributes.filter_map(Result::ok);
    let name = attributes.find(|attribute| attribute.kind == TABLE)?;
    Some((family, name.text()))
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
