//! Tracked flows in numbers: how many there are, to which addresses, and where they lead.
//!
//! Clients are left out: who talked to whom is nobody's business who helps from afar.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr};

use ferrule_core::model::{Family, Protocol};
use ferrule_kernel::conntrack::{Conntrack, Filter, Flow, Match};

use super::{Piece, first_line};
use crate::{kernel_family, protocol_number, said};

/// Addresses that are listed, those with most flows first.
const MOST_LISTED: usize = 100;

/// Addresses that are counted one by one: anybody may make flows to any.
const MOST_COUNTED: usize = 100_000;

/// What is counted of one family.
#[derive(Debug, Default)]
struct Counted {
    /// A dump that is begun again names flows twice.
    seen: HashSet<u32>,
    protocols: BTreeMap<u8, Count>,
    /// Translated flows, by what the client asked for.
    destinations: BTreeMap<(u8, SocketAddr), Destination>,
}

#[derive(Debug, Default)]
struct Count {
    all: usize,
    translated: usize,
}

#[derive(Debug, Default)]
struct Destination {
    flows: usize,
    endpoints: BTreeSet<SocketAddr>,
}

/// The summary of both families.
pub fn summary() -> Piece {
    let mut text = String::new();
    for what in ["count", "max"] {
        let value = first_line(format!("/proc/sys/net/netfilter/nf_conntrack_{what}"));
        _ = writeln!(text, "nf_conntrack_{what}: {value}");
    }
    for family in Family::ALL {
        match count(family) {
            Ok(counted) => counted.write(family, &mut text),
            Err(error) => _ = writeln!(text, "# {family} not read: {error}"),
        }
    }
    Piece::new("conntrack.txt", Ok(text))
}

fn count(family: Family) -> io::Result<Counted> {
    let filter = Filter {
        family: kernel_family(family),
        protocol: None,
        original: Match::default(),
        reply: Match::default(),
    };
    let counted = RefCell::new(Counted::default());
    // None is kept: there may be a million.
    let flows = Conntrack::open()?.flows(&filter, |flow| {
        counted.borrow_mut().add(flow);
        false
    });
    flows.map_err(said)?;
    Ok(counted.into_inner())
}

impl Counted {
    fn add(&mut self, flow: &Flow) {
        if !self.seen.insert(flow.id) {
            return;
        }
        let protocol = flow.original.protocol;
        let translated = flow.status & Flow::DESTINATION_TRANSLATED != 0;
        let count = self.protocols.entry(protocol).or_default();
        count.all += 1;
        count.translated += usize::from(translated);
        let key = (protocol, flow.original.destination);
        let room = self.destinations.len() < MOST_COUNTED;
        if translated && (room || self.destinations.contains_key(&key)) {
            let destination = self.destinations.entry(key).or_default();
            destination.flows += 1;
            destination.endpoints.insert(flow.reply.source);
        }
    }

    fn write(&self, family: Family, text: &mut String) {
        for (protocol, count) in &self.protocols {
            let Count { all, translated } = count;
            let name = name(*protocol);
            _ = writeln!(
                text,
                "{family} {name}: {all} flows, {translated} translated"
            );
        }
        let mut all: Vec<_> = self.destinations.iter().collect();
        all.sort_by_key(|(_, destination)| std::cmp::Reverse(destination.flows));
        for ((protocol, address), destination) in all.iter().take(MOST_LISTED) {
            let name = name(*protocol);
            let endpoints: Vec<_> = destination
                .endpoints
                .iter()
                .map(ToString::to_string)
                .collect();
            let (flows, endpoints) = (destination.flows, endpoints.join(", "));
            _ = writeln!(text, "{address}/{name}: {flows} flows to {endpoints}");
        }
        if all.len() > MOST_LISTED {
            _ = writeln!(text, "# and {} more addresses", all.len() - MOST_LISTED);
        }
    }
}

/// A flow that leads from an address of a Service to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveFlow {
    /// Who sent the first packet.
    pub client: SocketAddr,
    /// Where it leads.
    pub endpoint: SocketAddr,
}

/// Closed TCP connections are tracked for so many seconds; none that is open is forgotten as soon.
const CLOSED: u32 = 120;

/// The flows from an address, or from a port of any address, to wherever they lead; at most so many.
///
/// # Errors
/// What the kernel said.
pub fn live(
    family: Family,
    protocol: Protocol,
    ip: Option<IpAddr>,
    port: u16,
    most: usize,
) -> io::Result<Vec<LiveFlow>> {
    let protocol = protocol_number(protocol);
    let filter = Filter {
        family: kernel_family(family),
        protocol: Some(protocol),
        original: Match {
            destination: ip,
            destination_port: Some(port),
            ..Match::default()
        },
        reply: Match::default(),
    };
    let kept = RefCell::new(BTreeMap::new());
    let flows = Conntrack::open()?.flows(&filter, |flow| {
        let is_translated = flow.reply.source != flow.original.destination;
        let is_open = protocol != 6 || flow.timeout > CLOSED;
        let mut kept = kept.borrow_mut();
        if is_translated && is_open && kept.len() < most {
            let live = LiveFlow {
                client: flow.original.source,
                endpoint: flow.reply.source,
            };
            kept.insert(flow.id, live);
        }
        false
    });
    flows.map_err(said)?;
    Ok(kept.into_inner().into_values().collect())
}

/// How many flows are tracked, and how many may be; `None` where that cannot be read.
pub fn room() -> Option<(u64, u64)> {
    let read = |what: &str| {
        let path = format!("/proc/sys/net/netfilter/nf_conntrack_{what}");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    Some((read("count")?, read("max")?))
}

fn name(protocol: u8) -> String {
    match protocol {
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        132 => "SCTP".to_owned(),
        other => format!("protocol {other}"),
    }
}

#[cfg(test)]
mod tests {
    use ferrule_kernel::conntrack::Tuple;

    use super::*;

    #[test]
    fn flows_are_counted_once_by_address_and_without_their_clients() {
        let socket = |text: &str| text.parse::<SocketAddr>().unwrap();
        let flow = |id: u32, to: &str, from: &str, translated: bool| {
            let original = Tuple {
                source: socket(&format!("203.0.113.9:{}", 1000 + id)),
                destination: socket(to),
                protocol: 17,
            };
            let reply = Tuple {
                source: socket(from),
                destination: original.source,
                protocol: 17,
            };
            Flow {
                id,
                status: if translated {
                    Flow::DESTINATION_TRANSLATED
                } else {
                    0
                },
                ..Flow::new(original, reply)
            }
        };
        let mut counted = Counted::default();
        for id in [1, 2, 2, 1] {
            counted.add(&flow(id, "10.96.0.10:53", "10.1.0.2:5353", true));
        }
        counted.add(&flow(3, "10.96.0.10:53", "10.1.0.1:5353", true));
        counted.add(&flow(4, "192.0.2.1:53", "192.0.2.1:53", false));
        let mut text = String::new();
        counted.write(Family::V4, &mut text);
        assert_eq!(
            text,
            "IPv4 UDP: 4 flows, 3 translated\n\
             10.96.0.10:53/UDP: 3 flows to 10.1.0.1:5353, 10.1.0.2:5353\n"
        );
    }
}
