//! What a rule does, one expression after the other.
//!
//! Expressions talk through registers: some load them, some compare or change them, some act.
//! The types here are both written and read, so that a rule that comes back from the kernel equals
//! the one that was sent. Expressions that we never use are read as [`Expr::Unknown`].

use std::time::Duration;

use super::compat::Extension;
use super::value::{Name, Value, Verdict};
use crate::Family;
use crate::wire::Malformed;

mod decode;
mod encode;

/// One of sixteen registers of four bytes each. Longer values lie in several, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reg(u8);

impl Reg {
    /// The first register.
    pub const FIRST: Self = Self(0);

    /// The register with this number.
    ///
    /// # Panics
    /// There are 16.
    pub const fn new(number: u8) -> Self {
        assert!(number < 16, "there are 16 registers");
        Self(number)
    }

    /// The number of the register, from 0.
    pub const fn index(self) -> u8 {
        self.0
    }

    /// As the kernel itself writes it: every fourth one under the name that it had when registers
    /// were of sixteen bytes.
    fn number(self) -> u32 {
        let number = u32::from(self.0);
        if number.is_multiple_of(4) {
            1 + number / 4
        } else {
            8 + number
        }
    }

    fn from_number(number: u32) -> Result<Self, Malformed> {
        let index = match number {
            1..=4 => (number - 1) * 4,
            8..=23 => number - 8,
            _ => return Err(Malformed("expression: no such register")),
        };
        u8::try_from(index)
            .map(Self)
            .map_err(|_| Malformed("expression: no such register"))
    }
}

/// Declares an enum whose variants the kernel knows by number. Other numbers are kept.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
            /// Something that we never ask for.
            Other(u32),
        }

        impl $name {
            pub(super) const fn number(self) -> u32 {
                match self {
                    $(Self::$variant => $number,)*
                    Self::Other(number) => number,
                }
            }

            pub(super) const fn from_number(number: u32) -> Self {
                match number {
                    $($number => Self::$variant,)*
                    other => Self::Other(other),
                }
            }
        }
    };
}
pub(super) use numbered;

numbered! {
    /// Where in a packet offsets are counted from.
    Base {
        /// The link header.
        Link = 0,
        /// The IP header.
        Network = 1,
        /// The TCP, UDP or SCTP header.
        Transport = 2,
    }
}

numbered! {
    /// What is known about a packet beside its content.
    MetaKey {
        /// The packet's mark.
        Mark = 3,
        /// Name of the interface that it came in by.
        InputName = 6,
        /// Name of the interface that it will leave by.
        OutputName = 7,
        /// TCP, UDP and so on.
        Protocol = 16,
    }
}

numbered! {
    /// What is known about a packet's connection.
    CtKey {
        /// Bits: invalid 1, established 2, related 4, new 8.
        State = 0,
        /// One byte: 0 in the direction of the packet that began it, 1 in the other.
        Direction = 1,
        /// Bits; 0x10: the source was translated, 0x20: the destination was.
        Status = 2,
        /// The connection's mark.
        Mark = 3,
    }
}

numbered! {
    /// How two values are compared.
    CmpOp {
        /// They are equal.
        Equal = 0,
        /// They are not.
        NotEqual = 1,
        /// The register's is less.
        Less = 2,
        /// The register's is less or equal.
        LessOrEqual = 3,
        /// The register's is greater.
        Greater = 4,
        /// The register's is greater or equal.
        GreaterOrEqual = 5,
    }
}

numbered! {
    /// How numbers are generated.
    NumgenKind {
        /// One after the other.
        Incremental = 0,
        /// At random, all equally often.
        Random = 1,
    }
}

numbered! {
    /// Which address is translated.
    NatKind {
        /// The source.
        Source = 0,
        /// The destination.
        Destination = 1,
    }
}

numbered! {
    /// What is asked of the routing table.
    FibResult {
        /// The interface that leads there.
        Interface = 1,
        /// Its name.
        InterfaceName = 2,
        /// What kind of address it is; 2 is local.
        AddressType = 3,
    }
}

numbered! {
    /// What a rule does to a set.
    DynsetOp {
        /// Adds an element that is not there.
        Add = 0,
        /// Adds it, or begins its time anew.
        Update = 1,
        /// Removes it.
        Delete = 2,
    }
}

/// A packet that answers; see [`CtKey::Direction`].
pub const CT_REPLY: u8 = 1;
/// The connection's state of a packet that begins one; see [`CtKey::State`].
pub const CT_NEW: u32 = 8;
/// The destination of the connection was translated; see [`CtKey::Status`].
pub const CT_DNAT: u32 = 0x20;
/// Any free port will do, chosen at random; see [`Expr::Masquerade`].
pub const NAT_FULLY_RANDOM: u32 = 0x10;
/// Look at the source address; see [`Expr::Fib`].
pub const FIB_SOURCE: u32 = 1;
/// Look at the destination address; see [`Expr::Fib`].
pub const FIB_DESTINATION: u32 = 2;
/// An address of this machine; see [`FibResult::AddressType`].
pub const ADDRESS_LOCAL: u32 = 2;

/// How the sender learns that a packet was not welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reject {
    /// By ICMP or `ICMPv6`, whichever fits the table, with this code.
    Unreachable(u8),
    /// By a TCP reset.
    Reset,
    /// By ICMP in a table of both families, with this code.
    UnreachableBoth(u8),
}

impl Reject {
    /// Nobody listens on this port.
    pub const fn port_unreachable(family: Family) -> Self {
        match family {
            Family::V4 => Self::Unreachable(3),
            Family::V6 => Self::Unreachable(4),
        }
    }
}

/// What a lookup gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// Only whether the key is there: the rule ends if it is not.
    Present,
    /// The rule ends if it is.
    Absent,
    /// The element's data, in a register.
    Value(Reg),
    /// The element's data, as the verdict.
    Verdict,
}

/// One expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the fields are named as their types explain")]
pub enum Expr {
    /// Loads bytes of the packet.
    Payload {
        base: Base,
        offset: u32,
        len: u32,
        into: Reg,
    },
    /// Loads something known about the packet.
    Meta { key: MetaKey, into: Reg },
    /// Changes something known about the packet.
    SetMeta { key: MetaKey, from: Reg },
    /// Loads something known about the packet's connection.
    Ct { key: CtKey, into: Reg },
    /// Changes something known about the packet's connection.
    SetCt { key: CtKey, from: Reg },
    /// Ends the rule unless the comparison holds.
    Cmp { op: CmpOp, reg: Reg, value: Value },
    /// Computes `(from & mask) ^ xor`.
    Bitwise {
        from: Reg,
        into: Reg,
        mask: Value,
        xor: Value,
    },
    /// Looks a key up in a set or map.
    Lookup { set: Name, key: Reg, found: Found },
    /// Loads a constant.
    Load { value: Value, into: Reg },
    /// Decides.
    Verdict(Verdict),
    /// Refuses, and says so to the sender.
    Reject(Reject),
    /// Loads a number from `offset` to `offset + modulus - 1`.
    Numgen {
        kind: NumgenKind,
        modulus: u32,
        offset: u32,
        into: Reg,
    },
    /// Loads a number from `offset` to `offset + modulus - 1`, the same for the same bytes.
    Hash {
        from: Reg,
        len: u32,
        modulus: u32,
        seed: u32,
        offset: u32,
        into: Reg,
    },
    /// Translates an address and a port. Flags other than those that say which are in `flags`.
    Nat {
        kind: NatKind,
        family: Family,
        address: Option<Reg>,
        port: Option<Reg>,
        flags: u32,
    },
    /// Translates the source to this machine's.
    Masquerade { flags: u32 },
    /// Translates the destination to this machine's: to the first address of the interface that the
    /// packet came in by, or to loopback if it was sent from here.
    Redirect { port: Reg },
    /// Asks the routing table.
    Fib {
        result: FibResult,
        flags: u32,
        into: Reg,
    },
    /// Adds to a set or removes from it. Without `timeout` the set's own holds.
    Dynset {
        set: Name,
        op: DynsetOp,
        key: Reg,
        data: Option<Reg>,
        timeout: Option<Duration>,
    },
    /// Counts.
    Counter { packets: u64, bytes: u64 },
    /// Ends the rule unless a match of iptables holds.
    Match(Extension),
    /// A target of iptables acts.
    Target(Extension),
    /// Something that we never use, as the kernel described it.
    Unknown { name: Name, data: Box<[u8]> },
}

impl Expr {
    /// Loads the source address.
    pub const fn source_address(family: Family, into: Reg) -> Self {
        let offset = match family {
            Family::V4 => 12,
            Family::V6 => 8,
        };
        Self::network(offset, family, into)
    }

    /// Loads the destination address.
    pub const fn destination_address(family: Family, into: Reg) -> Self {
        let offset = match family {
            Family::V4 => 16,
            Family::V6 => 24,
        };
        Self::network(offset, family, into)
    }

    /// Loads the source port.
    pub const fn source_port(into: Reg) -> Self {
        Self::transport(0, into)
    }

    /// Loads the destination port.
    pub const fn destination_port(into: Reg) -> Self {
        Self::transport(2, into)
    }

    /// Loads the number of the protocol above IP.
    pub const fn protocol(into: Reg) -> Self {
        Self::Meta {
            key: MetaKey::Protocol,
            into,
        }
    }

    /// Ends the rule unless a register holds this value.
    pub const fn equal(reg: Reg, value: Value) -> Self {
        Self::Cmp {
            op: CmpOp::Equal,
            reg,
            value,
        }
    }

    /// Ends the rule if a register holds this value.
    pub const fn not_equal(reg: Reg, value: Value) -> Self {
        Self::Cmp {
            op: CmpOp::NotEqual,
            reg,
            value,
        }
    }

    const fn network(offset: u32, family: Family, into: Reg) -> Self {
        Self::Payload {
            base: Base::Network,
            offset,
            len: family.address_len(),
            into,
        }
    }

    const fn transport(offset: u32, into: Reg) -> Self {
        Self::Payload {
            base: Base::Transport,
            offset,
            len: 2,
            into,
        }
    }
}
