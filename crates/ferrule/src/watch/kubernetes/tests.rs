//! The whole way from a real HTTP connection to the tracker, over good days and bad.
//!
//! Tests wait for states. The timings are short so that retries come soon, never so that
//! something must have happened by then.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use ferrule_core::model::ServiceKey;
use ferrule_core::track::Tracker;
use http::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

use self::server::{CIDRS, NODES, SERVICES, SLICES, Server};
use super::*;

mod access;
mod bad_days;
mod big;
mod law;
mod lists;
pub mod log;
mod packed;
mod proxies;
pub mod recorder;
pub mod server;
mod watches;

/// Far longer than any wait takes; only a failing test waits so long.
const LONG: Duration = Duration::from_secs(30);

/// Runs a test on a runtime like the program's.
pub fn run(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap().block_on(test);
}

/// Retries come at once; silence is never taken for an end.
fn quick() -> Timings {
    Timings {
        answer: LONG,
        short: Duration::from_millis(1),
        first_delay: Duration::from_millis(1),
        longest_delay: Duration::from_millis(20),
        absence: Duration::from_millis(30),
        rarely: Duration::from_millis(5),
        ..Timings::default()
    }
}

fn settings() -> Settings {
    Settings {
        node_name: "here".to_owned(),
        streaming_lists: true,
        format: Format::Protobuf,
        timings: quick(),
        rest: Rest::default(),
    }
}

fn api(server: &Server) -> Api {
    api_observed(server, Arc::new(()))
}

fn api_observed(server: &Server, observer: Arc<dyn Observer>) -> Api {
    let access = Access {
        master: server.url(),
        ..Access::default()
    };
    Api::open_in(access::nowhere(), access, observer).unwrap()
}

/// Counts what it observes.
#[derive(Default)]
struct Counts(Mutex<BTreeMap<String, usize>>);

impl Counts {
    fn add(&self, what: String) {
        *self.0.lock().unwrap().entry(what).or_default() += 1;
    }

    fn get(&self, what: &str) -> usize {
        self.0.lock().unwrap().get(what).copied().unwrap_or(0)
    }
}

impl Observer for Counts {
    fn answered(&self, method: &Method, code: Option<u16>, _took: Duration) {
        let code = code.map_or("none".to_owned(), |code| code.to_string());
        self.add(format!("{method} {code}"));
    }

    fn listing(&self, resource: &'static str) {
        self.add(format!("listing {resource}"));
    }

    fn watch_ended(&self, resource: &'static str, well: bool) {
        self.add(format!("watch of {resource} ended {well}"));
    }
}

/// The end of the channel, and the store at it.
struct Consumer {
    batches: mpsc::Receiver<Vec<Event>>,
    tracker: Tracker,
    /// Everything that came, in words.
    received: Vec<String>,
    /// So many events came at once at most.
    largest: usize,
    watch: Watch,
}

impl Consumer {
    fn of(server: &Server) -> Self {
        Self::with(&api(server), settings())
    }

    fn with(api: &Api, settings: Settings) -> Self {
        Self::with_room(api, settings, 64)
    }

    /// With room for so many batches in between.
    fn with_room(api: &Api, settings: Settings, room: usize) -> Self {
        let (sink, batches) = mpsc::channel(room);
        Self {
            batches,
            tracker: Tracker::new(SystemTime::UNIX_EPOCH),
            received: Vec::new(),
            largest: 0,
            watch: watch(api, settings, &sink),
        }
    }

    async fn take_in(&mut self) {
        let batch = timeout(LONG, self.batches.recv()).await;
        let batch = batch.expect("the state is reached").expect("it goes on");
        self.apply(batch);
    }

    fn apply(&mut self, batch: Vec<Event>) {
        assert!(!batch.is_empty());
        self.largest = self.largest.max(batch.len());
        for event in batch {
            self.received.push(word(&event));
            self.tracker.on(event);
        }
    }

    /// Takes events in until the tracker is as it should be.
    async fn until(&mut self, reached: impl Fn(&Tracker) -> bool) {
        while !reached(&self.tracker) {
            self.take_in().await;
        }
    }

    /// Takes events in until this one has come so often.
    async fn until_received(&mut self, word: &str, count: usize) {
        while self.count(word) < count {
            self.take_in().await;
        }
    }

    fn count(&self, word: &str) -> usize {
        self.received.iter().filter(|event| *event == word).count()
    }

    /// Takes events in until the tracker knows exactly what the server stores.
    async fn until_same(&mut self, server: &Server) {
        loop {
            let expected = expected(server);
            if same(&self.tracker, &expected) {
                return;
            }
            let batch = timeout(LONG, self.batches.recv()).await;
            let Ok(Some(batch)) = batch else {
                panic!(
                    "not reached\nexpected {:?}\nknown {:?}",
                    expected.keys(),
                    self.tracker.keys()
                );
            };
            self.apply(batch);
        }
    }
}

fn word(event: &Event) -> String {
    match event {
        Event::Put { object, .. } => format!("put {}", object.key()),
        Event::Gone { key, .. } => format!("gone {key}"),
        Event::Undecodable { key, .. } => format!("kept {key}"),
        Event::Listing(kind) => format!("listing {}", kind.as_str()),
        Event::Listed(kind) => format!("listed {}", kind.as_str()),
    }
}

/// A tracker that received, without any network, what the server stores.
fn expected(server: &Server) -> Tracker {
    let mut tracker = Tracker::new(SystemTime::UNIX_EPOCH);
    for (kind, path) in [
        (Kind::Service, SERVICES),
        (Kind::EndpointSlice, SLICES),
        (Kind::Node, NODES),
        (Kind::ServiceCidr, CIDRS),
    ] {
        tracker.on(Event::Listing(kind));
        for object in server.objects(path) {
            let object = serde_json::from_value(object).unwrap();
            if let Some(event) = crate::watch::convert::convert(kind, object, "here") {
                tracker.on(event);
            }
        }
        tracker.on(Event::Listed(kind));
    }
    tracker
}

fn same(one: &Tracker, other: &Tracker) -> bool {
    let entries_match = |key: &ServiceKey| match (one.entry(key), other.entry(key)) {
        (Some(one), Some(other)) => one.service == other.service && one.slices == other.slices,
        _ => false,
    };
    one.is_ready()
        && one.keys() == other.keys()
        && one.keys().iter().all(entries_match)
        && one.service_cidrs() == other.service_cidrs()
        && one.node() == other.node()
}

/// The Services a tracker knows.
fn services(tracker: &Tracker) -> Vec<String> {
    let known = |key: &ServiceKey| tracker.entry(key).is_some_and(|e| e.service.is_some());
    let keys = tracker.keys().into_iter().filter(known);
    keys.map(|key| key.to_string()).collect()
}

fn service(name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": name},
        "spec": {
            "clusterIP": "172.30.0.1", "type": "ClusterIP",
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        },
    })
}

fn slice(name: &str, owner: &str, address: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "namespace": "default", "name": name,
            "labels": {"kubernetes.io/service-name": owner},
        },
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
    })
}

fn node(name: &str, zone: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
    })
}

fn service_cidr(name: &str, network: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": name}, "spec": {"cidrs": [network]},
    })
}
