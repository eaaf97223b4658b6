//! Whether a client is let in, and how many.
//!
//! Pure: addresses and numbers in, a verdict out.

use std::net::{IpAddr, SocketAddr};

use super::Sources;

/// What is known of a connection before anything is done for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// The client.
    pub peer: IpAddr,
    /// What it asked for, before rules redirected it; `None` when they did not.
    pub original: Option<SocketAddr>,
}

/// What is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is served.
    Serve,
    /// It was made to the proxy port itself.
    Direct,
    /// Its source is not allowed for the address it asked for.
    Forbidden,
}

/// Judges a connection.
pub(super) fn judge(arrival: &Arrival, sources: &[Sources], direct: bool) -> Verdict {
    let Some(original) = arrival.original else {
        return if direct {
            Verdict::Serve
        } else {
            Verdict::Direct
        };
    };
    let mut restricted = sources
        .iter()
        .filter(|sources| sources.to.contains(&original.ip()))
        .peekable();
    let may = restricted.peek().is_none()
        || restricted.any(|sources| sources.from.iter().any(|net| net.contains(&arrival.peer)));
    if may {
        Verdict::Serve
    } else {
        Verdict::Forbidden
    }
}

/// The address that a client asked for: that of its connection before rules changed it. `None` when
/// it is the socket's own, so that nothing was redirected.
pub(super) fn redirected(original: SocketAddr, local: SocketAddr) -> Option<SocketAddr> {
    (original.ip() != local.ip() || original.port() != local.port()).then_some(original)
}

/// Whether a Service port that uses this many of something may use one more, of which so many are
/// free for all.
///
/// One alone gets half of everything, and any number of them leave something free: whoever floods
/// one Service cannot starve another.
pub(super) const fn may_grow(own: usize, free: usize) -> bool {
    own < free
}
