//! The running program: builds every part, connects them in flow order, and waits for a reason
//! to stop.
//!
//! ```text
//! manifests or API server ─► channel ─► sync (a thread of its own) ─► dataplanes
//! addresses of interfaces ─┘                ├─► reporter ─► health, metrics, logs, events
//!                                           └─► startup ─► guard, other modes' rules, systemd
//! ```

use std::future::pending;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ferrule_core::facts::Settings;
use ferrule_core::model::Family;
use ferrule_dataplane::error_chain;
use ferrule_dataplane::host::{self, Addresses, Host};
use ferrule_dataplane::userspace::Process;
use jiff::tz::TimeZone;
use tokio::runtime::{self, Handle};
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep};

use super::addresses;
use super::checks::Checks;
use super::cluster::Cluster;
use super::dataplanes::{self, Dataplanes};
use super::guard::{Guard, Period};
use super::reload::{self, Order};
use super::reporter::Reporter;
use super::servers::{self, Servers};
use super::signals::Signals;
use super::source::Channel;
use super::startup::Startup;
use super::succession::Succession;
use super::sweep::Sweep;
use crate::admin::{self, About, Publisher, Questions};
use crate::clock::{Clock, Time};
use crate::config::Config;
use crate::config::options::Options;
use crate::file_watch::FileWatch;
use crate::health::proxy::{NodeState, ProxyHealth};
use crate::health::services::ServiceHealth;
use crate::logging;
use crate::metrics::{Metrics, RelayStats};
use crate::modes::{OnExit, Part};
use crate::sync::{Input, Limits, RestBy, Setup, Sync};
use crate::watch::kubernetes::{Report, Rest};

/// How long removing rules at the end may take.
const REMOVAL: Duration = Duration::from_secs(10);

/// Batches on their way to sync. When it is full the network waits.
const CHANNEL: usize = 8;

/// Runs until a signal, a fatal error, or a configuration that needs a new start.
pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    host::limit_arenas();
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // Never dropped: sync may be waiting by its clock, and the process ends right after this.
    let runtime = ManuallyDrop::new(runtime);
    runtime.block_on(serve(options))
}

async fn serve(options: &Options) -> anyhow::Result<ExitCode> {
    let signals = Signals::open()?;
    let host = Host::default();
    let dataplanes = dataplanes::open(options, &host)?;
    if !options.dry_run {
        prepare(&host, &options.config)?;
    }
    if options.init_only {
        tracing::info!("System initialized and --init-only specified");
        return Ok(ExitCode::SUCCESS);
    }
    Program::start(options, dataplanes)?
        .run_until_stopped(signals)
        .await
}

/// All parts, connected.
struct Program<'a> {
    options: &'a Options,
    node_name: String,
    servers: Servers,
    health: Option<Arc<ProxyHealth>>,
    cluster: Cluster,
    /// The configuration in force, for those who look.
    shared: Arc<RwLock<Config>>,
    sync: mpsc::Sender<Input>,
    /// The sync period in force.
    period: Period,
    thread: thread::JoinHandle<()>,
    /// What carries connections, where that is this process.
    relay: Option<Arc<Process>>,
    /// Says that a successor serves.
    replaced: mpsc::Receiver<()>,
}

impl<'a> Program<'a> {
    /// Starts the servers, then the watches, then sync.
    fn start(options: &'a Options, dataplanes: Dataplanes) -> anyhow::Result<Self> {
        let Dataplanes { backends, relay } = dataplanes;
        let config = &options.config;
        let families: Vec<Family> = backends.iter().map(|backend| backend.family).collect();
        let node_name = options.node_name.clone()?;
        let runtime = Handle::current();
        flush_now_and_then(&runtime, config);
        let clock: Clock = Arc::new(Time::now);
        let metrics = metrics(options, relay.clone());
        let health = health(config, &families, &metrics);
        let shared = Arc::new(RwLock::new(config.clone()));
        let settings = config.settings(&options.gates);
        let pages = servers::admin_pages(options, &metrics, &shared);
        let admin = open_admin(options, &node_name, &families, &settings, pages)?;
        let (admin, questions) = admin.unzip();
        let servers = Servers::open(
            &runtime,
            options,
            &metrics,
            health.as_ref(),
            &shared,
            &clock,
            questions.as_ref(),
        );

        let (sender, receiver) = mpsc::channel(CHANNEL);
        let host_name = super::os_hostname()?;
        let rest = Rest::default();
        let host_name = host_name.trim();
        let cluster = Cluster::open(options, &node_name, host_name, &metrics, &sender, &rest)?;
        let name: Arc<str> = node_name.as_str().into();
        let open = |family: &Family| {
            let (runtime, name) = (runtime.clone(), name.clone());
            ServiceHealth::new(runtime, *family, name, health.clone(), clock.clone())
        };
        let service_health = families.iter().map(open).collect();
        let recorder = cluster.recorder.clone();
        let period = Period::new(config.sync_period.to_std());
        let (replace, replaced) = mpsc::channel(1);
        let succession = relay.clone().map(|relay| Succession {
            relay,
            sync: sender.clone(),
            replaced: replace,
        });
        let setup = Setup {
            backends,
            observer: Reporter::new(
                metrics.clone(),
                health.clone(),
                service_health,
                recorder,
                node_name.clone(),
            )
            .with_admin(admin),
            lifecycle: Startup {
                guard: Guard::new(sender.clone(), period.clone()),
                families: families.clone(),
                sweep: (!options.dry_run).then(|| Sweep::start(config.mode())),
                checks: Checks::new(shared.clone(), families, cluster.fail.clone()),
                metrics,
                succession,
                systemd: notify_socket(),
            },
            on_exit: config.mode().on_exit,
            started: Time::now().wall.into(),
        };
        let local = Addresses::open().context("cannot list the addresses of interfaces")?;
        let sync = Sync::new(
            settings,
            limits(config, options.sync_pace),
            local.list(),
            setup,
        );
        addresses::follow(local, sender.clone())?;
        let mut channel = Channel::new(receiver, runtime, rest);
        let thread = thread::Builder::new()
            .name("sync".to_owned())
            .spawn(move || sync.run(&mut channel))?;
        if let Some(recorder) = &cluster.recorder {
            recorder.record(&Report::birth_cry(&node_name));
        }
        Ok(Self {
            options,
            node_name,
            servers,
            health,
            cluster,
            shared,
            sync: sender,
            period,
            thread,
            relay,
            replaced,
        })
    }

    /// Runs until there is a reason to stop, and leaves the kernel as the mode wants it left.
    async fn run_until_stopped(mut self, mut signals: Signals) -> anyhow::Result<ExitCode> {
        let outcome = self.wait(&mut signals).await;
        if self.options.config.mode().on_exit == OnExit::Remove {
            self.stop_sync(&mut signals).await;
        }
        outcome
    }

    /// Waits for a reason to stop.
    async fn wait(&mut self, signals: &mut Signals) -> anyhow::Result<ExitCode> {
        let (orders, mut ordered) = mpsc::channel(1);
        let _following = follow_config(self.options, orders);
        loop {
            tokio::select! {
                code = signals.next() => return Ok(code),
                failure = self.servers.failed() => {
                    return Err(self.cluster.last_words(&self.node_name, failure).await);
                }
                error = self.cluster.failed() => return Err(error),
                Some(()) = self.replaced.recv() => return Ok(ExitCode::SUCCESS),
                () = ended(&self.thread) => bail!("sync ended by itself: a fault in ferrule"),
                Some(order) = ordered.recv() => match order {
                    Order::Restart => {
                        bail!("content of the proxy server's configuration file was updated");
                    }
                    Order::Adopt(config) => self.adopt(*config),
                },
            }
        }
    }

    /// Lets sync remove the rules of a mode that must not leave any behind, and lets connections
    /// that this process carries end. A signal limits the time for that, and the next one ends it.
    async fn stop_sync(self, signals: &mut Signals) {
        let mut limit: Option<Limit> = None;
        if self.is_replaced() {
            tracing::info!(
                "Another ferrule took over; ending with the connections that are open here"
            );
            // It listens where these did.
            drop(self.servers);
        } else {
            limit = Some(limit_end(self.options, self.relay.as_ref()));
            if let Some(health) = &self.health {
                health.set_node(NodeState::Leaving);
            }
        }
        let stopped = async {
            // When it is gone already there is nothing to wait for.
            _ = self.sync.send(Input::Stop).await;
            ended(&self.thread).await;
            if let Err(error) = (self.options.config.mode().remove)(Part::Node) {
                let err = format!("{error:#}");
                tracing::error!(err, "Failed to remove our rules before exit");
            }
        };
        tokio::pin!(stopped);
        loop {
            tokio::select! {
                () = &mut stopped => return,
                () = until(limit.as_mut()) => {
                    tracing::error!("Timed out while removing our rules before exit");
                    return;
                }
                _ = signals.next() => if limit.is_some() {
                    if let Some(relay) = &self.relay {
                        relay.cut();
                    }
                    return;
                } else {
                    limit = Some(limit_end(self.options, self.relay.as_ref()));
                },
            }
        }
    }

    fn is_replaced(&self) -> bool {
        let relay = self.relay.as_ref();
        relay.is_some_and(|relay| relay.is_replaced())
    }

    /// Goes on with a configuration that differs only in what may change while we run.
    fn adopt(&self, config: Config) {
        self.servers.adopt(&config);
        logging::set_verbosity(config.logging.verbosity);
        logging::set_vmodule(&config.logging);
        if let Some(health) = &self.health {
            health.set_sync_period(config.sync_period.to_std());
        }
        self.period.set(config.sync_period.to_std());
        let settings = Box::new(config.settings(&self.options.gates));
        let limits = limits(&config, self.options.sync_pace);
        let inputs = [Input::Settings(settings), Input::Limits(limits)];
        let sync = self.sync.clone();
        // On its own: a sync that is stuck must not keep us from handling signals.
        tokio::spawn(async move {
            for input in inputs {
                if sync.send(input).await.is_err() {
                    return; // Sync is gone, which ends the program.
                }
            }
        });
        *self.shared.write().unwrap_or_else(PoisonError::into_inner) = config;
    }
}

/// The health of the proxy, unless its server is switched off.
fn health(
    config: &Config,
    families: &[Family],
    metrics: &Arc<Metrics>,
) -> Option<Arc<ProxyHealth>> {
    config.healthz_address()?;
    let period = config.sync_period.to_std();
    let health = ProxyHealth::new(families, period, TimeZone::UTC, metrics.clone());
    Some(Arc::new(health))
}

/// Opens the admin socket, unless it is switched off, and answers to the page of the node.
fn open_admin(
    options: &Options,
    node_name: &str,
    families: &[Family],
    settings: &Settings,
    pages: Vec<admin::Page>,
) -> anyhow::Result<Option<(Publisher, Questions)>> {
    let about = About {
        node: node_name.to_owned(),
        mode: options.config.mode().name,
        families: families.to_vec(),
    };
    let path = options.admin_socket.clone();
    if path.is_none() && !options.ui {
        return Ok(None);
    }
    let opened = admin::open(path, about, settings.clone(), pages);
    Ok(Some(opened.context("cannot start the admin thread")?))
}

/// What needs rights: settings of the kernel, and the score that keeps us alive.
fn prepare(host: &Host, config: &Config) -> anyhow::Result<()> {
    let conntrack = &config.conntrack;
    let number = |value: i32| u32::try_from(value).unwrap_or(0);
    let wanted = host::Conntrack {
        max_per_core: number(conntrack.max_per_core),
        min: number(conntrack.min),
        tcp_established: conntrack.tcp_established_timeout.to_std(),
        tcp_close_wait: conntrack.tcp_close_wait_timeout.to_std(),
        tcp_be_liberal: conntrack.tcp_be_liberal,
        udp: conntrack.udp_timeout.to_std(),
        udp_stream: conntrack.udp_stream_timeout.to_std(),
    };
    let warnings = host
        .set_conntrack(&wanted)
        .context("could not set conntrack parameters from kube-proxy configuration")?;
    for warning in warnings {
        tracing::warn!(
            err = error_chain(&warning),
            "Failed to change a kernel setting; keeping its value"
        );
    }
    let settings = (config.mode().prepare)(host, config);
    settings.context("unable to create proxier")?;
    if let Err(error) = host.set_oom_score(config.oom_score_adj) {
        tracing::debug!(err = %error, "Failed to set the OOM score");
    }
    Ok(())
}

/// The metrics, with what is known before anything runs.
fn metrics(options: &Options, relay: Option<Arc<Process>>) -> Arc<Metrics> {
    let metrics = Arc::new(Metrics::new(options.config.mode()));
    metrics.set_build(&servers::build());
    let gates = options.gates.iter();
    metrics.set_features(gates.map(|(name, stage, on)| (name, stage.label(), on)));
    show_relay(&metrics, relay);
    metrics
}

/// Has what the relay does shown, where there is one.
fn show_relay(metrics: &Metrics, relay: Option<Arc<Process>>) {
    if let Some(relay) = relay {
        metrics.show_relay(move || RelayStats {
            ports: relay.relay().stats(),
            descriptors: relay.relay().descriptors(),
        });
    }
}

/// When the end must have come.
type Limit = Pin<Box<Sleep>>;

async fn until(limit: Option<&mut Limit>) {
    match limit {
        Some(limit) => limit.await,
        None => pending().await,
    }
}

/// Gives open connections the time that is configured, and everything a little more.
fn limit_end(options: &Options, relay: Option<&Arc<Process>>) -> Limit {
    let Some(relay) = relay else {
        return Box::pin(sleep(REMOVAL));
    };
    let timeout = options.config.userspace_drain.to_std();
    relay.end_within(timeout);
    let open = relay.open_connections();
    if open > 0 {
        tracing::info!(
            connections = open,
            ?timeout,
            "Waiting for connections to end"
        );
    }
    Box::pin(sleep(REMOVAL.saturating_add(timeout)))
}

/// The intervals of the mode.
fn limits(config: &Config, rest: RestBy) -> Limits {
    let period = config.sync_period.to_std();
    Limits {
        min: config.min_sync_period.to_std(),
        rest,
        retry: period,
        max: config.mode().audit.every(period),
    }
}

async fn ended(thread: &thread::JoinHandle<()>) {
    while !thread.is_finished() {
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Buffered lines must not wait for the buffer to be full.
fn flush_now_and_then(runtime: &Handle, config: &Config) {
    let options = &config.logging.options;
    if !options.text.split_stream && !options.json.split_stream {
        return; // Nothing is buffered.
    }
    let every = config.logging.flush_frequency.duration.to_std();
    runtime.spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            logging::flush();
        }
    });
}

/// Watches the configuration file, if there is one.
fn follow_config(options: &Options, orders: mpsc::Sender<Order>) -> Option<FileWatch> {
    let file = options.config_file.as_deref()?;
    match reload::watch(file, options, orders) {
        Ok(follow) => Some(follow),
        Err(error) => {
            tracing::error!(
                err = error_chain(&error),
                "Failed to watch the configuration file; changes need a restart"
            );
            None
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "systemd speaks through the environment"
)]
fn notify_socket() -> Option<String> {
    std::env::var("NOTIFY_SOCKET")
        .ok()
        .filter(|socket| !socket.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::go::GoDuration;

    fn config(mode: &str) -> Config {
        let mut config = Config::default();
        mode.clone_into(&mut config.mode);
        config
    }

    #[test]
    fn core_102_everything_is_looked_at_once_an_hour_and_in_ipvs_once_per_period() {
        for (mode, max) in [
            ("iptables", Duration::from_hours(1)),
            ("nftables", Duration::from_hours(1)),
            ("ipvs", Duration::from_secs(30)),
        ] {
            let limits = limits(&config(mode), RestBy::Cost);
            assert_eq!(limits.max, max, "{mode:?}");
            assert_eq!(limits.retry, Duration::from_secs(30));
        }
    }

    #[test]
    fn core_050_a_score_that_cannot_be_set_does_not_stop_the_start() {
        // A machine without any of the files; nothing is to be set but the score.
        let root = tempfile::tempdir().unwrap();
        let mut config = config("nftables");
        config.conntrack.max_per_core = 0;
        config.conntrack.tcp_established_timeout = GoDuration::from_secs(0);
        config.conntrack.tcp_close_wait_timeout = GoDuration::from_secs(0);
        assert!(
            Host::new(root.path())
                .set_oom_score(config.oom_score_adj)
                .is_err()
        );
        prepare(&Host::new(root.path()), &config).unwrap();
    }
}
