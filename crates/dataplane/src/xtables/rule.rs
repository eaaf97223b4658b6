//! One rule, and the two ways in which it is written.
//!
//! kube-proxy writes the parts of a rule in one order and `iptables-save` prints them in another,
//! with other spellings. A rule here knows both: the first goes to `iptables-restore`, the second
//! is compared with what is installed.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;

use ferrule_core::model::{Family, Port, Protocol, format_socket};
use ipnet::IpNet;

use super::chain::Chain;
use crate::protocol_number;

/// One rule: when all parts hold, the target happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// In kube-proxy's order. Copies share them: the steps of a first sync have every rule once more.
    pub parts: Arc<[Part]>,
    /// What happens.
    pub target: Target,
}

/// A match, or a comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A comment.
    Comment(Box<str>),
    /// This protocol, and its own conditions.
    Protocol(Protocol),
    /// This protocol, and nothing about ports.
    OnlyProtocol(Protocol),
    /// The destination port; behind a protocol.
    Port(Port),
    /// From here.
    Source(Place),
    /// From elsewhere.
    SourceNot(IpNet),
    /// To here.
    Destination(Place),
    /// To elsewhere.
    DestinationNot(IpNet),
    /// Came in by this interface; `+` at the end stands for anything.
    Input(Arc<str>),
    /// Came in by another interface.
    InputNot(Arc<str>),
    /// Did not come in by a port of a bridge.
    NotBridged,
    /// The sender's address is this machine's.
    FromLocal,
    /// The sender's address is another machine's.
    FromElsewhere,
    /// The destination is this machine's.
    ToLocal,
    /// The bit of the mark is set.
    Marked(u32),
    /// The bit of the mark is not set.
    NotMarked(u32),
    /// The connection is in one of these states.
    State(&'static str),
    /// It is in none of them.
    StateNot(&'static str),
    /// One time in so many.
    OneIn(u32),
    /// The client was put on this list within so many seconds.
    Remembered(Box<str>, u32),
    /// Puts the client on this list.
    Remember(Box<str>),
    /// Counts the packet.
    Count(&'static str),
    /// These of its addresses and ports are in this set.
    InSet(Box<(&'static str, &'static str)>),
    /// IPVS sent it to a destination of this virtual server.
    Virtual(IpAddr, Protocol, Port),
}

/// An address or a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// One address.
    Host(IpAddr),
    /// A network.
    Net(IpNet),
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Nothing: the rule is a comment.
    None,
    /// Goes through this chain, and comes back.
    Jump(Chain),
    /// Leaves this chain.
    Return,
    /// Passes.
    Accept,
    /// Is lost.
    Drop,
    /// Is refused.
    Reject,
    /// Gets this bit of the mark.
    SetMark(u32),
    /// Gets this bit of the mark changed.
    FlipMark(u32),
    /// Gets this node's address as its source.
    Masquerade {
        /// From any free port.
        random_fully: bool,
    },
    /// Gets this destination.
    Dnat(IpAddr, Port),
    /// Gets an address of this machine as its destination, and this port.
    Redirect(Port),
}

impl Rule {
    /// A rule of these parts.
    pub fn new(parts: impl Into<Arc<[Part]>>, target: Target) -> Self {
        Self {
            parts: parts.into(),
            target,
        }
    }

    /// Writes it as kube-proxy does, behind the name of the chain.
    pub fn restore(&self, out: &mut String) {
        for part in &*self.parts {
            part.restore(out).expect(STRING);
        }
        self.target.restore(out).expect(STRING);
    }

    /// Writes it as `iptables-save` does, behind the name of the chain.
    pub fn saved(&self, family: Family, out: &mut String) {
        // Addresses, interface and protocol come first, whatever the order was.
        let ranks: [fn(&Part) -> bool; 4] = [
            |part| matches!(part, Part::Source(_) | Part::SourceNot(_)),
            |part| matches!(part, Part::Destination(_) | Part::DestinationNot(_)),
            |part| matches!(part, Part::Input(_) | Part::InputNot(_)),
            |part| matches!(part, Part::Protocol(_) | Part::OnlyProtocol(_)),
        ];
        for rank in ranks {
            for part in self.parts.iter().filter(|part| rank(part)) {
                part.saved_header(out).expect(STRING);
            }
        }
        let port = self.parts.iter().find_map(|part| match part {
            Part::Port(port) => Some(*port),
            _ => None,
        });
        for part in &*self.parts {
            part.saved_match(family, port, out).expect(STRING);
        }
        self.target.saved(family, out).expect(STRING);
    }
}

const STRING: &str = "a string takes all text";

/// The text of a comment. What would end it early is replaced, so that one odd name harms only
/// itself.
fn plain(text: &str) -> Cow<'_, str> {
    let odd = |c: char| matches!(c, '"' | '\\') || c.is_control();
    if text.contains(odd) {
        text.replace(odd, "?").into()
    } else {
        text.into()
    }
}

impl Part {
    fn restore(&self, out: &mut String) -> fmt::Result {
        match self {
            // Blanks would end the word.
            Self::Comment(text) if text.contains(' ') => {
                write!(out, " -m comment --comment \"{}\"", plain(text))
            }
            Self::Comment(text) => write!(out, " -m comment --comment {}", plain(text)),
            Self::Protocol(protocol) => {
                let word = protocol.lower();
                write!(out, " -m {word} -p {word}")
            }
            Self::OnlyProtocol(protocol) => write!(out, " -p {}", protocol.lower()),
            Self::Port(port) => write!(out, " --dport {port}"),
            Self::Source(place) => write!(out, " -s {place}"),
            Self::SourceNot(net) => write!(out, " ! -s {net}"),
            Self::Destination(place) => write!(out, " -d {place}"),
            Self::DestinationNot(net) => write!(out, " ! -d {net}"),
            Self::Input(name) => write!(out, " -i {name}"),
            Self::InputNot(name) => write!(out, " ! -i {name}"),
            Self::NotBridged => out.write_str(" -m physdev ! --physdev-is-in"),
            Self::FromLocal => out.write_str(" -m addrtype --src-type LOCAL"),
            Self::FromElsewhere => out.write_str(" -m addrtype ! --src-type LOCAL"),
            Self::ToLocal => out.write_str(" -m addrtype --dst-type LOCAL"),
            Self::Marked(bit) => write!(out, " -m mark --mark {0}/{0}", Mark(*bit)),
            Self::NotMarked(bit) => write!(out, " -m mark ! --mark {0}/{0}", Mark(*bit)),
            Self::State(states) => write!(out, " -m conntrack --ctstate {states}"),
            Self::StateNot(states) => write!(out, " -m conntrack ! --ctstate {states}"),
            Self::OneIn(count) => write!(
                out,
                " -m statistic --mode random --probability {:.10}",
                1.0 / f64::from(*count)
            ),
            Self::Remembered(list, seconds) => write!(
                out,
                " -m recent --name {list} --rcheck --seconds {seconds} --reap"
            ),
            Self::Remember(list) => write!(out, " -m recent --name {list} --set"),
            Self::Count(counter) => write!(out, " -m nfacct --nfacct-name {counter}"),
            Self::InSet(set) => write!(out, " -m set --match-set {} {}", set.0, set.1),
            Self::Virtual(ip, protocol, port) => write!(
                out,
                " -m ipvs --vaddr {ip} --vproto {} --vport {port}",
                protocol.lower()
            ),
        }
    }

    /// What `iptables-save` prints before all conditions.
    fn saved_header(&self, out: &mut String) -> fmt::Result {
        match self {
            Self::Source(place) => write!(out, " -s {}", place.net()),
            Self::SourceNot(net) => write!(out, " ! -s {net}"),
            Self::Destination(place) => write!(out, " -d {}", place.net()),
            Self::DestinationNot(net) => write!(out, " ! -d {net}"),
            Self::Input(name) => write!(out, " -i {name}"),
            Self::InputNot(name) => write!(out, " ! -i {name}"),
            Self::Protocol(protocol) | Self::OnlyProtocol(protocol) => {
                write!(out, " -p {}", protocol.lower())
            }
            _ => Ok(()),
        }
    }

    /// What it prints where the condition stood; nothing for what was printed before.
    fn saved_match(&self, family: Family, port: Option<Port>, out: &mut String) -> fmt::Result {
        let mask = match family {
            Family::V4 => "255.255.255.255",
            Family::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        };
        match self {
            Self::Source(_)
            | Self::SourceNot(_)
            | Self::Destination(_)
            | Self::DestinationNot(_)
            | Self::Input(_)
            | Self::InputNot(_)
            | Self::OnlyProtocol(_)
            | Self::Port(_) => Ok(()),
            Self::Comment(text) => {
                let text = plain(text).replace('\'', "\\'");
                write!(out, " -m comment --comment \"{text}\"")
            }
            Self::Protocol(protocol) => {
                write!(out, " -m {}", protocol.lower())?;
                port.map_or(Ok(()), |port| write!(out, " --dport {port}"))
            }
            Self::Marked(bit) => write!(out, " -m mark --mark {bit:#x}/{bit:#x}"),
            Self::NotMarked(bit) => write!(out, " -m mark ! --mark {bit:#x}/{bit:#x}"),
            Self::OneIn(count) => {
                let kept = f64::from(times_in_31_bits(*count)) / SCALE;
                write!(out, " -m statistic --mode random --probability {kept:.11}")
            }
            Self::Remembered(list, seconds) => write!(
                out,
                " -m recent --rcheck --seconds {seconds} --reap --name {list} --mask {mask} --rsource"
            ),
            Self::Remember(list) => {
                write!(
                    out,
                    " -m recent --set --name {list} --mask {mask} --rsource"
                )
            }
            // Two blanks: iptables writes so.
            Self::Count(counter) => write!(out, " -m nfacct --nfacct-name  {counter}"),
            Self::Virtual(ip, protocol, port) => write!(
                out,
                " -m ipvs --vproto {} --vaddr {ip} --vport {port}",
                protocol_number(*protocol)
            ),
            Self::NotBridged
            | Self::FromLocal
            | Self::FromElsewhere
            | Self::ToLocal
            | Self::State(_)
            | Self::StateNot(_)
            | Self::InSet(..) => self.restore(out),
        }
    }
}

const SCALE: f64 = 2_147_483_648.0;

/// One in so many, as the kernel keeps it: so many times in 2³¹. iptables is given ten decimals.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is from 0 to 2³¹"
)]
pub fn times_in_31_bits(count: u32) -> u32 {
    let given = (1e10 / f64::from(count)).round() / 1e10;
    (given * SCALE).round() as u32
}

impl Target {
    fn restore(self, out: &mut String) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Jump(chain) => write!(out, " -j {chain}"),
            Self::Return => out.write_str(" -j RETURN"),
            Self::Accept => out.write_str(" -j ACCEPT"),
            Self::Drop => out.write_str(" -j DROP"),
            Self::Reject => out.write_str(" -j REJECT"),
            Self::SetMark(bit) => write!(out, " -j MARK --or-mark {}", Mark(bit)),
            Self::FlipMark(bit) => write!(out, " -j MARK --xor-mark {}", Mark(bit)),
            Self::Masquerade { random_fully } => {
                let option = if random_fully { " --random-fully" } else { "" };
                write!(out, " -j MASQUERADE{option}")
            }
            Self::Dnat(ip, port) => {
                let to = format_socket(ip, port);
                write!(out, " -j DNAT --to-destination {to}")
            }
            Self::Redirect(port) => write!(out, " -j REDIRECT --to-ports {port}"),
        }
    }

    fn saved(self, family: Family, out: &mut String) -> fmt::Result {
        match self {
            Self::Reject => {
                let with = match family {
                    Family::V4 => "icmp-port-unreachable",
                    Family::V6 => "icmp6-port-unreachable",
                };
                write!(out, " -j REJECT --reject-with {with}")
            }
            Self::SetMark(bit) => write!(out, " -j MARK --set-xmark {bit:#x}/{bit:#x}"),
            Self::FlipMark(bit) => write!(out, " -j MARK --set-xmark {bit:#x}/0x0"),
            other => other.restore(out),
        }
    }
}

impl Place {
    /// The network that holds just this.
    pub fn net(self) -> IpNet {
        match self {
            Self::Host(ip) => ip.into(),
            Self::Net(net) => net,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(ip) => ip.fmt(f),
            Self::Net(net) => net.fmt(f),
        }
    }
}

/// A bit of the mark as kube-proxy writes it.
struct Mark(u32);

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(rule: &Rule) -> (String, String) {
        let (mut restore, mut saved) = (String::new(), String::new());
        rule.restore(&mut restore);
        rule.saved(Family::V4, &mut saved);
        (restore, saved)
    }

    #[test]
    fn ipt_005_marks_have_eight_digits_for_every_bit() {
        for bit in 0..32 {
            let text = Mark(1 << bit).to_string();
            assert_eq!(text.len(), 10, "{text}");
            assert_eq!(u32::from_str_radix(&text[2..], 16).unwrap(), 1 << bit);
        }
        let (restore, saved) = both(&Rule::new([], Target::SetMark(1 << 14)));
        assert_eq!(restore, " -j MARK --or-mark 0x00004000");
        assert_eq!(saved, " -j MARK --set-xmark 0x4000/0x4000");
    }

    #[test]
    fn a_comment_cannot_end_its_rule() {
        for (text, given, kept) in [
            ("a\nCOMMIT", " a?COMMIT", " \"a?COMMIT\""),
            (
                "a b\" -j ACCEPT #\\",
                " \"a b? -j ACCEPT #?\"",
                " \"a b? -j ACCEPT #?\"",
            ),
        ] {
            let start = " -m comment --comment";
            let rule = Rule::new([Part::Comment(text.into())], Target::None);
            let expected = (format!("{start}{given}"), format!("{start}{kept}"));
            assert_eq!(both(&rule), expected);
        }
    }

    #[test]
    fn parts_are_small_because_there_are_very_many() {
        assert!(size_of::<Part>() <= 24, "{}", size_of::<Part>());
        assert!(size_of::<Rule>() <= 56, "{}", size_of::<Rule>());
    }

    #[test]
    fn ipt_050_probabilities_have_ten_decimals() {
        let text = |count| both(&Rule::new([Part::OneIn(count)], Target::None));
        let start = " -m statistic --mode random --probability ";
        for (count, given, kept) in [
            (2, "0.5000000000", "0.50000000000"),
            (3, "0.3333333333", "0.33333333349"),
            (4, "0.2500000000", "0.25000000000"),
            (100_001, "0.0000099999", "0.00001000008"),
        ] {
            let (restore, saved) = text(count);
            assert_eq!(restore, format!("{start}{given}"));
            assert_eq!(saved, format!("{start}{kept}"));
        }
    }

    #[test]
    fn parts_move_to_where_iptables_save_prints_them() {
        let net: IpNet = "10.0.0.0/8".parse().unwrap();
        let rule = Rule::new(
            [
                Part::Comment("a b".into()),
                Part::Protocol(Protocol::Tcp),
                Part::Destination(Place::Host([10, 96, 0, 1].into())),
                Part::Port(Port::new(80).unwrap()),
                Part::SourceNot(net),
            ],
            Target::Reject,
        );
        let (restore, saved) = both(&rule);
        assert_eq!(
            restore,
            " -m comment --comment \"a b\" -m tcp -p tcp -d 10.96.0.1 --dport 80 ! -s 10.0.0.0/8 \
             -j REJECT"
        );
        assert_eq!(
            saved,
            " ! -s 10.0.0.0/8 -d 10.96.0.1/32 -p tcp -m comment --comment \"a b\" -m tcp \
             --dport 80 -j REJECT --reject-with icmp-port-unreachable"
        );
    }
}
