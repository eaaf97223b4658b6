//! Packets that the kernel counted under a name: read at every scrape, never stored.

use std::io;

use prometheus::proto::MetricFamily;

use super::names::{self, Declared};
use super::process::family;

/// A counter our rules feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketCounter {
    /// Dropped because connection tracking found them invalid.
    InvalidDropped,
    /// Accepted for a NodePort on the loopback interface.
    LocalhostAccepted,
}

impl PacketCounter {
    /// Both.
    pub const ALL: [Self; 2] = [Self::InvalidDropped, Self::LocalhostAccepted];

    /// Its name in the kernel; kube-proxy's, so that a change of program keeps the count.
    pub const fn object(self) -> &'static str {
        match self {
            Self::InvalidDropped => "ct_state_invalid_dropped_pkts",
            Self::LocalhostAccepted => "localhost_nps_accepted_pkts",
        }
    }

    const fn declared(self) -> &'static Declared {
        match self {
            Self::InvalidDropped => &names::INVALID_DROPPED,
            Self::LocalhostAccepted => &names::LOCALHOST_ACCEPTED,
        }
    }
}

/// The counters and how to read them.
pub(super) struct Packets {
    read: fn(&str) -> io::Result<u64>,
}

impl Packets {
    pub(super) const fn new(read: fn(&str) -> io::Result<u64>) -> Self {
        Self { read }
    }

    /// What the kernel says now. A counter that cannot be read is left out.
    pub(super) fn families(&self) -> impl Iterator<Item = MetricFamily> {
        PacketCounter::ALL
            .into_iter()
            .filter_map(|counter| match (self.read)(counter.object()) {
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "the exposition knows no other numbers"
                )]
                Ok(packets) => Some(family(counter.declared(), packets as f64)),
                Err(error) => {
                    let counter = counter.object();
                    tracing::error!(err = %error, counter, "Failed to read packet counter");
                    None
                }
            })
    }
}

impl std::fmt::Debug for Packets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packets").finish_non_exhaustive()
    }
}
