//! A copy of what decisions are made from, kept by whoever must answer while sync is busy.
//!
//! In: [`News`], what the tracker handed over. Out: the objects, shared with the tracker, and the
//! facts that follow from them. Taking news costs what they name.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::desired::Desired;
use crate::facts::{Facts, Settings};
use crate::model::{Family, Node, PerFamily, Service, ServiceKey};
use crate::track::{Changes, Entry, Tracker};

/// Services with their slices, the Node, the settings.
#[derive(Debug)]
pub struct Known {
    settings: Settings,
    node: Option<Node>,
    service_cidrs: Vec<IpNet>,
    facts: PerFamily<Facts>,
    entries: HashMap<ServiceKey, Entry>,
}

/// What became different since the last news.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// Each Service that did, and what is known of it now.
    services: Vec<(ServiceKey, Option<Entry>)>,
    /// The Node and the networks of Services, if they did.
    surroundings: Option<(Option<Node>, Vec<IpNet>)>,
}

impl News {
    /// What the tracker handed over. Costs the changes.
    pub fn of(tracker: &Tracker, changes: &Changes) -> Self {
        let services = changes.services.iter();
        Self {
            services: services
                .map(|key| (key.clone(), tracker.entry(key).cloned()))
                .collect(),
            surroundings: changes
                .surroundings
                .then(|| (tracker.node().cloned(), tracker.service_cidrs())),
        }
    }

    /// The Services that are named.
    pub fn services(&self) -> impl Iterator<Item = &ServiceKey> {
        self.services.iter().map(|(key, _)| key)
    }
}

impl Known {
    /// Nothing is known yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            facts: Facts::build(&settings, None, &[]),
            settings,
            node: None,
            service_cidrs: Vec::new(),
            entries: HashMap::new(),
        }
    }

    /// Takes news in.
    pub fn learn(&mut self, news: News) {
        for (key, entry) in news.services {
            match entry {
                Some(entry) => self.entries.insert(key, entry),
                None => self.entries.remove(&key),
            };
        }
        if let Some((node, service_cidrs)) = news.surroundings {
            self.node = node;
            self.service_cidrs = service_cidrs;
            self.draw_facts();
        }
    }

    /// Takes other settings.
    pub fn reconfigure(&mut self, settings: Settings) {
        self.settings = settings;
        self.draw_facts();
    }

    fn draw_facts(&mut self) {
        self.facts = Facts::build(&self.settings, self.node.as_ref(), &self.service_cidrs);
    }

    /// How many Services there are.
    pub fn service_count(&self) -> usize {
        self.services().count()
    }

    /// The settings.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// This node, if it is known.
    pub const fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// What holds on this node for one family.
    pub fn facts(&self, family: Family) -> &Facts {
        &self.facts[family]
    }

    /// What is known of one Service.
    pub fn entry(&self, key: &ServiceKey) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// The desired state that follows from it. Costs all of it.
    pub fn desired(&self) -> Desired {
        Desired::drawn(self)
    }

    /// What is known of all Services, by key.
    pub(in crate::desired) fn entries(&self) -> Vec<(&ServiceKey, &Entry)> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries
    }

    /// All Services, in no order.
    pub(super) fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        let entries = self.entries.values();
        entries.filter_map(|entry| entry.service.as_ref())
    }

    /// Whether an endpoint of this node has the address.
    pub(super) fn has_pod(&self, ip: IpAddr) -> bool {
        let slices = self.entries.values().flat_map(|entry| &entry.slices);
        let mut endpoints = slices.flat_map(|slice| &slice.endpoints);
        endpoints.any(|endpoint| endpoint.local && endpoint.ip == ip)
    }
}
