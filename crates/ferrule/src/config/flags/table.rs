//! Every flag: name, type, default, whether it counts beside `--config`, and what it means.
//!
//! Names and defaults are kube-proxy's. docs/configuration.md documents the same; a test
//! compares the two.

use super::value::{
    GateValues, Ip, IpPort, Level, LocalMode, ProxyMode, Setting, Strings, VModule, Value,
    VersionFlag,
};
use crate::admin::SOCKET;
use crate::config::USERSPACE_DRAIN;
use crate::config::go::{GoDuration, Quantity};
use crate::sync::RestBy;
use ferrule_dataplane::userspace::PortalsBy;

/// One declared flag.
pub struct Spec {
    /// The name, with hyphens.
    pub name: &'static str,
    /// The letter after one hyphen.
    pub short: Option<char>,
    /// Whether it counts when a file is given.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "only its documentation is checked against it")
    )]
    pub scope: Scope,
    /// Whether kube-proxy does not have it.
    pub own: bool,
    /// Set for flags that help does not show: the advice to those who use them.
    pub deprecated: Option<&'static str>,
    /// What it means.
    pub help: &'static str,
    get: fn(&Flags) -> &dyn Value,
    get_mut: fn(&mut Flags) -> &mut dyn Value,
}

impl Spec {
    /// The flag's value.
    pub fn value<'a>(&self, flags: &'a Flags) -> &'a dyn Value {
        (self.get)(flags)
    }

    /// The flag's value, to be changed.
    pub fn value_mut<'a>(&self, flags: &'a mut Flags) -> &'a mut dyn Value {
        (self.get_mut)(flags)
    }
}

/// Whether a flag counts when a file is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// It counts always.
    Always,
    /// The file replaces it, whether it names the setting or not.
    WithoutFile,
}

macro_rules! flags {
    ($($name:literal, $field:ident: $kind:ty = $default:expr, $scope:ident, $help:expr;)*) => {
        /// The command line: every flag with its value.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Flags {
            $(#[doc = $help] pub $field: Setting<$kind>,)*
            /// Lines for stderr about deprecated flags that were given.
            pub notices: Vec<String>,
        }

        impl Default for Flags {
            fn default() -> Self {
                Self {
                    $($field: Setting::new($default),)*
                    notices: Vec::new(),
                }
            }
        }

        /// Every flag there is.
        pub const TABLE: &[Spec] = &[
            $(Spec {
                name: $name,
                short: short($name),
                scope: Scope::$scope,
                own: is_own($name),
                deprecated: deprecated($name),
                help: $help,
                get: |flags| &flags.$field,
                get_mut: |flags| &mut flags.$field,
            },)*
        ];
    };
}

const fn short(name: &str) -> Option<char> {
    match name.as_bytes() {
        b"v" => Some('v'),
        b"help" => Some('h'),
        _ => None,
    }
}

const fn is_own(name: &str) -> bool {
    matches!(
        name.as_bytes(),
        b"manifests"
            | b"dry-run"
            | b"admin-socket"
            | b"ui"
            | b"sync-pace"
            | b"userspace-portals"
            | b"userspace-drain-timeout"
            | b"userspace-handover"
            | b"userspace-transparent"
            | b"proxy-port-range"
            | b"udp-timeout"
    )
}

const fn deprecated(name: &str) -> Option<&'static str> {
    match name.as_bytes() {
        b"healthz-port" => Some(
            "This flag is deprecated and will be removed in a future release. Please use \
             --healthz-bind-address instead.",
        ),
        b"metrics-port" => Some(
            "This flag is deprecated and will be removed in a future release. Please use \
             --metrics-bind-address instead.",
        ),
        _ => None,
    }
}

fn words(text: &str) -> String {
    text.to_owned()
}

const fn seconds(seconds: i32) -> GoDuration {
    GoDuration::from_secs(seconds)
}

flags! {
    "config", config: String = String::new(), Always,
        "Path of a file of kind KubeProxyConfiguration. It decides then: the other flags are \
         ignored, except --hostname-override, --master, and those for logging and how to run.";
    "write-config-to", write_config_to: String = String::new(), Always,
        "Write the effective configuration to this file as YAML, and exit.";
    "cleanup", cleanup: bool = false, Always,
        "Remove the rules of every mode from the kernel, and exit. Needs no API server.";
    "init-only", init_only: bool = false, Always,
        "Make the changes that need full root rights, and exit. Afterwards the program runs with \
         the capability CAP_NET_ADMIN alone.";
    "version", version: VersionFlag = VersionFlag::Off, Always,
        "Print the version and exit; =raw prints all of it; =vX.Y.Z-suffix sets the version that \
         is reported.";
    "help", help: bool = false, Always,
        "Print this text and exit.";
    "hostname-override", hostname_override: String = String::new(), Always,
        "Name of this node's Node object, where it is not the machine's host name. Overrides the \
         file.";
    "master", master: String = String::new(), Always,
        "Address of the API server. Overrides the kubeconfig.";
    "kubeconfig", kubeconfig: String = String::new(), WithoutFile,
        "Path of a kubeconfig with the API server and the credentials for it. Without one, and \
         without --master, the Pod's own service account is used.";
    "kube-api-content-type", kube_api_content_type: String =
        words("application/vnd.kubernetes.protobuf"), WithoutFile,
        "Content type of requests to the API server.";
    "kube-api-qps", kube_api_qps: f32 = 5.0, WithoutFile,
        "Requests per second to the API server, on average. A negative number sets no limit.";
    "kube-api-burst", kube_api_burst: i32 = 10, WithoutFile,
        "Requests to the API server that may be made at once.";
    "feature-gates", feature_gates: GateValues = GateValues::default(), WithoutFile,
        "Features to switch on or off, as Name=true,Name=false. Gates that are not finished:";
    "bind-address", bind_address: Ip = Ip(words("0.0.0.0")), WithoutFile,
        "The node's primary address, if it differs from the Node object's; the unspecified address \
         means the Node object's. Its family becomes the primary one. Nothing binds to it.";
    "healthz-bind-address", healthz_bind_address: IpPort = IpPort(words("0.0.0.0:10256")),
        WithoutFile,
        "Address of the health server. The default port is 10256.";
    "metrics-bind-address", metrics_bind_address: IpPort = IpPort(words("127.0.0.1:10249")),
        WithoutFile,
        "Address of the metrics server.";
    "healthz-port", healthz_port: i32 = 10256, WithoutFile,
        "Port for a health address without one; 0 switches the health server off.";
    "metrics-port", metrics_port: i32 = 10249, WithoutFile,
        "Port for a metrics address without one.";
    "bind-address-hard-fail", bind_address_hard_fail: bool = false, WithoutFile,
        "Exit when the health or metrics server cannot listen, instead of trying again.";
    "profiling", profiling: bool = false, WithoutFile,
        "Serve /debug on the metrics server.";
    "show-hidden-metrics-for-version", show_hidden_metrics_for_version: String = String::new(),
        WithoutFile,
        "Show metrics that have been hidden since this version. Only the previous minor version \
         can be named.";
    "proxy-mode", proxy_mode: ProxyMode = ProxyMode::default(), WithoutFile,
        "How the kernel is programmed: iptables, ipvs, nftables or userspace. Blank means iptables.";
    "iptables-masquerade-bit", iptables_masquerade_bit: i32 = 14, WithoutFile,
        "Bit of the packet mark, 0 to 31, that asks for masquerading in modes iptables and ipvs.";
    "masquerade-all", masquerade_all: bool = false, WithoutFile,
        "Masquerade all traffic to cluster IPs, in every mode.";
    "iptables-localhost-nodeports", iptables_localhost_nodeports: bool = true, WithoutFile,
        "Let NodePorts answer on 127.0.0.0/8, in mode iptables.";
    "iptables-sync-period", iptables_sync_period: GoDuration = seconds(30), WithoutFile,
        "Sync at least this often, in modes iptables and nftables.";
    "iptables-min-sync-period", iptables_min_sync_period: GoDuration = seconds(1), WithoutFile,
        "Sync at most this often, in modes iptables and nftables; 0 syncs on every change.";
    "ipvs-sync-period", ipvs_sync_period: GoDuration = seconds(30), WithoutFile,
        "Sync at least this often, in mode ipvs.";
    "ipvs-min-sync-period", ipvs_min_sync_period: GoDuration = seconds(1), WithoutFile,
        "Sync at most this often, in mode ipvs; 0 syncs on every change.";
    "ipvs-scheduler", ipvs_scheduler: String = String::new(), WithoutFile,
        "IPVS scheduler, in mode ipvs. Blank means rr.";
    "ipvs-exclude-cidrs", ipvs_exclude_cidrs: Strings = Strings(None), WithoutFile,
        "Networks whose virtual servers mode ipvs does not remove.";
    "ipvs-strict-arp", ipvs_strict_arp: bool = false, WithoutFile,
        "Answer ARP for an address only on the interface that has it, in mode ipvs.";
    "ipvs-tcp-timeout", ipvs_tcp_timeout: GoDuration = GoDuration::ZERO, WithoutFile,
        "How long an idle TCP connection is remembered in mode ipvs; 0 leaves the kernel's value.";
    "ipvs-tcpfin-timeout", ipvs_tcpfin_timeout: GoDuration = GoDuration::ZERO, WithoutFile,
        "How long a TCP connection is remembered after a FIN in mode ipvs; 0 leaves the kernel's \
         value.";
    "ipvs-udp-timeout", ipvs_udp_timeout: GoDuration = GoDuration::ZERO, WithoutFile,
        "How long a UDP flow is remembered in mode ipvs; 0 leaves the kernel's value.";
    "proxy-port-range", proxy_port_range: String = String::new(), WithoutFile,
        "Ports on which mode userspace listens: A-B, A+N (A to A+N) or one. Blank or 0 lets the kernel \
         choose.";
    "udp-timeout", udp_timeout: GoDuration = GoDuration::ZERO, WithoutFile,
        "How long an idle UDP client is remembered in mode userspace. Without it 30s, and 2m once the \
         endpoint has answered.";
    "userspace-portals", userspace_portals: PortalsBy = PortalsBy::Nftables, Always,
        "What leads to the ports of mode userspace: nftables, or the chains of iptables that kube-proxy \
         had.";
    "userspace-drain-timeout", userspace_drain_timeout: GoDuration = USERSPACE_DRAIN, Always,
        "How long open connections go on in mode userspace after a signal to end. A second signal \
         ends them at once.";
    "userspace-handover", userspace_handover: String = String::new(), Always,
        "Unix socket over which mode userspace takes over from a ferrule that runs, and hands over to \
         the next one, without refusing a client. Blank for none.";
    "userspace-transparent", userspace_transparent: bool = false, Always,
        "In mode userspace, pods of this node see their clients' addresses instead of the node's, where \
         their answers pass through this node.";
    "detect-local-mode", detect_local_mode: LocalMode = LocalMode::default(), WithoutFile,
        "How to detect traffic from pods of this node: ClusterCIDR, NodeCIDR, BridgeInterface \
         or InterfaceNamePrefix. Blank means ClusterCIDR.";
    "pod-bridge-interface", pod_bridge_interface: String = String::new(), WithoutFile,
        "Bridge interface of the pods, for --detect-local-mode=BridgeInterface.";
    "pod-interface-name-prefix", pod_interface_name_prefix: String = String::new(), WithoutFile,
        "Prefix of the names of the pods' interfaces, for \
         --detect-local-mode=InterfaceNamePrefix.";
    "cluster-cidr", cluster_cidr: String = String::new(), WithoutFile,
        "Network of the pods, or one of each family separated by a comma, for \
         --detect-local-mode=ClusterCIDR. Traffic from elsewhere to cluster IPs is masqueraded.";
    "nodeport-addresses", nodeport_addresses: Strings = Strings(None), WithoutFile,
        "Node addresses that serve NodePorts: networks, or the keywords primary (the Node's own \
         addresses), localhost and all. Nothing means all, and primary in mode nftables.";
    "oom-score-adj", oom_score_adj: i32 = -999, WithoutFile,
        "How likely the kernel is to kill this process when memory runs out, from -1000 (never) \
         to 1000.";
    "conntrack-max-per-core", conntrack_max_per_core: i32 = 32768, WithoutFile,
        "Tracked connections per CPU; 0 leaves the kernel's limit alone and ignores \
         --conntrack-min.";
    "conntrack-min", conntrack_min: i32 = 131_072, WithoutFile,
        "Tracked connections at least, however few CPUs there are.";
    "conntrack-tcp-timeout-established", conntrack_tcp_timeout_established: GoDuration =
        seconds(24 * 3600), WithoutFile,
        "How long an idle TCP connection is tracked; 0 leaves the kernel's value.";
    "conntrack-tcp-timeout-close-wait", conntrack_tcp_timeout_close_wait: GoDuration =
        seconds(3600), WithoutFile,
        "How long a TCP connection the peer has closed is tracked; 0 leaves the kernel's value.";
    "conntrack-tcp-be-liberal", conntrack_tcp_be_liberal: bool = false, WithoutFile,
        "Let TCP packets outside the window pass instead of marking them invalid.";
    "conntrack-udp-timeout", conntrack_udp_timeout: GoDuration = GoDuration::ZERO, WithoutFile,
        "How long a UDP flow without an answer is tracked; 0 leaves the kernel's value.";
    "conntrack-udp-timeout-stream", conntrack_udp_timeout_stream: GoDuration = GoDuration::ZERO,
        WithoutFile,
        "How long a UDP flow with answers is tracked; 0 leaves the kernel's value.";
    "config-sync-period", config_sync_period: GoDuration = seconds(15 * 60), WithoutFile,
        "How often to process all objects from the API server again although nothing changed.";
    "v", v: Level = Level(0), Always,
        "Log verbosity: 0 for what matters, 2 for changes, 4 and more for debugging.";
    "vmodule", vmodule: VModule = VModule::default(), Always,
        "Log verbosity of single source files: base names or globs, each with its level. Only for \
         text.";
    "logging-format", logging_format: String = words("text"), Always,
        "Log format: text or json.";
    "log-flush-frequency", log_flush_frequency: GoDuration = seconds(5), Always,
        "How long log lines may wait in a buffer.";
    "log-text-split-stream", log_text_split_stream: bool = false, Always,
        "Alpha: in text, write information to stdout and only warnings and errors to stderr. \
         Needs the feature gate LoggingAlphaOptions.";
    "log-text-info-buffer-size", log_text_info_buffer_size: Quantity = Quantity::default(), Always,
        "Alpha: in text with split streams, keep up to this much information in memory before \
         writing it, such as 512, 1k, 2Ki or 1Mi. Needs the feature gate LoggingAlphaOptions.";
    "log-json-split-stream", log_json_split_stream: bool = false, Always,
        "Alpha: in JSON, write information to stdout and only errors to stderr. Needs the \
         feature gate LoggingAlphaOptions.";
    "log-json-info-buffer-size", log_json_info_buffer_size: Quantity = Quantity::default(), Always,
        "Alpha: in JSON with split streams, keep up to this much information in memory before \
         writing it, such as 512, 1k, 2Ki or 1Mi. Needs the feature gate LoggingAlphaOptions.";
    "machine-id-file", machine_id_file: String =
        words("/etc/machine-id,/var/lib/dbus/machine-id"), Always,
        "Accepted for compatibility; has no effect.";
    "boot-id-file", boot_id_file: String = words("/proc/sys/kernel/random/boot_id"), Always,
        "Accepted for compatibility; has no effect.";
    "manifests", manifests: String = String::new(), Always,
        "Read the cluster from this file or folder of YAML or JSON instead of an API server.";
    "dry-run", dry_run: bool = false, Always,
        "Run without writing to the kernel.";
    "admin-socket", admin_socket: String = words(SOCKET), Always,
        "Unix socket on which the proxy answers ferrule explain, for its own user. Blank for none.";
    "ui", ui: bool = false, Always,
        "Serve a page that shows this node, at /ui of the metrics server.";
    "sync-pace", sync_pace: RestBy = RestBy::Cost, Always,
        "How long to rest after a sync: cost for 20 times what it took, at least 5ms and at most \
         minSyncPeriod; fixed for minSyncPeriod, as in kube-proxy.";
}
