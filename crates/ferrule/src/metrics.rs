//! What ferrule measures: every number it shows, and how it is written for Prometheus.
//!
//! In: plain calls such as [`Metrics::observe_sync`], mostly from sync. Out: text exposition
//! 0.0.4. A metric that the running mode does not have may still be called; it is not shown.
//! A series with labels exists from its first use on, as in kube-proxy: alerts on absence work.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use ferrule_core::desired::Totals;
use ferrule_core::issue::{Issue, Severity};
use ferrule_core::model::Family;
use http::StatusCode;
use jiff::Timestamp;
use prometheus::core::Collector;
use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::modes::Mode;

mod names;
mod packets;
mod process;
mod relay;
mod sli;
#[cfg(test)]
mod tests;

use names::Declared;
pub use names::Group;
pub use packets::PacketCounter;
pub use relay::RelayStats;

/// The type of what `/metrics` answers.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// How much a sync looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// Everything.
    Full,
    /// What changed.
    Partial,
}

/// Which Kubernetes release this program implements, and how it was built.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// `1`
    pub major: &'static str,
    /// `36`
    pub minor: &'static str,
    /// `v1.36.4`
    pub git_version: &'static str,
    /// The commit ferrule was built from.
    pub commit: &'static str,
    /// When.
    pub date: &'static str,
    /// With what, e.g. `rustc 1.95.0`.
    pub compiler: &'static str,
    /// For what, e.g. `linux/amd64`.
    pub platform: &'static str,
    /// ferrule's own version.
    pub ferrule: &'static str,
}

/// Every number ferrule shows.
#[derive(Debug)]
pub struct Metrics {
    mode: &'static Mode,
    registry: Registry,
    sli: sli::Slis,
    packets: OnceLock<packets::Packets>,
    relay: OnceLock<ReadRelay>,
    /// Unix time of the start, if `/proc` has it.
    started: Option<f64>,

    sync_duration: HistogramVec,
    sync_full_duration: HistogramVec,
    sync_partial_duration: HistogramVec,
    last_sync: GaugeVec,
    last_queued: GaugeVec,
    network_programming: HistogramVec,
    endpoints_pending: IntGauge,
    endpoints_total: IntCounter,
    services_pending: IntGauge,
    services_total: IntCounter,
    no_local_endpoints: IntGaugeVec,
    healthz: IntCounterVec,
    livez: IntCounterVec,
    restore_failures: IntCounterVec,
    partial_restore_failures: IntCounterVec,
    iptables_rules: IntGaugeVec,
    iptables_last: IntGaugeVec,
    nftables_sync_failures: IntCounterVec,
    nftables_cleanup_failures: IntCounterVec,
    conntrack_duration: HistogramVec,
    conntrack_deleted: IntCounterVec,
    build_info: IntGaugeVec,
    feature_enabled: IntGaugeVec,
    rest_requests: IntCounterVec,
    rest_duration: HistogramVec,
    ferrule_build: IntGaugeVec,
    desired_ports: IntGaugeVec,
    desired_endpoints: IntGaugeVec,
    issues: IntGaugeVec,
    sync_steps: IntCounterVec,
    watch_restarts: IntCounterVec,
}

impl Metrics {
    /// The metrics of one mode, nothing measured yet.
    pub fn new(mode: &'static Mode) -> Self {
        let shelf = Shelf {
            groups: mode.metrics,
            registry: Registry::new(),
        };
        Self {
            mode,
            sli: sli::Slis::new(),
            packets: OnceLock::new(),
            relay: OnceLock::new(),
            started: process::started(),

            sync_duration: shelf.histograms(&names::SYNC_DURATION),
            sync_full_duration: shelf.histograms(&names::SYNC_FULL_DURATION),
            sync_partial_duration: shelf.histograms(&names::SYNC_PARTIAL_DURATION),
            last_sync: shelf.times(&names::LAST_SYNC),
            last_queued: shelf.times(&names::LAST_QUEUED),
            network_programming: shelf.histograms(&names::NETWORK_PROGRAMMING),
            endpoints_pending: shelf.gauge(&names::ENDPOINTS_PENDING),
            endpoints_total: shelf.counter(&names::ENDPOINTS_TOTAL),
            services_pending: shelf.gauge(&names::SERVICES_PENDING),
            services_total: shelf.counter(&names::SERVICES_TOTAL),
            no_local_endpoints: shelf.gauges(&names::NO_LOCAL_ENDPOINTS),
            healthz: shelf.counters(&names::HEALTHZ),
            livez: shelf.counters(&names::LIVEZ),
            restore_failures: shelf.counters(&names::RESTORE_FAILURES),
            partial_restore_failures: shelf.counters(&names::PARTIAL_RESTORE_FAILURES),
            iptables_rules: shelf.gauges(&names::IPTABLES_RULES),
            iptables_last: shelf.gauges(&names::IPTABLES_LAST),
            nftables_sync_failures: shelf.counters(&names::NFTABLES_SYNC_FAILURES),
            nftables_cleanup_failures: shelf.counters(&names::NFTABLES_CLEANUP_FAILURES),
            conntrack_duration: shelf.histograms(&names::CONNTRACK_DURATION),
            conntrack_deleted: shelf.counters(&names::CONNTRACK_DELETED),
            build_info: shelf.gauges(&names::BUILD_INFO),
            feature_enabled: shelf.gauges(&names::FEATURE_ENABLED),
            rest_requests: shelf.counters(&names::REST_REQUESTS),
            rest_duration: shelf.histograms(&names::REST_DURATION),
            ferrule_build: shelf.gauges(&names::FERRULE_BUILD),
            desired_ports: shelf.gauges(&names::DESIRED_PORTS),
            desired_endpoints: shelf.gauges(&names::DESIRED_ENDPOINTS),
            issues: shelf.gauges(&names::ISSUES),
            sync_steps: shelf.counters(&names::SYNC_STEPS),
            watch_restarts: shelf.counters(&names::WATCH_RESTARTS),
            registry: shelf.registry,
        }
    }

    /// The mode they are for.
    pub const fn mode(&self) -> &'static Mode {
        self.mode
    }

    /// Says what this program is.
    pub fn set_build(&self, build: &Build) {
        let labels = [
            build.date,
            build.compiler,
            build.commit,
            "clean",
            build.git_version,
            // There is no Go in here; the label has to be.
            "",
            build.major,
            build.minor,
            build.platform,
        ];
        self.build_info.with_label_values(&labels).set(1);
        let labels = [build.commit, self.mode.name, build.ferrule];
        self.ferrule_build.with_label_values(&labels).set(1);
    }

    /// Says which feature gates are on: name, stage as it is printed, state.
    pub fn set_features<'a>(&self, gates: impl IntoIterator<Item = (&'a str, &'a str, bool)>) {
        for (name, stage, enabled) in gates {
            self.feature_enabled
                .with_label_values(&[name, stage])
                .set(i64::from(enabled));
        }
    }

    /// Shows the packet counters that the mode's rules feed, read on every scrape. They are not
    /// shown where the kernel has none of them.
    pub fn show_packets(&self) {
        if let Some(read) = self.mode.packets {
            self.read_packets_with(read);
        }
    }

    fn read_packets_with(&self, read: fn(&str) -> io::Result<u64>) {
        let mut all = PacketCounter::ALL.iter();
        if all.any(|counter| read(counter.object()).is_ok()) {
            // A second source would only say the same.
            let _second = self.packets.set(packets::Packets::new(read));
        }
    }

    /// Shows what the relay has done, read on every scrape.
    pub fn show_relay(&self, read: impl Fn() -> RelayStats + Send + Sync + 'static) {
        // A second source would only say the same.
        let _second = self.relay.set(ReadRelay(Box::new(read)));
    }

    /// One attempt to program a family ended; `success` is when, if it worked.
    pub fn observe_sync(
        &self,
        family: Family,
        kind: SyncKind,
        took: Duration,
        success: Option<Timestamp>,
    ) {
        let seconds = took.as_secs_f64();
        let family = [family.as_str()];
        self.sync_duration
            .with_label_values(&family)
            .observe(seconds);
        let by_kind = match kind {
            SyncKind::Full => &self.sync_full_duration,
            SyncKind::Partial => &self.sync_partial_duration,
        };
        by_kind.with_label_values(&family).observe(seconds);
        if let Some(now) = success {
            self.last_sync.with_label_values(&family).set(unix(now));
        }
    }

    /// A sync was queued, or the loop started.
    pub fn set_last_queued(&self, family: Family, now: Timestamp) {
        self.last_queued
            .with_label_values(&[family.as_str()])
            .set(unix(now));
    }

    /// A change is programmed; it took this long since it was made in the cluster.
    pub fn network_programming(&self, family: Family, latency: Duration) {
        self.network_programming
            .with_label_values(&[family.as_str()])
            .observe(latency.as_secs_f64());
    }

    /// So many events about Services and EndpointSlices arrived. Each counts once, whatever the
    /// number of families.
    pub fn received(&self, services: usize, slices: usize) {
        self.services_total.inc_by(services as u64);
        self.endpoints_total.inc_by(slices as u64);
    }

    /// So many Services and EndpointSlices differ from what was last decided.
    pub fn set_pending(&self, services: usize, slices: usize) {
        self.services_pending.set(integer(services));
        self.endpoints_pending.set(integer(slices));
    }

    /// The family was programmed like this.
    pub fn set_no_local_endpoints(&self, family: Family, totals: &Totals) {
        for (policy, number) in [
            ("internal", totals.no_local_internal),
            ("external", totals.no_local_external),
        ] {
            self.no_local_endpoints
                .with_label_values(&[family.as_str(), policy])
                .set(integer(number));
        }
    }

    /// The family should be like this.
    pub fn set_desired(&self, family: Family, totals: &Totals) {
        let family = [family.as_str()];
        self.desired_ports
            .with_label_values(&family)
            .set(integer(totals.ports));
        self.desired_endpoints
            .with_label_values(&family)
            .set(integer(totals.endpoints));
    }

    /// These things are wrong with watched objects now.
    pub fn set_issues<'a>(&self, issues: impl IntoIterator<Item = &'a Issue>) {
        let (mut notes, mut warnings) = (0, 0);
        for issue in issues {
            match issue.severity {
                Severity::Note => notes += 1,
                Severity::Warning => warnings += 1,
            }
        }
        self.issues.with_label_values(&["note"]).set(notes);
        self.issues.with_label_values(&["warning"]).set(warnings);
    }

    /// `/healthz` was answered.
    pub fn healthz_answered(&self, status: StatusCode) {
        self.healthz.with_label_values(&[status.as_str()]).inc();
    }

    /// `/livez` was answered.
    pub fn livez_answered(&self, status: StatusCode) {
        self.livez.with_label_values(&[status.as_str()]).inc();
    }

    /// Programming a family failed, as a whole or only what had changed.
    pub fn sync_failed(&self, family: Family, kind: SyncKind) {
        // Only the ones that the mode has are shown.
        self.nftables_sync_failed(family);
        self.iptables_restore_failed(family);
        if kind == SyncKind::Partial {
            self.iptables_partial_restore_failed(family);
        }
    }

    /// `iptables-restore` failed.
    pub fn iptables_restore_failed(&self, family: Family) {
        self.restore_failures
            .with_label_values(&[family.as_str()])
            .inc();
    }

    /// A partial sync failed in `iptables-restore`.
    pub fn iptables_partial_restore_failed(&self, family: Family) {
        self.partial_restore_failures
            .with_label_values(&[family.as_str()])
            .inc();
    }

    /// The rules we own in a table, and those of them that the last sync wrote.
    pub fn set_iptables_rules(
        &self,
        family: Family,
        table: &'static str,
        owned: usize,
        written: usize,
    ) {
        let labels = [family.as_str(), table];
        self.iptables_rules
            .with_label_values(&labels)
            .set(integer(owned));
        self.iptables_last
            .with_label_values(&labels)
            .set(integer(written));
    }

    /// An nftables transaction failed.
    pub fn nftables_sync_failed(&self, family: Family) {
        self.nftables_sync_failures
            .with_label_values(&[family.as_str()])
            .inc();
    }

    /// The kernel refused to delete what is not needed any more.
    pub fn cleanup_failed(&self, family: Family) {
        self.nftables_cleanup_failures
            .with_label_values(&[family.as_str()])
            .inc();
    }

    /// Stale flows were looked for and this many deleted.
    pub fn observe_conntrack(&self, family: Family, took: Duration, deleted: u64) {
        let family = [family.as_str()];
        self.conntrack_duration
            .with_label_values(&family)
            .observe(took.as_secs_f64());
        self.conntrack_deleted
            .with_label_values(&family)
            .inc_by(deleted);
    }

    /// This many steps were written to the kernel.
    pub fn count_steps(&self, family: Family, steps: usize) {
        self.sync_steps
            .with_label_values(&[family.as_str()])
            .inc_by(steps as u64);
    }

    /// A watch ended, well or not, and begins again.
    pub fn watch_restarted(&self, resource: &str) {
        self.watch_restarts.with_label_values(&[resource]).inc();
    }

    /// The API server answered; `code` is the status, or `<error>` when there was no answer.
    pub fn observe_request(&self, code: &str, method: &str, host: &str, took: Duration) {
        self.rest_requests
            .with_label_values(&[code, host, method])
            .inc();
        self.rest_duration
            .with_label_values(&[host, method])
            .observe(took.as_secs_f64());
    }

    /// Unix time of the start in whole seconds, for the header of scrapes.
    pub fn start_second(&self) -> i64 {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "whole seconds are what is asked for"
        )]
        self.started.map_or(0, |started| started as i64)
    }

    /// Everything in text exposition 0.0.4.
    pub fn render(&self) -> String {
        let mut families = self.registry.gather();
        families.extend(process::families(self.started));
        if let Some(packets) = self.packets.get() {
            families.extend(packets.families());
        }
        if let Some(ReadRelay(read)) = self.relay.get() {
            families.extend(relay::families(&read()));
        }
        print(families)
    }

    /// Notes the result of a health check of the metrics server.
    pub fn observe_healthcheck(&self, name: &str, passed: bool) {
        self.sli.observe(name, passed);
    }

    /// What `/metrics/slis` shows.
    pub fn render_slis(&self) -> String {
        let mut families = self.sli.gather();
        families.extend(process::start_family(self.started));
        print(families)
    }

    /// Forgets what `/metrics/slis` shows.
    pub fn reset_slis(&self) {
        self.sli.reset();
    }
}

/// Reads what the relay has done.
struct ReadRelay(Box<dyn Fn() -> RelayStats + Send + Sync>);

impl std::fmt::Debug for ReadRelay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadRelay").finish_non_exhaustive()
    }
}

fn print(mut families: Vec<prometheus::proto::MetricFamily>) -> String {
    families.sort_by(|a, b| a.name().cmp(b.name()));
    TextEncoder::new()
        .encode_to_string(&families)
        .expect("every family has a name and samples of its type")
}

fn unix(time: Timestamp) -> f64 {
    time.as_duration().as_secs_f64()
}

fn integer(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Makes metrics from their declarations; puts those of the mode where they are shown.
struct Shelf {
    groups: &'static [Group],
    registry: Registry,
}

impl Shelf {
    fn put<M: Collector + Clone + 'static>(
        &self,
        declared: &Declared,
        metric: prometheus::Result<M>,
    ) -> M {
        let metric = metric.expect("declared names and labels are well formed");
        if declared.group == Group::All || self.groups.contains(&declared.group) {
            self.registry
                .register(Box::new(metric.clone()))
                .expect("declared names are distinct");
        }
        metric
    }

    fn histograms(&self, declared: &Declared) -> HistogramVec {
        let names::Kind::Histogram(buckets) = declared.kind else {
            unreachable!("{} is declared otherwise", declared.name)
        };
        let options = HistogramOpts::new(declared.name, declared.help).buckets(buckets.bounds());
        self.put(declared, HistogramVec::new(options, declared.labels))
    }

    fn counters(&self, declared: &Declared) -> IntCounterVec {
        self.put(
            declared,
            IntCounterVec::new(options(declared), declared.labels),
        )
    }

    fn counter(&self, declared: &Declared) -> IntCounter {
        self.put(declared, IntCounter::with_opts(options(declared)))
    }

    fn gauges(&self, declared: &Declared) -> IntGaugeVec {
        self.put(
            declared,
            IntGaugeVec::new(options(declared), declared.labels),
        )
    }

    fn gauge(&self, declared: &Declared) -> IntGauge {
        self.put(declared, IntGauge::with_opts(options(declared)))
    }

    /// Gauges of Unix times, which have fractions.
    fn times(&self, declared: &Declared) -> GaugeVec {
        self.put(declared, GaugeVec::new(options(declared), declared.labels))
    }
}

fn options(declared: &Declared) -> Opts {
    Opts::new(declared.name, declared.help)
}
