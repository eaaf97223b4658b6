//! Interfaces and addresses of this machine, and their changes.
//!
//! Out: [`Link`]s and [`Address`]es, once or as [`Event`]s. In: links and addresses to create and to
//! delete. Of routes only the [`Way`] to an address is read, and a [`Diversion`] written.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::exchange::{Exchange, RequestError};
use crate::socket::{Protocol, Received, Socket, Transport};
use crate::wire::{Attribute, Attributes, Malformed, Message, attributes, messages};

mod change;
mod policy;
#[cfg(test)]
mod tests;

pub use policy::{Diversion, Way};

const NEWLINK: u16 = 16;
const DELLINK: u16 = 17;
const GETLINK: u16 = 18;
const NEWADDR: u16 = 20;
const DELADDR: u16 = 21;
const GETADDR: u16 = 22;

const LINK_HEADER: usize = 16;
const LINK_NAME: u16 = 3;
const LINK_INFO: u16 = 18;
const LINK_INFO_KIND: u16 = 1;

const ADDRESS_HEADER: usize = 8;
const ADDRESS: u16 = 1;
const ADDRESS_LOCAL: u16 = 2;
const ADDRESS_FLAGS: u16 = 8;

const GROUP_LINK: u32 = 1;
const GROUP_IPV4_ADDRESS: u32 = 5;
const GROUP_IPV6_ADDRESS: u32 = 9;

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number for it.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// What made it: `dummy`, `veth` and so on; nothing for what is built in.
    pub kind: Option<String>,
    /// Bits; [`Link::UP`] and so on.
    pub flags: u32,
}

impl Link {
    /// It was switched on.
    pub const UP: u32 = 0x1;
    /// It leads to this machine.
    pub const LOOPBACK: u32 = 0x8;
    /// It is connected.
    pub const RUNNING: u32 = 0x40;
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address of this machine.
    pub address: IpAddr,
    /// Bits of it that name the network.
    pub prefix: u8,
    /// The number of its interface.
    pub link: u32,
    /// How far it is known: 0 everywhere, 253 on the link, 254 on this machine.
    pub scope: u8,
    /// Bits; [`Address::TENTATIVE`] and so on.
    pub flags: u32,
}

impl Address {
    /// Another host has the same one.
    pub const DUPLICATE: u32 = 0x8;
    /// Not to be used for what is new.
    pub const DEPRECATED: u32 = 0x20;
    /// It is not yet sure that nobody else has it.
    pub const TENTATIVE: u32 = 0x40;
}

/// A conversation about interfaces and addresses.
#[derive(Debug)]
pub struct Route<T = Socket> {
    exchange: Exchange<T>,
}

impl Route {
    /// Opens a conversation in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn open() -> io::Result<Self> {
        Socket::open(Protocol::Route).map(Self::new)
    }
}

impl<T: Transport> Route<T> {
    /// A conversation over this transport.
    pub const fn new(transport: T) -> Self {
        Self {
            exchange: Exchange::new(transport),
        }
    }

    /// All interfaces.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn links(&mut self) -> Result<Vec<Link>, RequestError> {
        self.exchange.dump_all(
            GETLINK,
            |writer| writer.raw(&[0; LINK_HEADER]),
            |message, all| {
                if message.kind == NEWLINK {
                    all.push(read_link(message)?);
                }
                Ok(())
            },
        )
    }

    /// All addresses of both families.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn addresses(&mut self) -> Result<Vec<Address>, RequestError> {
        self.exchange.dump_all(
            GETADDR,
            |writer| writer.raw(&[0; ADDRESS_HEADER]),
            |message, all| {
                if message.kind == NEWADDR {
                    all.extend(read_address(message)?);
                }
                Ok(())
            },
        )
    }
}

/// One notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An interface is new or different.
    Link(Link),
    /// An interface is gone.
    LinkGone(Link),
    /// An address is new or different.
    Address(Address),
    /// An address is gone.
    AddressGone(Address),
    /// Something was lost or not understood; ask for everything again.
    Missed,
}

/// A subscription to changes of interfaces and addresses.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
}

impl Watch {
    /// Listens in the network namespace of the calling thread, from now on.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn open() -> io::Result<Self> {
        Self::of(&[GROUP_LINK, GROUP_IPV4_ADDRESS, GROUP_IPV6_ADDRESS])
    }

    /// The same for addresses alone: interfaces come and go with every pod.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn addresses() -> io::Result<Self> {
        Self::of(&[GROUP_IPV4_ADDRESS, GROUP_IPV6_ADDRESS])
    }

    fn of(groups: &[u32]) -> io::Result<Self> {
        let socket = Socket::open(Protocol::Route)?;
        for group in groups {
            socket.join(*group)?;
        }
        Ok(Self { socket })
    }

    /// The next few events in order; none if nothing happens for so long.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn next(&mut self, timeout: Duration) -> io::Result<Vec<Event>> {
        Ok(match self.socket.listen(timeout)? {
            Received::Nothing => Vec::new(),
            Received::Missed => vec![Event::Missed],
            Received::Datagram(datagram) => read_events(datagram),
        })
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn read_events(datagram: &[u8]) -> Vec<Event> {
    messages(datagram)
        .filter_map(|message| {
            message
                .and_then(|message| read_event(&message))
                .unwrap_or(Some(Event::Missed))
        })
        .collect()
}

/// `None` for what is neither about interfaces nor about addresses of our families.
fn read_event(message: &Message<'_>) -> Result<Option<Event>, Malformed> {
    Ok(match message.kind {
        NEWLINK => Some(Event::Link(read_link(message)?)),
        DELLINK => Some(Event::LinkGone(read_link(message)?)),
        NEWADDR => read_address(message)?.map(Event::Address),
        DELADDR => read_address(message)?.map(Event::AddressGone),
        _ => None,
    })
}

fn read_link(message: &Message<'_>) -> Result<Link, Malformed> {
    let header: &[u8; LINK_HEADER] = message
        .body
        .first_chunk()
        .ok_or(Malformed("link: truncated"))?;
    let [_, _, _, _, i0, i1, i2, i3, f0, f1, f2, f3, ..] = *header;
    let mut link = Link {
        index: u32::from_ne_bytes([i0, i1, i2, i3]),
        name: String::new(),
        kind: None,
        flags: u32::from_ne_bytes([f0, f1, f2, f3]),
    };
    for attr in message.attributes(LINK_HEADER)? {
        let attr = attr?;
        match attr.kind {
            LINK_NAME => link.name = attr.text().into_owned(),
            LINK_INFO => link.kind = read_kind(attributes(attr.payload))?,
            _ => {}
        }
    }
    Ok(link)
}

fn read_kind(info: Attributes<'_>) -> Result<Option<String>, Malformed> {
    for attr in info {
        let attr = attr?;
        if attr.kind == LINK_INFO_KIND {
            return Ok(Some(attr.text().into_owned()));
        }
    }
    Ok(None)
}

fn read_address(message: &Message<'_>) -> Result<Option<Address>, Malformed> {
    let header: &[u8; ADDRESS_HEADER] = message
        .body
        .first_chunk()
        .ok_or(Malformed("address: truncated"))?;
    let [_, prefix, flags, scope, a, b, c, d] = *header;
    let (mut local, mut given, mut flags) = (None, None, u32::from(flags));
    for attr in message.attributes(ADDRESS_HEADER)? {
        let attr = attr?;
        match attr.kind {
            // On a line between two machines the other attribute is the far end.
            ADDRESS_LOCAL => local = read_ip(&attr),
            ADDRESS => given = read_ip(&attr),
            ADDRESS_FLAGS => flags = attr.u32_ne()?,
            _ => {}
        }
    }
    Ok(local.or(given).map(|address| Address {
        address,
        prefix,
        link: u32::from_ne_bytes([a, b, c, d]),
        scope,
        flags,
    }))
}

fn read_ip(attr: &Attribute<'_>) -> Option<IpAddr> {
    let v4 = attr.array::<4>().map(|bytes| Ipv4Addr::from(bytes).into());
    let v6 = || attr.array::<16>().map(|bytes| Ipv6Addr::from(bytes).into());
    v4.or_else(|_| v6()).ok()
}
