//! Matches and targets of iptables, as rules of `nf_tables` carry them.
//!
//! Each is known by a name and a revision, and has a structure of its own that only its module
//! understands. The structures are those of `linux/netfilter/xt_*.h`, `ipt_*.h` and `ip6t_*.h`, in
//! the revisions that iptables 1.8.9 uses. What the kernel keeps behind them for itself is zero,
//! and it says so when asked.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::Family;

/// A match or a target of iptables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Extension {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Which of its structures it is.
    pub revision: u32,
    /// The structure.
    pub info: Box<[u8]>,
}

/// What `recent` does with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recent {
    /// Puts it on the list.
    Set,
    /// Holds if it was put on the list within so many seconds. Older ones are removed.
    Check(u32),
}

/// States of a connection, each a bit: `XT_CONNTRACK_STATE_BIT` of `xt_conntrack.h`.
pub mod state {
    /// It belongs to no connection.
    pub const INVALID: u16 = 0x1;
    /// Packets went both ways.
    pub const ESTABLISHED: u16 = 0x2;
    /// Another connection brought it about.
    pub const RELATED: u16 = 0x4;
    /// It is the first.
    pub const NEW: u16 = 0x8;
    /// Its destination was translated.
    pub const DNAT: u16 = 0x80;
}

/// Longest comment, in bytes; one more ends it.
pub const LONGEST_COMMENT: usize = 255;
/// Longest name of a list of clients.
const LONGEST_LIST: usize = 199;
/// Longest name of a counter.
const LONGEST_COUNTER: usize = 31;

const NAT_ADDRESS: u32 = 0x1;
const NAT_PORT: u32 = 0x2;
const NAT_FULLY_RANDOM: u32 = 0x10;

impl Extension {
    fn new(name: &'static str, revision: u32, info: Info) -> Self {
        Self {
            name: Cow::Borrowed(name),
            revision,
            info: info.finish(),
        }
    }

    /// A comment: `xt_comment_info`. `None` if it is too long.
    pub fn comment(text: &str) -> Option<Self> {
        let info = Info::default().text(text, LONGEST_COMMENT)?;
        Some(Self::new("comment", 0, info))
    }

    /// Well-formed TCP, whichever its ports are: `xt_tcp`.
    pub fn tcp() -> Self {
        Self::new("tcp", 0, Info::default().any_ports().zeros(4))
    }

    /// Well-formed UDP, whichever its ports are: `xt_udp`.
    pub fn udp() -> Self {
        Self::new("udp", 0, Info::default().any_ports().zeros(1))
    }

    /// SCTP to this port: `xt_sctp_info`.
    pub fn sctp(port: Option<u16>) -> Self {
        const DESTINATION: u32 = 0x2;
        let (first, last) = port.map_or((0, 0), |port| (port, port));
        let flags = if port.is_some() { DESTINATION } else { 0 };
        let info = Info::default()
            .ports(first, last)
            .ports(0, 0)
            // Which chunks, and how they are looked at.
            .zeros(256 + 4)
            // Flags of chunks, unused.
            .bytes(&[0xff, 0, 0].repeat(4))
            .zeros(4)
            .u32(flags)
            .u32(0);
        Self::new("sctp", 0, info)
    }

    /// The connection is in one of these states, or in none of them: `xt_conntrack_mtinfo3`.
    pub fn conntrack(states: u16, inverted: bool) -> Self {
        const BY_STATE: u16 = 0x1;
        let info = Info::default()
            // Addresses, expiry, protocol and ports.
            .zeros(8 * 16 + 2 * 4 + 2 + 4 * 2)
            .u16(BY_STATE)
            .u16(if inverted { BY_STATE } else { 0 })
            .u16(states)
            // Status and the ends of ranges of ports.
            .zeros(2 + 4 * 2);
        Self::new("conntrack", 3, info)
    }

    /// The sender's address, or that of the destination, is this machine's:
    /// `xt_addrtype_info_v1`.
    pub fn local(source: bool) -> Self {
        const LOCAL: u16 = 0x4;
        let kinds = if source { (LOCAL, 0) } else { (0, LOCAL) };
        let info = Info::default().u16(kinds.0).u16(kinds.1).u32(0);
        Self::new("addrtype", 1, info)
    }

    /// Holds at random, so many times in 2³¹: `xt_statistic_info`.
    pub fn random(times: u32) -> Self {
        let info = Info::default()
            // Mode and flags.
            .zeros(4)
            .u32(times)
            .zeros(4)
            // Where another mode counts: iptables fills it in every mode.
            .u32(times)
            // The kernel's own.
            .zeros(8);
        Self::new("statistic", 0, info)
    }

    /// Looks for a client on a list, or puts it there: `xt_recent_mtinfo_v1`. `None` if the
    /// list's name is too long.
    pub fn recent(list: &str, what: Recent) -> Option<Self> {
        const CHECK: u8 = 0x1;
        const SET: u8 = 0x2;
        const REAP: u8 = 0x20;
        let (seconds, flags) = match what {
            Recent::Set => (0, SET),
            Recent::Check(seconds) => (seconds, CHECK | REAP),
        };
        let info = Info::default()
            .u32(seconds)
            .u32(0)
            .bytes(&[flags, 0])
            .text(list, LONGEST_LIST)?
            // By source, and a byte to the next number.
            .zeros(2)
            .bytes(&[0xff; 16]);
        Some(Self::new("recent", 1, info))
    }

    /// Counts in a counter that exists: `xt_nfacct_match_info_v1`. `None` if the name is too long.
    pub fn count(counter: &str) -> Option<Self> {
        let info = Info::default().text(counter, LONGEST_COUNTER)?.zeros(8);
        Some(Self::new("nfacct", 1, info))
    }

    /// `mark = (mark & !cleared) ^ flipped`: `xt_mark_tginfo2`.
    pub fn mark(flipped: u32, cleared: u32) -> Self {
        Self::new("MARK", 2, Info::default().u32(flipped).u32(cleared))
    }

    /// Gives a packet this destination: `nf_nat_range2`.
    pub fn dnat(ip: IpAddr, port: u16) -> Self {
        let info = Info::default()
            .u32(NAT_ADDRESS | NAT_PORT)
            .address(ip)
            .address(ip)
            .port(port)
            .port(port)
            .port(0);
        Self::new("DNAT", 2, info)
    }

    /// Gives a packet this machine's address, and this port, as its destination:
    /// `nf_nat_ipv4_multi_range_compat`, `nf_nat_range`.
    pub fn redirect(family: Family, port: u16) -> Self {
        let info = match family {
            // One range, of a port.
            Family::V4 => Info::default().u32(1).u32(NAT_PORT).zeros(4 + 4),
            Family::V6 => Info::default().u32(NAT_PORT).zeros(16 + 16),
        };
        Self::new("REDIRECT", 0, info.port(port).port(port))
    }

    /// Did not come in by a port of a bridge: `xt_physdev_info`.
    pub fn not_bridged() -> Self {
        const IS_IN: u8 = 0x8;
        // Names of interfaces and their masks, inwards and outwards.
        let info = Info::default().zeros(4 * 16).bytes(&[IS_IN, IS_IN]);
        Self::new("physdev", 0, info)
    }

    /// Gives a packet this machine's address as its source: `nf_nat_ipv4_multi_range_compat`,
    /// `nf_nat_range`.
    pub fn masquerade(family: Family, fully_random: bool) -> Self {
        let flags = if fully_random { NAT_FULLY_RANDOM } else { 0 };
        let info = match family {
            // One range, of nothing.
            Family::V4 => Info::default().u32(1).u32(flags).zeros(4 + 4 + 2 + 2),
            Family::V6 => Info::default().u32(flags).zeros(16 + 16 + 2 + 2),
        };
        Self::new("MASQUERADE", 0, info)
    }

    /// Rejects with ICMP port unreachable: `ipt_reject_info`, `ip6t_reject_info`.
    pub fn reject(family: Family) -> Self {
        let with = match family {
            Family::V4 => 3,
            Family::V6 => 4,
        };
        Self::new("REJECT", 0, Info::default().u32(with))
    }

    /// The text of a comment; `None` if this is something else.
    pub fn as_comment(&self) -> Option<Cow<'_, str>> {
        let end = self.info.iter().position(|byte| *byte == 0);
        (self.name == "comment")
            .then(|| String::from_utf8_lossy(&self.info[..end.unwrap_or(self.info.len())]))
    }
}

/// A structure that is being written. Numbers are in this machine's order.
#[derive(Default)]
struct Info(Vec<u8>);

impl Info {
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn zeros(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    fn u16(self, number: u16) -> Self {
        self.bytes(&number.to_ne_bytes())
    }

    fn u32(self, number: u32) -> Self {
        self.bytes(&number.to_ne_bytes())
    }

    /// A range of ports.
    fn ports(self, first: u16, last: u16) -> Self {
        self.u16(first).u16(last)
    }

    /// Every source and destination port.
    fn any_ports(self) -> Self {
        self.ports(0, u16::MAX).ports(0, u16::MAX)
    }

    /// A port as packets have it.
    fn port(self, port: u16) -> Self {
        self.bytes(&port.to_be_bytes())
    }

    /// An address of any family.
    fn address(self, ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => self.bytes(&v4.octets()).zeros(12),
            IpAddr::V6(v6) => self.bytes(&v6.octets()),
        }
    }

    /// A text of at most so many bytes, with its end marked.
    fn text(self, text: &str, longest: usize) -> Option<Self> {
        let fits = text.len() <= longest && !text.contains('\0');
        fits.then(|| self.bytes(text.as_bytes()).zeros(longest + 1 - text.len()))
    }

    /// Structures end where the longest number would begin.
    fn finish(mut self) -> Box<[u8]> {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernel_wants_them() {
        let v4 = IpAddr::from([10, 0, 0, 1]);
        for (extension, len) in [
            (Extension::comment("").unwrap(), 256),
            (Extension::tcp(), 16),
            (Extension::udp(), 16),
            (Extension::sctp(Some(80)), 296),
            (Extension::conntrack(state::NEW, false), 168),
            (Extension::local(true), 8),
            (Extension::random(1), 24),
            (Extension::recent("x", Recent::Set).unwrap(), 232),
            (Extension::count("x").unwrap(), 40),
            (Extension::mark(1, 1), 8),
            (Extension::dnat(v4, 80), 48),
            (Extension::masquerade(Family::V4, true), 24),
            (Extension::masquerade(Family::V6, true), 40),
            (Extension::redirect(Family::V4, 80), 24),
            (Extension::redirect(Family::V6, 80), 40),
            (Extension::not_bridged(), 72),
            (Extension::reject(Family::V4), 8),
        ] {
            assert_eq!(extension.info.len(), len, "{}", extension.name);
        }
    }

    #[test]
    fn what_is_too_long_is_not_cut() {
        assert!(Extension::comment(&"x".repeat(LONGEST_COMMENT)).is_some());
        assert!(Extension::comment(&"x".repeat(LONGEST_COMMENT + 1)).is_none());
        assert!(Extension::recent(&"x".repeat(200), Recent::Set).is_none());
        assert!(Extension::count(&"x".repeat(32)).is_none());
        assert!(Extension::comment("a\0b").is_none());
    }

    #[test]
    fn remarks_are_read_back() {
        let comment = Extension::comment("a b").unwrap();
        assert_eq!(comment.as_comment().as_deref(), Some("a b"));
        assert_eq!(Extension::tcp().as_comment(), None);
    }
}
