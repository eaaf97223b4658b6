//! Which endpoints may receive: topology hints, traffic policies, and what to do while every
//! endpoint is shutting down.

use super::gather::Candidate;

/// Which pools a Service port needs at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) cluster: bool,
    pub(super) local: bool,
}

/// The choice: for each candidate whether it is in the cluster pool and in the local pool.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Selection {
    pub(super) pools: Vec<(bool, bool)>,
    /// Some endpoint somewhere could serve, even if none of the pools has it.
    pub(super) any: bool,
}

/// How hints narrow the cluster pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hints {
    Ignored,
    SameNode,
    SameZone,
}

/// Picks the endpoints that may receive traffic.
///
/// Ready endpoints win. When there are none, endpoints that are shutting down but still answer
/// are better than a refused connection. Both pools fall back on their own; hints concern only
/// the cluster pool and only ready endpoints.
pub(super) fn select(
    candidates: &[Candidate<'_>],
    wanted: Wanted,
    zone: Option<&str>,
) -> Selection {
    let hints = hints(candidates, zone);
    let permitted = |candidate: &Candidate<'_>| match hints {
        Hints::Ignored => true,
        Hints::SameNode => candidate.endpoint.node_hint == Some(true),
        Hints::SameZone => zone.is_some_and(|zone| candidate.endpoint.hinted_for_zone(zone)),
    };
    let cluster = wanted.cluster.then(|| {
        ready_or_draining(candidates, |candidate, ready| {
            !ready || permitted(candidate)
        })
    });
    let local = wanted
        .local
        .then(|| ready_or_draining(candidates, |c, _| c.endpoint.local));
    let in_pool = |pool: &Option<Vec<bool>>, at: usize| pool.as_ref().is_some_and(|p| p[at]);
    let pools: Vec<_> = (0..candidates.len())
        .map(|at| (in_pool(&cluster, at), in_pool(&local, at)))
        .collect();
    let any = candidates
        .iter()
        .any(|c| c.endpoint.ready || c.endpoint.draining());
    Selection { pools, any }
}

/// Membership of the ready candidates that `admit`, or if there are none of the draining ones.
fn ready_or_draining(
    candidates: &[Candidate<'_>],
    admit: impl Fn(&Candidate<'_>, bool) -> bool,
) -> Vec<bool> {
    let ready: Vec<bool> = candidates
        .iter()
        .map(|c| c.endpoint.ready && admit(c, true))
        .collect();
    if ready.contains(&true) {
        return ready;
    }
    candidates
        .iter()
        .map(|c| c.endpoint.draining() && admit(c, false))
        .collect()
}

/// Hints count only when every ready endpoint has them and one of them is meant for us:
/// otherwise a half-updated slice would send all traffic to a few endpoints, or none.
pub(super) fn hints(candidates: &[Candidate<'_>], zone: Option<&str>) -> Hints {
    let ready = || {
        candidates
            .iter()
            .map(|c| c.endpoint)
            .filter(|endpoint| endpoint.ready)
    };
    if ready().next().is_none() {
        Hints::Ignored
    } else if ready().all(|e| e.node_hint.is_some()) && ready().any(|e| e.node_hint == Some(true)) {
        Hints::SameNode
    } else if zone.is_some_and(|zone| {
        ready().all(|e| e.zone_hints.is_some()) && ready().any(|e| e.hinted_for_zone(zone))
    }) {
        Hints::SameZone
    } else {
        Hints::Ignored
    }
}
