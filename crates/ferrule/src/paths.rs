//! Entrances for those who measure parts of this program or try them with anything: what comes from the
//! API server in protobuf, and the pace of syncs.

use std::time::Duration;

use ferrule_core::issue::Kind;

use crate::clock::Time;
use crate::sync::{Limits, Pace, RestBy};
use crate::watch::kubernetes::reading::{self, Shape};

/// What an API server is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collection {
    /// Services.
    Services,
    /// EndpointSlices.
    EndpointSlices,
    /// The Node.
    Nodes,
    /// ServiceCIDRs.
    ServiceCidrs,
    /// What servers without EndpointSlices have.
    Endpoints,
}

impl Collection {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Services,
        Self::EndpointSlices,
        Self::Nodes,
        Self::ServiceCidrs,
        Self::Endpoints,
    ];

    const fn arrives_as(self) -> (Kind, Shape) {
        match self {
            Self::Services => (Kind::Service, Shape::Own),
            Self::EndpointSlices => (Kind::EndpointSlice, Shape::Own),
            Self::Nodes => (Kind::Node, Shape::Own),
            Self::ServiceCidrs => (Kind::ServiceCidr, Shape::Own),
            Self::Endpoints => (Kind::EndpointSlice, Shape::Endpoints),
        }
    }
}

/// Reads a list in protobuf that comes in pieces of at most so many bytes; how many events it made.
///
/// # Errors
/// What is wrong with it.
pub fn read_list(of: Collection, list: &[u8], piece: usize) -> Result<usize, String> {
    let pieces = list.chunks(piece.max(1));
    reading::list(of.arrives_as(), pieces).map_err(|failure| failure.to_string())
}

/// Reads a watch in protobuf that comes in pieces of at most so many bytes; how many events it made.
///
/// # Errors
/// What is wrong with it.
pub fn read_watch(of: Collection, watch: &[u8], piece: usize) -> Result<usize, String> {
    let pieces = watch.chunks(piece.max(1));
    reading::watch(of.arrives_as(), pieces).map_err(|failure| failure.to_string())
}

/// Lets so many changes come, one by one, each programmed when the rest after the last one is over;
/// how many syncs they took.
#[must_use]
pub fn follow_pace(changes: u32) -> u32 {
    let limits = Limits {
        min: Duration::from_secs(1),
        rest: RestBy::Cost,
        retry: Duration::from_secs(30),
        max: Duration::from_hours(1),
    };
    let mut now = Time::now().steady;
    let mut pace = Pace::new(limits, now);
    let mut syncs = 0;
    for change in 0..changes {
        pace.want();
        now = pace.deadline(now);
        if pace.is_due(now) {
            let cost = Duration::from_micros(u64::from(300 + change % 100));
            now += cost;
            pace.finished(now, cost, change % 100 > 0, false);
            syncs += 1;
        }
    }
    syncs
}
