//! What became different between two updates of the desired state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::{Exposure, HealthCheck};
use crate::model::{PerFamily, PortKey, ServiceKey};

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

    /// Adds a later delta, so that one that could not be applied is not lost. What went back to
    /// where it was drops out.
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
