//! Everything that is wanted of one family, and who wants it.
//!
//! Several Service ports may want the same entry or address: it is there as long as one does. Two
//! may want the same virtual server where one names an address of this node and the other has a
//! NodePort on it: then the stronger kind of address gets it, as everywhere.

use std::collections::btree_map::Entry as Place;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ferrule_core::desired::{Desired, FrontendKind};
use ferrule_core::model::{Family, PortKey};
use ferrule_kernel::ipvs::ServerKey;

use super::Options;
use super::diff::{Installed, Present, Target};
use super::names::Set;
use super::render::{self, Context, Item, Rendered, Service};
use super::statics::{Barred, Contents};

/// Everything that is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Who claims each virtual server, the strongest claim first. Hardly ever more than one.
    servers: BTreeMap<ServerKey, Vec<Claim>>,
    /// How many Service ports want each item.
    items: BTreeMap<Item, usize>,
    /// How many entries each set has; none without any.
    sizes: BTreeMap<Set, usize>,
    barred: BTreeSet<Barred>,
    /// How many addresses there are.
    addresses: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    kind: FrontendKind,
    port: PortKey,
    service: Service,
}

/// What a change touched, as it was before.
#[derive(Debug, Default)]
pub struct Touched {
    servers: BTreeMap<ServerKey, Option<Service>>,
    items: BTreeMap<Item, bool>,
    /// What rules depended on; `None` if that did not change.
    contents: Option<Contents>,
}

impl Wanted {
    /// What these Service ports want.
    pub fn of<'k>(all: impl IntoIterator<Item = (&'k PortKey, Rendered)>) -> Self {
        let mut wanted = Self::default();
        let mut touched = Touched::default();
        for (key, rendered) in all {
            wanted.add(key, rendered, &mut touched);
        }
        wanted
    }

    /// What is desired, drawn anew on a machine with these addresses, and with what it was drawn.
    pub fn drawn(
        desired: &Desired,
        family: Family,
        options: &Options,
        local: &[IpAddr],
    ) -> (Self, Context) {
        let (facts, scheduler) = (desired.facts(family), options.scheduler.clone());
        let context = Context::new(family, scheduler, BTreeSet::new(), facts, local);
        let all = desired.exposures(family).into_iter();
        let wanted =
            Self::of(all.map(|exposure| (&exposure.key, render::exposure(exposure, &context))));
        (wanted, context)
    }

    /// Adds what a Service port wants.
    pub fn add(&mut self, port: &PortKey, rendered: Rendered, touched: &mut Touched) {
        for (server, kind, service) in rendered.servers {
            touched.server(self, server);
            let claims = self.servers.entry(server).or_default();
            let at = claims.partition_point(|claim| (claim.kind, &claim.port) < (kind, port));
            let port = port.clone();
            claims.insert(
                at,
                Claim {
                    kind,
                    port,
                    service,
                },
            );
        }
        for item in rendered.items {
            touched.item(self, item);
            let count = self.items.entry(item).or_default();
            *count += 1;
            if *count == 1 {
                self.came(item, touched);
            }
        }
    }

    /// Takes away what a Service port wanted.
    pub fn remove(&mut self, port: &PortKey, rendered: &Rendered, touched: &mut Touched) {
        for (server, kind, _) in &rendered.servers {
            touched.server(self, *server);
            if let Place::Occupied(mut claims) = self.servers.entry(*server) {
                let of_port = |claim: &Claim| claim.kind == *kind && claim.port == *port;
                if let Some(at) = claims.get().iter().position(of_port) {
                    claims.get_mut().remove(at);
                }
                if claims.get().is_empty() {
                    claims.remove();
                }
            }
        }
        for item in &rendered.items {
            touched.item(self, *item);
            if let Place::Occupied(mut count) = self.items.entry(*item) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                    self.went(item, touched);
                }
            }
        }
    }

    /// The first Service port wants it.
    fn came(&mut self, item: Item, touched: &mut Touched) {
        match item {
            Item::Entry(set, _) => {
                if !self.sizes.contains_key(&set) {
                    touched.contents(self);
                }
                *self.sizes.entry(set).or_default() += 1;
            }
            Item::Barred(barred) => {
                touched.contents(self);
                self.barred.insert(barred);
            }
            Item::Address(_) => self.addresses += 1,
        }
    }

    /// No Service port wants it any more.
    fn went(&mut self, item: &Item, touched: &mut Touched) {
        match item {
            Item::Entry(set, _) => {
                let last = self.sizes.get(set) == Some(&1);
                if last {
                    touched.contents(self);
                    self.sizes.remove(set);
                } else if let Some(size) = self.sizes.get_mut(set) {
                    *size -= 1;
                }
            }
            Item::Barred(barred) => {
                touched.contents(self);
                self.barred.remove(barred);
            }
            Item::Address(_) => self.addresses -= 1,
        }
    }

    /// The virtual server of this address.
    pub fn server(&self, key: &ServerKey) -> Option<&Service> {
        let claims = self.servers.get(key)?;
        claims.first().map(|claim| &claim.service)
    }

    /// The Service port that has a virtual server.
    pub fn owner(&self, key: &ServerKey) -> Option<&PortKey> {
        let claims = self.servers.get(key)?;
        claims.first().map(|claim| &claim.port)
    }

    /// All virtual servers.
    pub fn servers(&self) -> impl Iterator<Item = (&ServerKey, &Service)> {
        let servers = self.servers.iter();
        servers.filter_map(|(key, claims)| Some((key, &claims.first()?.service)))
    }

    /// Everything else, each once.
    pub fn items(&self) -> impl Iterator<Item = &Item> {
        self.items.keys()
    }

    /// All of it, for a comparison.
    pub fn target(&self) -> Target<'_> {
        let mut target = Target::default();
        target
            .servers
            .extend(self.servers().map(|(key, service)| (*key, service)));
        for item in self.items() {
            target.add(*item);
        }
        target
    }

    /// What rules depend on.
    pub fn contents(&self) -> Contents {
        Contents {
            occupied: self.sizes.keys().copied().collect(),
            barred: self.barred.clone(),
        }
    }

    /// How many entries each set has that has any.
    pub const fn sizes(&self) -> &BTreeMap<Set, usize> {
        &self.sizes
    }

    /// How many virtual servers there are.
    pub fn server_count(&self) -> usize {
        self.servers.len()
    }

    /// How many addresses there are.
    pub const fn address_count(&self) -> usize {
        self.addresses
    }

    fn wants(&self, item: &Item) -> bool {
        self.items.contains_key(item)
    }
}

impl Touched {
    fn server(&mut self, wanted: &Wanted, key: ServerKey) {
        let now = || wanted.server(&key).cloned();
        self.servers.entry(key).or_insert_with(now);
    }

    fn item(&mut self, wanted: &Wanted, item: Item) {
        let now = || wanted.wants(&item);
        self.items.entry(item).or_insert_with(now);
    }

    fn contents(&mut self, wanted: &Wanted) {
        self.contents.get_or_insert_with(|| wanted.contents());
    }

    /// All that differs between two states.
    pub fn between(old: &Wanted, new: &Wanted) -> Self {
        let mut touched = Self::default();
        for key in old.servers.keys().chain(new.servers.keys()) {
            if old.server(key) != new.server(key) {
                touched.server(old, *key);
            }
        }
        for item in old.items().chain(new.items()) {
            if old.wants(item) != new.wants(item) {
                touched.item(old, *item);
            }
        }
        touched.contents(old);
        touched
    }

    /// The virtual servers among it.
    pub fn servers(&self) -> impl Iterator<Item = &ServerKey> {
        self.servers.keys()
    }

    /// What there was of all this, given the destinations without new connections.
    pub fn before(&self, draining: impl Fn(&ServerKey) -> Vec<SocketAddr>) -> Installed {
        let mut installed = Installed::default();
        for (key, service) in &self.servers {
            if let Some(service) = service {
                let server = Present::of(service, draining(key));
                installed.servers.insert(*key, server);
            }
        }
        for (item, there) in &self.items {
            if *there {
                installed.add(*item);
            }
        }
        installed
    }

    /// What there is to be of it.
    pub fn after<'w>(&self, wanted: &'w Wanted) -> Target<'w> {
        let mut target = Target::default();
        for key in self.servers.keys() {
            if let Some(service) = wanted.server(key) {
                target.servers.insert(*key, service);
            }
        }
        for item in self.items.keys() {
            if wanted.wants(item) {
                target.add(*item);
            }
        }
        target
    }

    /// What rules depended on and depend on now; `None` if that is the same.
    pub fn rules(&self, wanted: &Wanted) -> Option<(Contents, Contents)> {
        let before = self.contents.clone()?;
        let after = wanted.contents();
        (before != after).then_some((before, after))
    }
}
