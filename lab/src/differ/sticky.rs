//! What must hold where clients stay with their endpoint, though chance chose it.
//!
//! Two facts, found in every world and compared between worlds: a client meets the same pod at
//! every address of a Service port, and it meets the pod of before as long as that is ready.

use std::collections::{BTreeMap, BTreeSet};

use super::cluster::{Condition, Service, State};
use super::matrix::{self, Cell, CellKey, Difference};
use crate::plan::Family;
use crate::probe::{Answer, Answers};

/// Whom each sticky client met, by world and cell.
#[derive(Clone, Debug, Default)]
pub struct Met {
    by_world: Vec<BTreeMap<CellKey, String>>,
}

impl Met {
    /// What was met in this state.
    pub fn of(cells: &[Cell], answers: &[Vec<Answers>]) -> Self {
        let by_world = answers.iter().map(|world| {
            let both = cells.iter().zip(world);
            let met =
                both.filter_map(|(cell, answers)| Some((cell.key(), only_pod(cell, answers)?)));
            met.collect()
        });
        Self {
            by_world: by_world.collect(),
        }
    }

    /// Clients of one Service port that met several pods in one world and one in another.
    pub fn scattered(&self, state: &State) -> Vec<Difference> {
        let facts = self.by_world.iter().map(|met| {
            let mut pods: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
            for (cell, pod) in met {
                if let Some(client) = client(cell, state) {
                    pods.entry(client).or_default().insert(pod);
                }
            }
            let counted = pods.into_iter();
            counted
                .map(|(client, pods)| (client, format!("{} pods", pods.len())))
                .collect()
        });
        differing(&facts.collect::<Vec<_>>())
    }

    /// Clients that met another pod than before though the one of before is ready, in one world
    /// and not in another.
    pub fn moved(&self, before: &Self, then: &State, now: &State) -> Vec<Difference> {
        let worlds = self.by_world.iter().zip(&before.by_world);
        let facts = worlds.map(|(met, before)| {
            let mut facts = BTreeMap::new();
            for (cell, pod) in met {
                if let Some(earlier) = before.get(cell)
                    && stays(cell, earlier, then, now)
                {
                    let fact = if earlier == pod { "kept" } else { "moved" };
                    facts.insert(format!("{cell:?}, its pod"), fact.to_owned());
                }
            }
            facts
        });
        differing(&facts.collect::<Vec<_>>())
    }
}

/// The one pod that answered.
fn only_pod(cell: &Cell, answers: &Answers) -> Option<String> {
    match answers.iter().next() {
        Some(Answer::Pod { name, .. }) if cell.sticky && answers.len() == 1 => Some(name.clone()),
        _ => None,
    }
}

/// A client of a Service port, at the node that chooses for it.
fn client(&(sender, to, protocol): &CellKey, state: &State) -> Option<String> {
    let owners = state.owners(to, protocol);
    let [(service, port)] = owners[..] else {
        return None;
    };
    if !matrix::is_even(service) {
        return None;
    }
    let mut frontends = service.frontends(port).into_iter();
    let frontend = frontends.find(|frontend| frontend.to == to)?;
    let family = Family::of(to.ip());
    Some(format!(
        "{sender} as a client of {}:{} {:?} {family:?} at node{}",
        service.name,
        port.number,
        port.protocol,
        matrix::entry(sender, frontend)
    ))
}

/// Whether a pod that was chosen must be chosen again.
fn stays(&(_, to, protocol): &CellKey, pod: &str, then: &State, now: &State) -> bool {
    let owner = |state: &State| {
        let owners = state.owners(to, protocol);
        match owners[..] {
            [(service, port)] => Some((service.clone(), port.clone())),
            _ => None,
        }
    };
    let (Some((was, old_port)), Some((is, port))) = (owner(then), owner(now)) else {
        return false;
    };
    // In one slice, and ready.
    let place = |service: &Service| {
        let groups = service.groups.iter();
        let all = groups.flat_map(|group| group.endpoints.iter().map(|e| (group.number, e)));
        let own: Vec<_> = all.filter(|(_, endpoint)| endpoint.pod == pod).collect();
        match own[..] {
            [(number, e)] if e.condition == Condition::Ready && e.only.is_none() => Some(number),
            _ => None,
        }
    };
    was.name == is.name
        && was.affinity == is.affinity
        && old_port == port
        // A port has a name only beside others, and another name makes it another port.
        && (was.ports.len() == 1) == (is.ports.len() == 1)
        // One that moves between slices is in neither for a moment.
        && place(&was).is_some()
        && place(&was) == place(&is)
        && [&was, &is].into_iter().all(|service| {
            matrix::is_even(service) && targets(service).is_empty()
        })
}

/// Target ports that slices choose for themselves; an endpoint with another port is another one.
fn targets(service: &Service) -> BTreeSet<u16> {
    let targets = service.groups.iter().filter_map(|group| group.target);
    targets.collect()
}

/// Facts known in all worlds and not the same in all.
fn differing(facts: &[BTreeMap<String, String>]) -> Vec<Difference> {
    let Some((first, others)) = facts.split_first() else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for (what, fact) in first {
        let shown: Option<Vec<_>> = others.iter().map(|facts| facts.get(what)).collect();
        let Some(shown) = shown else {
            continue;
        };
        if shown.iter().any(|other| *other != fact) {
            let shown = std::iter::once(fact).chain(shown).cloned().collect();
            all.push(Difference {
                what: what.clone(),
                cell: None,
                shown,
                answers: Vec::new(),
            });
        }
    }
    all
}
