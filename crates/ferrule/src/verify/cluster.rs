//! Where `ferrule verify` has the cluster from: files, or an API server.
//!
//! An API server is asked as the proxy asks it. Its first complete lists are the answer; while the
//! program goes on, changes are taken in as they come.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ferrule_core::issue::Kind;
use ferrule_core::track::Event;
use ferrule_dataplane::error_chain;
use tokio::runtime::{self, Runtime};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};

use super::Failure;
use crate::cli::VerifyArgs;
use crate::config::Config;
use crate::config::gates::{Gate, Gates};
use crate::logging;
use crate::print_error;
use crate::watch::kubernetes::{self, Access, Api, Format, Rest, Timings, Watch};
use crate::watch::manifests;

/// How much longer it may take for ServiceCIDRs, which older ones do not have.
const GRACE: Duration = Duration::from_secs(1);

/// Batches on their way here.
const CHANNEL: usize = 8;

/// Where the cluster is from.
pub enum Source {
    /// A file or a folder, as seen from this node.
    Manifests(PathBuf, String),
    /// An API server.
    Server(Box<Server>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manifests(path, _) => f.debug_tuple("Manifests").field(path).finish(),
            Self::Server(_) => f.write_str("Server"),
        }
    }
}

/// An API server, and what it sends.
pub struct Server {
    runtime: Runtime,
    events: mpsc::Receiver<Vec<Event>>,
    host: String,
    /// How long it may take for all lists.
    timeout: Duration,
    _watch: Watch,
}

impl Source {
    /// Makes ready to ask.
    pub fn open(
        arguments: &VerifyArgs,
        node: &str,
        config: &Config,
        gates: &Gates,
    ) -> Result<Self, Failure> {
        if let Some(path) = &arguments.manifests {
            return Ok(Self::Manifests(path.clone(), node.to_owned()));
        }
        // What goes wrong with the API server is only known to its log lines.
        logging::install(&config.logging);
        let server = Server::open(arguments, node, config, gates).map_err(Failure::Input)?;
        Ok(Self::Server(Box::new(server)))
    }

    /// The whole cluster, once.
    pub fn list(&mut self) -> Result<Vec<Event>, Failure> {
        match self {
            Self::Manifests(path, node) => {
                let events = manifests::read(path, node);
                events.map_err(|error| Failure::Input(error.into()))
            }
            Self::Server(server) => server.list(),
        }
    }

    /// What changed meanwhile, after this time.
    pub fn changes(&mut self, time: Duration) -> Vec<Event> {
        match self {
            Self::Manifests(path, node) => {
                std::thread::sleep(time);
                // A file being edited is often broken for a moment: the last good state stands.
                manifests::read(path, node).unwrap_or_else(|error| {
                    print_error(&format!("warning: {}", error_chain(&error)));
                    Vec::new()
                })
            }
            Self::Server(server) => server.changes(time),
        }
    }
}

impl Server {
    fn open(
        arguments: &VerifyArgs,
        node: &str,
        config: &Config,
        gates: &Gates,
    ) -> anyhow::Result<Self> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start")?;
        let client = &config.client_connection;
        let access = Access {
            kubeconfig: arguments
                .kubeconfig
                .clone()
                .unwrap_or_else(|| client.kubeconfig.clone()),
            master: arguments.master.clone().unwrap_or_default(),
        };
        let (sender, events) = mpsc::channel(CHANNEL);
        let settings = kubernetes::Settings {
            node_name: node.to_owned(),
            streaming_lists: gates.is_on(Gate::WatchListClient),
            format: Format::wanted(&client.content_type, &client.accept_content_types),
            timings: Timings::default(),
            rest: Rest::default(),
        };
        let entered = runtime.enter();
        let api = Api::open(access, Arc::new(()))
            .context("no API server; give --kubeconfig, or --manifests for files")?;
        let watch = kubernetes::watch(&api, settings, &sender);
        let host = api.host();
        drop(entered);
        Ok(Self {
            runtime,
            events,
            host,
            timeout: Duration::from_secs(arguments.timeout),
            _watch: watch,
        })
    }

    fn list(&mut self) -> Result<Vec<Event>, Failure> {
        let (events, receiver) = (&mut Vec::new(), &mut self.events);
        let complete = self.runtime.block_on(async {
            let mut limit = Instant::now() + self.timeout;
            let mut missing: BTreeSet<Kind> = Kind::ALL.into_iter().collect();
            while !missing.is_empty() {
                let Ok(Some(batch)) = timeout_at(limit, receiver.recv()).await else {
                    break;
                };
                for event in &batch {
                    if let Event::Listed(kind) = event {
                        missing.remove(kind);
                    }
                }
                events.extend(batch);
                if missing.iter().eq([&Kind::ServiceCidr]) {
                    limit = limit.min(Instant::now() + GRACE);
                }
            }
            missing.is_empty() || missing.iter().eq([&Kind::ServiceCidr])
        });
        if complete {
            return Ok(std::mem::take(events));
        }
        let (host, seconds) = (&self.host, self.timeout.as_secs());
        Err(Failure::Cluster(format!(
            "the API server {host} did not send all lists within {seconds} s"
        )))
    }

    fn changes(&mut self, time: Duration) -> Vec<Event> {
        let receiver = &mut self.events;
        self.runtime.block_on(async {
            let end = Instant::now() + time;
            let mut events = Vec::new();
            while let Ok(batch) = timeout_at(end, receiver.recv()).await {
                match batch {
                    Some(batch) => events.extend(batch),
                    // All watches ended, which none should.
                    None => sleep(time).await,
                }
            }
            events
        })
    }
}
