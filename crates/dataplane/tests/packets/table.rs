//! Rows of the table: which packets, and what comes of them.
//!
//! A row asks one Service on some kinds of address from some sides, over every protocol. What is
//! dropped takes a while to see, so a table asks all such packets at once.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferrule_testbed::{Answer, Ask, Kind, Place, Protocol, Side};

use crate::modes::USERSPACE;
use crate::world::World;

/// What comes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Exactly these pods serve such packets, and see this source.
    Served(&'static [u8], Source),
    /// ICMP says that the port cannot be reached.
    Refused,
    /// Nothing comes back.
    Dropped,
}

/// What a pod sees of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The client's own address.
    Client,
    /// The node's address.
    Node,
}

/// Clients, kinds of address, and what comes of their packets.
pub type Row = (&'static [Side], &'static [Kind], Outcome);

pub use Outcome::{Dropped, Refused, Served};

impl World {
    /// Asks the Service of this number over every protocol, as the rows say.
    pub fn expect(&self, number: u8, rows: &[Row]) {
        self.expect_over(self.protocols(), number, rows);
    }

    /// The same over these protocols.
    pub fn expect_over(&self, protocols: &[Protocol], number: u8, rows: &[Row]) {
        let mut dropped = Vec::new();
        for (sides, kinds, outcome) in rows {
            for (side, kind) in pairs(sides, kinds) {
                for protocol in protocols {
                    let ask = self.ask(*protocol, kind, number);
                    match self.answers(side, self.by_nature(*protocol, *outcome)) {
                        Some(answers) => assert_answers(self.side(side), ask, &answers),
                        None => dropped.push((side, ask)),
                    }
                }
            }
        }
        self.assert_dropped(&dropped);
    }

    /// Asks other addresses from these sides, and all of them are refused.
    pub fn expect_refused(&self, sides: &[Side], asks: &[Ask]) {
        for (side, ask) in pairs(sides, asks) {
            let answer = ask.put(self.side(side));
            assert_eq!(answer, Answer::Refused, "{ask:?} from {side:?}");
        }
    }

    /// Asks these, and nothing comes back.
    pub fn assert_dropped(&self, asks: &[(Side, Ask)]) {
        let asks: Vec<_> = asks
            .iter()
            .map(|(side, ask)| (self.side(*side), *ask))
            .collect();
        assert_unanswered(&asks);
    }

    /// What comes of it in this mode: in mode userspace the process asks pods, so they see the node
    /// whoever the client is, and what cannot be relayed is refused.
    fn by_nature(&self, protocol: Protocol, outcome: Outcome) -> Outcome {
        match (self.mode.like, protocol, outcome) {
            (USERSPACE, Protocol::Sctp, Served(..)) => Refused,
            (USERSPACE, _, Served(pods, _)) => Served(pods, Source::Node),
            (_, _, outcome) => outcome,
        }
    }

    /// All answers that there must be; `None` for silence.
    fn answers(&self, side: Side, outcome: Outcome) -> Option<BTreeSet<Answer>> {
        let (pods, source) = match outcome {
            Served(pods, source) => (pods, source),
            Refused => return Some(BTreeSet::from([Answer::Refused])),
            Dropped => return None,
        };
        let served = |by: &u8| Answer::Served {
            by: *by,
            seen: match source {
                Source::Client => self.own(side),
                Source::Node => self.masqueraded(*by),
            },
        };
        Some(pods.iter().map(served).collect())
    }

    /// The address from which clients of this side ask.
    pub fn own(&self, side: Side) -> IpAddr {
        match side {
            Side::Pod => self.pod_ip(),
            Side::Node => self.second(),
            Side::Out => self.out_ip(),
        }
    }

    /// Questions to the Service of this number on these kinds of address, over every protocol.
    pub fn asks(&self, kinds: &[Kind], number: u8) -> Vec<Ask> {
        let over_each = pairs(kinds, self.protocols());
        over_each
            .map(|(kind, protocol)| self.ask(protocol, kind, number))
            .collect()
    }
}

/// Every one of the first with every one of the second.
pub fn pairs<A: Copy, B: Copy>(first: &[A], second: &[B]) -> impl Iterator<Item = (A, B)> {
    first.iter().flat_map(|a| second.iter().map(|b| (*a, *b)))
}

/// Asks until every one of these answers came, and a few times more; no other may come.
pub fn assert_answers(place: &Place, ask: Ask, expected: &BTreeSet<Answer>) {
    // One pod of two would be missed by ten draws once in a thousand times.
    let least = if expected.len() == 1 { 11 } else { 2 };
    let mut seen = BTreeSet::new();
    for draw in 1..=60 {
        let answer = ask.put(place);
        assert!(
            expected.contains(&answer),
            "{ask:?}: {answer:?} is none of {expected:?}"
        );
        seen.insert(answer);
        if seen == *expected && draw >= least {
            return;
        }
    }
    assert_eq!(seen, *expected, "{ask:?}");
}

/// Puts these questions at once, and none of them is answered.
pub fn assert_unanswered(asks: &[(&Place, Ask)]) {
    let heard = Ask::unanswered(asks);
    assert!(heard.is_empty(), "{heard:?}");
}
