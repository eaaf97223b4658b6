//! What is in a set, as it is sent, received and printed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::{Attribute, Malformed, Writer};

const IP: u16 = 1;
const PORT: u16 = 4;
const PROTOCOL: u16 = 7;
const LINE: u16 = 9;
const IP2: u16 = 20;
const CIDR2: u16 = 21;

const IPV4: u16 = 1;
const IPV6: u16 = 2;

/// Marks an attribute whose number is in network order.
const NETWORK_ORDER: u16 = 0x4000;

/// What a set consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Type {
    /// Addresses.
    HashIp,
    /// Addresses with a port.
    HashIpPort,
    /// Addresses with a port, and a second address.
    HashIpPortIp,
    /// Addresses with a port, and a network.
    HashIpPortNet,
    /// Ports of TCP and UDP.
    BitmapPort,
}

impl Type {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::HashIp,
        Self::HashIpPort,
        Self::HashIpPortIp,
        Self::HashIpPortNet,
        Self::BitmapPort,
    ];

    /// What the kernel calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HashIp => "hash:ip",
            Self::HashIpPort => "hash:ip,port",
            Self::HashIpPortIp => "hash:ip,port,ip",
            Self::HashIpPortNet => "hash:ip,port,net",
            Self::BitmapPort => "bitmap:port",
        }
    }

    /// The revision to ask for, if the kernel has it: that of Linux 3.18. An `ipset` lists the
    /// revisions that were known when it was built, and not the very oldest.
    pub(super) const fn revision(self) -> u8 {
        match self {
            Self::HashIp => 4,
            Self::HashIpPort | Self::HashIpPortIp => 5,
            Self::HashIpPortNet => 7,
            Self::BitmapPort => 3,
        }
    }

    /// The type that the kernel calls so, if it is one of these.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// An address, a protocol and its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpPort {
    /// The address.
    pub address: IpAddr,
    /// TCP, UDP or SCTP, by its number.
    pub protocol: u8,
    /// The port.
    pub port: u16,
}

/// A network, without bits of hosts: two that contain the same addresses are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// The network of this address with so many bits; `None` if an address has not so many.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        let bits = width(address);
        if prefix > bits {
            return None;
        }
        let hosts = u32::from(bits - prefix);
        let address = match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(hosts).unwrap_or(0);
                Ipv4Addr::from(u32::from(address) & mask).into()
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(hosts).unwrap_or(0);
                Ipv6Addr::from(u128::from(address) & mask).into()
            }
        };
        Some(Self { address, prefix })
    }

    /// Its first address.
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Bits of it that name the network.
    pub const fn prefix(&self) -> u8 {
        self.prefix
    }
}

/// One entry of a set. Those that mean the same are equal, however the kernel lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// Of [`Type::HashIp`].
    Ip(IpAddr),
    /// Of [`Type::HashIpPort`].
    IpPort(IpPort),
    /// Of [`Type::HashIpPortIp`].
    IpPortIp(IpPort, IpAddr),
    /// Of [`Type::HashIpPortNet`]. The kernel has no entries for networks with a prefix of 0.
    IpPortNet(IpPort, Network),
    /// Of [`Type::BitmapPort`].
    Port(u16),
}

/// In the syntax of `ipset`.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "{address}"),
            Self::IpPort(first) => write!(f, "{first}"),
            Self::IpPortIp(first, second) => write!(f, "{first},{second}"),
            Self::IpPortNet(first, network) => write!(f, "{first},{network}"),
            Self::Port(port) => write!(f, "{port}"),
        }
    }
}

impl fmt::Display for IpPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            protocol,
            port,
        } = self;
        match protocol {
            6 => write!(f, "{address},tcp:{port}"),
            17 => write!(f, "{address},udp:{port}"),
            132 => write!(f, "{address},sctp:{port}"),
            other => write!(f, "{address},{other}:{port}"),
        }
    }
}

/// A single address without its prefix, as `ipset` prints it.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, prefix } = self;
        if *prefix == width(*address) {
            return write!(f, "{address}");
        }
        write!(f, "{address}/{prefix}")
    }
}

impl Entry {
    /// Of which type of set it is.
    pub const fn kind(&self) -> Type {
        match self {
            Self::Ip(_) => Type::HashIp,
            Self::IpPort(_) => Type::HashIpPort,
            Self::IpPortIp(..) => Type::HashIpPortIp,
            Self::IpPortNet(..) => Type::HashIpPortNet,
            Self::Port(_) => Type::BitmapPort,
        }
    }

    /// Writes what identifies it, and the number by which the kernel names it in errors.
    pub(super) fn write(&self, writer: &mut Writer, line: u32) {
        match self {
            Self::Ip(address) => write_ip(writer, IP, *address),
            Self::IpPort(first) => first.write(writer),
            Self::IpPortIp(first, second) => {
                first.write(writer);
                write_ip(writer, IP2, *second);
            }
            Self::IpPortNet(first, network) => {
                first.write(writer);
                write_ip(writer, IP2, network.address);
                writer.u8(CIDR2, network.prefix);
            }
            Self::Port(port) => writer.u16_be(PORT | NETWORK_ORDER, *port),
        }
        writer.u32_be(LINE | NETWORK_ORDER, line);
    }

    /// Reads an entry of a set of this type. What else the kernel may keep of it is not looked at.
    pub(super) fn read(kind: Type, entry: &Attribute<'_>) -> Result<Self, Malformed> {
        let (mut address, mut second, mut port) = (None, None, None);
        let (mut protocol, mut prefix) = (None, None);
        for attr in entry.nested() {
            let attr = attr?;
            match attr.kind {
                IP => address = Some(read_ip(&attr)?),
                IP2 => second = Some(read_ip(&attr)?),
                PORT => port = Some(attr.u16_be()?),
                PROTOCOL => protocol = Some(attr.u8()?),
                CIDR2 => prefix = Some(attr.u8()?),
                _ => {}
            }
        }
        let address = address.ok_or(Malformed("entry: no address"));
        let second = second.ok_or(Malformed("entry: no second address"));
        let port = port.ok_or(Malformed("entry: no port"));
        let protocol = protocol.ok_or(Malformed("entry: no protocol"));
        let first = || {
            Ok(IpPort {
                address: address?,
                protocol: protocol?,
                port: port?,
            })
        };
        Ok(match kind {
            Type::HashIp => Self::Ip(address?),
            Type::HashIpPort => Self::IpPort(first()?),
            Type::HashIpPortIp => Self::IpPortIp(first()?, second?),
            Type::HashIpPortNet => {
                let second = second?;
                let prefix = prefix.unwrap_or_else(|| width(second));
                let network = Network::new(second, prefix);
                Self::IpPortNet(first()?, network.ok_or(Malformed("entry: wrong prefix"))?)
            }
            Type::BitmapPort => Self::Port(port?),
        })
    }
}

impl IpPort {
    fn write(&self, writer: &mut Writer) {
        write_ip(writer, IP, self.address);
        writer.u16_be(PORT | NETWORK_ORDER, self.port);
        writer.u8(PROTOCOL, self.protocol);
    }
}

const fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn write_ip(writer: &mut Writer, kind: u16, address: IpAddr) {
    writer.nest(kind, |writer| match address {
        IpAddr::V4(address) => writer.attr(IPV4 | NETWORK_ORDER, &address.octets()),
        IpAddr::V6(address) => writer.attr(IPV6 | NETWORK_ORDER, &address.octets()),
    });
}

fn read_ip(attr: &Attribute<'_>) -> Result<IpAddr, Malformed> {
    for attr in attr.nested() {
        let attr = attr?;
        match attr.kind {
            IPV4 => return Ok(Ipv4Addr::from(attr.array::<4>()?).into()),
            IPV6 => return Ok(Ipv6Addr::from(attr.array::<16>()?).into()),
            _ => {}
        }
    }
    Err(Malformed("entry: an address without bytes"))
}
