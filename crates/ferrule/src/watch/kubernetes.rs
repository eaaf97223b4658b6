//! The cluster as an API server describes it.
//!
//! In: an API server. Out: through a bounded channel, the same events that manifests give: per
//! kind a list, then changes, and another list whenever one is needed. One task per kind; the
//! receiving end may be a plain thread that blocks.
//!
//! Nothing here fails: an API server that is away is asked again, and what is known stays in use.
//! The one exception is a configuration that leads nowhere, which is an error when the [`Api`]
//! is opened. [`Recorder`] is the way back: events for people who look at the cluster.

use std::sync::Arc;

use ferrule_core::issue::Kind;
use ferrule_core::track::Event;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::reflector::Reflector;

mod access;
mod capability;
mod client;
mod endpoints;
mod failure;
mod format;
mod frames;
mod intake;
mod pace;
mod packing;
mod protobuf;
mod proxy;
pub mod reading;
mod recorder;
mod reflector;
mod resource;
mod route;
#[cfg(test)]
pub mod tests;

pub use self::access::Access;
pub use self::client::{Api, Observer};
pub use self::format::Format;
pub use self::pace::{Rest, Timings};
pub use self::recorder::{Recorder, Regarding, Report, Severity};

/// What to watch, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The Node we are.
    pub node_name: String,
    /// Ask for lists as streams first (feature gate `WatchListClient`).
    pub streaming_lists: bool,
    /// How to have objects written, where the server can.
    pub format: Format,
    /// Timeouts and delays.
    pub timings: Timings,
    /// When there is no hurry.
    pub rest: Rest,
}

/// Watches under way, until this is dropped.
#[derive(Debug)]
pub struct Watch {
    tasks: JoinSet<()>,
}

impl Watch {
    /// Waits for a watch to end by itself, which none should.
    pub async fn ended(&mut self) {
        if self.tasks.join_next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// Watches all kinds and sends what comes to `sink`, in batches of a few hundred events.
///
/// Events of one kind come in order. When `sink` is full the watches wait, and so does the
/// network: nothing piles up here. It all ends when the returned handle or the receiver is
/// dropped. Must be called within a runtime; the receiver may be on another thread, where
/// `blocking_recv` waits for the next batch.
pub fn watch<M>(api: &Api, settings: Settings, sink: &mpsc::Sender<M>) -> Watch
where
    M: From<Vec<Event>> + Send + 'static,
{
    let settings = Arc::new(settings);
    let mut tasks = JoinSet::new();
    for kind in Kind::ALL {
        let settings = Arc::clone(&settings);
        tasks.spawn(Reflector::new(api.clone(), settings, kind, sink.clone()).run());
    }
    Watch { tasks }
}
