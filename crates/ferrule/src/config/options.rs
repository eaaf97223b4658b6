//! From the command line and its file to the effective configuration.
//!
//! In: [`Flags`], a way to read the file they name, the machine's host name. Out: [`Options`],
//! checked, with what is worth a log line; or a [`Failure`] with the message that ends the
//! program. The order is kube-proxy's: complete, then logging, then everything else, so that the
//! first message is the same.

use std::io;
use std::path::{Path, PathBuf};

use tracing::info;

use super::Config;
use super::flags::Flags;
use super::gates::{GateError, GateWarning, Gates};
use super::go::quote;
use super::v1alpha1::{
    DecodeError, FlushFrequency, HEALTHZ_PORT, LoggingConfiguration, METRICS_PORT, Oddities,
    decode, with_port,
};
use super::validate::{Violations, validate, validate_logging};
use crate::logging::info_v;
use crate::modes::Section;
use crate::sync::RestBy;

/// Everything the program needs to know to start.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub struct Options {
    /// The effective configuration.
    pub config: Config,
    /// Its feature gates.
    pub gates: Gates,
    /// The name of this node's Node. Only proxying needs it, so only that fails without it.
    pub node_name: Result<String, NodeNameError>,
    /// Address of the API server; empty when the kubeconfig has it.
    pub master: String,
    /// Write the configuration here and leave.
    pub write_config_to: Option<PathBuf>,
    /// Remove all rules and leave.
    pub cleanup: bool,
    /// Do what needs rights and leave.
    pub init_only: bool,
    /// Take the cluster from here instead of from an API server.
    pub manifests: Option<PathBuf>,
    /// Write nothing to the kernel.
    pub dry_run: bool,
    /// Answer questions here.
    pub admin_socket: Option<PathBuf>,
    /// Serve the page of this node.
    pub ui: bool,
    /// What the rest after a sync depends on.
    pub sync_pace: RestBy,
    /// The file the configuration came from.
    pub config_file: Option<PathBuf>,
    /// The command line.
    pub flags: Flags,
    /// What to log, in this order, once logging is set up.
    pub notices: Vec<Notice>,
}

/// A start that ends before it began.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Why; logged as the `err` of `command failed`.
    pub error: ConfigError,
    /// What to log before that.
    pub notices: Vec<Notice>,
    /// How to log it; `None` while the configuration of logging is not to be trusted.
    pub logging: Option<LoggingConfiguration>,
}

/// Something worth a log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The file has unknown or repeated fields.
    Lenient(Oddities),
    /// No mode was chosen, so it is iptables.
    DefaultMode,
    /// A feature gate was set that will go away.
    Gate(GateWarning),
    /// A flag and its value, for those who want to know much.
    Flag {
        /// The name.
        name: &'static str,
        /// The value as text.
        value: String,
    },
}

impl Notice {
    /// Logs it the way kube-proxy does.
    pub fn log(&self) {
        match self {
            Self::Lenient(oddities) => info!(
                err = oddities.message,
                places = oddities.places,
                "Using lenient decoding as strict decoding failed"
            ),
            Self::DefaultMode => info!("Using iptables proxy"),
            Self::Gate(gate) => {
                info!(
                    featureGate = gate.name,
                    value = gate.value,
                    "{}",
                    gate.message()
                );
            }
            Self::Flag { name, value } => {
                info_v!(1, plain = true, "FLAG: --{name}={}", quote(value));
            }
        }
    }
}

/// Which of the three steps failed, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Flags and file do not make a configuration.
    #[error("failed complete: {0}")]
    Complete(CompleteError),
    /// Logging cannot be set up so.
    #[error("initialize logging: {0}")]
    Logging(Violations),
    /// The configuration says what it may not.
    #[error("failed validate: {0}")]
    Validate(Violations),
}

/// Flags and file do not make a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompleteError {
    /// The file cannot be read.
    #[error("{operation} {}: {reason}", .path.display())]
    Read {
        /// What failed.
        operation: &'static str,
        /// Which file.
        path: PathBuf,
        /// The kernel's reason.
        reason: String,
    },
    /// The file cannot be understood.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The name of the node was given and is blank.
    #[error("empty hostname-override is invalid")]
    BlankHostnameOverride,
    /// Feature gates that are unknown or locked.
    #[error("{}", listed(.0))]
    Gates(Vec<GateError>),
}

fn listed(errors: &[GateError]) -> String {
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// Combines flags and file, and checks the result.
///
/// `read_file` reads the file named by `--config`; `os_hostname` asks the machine for its name.
///
/// # Errors
/// The first step that failed, with everything that is wrong there.
pub fn complete(
    flags: Flags,
    read_file: impl Fn(&Path) -> io::Result<String>,
    os_hostname: impl FnOnce() -> io::Result<String>,
) -> Result<Options, Box<Failure>> {
    let mut notices = Vec::new();
    let fail = |error, notices: &[Notice], logging: Option<&LoggingConfiguration>| {
        Box::new(Failure {
            error,
            notices: notices.to_vec(),
            logging: logging.cloned(),
        })
    };
    let (config, gates) = merge(&flags, read_file, &mut notices)
        .map_err(|error| fail(ConfigError::Complete(error), &notices, None))?;
    validate_logging(&config.logging, &gates)
        .map_err(|error| fail(ConfigError::Logging(error), &notices, None))?;
    let entries = flags.entries().into_iter();
    notices.extend(entries.map(|(name, value)| Notice::Flag { name, value }));
    validate(&config, &gates).map_err(|error| {
        fail(
            ConfigError::Validate(error),
            &notices,
            Some(&config.logging),
        )
    })?;

    let path = |text: &str| Some(PathBuf::from(text)).filter(|_| !text.is_empty());
    Ok(Options {
        node_name: node_name(&config, os_hostname),
        config,
        gates,
        master: flags.master.value.clone(),
        write_config_to: path(&flags.write_config_to.value),
        cleanup: flags.cleanup.value,
        init_only: flags.init_only.value,
        manifests: path(&flags.manifests.value),
        dry_run: flags.dry_run.value,
        admin_socket: path(&flags.admin_socket.value),
        ui: flags.ui.value,
        sync_pace: flags.sync_pace.value,
        config_file: path(&flags.config.value),
        notices,
        flags,
    })
}

/// The step called "complete": nothing is checked here that validation could check.
fn merge(
    flags: &Flags,
    read_file: impl Fn(&Path) -> io::Result<String>,
    notices: &mut Vec<Notice>,
) -> Result<(Config, Gates), CompleteError> {
    let mut config = if flags.config.value.is_empty() {
        from_flags(flags)
    } else {
        let path = Path::new(&flags.config.value);
        let text = read_file(path).map_err(|error| unreadable(path, &error))?;
        let decoded = decode(&text)?;
        notices.extend(decoded.oddities.map(Notice::Lenient));
        let mut config = Config::from(decoded.configuration);
        overlay_logging(flags, &mut config.logging);
        config
    };
    config.userspace_portals = flags.userspace_portals.value;
    config.userspace_transparent = flags.userspace_transparent.value;
    config
        .userspace_handover
        .clone_from(&flags.userspace_handover.value);
    config.userspace_drain = flags.userspace_drain_timeout.value;
    if config.set_platform_defaults() {
        notices.push(Notice::DefaultMode);
    }
    let name = flags.hostname_override.value.as_str();
    if !name.is_empty() {
        let name = name.trim();
        if name.is_empty() {
            return Err(CompleteError::BlankHostnameOverride);
        }
        config.hostname_override = name.to_lowercase();
    }
    let (gates, warnings) = Gates::apply(&config.feature_gates).map_err(CompleteError::Gates)?;
    notices.extend(warnings.into_iter().map(Notice::Gate));
    Ok((config, gates))
}

/// The configuration that flags alone describe.
fn from_flags(flags: &Flags) -> Config {
    let mut config = Config::default();
    let client = &mut config.client_connection;
    client.kubeconfig.clone_from(&flags.kubeconfig.value);
    client
        .content_type
        .clone_from(&flags.kube_api_content_type.value);
    client.qps = flags.kube_api_qps.value;
    client.burst = flags.kube_api_burst.value;
    config
        .feature_gates
        .clone_from(&flags.feature_gates.value.0);
    config.bind_address.clone_from(&flags.bind_address.value.0);
    set_addresses(flags, &mut config);
    config.bind_address_hard_fail = flags.bind_address_hard_fail.value;
    config.enable_profiling = flags.profiling.value;
    config
        .show_hidden_metrics_for_version
        .clone_from(&flags.show_hidden_metrics_for_version.value);
    config.oom_score_adj = flags.oom_score_adj.value;
    config.config_sync_period = flags.config_sync_period.value;
    set_modes(flags, &mut config);
    set_traffic(flags, &mut config);
    set_conntrack(flags, &mut config);
    overlay_logging(flags, &mut config.logging);
    config
}

/// The addresses of the servers, with the deprecated flags for their ports.
fn set_addresses(flags: &Flags, config: &mut Config) {
    // A file cannot say that a server is switched off, so a file that is to be written does not.
    let may_switch_off = flags.write_config_to.value.is_empty();
    let fold = |address: &str, port: i32, default: i32| match port {
        0 if may_switch_off => String::new(),
        0 => with_port(address, default),
        port => with_port(address, port),
    };
    config.healthz_bind_address = fold(
        &flags.healthz_bind_address.value.0,
        flags.healthz_port.value,
        HEALTHZ_PORT,
    );
    config.metrics_bind_address = fold(
        &flags.metrics_bind_address.value.0,
        flags.metrics_port.value,
        METRICS_PORT,
    );
}

fn set_modes(flags: &Flags, config: &mut Config) {
    config.mode.clone_from(&flags.proxy_mode.value.0);
    // The periods called iptables are those of every mode but ipvs.
    let (sync, min_sync) = if config.mode().section == Section::Ipvs {
        (&flags.ipvs_sync_period, &flags.ipvs_min_sync_period)
    } else {
        (&flags.iptables_sync_period, &flags.iptables_min_sync_period)
    };
    if let Some(period) = sync.given() {
        config.sync_period = *period;
    }
    if let Some(period) = min_sync.given() {
        config.min_sync_period = *period;
    }
    config.iptables_masquerade_bit = flags.iptables_masquerade_bit.value;
    config.iptables_localhost_node_ports = flags.iptables_localhost_nodeports.value;
    config.port_range.clone_from(&flags.proxy_port_range.value);
    config.udp_idle_timeout = flags.udp_timeout.given().copied();
    let ipvs = &mut config.ipvs;
    ipvs.scheduler.clone_from(&flags.ipvs_scheduler.value);
    ipvs.exclude_cidrs
        .clone_from(&flags.ipvs_exclude_cidrs.value.0);
    ipvs.strict_arp = flags.ipvs_strict_arp.value;
    ipvs.tcp_timeout = flags.ipvs_tcp_timeout.value;
    ipvs.tcp_fin_timeout = flags.ipvs_tcpfin_timeout.value;
    ipvs.udp_timeout = flags.ipvs_udp_timeout.value;
}

fn set_traffic(flags: &Flags, config: &mut Config) {
    config.masquerade_all = flags.masquerade_all.value;
    config
        .detect_local_mode
        .clone_from(&flags.detect_local_mode.value.0);
    config
        .bridge_interface
        .clone_from(&flags.pod_bridge_interface.value);
    config
        .interface_name_prefix
        .clone_from(&flags.pod_interface_name_prefix.value);
    // An empty text is no network at all, rather than one that cannot be read.
    if !flags.cluster_cidr.value.is_empty() {
        let cidrs = flags.cluster_cidr.value.split(',');
        config.cluster_cidrs = cidrs.map(str::to_owned).collect();
    }
    config
        .node_port_addresses
        .clone_from(&flags.nodeport_addresses.value.0);
}

fn set_conntrack(flags: &Flags, config: &mut Config) {
    let conntrack = &mut config.conntrack;
    conntrack.max_per_core = flags.conntrack_max_per_core.value;
    conntrack.min = flags.conntrack_min.value;
    conntrack.tcp_established_timeout = flags.conntrack_tcp_timeout_established.value;
    conntrack.tcp_close_wait_timeout = flags.conntrack_tcp_timeout_close_wait.value;
    conntrack.tcp_be_liberal = flags.conntrack_tcp_be_liberal.value;
    conntrack.udp_timeout = flags.conntrack_udp_timeout.value;
    conntrack.udp_stream_timeout = flags.conntrack_udp_timeout_stream.value;
}

/// Logging flags that were given beat the file; the others leave it alone.
fn overlay_logging(flags: &Flags, logging: &mut LoggingConfiguration) {
    if let Some(format) = flags.logging_format.given() {
        logging.format.clone_from(format);
    }
    if let Some(duration) = flags.log_flush_frequency.given() {
        logging.flush_frequency = FlushFrequency {
            duration: *duration,
            as_integer: false,
        };
    }
    if let Some(level) = flags.v.given() {
        logging.verbosity = level.0;
    }
    // The first pattern that matches counts, so flags stand before the file.
    logging
        .vmodule
        .splice(0..0, flags.vmodule.value.0.iter().cloned());
    let (text, json) = (&mut logging.options.text, &mut logging.options.json);
    for (routing, split, size) in [
        (
            text,
            &flags.log_text_split_stream,
            &flags.log_text_info_buffer_size,
        ),
        (
            json,
            &flags.log_json_split_stream,
            &flags.log_json_info_buffer_size,
        ),
    ] {
        if let Some(split) = split.given() {
            routing.split_stream = *split;
        }
        if let Some(size) = size.given() {
            routing.info_buffer_size = *size;
        }
    }
}

/// A node without a name cannot proxy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeNameError {
    /// The configured or the machine's name is blank.
    #[error("empty hostname is invalid")]
    Blank,
    /// The machine did not tell its name.
    #[error("couldn't determine hostname: {0}")]
    Unknown(String),
}

/// The configured name, else the machine's; trimmed and in lower case.
fn node_name(
    config: &Config,
    os_hostname: impl FnOnce() -> io::Result<String>,
) -> Result<String, NodeNameError> {
    let name = match config.hostname_override.as_str() {
        "" => os_hostname().map_err(|error| NodeNameError::Unknown(reason(&error)))?,
        name => name.to_owned(),
    };
    match name.trim() {
        "" => Err(NodeNameError::Blank),
        name => Ok(name.to_lowercase()),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> CompleteError {
    let operation = match error.kind() {
        io::ErrorKind::IsADirectory | io::ErrorKind::InvalidData => "read",
        _ => "open",
    };
    CompleteError::Read {
        operation,
        path: path.to_owned(),
        reason: reason(error),
    }
}

/// The kernel's words as Go prints them: without a number, in lower case.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut characters = text.chars();
    match characters.next() {
        Some(first) => first.to_lowercase().chain(characters).collect(),
        None => error.kind().to_string(),
    }
}

#[cfg(test)]
mod tests;
