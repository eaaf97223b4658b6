//! What the API server says becomes events.
//!
//! In: one event of a watch, or one object of a list, in JSON or protobuf. Out: core [`Event`]s in a
//! batch, and how far the server's history has come. Nothing of an object is kept here.

use ferrule_core::issue::{Issue, Kind, Severity};
use ferrule_core::track::Event;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::endpoints::{Endpoints, Parts};
use super::failure::{Cause, Failure, Refusal};
use super::format::Format;
use super::protobuf::{self, Damage, Message, WatchEvent};
use crate::watch::{api, convert};

/// Which shape objects of a kind arrive in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Their own.
    Own,
    /// EndpointSlices as `Endpoints` of the core API.
    Endpoints,
}

/// What an event of a watch says besides its object.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// The history has come so far; empty if the event does not say.
    Version(String),
    /// The same, said at regular intervals and not by an object.
    Bookmark(String),
    /// The list is complete, and the history has come so far.
    ListEnds(String),
}

/// Turns texts into events of one kind.
#[derive(Debug)]
pub struct Intake {
    kind: Kind,
    node_name: String,
    shape: Shape,
    parts: Parts,
    events: Vec<Event>,
}

/// One line of a watch.
#[derive(Deserialize)]
#[serde(tag = "type", content = "object")]
enum Line<T> {
    #[serde(rename = "ADDED", alias = "MODIFIED")]
    Put(T),
    #[serde(rename = "DELETED")]
    Gone(T),
    #[serde(rename = "BOOKMARK")]
    Bookmark(Box<Nameplate>),
    #[serde(rename = "ERROR")]
    Error(Refusal),
}

/// Who an object is, whatever else it may be.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Nameplate {
    metadata: api::Metadata,
}

/// Who an object is, when even the rest of its metadata makes no sense.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Identity {
    metadata: Names,
}

/// The names within.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Names {
    pub name: String,
    pub namespace: String,
    pub resource_version: String,
}

impl Identity {
    /// Who an object in protobuf is.
    fn of(message: &[u8]) -> Self {
        Self {
            metadata: protobuf::names(message),
        }
    }

    /// The names as metadata, if there are any.
    fn named(self) -> Result<api::Metadata, Failure> {
        let metadata = api::Metadata {
            name: self.metadata.name,
            namespace: self.metadata.namespace,
            resource_version: self.metadata.resource_version,
            ..api::Metadata::default()
        };
        named(&metadata)?;
        Ok(metadata)
    }
}

/// `metadata` of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListMetadata {
    pub resource_version: String,
    /// Stands for the next page; empty on the last one.
    #[serde(rename = "continue")]
    pub next: String,
}

impl ListMetadata {
    /// Reads what is around the objects of a list; in protobuf, the metadata itself.
    pub fn read(format: Format, list: &[u8]) -> Result<Self, Failure> {
        #[derive(Deserialize)]
        struct List {
            metadata: ListMetadata,
        }
        let metadata = match format {
            Format::Json => decode::<List>(list)?.metadata,
            Format::Protobuf => protobuf::list_metadata(list).map_err(no_list)?,
        };
        if metadata.resource_version.is_empty() {
            return Err(no_version());
        }
        Ok(metadata)
    }
}

impl Intake {
    pub fn new(kind: Kind, node_name: &str) -> Self {
        Self {
            kind,
            node_name: node_name.to_owned(),
            shape: Shape::Own,
            parts: Parts::default(),
            events: Vec::new(),
        }
    }

    /// A full list begins, of objects in this shape.
    pub fn begin_list(&mut self, shape: Shape) {
        self.shape = shape;
        match shape {
            Shape::Own => self.parts = Parts::default(),
            Shape::Endpoints => self.parts.begin_list(),
        }
        self.events.push(Event::Listing(self.kind));
    }

    /// The full list is complete.
    pub fn end_list(&mut self) {
        self.parts.end_list();
        self.events.push(Event::Listed(self.kind));
    }

    /// How many events wait to be taken.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Hands over the events so far.
    pub fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Takes in one event of a watch.
    pub fn event(&mut self, format: Format, event: &[u8]) -> Result<Progress, Failure> {
        match (format, self.shape) {
            (Format::Json, Shape::Own) => self.line_of::<api::Object>(event),
            (Format::Json, Shape::Endpoints) => self.line_of::<Endpoints>(event),
            (Format::Protobuf, Shape::Own) => self.frame_of::<api::Object>(event),
            (Format::Protobuf, Shape::Endpoints) => self.frame_of::<Endpoints>(event),
        }
    }

    /// Takes in one object of a list.
    pub fn item(&mut self, format: Format, object: &[u8]) -> Result<(), Failure> {
        match (format, self.shape) {
            (Format::Json, Shape::Own) => self.item_of::<api::Object>(object),
            (Format::Json, Shape::Endpoints) => self.item_of::<Endpoints>(object),
            (Format::Protobuf, Shape::Own) => self.message_of::<api::Object>(object).map(drop),
            (Format::Protobuf, Shape::Endpoints) => self.message_of::<Endpoints>(object).map(drop),
        }
    }

    fn line_of<T: Arrived>(&mut self, text: &[u8]) -> Result<Progress, Failure> {
        let line: Line<T> = match serde_json::from_slice(text) {
            Ok(line) => line,
            Err(error) => return self.poor_line(text, error),
        };
        match line {
            Line::Put(object) => self.put(object).map(Progress::Version),
            Line::Gone(mut object) => {
                let metadata = std::mem::take(object.metadata());
                named(&metadata)?;
                self.gone(&metadata);
                Ok(Progress::Version(metadata.resource_version))
            }
            Line::Bookmark(bookmark) => progress_of(*bookmark),
            Line::Error(refusal) => Err(Failure::Refused {
                refusal,
                inside: true,
            }),
        }
    }

    fn item_of<T: Arrived>(&mut self, text: &[u8]) -> Result<(), Failure> {
        match serde_json::from_slice::<T>(text) {
            Ok(object) => _ = self.put(object)?,
            Err(error) => {
                let metadata = decode::<Identity>(text)?.named()?;
                self.undecodable(&metadata, &error);
            }
        }
        Ok(())
    }

    /// The same as [`Intake::line_of`], for an event in protobuf.
    fn frame_of<T: Arrived>(&mut self, frame: &[u8]) -> Result<Progress, Failure> {
        let WatchEvent { kind, object } = WatchEvent::read(frame).map_err(no_event)?;
        match kind {
            b"ADDED" | b"MODIFIED" => self.message_of::<T>(object).map(Progress::Version),
            b"DELETED" => {
                let metadata = Identity::of(object).named()?;
                self.gone(&metadata);
                Ok(Progress::Version(metadata.resource_version))
            }
            b"BOOKMARK" => progress_of(Nameplate {
                metadata: protobuf::metadata(object).map_err(no_event)?,
            }),
            b"ERROR" => Err(Failure::Refused {
                refusal: protobuf::refusal(object).map_err(no_event)?,
                inside: true,
            }),
            _ => Err(Failure::Garbled {
                what: "an event of a watch has an unknown type",
                source: None,
            }),
        }
    }

    /// Takes in one object in protobuf. Returns its version.
    fn message_of<T: Arrived>(&mut self, message: &[u8]) -> Result<String, Failure> {
        match T::read(self.kind, message) {
            Ok(object) => self.put(object),
            Err(damage) => {
                let metadata = Identity::of(message).named()?;
                self.undecodable(&metadata, &damage);
                Ok(metadata.resource_version)
            }
        }
    }

    /// Takes in an object. Returns its version.
    fn put<T: Arrived>(&mut self, mut object: T) -> Result<String, Failure> {
        named(object.metadata())?;
        let version = std::mem::take(&mut object.metadata().resource_version);
        object.put(self);
        Ok(version)
    }

    /// A line of which perhaps only the object makes no sense: it harms only itself then.
    fn poor_line(&mut self, text: &[u8], error: serde_json::Error) -> Result<Progress, Failure> {
        match serde_json::from_slice::<Line<Identity>>(text) {
            Ok(Line::Put(object)) => {
                let metadata = object.named()?;
                self.undecodable(&metadata, &error);
                Ok(Progress::Version(metadata.resource_version))
            }
            Ok(Line::Gone(object)) => {
                let metadata = object.named()?;
                self.gone(&metadata);
                Ok(Progress::Version(metadata.resource_version))
            }
            _ => Err(Failure::Garbled {
                what: "an event of a watch cannot be decoded",
                source: Some(error.into()),
            }),
        }
    }

    fn gone(&mut self, metadata: &api::Metadata) {
        match self.shape {
            Shape::Own => self.events.push(Event::Gone {
                key: convert::key(self.kind, metadata),
                issues: Vec::new(),
            }),
            Shape::Endpoints => self.parts.gone(metadata, &mut self.events),
        }
    }

    /// The object exists, so what was known of it stays until it can be read again or is deleted.
    fn undecodable(&mut self, metadata: &api::Metadata, error: &dyn std::error::Error) {
        let key = convert::key(self.kind, metadata);
        let message = format!(
            "the object cannot be decoded ({error}); its last valid state, if there is one, stays \
             in use"
        );
        let issue = Issue {
            object: key.clone(),
            field: "metadata.name".to_owned(),
            message,
            severity: Severity::Warning,
        };
        self.events.push(Event::Undecodable {
            key,
            issues: vec![issue],
        });
        if self.shape == Shape::Endpoints {
            self.parts.keep(metadata, &mut self.events);
        }
    }
}

/// Without a name it is no object, whatever else it may look like.
fn named(metadata: &api::Metadata) -> Result<(), Failure> {
    if metadata.name.is_empty() {
        return Err(Failure::Garbled {
            what: "an object without a name",
            source: None,
        });
    }
    Ok(())
}

fn progress_of(bookmark: Nameplate) -> Result<Progress, Failure> {
    let metadata = bookmark.metadata;
    if metadata.annotations.initial_events_end.as_deref() != Some("true") {
        return Ok(Progress::Bookmark(metadata.resource_version));
    }
    if metadata.resource_version.is_empty() {
        return Err(no_version());
    }
    Ok(Progress::ListEnds(metadata.resource_version))
}

fn no_version() -> Failure {
    Failure::Garbled {
        what: "a list without a version",
        source: None,
    }
}

fn decode<T: DeserializeOwned>(text: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(text).map_err(|error| Failure::Garbled {
        what: LIST,
        source: Some(error.into()),
    })
}

const LIST: &str = "a list cannot be decoded";

fn no_list(damage: Damage) -> Failure {
    Failure::Garbled {
        what: LIST,
        source: Some(Cause::from(damage)),
    }
}

fn no_event(damage: Damage) -> Failure {
    Failure::Garbled {
        what: "an event of a watch cannot be decoded",
        source: Some(Cause::from(damage)),
    }
}

/// An object in one of the shapes it may arrive in.
trait Arrived: DeserializeOwned + Message {
    fn metadata(&mut self) -> &mut api::Metadata;
    fn put(self, intake: &mut Intake);
}

impl Arrived for api::Object {
    fn metadata(&mut self) -> &mut api::Metadata {
        &mut self.metadata
    }

    fn put(self, intake: &mut Intake) {
        let event = convert::convert(intake.kind, self, &intake.node_name);
        intake.events.extend(event);
    }
}

impl Arrived for Endpoints {
    fn metadata(&mut self) -> &mut api::Metadata {
        &mut self.metadata
    }

    fn put(self, intake: &mut Intake) {
        intake
            .parts
            .put(self, &intake.node_name, &mut intake.events);
    }
}

#[cfg(test)]
mod tests {
    use ferrule_core::track::Tracker;

    use super::*;

    fn services() -> Intake {
        Intake::new(Kind::Service, "here")
    }

    fn service(name: &str) -> String {
        format!(
            r#"{{"kind":"Service","apiVersion":"v1","metadata":{{"namespace":"default","name":"{name}","resourceVersion":"41"}},"spec":{{"clusterIP":"172.30.0.1","ports":[{{"port":80}}]}}}}"#
        )
    }

    fn words(events: Vec<Event>) -> Vec<String> {
        let word = |event| match event {
            Event::Put { object, .. } => format!("put {}", object.key()),
            Event::Gone { key, .. } => format!("gone {key}"),
            Event::Undecodable { key, issues } => format!("kept {key}, {}", issues[0].message),
            Event::Listing(kind) => format!("listing {}", kind.as_str()),
            Event::Listed(kind) => format!("listed {}", kind.as_str()),
        };
        events.into_iter().map(word).collect()
    }

    #[test]
    fn lines_of_a_watch_become_events_and_a_version() {
        let mut intake = services();
        let mut progress = |kind: &str| {
            let line = format!(r#"{{"type":"{kind}","object":{}}}"#, service("a"));
            intake.event(Format::Json, line.as_bytes()).unwrap()
        };
        for kind in ["ADDED", "MODIFIED", "DELETED"] {
            assert_eq!(progress(kind), Progress::Version("41".to_owned()));
        }
        assert_eq!(progress("BOOKMARK"), Progress::Bookmark("41".to_owned()));
        assert_eq!(
            words(intake.take()),
            [
                "put Service default/a",
                "put Service default/a",
                "gone Service default/a"
            ]
        );
    }

    #[test]
    fn the_order_of_keys_does_not_matter() {
        let mut intake = services();
        let line = format!(r#"{{"object":{},"type":"ADDED"}}"#, service("a"));
        assert_eq!(
            intake.event(Format::Json, line.as_bytes()).unwrap(),
            Progress::Version("41".to_owned())
        );
        assert_eq!(words(intake.take()), ["put Service default/a"]);
    }

    #[test]
    fn the_bookmark_at_the_end_of_a_list_differs_from_others() {
        let progress = |value: &str| {
            let line = format!(
                r#"{{"type":"BOOKMARK","object":{{"kind":"Service","apiVersion":"v1","metadata":{{"resourceVersion":"9","creationTimestamp":null,"annotations":{{"k8s.io/initial-events-end":"{value}"}}}},"spec":{{}},"status":{{"loadBalancer":{{}}}}}}}}"#
            );
            services().event(Format::Json, line.as_bytes()).unwrap()
        };
        assert_eq!(progress("true"), Progress::ListEnds("9".to_owned()));
        assert_eq!(progress("false"), Progress::Bookmark("9".to_owned()));
    }

    #[test]
    fn an_error_inside_a_watch_is_a_refusal() {
        let line = br#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version: 1 (5)","reason":"Expired","code":410}}"#;
        let failure = services().event(Format::Json, line).unwrap_err();
        assert!(failure.is_expired());
        assert!(matches!(failure, Failure::Refused { inside: true, .. }));
    }

    #[test]
    fn an_object_that_makes_no_sense_is_kept_as_it_was_until_it_is_deleted() {
        let mut intake = services();
        let bad = |kind: &str| {
            format!(
                r#"{{"type":"{kind}","object":{{"metadata":{{"namespace":"default","name":"b","resourceVersion":"7"}},"spec":"?"}}}}"#
            )
        };
        for kind in ["MODIFIED", "DELETED"] {
            let progress = intake.event(Format::Json, bad(kind).as_bytes()).unwrap();
            assert_eq!(progress, Progress::Version("7".to_owned()));
        }
        for item in [
            r#"{"metadata":{"namespace":"default","name":"c"},"spec":7}"#,
            // Even where the metadata makes no sense, as long as there is a name.
            r#"{"metadata":{"namespace":"default","name":"c","labels":7}}"#,
        ] {
            intake.item(Format::Json, item.as_bytes()).unwrap();
        }
        let words = words(intake.take());
        assert!(words[0].starts_with("kept Service default/b, the object cannot be decoded"));
        assert_eq!(words[1], "gone Service default/b");
        assert!(words[2].starts_with("kept Service default/c, the object cannot be decoded"));
        assert!(words[3].starts_with("kept Service default/c, the object cannot be decoded"));
    }

    #[test]
    fn all_slices_of_undecodable_endpoints_are_kept() {
        let mut intake = Intake::new(Kind::EndpointSlice, "here");
        let mut tracker = Tracker::new(std::time::SystemTime::UNIX_EPOCH);
        let good = r#"{"metadata":{"namespace":"default","name":"web"},"subsets":[{"addresses":[{"ip":"10.0.0.1"},{"ip":"fd00::1"}],"ports":[{"port":8080}]}]}"#;
        let bad = r#"{"metadata":{"namespace":"default","name":"web"},"subsets":7}"#;
        let gone = format!(r#"{{"type":"DELETED","object":{bad}}}"#);
        // The first list that tries to replace the good one breaks off.
        for item in [good, bad, bad] {
            intake.begin_list(Shape::Endpoints);
            intake.item(Format::Json, item.as_bytes()).unwrap();
        }
        intake.end_list();
        let slices = |tracker: &Tracker| {
            let web = ferrule_core::model::ServiceKey::new("default", "web");
            tracker.entry(&web).map_or(0, |entry| entry.slices.len())
        };
        for event in intake.take() {
            tracker.on(event);
        }
        assert_eq!((slices(&tracker), tracker.issues().count()), (2, 1));
        intake.event(Format::Json, gone.as_bytes()).unwrap();
        for event in intake.take() {
            tracker.on(event);
        }
        assert_eq!((slices(&tracker), tracker.issues().count()), (0, 0));
    }

    #[test]
    fn what_is_no_event_at_all_is_an_error() {
        for text in [
            "<html>",
            "{}",
            r#"{"type":"ADDED"}"#,
            r#"{"type":"PAUSED","object":{}}"#,
            r#"{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
            r#"{"type":"ADDED","object":{"metadata":[]}}"#,
            r#"{"type":"ADDED","object":{"meta"#,
        ] {
            let failure = services().event(Format::Json, text.as_bytes()).unwrap_err();
            assert!(matches!(failure, Failure::Garbled { .. }), "{text}");
        }
        assert!(services().item(Format::Json, b"[]").is_err());
        assert!(ListMetadata::read(Format::Json, br#"{"metadata":{}}"#).is_err());
        assert!(ListMetadata::read(Format::Json, b"{}").is_err());
    }

    #[test]
    fn other_nodes_are_nobody() {
        let mut intake = Intake::new(Kind::Node, "here");
        for name in ["here", "elsewhere"] {
            let line = format!(r#"{{"type":"ADDED","object":{{"metadata":{{"name":"{name}"}}}}}}"#);
            intake.event(Format::Json, line.as_bytes()).unwrap();
        }
        assert_eq!(words(intake.take()), ["put Node here"]);
    }
}
