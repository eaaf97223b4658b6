//! Why each endpoint is or is not in a pool: the choice of [`super::select`], with its reasons.
//!
//! In: what [`select`](super::select::select) is given. Out: a [`Verdict`] per candidate and pool. A
//! law in the tests compares the two over random clusters, so they cannot disagree.

use super::gather::Candidate;
use super::select::{Hints, Wanted, hints};

/// What became of an endpoint in one pool, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Chosen: it is ready.
    Ready,
    /// Chosen though it is shutting down: it still answers, and nothing better is there.
    LastResort,
    /// Not chosen: it is shutting down, and others are ready.
    Draining,
    /// Not chosen: it is not ready.
    NotReady,
    /// Not chosen: it is shutting down and does not answer any more.
    Finished,
    /// Not chosen: its hints name other nodes, and others are hinted for this one.
    OtherNode,
    /// Not chosen: its hints name other zones, and others are hinted for this one.
    OtherZone,
    /// Not chosen: it runs on another node, and the pool is that of this node.
    NotLocal,
    /// No address uses the pool.
    Unused,
}

impl Verdict {
    /// Whether it is in the pool.
    pub const fn is_chosen(self) -> bool {
        matches!(self, Self::Ready | Self::LastResort)
    }
}

/// What topology hints do to the choice from the whole cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintUse {
    /// No ready endpoint has any.
    Absent,
    /// Only endpoints hinted for this node are chosen.
    SameNode,
    /// Only endpoints hinted for the zone of this node are chosen.
    SameZone,
    /// Ignored: some ready endpoint has none.
    Partial,
    /// Ignored: no ready endpoint is hinted for the zone of this node.
    NoneHere,
    /// Ignored: the zone of this node is not known.
    ZoneUnknown,
}

/// The reasons for a choice, in the order of the candidates.
pub(super) struct Judgement {
    pub(super) hints: HintUse,
    /// Per candidate: in the cluster pool, in the local pool.
    pub(super) verdicts: Vec<(Verdict, Verdict)>,
}

/// Gives the reasons for what [`select`](super::select::select) chooses.
pub(super) fn judge(candidates: &[Candidate<'_>], wanted: Wanted, zone: Option<&str>) -> Judgement {
    let hints = hints(candidates, zone);
    let other_topology = |candidate: &Candidate<'_>, ready: bool| match hints {
        _ if !ready => None,
        Hints::Ignored => None,
        Hints::SameNode => {
            (candidate.endpoint.node_hint != Some(true)).then_some(Verdict::OtherNode)
        }
        Hints::SameZone => (!zone.is_some_and(|zone| candidate.endpoint.hinted_for_zone(zone)))
            .then_some(Verdict::OtherZone),
    };
    let elsewhere = |candidate: &Candidate<'_>, _: bool| {
        (!candidate.endpoint.local).then_some(Verdict::NotLocal)
    };
    let cluster = pool(candidates, wanted.cluster, other_topology);
    let local = pool(candidates, wanted.local, elsewhere);
    Judgement {
        hints: hint_use(hints, candidates, zone),
        verdicts: cluster.into_iter().zip(local).collect(),
    }
}

/// The verdicts of one pool; `excluded` says what keeps a candidate out that could serve.
fn pool(
    candidates: &[Candidate<'_>],
    wanted: bool,
    excluded: impl Fn(&Candidate<'_>, bool) -> Option<Verdict>,
) -> Vec<Verdict> {
    if !wanted {
        return vec![Verdict::Unused; candidates.len()];
    }
    let is_ready = |c: &Candidate<'_>| c.endpoint.ready && excluded(c, true).is_none();
    let any_ready = candidates.iter().any(is_ready);
    let verdict = |c: &Candidate<'_>| {
        let endpoint = c.endpoint;
        if endpoint.ready && (any_ready || !endpoint.draining()) {
            excluded(c, true).unwrap_or(Verdict::Ready)
        } else if endpoint.draining() {
            let free = if any_ready {
                Verdict::Draining
            } else {
                Verdict::LastResort
            };
            excluded(c, false).unwrap_or(free)
        } else if endpoint.terminating {
            Verdict::Finished
        } else {
            Verdict::NotReady
        }
    };
    candidates.iter().map(verdict).collect()
}

fn hint_use(hints: Hints, candidates: &[Candidate<'_>], zone: Option<&str>) -> HintUse {
    match hints {
        Hints::SameNode => return HintUse::SameNode,
        Hints::SameZone => return HintUse::SameZone,
        Hints::Ignored => {}
    }
    let ready = || {
        candidates
            .iter()
            .map(|candidate| candidate.endpoint)
            .filter(|endpoint| endpoint.ready)
    };
    if !ready().any(|e| e.zone_hints.is_some() || e.node_hint.is_some()) {
        HintUse::Absent
    } else if !ready().all(|e| e.zone_hints.is_some()) {
        if ready().all(|e| e.node_hint.is_some()) {
            HintUse::NoneHere
        } else {
            HintUse::Partial
        }
    } else if zone.is_none() {
        HintUse::ZoneUnknown
    } else {
        HintUse::NoneHere
    }
}
