//! The running program: builds every part, connects them in flow order, and waits for a reason
//! to stop.
//!
//! ```text
//! manifests or API server ─► channel ─► sync (a thread of its own) ─► dataplanes
//!                                         └─► reporter ─► health, metrics, events
//! ```

use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::process::ExitCode;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ferrule_core::model::Family;
use ferrule_dataplane::host::{self, Host};
use ferrule_dataplane::iptables;
use jiff::tz::TimeZone;
use tokio::runtime::{self, Handle};
use tokio::sync::mpsc;

use super::cluster::Cluster;
use super::dataplanes::{self, Dataplanes};
use super::reload::{self, Order};
use super::reporter::{Reporter, whole};
use super::servers::{self, Servers};
use super::signals::Signals;
use super::source::Channel;
use crate::clock::{Clock, Time};
use crate::config::options::Options;
use crate::config::{Config, Mode};
use crate::file_watch::FileWatch;
use crate::health::proxy::ProxyHealth;
use crate::logging;
use crate::metrics::{self, Metrics, PacketCounter};
use crate::sync::{Input, Limits, Sync};
use crate::watch::kubernetes::{Report, Rest};

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
    let families: Vec<Family> = Family::ALL
        .into_iter()
        .filter(|family| host.supports(*family))
        .collect();
    let dataplanes = Dataplanes::open(options, &families)?;
    let families = dataplanes.families();
    if !options.dry_run {
        prepare(&host, &options.config)?;
    }
    if options.init_only {
        tracing::info!("System initialized and --init-only specified");
        return Ok(ExitCode::SUCCESS);
    }
    Program::start(options, host, &families, dataplanes)?
        .stand(signals)
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
    thread: thread::JoinHandle<()>,
}

impl<'a> Program<'a> {
    /// Starts the servers, then the watches, then sync.
    fn start(
        options: &'a Options,
        host: Host,
        families: &[Family],
        dataplanes: Dataplanes,
    ) -> anyhow::Result<Self> {
        let config = &options.config;
        let node_name = options.node_name.clone()?;
        let runtime = Handle::current();
        flush_now_and_then(&runtime, config);
        let clock: Clock = Arc::new(Time::now);
        let metrics = Arc::new(Metrics::new(metrics_mode(config.mode())));
        metrics.set_build(&servers::build());
        let gates = options.gates.iter();
        metrics.set_features(gates.map(|(name, stage, on)| (name, stage.label(), on)));
        let health = config.healthz_address().map(|_| {
            let period = config.sync_period.to_std();
            Arc::new(ProxyHealth::new(
                families,
                period,
                TimeZone::UTC,
                metrics.clone(),
            ))
        });
        let shared = Arc::new(RwLock::new(config.clone()));
        let servers = Servers::open(
            &runtime,
            options,
            &metrics,
            health.as_ref(),
            &shared,
            &clock,
        );

        let (sender, receiver) = mpsc::channel(CHANNEL);
        let host_name = super::os_hostname()?;
        let rest = Rest::default();
        let host_name = host_name.trim();
        let cluster = Cluster::open(options, &node_name, host_name, &metrics, &sender, &rest)?;
        let name = node_name.as_str().into();
        let (guard, doubts) = (dataplanes.guard, sender.clone());
        let (mode, counted) = (config.mode(), metrics.clone());
        let dry_run = options.dry_run;
        let when_programmed = move || {
            guard.start(doubts);
            if !dry_run {
                settle_in(mode, &counted);
            }
        };
        let reporter = Reporter {
            service_health: Reporter::service_health(
                &runtime,
                families,
                &name,
                health.as_ref(),
                &clock,
            ),
            health: health.clone(),
            metrics,
            recorder: cluster.recorder.clone(),
            host,
            systemd: notify_socket(),
            when_programmed: Some(Box::new(when_programmed)),
            unprogrammed: families.iter().copied().collect(),
            told: BTreeSet::new(),
            config: shared.clone(),
            left_out: BTreeSet::new(),
            checked: false,
            supported: families.to_vec(),
            complained: Vec::new(),
            fatal: cluster.fail.clone(),
        };
        let settings = config.settings(&options.gates);
        let started = Time::now().wall.into();
        let sync = Sync::new(
            settings,
            limits(config),
            dataplanes.backends,
            reporter,
            started,
        );
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
            thread,
        })
    }

    /// Waits for a reason to stop.
    async fn stand(mut self, mut signals: Signals) -> anyhow::Result<ExitCode> {
        let (orders, mut ordered) = mpsc::channel(1);
        let _following = follow_config(self.options, orders);
        loop {
            tokio::select! {
                code = signals.next() => return Ok(code),
                fallen = self.servers.failed() => {
                    return Err(self.cluster.last_words(&self.node_name, fallen).await);
                }
                error = self.cluster.failed() => return Err(error),
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

    /// Goes on with a configuration that differs only in what may change while we run.
    fn adopt(&self, config: Config) {
        self.servers.adopt(&config);
        logging::set_verbosity(config.logging.verbosity);
        logging::set_vmodule(&config.logging);
        if let Some(health) = &self.health {
            health.set_sync_period(config.sync_period.to_std());
        }
        let settings = Box::new(config.settings(&self.options.gates));
        let inputs = [Input::Settings(settings), Input::Limits(limits(&config))];
        let sync = self.sync.clone();
        // On its own: a sync that is stuck must not keep us from hearing signals.
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

/// What can wait until everything is programmed.
fn settle_in(mode: Mode, metrics: &Metrics) {
    let counts = |counter: &PacketCounter| iptables::packets(counter.object()).is_ok();
    if mode == Mode::Iptables && PacketCounter::ALL.iter().any(counts) {
        metrics.read_packets_with(Box::new(iptables::packets));
    }
    // Looking for other modes' rules may take long where there are many rules of others.
    let thread = thread::Builder::new().name("sweep".to_owned());
    if let Err(error) = thread.spawn(move || dataplanes::sweep(mode)) {
        let err = whole(&error);
        tracing::error!(err, "Rules of other modes stay where they are");
    }
}

/// What needs rights: connection tracking and the score that keeps us alive.
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
        tracing::warn!(err = whole(&warning), "Left a kernel setting as it is");
    }
    if let Err(error) = host.set_oom_score(config.oom_score_adj) {
        tracing::debug!(err = %error, "Failed to set the OOM score");
    }
    Ok(())
}

/// The intervals of a mode. iptables and nftables look at everything once an hour, whatever the
/// sync period; ipvs once per period.
pub(super) fn limits(config: &Config) -> Limits {
    let period = config.sync_period.to_std();
    Limits {
        min: config.min_sync_period.to_std(),
        retry: period,
        max: match config.mode() {
            Mode::Ipvs => period,
            Mode::Iptables | Mode::Nftables => Duration::from_hours(1),
        },
    }
}

fn metrics_mode(mode: Mode) -> metrics::Mode {
    match mode {
        Mode::Iptables => metrics::Mode::Iptables,
        Mode::Ipvs => metrics::Mode::Ipvs,
        Mode::Nftables => metrics::Mode::Nftables,
    }
}

async fn ended(thread: &thread::JoinHandle<()>) {
    while !thread.is_finished() {
        tokio::time::sleep(Duration::from_secs(1)).await;
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
                err = whole(&error),
                "Changes of the configuration file go unnoticed"
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

    fn config(mode: Mode) -> Config {
        let mut config = Config::default();
        mode.as_str().clone_into(&mut config.mode);
        config
    }

    #[test]
    fn core_102_everything_is_looked_at_once_an_hour_and_in_ipvs_once_per_period() {
        for (mode, max) in [
            (Mode::Iptables, Duration::from_hours(1)),
            (Mode::Nftables, Duration::from_hours(1)),
            (Mode::Ipvs, Duration::from_secs(30)),
        ] {
            let limits = limits(&config(mode));
            assert_eq!(limits.max, max, "{mode:?}");
            assert_eq!(limits.retry, Duration::from_secs(30));
        }
    }

    #[test]
    fn core_050_a_score_that_cannot_be_set_does_not_stop_the_start() {
        // A machine without any of the files; nothing is to be set but the score.
        let root = tempfile::tempdir().unwrap();
        let mut config = config(Mode::Nftables);
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
