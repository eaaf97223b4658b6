//! Rules as iptables-nft keeps them in `nf_tables`.
//!
//! In: a [`Rule`]. Out: the expressions that iptables 1.8.9 would write for it, so that every
//! `iptables-nft-save` prints what it would have printed. Addresses, interfaces and protocols are
//! expressions of `nf_tables`, and so are ports of TCP and UDP and marks; all else is a match or a
//! target of the old kind.

use ferrule_core::model::{Family, Port, Protocol};
use ferrule_kernel::nft::compat::{Recent, state};
use ferrule_kernel::nft::expr::{Base, CmpOp, MetaKey};
use ferrule_kernel::nft::{self, Expr, Extension, Reg, Value, Verdict};
use ipnet::IpNet;

use super::rule::{Part, Rule, Target, times_in_31_bits};
use crate::{kernel_family, protocol_number};

const REG: Reg = Reg::FIRST;

/// The rule as one of this chain. `None` if it cannot be encoded: then iptables itself may know
/// how, or why not.
pub fn rule(rule: &Rule, chain: &str, family: Family) -> Option<nft::Rule> {
    Some(nft::Rule {
        protocol: rule.parts.iter().find_map(|part| match part {
            Part::Protocol(protocol) => Some(protocol_number(*protocol)),
            _ => None,
        }),
        ..nft::Rule::new(chain, expressions(rule, family)?)
    })
}

/// What the rule does, expression by expression.
pub fn expressions(rule: &Rule, family: Family) -> Option<Vec<Expr>> {
    let mut encoder = Encoder {
        family,
        port: rule.parts.iter().find_map(|part| match part {
            Part::Port(port) => Some(*port),
            _ => None,
        }),
        out: Vec::with_capacity(8),
    };
    // Interface, protocol and addresses come first, whatever the order was.
    let ranks: [fn(&Part) -> bool; 4] = [
        |part| matches!(part, Part::Input(_) | Part::InputNot(_)),
        |part| matches!(part, Part::Protocol(_)),
        |part| matches!(part, Part::Source(_) | Part::SourceNot(_)),
        |part| matches!(part, Part::Destination(_) | Part::DestinationNot(_)),
    ];
    for rank in ranks {
        for part in rule.parts.iter().filter(|part| rank(part)) {
            encoder.header(part)?;
        }
    }
    for part in &*rule.parts {
        encoder.condition(part)?;
    }
    encoder.out.push(Expr::Counter {
        packets: 0,
        bytes: 0,
    });
    encoder.target(rule.target);
    Some(encoder.out)
}

struct Encoder {
    family: Family,
    port: Option<Port>,
    out: Vec<Expr>,
}

/// Which of two addresses.
#[derive(Clone, Copy)]
enum Side {
    Source,
    Destination,
}

impl Encoder {
    fn header(&mut self, part: &Part) -> Option<()> {
        use CmpOp::{Equal, NotEqual};
        match part {
            Part::Input(name) => self.input(name, Equal),
            Part::InputNot(name) => self.input(name, NotEqual),
            Part::Protocol(protocol) => {
                self.out.push(Expr::protocol(REG));
                self.compare(Equal, &[protocol_number(*protocol)]);
                Some(())
            }
            Part::Source(place) => self.address(Side::Source, place.net(), Equal),
            Part::SourceNot(net) => self.address(Side::Source, *net, NotEqual),
            Part::Destination(place) => self.address(Side::Destination, place.net(), Equal),
            Part::DestinationNot(net) => self.address(Side::Destination, *net, NotEqual),
            _ => Some(()),
        }
    }

    fn compare(&mut self, op: CmpOp, bytes: &[u8]) {
        let value = Value::new().field(bytes);
        self.out.push(Expr::Cmp {
            op,
            reg: REG,
            value,
        });
    }

    fn input(&mut self, name: &str, op: CmpOp) -> Option<()> {
        const LONGEST: usize = 15;
        // Up to the end of the name and its mark, or up to where anything may follow.
        let bytes = match name.strip_suffix('+') {
            Some(prefix) => prefix.as_bytes().to_vec(),
            None => [name.as_bytes(), &[0]].concat(),
        };
        if name.len() > LONGEST || matches!(bytes[..], [] | [0]) {
            return None;
        }
        self.out.push(Expr::Meta {
            key: MetaKey::InputName,
            into: REG,
        });
        self.compare(op, &bytes);
        Some(())
    }

    /// Compares as many bytes of an address as its network has, if these are whole bytes.
    fn address(&mut self, side: Side, net: IpNet, op: CmpOp) -> Option<()> {
        let prefix = usize::from(net.prefix_len());
        if prefix == 0 {
            // Every address; there is no expression for no address.
            return (op == CmpOp::Equal).then_some(());
        }
        let network = Value::from(net.network());
        let family = kernel_family(self.family);
        let Expr::Payload { offset, len, .. } = (match side {
            Side::Source => Expr::source_address(family, REG),
            Side::Destination => Expr::destination_address(family, REG),
        }) else {
            return None;
        };
        let whole = prefix.is_multiple_of(8);
        let count = if whole {
            prefix / 8
        } else {
            usize::try_from(len).ok()?
        };
        self.out.push(Expr::Payload {
            base: Base::Network,
            offset,
            len: u32::try_from(count).ok()?,
            into: REG,
        });
        if !whole {
            self.out.push(Expr::Bitwise {
                from: REG,
                into: REG,
                mask: Value::from(net.netmask()),
                xor: Value::new().field(&vec![0; count]),
            });
        }
        self.compare(op, network.as_bytes().get(..count)?);
        Some(())
    }

    fn condition(&mut self, part: &Part) -> Option<()> {
        let extension = match part {
            Part::Comment(text) => Extension::comment(text)?,
            Part::Protocol(protocol) => {
                self.protocol(*protocol);
                return Some(());
            }
            Part::FromLocal => Extension::local(true),
            Part::ToLocal => Extension::local(false),
            Part::NotBridged => Extension::not_bridged(),
            Part::Marked(bit) => {
                self.mark(*bit, CmpOp::Equal);
                return Some(());
            }
            Part::NotMarked(bit) => {
                self.mark(*bit, CmpOp::NotEqual);
                return Some(());
            }
            Part::State(states) => Extension::conntrack(bits(states)?, false),
            Part::StateNot(states) => Extension::conntrack(bits(states)?, true),
            Part::OneIn(count) => Extension::random(times_in_31_bits(*count)),
            Part::Remembered(list, seconds) => Extension::recent(list, Recent::Check(*seconds))?,
            Part::Remember(list) => Extension::recent(list, Recent::Set)?,
            Part::Count(counter) => Extension::count(counter)?,
            // Mode ipvs writes its few rules by programs.
            Part::OnlyProtocol(_) | Part::FromElsewhere | Part::InSet(..) | Part::Virtual(..) => {
                return None;
            }
            Part::Port(_)
            | Part::Source(_)
            | Part::SourceNot(_)
            | Part::Destination(_)
            | Part::DestinationNot(_)
            | Part::Input(_)
            | Part::InputNot(_) => return Some(()),
        };
        self.out.push(Expr::Match(extension));
        Some(())
    }

    /// The protocol's own match.
    fn protocol(&mut self, protocol: Protocol) {
        let port = self.port.map(Port::get);
        let extension = match (protocol, port) {
            (Protocol::Sctp, port) => Extension::sctp(port),
            (Protocol::Tcp, None) => Extension::tcp(),
            (Protocol::Udp, None) => Extension::udp(),
            (Protocol::Tcp | Protocol::Udp, Some(port)) => {
                self.out.push(Expr::destination_port(REG));
                self.compare(CmpOp::Equal, &port.to_be_bytes());
                return;
            }
        };
        self.out.push(Expr::Match(extension));
    }

    fn mark(&mut self, bit: u32, op: CmpOp) {
        self.out.push(Expr::Meta {
            key: MetaKey::Mark,
            into: REG,
        });
        self.out.push(Expr::Bitwise {
            from: REG,
            into: REG,
            mask: Value::new().number(bit),
            xor: Value::new().number(0),
        });
        self.compare(op, &bit.to_ne_bytes());
    }

    fn target(&mut self, target: Target) {
        let family = kernel_family(self.family);
        self.out.extend(match target {
            Target::None => None,
            Target::Jump(chain) => Some(Expr::Verdict(Verdict::Jump(chain.as_str().into()))),
            Target::Return => Some(Expr::Verdict(Verdict::Return)),
            Target::Accept => Some(Expr::Verdict(Verdict::Accept)),
            Target::Drop => Some(Expr::Verdict(Verdict::Drop)),
            Target::Reject => Some(Expr::Target(Extension::reject(family))),
            Target::SetMark(bit) => Some(Expr::Target(Extension::mark(bit, bit))),
            Target::FlipMark(bit) => Some(Expr::Target(Extension::mark(bit, 0))),
            Target::Masquerade { random_fully } => {
                let masquerade = Extension::masquerade(family, random_fully);
                Some(Expr::Target(masquerade))
            }
            Target::Redirect(port) => Some(Expr::Target(Extension::redirect(family, port.get()))),
            Target::Dnat(ip, port) => Some(Expr::Target(Extension::dnat(ip, port.get()))),
        });
    }
}

fn bits(states: &str) -> Option<u16> {
    states.split(',').try_fold(0, |bits, name| {
        let bit = match name {
            "INVALID" => state::INVALID,
            "ESTABLISHED" => state::ESTABLISHED,
            "RELATED" => state::RELATED,
            "NEW" => state::NEW,
            "DNAT" => state::DNAT,
            _ => return None,
        };
        Some(bits | bit)
    })
}
