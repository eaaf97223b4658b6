//! Follows the chains that kube-proxy has for each Service.
//!
//! In: the name of the chain to which a Service address leads. Out: what it does to packets. Rules
//! that kube-proxy does not write are [`Unreadable`], with their text.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ferrule_kernel::nft::expr::{CmpOp, Found, NatKind};
use ferrule_kernel::nft::{Data, Element, Expr, Name, Rule, Snapshot, Timeout, Value, Verdict};

use super::{Conduct, Outcome, address};
use crate::nftables::diff::of;
use crate::nftables::program;

/// What in a chain is none of kube-proxy's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(pub String);

/// The chains of one table.
pub struct Chains<'a> {
    installed: &'a Snapshot,
    rules: &'a BTreeMap<&'a str, Vec<&'a Rule>>,
    family: ferrule_kernel::Family,
    mark: u32,
}

/// How the chains of a Service go on.
enum Way<'a> {
    /// To another chain, for everybody or only for clients inside.
    Goto(&'a Name, bool),
    /// The packet is marked, everybody's or only the node's.
    Mark(bool),
}

impl<'a> Chains<'a> {
    /// Of this table, whose mark for masquerading is given.
    pub const fn new(
        installed: &'a Snapshot,
        rules: &'a BTreeMap<&'a str, Vec<&'a Rule>>,
        family: ferrule_kernel::Family,
        mark: u32,
    ) -> Self {
        Self {
            installed,
            rules,
            family,
            mark,
        }
    }

    fn elements(&self, set: &str) -> &'a [Element] {
        let elements = self.installed.elements.get(set);
        elements.map_or(&[], Vec::as_slice)
    }

    /// What happens to packets that are led to this chain.
    pub fn conduct(&self, chain: &str) -> Result<Conduct, Unreadable> {
        let mut conduct = Conduct::default();
        if !chain.starts_with("external-") {
            let (endpoints, affinity) = self.endpoints(chain)?;
            conduct.outside = Outcome::Balance(endpoints, false);
            conduct.inside = conduct.outside.clone();
            conduct.affinity = affinity;
            return Ok(conduct);
        }
        let (mut masquerade, mut inside, mut outside) = (false, None, None);
        for rule in of(self.rules, chain) {
            match self.way(rule)? {
                Way::Mark(all) => masquerade |= all,
                Way::Goto(to, true) => outside = Some(to),
                Way::Goto(to, false) => inside = Some(to),
            }
        }
        for (to, side) in [
            (inside.or(outside), &mut conduct.inside),
            (outside, &mut conduct.outside),
        ] {
            if let Some(to) = to {
                let (endpoints, affinity) = self.endpoints(to)?;
                *side = Outcome::Balance(endpoints, masquerade);
                conduct.affinity = affinity;
            }
        }
        Ok(conduct)
    }

    /// What a rule of a chain for outside traffic does.
    fn way(&self, rule: &'a Rule) -> Result<Way<'a>, Unreadable> {
        let marks = program::set_mark(self.mark);
        let conditions = match rule.expressions.as_slice() {
            [before @ .., Expr::Verdict(Verdict::Goto(to))] => {
                return Ok(Way::Goto(to, before.is_empty()));
            }
            expressions => expressions.strip_suffix(&marks),
        };
        match conditions {
            Some(before) => Ok(Way::Mark(before.is_empty())),
            None => Err(self.unreadable(rule)),
        }
    }

    /// The endpoints of a chain that chooses one, and for how long clients stay with it.
    fn endpoints(&self, chain: &str) -> Result<(BTreeSet<SocketAddr>, Option<u64>), Unreadable> {
        let mut endpoints = BTreeSet::new();
        let mut affinity = None;
        let rules = of(self.rules, chain);
        if rules.is_empty() {
            return Err(Unreadable(format!("chain {chain} is empty")));
        }
        for rule in rules {
            match rule.expressions.as_slice() {
                // A client that was there before.
                [
                    Expr::Payload { .. },
                    Expr::Lookup { set, .. },
                    Expr::Verdict(Verdict::Goto(_)),
                ] => affinity = affinity.or_else(|| self.timeout(set)),
                [
                    Expr::Numgen { modulus, .. },
                    Expr::Lookup {
                        set,
                        found: Found::Verdict,
                        ..
                    },
                ] => {
                    let slots = self.slots(set, *modulus)?;
                    for element in slots {
                        match &element.data {
                            Data::Verdict(Verdict::Goto(to)) => {
                                endpoints.insert(self.endpoint(to)?)
                            }
                            _ => return Err(self.unreadable(rule)),
                        };
                    }
                }
                expressions => endpoints.extend(self.translated(rule, expressions)?),
            }
        }
        Ok((endpoints, affinity))
    }

    /// The endpoint of a chain for one endpoint, which remembers its clients.
    fn endpoint(&self, chain: &str) -> Result<SocketAddr, Unreadable> {
        let rules = of(self.rules, chain).iter();
        let mut rules = rules.filter(|rule| {
            let mut expressions = rule.expressions.iter();
            !expressions.any(|expr| matches!(expr, Expr::Dynset { .. }))
        });
        match (rules.next(), rules.next()) {
            (Some(rule), None) => {
                let mut translated = self.translated(rule, &rule.expressions)?;
                let first = translated.pop_first();
                first.ok_or_else(|| self.unreadable(rule))
            }
            _ => Err(Unreadable(format!(
                "chain {chain} does not lead to one endpoint"
            ))),
        }
    }

    /// Where a rule translates to.
    fn translated(
        &self,
        rule: &Rule,
        expressions: &[Expr],
    ) -> Result<BTreeSet<SocketAddr>, Unreadable> {
        let Some(Expr::Nat {
            kind: NatKind::Destination,
            ..
        }) = expressions.last()
        else {
            return Err(self.unreadable(rule));
        };
        let mut constants = Vec::new();
        let mut slots = None;
        for expr in expressions {
            match expr {
                Expr::Load { value, .. } => constants.push(value),
                Expr::Numgen { modulus, .. } => slots = Some(*modulus),
                Expr::Lookup {
                    set,
                    found: Found::Value(_),
                    ..
                } => {
                    let elements = self.slots(set, slots.unwrap_or_default())?;
                    let sockets = elements.iter().map(|element| match &element.data {
                        Data::Value(value) => socket(value.as_bytes()),
                        _ => None,
                    });
                    let sockets: Option<BTreeSet<_>> = sockets.collect();
                    return sockets.ok_or_else(|| self.unreadable(rule));
                }
                _ => {}
            }
        }
        let [ip, port] = constants.as_slice() else {
            return Err(self.unreadable(rule));
        };
        let (ip, port) = (address(ip), <[u8; 2]>::try_from(port.as_bytes()).ok());
        let socket = ip
            .zip(port)
            .map(|(ip, port)| SocketAddr::new(ip, u16::from_be_bytes(port)));
        socket
            .map(|socket| BTreeSet::from([socket]))
            .ok_or_else(|| self.unreadable(rule))
    }

    /// The elements of a map from numbers, of which there must be one for each that can be drawn.
    fn slots(&self, map: &str, modulus: u32) -> Result<&'a [Element], Unreadable> {
        let elements = self.elements(map);
        let numbers: BTreeSet<_> = elements.iter().map(|element| element.key).collect();
        if u32::try_from(numbers.len()) == Ok(modulus) {
            Ok(elements)
        } else {
            let count = numbers.len();
            Err(Unreadable(format!(
                "numgen random mod {modulus} over {count} endpoints"
            )))
        }
    }

    /// For how long a set remembers.
    fn timeout(&self, set: &str) -> Option<u64> {
        let mut sets = self.installed.sets.iter();
        let held = sets.find(|held| *held.object.name == *set)?;
        match held.object.timeout {
            Timeout::Default(time) => Some(time.as_secs()),
            Timeout::None | Timeout::PerElement => None,
        }
    }

    /// Whose packets a chain does not drop.
    pub fn sources(&self, chain: &str) -> Result<Vec<(Value, Value)>, Unreadable> {
        match of(self.rules, chain) {
            [rule] if drops(rule) => self
                .addresses_of(rule, true)
                .ok_or_else(|| self.unreadable(rule)),
            [] => Err(Unreadable(format!("chain {chain} is empty"))),
            rules => {
                let last = rules.last().expect("it is not empty");
                Err(self.unreadable(last))
            }
        }
    }

    fn unreadable(&self, rule: &Rule) -> Unreadable {
        let text = ferrule_kernel::nft::text::rule(rule, self.family);
        let text = text.unwrap_or_else(|none| none.to_string());
        Unreadable(format!("rule of chain {}: {text}", rule.chain))
    }

    /// The ranges of addresses that a rule compares one address with; `other` if it goes on with all
    /// others.
    pub fn addresses_of(&self, rule: &Rule, other: bool) -> Option<Vec<(Value, Value)>> {
        let op = if other { CmpOp::NotEqual } else { CmpOp::Equal };
        let found = if other { Found::Absent } else { Found::Present };
        match rule.expressions.as_slice() {
            [
                Expr::Payload { .. },
                Expr::Lookup {
                    set, found: how, ..
                },
                Expr::Verdict(_),
            ] if *how == found => {
                let elements = self.elements(set);
                let is_ranged = |held: &ferrule_kernel::nft::Held<ferrule_kernel::nft::Set>| {
                    held.object.name == *set && held.object.interval
                };
                if self.installed.sets.iter().any(is_ranged) {
                    return Some(ferrule_kernel::nft::ranges::ranges(elements));
                }
                let single = elements.iter().map(|element| (element.key, element.key));
                Some(merged(single))
            }
            [
                Expr::Payload { offset, .. },
                middle @ ..,
                Expr::Cmp { op: how, value, .. },
                Expr::Verdict(_),
            ] if *how == op => {
                let mask = match middle {
                    [] => None,
                    [Expr::Bitwise { mask, .. }] => Some(mask.as_bytes()),
                    _ => return None,
                };
                // The source or destination address of an IPv4 header, or of an IPv6 one.
                let len = match offset {
                    12 | 16 => 4,
                    8 | 24 => 16,
                    _ => return None,
                };
                let byte = |at: usize, or: u8| {
                    let value = value.as_bytes().get(at).copied();
                    let free = mask.and_then(|mask| mask.get(at)).map_or(0, |mask| !mask);
                    value.map_or(or, |value| value | (or & free))
                };
                let all = |or| (0..len).map(|at| byte(at, or)).collect::<Vec<u8>>();
                let (first, last) = (all(0), all(u8::MAX));
                let value = |bytes: &[u8]| Value::from_bytes(bytes).ok();
                Some(merged([(value(&first)?, value(&last)?)]))
            }
            _ => None,
        }
    }
}

/// The same ranges as an interval set would have them.
fn merged(ranges: impl IntoIterator<Item = (Value, Value)>) -> Vec<(Value, Value)> {
    let elements = ferrule_kernel::nft::ranges::elements(ranges);
    ferrule_kernel::nft::ranges::ranges(&elements)
}

/// An address and a port, one behind the other.
fn socket(bytes: &[u8]) -> Option<SocketAddr> {
    let (ip, port) = match bytes.len() {
        8 => (
            IpAddr::from(<[u8; 4]>::try_from(&bytes[..4]).ok()?),
            &bytes[4..6],
        ),
        20 => (
            IpAddr::from(<[u8; 16]>::try_from(&bytes[..16]).ok()?),
            &bytes[16..18],
        ),
        _ => return None,
    };
    let port = <[u8; 2]>::try_from(port).ok()?;
    Some(SocketAddr::new(ip, u16::from_be_bytes(port)))
}

/// Whether a rule drops packets.
pub fn drops(rule: &Rule) -> bool {
    matches!(rule.expressions.last(), Some(Expr::Verdict(Verdict::Drop)))
}

/// Whether a rule looks something up in this set or map.
pub fn looks_in(rule: &Rule, name: &str) -> bool {
    let mut expressions = rule.expressions.iter();
    expressions.any(|expr| matches!(expr, Expr::Lookup { set, .. } if **set == *name))
}
