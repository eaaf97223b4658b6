//! Where news of the cluster comes from: manifests or an API server.

use ferrule_dataplane::error_chain;
use std::future::pending;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::anyhow;
use http::Method;
use tokio::sync::mpsc;

use super::servers::ServerFailure;
use crate::config::gates::Gate;
use crate::config::options::Options;
use crate::file_watch::FileWatch;
use crate::http::EVENT_ACTION;
use crate::metrics::Metrics;
use crate::sync::Input;
use crate::watch::kubernetes::{
    self, Access, Api, Format, Recorder, Regarding, Report, Rest, Severity, Timings, Watch,
};
use crate::watch::manifests::{self, ManifestError};

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
    /// Lives as long as manifests are watched.
    _manifests: Option<FileWatch>,
    watch: Option<Watch>,
}

impl Cluster {
    /// Begins to watch; everything goes to `sink`, with less hurry while `rest` lasts.
    pub fn open(
        options: &Options,
        node_name: &str,
        host_name: &str,
        metrics: &Arc<Metrics>,
        sink: &mpsc::Sender<Input>,
        rest: &Rest,
    ) -> anyhow::Result<Self> {
        let (fail, fatal) = mpsc::channel(1);
        if let Some(path) = &options.manifests {
            let follow = follow_manifests(path, node_name, sink.clone(), fail.clone())?;
            return Ok(Self {
                recorder: None,
                fail,
                fatal,
                _manifests: Some(follow),
                watch: None,
            });
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
            format: Format::wanted(&client.content_type, &client.accept_content_types),
            timings: Timings::default(),
            rest: rest.clone(),
        };
        Ok(Self {
            recorder: Some(Recorder::start(api.clone(), host_name)),
            fail,
            fatal,
            _manifests: None,
            watch: Some(kubernetes::watch(&api, settings, sink)),
        })
    }

    /// Waits for a failure that ends the process.
    pub async fn failed(&mut self) -> anyhow::Error {
        let ended = async {
            match &mut self.watch {
                Some(watch) => watch.ended().await,
                None => pending().await,
            }
        };
        tokio::select! {
            Some(error) = self.fatal.recv() => error,
            () = ended => anyhow!("a watch ended by itself: a fault in ferrule"),
        }
    }

    /// Tells the cluster why we end, and gives that a moment to arrive.
    pub async fn last_words(&self, node_name: &str, failure: ServerFailure) -> anyhow::Error {
        if let Some(recorder) = &self.recorder {
            recorder.record(&Report {
                regarding: Regarding::Node(node_name.to_owned()),
                severity: Severity::Warning,
                reason: failure.role.event_reason(),
                action: EVENT_ACTION,
                note: failure.error.to_string(),
                shared: false,
            });
            recorder.flush(LAST_WORDS).await;
        }
        failure.error.into()
    }
}

/// Delivers manifests now and whenever they change.
fn follow_manifests(
    path: &Path,
    node_name: &str,
    sink: mpsc::Sender<Input>,
    fail: mpsc::Sender<anyhow::Error>,
) -> Result<FileWatch, ManifestError> {
    let mut first = true;
    manifests::watch(path, node_name, move |read| {
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
                let err = error_chain(&error);
                tracing::error!(err, "Manifests cannot be used; the last good ones stay");
            }
        }
        ControlFlow::Continue(())
    })
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
