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

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(peer: &str, original: Option<&str>) -> Arrival {
        Arrival {
            peer: peer.parse().unwrap(),
            original: original.map(|address| address.parse().unwrap()),
        }
    }

    #[test]
    fn usp_060_who_was_not_redirected_is_served_only_if_that_is_allowed() {
        let direct = arrival("10.0.0.1", None);
        assert_eq!(judge(&direct, &[], false), Verdict::Direct);
        assert_eq!(judge(&direct, &[], true), Verdict::Serve);
        let own = "10.0.0.9:4000".parse().unwrap();
        assert_eq!(redirected(own, own), None);
        let node_port = "10.0.0.9:30000".parse().unwrap();
        assert_eq!(redirected(node_port, own), Some(node_port));
    }

    #[test]
    fn usp_059_ranges_bind_only_clients_of_their_addresses() {
        let sources = |to: &str, from: &[&str]| Sources {
            to: vec![to.parse().unwrap()],
            from: from.iter().map(|net| net.parse().unwrap()).collect(),
        };
        let limited = [sources("192.0.2.1", &["10.0.0.0/8", "172.16.0.0/12"])];
        let verdict = |peer, to| judge(&arrival(peer, Some(to)), &limited, false);
        assert_eq!(verdict("10.1.1.1", "192.0.2.1:80"), Verdict::Serve);
        assert_eq!(verdict("172.16.0.1", "192.0.2.1:80"), Verdict::Serve);
        assert_eq!(verdict("11.1.1.1", "192.0.2.1:80"), Verdict::Forbidden);
        assert_eq!(verdict("11.1.1.1", "192.0.2.2:80"), Verdict::Serve);
        let nobody = [sources("192.0.2.1", &[])];
        let any = arrival("10.1.1.1", Some("192.0.2.1:80"));
        assert_eq!(judge(&any, &nobody, true), Verdict::Forbidden);
    }

    #[test]
    fn one_alone_gets_half_and_many_leave_something() {
        let grow = |others: usize| {
            let (mut own, total) = (0, 1000);
            while may_grow(own, total - others - own) {
                own += 1;
            }
            own
        };
        assert_eq!(grow(0), 500);
        assert_eq!(grow(500), 250);
        assert_eq!(grow(750), 125);
    }
}
