//! Events in, pending changes out.
//!
//! The [`Tracker`] holds the newest state of every object and remembers which Services changed
//! since the last [`Tracker::take`]. A Service that changes and changes back in between is struck out
//! again. Nothing leaves before the first lists of Services, EndpointSlices and Nodes are complete:
//! a half-known cluster must never reach the kernel.
//!
//! Each event costs work in proportion to its object, not to what is stored.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use ipnet::IpNet;

use crate::issue::{Issue, Kind, ObjectKey};
use crate::model::{Node, Service, ServiceCidr, ServiceKey, Slice, SliceKey};

#[cfg(test)]
mod tests;

/// Trigger times kept for one slice between two calls of [`Tracker::take`]; more add nothing to
/// the measured latency.
const MOST_TRIGGERS: usize = 100;

/// What the API server (or a folder of manifests) reports.
#[derive(Clone, Debug)]
pub enum Event {
    /// A full list of one kind begins. Who is not named before its end is gone.
    Listing(Kind),
    /// The full list is complete.
    Listed(Kind),
    /// The object in its present state.
    Put {
        /// The object.
        object: Object,
        /// What had to be left out of it.
        issues: Vec<Issue>,
        /// For a slice: when the change that led to it happened.
        trigger: Option<SystemTime>,
    },
    /// The object is deleted, filtered out, or of no use to us.
    Gone {
        /// The object.
        key: ObjectKey,
        /// Why it is of no use, if that is worth telling.
        issues: Vec<Issue>,
    },
    /// The object exists, but nobody can read what it looks like now. What was known of it stays.
    Undecodable {
        /// The object.
        key: ObjectKey,
        /// Why it cannot be read.
        issues: Vec<Issue>,
    },
}

impl Event {
    /// The kind of object it is about; `None` for the marks around a list.
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Self::Listing(_) | Self::Listed(_) => None,
            Self::Put { object, .. } => Some(object.kind()),
            Self::Gone { key, .. } | Self::Undecodable { key, .. } => Some(key.kind()),
        }
    }
}

/// An object in our own types.
#[derive(Clone, Debug)]
pub enum Object {
    /// A Service.
    Service(Service),
    /// An EndpointSlice.
    Slice(Slice),
    /// The Node we run on.
    Node(Node),
    /// A ServiceCIDR.
    ServiceCidr(ServiceCidr),
}

impl Object {
    /// What it is.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Service(_) => Kind::Service,
            Self::Slice(_) => Kind::EndpointSlice,
            Self::Node(_) => Kind::Node,
            Self::ServiceCidr(_) => Kind::ServiceCidr,
        }
    }

    /// Who it is.
    pub fn key(&self) -> ObjectKey {
        match self {
            Self::Service(service) => ObjectKey::Service(service.key.clone()),
            Self::Slice(slice) => ObjectKey::Slice(slice.key.clone()),
            Self::Node(node) => ObjectKey::Node(node.name.clone()),
            Self::ServiceCidr(cidr) => ObjectKey::ServiceCidr(cidr.name.clone()),
        }
    }
}

/// Everything known about one Service: itself and its slices, sorted by name.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// The Service; absent while only its slices are known.
    pub service: Option<Arc<Service>>,
    /// Its slices of both families, in the order of their keys.
    pub slices: Vec<Arc<Slice>>,
}

/// What to decide again, and since when it is pending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services that changed, or whose slices did.
    pub services: BTreeSet<ServiceKey>,
    /// The Node or a ServiceCIDR changed.
    pub surroundings: bool,
    /// When the changes now taken began, per Service: the start of network programming latency.
    pub triggers: BTreeMap<ServiceKey, Vec<SystemTime>>,
}

/// A Service as it was when it was last taken, for the parts that differ now.
#[derive(Debug, Default)]
struct Pending {
    service: Option<PendingService>,
    /// Few, and of all Services at once while a first list is read.
    slices: Vec<PendingSlice>,
}

#[derive(Debug)]
struct PendingService {
    before: Option<Arc<Service>>,
}

#[derive(Debug)]
struct PendingSlice {
    key: SliceKey,
    before: Option<Arc<Slice>>,
    triggers: Vec<SystemTime>,
}

/// The newest state of every object, and what changed since the last [`Tracker::take`].
#[derive(Debug)]
pub struct Tracker {
    started: SystemTime,
    entries: HashMap<ServiceKey, Entry>,
    owners: HashMap<SliceKey, ServiceKey>,
    node: Option<Node>,
    service_cidrs: BTreeMap<Arc<str>, ServiceCidr>,
    issues: BTreeMap<ObjectKey, Vec<Issue>>,
    issues_version: u64,
    pending: BTreeMap<ServiceKey, Pending>,
    /// Services and slices in `pending`, counted as they come and go: a first list is long, and
    /// somebody asks after every part of it.
    pending_counts: (usize, usize),
    surroundings_changed: bool,
    /// Per kind with a list under way: who has not been named yet.
    unnamed: BTreeMap<Kind, HashSet<ObjectKey>>,
    listed: BTreeSet<Kind>,
}

impl Tracker {
    /// An empty tracker. Changes that began before `started` are not ours to measure.
    pub fn new(started: SystemTime) -> Self {
        Self {
            started,
            entries: HashMap::new(),
            owners: HashMap::new(),
            node: None,
            service_cidrs: BTreeMap::new(),
            issues: BTreeMap::new(),
            issues_version: 0,
            pending: BTreeMap::new(),
            pending_counts: (0, 0),
            surroundings_changed: false,
            unnamed: BTreeMap::new(),
            listed: BTreeSet::new(),
        }
    }

    /// Takes one event in. Says whether there is now something to take.
    pub fn on(&mut self, event: Event) -> bool {
        match event {
            Event::Listing(kind) => {
                let known = self.known(kind);
                self.unnamed.insert(kind, known);
            }
            Event::Listed(kind) => {
                for key in self.unnamed.remove(&kind).into_iter().flat_map(sorted) {
                    self.remove(&key);
                    self.set_issues(key, Vec::new());
                }
                // The gate opens once, and then there is something to do even in an empty cluster.
                let was_ready = self.is_ready();
                self.listed.insert(kind);
                self.surroundings_changed |= self.is_ready() && !was_ready;
            }
            Event::Put {
                object,
                issues,
                trigger,
            } => {
                let key = object.key();
                self.named(&key);
                self.set_issues(key, issues);
                self.put(object, trigger);
            }
            Event::Gone { key, issues } => {
                self.named(&key);
                self.remove(&key);
                self.set_issues(key, issues);
            }
            Event::Undecodable { key, issues } => {
                self.named(&key);
                self.set_issues(key, issues);
            }
        }
        self.has_pending()
    }

    /// The lists without which nothing may leave have been complete once.
    ///
    /// The Node is one of them, because its zone and addresses decide where traffic goes; that
    /// there is none is an answer too. ServiceCIDRs are not: older clusters do not serve them.
    pub fn is_ready(&self) -> bool {
        [Kind::Service, Kind::EndpointSlice, Kind::Node]
            .iter()
            .all(|kind| self.listed.contains(kind))
    }

    /// Whether [`Tracker::take`] would return something.
    pub fn has_pending(&self) -> bool {
        self.is_ready() && (self.surroundings_changed || !self.pending.is_empty())
    }

    /// Number of Services, and of EndpointSlices, that differ from what was last taken.
    pub fn pending_counts(&self) -> (usize, usize) {
        self.pending_counts
    }

    /// What [`Tracker::pending_counts`] should be, counted afresh.
    #[cfg(test)]
    pub(crate) fn count_pending(&self) -> (usize, usize) {
        self.pending.values().fold((0, 0), |(services, slices), p| {
            let service = usize::from(p.service.is_some());
            (services + service, slices + p.slices.len())
        })
    }

    /// Hands over what changed since the last call, unless the first lists are still incomplete.
    pub fn take(&mut self) -> Option<Changes> {
        if !self.has_pending() {
            return None;
        }
        let mut changes = Changes {
            surroundings: std::mem::take(&mut self.surroundings_changed),
            ..Changes::default()
        };
        self.pending_counts = (0, 0);
        for (key, pending) in std::mem::take(&mut self.pending) {
            let mut triggers: Vec<_> = pending
                .slices
                .into_iter()
                .flat_map(|slice| slice.triggers)
                .collect();
            if !triggers.is_empty() {
                triggers.sort_unstable();
                changes.triggers.insert(key.clone(), triggers);
            }
            changes.services.insert(key);
        }
        Some(changes)
    }

    /// What is known about one Service.
    pub fn entry(&self, key: &ServiceKey) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Keys of all Services known by themselves or by their slices, sorted. Costs all of them.
    pub fn keys(&self) -> Vec<ServiceKey> {
        let mut keys: Vec<_> = self.entries.keys().cloned().collect();
        keys.sort_unstable();
        keys
    }

    /// This node, once known.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// The networks of all ServiceCIDR objects: sorted, each once, though several may name it.
    pub fn service_cidrs(&self) -> Vec<IpNet> {
        let mut cidrs: Vec<IpNet> = self
            .service_cidrs
            .values()
            .flat_map(|object| object.cidrs.iter().copied())
            .collect();
        cidrs.sort_unstable();
        cidrs.dedup();
        cidrs
    }

    /// What was left out while objects were converted, sorted by object.
    pub fn issues(&self) -> impl Iterator<Item = &Issue> {
        self.issues.values().flatten()
    }

    /// Another number whenever [`Tracker::issues`] is different.
    pub fn issues_version(&self) -> u64 {
        self.issues_version
    }

    fn set_issues(&mut self, key: ObjectKey, issues: Vec<Issue>) {
        let same = match self.issues.get(&key) {
            Some(known) => *known == issues,
            None => issues.is_empty(),
        };
        if same {
            return;
        }
        self.issues_version += 1;
        if issues.is_empty() {
            self.issues.remove(&key);
        } else {
            self.issues.insert(key, issues);
        }
    }

    /// Every object of one kind that we know or have complained about.
    fn known(&self, kind: Kind) -> HashSet<ObjectKey> {
        let mut keys: HashSet<ObjectKey> = self
            .issues
            .keys()
            .filter(|key| key.kind() == kind)
            .cloned()
            .collect();
        match kind {
            Kind::Service => keys.extend(
                self.entries
                    .iter()
                    .filter(|(_, entry)| entry.service.is_some())
                    .map(|(key, _)| ObjectKey::Service(key.clone())),
            ),
            Kind::EndpointSlice => {
                keys.extend(self.owners.keys().map(|key| ObjectKey::Slice(key.clone())));
            }
            Kind::Node => {
                keys.extend(
                    self.node
                        .iter()
                        .map(|node| ObjectKey::Node(node.name.clone())),
                );
            }
            Kind::ServiceCidr => {
                keys.extend(
                    self.service_cidrs
                        .keys()
                        .map(|k| ObjectKey::ServiceCidr(k.clone())),
                );
            }
        }
        keys
    }

    fn named(&mut self, key: &ObjectKey) {
        if let Some(unnamed) = self.unnamed.get_mut(&key.kind()) {
            unnamed.remove(key);
        }
    }

    fn put(&mut self, object: Object, trigger: Option<SystemTime>) {
        match object {
            Object::Service(mut service) => {
                service.key = self.known_key(service.key);
                let key = service.key.clone();
                self.set_service(&key, Some(Arc::new(service)));
            }
            Object::Slice(slice) => self.put_slice(slice, trigger),
            Object::Node(node) => {
                if self.node.as_ref() != Some(&node) {
                    self.node = Some(node);
                    self.surroundings_changed = true;
                }
            }
            Object::ServiceCidr(cidr) => {
                if self.service_cidrs.get(&cidr.name) != Some(&cidr) {
                    self.service_cidrs.insert(cidr.name.clone(), cidr);
                    self.surroundings_changed = true;
                }
            }
        }
    }

    fn remove(&mut self, key: &ObjectKey) {
        match key {
            ObjectKey::Service(key) => self.set_service(key, None),
            ObjectKey::Slice(key) => {
                if let Some(owner) = self.owners.remove(key) {
                    self.set_slice(&owner, key, None, None);
                }
            }
            // The last known Node stays the reference: a deleted Node object does not move us
            // to another zone, and traffic must go on.
            ObjectKey::Node(_) => {}
            ObjectKey::ServiceCidr(name) => {
                self.surroundings_changed |= self.service_cidrs.remove(name).is_some();
            }
        }
    }

    fn put_slice(&mut self, mut slice: Slice, trigger: Option<SystemTime>) {
        if let Some((owner, entry)) = self.entries.get_key_value(&slice.service) {
            slice.service = owner.clone();
            if let Some(known) = entry.slices.iter().find(|known| known.key == slice.key) {
                slice.key = known.key.clone();
            }
        }
        let (key, owner) = (slice.key.clone(), slice.service.clone());
        let trigger = trigger.filter(|at| *at > self.started);
        if self
            .set_slice(&owner, &key, Some(Arc::new(slice)), trigger)
            .is_none()
            && let Some(former) = self.owners.insert(key.clone(), owner.clone())
            && former != owner
        {
            // The label moved it to another Service; the former one must not keep it.
            self.set_slice(&former, &key, None, None);
        }
    }

    /// The same key, in the one string that everything about this Service shares: less memory,
    /// and keys compare by address without being read.
    fn known_key(&self, key: ServiceKey) -> ServiceKey {
        match self.entries.get_key_value(&key) {
            Some((known, _)) => known.clone(),
            None => key,
        }
    }

    fn set_service(&mut self, key: &ServiceKey, now: Option<Arc<Service>>) {
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.service == now {
            self.drop_if_empty(key);
            return;
        }
        let pending = self.pending.entry(key.clone()).or_default();
        let was = entry.service.take();
        self.pending_counts.0 += usize::from(pending.service.is_none());
        let before = &pending
            .service
            .get_or_insert(PendingService { before: was })
            .before;
        if *before == now {
            pending.service = None;
            self.pending_counts.0 -= 1;
        }
        entry.service = now;
        self.prune(key);
    }

    /// Sets or removes a slice of one Service; returns what it was there.
    fn set_slice(
        &mut self,
        owner: &ServiceKey,
        key: &SliceKey,
        now: Option<Arc<Slice>>,
        trigger: Option<SystemTime>,
    ) -> Option<Arc<Slice>> {
        let slices = &mut self.entries.entry(owner.clone()).or_default().slices;
        // Few slices, and mostly it is there already: looking for it beats searching by order.
        let place = match slices.iter().position(|slice| slice.key == *key) {
            Some(at) => Ok(at),
            None => Err(slices.partition_point(|slice| slice.key < *key)),
        };
        let was = place.ok().map(|at| slices[at].clone());
        if was == now {
            self.drop_if_empty(owner);
            return was;
        }
        let pending = self.pending.entry(owner.clone()).or_default();
        let known = pending.slices.iter().position(|slice| slice.key == *key);
        let at = known.unwrap_or_else(|| {
            self.pending_counts.1 += 1;
            reserve_first(&mut pending.slices);
            pending.slices.push(PendingSlice {
                key: key.clone(),
                before: was.clone(),
                triggers: Vec::new(),
            });
            pending.slices.len() - 1
        });
        let slice = &mut pending.slices[at];
        if now.is_none() {
            // Nobody waits for an endpoint to be programmed that is gone again.
            slice.triggers.clear();
        }
        if slice.triggers.len() < MOST_TRIGGERS {
            slice.triggers.extend(trigger);
        }
        if slice.before == now {
            pending.slices.swap_remove(at);
            self.pending_counts.1 -= 1;
        }
        match (place, now) {
            (Ok(at), Some(slice)) => slices[at] = slice,
            (Ok(at), None) => drop(slices.remove(at)),
            (Err(at), Some(slice)) => {
                reserve_first(slices);
                slices.insert(at, slice);
            }
            (Err(_), None) => {}
        }
        self.prune(owner);
        was
    }

    /// Strikes out a Service that is again as it was, and forgets one of which nothing is left.
    fn prune(&mut self, key: &ServiceKey) {
        if self
            .pending
            .get(key)
            .is_some_and(|p| p.service.is_none() && p.slices.is_empty())
        {
            self.pending.remove(key);
        }
        self.drop_if_empty(key);
    }

    fn drop_if_empty(&mut self, key: &ServiceKey) {
        if self
            .entries
            .get(key)
            .is_some_and(|e| e.service.is_none() && e.slices.is_empty())
        {
            self.entries.remove(key);
        }
    }
}

fn sorted(keys: HashSet<ObjectKey>) -> Vec<ObjectKey> {
    let mut keys: Vec<_> = keys.into_iter().collect();
    keys.sort_unstable();
    keys
}

/// Makes room for one and not for four: most Services have one slice, and there are many Services.
fn reserve_first<T>(list: &mut Vec<T>) {
    if list.is_empty() {
        list.reserve_exact(1);
    }
}
