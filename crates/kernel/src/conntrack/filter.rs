//! What to look for in flows, as far as the kernel can be trusted with it.

use std::net::{IpAddr, SocketAddr};

use super::flow::{Flow, Tuple, attr};
use crate::Family;
use crate::wire::Writer;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// What to look for in one direction; nothing means anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Where packets come from.
    pub source: Option<IpAddr>,
    /// Where they go.
    pub destination: Option<IpAddr>,
    /// From which port. Needs the filter's protocol.
    pub source_port: Option<u16>,
    /// To which port. Needs the filter's protocol.
    pub destination_port: Option<u16>,
}

impl Match {
    const fn has_ports(&self) -> bool {
        self.source_port.is_some() || self.destination_port.is_some()
    }

    fn flags(&self, protocol: Option<u8>) -> u32 {
        let flag = |flag, given| if given { flag } else { 0 };
        flag(attr::F_IP_SRC, self.source.is_some())
            | flag(attr::F_IP_DST, self.destination.is_some())
            | flag(attr::F_PROTO_NUM, protocol.is_some())
            | flag(attr::F_SRC_PORT, self.source_port.is_some())
            | flag(attr::F_DST_PORT, self.destination_port.is_some())
    }

    pub(super) fn write(&self, writer: &mut Writer, kind: u16, protocol: Option<u8>) {
        writer.nest(kind, |writer| {
            writer.nest(attr::TUPLE_IP, |writer| {
                address(writer, self.source, attr::V4_SRC, attr::V6_SRC);
                address(writer, self.destination, attr::V4_DST, attr::V6_DST);
            });
            writer.nest(attr::TUPLE_PROTO, |writer| {
                if let Some(protocol) = protocol {
                    writer.u8(attr::PROTO_NUM, protocol);
                }
                if let Some(port) = self.source_port {
                    writer.u16_be(attr::SRC_PORT, port);
                }
                if let Some(port) = self.destination_port {
                    writer.u16_be(attr::DST_PORT, port);
                }
            });
        });
    }

    fn matches(&self, tuple: &Tuple) -> bool {
        let same = |wanted: Option<IpAddr>, is: SocketAddr| wanted.is_none_or(|w| w == is.ip());
        let same_port = |wanted: Option<u16>, is: SocketAddr| wanted.is_none_or(|w| w == is.port());
        same(self.source, tuple.source)
            && same(self.destination, tuple.destination)
            && same_port(self.source_port, tuple.source)
            && same_port(self.destination_port, tuple.destination)
    }
}

fn address(writer: &mut Writer, address: Option<IpAddr>, kind_v4: u16, kind_v6: u16) {
    match address {
        None => {}
        Some(IpAddr::V4(v4)) => writer.attr(kind_v4, &v4.octets()),
        Some(IpAddr::V6(v6)) => writer.attr(kind_v6, &v6.octets()),
    }
}

/// Which flows are meant. Zones do not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Which family.
    pub family: Family,
    /// Which protocol.
    pub protocol: Option<u8>,
    /// What to look for in the first packet.
    pub original: Match,
    /// What to look for in answers.
    pub reply: Match,
}

impl Filter {
    /// All flows of a family.
    pub fn all(family: Family) -> Self {
        Self {
            family,
            protocol: None,
            original: Match::default(),
            reply: Match::default(),
        }
    }

    /// All flows of a protocol.
    pub fn protocol(family: Family, protocol: u8) -> Self {
        Self {
            protocol: Some(protocol),
            ..Self::all(family)
        }
    }

    /// Whether it has no condition beside the family.
    pub fn is_empty(&self) -> bool {
        self.protocol.is_none() && self.original == self.reply && self.original == Match::default()
    }

    /// Whether a flow is meant.
    pub fn matches(&self, flow: &Flow) -> bool {
        self.family == flow.original.family()
            && self
                .protocol
                .is_none_or(|wanted| wanted == flow.original.protocol)
            && self.original.matches(&flow.original)
            && self.reply.matches(&flow.reply)
    }

    /// The part of it that the kernel is sure to understand.
    ///
    /// Three things in Linux up to at least 6.18 are left to us (`net/netfilter/
    /// nf_conntrack_netlink.c`): addresses of IPv6 match the flows that do not have them, ports
    /// match only for TCP and UDP, and unless `replies` the conditions on answers are read as
    /// those on the first packet are flagged.
    pub(super) fn understood(&self, replies: bool) -> Self {
        let mut part = *self;
        if !replies {
            part.reply = Match::default();
        }
        let ports = matches!(self.protocol, Some(TCP | UDP));
        for side in [&mut part.original, &mut part.reply] {
            if self.family == Family::V6 {
                (side.source, side.destination) = (None, None);
            }
            if !ports {
                (side.source_port, side.destination_port) = (None, None);
            }
        }
        part
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        if self.is_empty() {
            return;
        }
        // Ports mean nothing to the kernel without the protocol in the same direction.
        let original = self.protocol;
        let reply = self.protocol.filter(|_| self.reply.has_ports());
        let flags = (self.original.flags(original), self.reply.flags(reply));
        for (kind, part, protocol, flags) in [
            (attr::TUPLE_ORIG, &self.original, original, flags.0),
            (attr::TUPLE_REPLY, &self.reply, reply, flags.1),
        ] {
            if flags != 0 {
                part.write(writer, kind, protocol);
            }
        }
        write_flags(writer, flags.0, flags.1);
    }
}

/// A filter with a fault that a kernel notices only if it reads conditions on answers by their own
/// flags: they ask for an address that is not there. The protocol is one that no flow has.
pub(super) fn write_faulty_filter(writer: &mut Writer) {
    const RESERVED: u8 = 255;
    Match::default().write(writer, attr::TUPLE_ORIG, Some(RESERVED));
    writer.nest(attr::TUPLE_REPLY, |_| {});
    write_flags(writer, attr::F_PROTO_NUM, attr::F_IP_SRC);
}

fn write_flags(writer: &mut Writer, original: u32, reply: u32) {
    writer.nest(attr::FILTER, |writer| {
        // These two are in this machine's order, unlike all else here.
        writer.u32_ne(attr::ORIG_FLAGS, original);
        writer.u32_ne(attr::REPLY_FLAGS, reply);
    });
}
