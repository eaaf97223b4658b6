//! Where news of the cluster comes from: manifests or an API server.

use std::any::Any;
use std::future::pending;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::Method;
use tokio::sync::mpsc;

use super::reporter::whole;
use super::servers::Fallen;
use crate::config::gates::Gate;
use crate::config::options::Options;
use crate::http::EVENT_ACTION;
use crate::metrics::Metrics;
use crate::sync::Input;
use crate::watch::kubernetes::{self, Access, Api, Recorder, Regarding, Report, Severity, Timings};
use crate::watch::manifests;

/// How long an event may take to leave before we do.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The cluster, as long as it is watched.
pub struct Cluster {
    /// For events; there is nobody to tell when there is no API server.
    pub recorder: Option<Recorder>,
    /// Ends the program: manifests that cannot be read at the start, settings that cannot be
    /// right on this Node.
    pub fail: mpsc::Sender<anyhow::Error>,
    fatal: mpsc::Receiver<anyhow::Error>,
    /// Whatever must live as long as it is watched.
    watching: Vec<Box<dyn Any>>,
}

impl Cluster {
    /// Begins to watch; everything goes to `sink`.
    pub fn open(
        options: &Options,
        node_name: &str,
        host_name: &str,
        metrics: &Arc<Metrics>,
        sink: &mpsc::Sender<Input>,
    ) -> anyhow::Result<Self> {
        let (fail, fatal) = mpsc::channel(1);
        let mut cluster = Self {
            recorder: None,
            fail: fail.clone(),
            fatal,
            watching: Vec::new(),
        };
        if let Some(path) = &options.manifests {
            let sink = sink.clone();
            let mut first = true;
            let follow = manifests::watch(path, node_name, move |read| {
                match read {
                    Ok(events) => {
                        first = false;
                        if sink.blocking_send(events.into()).is_err() {
                            return ControlFlow::Break(());
                        }
                    }
                    Err(error) if first => {
                        // Without a first picture there is nothing to keep.
                        _ = fail.blocking_send(error.into());
                        return ControlFlow::Break(());
                    }
                    Err(error) => {
                        let err = whole(&error);
                        tracing::error!(err, "Manifests cannot be used; the last good ones stay");
                    }
                }
                ControlFlow::Continue(())
            })?;
            cluster.watching.push(Box::new(follow));
            return Ok(cluster);
        }
        let client = &options.config.client_connection;
        let access = Access {
            kubeconfig: client.kubeconfig.clone(),
            master: options.master.clone(),
        };
        let meter = Arc::new(Meter {
            metrics: metrics.clone(),
            host: OnceLock::new(),
        });
        let api = Api::open(access, meter.clone())?;
        meter.host.get_or_init(|| api.host());
        let settings = kubernetes::Settings {
            node_name: node_name.to_owned(),
            streaming_lists: options.gates.is_on(Gate::WatchListClient),
            timings: Timings::default(),
        };
        cluster.recorder = Some(Recorder::start(api.clone(), host_name));
        let watch = kubernetes::watch(&api, settings, sink);
        cluster.watching.push(Box::new(watch));
        Ok(cluster)
    }

    /// Waits for a failure that ends the process.
    pub async fn failed(&mut self) -> anyhow::Error {
        match self.fatal.recv().await {
            Some(error) => error,
            None => pending().await,
        }
    }

    /// Tells the cluster why we end, and gives that a moment to arrive.
    pub async fn last_words(&self, node_name: &str, fallen: Fallen) -> anyhow::Error {
        if let Some(recorder) = &self.recorder {
            recorder.record(&Report {
                regarding: Regarding::Node(node_name.to_owned()),
                severity: Severity::Warning,
                reason: fallen.role.event_reason(),
                action: EVENT_ACTION,
                note: fallen.error.to_string(),
            });
            recorder.flush(LAST_WORDS).await;
        }
        fallen.error.into()
    }
}

/// Counts what passes between us and the API server.
struct Meter {
    metrics: Arc<Metrics>,
    /// The API server's address, known once the connection is described.
    host: OnceLock<String>,
}

impl kubernetes::Observer for Meter {
    fn answered(&self, method: &Method, code: Option<u16>, took: Duration) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let host = self.host.get().map_or("", String::as_str);
        self.metrics
            .observe_request(&code, method.as_str(), host, took);
    }

    fn watch_ended(&self, resource: &'static str, _well: bool) {
        self.metrics.watch_restarted(resource);
    }
}
