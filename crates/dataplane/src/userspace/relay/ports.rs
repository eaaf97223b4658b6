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
    pub(super) fn candidates(&mut self) -> impl Iterator<Item = u16> {
        let (first, last) = match &self.range {
            Some(range) => (u32::from((*range.start()).max(1)), u32::from(*range.end())),
            None => (0, 0),
        };
        let len = (last + 1).saturating_sub(first);
        let offset = splitmix(&mut self.state) % u64::from(len.max(1));
        let offset = u32::try_from(offset).unwrap_or(0);
        (0..len)
            .map(move |step| first + (offset + step) % len)
            .filter_map(|port| u16::try_from(port).ok())
            .filter(|port| !self.taken.contains(port))
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
        if self.range.is_some() {
            self.taken.insert(port);
        }
    }

    pub(super) fn release(&mut self, port: u16) {
        self.taken.remove(&port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usp_024_candidates_are_all_free_ports_of_the_range_each_once() {
        let mut ports = Ports::new(Some(10..=19), None);
        ports.take(12);
        let mut candidates: Vec<u16> = ports.candidates().collect();
        assert_eq!(candidates.len(), 9);
        candidates.sort_unstable();
        assert_eq!(candidates, [10, 11, 13, 14, 15, 16, 17, 18, 19]);
        ports.release(12);
        assert_eq!(ports.candidates().count(), 10);
    }

    #[test]
    fn usp_024_the_order_begins_anywhere() {
        let mut ports = Ports::new(Some(1..=1000), None);
        let first: BTreeSet<u16> = (0..50).filter_map(|_| ports.candidates().next()).collect();
        assert!(first.len() > 25, "{} of 50 differ", first.len());
    }

    #[test]
    fn usp_025_without_a_range_the_kernel_chooses_and_node_ports_do_not_suit() {
        for none in [None, Some(0..=0)] {
            let mut ports = Ports::new(none, Some(30_000..=32_767));
            assert_eq!(ports.candidates().collect::<Vec<_>>(), [0]);
            assert!(ports.suits(29_999) && ports.suits(32_768));
            assert!(!ports.suits(30_000) && !ports.suits(32_767));
        }
    }

    #[test]
    fn the_highest_port_belongs_to_the_range() {
        let mut ports = Ports::new(Some(65_535..=65_535), None);
        assert_eq!(ports.candidates().collect::<Vec<_>>(), [65_535]);
        ports.take(65_535);
        assert_eq!(ports.candidates().next(), None);
    }
}
