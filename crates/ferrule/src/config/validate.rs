//! What a configuration may not say.
//!
//! Every rule is looked at and every violation reported, in a fixed order, with the field names
//! and words of kube-proxy; tools match on them. Logging has its own entrance, because it is
//! checked first: everything later is already logged the configured way.

use std::fmt;

use ferrule_core::model::{Family, parse_cidr, parse_ip};
use ferrule_dataplane::userspace::PortalsBy;

use super::Config;
use super::gates::{Gate, Gates};
use super::go::{GoDuration, quote, split_host_port};
use super::port_range;
use super::v1alpha1::{LoggingConfiguration, OutputRoutingOptions};
use crate::modes::{self, Audit, Mode, Section};
use crate::version;

/// Everything that is wrong; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violations(Vec<Violation>);

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => one.fmt(f),
            several => {
                let texts: Vec<_> = several.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", texts.join(", "))
            }
        }
    }
}

impl std::error::Error for Violations {}

/// One field that cannot stay as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {fault}")]
pub struct Violation {
    path: String,
    fault: Fault,
}

/// What is wrong with a value. Values are shown as they were written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Fault {
    #[error("Invalid value: {value}: {detail}")]
    Invalid { value: String, detail: String },
    #[error("Unsupported value: {value}: supported values: {supported}")]
    Unsupported { value: String, supported: String },
    #[error("Duplicate value: {0}")]
    Duplicate(String),
    #[error("Forbidden: {0}")]
    Forbidden(String),
    #[error("Required value: {0}")]
    Required(&'static str),
}

const AT_LEAST_ZERO: &str = "must be greater than or equal to 0";
const ABOVE_ZERO: &str = "must be greater than 0";
const A_CIDR: &str = "must be a valid CIDR";

/// Looks at everything except logging.
///
/// # Errors
/// All violations together.
pub fn validate(config: &Config, gates: &Gates) -> Result<(), Violations> {
    let mut found = Found::new("KubeProxyConfiguration");
    modes(config, &mut found);
    relay(config, &mut found);
    linux(config, &mut found);
    mode(config, gates, &mut found);
    found.at_least_zero("ClientConnection.Burst", config.client_connection.burst);
    periods(config, &mut found);
    addresses(config, &mut found);
    node_port_addresses(config, &mut found);
    hidden_metrics(config, &mut found);
    detect_local(config, &mut found);
    found.outcome()
}

/// Looks at logging alone.
///
/// # Errors
/// All violations together.
pub fn validate_logging(logging: &LoggingConfiguration, gates: &Gates) -> Result<(), Violations> {
    let mut found = Found::new("logging");
    let frequency = logging.flush_frequency.duration;
    if frequency <= GoDuration::ZERO {
        found.invalid(
            "flushFrequency",
            quoted(frequency),
            "Must be greater than zero",
        );
    }
    let format = logging.format.as_str();
    match format {
        "text" => {}
        "json" if gates.is_on(Gate::LoggingBetaOptions) => {}
        "json" => found.forbidden(
            "format",
            "Log format json is disabled, see LoggingBetaOptions feature",
        ),
        _ => found.invalid("format", quote(format), "Unsupported log format"),
    }
    found.verbosity("verbosity", logging.verbosity);
    if !logging.vmodule.is_empty() && format != "text" {
        found.forbidden("vmodule", "Only supported for text log format");
    }
    for (at, item) in logging.vmodule.iter().enumerate() {
        let path = format!("vmodule[{at}]");
        let pattern = item.file_pattern.as_str();
        if pattern.is_empty() {
            found.push(&path, Fault::Required("File pattern must not be empty"));
        }
        if pattern.contains(['=', ',']) {
            let detail = "File pattern must not contain equal sign or comma";
            found.invalid(&path, quote(pattern), detail);
        }
        found.verbosity(&path, item.verbosity);
    }
    if !gates.is_on(Gate::LoggingAlphaOptions) {
        routing("options.text", logging.options.text, &mut found);
        routing("options.json", logging.options.json, &mut found);
    }
    found.outcome()
}

/// What only the gate `LoggingAlphaOptions` allows.
fn routing(path: &str, options: OutputRoutingOptions, found: &mut Found) {
    const DISABLED: &str = "Feature LoggingAlphaOptions is disabled";
    if options.split_stream {
        found.forbidden(&format!("{path}.splitStream"), DISABLED);
    }
    if !options.info_buffer_size.is_zero() {
        found.forbidden(&format!("{path}.infoBufferSize"), DISABLED);
    }
}

/// The sections of the modes. The one of iptables is looked at in every mode.
fn modes(config: &Config, found: &mut Found) {
    const IPTABLES: &str = "KubeProxyIPTablesConfiguration.MasqueradeBit";
    const NFTABLES: &str = "KubeProxyNFTablesConfiguration.MasqueradeBit";
    found.within(IPTABLES, config.iptables_masquerade_bit, 0, 31);
    let section = config.mode().section;
    if section == Section::Ipvs {
        let ipvs = &config.ipvs;
        let path = "KubeProxyIPVSConfiguration";
        for (field, timeout) in [
            ("TCPTimeout", ipvs.tcp_timeout),
            ("TCPFinTimeout", ipvs.tcp_fin_timeout),
            ("UDPTimeout", ipvs.udp_timeout),
        ] {
            found.no_negative_time(&format!("{path}.{field}"), timeout);
        }
        for (at, cidr) in ipvs.exclude_cidrs.iter().flatten().enumerate() {
            if parse_cidr(cidr).is_none() {
                found.invalid(&format!("{path}.ExcludeCidrs[{at}]"), quote(cidr), A_CIDR);
            }
        }
    }
    if section == Section::Nftables {
        found.within(NFTABLES, config.nftables_masquerade_bit, 0, 31);
    }
}

/// What only a mode that relays needs.
fn relay(config: &Config, found: &mut Found) {
    if !config.mode().relays() {
        return;
    }
    if config
        .udp_idle_timeout
        .is_some_and(|idle| idle <= GoDuration::ZERO)
    {
        let idle = config.udp_idle_timeout.unwrap_or_default();
        found.invalid("UDPIdleTimeout", quoted(idle), ABOVE_ZERO);
    }
    if port_range::parse(&config.port_range).is_err() {
        let detail = "must be a valid port range (e.g. 300-2000)";
        found.invalid("PortRange", quote(&config.port_range), detail);
    }
    if config.userspace_transparent && config.userspace_portals != PortalsBy::Nftables {
        let detail = "takes --userspace-portals=nftables";
        found.invalid("UserspaceTransparent", "true".to_owned(), detail);
    }
    if config.userspace_transparent && !config.userspace_handover.is_empty() {
        let detail = "does not go with --userspace-handover yet";
        found.invalid("UserspaceTransparent", "true".to_owned(), detail);
    }
    // Clients do not come from loopback alone.
    if ["127.0.0.1", "::1"].contains(&config.bind_address.as_str()) {
        let detail = "mode userspace cannot proxy on localhost";
        found.invalid("BindAddress", quote(&config.bind_address), detail);
    }
}

/// Connection tracking and the out-of-memory score.
fn linux(config: &Config, found: &mut Found) {
    let section = "KubeProxyLinuxConfiguration";
    let path = |field: &str| format!("{section}.KubeProxyConntrackConfiguration.{field}");
    let conntrack = &config.conntrack;
    found.at_least_zero(&path("MaxPerCore"), conntrack.max_per_core);
    found.at_least_zero(&path("Min"), conntrack.min);
    for (field, timeout) in [
        ("TCPEstablishedTimeout", conntrack.tcp_established_timeout),
        ("TCPCloseWaitTimeout", conntrack.tcp_close_wait_timeout),
        ("UDPTimeout", conntrack.udp_timeout),
        ("UDPStreamTimeout", conntrack.udp_stream_timeout),
    ] {
        found.no_negative_time(&path(field), timeout);
    }
    let score = format!("{section}.OOMScoreAdj");
    found.within(&score, config.oom_score_adj, -1000, 1000);
}

fn mode(config: &Config, gates: &Gates, found: &mut Found) {
    let allowed = |mode: &Mode| mode.gate.is_none_or(|gate| gates.is_on(gate));
    if config.mode.is_empty() || modes::find(&config.mode).is_some_and(allowed) {
        return;
    }
    let known: Vec<_> = modes::listed()
        .into_iter()
        .filter(|mode| allowed(mode))
        .map(|mode| mode.name)
        .collect();
    let detail = format!(
        "must be {} or blank (blank means the best-available proxy [currently iptables])",
        known.join(", ")
    );
    found.invalid("Mode.ProxyMode", quote(&config.mode), &detail);
}

fn periods(config: &Config, found: &mut Found) {
    let (sync, min_sync) = (config.sync_period, config.min_sync_period);
    found.some_time("ConfigSyncPeriod", config.config_sync_period);
    found.some_time("SyncPeriod", sync);
    found.no_negative_time("MinSyncPeriod", min_sync);
    if min_sync > sync {
        let detail = "must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod";
        found.invalid("SyncPeriod", quoted(min_sync), detail);
    }
    // kube-proxy lets this pass and then crashes: such modes sync everything every hour, and
    // cannot rest longer than that.
    let hour = GoDuration::from_secs(3600);
    let hourly = modes::find(&config.mode).is_some_and(|mode| mode.audit == Audit::Hourly);
    if min_sync > hour && hourly {
        let detail = format!(
            "must not be greater than {hour} in mode {}, which syncs everything at least that \
             often",
            config.mode
        );
        found.invalid("MinSyncPeriod", quoted(min_sync), &detail);
    }
}

fn addresses(config: &Config, found: &mut Found) {
    if parse_ip(&config.bind_address).is_none() {
        let detail = "not a valid textual representation of an IP address";
        found.invalid("BindAddress", quote(&config.bind_address), detail);
    }
    // Without an address there is no health server; there always is a metrics server.
    if !config.healthz_bind_address.is_empty() {
        found.ip_and_port("HealthzBindAddress", &config.healthz_bind_address);
    }
    found.ip_and_port("MetricsBindAddress", &config.metrics_bind_address);
}

/// Networks and keywords mix freely, each keyword once: the rule of the next release.
fn node_port_addresses(config: &Config, found: &mut Found) {
    let mut seen: Vec<&str> = Vec::new();
    let entries = config.node_port_addresses.iter().flatten();
    for (at, entry) in entries.enumerate() {
        let path = format!("NodePortAddresses[{at}]");
        if ["primary", "localhost", "all"].contains(&entry.as_str()) {
            if seen.contains(&entry.as_str()) {
                found.push(&path, Fault::Duplicate(quote(entry)));
            }
            seen.push(entry);
        } else if parse_cidr(entry).is_none() {
            let detail = format!("{A_CIDR} or one of the keywords 'primary', 'localhost', 'all'");
            found.invalid(&path, quote(entry), &detail);
        }
    }
}

fn hidden_metrics(config: &Config, found: &mut Found) {
    let version = config.show_hidden_metrics_for_version.as_str();
    let previous = previous_minor();
    if !version.is_empty() && version != previous {
        let field = "showHiddenMetricsForVersion";
        let version = quote(version);
        let detail = format!(
            "invalid {field}: {field}: Invalid value: {version}: must be omitted or have the \
             value '{previous}'; only the previous minor version is allowed"
        );
        found.invalid("ShowHiddenMetricsForVersion", version, &detail);
    }
}

/// `1.35` for `v1.36.4`.
fn previous_minor() -> String {
    let (major, minor) = version::major_and_minor();
    let minor: u32 = minor.parse().unwrap_or(1);
    format!("{major}.{}", minor.saturating_sub(1))
}

fn detect_local(config: &Config, found: &mut Found) {
    const KNOWN: [&str; 5] = [
        "ClusterCIDR",
        "NodeCIDR",
        "BridgeInterface",
        "InterfaceNamePrefix",
        "",
    ];
    let mode = config.detect_local_mode.as_str();
    if !KNOWN.contains(&mode) {
        let fault = Fault::Unsupported {
            value: quote(mode),
            supported: KNOWN.map(quote).join(", "),
        };
        found.push("DetectLocalMode", fault);
    }
    let section = "DetectLocalConfiguration";
    let path = |field: &str| format!("{section}.{field}");
    match mode {
        "BridgeInterface" if config.bridge_interface.is_empty() => {
            found.invalid(&path("InterfaceName"), quote(""), "must not be empty");
        }
        "InterfaceNamePrefix" if config.interface_name_prefix.is_empty() => {
            found.invalid(&path("InterfacePrefix"), quote(""), "must not be empty");
        }
        "ClusterCIDR" => cluster_cidrs(&config.cluster_cidrs, &path("ClusterCIDRs"), found),
        _ => {}
    }
}

fn cluster_cidrs(cidrs: &[String], path: &str, found: &mut Found) {
    // The wording is kube-proxy's, grammar included.
    let one_or_a_pair = |found: &mut Found| {
        let quoted: Vec<_> = cidrs.iter().map(|cidr| quote(cidr)).collect();
        let detail = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. \
                      [10.100.0.0/16, fde4:8dba:82e1::/48]";
        found.invalid(path, format!("[{}]", quoted.join(",")), detail);
    };
    if cidrs.len() > 2 {
        one_or_a_pair(found);
    }
    let mut families = Vec::new();
    for (at, cidr) in cidrs.iter().enumerate() {
        if let Some(net) = parse_cidr(cidr) {
            families.push(Family::of_net(&net));
        } else {
            let detail = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
            found.invalid(&format!("{path}[{at}]"), quote(cidr), detail);
        }
    }
    if let (2, [first, second]) = (cidrs.len(), families.as_slice())
        && first == second
    {
        one_or_a_pair(found);
    }
}

fn quoted(value: GoDuration) -> String {
    quote(&value.to_string())
}

/// Violations found so far.
struct Found {
    root: &'static str,
    list: Vec<Violation>,
}

impl Found {
    fn new(root: &'static str) -> Self {
        let list = Vec::new();
        Self { root, list }
    }

    fn push(&mut self, path: &str, fault: Fault) {
        let path = format!("{}.{path}", self.root);
        let violation = Violation { path, fault };
        // The same thing is said once.
        if !self.list.contains(&violation) {
            self.list.push(violation);
        }
    }

    fn invalid(&mut self, path: &str, value: String, detail: &str) {
        let detail = detail.to_owned();
        self.push(path, Fault::Invalid { value, detail });
    }

    fn forbidden(&mut self, path: &str, detail: &str) {
        self.push(path, Fault::Forbidden(detail.to_owned()));
    }

    fn at_least_zero(&mut self, path: &str, value: i32) {
        if value < 0 {
            self.invalid(path, value.to_string(), AT_LEAST_ZERO);
        }
    }

    fn within(&mut self, path: &str, value: i32, least: i32, most: i32) {
        if !(least..=most).contains(&value) {
            let detail = format!("must be within the range [{least}, {most}]");
            self.invalid(path, value.to_string(), &detail);
        }
    }

    fn no_negative_time(&mut self, path: &str, value: GoDuration) {
        if value < GoDuration::ZERO {
            self.invalid(path, quoted(value), AT_LEAST_ZERO);
        }
    }

    fn some_time(&mut self, path: &str, value: GoDuration) {
        if value <= GoDuration::ZERO {
            self.invalid(path, quoted(value), ABOVE_ZERO);
        }
    }

    fn verbosity(&mut self, path: &str, value: u32) {
        if i32::try_from(value).is_err() {
            let detail = format!("Must be <= {}", i32::MAX);
            self.invalid(path, value.to_string(), &detail);
        }
    }

    fn ip_and_port(&mut self, path: &str, address: &str) {
        let Ok((host, port)) = split_host_port(address) else {
            self.invalid(path, quote(address), "must be IP:port");
            return;
        };
        if parse_ip(host).is_none() {
            self.invalid(path, quote(host), "must be a valid IP");
        }
        if !port.parse::<u16>().is_ok_and(|port| port > 0) {
            self.invalid(path, quote(port), "must be a valid port");
        }
    }

    fn outcome(self) -> Result<(), Violations> {
        if self.list.is_empty() {
            Ok(())
        } else {
            Err(Violations(self.list))
        }
    }
}

#[cfg(test)]
mod tests;
