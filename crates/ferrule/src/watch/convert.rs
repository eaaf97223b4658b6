//! API objects become the core's own types; what cannot be used is left out and noted.
//!
//! In: an [`api::Object`], its kind and the name of this node. Out: an [`Event`] with the object
//! as far as it makes sense and an [`Issue`] for each part that does not, or the word that the
//! object is of no use to us.
//!
//! Pure and without failure: the smallest part that can be left out is left out, so a bad port
//! costs that port and never its siblings.

use ferrule_core::issue::{Issue, Kind, ObjectKey, Severity};
use ferrule_core::model::{ServiceKey, SliceKey, parse_cidr};
use ferrule_core::track::{Event, Object};
use ipnet::IpNet;
use jiff::Timestamp;

use super::api;

mod names;
mod node;
mod service;
mod slice;
#[cfg(test)]
mod tests;

/// What an object means to this node; `None` for a Node that is not this one.
pub fn convert(kind: Kind, object: api::Object, node_name: &str) -> Option<Event> {
    if kind == Kind::Node && object.metadata.name != node_name {
        return None;
    }
    let mut report = Report::new(kind, &object.metadata);
    if !names::are_good(kind, &object.metadata, &mut report) {
        return Some(report.gone());
    }
    Some(match kind {
        Kind::Service => service::service(object, report),
        Kind::EndpointSlice => slice::slice(object, node_name, report),
        Kind::Node => node::node(object, report),
        Kind::ServiceCidr => node::service_cidr(&object, report),
    })
}

/// The same for a slice that is part of another object and has a name of our own.
pub fn convert_part(slice: api::Object, node_name: &str) -> Event {
    let report = Report::new(Kind::EndpointSlice, &slice.metadata);
    slice::slice(slice, node_name, report)
}

/// Why node proxies leave a Service alone, though nothing is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// It has no cluster IP, on purpose.
    Headless,
    /// It is a name for another name.
    ExternalName,
    /// It is for the proxy of this name.
    OtherProxy(String),
}

impl Unserved {
    /// What a Service is to node proxies; `None` if they serve it.
    pub fn of(service: &api::Object) -> Option<Self> {
        if let Some(name) = &service.metadata.labels.proxy_name {
            Some(Self::OtherProxy(name.clone()))
        } else if service.spec.kind == "ExternalName" {
            Some(Self::ExternalName)
        } else {
            (service.spec.cluster_ip == "None").then_some(Self::Headless)
        }
    }
}

/// Who an object of this kind is.
pub fn key(kind: Kind, metadata: &api::Metadata) -> ObjectKey {
    let api::Metadata {
        namespace, name, ..
    } = metadata;
    match kind {
        Kind::Service => ObjectKey::Service(ServiceKey::new(namespace, name)),
        Kind::EndpointSlice => ObjectKey::Slice(SliceKey::new(namespace, name)),
        Kind::Node => ObjectKey::Node(name.as_str().into()),
        Kind::ServiceCidr => ObjectKey::ServiceCidr(name.as_str().into()),
    }
}

/// Collects what is wrong with one object while it is converted.
struct Report {
    object: ObjectKey,
    issues: Vec<Issue>,
}

impl Report {
    fn new(kind: Kind, metadata: &api::Metadata) -> Self {
        Self {
            object: key(kind, metadata),
            issues: Vec::new(),
        }
    }

    /// Someone should change this field.
    fn warn(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add(field.into(), message.into(), Severity::Warning);
    }

    /// This field may well be meant so, or be so only for a moment.
    fn note(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add(field.into(), message.into(), Severity::Note);
    }

    fn add(&mut self, field: String, message: String, severity: Severity) {
        let object = self.object.clone();
        self.issues.push(Issue {
            object,
            field,
            message,
            severity,
        });
    }

    fn put(self, object: Object) -> Event {
        Event::Put {
            object,
            issues: self.issues,
            trigger: None,
        }
    }

    fn gone(self) -> Event {
        Event::Gone {
            key: self.object,
            issues: self.issues,
        }
    }
}

/// Reads networks; entries that are none are left out and named.
fn networks(field: &str, texts: &[String], report: &mut Report) -> Box<[IpNet]> {
    let entries = texts.iter().enumerate();
    entries
        .filter_map(|(index, text)| network(|| format!("{field}[{index}]"), text, report))
        .collect()
}

fn network(field: impl FnOnce() -> String, text: &str, report: &mut Report) -> Option<IpNet> {
    let net = parse_cidr(text.trim());
    if net.is_none() {
        report.warn(
            field(),
            format!("{text:?} is not a network; it is left out"),
        );
    }
    net
}

/// A time in the format of the API; `None` if absent or unreadable.
fn time(text: Option<&str>) -> Option<Timestamp> {
    text?.parse().ok()
}
