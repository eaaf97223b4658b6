//! Every conversation with Linux.
//!
//! In: typed requests. Out: typed answers, or an error that says what helps. The bytes between are
//! netlink's: [`wire`] writes and reads them, [`socket`] carries them, [`exchange`] matches answers
//! to requests. [`nft`], [`conntrack`], [`route`], [`ipset`] and [`ipvs`] are the protocols.
//! [`xt`] alone runs programs instead. [`inet`] is not about netlink: the sockets of mode userspace.
//!
//! Nothing here knows Kubernetes, and nothing is decided here. What the kernel says is never
//! trusted to be well formed.

pub mod conntrack;
pub mod exchange;
pub mod inet;
pub mod ipset;
pub mod ipvs;
pub mod memory;
pub mod netns;
pub mod nfacct;
pub mod nft;
pub mod passing;
#[cfg(any(test, feature = "testing"))]
pub mod recorder;
pub mod route;
pub mod socket;
pub mod wire;
pub mod xt;

/// IPv4 or IPv6, as the kernel numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

impl Family {
    /// The number used in messages: that of both the address family and the netfilter protocol.
    pub const fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    /// The family with this number, if it is one of ours.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            2 => Some(Self::V4),
            10 => Some(Self::V6),
            _ => None,
        }
    }

    /// Bytes in an address.
    pub const fn address_len(self) -> u32 {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }
}

/// An error with all its causes on one line, each said once: libraries differ in whether an error
/// repeats its cause.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = error.source();
    }
    text
}
