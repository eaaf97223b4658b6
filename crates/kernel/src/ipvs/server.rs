//! Virtual servers and their destinations, as they are sent and received.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::Family;
use crate::ipvs::stats::{self, Stats};
use crate::wire::{Attribute, Malformed, Writer};

const SERVER_FAMILY: u16 = 1;
const SERVER_PROTOCOL: u16 = 2;
const SERVER_ADDRESS: u16 = 3;
const SERVER_PORT: u16 = 4;
const SERVER_MARK: u16 = 5;
const SERVER_SCHEDULER: u16 = 6;
const SERVER_FLAGS: u16 = 7;
const SERVER_TIMEOUT: u16 = 8;
const SERVER_NETMASK: u16 = 9;
const SERVER_STATS: u16 = 10;
const SERVER_STATS64: u16 = 12;

const DESTINATION_ADDRESS: u16 = 1;
const DESTINATION_PORT: u16 = 2;
const DESTINATION_METHOD: u16 = 3;
const DESTINATION_WEIGHT: u16 = 4;
const DESTINATION_UPPER: u16 = 5;
const DESTINATION_LOWER: u16 = 6;
const DESTINATION_ACTIVE: u16 = 7;
const DESTINATION_INACTIVE: u16 = 8;
const DESTINATION_PERSISTENT: u16 = 9;
const DESTINATION_STATS: u16 = 10;
const DESTINATION_FAMILY: u16 = 11;
const DESTINATION_STATS64: u16 = 12;

/// Where clients find a virtual server. No two have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerKey {
    /// TCP, UDP or SCTP, by its number.
    pub protocol: u8,
    /// The virtual address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
}

/// A virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Where clients find it.
    pub key: ServerKey,
    /// How the kernel chooses a destination: `rr` and so on.
    pub scheduler: String,
    /// Bits; [`Server::PERSISTENT`] and so on.
    pub flags: u32,
    /// For how many seconds a client keeps its destination. Only with [`Server::PERSISTENT`].
    pub timeout: u32,
}

impl Server {
    /// A client keeps its destination for a while.
    pub const PERSISTENT: u32 = 0x1;
    /// The kernel's own mark of a server that is in use. Never part of [`Server::flags`].
    const HASHED: u32 = 0x2;
    /// Every packet is scheduled on its own.
    pub const ONE_PACKET: u32 = 0x4;
    /// First of the three flags whose meaning the scheduler decides.
    pub const SCHEDULER_1: u32 = 0x8;
    /// The second. For `sh` and `mh`: the source port counts.
    pub const SCHEDULER_2: u32 = 0x10;
    /// The third.
    pub const SCHEDULER_3: u32 = 0x20;
}

/// A destination of a virtual server, reached by translation of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its share of connections. With 0 it gets no new ones.
    pub weight: u32,
}

/// A virtual server as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// One with an address.
    Server(Server),
    /// One that takes packets with a firewall mark instead. Never ours.
    Mark {
        /// The family of its clients.
        family: Family,
        /// The mark.
        mark: u32,
    },
}

/// A destination as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The destination.
    pub destination: Destination,
    /// How packets reach it; [`Counted::MASQUERADE`] for ours.
    pub method: u32,
    /// Established connections.
    pub active: u32,
    /// Connections in every other state, all of UDP included.
    pub inactive: u32,
    /// Clients that keep this destination.
    pub persistent: u32,
}

impl Counted {
    /// Addresses are translated.
    pub const MASQUERADE: u32 = 0;
    const METHOD_MASK: u32 = 0x7;
}

/// As people write it: `10.96.0.10:80/TCP`.
impl fmt::Display for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let socket = SocketAddr::new(self.address, self.port);
        match self.protocol {
            6 => write!(f, "{socket}/TCP"),
            17 => write!(f, "{socket}/UDP"),
            132 => write!(f, "{socket}/SCTP"),
            other => write!(f, "{socket}/{other}"),
        }
    }
}

impl ServerKey {
    /// As much of a server as finds it.
    pub(super) fn write(&self, writer: &mut Writer) {
        let family = u16::from(family_of(self.address).number());
        writer.attr(SERVER_FAMILY, &family.to_ne_bytes());
        let protocol = u16::from(self.protocol);
        writer.attr(SERVER_PROTOCOL, &protocol.to_ne_bytes());
        write_address(writer, SERVER_ADDRESS, self.address);
        writer.u16_be(SERVER_PORT, self.port);
    }
}

impl Server {
    pub(super) fn write(&self, writer: &mut Writer) {
        self.key.write(writer);
        writer.text(SERVER_SCHEDULER, &self.scheduler);
        let mut flags = [0xff; 8];
        flags[..4].copy_from_slice(&self.flags.to_ne_bytes());
        writer.attr(SERVER_FLAGS, &flags);
        writer.u32_ne(SERVER_TIMEOUT, self.timeout);
        // A mask for one family, a length for the other.
        let netmask = match self.key.address {
            IpAddr::V4(_) => u32::MAX,
            IpAddr::V6(_) => 128,
        };
        writer.u32_ne(SERVER_NETMASK, netmask);
    }
}

impl Destination {
    pub(super) fn write(&self, writer: &mut Writer) {
        write_destination_key(writer, self.address, self.port);
        writer.u32_ne(DESTINATION_METHOD, Counted::MASQUERADE);
        writer.u32_ne(DESTINATION_WEIGHT, self.weight);
        writer.u32_ne(DESTINATION_UPPER, 0);
        writer.u32_ne(DESTINATION_LOWER, 0);
    }
}

/// As much of a destination as finds it.
pub(super) fn write_destination_key(writer: &mut Writer, address: IpAddr, port: u16) {
    write_address(writer, DESTINATION_ADDRESS, address);
    writer.u16_be(DESTINATION_PORT, port);
    let family = u16::from(family_of(address).number());
    writer.attr(DESTINATION_FAMILY, &family.to_ne_bytes());
}

/// Reads a server. `None` if it is neither for addresses of our families nor for a mark.
pub(super) fn read_server(server: &Attribute<'_>) -> Result<Option<Listed>, Malformed> {
    let (mut family, mut address, mut mark) = (None, None, None);
    let (mut protocol, mut port) = (0, 0);
    let (mut scheduler, mut flags, mut timeout) = (String::new(), 0, 0);
    for attr in server.nested() {
        let attr = attr?;
        match attr.kind {
            SERVER_FAMILY => family = read_family(&attr)?,
            SERVER_PROTOCOL => protocol = u16::from_ne_bytes(attr.array()?),
            SERVER_ADDRESS => address = Some(attr),
            SERVER_PORT => port = attr.u16_be()?,
            SERVER_MARK => mark = Some(attr.u32_ne()?),
            SERVER_SCHEDULER => scheduler = attr.text().into_owned(),
            SERVER_FLAGS => {
                let [a, b, c, d, ..] = attr.array::<8>()?;
                flags = u32::from_ne_bytes([a, b, c, d]) & !Server::HASHED;
            }
            SERVER_TIMEOUT => timeout = attr.u32_ne()?,
            _ => {}
        }
    }
    let Some(family) = family else {
        return Ok(None);
    };
    if let Some(mark) = mark {
        return Ok(Some(Listed::Mark { family, mark }));
    }
    let address = address.ok_or(Malformed("virtual server: no address"))?;
    Ok(Some(Listed::Server(Server {
        key: ServerKey {
            protocol: u8::try_from(protocol)
                .map_err(|_| Malformed("virtual server: wrong protocol"))?,
            address: read_address(&address, family)?,
            port,
        },
        scheduler,
        flags,
        timeout,
    })))
}

/// Reads a destination of a server of this family. `None` if it has an address of neither of ours.
pub(super) fn read_destination(
    destination: &Attribute<'_>,
    server: Family,
) -> Result<Option<Counted>, Malformed> {
    let (mut address, mut port, mut weight, mut method) = (None, 0, 0, 0);
    let (mut active, mut inactive, mut persistent) = (0, 0, 0);
    // Before Linux 3.18 a destination has the family of its server.
    let mut family = Some(server);
    for attr in destination.nested() {
        let attr = attr?;
        match attr.kind {
            DESTINATION_FAMILY => family = read_family(&attr)?,
            DESTINATION_ADDRESS => address = Some(attr),
            DESTINATION_PORT => port = attr.u16_be()?,
            DESTINATION_METHOD => method = attr.u32_ne()? & Counted::METHOD_MASK,
            DESTINATION_WEIGHT => weight = attr.u32_ne()?,
            DESTINATION_ACTIVE => active = attr.u32_ne()?,
            DESTINATION_INACTIVE => inactive = attr.u32_ne()?,
            DESTINATION_PERSISTENT => persistent = attr.u32_ne()?,
            _ => {}
        }
    }
    let Some(family) = family else {
        return Ok(None);
    };
    let address = address.ok_or(Malformed("destination: no address"))?;
    Ok(Some(Counted {
        destination: Destination {
            address: read_address(&address, family)?,
            port,
            weight,
        },
        method,
        active,
        inactive,
        persistent,
    }))
}

/// The statistics of a server.
pub(super) fn server_stats(server: &Attribute<'_>) -> Result<Stats, Malformed> {
    read_stats(server, SERVER_STATS, SERVER_STATS64)
}

/// The statistics of a destination.
pub(super) fn destination_stats(destination: &Attribute<'_>) -> Result<Stats, Malformed> {
    read_stats(destination, DESTINATION_STATS, DESTINATION_STATS64)
}

/// From the attribute whose numbers do not wrap around, where the kernel has it (4.1 and later).
fn read_stats(object: &Attribute<'_>, narrow: u16, wide: u16) -> Result<Stats, Malformed> {
    let mut stats = None;
    for attr in object.nested() {
        let attr = attr?;
        if attr.kind == wide {
            return stats::read(&attr);
        }
        if attr.kind == narrow {
            stats = Some(stats::read(&attr)?);
        }
    }
    Ok(stats.unwrap_or_default())
}

pub(super) const fn family_of(address: IpAddr) -> Family {
    match address {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    }
}

fn write_address(writer: &mut Writer, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => writer.attr(kind, &address.octets()),
        IpAddr::V6(address) => writer.attr(kind, &address.octets()),
    }
}

fn read_family(attr: &Attribute<'_>) -> Result<Option<Family>, Malformed> {
    let number = u16::from_ne_bytes(attr.array()?);
    Ok(u8::try_from(number).ok().and_then(Family::from_number))
}

/// The kernel gives room for the longer of both families, whichever it is.
fn read_address(attr: &Attribute<'_>, family: Family) -> Result<IpAddr, Malformed> {
    const SHORT: Malformed = Malformed("address: too short");
    Ok(match family {
        Family::V4 => {
            let bytes: &[u8; 4] = attr.payload.first_chunk().ok_or(SHORT)?;
            Ipv4Addr::from(*bytes).into()
        }
        Family::V6 => {
            let bytes: &[u8; 16] = attr.payload.first_chunk().ok_or(SHORT)?;
            Ipv6Addr::from(*bytes).into()
        }
    })
}
