//! What became different between two pictures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::{Endpoint, Exposure, HealthCheck};
use crate::model::{PerFamily, PortKey, Protocol, ServiceKey};

/// All differences of one update.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// Per family, because dataplanes are.
    pub families: PerFamily<FamilyDelta>,
    /// When the changes began, per Service.
    pub triggers: BTreeMap<ServiceKey, Vec<SystemTime>>,
}

/// The differences of one family.
#[derive(Clone, Debug, Default)]
pub struct FamilyDelta {
    /// Exposures that came, changed or went.
    pub changes: BTreeMap<PortKey, Change>,
    /// Health checks that came or changed (`Some`) or went (`None`).
    pub health: BTreeMap<ServiceKey, Option<HealthCheck>>,
    /// [`super::Desired::facts`] differs.
    pub facts: bool,
}

/// One exposure, before and after; the two differ, and at least one is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// As it was.
    pub before: Option<Arc<Exposure>>,
    /// As it is.
    pub after: Option<Arc<Exposure>>,
}

impl Delta {
    /// Whether nothing at all became different.
    pub fn is_empty(&self) -> bool {
        self.families.v4.is_empty() && self.families.v6.is_empty()
    }

    /// Adds a later delta, so that one that could not be applied is not lost. What went back to
    /// where it was drops out.
    pub fn absorb(&mut self, later: Self) {
        for (key, triggers) in later.triggers {
            self.triggers.entry(key).or_default().extend(triggers);
        }
        self.families.v4.absorb(later.families.v4);
        self.families.v6.absorb(later.families.v6);
    }
}

impl FamilyDelta {
    /// Whether nothing became different.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.health.is_empty() && !self.facts
    }

    /// Exposures that are new or different.
    pub fn changed(&self) -> impl Iterator<Item = (&PortKey, &Arc<Exposure>)> {
        self.changes
            .iter()
            .filter_map(|(key, change)| Some((key, change.after.as_ref()?)))
    }

    /// Exposures that are gone.
    pub fn removed(&self) -> impl Iterator<Item = &PortKey> {
        self.changes
            .iter()
            .filter(|(_, change)| change.after.is_none())
            .map(|(key, _)| key)
    }

    /// Adds a later delta; see [`Delta::absorb`].
    pub fn absorb(&mut self, later: Self) {
        for (key, change) in later.changes {
            let before = match self.changes.remove(&key) {
                Some(earlier) => earlier.before,
                None => change.before,
            };
            if before != change.after {
                self.changes.insert(
                    key,
                    Change {
                        before,
                        after: change.after,
                    },
                );
            }
        }
        self.health.extend(later.health);
        self.facts |= later.facts;
    }
}

impl Change {
    /// Endpoints that came and endpoints that went; one whose pools or locality changed is in
    /// both. Its neighbours are in neither.
    pub fn endpoints(&self) -> (Vec<Endpoint>, Vec<Endpoint>) {
        let list = |side: &Option<Arc<Exposure>>| -> Vec<Endpoint> {
            side.as_ref()
                .map_or_else(Vec::new, |exposure| exposure.endpoints.to_vec())
        };
        let (before, after) = (list(&self.before), list(&self.after));
        // Both lists have the same order, so what they share is found in one pass.
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        let mut old = before.into_iter().peekable();
        for endpoint in after {
            let key = super::gather::text_key(endpoint.ip, endpoint.port);
            let rank = |other: &Endpoint| super::gather::text_key(other.ip, other.port).cmp(&key);
            while let Some(gone) = old.next_if(|other| rank(other).is_lt()) {
                removed.push(gone);
            }
            match old.next_if(|other| rank(other).is_eq()) {
                Some(same) if same == endpoint => {}
                other => {
                    removed.extend(other);
                    added.push(endpoint);
                }
            }
        }
        removed.extend(old);
        (added, removed)
    }

    /// Whether tracked flows may now lead to the wrong place. Only UDP: TCP and SCTP notice by
    /// themselves.
    pub fn makes_flows_stale(&self) -> bool {
        let sides = [&self.before, &self.after];
        let is_udp = sides
            .into_iter()
            .flatten()
            .any(|exposure| exposure.key.protocol == Protocol::Udp);
        is_udp
            && match sides {
                [Some(before), Some(after)] => {
                    before.udp_backends != after.udp_backends
                        || !before.addresses().eq(after.addresses())
                }
                _ => true,
            }
    }
}
