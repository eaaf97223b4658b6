//! Which port the next socket listens on.
//!
//! In: the configured range, and what is taken. Out: candidates in random order, for the caller to
//! bind. Nothing is bound here.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::balancer::splitmix;

/// Ports that are not in use.
#[derive(Debug)]
pub(super) struct Ports {
    range: Option<RangeInclusive<u16>>,
    avoid: Option<RangeInclusive<u16>>,
    taken: BTreeSet<u16>,
    state: u64,
}

impl Ports {
    pub(super) fn new(
        range: Option<RangeInclusive<u16>>,
        avoid: Option<RangeInclusive<u16>>,
    ) -> Self {
        let state = super::workers::entropy();
        Self {
            range: range.filter(|range| *range.end() > 0),
            avoid,
            taken: BTreeSet::new(),
            state,
        }
    }

    /// The range that ports come from, if one is configured.
    pub(super) fn range(&self) -> Option<&RangeInclusive<u16>> {
        self.range.as_ref()
    }

    /// Free ports, each once, beginning anywhere; 0, the kernel's choice, where no range is
    /// configured. A port that turns out to be in use by others is simply not taken.
    pub(super) fn candidates(&mut self) -> Vec<u16> {
        let Some(range) = self.range.clone() else {
            return vec![0];
        };
        let (first, last) = (u32::from((*range.start()).max(1)), u32::from(*range.end()));
        let len = (last + 1).saturating_sub(first);
        if len == 0 {
            return Vec::new();
        }
        let offset = u32::try_from(splitmix(&mut self.state) % u64::from(len)).unwrap_or(0);
        (0..len)
            .map(|step| first + (offset + step) % len)
            .filter_map(|port| u16::try_from(port).ok())
            .filter(|port| !self.taken.contains(port))
            .collect()
    }

    /// Whether a port may be used.
    pub(super) fn suits(&self, port: u16) -> bool {
        match &self.range {
            Some(range) => range.contains(&port) && !self.taken.contains(&port),
            None => !self
                .avoid
                .as_ref()
                .is_some_and(|avoid| avoid.contains(&port)),
        }
    }

    pub(super) fn take(&mut self, port: u16) {
        self.taken.insert(port);
    }

    pub(super) fn release(&mut self, port: u16) {
        self.taken.remove(&port);
    }
}
