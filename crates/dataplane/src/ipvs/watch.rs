//! Notices external changes to sets, virtual servers and addresses. IPVS and sets send no
//! notifications, so there is nothing but to inspect them.
//!
//! Counted are entries of sets, virtual servers and addresses: that costs far less than reading all
//! of them, and finds what other programs do, which is to flush and to restore. A change that keeps
//! all numbers is found by the next full sync.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_kernel::ipset::Ipset;
use ferrule_kernel::ipvs::{Ipvs, Listed};
use ferrule_kernel::route::Route;

use super::conversation::is_ours;
use super::names::{LINK, Set};
use super::wanted::Wanted;
use crate::{Cadence, ExternalChange, Watcher, said};

/// What the kernel is expected to have, shared between the dataplane and its watcher.
#[derive(Clone, Debug, Default)]
pub struct Expected(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Another one whenever something is written.
    round: u64,
    /// `None` while something is written.
    numbers: Option<Numbers>,
}

/// How much there is of everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    servers: usize,
    addresses: usize,
    entries: BTreeMap<Set, usize>,
}

impl Expected {
    /// Something is written from now on.
    pub fn forget(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.round += 1;
        state.numbers = None;
    }

    /// Everything wanted was written.
    pub fn set(&self, numbers: Numbers) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.numbers = Some(numbers);
    }

    fn get(&self) -> (u64, Option<Numbers>) {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (state.round, state.numbers.clone())
    }
}

impl Numbers {
    /// How much is wanted.
    pub fn of(wanted: &Wanted) -> Self {
        Self {
            servers: wanted.server_count(),
            addresses: wanted.address_count(),
            entries: wanted.sizes().clone(),
        }
    }
}

/// Compares numbers.
#[derive(Debug)]
pub struct Sentinel {
    family: Family,
    expected: Expected,
    /// Virtual servers in some networks belong to others.
    excludes: bool,
}

impl Sentinel {
    /// Inspects the network namespace of the thread that asks it.
    pub const fn new(family: Family, expected: Expected, excludes: bool) -> Self {
        Self {
            family,
            expected,
            excludes,
        }
    }

    fn is_as_expected(&self, numbers: &Numbers) -> io::Result<bool> {
        Ok(self.has_entries(numbers)?
            && self.has_addresses(numbers)?
            && self.has_servers(numbers)?)
    }

    fn has_entries(&self, numbers: &Numbers) -> io::Result<bool> {
        let Some(mut sets) = Ipset::open()? else {
            return Ok(false);
        };
        let found: BTreeMap<String, u32> = sets
            .headers()
            .map_err(said)?
            .into_iter()
            .map(|header| (header.name, header.entries))
            .collect();
        Ok(Set::ALL.into_iter().all(|set| {
            let wanted = numbers.entries.get(&set).copied().unwrap_or_default();
            let there = found.get(set.name(self.family)).copied();
            there.and_then(|count| usize::try_from(count).ok()) == Some(wanted)
        }))
    }

    fn has_addresses(&self, numbers: &Numbers) -> io::Result<bool> {
        let mut route = Route::open()?;
        let links = route.links().map_err(said)?;
        let Some(link) = links.into_iter().find(|link| link.name == LINK) else {
            return Ok(false);
        };
        let addresses = route.addresses().map_err(said)?.into_iter();
        let of_link = addresses.filter(|address| address.link == link.index);
        let ours = of_link.filter(|one| is_ours(one.address, self.family));
        Ok(ours.count() == numbers.addresses)
    }

    fn has_servers(&self, numbers: &Numbers) -> io::Result<bool> {
        let Some(mut ipvs) = Ipvs::open().map_err(said)? else {
            return Ok(false);
        };
        let listed = ipvs.servers().map_err(said)?.into_iter();
        let there = listed
            .filter(|listed| {
                matches!(listed, Listed::Server(server)
                    if Family::of(server.key.address) == self.family)
            })
            .count();
        Ok(there == numbers.servers || (self.excludes && there > numbers.servers))
    }
}

impl Watcher for Sentinel {
    fn cadence(&self) -> Cadence {
        Cadence::Polled
    }

    fn changed(&mut self, _: Duration) -> io::Result<Option<ExternalChange>> {
        let (round, Some(numbers)) = self.expected.get() else {
            return Ok(None);
        };
        let as_expected = self.is_as_expected(&numbers)?;
        // What was written meanwhile explains a difference.
        let external = !as_expected && self.expected.get() == (round, Some(numbers));
        Ok(external.then(ExternalChange::default))
    }
}
