//! Flows as the kernel describes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::filter::Match;
use crate::Family;
use crate::wire::{Attribute, Attributes, Malformed, Writer};

/// Attributes of `linux/netfilter/nfnetlink_conntrack.h`.
pub(super) mod attr {
    pub const TUPLE_ORIG: u16 = 1;
    pub const TUPLE_REPLY: u16 = 2;
    pub const STATUS: u16 = 3;
    pub const TIMEOUT: u16 = 7;
    pub const MARK: u16 = 8;
    pub const ID: u16 = 12;
    pub const ZONE: u16 = 18;
    pub const FILTER: u16 = 25;

    pub const TUPLE_IP: u16 = 1;
    pub const TUPLE_PROTO: u16 = 2;

    pub const V4_SRC: u16 = 1;
    pub const V4_DST: u16 = 2;
    pub const V6_SRC: u16 = 3;
    pub const V6_DST: u16 = 4;

    pub const PROTO_NUM: u16 = 1;
    pub const SRC_PORT: u16 = 2;
    pub const DST_PORT: u16 = 3;

    pub const ORIG_FLAGS: u16 = 1;
    pub const REPLY_FLAGS: u16 = 2;

    pub const F_IP_SRC: u32 = 1;
    pub const F_IP_DST: u32 = 2;
    pub const F_PROTO_NUM: u32 = 8;
    pub const F_SRC_PORT: u32 = 16;
    pub const F_DST_PORT: u32 = 32;
}

/// One direction of a flow. Ports are 0 for protocols without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Where packets come from.
    pub source: SocketAddr,
    /// Where they go.
    pub destination: SocketAddr,
    /// TCP, UDP and so on, by number.
    pub protocol: u8,
}

impl Tuple {
    /// The family of its addresses.
    pub const fn family(&self) -> Family {
        match self.source {
            SocketAddr::V4(_) => Family::V4,
            SocketAddr::V6(_) => Family::V6,
        }
    }

    /// The tuple of an answer, if nothing is translated.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            protocol: self.protocol,
        }
    }

    fn write(&self, writer: &mut Writer, kind: u16) {
        let everything = Match {
            source: Some(self.source.ip()),
            destination: Some(self.destination.ip()),
            source_port: Some(self.source.port()),
            destination_port: Some(self.destination.port()),
        };
        everything.write(writer, kind, Some(self.protocol));
    }

    /// `None` if it has no addresses of our families.
    fn read(attr: &Attribute<'_>) -> Result<Option<Self>, Malformed> {
        let (mut source, mut destination) = (None, None);
        let (mut protocol, mut from, mut to) = (0, 0, 0);
        for attr in attr.nested() {
            let attr = attr?;
            for inner in attr.nested() {
                let inner = inner?;
                match (attr.kind, inner.kind) {
                    (attr::TUPLE_IP, attr::V4_SRC) => source = Some(v4(&inner)?),
                    (attr::TUPLE_IP, attr::V4_DST) => destination = Some(v4(&inner)?),
                    (attr::TUPLE_IP, attr::V6_SRC) => source = Some(v6(&inner)?),
                    (attr::TUPLE_IP, attr::V6_DST) => destination = Some(v6(&inner)?),
                    (attr::TUPLE_PROTO, attr::PROTO_NUM) => protocol = inner.u8()?,
                    (attr::TUPLE_PROTO, attr::SRC_PORT) => from = inner.u16_be()?,
                    (attr::TUPLE_PROTO, attr::DST_PORT) => to = inner.u16_be()?,
                    _ => {}
                }
            }
        }
        let addresses = source.zip(destination);
        Ok(addresses.map(|(source, destination)| Self {
            source: SocketAddr::new(source, from),
            destination: SocketAddr::new(destination, to),
            protocol,
        }))
    }
}

fn v4(attr: &Attribute<'_>) -> Result<IpAddr, Malformed> {
    attr.array()
        .map(|bytes: [u8; 4]| Ipv4Addr::from(bytes).into())
}

fn v6(attr: &Attribute<'_>) -> Result<IpAddr, Malformed> {
    attr.array()
        .map(|bytes: [u8; 16]| Ipv6Addr::from(bytes).into())
}

/// A tracked flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// As its first packet was sent.
    pub original: Tuple,
    /// As answers are sent; if that is not the reverse, the flow is translated.
    pub reply: Tuple,
    /// Flows of different zones have nothing to do with each other.
    pub zone: u16,
    /// Bits; [`Flow::DESTINATION_TRANSLATED`] and so on.
    pub status: u32,
    /// A mark that rules may set.
    pub mark: u32,
    /// Seconds that it will still be tracked without traffic.
    pub timeout: u32,
    /// The kernel's number for it; another flow with the same tuple has another one.
    pub id: u32,
}

impl Flow {
    /// An answer was seen.
    pub const SEEN_REPLY: u32 = 0x2;
    /// It is kept when memory is short.
    pub const ASSURED: u32 = 0x4;
    /// The source is translated.
    pub const SOURCE_TRANSLATED: u32 = 0x10;
    /// The destination is translated.
    pub const DESTINATION_TRANSLATED: u32 = 0x20;

    /// A flow to be entered.
    pub const fn new(original: Tuple, reply: Tuple) -> Self {
        Self {
            original,
            reply,
            zone: 0,
            status: 0,
            mark: 0,
            timeout: 60,
            id: 0,
        }
    }

    /// Everything that the kernel needs to enter it.
    pub(super) fn write_new(&self, writer: &mut Writer) {
        self.original.write(writer, attr::TUPLE_ORIG);
        self.reply.write(writer, attr::TUPLE_REPLY);
        writer.u32_be(attr::TIMEOUT, self.timeout);
        if self.status != 0 {
            writer.u32_be(attr::STATUS, self.status);
        }
        if self.mark != 0 {
            writer.u32_be(attr::MARK, self.mark);
        }
        self.write_zone(writer);
    }

    /// What tells it from all other flows.
    pub(super) fn write_identity(&self, writer: &mut Writer) {
        self.original.write(writer, attr::TUPLE_ORIG);
        self.write_zone(writer);
        writer.u32_be(attr::ID, self.id);
    }

    fn write_zone(&self, writer: &mut Writer) {
        if self.zone != 0 {
            writer.u16_be(attr::ZONE, self.zone);
        }
    }

    /// `None` if it is of another family than ours.
    pub(super) fn read(attrs: Attributes<'_>) -> Result<Option<Self>, Malformed> {
        let (mut original, mut reply) = (None, None);
        let (mut zone, mut status, mut mark, mut timeout, mut id) = (0, 0, 0, 0, 0);
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                attr::TUPLE_ORIG => original = Tuple::read(&attr)?,
                attr::TUPLE_REPLY => reply = Tuple::read(&attr)?,
                attr::STATUS => status = attr.u32_be()?,
                attr::TIMEOUT => timeout = attr.u32_be()?,
                attr::MARK => mark = attr.u32_be()?,
                attr::ID => id = attr.u32_be()?,
                attr::ZONE => zone = attr.u16_be()?,
                _ => {}
            }
        }
        Ok(original.zip(reply).map(|(original, reply)| Self {
            original,
            reply,
            zone,
            status,
            mark,
            timeout,
            id,
        }))
    }
}
