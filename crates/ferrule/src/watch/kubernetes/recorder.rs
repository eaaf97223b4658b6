//! Events for people who look at the cluster, as `kubectl get events` shows them.
//!
//! In: what happened, from any thread. Out: a POST to events.k8s.io, tried a few times. An event
//! is a courtesy: it never makes anyone wait, and when the API server is away too long it is
//! dropped. Each carries the time it was recorded, so this place reads the clock.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::client::Api;
use super::pace::{Backoff, Random, Timings};

/// Who reports, in the words of kube-proxy.
const CONTROLLER: &str = "kube-proxy";

/// So many events may wait; more than that at once would be a mistake of ours.
const QUEUE: usize = 64;

/// How often one event is tried.
const TRIES: usize = 5;

/// The API refuses longer notes.
const LONGEST_NOTE: usize = 1024;

/// How serious an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Severity {
    Normal,
    Warning,
}

/// The object an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Regarding {
    Node(String),
    Service { namespace: String, name: String },
}

/// Something worth an event.
#[derive(Clone, Debug)]
pub struct Report {
    pub regarding: Regarding,
    pub severity: Severity,
    /// Why, in one word: `FailedToStartServiceHealthcheck`.
    pub reason: &'static str,
    /// What was being done, in one word: `Listen`.
    pub action: &'static str,
    /// The rest in a sentence; may be empty.
    pub note: String,
    /// Every node reports the same: the API server keeps one of them.
    pub shared: bool,
}

impl Report {
    /// The program has started on this Node.
    pub fn birth_cry(node_name: &str) -> Self {
        Self {
            regarding: Regarding::Node(node_name.to_owned()),
            severity: Severity::Normal,
            reason: "Starting",
            action: "StartKubeProxy",
            note: String::new(),
            shared: false,
        }
    }
}

/// Sends events in the background. Clones share the queue.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: mpsc::Sender<Message>,
    instance: Arc<str>,
}

#[derive(Debug)]
enum Message {
    Post {
        path: String,
        json: Vec<u8>,
    },
    /// Answered when everything before it is done.
    Flush(oneshot::Sender<()>),
}

impl Recorder {
    /// A recorder that speaks for the machine of this name. Must be called within a runtime.
    pub fn start(api: Api, host_name: &str) -> Self {
        Self::start_with(api, host_name, Timings::default())
    }

    /// [`Recorder::start`] with these timeouts.
    pub(super) fn start_with(api: Api, host_name: &str, timings: Timings) -> Self {
        let (queue, messages) = mpsc::channel(QUEUE);
        tokio::spawn(post_all(api, timings, messages));
        Self {
            queue,
            instance: format!("{CONTROLLER}-{host_name}").into(),
        }
    }

    /// Queues an event and returns at once. When too many wait already, it is dropped.
    pub fn record(&self, report: &Report) {
        let (path, json) = encode(report, &self.instance, Timestamp::now());
        if self.queue.try_send(Message::Post { path, json }).is_err() {
            tracing::debug!(
                reason = report.reason,
                "The event queue is full; dropping the event"
            );
        }
    }

    /// Waits until all events queued so far are sent or given up. Says whether that came in time.
    pub async fn flush(&self, limit: Duration) -> bool {
        let (done, all_done) = oneshot::channel();
        let flushed = async {
            self.queue.send(Message::Flush(done)).await.ok()?;
            all_done.await.ok()
        };
        matches!(timeout(limit, flushed).await, Ok(Some(())))
    }
}

async fn post_all(api: Api, timings: Timings, mut messages: mpsc::Receiver<Message>) {
    let mut random = Random::new();
    while let Some(message) = messages.recv().await {
        match message {
            Message::Post { path, json } => post(&api, &timings, &mut random, &path, json).await,
            // Whoever asked may have given up.
            Message::Flush(done) => _ = done.send(()),
        }
    }
}

async fn post(api: &Api, timings: &Timings, random: &mut Random, path: &str, json: Vec<u8>) {
    let mut backoff = Backoff::default();
    for remaining in (0..TRIES).rev() {
        let Err(failure) = api.post(path, json.clone(), timings.answer).await else {
            return;
        };
        // It arrived, and the answer to an earlier try was lost.
        if failure.code() == Some(409) {
            return;
        }
        if remaining == 0 || !failure.is_passing() {
            tracing::info!(err = failure.whole(), "Posting an event failed");
            return;
        }
        let delay = backoff.next(Instant::now(), timings, random);
        sleep(delay.max(failure.retry_after().unwrap_or_default())).await;
    }
}

/// An `Event` of events.k8s.io/v1, as far as the client fills it in.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Metadata<'a>,
    #[serde(rename = "eventTime")]
    time: String,
    reporting_controller: &'static str,
    reporting_instance: &'a str,
    action: &'a str,
    reason: &'a str,
    regarding: Reference<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    note: &'a str,
    #[serde(rename = "type")]
    severity: Severity,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: String,
    namespace: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Reference<'a> {
    kind: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    name: &'a str,
    api_version: &'static str,
}

/// The path and body of the request that creates an event.
fn encode(report: &Report, instance: &str, now: Timestamp) -> (String, Vec<u8>) {
    let (kind, namespace, name) = match &report.regarding {
        Regarding::Node(name) => ("Node", "", name),
        Regarding::Service { namespace, name } => ("Service", namespace.as_str(), name),
    };
    // Events about cluster-wide objects must live somewhere.
    let home = if namespace.is_empty() {
        "default"
    } else {
        namespace
    };
    let event = Event {
        kind: "Event",
        api_version: "events.k8s.io/v1",
        metadata: Metadata {
            // Whoever comes second with a name is refused with 409.
            name: if report.shared {
                format!("{name}.{:016x}", fingerprint(report))
            } else {
                format!("{name}.{:x}", now.as_nanosecond())
            },
            namespace: home,
        },
        time: DateTimePrinter::new()
            .precision(Some(6))
            .timestamp_to_string(&now),
        reporting_controller: CONTROLLER,
        reporting_instance: instance,
        action: report.action,
        reason: report.reason,
        regarding: Reference {
            kind,
            namespace,
            name,
            api_version: "v1",
        },
        note: shortened(&report.note),
        severity: report.severity,
    };
    let path = format!("/apis/events.k8s.io/v1/namespaces/{home}/events");
    let json = serde_json::to_vec(&event).expect("strings always encode");
    (path, json)
}

/// FNV-1a over what an event says: the same on every node and in every version.
fn fingerprint(report: &Report) -> u64 {
    let words = [report.reason, report.action, &report.note];
    let bytes = words.iter().flat_map(|word| word.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn shortened(note: &str) -> &str {
    &note[..note.floor_char_boundary(LONGEST_NOTE)]
}
