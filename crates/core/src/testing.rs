//! Small clusters in few words, for the tests of every crate.
//!
//! In: `objects`, put one after another. Out: what is desired, and what changed.
//!
//! A helper that fails panics, because that is how tests fail. Other crates reach this module
//! through `ferrule-testbed`; nothing that is shipped has it.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "helpers of tests are tests, and a panic is how they fail"
)]

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::desired::{Action, Delta, Desired, Exposure, Frontend, FrontendKind};
use crate::facts::Settings;
use crate::issue::{Kind, ObjectKey};
use crate::model::{Family, Node, PortKey, Protocol, Service, ServiceCidr, Slice, SliceEndpoint};
use crate::track::{Changes, Event, Object, Tracker};

mod objects;

pub use objects::*;

/// The event that says what an object looks like.
pub fn put(object: Object) -> Event {
    Event::Put {
        object,
        issues: Vec::new(),
        trigger: None,
    }
}

/// The event that says that there is no such object any more.
pub fn gone(key: ObjectKey) -> Event {
    Event::Gone {
        key,
        issues: Vec::new(),
    }
}

/// A moment so many seconds after the beginning of time.
pub fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Whoever has a cluster can put objects into it, one after another.
pub trait Objects {
    /// The cluster.
    fn cluster(&mut self) -> &mut Cluster;

    /// Reports an event.
    fn on(&mut self, event: Event) -> &mut Self {
        self.cluster().tracker.on(event);
        self
    }

    /// A Service, new or changed.
    fn service(&mut self, service: impl Borrow<Service>) -> &mut Self {
        self.on(put(Object::Service(service.borrow().clone())))
    }

    /// An EndpointSlice, new or changed.
    fn slice(&mut self, slice: Slice) -> &mut Self {
        self.on(put(Object::Slice(slice)))
    }

    /// A Service and the slice of its endpoints, which listen on this port.
    fn serving(&mut self, service: &Service, port: i64, pods: &[SliceEndpoint]) -> &mut Self {
        self.service(service).slice(Slice::of(service, port, pods))
    }

    /// This node, new or changed.
    fn node(&mut self, node: Node) -> &mut Self {
        self.on(put(Object::Node(node)))
    }

    /// A ServiceCIDR, new or changed.
    fn service_cidr(&mut self, name: &str, cidrs: &[&str]) -> &mut Self {
        let cidrs = cidrs.iter().map(|net| net.parse().unwrap()).collect();
        self.on(put(Object::ServiceCidr(ServiceCidr {
            name: name.into(),
            cidrs,
        })))
    }

    /// The Service is deleted.
    fn no_service(&mut self, key: &str) -> &mut Self {
        self.on(gone(ObjectKey::Service(service_key(key))))
    }

    /// The EndpointSlice is deleted.
    fn no_slice(&mut self, key: &str) -> &mut Self {
        self.on(gone(ObjectKey::Slice(slice_key(key))))
    }

    /// The ServiceCIDR is deleted.
    fn no_service_cidr(&mut self, name: &str) -> &mut Self {
        self.on(gone(ObjectKey::ServiceCidr(name.into())))
    }

    /// Other settings, from the next step on.
    fn settings(&mut self, settings: Settings) -> &mut Self {
        self.cluster().settings = settings;
        self
    }
}

/// A cluster as this node sees it: a tracker and what is desired from it.
#[derive(Debug)]
pub struct Cluster {
    /// Takes events.
    pub tracker: Tracker,
    /// What is desired since the last [`Cluster::step`].
    pub desired: Desired,
    /// What the administrator decides.
    pub settings: Settings,
}

impl Objects for Cluster {
    fn cluster(&mut self) -> &mut Cluster {
        self
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new()
    }
}

impl Cluster {
    /// An empty cluster whose first lists are complete and taken.
    pub fn new() -> Self {
        Self::with(Settings::default())
    }

    /// The same with settings.
    pub fn with(settings: Settings) -> Self {
        let mut cluster = Self {
            tracker: Tracker::new(at(1000)),
            desired: Desired::new(settings.clone()),
            settings,
        };
        for kind in Kind::ALL {
            cluster.tracker.on(Event::Listing(kind));
            cluster.tracker.on(Event::Listed(kind));
        }
        assert!(cluster.step().is_empty());
        cluster
    }

    /// Takes what is pending, if anything.
    pub fn take(&mut self) -> Option<Changes> {
        self.tracker.take()
    }

    /// Brings the desired state up to date.
    pub fn step(&mut self) -> Delta {
        let changes = self.tracker.take().unwrap_or_default();
        let mut delta = self.desired.update(&self.tracker, changes);
        let settings = self.settings.clone();
        let later = self.desired.reconfigure(&self.tracker, settings).families;
        delta.families.v4.absorb(later.v4);
        delta.families.v6.absorb(later.v6);
        delta
    }

    /// The IPv4 exposure of a Service's port `http`.
    pub fn exposure(&self, service: &str) -> Arc<Exposure> {
        let udp = PortKey {
            protocol: Protocol::Udp,
            ..http(service)
        };
        self.desired
            .exposure(Family::V4, &http(service))
            .or_else(|| self.desired.exposure(Family::V4, &udp))
            .unwrap_or_else(|| panic!("{service} exposes nothing"))
            .clone()
    }

    /// The only frontend of this kind of a Service's IPv4 port `http`.
    pub fn frontend(&self, service: &str, kind: FrontendKind) -> Frontend {
        let exposure = self.exposure(service);
        let mut found = exposure
            .frontends
            .iter()
            .filter(|frontend| frontend.kind == kind);
        let frontend = found.next().unwrap_or_else(|| panic!("no {kind:?}"));
        assert!(found.next().is_none(), "more than one {kind:?}");
        *frontend
    }

    /// `action endpoint endpoint…` of the frontend of this kind.
    pub fn answer(&self, service: &str, kind: FrontendKind) -> String {
        let exposure = self.exposure(service);
        describe(&exposure, self.frontend(service, kind).action)
    }

    /// The same for clients inside; empty when they get the same.
    pub fn inside(&self, service: &str, kind: FrontendKind) -> String {
        let exposure = self.exposure(service);
        self.frontend(service, kind)
            .inside
            .map_or_else(String::new, |action| describe(&exposure, action))
    }
}

fn describe(exposure: &Exposure, action: Action) -> String {
    let verb = match action {
        Action::Balance(_) => "balance",
        Action::Reject => "reject",
        Action::Drop => "drop",
    };
    let endpoints = exposure
        .behind(action)
        .map(|endpoint| endpoint.ip.to_string());
    std::iter::once(verb.to_owned())
        .chain(endpoints)
        .collect::<Vec<_>>()
        .join(" ")
}
