//! A file or a folder of manifests as the cluster.
//!
//! In: YAML and JSON files. Out: the events of one complete list of every kind, so that reading
//! again after a change makes deleted objects vanish. [`watch()`] reads again by itself.
//!
//! A manifest is what a user writes, not what an API server stores: `defaults` fills in what the
//! API server would have. A file that cannot be understood is an error with its place, and then
//! nothing at all is delivered; a part of an object that makes no sense is only an issue.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ferrule_core::issue::{Issue, Kind, ObjectKey, Severity};
use ferrule_core::model::ServiceKey;
use ferrule_core::track::Event;

use self::decode::Fault;
use self::document::{Document, Syntax};
use self::objects::{Object, Objects};
use self::place::Place;
use super::Unserved;
use crate::file_watch::{self, FileWatch, FileWatchError};

mod decode;
mod defaults;
mod document;
mod files;
mod objects;
mod place;
mod stream;
#[cfg(test)]
mod tests;

/// Why manifests could not be read or watched.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The file or folder is missing or refuses to be read.
    #[error("{}: cannot be read", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file is not text.
    #[error("{}: line {line}: not UTF-8", path.display())]
    NotText { path: PathBuf, line: usize },
    /// A document is not what it should be.
    #[error("{place}: {fault}")]
    Malformed { place: Place, fault: Fault },
    /// Changes cannot be noticed.
    #[error(transparent)]
    Unwatchable(#[from] FileWatchError),
}

/// Reads all manifests as seen from node `node_name`: per kind `Listing`, objects, `Listed`.
///
/// Of a folder, the files ending in `.yaml`, `.yml` and `.json` are read, in the order of their
/// names. Folders inside it and names beginning with a dot are skipped.
pub fn read(path: &Path, node_name: &str) -> Result<Vec<Event>, ManifestError> {
    Ok(read_all(path, node_name)?.events)
}

/// All that manifests say.
pub struct Read {
    /// What [`read`] returns.
    pub events: Vec<Event>,
    /// Services that no event puts, because node proxies leave them alone.
    pub unserved: BTreeMap<ServiceKey, Unserved>,
}

/// The same as [`read`], with what is left alone on purpose.
pub fn read_all(path: &Path, node_name: &str) -> Result<Read, ManifestError> {
    let mut cluster = Cluster {
        node_name,
        objects: BTreeMap::new(),
        unserved: BTreeMap::new(),
    };
    for file in files::list(path)? {
        let Some(text) = files::read(&file)? else {
            continue;
        };
        let syntax = Syntax::of(&file);
        let start = Place::start(&file);
        for document in document::split(&text, syntax) {
            cluster.add_document(document, syntax, &start)?;
        }
    }
    let unserved = std::mem::take(&mut cluster.unserved);
    Ok(Read {
        events: cluster.into_events(),
        unserved,
    })
}

/// Reads the manifests now and after every change, and hands each result to `deliver`.
///
/// An error is delivered like any other result, and the next change is awaited: who receives it
/// keeps what was good. The same content may be delivered again.
pub fn watch(
    path: &Path,
    node_name: &str,
    mut deliver: impl FnMut(Result<Vec<Event>, ManifestError>) -> ControlFlow<()> + Send + 'static,
) -> Result<FileWatch, ManifestError> {
    let (file, node_name) = (path.to_owned(), node_name.to_owned());
    let follow = file_watch::watch(path, move |trouble| {
        if let Some(error) = trouble {
            deliver(Err(error.into()))?;
        }
        deliver(read(&file, &node_name))
    })?;
    Ok(follow)
}

/// The objects read so far; a later one replaces an earlier one of its key.
struct Cluster<'a> {
    node_name: &'a str,
    objects: BTreeMap<Kind, BTreeMap<ObjectKey, (Place, Box<Event>)>>,
    unserved: BTreeMap<ServiceKey, Unserved>,
}

impl Cluster<'_> {
    fn add_document(
        &mut self,
        document: Result<Document<'_>, (Document<'_>, Fault)>,
        syntax: Syntax,
        file: &Place,
    ) -> Result<(), ManifestError> {
        let malformed = |document: &Document<'_>, fault: Fault| {
            let line = document.line + fault.line().unwrap_or(1) - 1;
            let place = Place {
                document: document.number,
                line,
                ..file.clone()
            };
            ManifestError::Malformed { place, fault }
        };
        let document = document.map_err(|(document, fault)| malformed(&document, fault))?;
        let place = Place {
            document: document.number,
            line: document.first_line(),
            ..file.clone()
        };
        let mut objects = Objects::new(place, self.node_name);
        decode::decode(document.text, syntax, &mut objects)
            .map_err(|fault| malformed(&document, fault))?;
        for (place, object) in objects.into_all() {
            match object {
                Ok(object) => self.add(object, place),
                Err(fault) => return Err(ManifestError::Malformed { place, fault }),
            }
        }
        Ok(())
    }

    fn add(&mut self, object: Object, place: Place) {
        let Object {
            key,
            event,
            unserved,
        } = object;
        if let ObjectKey::Service(service) = &key {
            match unserved {
                Some(why) => self.unserved.insert(service.clone(), why),
                None => self.unserved.remove(service),
            };
        }
        let Some(mut event) = event else {
            return;
        };
        let objects = self.objects.entry(key.kind()).or_default();
        if let Some((earlier, _)) = objects.get(&key)
            && let Event::Put { issues, .. } | Event::Gone { issues, .. } = &mut *event
        {
            issues.push(Issue {
                object: key.clone(),
                field: "metadata.name".to_owned(),
                message: format!("defined at {earlier} and again at {place}; the latter is used"),
                severity: Severity::Warning,
            });
        }
        objects.insert(key, (place, event));
    }

    fn into_events(mut self) -> Vec<Event> {
        let objects: usize = self.objects.values().map(BTreeMap::len).sum();
        let mut events = Vec::with_capacity(objects + 2 * Kind::ALL.len());
        for kind in Kind::ALL {
            events.push(Event::Listing(kind));
            let objects = self.objects.remove(&kind).unwrap_or_default();
            events.extend(objects.into_values().map(|(_, event)| *event));
            events.push(Event::Listed(kind));
        }
        events
    }
}
