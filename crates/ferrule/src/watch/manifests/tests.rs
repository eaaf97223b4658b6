//! Manifests on disk, good and bad.

use std::fs;
use std::path::Path;

use ferrule_core::model::ServiceKey;
use ferrule_core::track::{Object, Tracker};

use super::*;

mod big;
mod kinds;
mod places;
mod watching;

/// A Service of this name, as a user writes it.
fn service(name: &str, ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  clusterIP: {ip}\n  \
         ports:\n  - port: 80\n"
    )
}

/// The events of one file of this name and content.
fn read_file(name: &str, content: impl AsRef<[u8]>) -> Result<Vec<Event>, ManifestError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    fs::write(&file, content).unwrap();
    read(&file, "here")
}

/// Reads YAML that is well.
fn yaml(content: &str) -> Vec<Event> {
    read_file("cluster.yaml", content).unwrap()
}

/// The message of an error, without the folder of the test.
fn complaint(name: &str, content: impl AsRef<[u8]>) -> String {
    let message = read_file(name, content).unwrap_err().to_string();
    let start = message.find(name).unwrap();
    message[start..].to_owned()
}

/// Names of the objects put, in order.
fn names(events: &[Event]) -> Vec<String> {
    let put = |event: &Event| match event {
        Event::Put { object, .. } => Some(object.key().to_string()),
        _ => None,
    };
    events.iter().filter_map(put).collect()
}

fn issues(events: &[Event]) -> Vec<String> {
    let issues = events.iter().flat_map(|event| match event {
        Event::Put { issues, .. }
        | Event::Gone { issues, .. }
        | Event::Undecodable { issues, .. } => issues.as_slice(),
        Event::Listing(_) | Event::Listed(_) => &[],
    });
    issues.map(ToString::to_string).collect()
}

/// The Services a tracker knows after these events.
fn services(tracker: &mut Tracker, events: Vec<Event>) -> Vec<String> {
    for event in events {
        tracker.on(event);
    }
    tracker.take();
    tracker.keys().iter().map(ToString::to_string).collect()
}

fn write(folder: &Path, name: &str, content: &str) {
    fs::write(folder.join(name), content).unwrap();
}
