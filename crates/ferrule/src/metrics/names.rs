//! The metrics by name: kube-proxy's, which dashboards and alerts know by heart, and ours.
//!
//! Names, types, labels and buckets equal kube-proxy's; the help texts are our own words behind
//! the same stability mark. docs/metrics.md lists the same, and a test compares the two.

use ferrule_dataplane::userspace::relay::Histogram as Times;

/// One metric as it is declared.
#[derive(Debug)]
pub struct Declared {
    /// Its full name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its labels; without any it is there from the start, otherwise from its first use.
    pub labels: &'static [&'static str],
    /// Which modes have it.
    pub group: Group,
    /// What it says to a reader.
    pub help: &'static str,
}

/// Metrics that exist in the same modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Every mode has them.
    All,
    /// A sync can be partial.
    Partial,
    /// Rules are given to `iptables-restore`, or could be.
    Restore,
    /// Rules of iptables are counted.
    Iptables,
    /// Rules are nftables transactions.
    Nftables,
    /// Connections are carried by this process.
    Relay,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// A value of now.
    Gauge,
    /// Observations by size.
    Histogram(Buckets),
}

impl Kind {
    /// The word of the exposition.
    #[cfg(test)]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

/// The upper bounds of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buckets {
    /// A millisecond, doubled fourteen times.
    Sync,
    /// From nothing to five minutes, ever wider.
    Programming,
    /// From five milliseconds to a minute.
    Request,
    /// From a quarter of a millisecond to what all attempts together may take.
    Connect,
}

impl Buckets {
    /// The bounds, in seconds.
    pub fn bounds(self) -> Vec<f64> {
        match self {
            Self::Sync => (0..15).map(|i| 0.001 * f64::from(1 << i)).collect(),
            // The bound 0 is an accident of kube-proxy, and visible.
            Self::Programming => [0.0, 0.25, 0.5]
                .into_iter()
                .chain((1..60).map(f64::from))
                .chain((60..120).step_by(5).map(f64::from))
                .chain((120..=300).step_by(30).map(f64::from))
                .collect(),
            Self::Request => vec![
                0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
            ],
            Self::Connect => Times::bounds().map(|bound| bound.as_secs_f64()).collect(),
        }
    }
}

const FAMILY: &[&str] = &["ip_family"];

/// What a Service port is known by.
pub const SERVICE_PORT: &[&str] = &["ip_family", "namespace", "service", "port", "protocol"];
const SERVICE_PORT_CAUSE: &[&str] = &[
    "ip_family",
    "namespace",
    "service",
    "port",
    "protocol",
    "cause",
];
const SERVICE_PORT_DIRECTION: &[&str] = &[
    "ip_family",
    "namespace",
    "service",
    "port",
    "protocol",
    "direction",
];

macro_rules! declare {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $kind:expr, $labels:expr, $group:ident, $help:literal;)*) => {
        $($(#[$doc])* pub const $id: Declared = Declared {
            name: $name,
            kind: $kind,
            labels: $labels,
            group: Group::$group,
            help: $help,
        };)*

        /// Every metric there is.
        #[cfg(test)]
        pub const ALL: &[&Declared] = &[$(&$id),*];
    };
}

use Buckets::{Connect, Programming, Request, Sync};
use Kind::{Counter, Gauge, Histogram};

declare! {
    /// Every attempt, successful or not.
    SYNC_DURATION = "kubeproxy_sync_proxy_rules_duration_seconds",
        Histogram(Sync), FAMILY, All,
        "[ALPHA] How long one sync took, in seconds";
    /// Attempts that looked at everything.
    SYNC_FULL_DURATION = "kubeproxy_sync_full_proxy_rules_duration_seconds",
        Histogram(Sync), FAMILY, Partial,
        "[ALPHA] How long one full sync took, in seconds";
    /// Attempts that wrote a difference.
    SYNC_PARTIAL_DURATION = "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        Histogram(Sync), FAMILY, Partial,
        "[ALPHA] How long one partial sync took, in seconds";
    /// Success only.
    LAST_SYNC = "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        Gauge, FAMILY, All,
        "[ALPHA] When a sync last succeeded, as Unix time";
    /// Also when the loop starts.
    LAST_QUEUED = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        Gauge, FAMILY, All,
        "[ALPHA] When a sync was last queued, as Unix time";
    /// From the change in the cluster to the kernel of this node.
    NETWORK_PROGRAMMING = "kubeproxy_network_programming_duration_seconds",
        Histogram(Programming), FAMILY, All,
        "[ALPHA] From a change of a Service or its endpoints until this node knows it, in seconds";
    /// Slices that wait.
    ENDPOINTS_PENDING = "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
        Gauge, &[], All,
        "[ALPHA] Endpoint changes that wait for a sync";
    /// Slice events, each counted once.
    ENDPOINTS_TOTAL = "kubeproxy_sync_proxy_rules_endpoint_changes_total",
        Counter, &[], All,
        "[ALPHA] Endpoint changes received";
    /// Services that wait.
    SERVICES_PENDING = "kubeproxy_sync_proxy_rules_service_changes_pending",
        Gauge, &[], All,
        "[ALPHA] Service changes that wait for a sync";
    /// Service events, each counted once.
    SERVICES_TOTAL = "kubeproxy_sync_proxy_rules_service_changes_total",
        Counter, &[], All,
        "[ALPHA] Service changes received";
    /// A Local policy and no local endpoint.
    NO_LOCAL_ENDPOINTS = "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        Gauge, &["ip_family", "traffic_policy"], All,
        "[ALPHA] Service ports that have endpoints, but none on this node where their policy asks for one";
    /// Answers of `/healthz`.
    HEALTHZ = "kubeproxy_proxy_healthz_total",
        Counter, &["code"], All,
        "[ALPHA] Responses of /healthz by HTTP status";
    /// Answers of `/livez`.
    LIVEZ = "kubeproxy_proxy_livez_total",
        Counter, &["code"], All,
        "[ALPHA] Responses of /livez by HTTP status";
    /// `iptables-restore` said no.
    RESTORE_FAILURES = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
        Counter, FAMILY, Restore,
        "[ALPHA] Times that iptables-restore failed";
    /// It said no to a difference.
    PARTIAL_RESTORE_FAILURES = "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
        Counter, FAMILY, Iptables,
        "[ALPHA] Times that iptables-restore failed on a partial change";
    /// All of ours.
    IPTABLES_RULES = "kubeproxy_sync_proxy_rules_iptables_total",
        Gauge, &["ip_family", "table"], Iptables,
        "[ALPHA] iptables rules in the table that this program owns";
    /// Those of the last time.
    IPTABLES_LAST = "kubeproxy_sync_proxy_rules_iptables_last",
        Gauge, &["ip_family", "table"], Iptables,
        "[ALPHA] iptables rules in the table that the last sync wrote";
    /// Read from the kernel when asked.
    INVALID_DROPPED = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
        Counter, &[], Iptables,
        "[ALPHA] Packets dropped because conntrack marked them invalid";
    /// Read from the kernel when asked.
    LOCALHOST_ACCEPTED = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
        Counter, &[], Iptables,
        "[ALPHA] Packets to NodePorts that came over the loopback interface";
    /// The kernel said no.
    NFTABLES_SYNC_FAILURES = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
        Counter, FAMILY, Nftables,
        "[ALPHA] nftables transactions that failed";
    /// It said no to a deletion.
    NFTABLES_CLEANUP_FAILURES = "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
        Counter, FAMILY, Nftables,
        "[ALPHA] Deletions of unused nftables objects that failed";
    /// Clearing stale flows.
    CONNTRACK_DURATION = "kubeproxy_conntrack_reconciler_sync_duration_seconds",
        Histogram(Sync), FAMILY, All,
        "[ALPHA] How long one conntrack reconciliation took, in seconds";
    /// Flows that were stale.
    CONNTRACK_DELETED = "kubeproxy_conntrack_reconciler_deleted_entries_total",
        Counter, FAMILY, All,
        "[ALPHA] Stale conntrack entries deleted";

    /// What we are to Kubernetes.
    BUILD_INFO = "kubernetes_build_info",
        Gauge,
        &["build_date", "compiler", "git_commit", "git_tree_state", "git_version", "go_version", "major", "minor", "platform"],
        All,
        "[BETA] The Kubernetes version this program implements; always 1";
    /// Feature gates.
    FEATURE_ENABLED = "kubernetes_feature_enabled",
        Gauge, &["name", "stage"], All,
        "[BETA] Whether a feature gate is on";
    /// Requests to the API server.
    REST_REQUESTS = "rest_client_requests_total",
        Counter, &["code", "host", "method"], All,
        "[ALPHA] Requests to the API server by status, method and host";
    /// How long they take.
    REST_DURATION = "rest_client_request_duration_seconds",
        Histogram(Request), &["host", "verb"], All,
        "[ALPHA] How long requests to the API server took, in seconds";

    /// Processor time.
    PROCESS_CPU = "process_cpu_seconds_total", Counter, &[], All,
        "Processor time used, user and system, in seconds";
    /// Limit of descriptors.
    PROCESS_MAX_FDS = "process_max_fds", Gauge, &[], All,
        "File descriptors this process may open";
    /// Descriptors.
    PROCESS_OPEN_FDS = "process_open_fds", Gauge, &[], All,
        "File descriptors that are open";
    /// Of the whole network namespace.
    PROCESS_RECEIVED = "process_network_receive_bytes_total", Counter, &[], All,
        "Bytes received over the network, as this process sees it";
    /// Of the whole network namespace.
    PROCESS_SENT = "process_network_transmit_bytes_total", Counter, &[], All,
        "Bytes sent over the network, as this process sees it";
    /// Memory in use.
    PROCESS_RESIDENT = "process_resident_memory_bytes", Gauge, &[], All,
        "Memory in use, in bytes";
    /// The start.
    PROCESS_START = "process_start_time_seconds", Gauge, &[], All,
        "When this process started, as Unix time";
    /// Address space.
    PROCESS_VIRTUAL = "process_virtual_memory_bytes", Gauge, &[], All,
        "Address space in use, in bytes";
    /// Limit of address space.
    PROCESS_VIRTUAL_MAX = "process_virtual_memory_max_bytes", Gauge, &[], All,
        "Address space this process may use, in bytes";

    /// What we are.
    FERRULE_BUILD = "ferrule_build_info", Gauge, &["commit", "mode", "version"], All,
        "[ALPHA] The version of ferrule and the mode it runs in; always 1";
    /// The size of the desired state.
    DESIRED_PORTS = "ferrule_desired_service_ports", Gauge, FAMILY, All,
        "[ALPHA] Service ports this node should serve";
    /// The size of the desired state.
    DESIRED_ENDPOINTS = "ferrule_desired_endpoints", Gauge, FAMILY, All,
        "[ALPHA] Endpoints this node should send to, counted per Service port";
    /// What is wrong in the input.
    ISSUES = "ferrule_issues", Gauge, &["severity"], All,
        "[ALPHA] Problems in watched objects now";
    /// Work done.
    SYNC_STEPS = "ferrule_sync_steps_total", Counter, FAMILY, All,
        "[ALPHA] Changes written to the kernel";
    /// Watches that broke.
    WATCH_RESTARTS = "ferrule_watch_restarts_total", Counter, &["resource"], All,
        "[ALPHA] Watches that ended, as they do every few minutes, and were restarted";

    /// Clients let in.
    RELAY_CONNECTIONS = "ferrule_relay_connections_total", Counter, SERVICE_PORT, Relay,
        "[ALPHA] TCP connections accepted from clients";
    /// Clients turned away.
    RELAY_DENIED = "ferrule_relay_denied_connections_total", Counter, SERVICE_PORT, Relay,
        "[ALPHA] TCP connections reset at once: made to a proxy port itself, or from a source that is not allowed";
    /// Clients that are there.
    RELAY_OPEN = "ferrule_relay_open_connections", Gauge, SERVICE_PORT, Relay,
        "[ALPHA] TCP connections of clients that are open";
    /// Connections with a client's address.
    RELAY_TRANSPARENT = "ferrule_relay_transparent_connections_total", Counter, SERVICE_PORT, Relay,
        "[ALPHA] TCP connections to endpoints with the client's own address";
    /// Connections whose endpoint was gone.
    RELAY_EXPIRED = "ferrule_relay_expired_connections_total", Counter, SERVICE_PORT, Relay,
        "[ALPHA] TCP connections reset because their endpoint was gone and they were silent";
    /// Clients of UDP.
    RELAY_ASSOCIATED = "ferrule_relay_associations_total", Counter, SERVICE_PORT, Relay,
        "[ALPHA] UDP associations made: a client and its endpoint";
    /// Those that are there.
    RELAY_ASSOCIATIONS = "ferrule_relay_open_associations", Gauge, SERVICE_PORT, Relay,
        "[ALPHA] UDP associations that live";
    /// Those that had to go.
    RELAY_EVICTED = "ferrule_relay_evicted_associations_total", Counter, SERVICE_PORT, Relay,
        "[ALPHA] UDP associations that made room for others, the longest idle first";
    /// Datagrams lost here.
    RELAY_DROPPED = "ferrule_relay_dropped_datagrams_total", Counter, SERVICE_PORT, Relay,
        "[ALPHA] Datagrams that reached nobody";
    /// What was carried.
    RELAY_BYTES = "ferrule_relay_bytes_total", Counter, SERVICE_PORT_DIRECTION, Relay,
        "[ALPHA] Bytes carried, by direction: to_endpoints or to_clients";
    /// Second and later attempts.
    RELAY_RETRIES = "ferrule_relay_retries_total", Counter, SERVICE_PORT, Relay,
        "[ALPHA] Further attempts to reach an endpoint after a first one failed";
    /// Attempts in vain.
    RELAY_FAILURES = "ferrule_relay_failures_total", Counter, SERVICE_PORT_CAUSE, Relay,
        "[ALPHA] Attempts to reach an endpoint that failed, by cause";
    /// Clients in vain.
    RELAY_UNSERVED = "ferrule_relay_unserved_clients_total", Counter, SERVICE_PORT_CAUSE, Relay,
        "[ALPHA] Clients that reached no endpoint: there was none, or all attempts failed";
    /// The cost of a connection.
    RELAY_CONNECT = "ferrule_relay_connect_duration_seconds", Histogram(Connect), SERVICE_PORT, Relay,
        "[ALPHA] How long it took to connect a client to an endpoint, failed attempts included, in seconds";
    /// Clients that waited.
    RELAY_PAUSES = "ferrule_relay_pauses_total", Counter, SERVICE_PORT, Relay,
        "[ALPHA] Times at which new clients had to wait because descriptors or memory ran out";
    /// Outliers.
    RELAY_EJECTED = "ferrule_relay_ejected_endpoints", Gauge, SERVICE_PORT, Relay,
        "[ALPHA] Endpoints that are passed over now because they failed again and again";
    /// Descriptors.
    RELAY_DESCRIPTORS = "ferrule_relay_descriptors", Gauge, &[], Relay,
        "[ALPHA] File descriptors that connections and associations use";
    /// Descriptors.
    RELAY_MAX_DESCRIPTORS = "ferrule_relay_max_descriptors", Gauge, &[], Relay,
        "[ALPHA] File descriptors that connections and associations may use";
    /// What is not on the page.
    RELAY_UNLISTED = "ferrule_relay_unlisted_service_ports", Gauge, &[], Relay,
        "[ALPHA] Service ports with clients that have no series because there are too many";

    /// On `/metrics/slis`.
    HEALTHCHECK = "kubernetes_healthcheck", Gauge, &["name", "type"], All,
        "[STABLE] Whether a health check passed when it was last run";
    /// On `/metrics/slis`.
    HEALTHCHECKS = "kubernetes_healthchecks_total", Counter, &["name", "status", "type"], All,
        "[STABLE] Results of health checks";
}
