//! The file form of the configuration: `kubeproxy.config.k8s.io/v1alpha1`.
//!
//! In: the text of a file. Out: a [`KubeProxyConfiguration`] with all defaults filled in, and
//! what was strange about the file. The same types are written by [`super::encode`]; their
//! fields stand in the order in which they are written as JSON. [`convert`] leads to and from
//! [`super::Config`], which is what the program works with.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::go::{GoDuration, Quantity};

mod convert;
mod decode;
mod defaults;
mod document;

pub use decode::{DecodeError, Oddities, decode};
pub(super) use defaults::{HEALTHZ_PORT, METRICS_PORT, with_port};

/// The `apiVersion` of the file.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The `kind` of the file.
pub const KIND: &str = "KubeProxyConfiguration";

/// Everything a file can say.
///
/// An `Option` is a field whose absence differs from its zero value, or a list that may be
/// `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyConfiguration {
    /// Always [`KIND`].
    pub kind: String,
    /// Always [`API_VERSION`].
    pub api_version: String,
    /// Feature gates that are not at their default.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    /// How to talk to the API server.
    pub client_connection: ClientConnectionConfiguration,
    /// How to log.
    pub logging: LoggingConfiguration,
    /// The name of the Node, where it is not the machine's.
    pub hostname_override: String,
    /// Overrides the node's address; nothing is bound to it.
    pub bind_address: String,
    /// Where `/healthz` answers.
    pub healthz_bind_address: String,
    /// Where `/metrics` answers.
    pub metrics_bind_address: String,
    /// Whether failing to bind one of these ends the program.
    pub bind_address_hard_fail: bool,
    /// Whether `/debug` answers.
    pub enable_profiling: bool,
    /// Metrics hidden since this version are shown.
    pub show_hidden_metrics_for_version: String,
    /// `iptables`, `ipvs`, `nftables`, `userspace`; empty for the default.
    pub mode: String,
    /// Settings of mode iptables.
    pub iptables: KubeProxyIPTablesConfiguration,
    /// Settings of mode ipvs.
    pub ipvs: KubeProxyIPVSConfiguration,
    /// Settings of mode nftables.
    pub nftables: KubeProxyNFTablesConfiguration,
    /// Settings of Windows, kept only to be written back.
    pub winkernel: KubeProxyWinkernelConfiguration,
    /// How traffic from pods of this node is recognised.
    pub detect_local_mode: String,
    /// What that mode needs to know.
    pub detect_local: DetectLocalConfiguration,
    /// Networks of the pods, separated by a comma.
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    /// Where NodePorts answer: networks and keywords.
    pub node_port_addresses: Option<Vec<String>>,
    /// How unlikely the kernel is to kill this process when memory runs out.
    pub oom_score_adj: Option<i32>,
    /// What to set about connection tracking.
    pub conntrack: KubeProxyConntrackConfiguration,
    /// How often everything is listed again.
    pub config_sync_period: GoDuration,
    /// Ports on which mode userspace listens; read and dropped in other modes.
    pub port_range: String,
    /// How long mode userspace remembers an idle UDP client. kube-proxy had it up to v1.25.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp_idle_timeout: Option<GoDuration>,
    /// Windows only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub windows_run_as_service: bool,
}

/// How to talk to the API server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientConnectionConfiguration {
    /// Path of a kubeconfig; empty inside the cluster.
    pub kubeconfig: String,
    /// What the server may answer with.
    pub accept_content_types: String,
    /// What is sent to the server.
    pub content_type: String,
    /// Requests per second on average.
    #[serde(serialize_with = "plain_number")]
    pub qps: f32,
    /// Requests at once.
    pub burst: i32,
}

/// How to log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoggingConfiguration {
    /// `text` or `json`.
    pub format: String,
    /// How long lines may wait in a buffer.
    pub flush_frequency: FlushFrequency,
    /// Log verbosity.
    pub verbosity: u32,
    /// Log verbosity of single files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vmodule: Vec<VModuleItem>,
    /// Per format.
    pub options: FormatOptions,
}

/// Log verbosity of files that match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VModuleItem {
    /// Base name of a source file without its suffix, or a glob.
    pub file_pattern: String,
    /// Log verbosity there.
    pub verbosity: u32,
}

/// Options of the formats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FormatOptions {
    /// Of format `text`.
    pub text: OutputRoutingOptions,
    /// Of format `json`.
    pub json: OutputRoutingOptions,
}

/// Which stream lines go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OutputRoutingOptions {
    /// Whether information goes to stdout instead of stderr.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub split_stream: bool,
    /// How much of it may wait in memory.
    pub info_buffer_size: Quantity,
}

/// A duration that may also be written as an integer of nanoseconds, and is written back as it
/// was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushFrequency {
    /// The time.
    pub duration: GoDuration,
    /// Whether it was an integer.
    pub as_integer: bool,
}

/// Settings of mode iptables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyIPTablesConfiguration {
    /// Bit of the packet mark that asks for masquerading; also of mode ipvs.
    pub masquerade_bit: Option<i32>,
    /// Masquerade everything.
    pub masquerade_all: bool,
    /// Whether NodePorts answer on localhost.
    pub localhost_node_ports: Option<bool>,
    /// Sync at least this often.
    pub sync_period: GoDuration,
    /// Sync at most this often.
    pub min_sync_period: GoDuration,
}

/// Settings of mode ipvs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyIPVSConfiguration {
    /// Sync at least this often.
    pub sync_period: GoDuration,
    /// Sync at most this often.
    pub min_sync_period: GoDuration,
    /// How the kernel chooses; empty means `rr`.
    pub scheduler: String,
    /// Virtual servers in these networks are left alone.
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Option<Vec<String>>,
    /// Answer ARP only where the address is.
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    /// Of idle TCP connections.
    pub tcp_timeout: GoDuration,
    /// Of TCP connections after a FIN.
    pub tcp_fin_timeout: GoDuration,
    /// Of UDP packets.
    pub udp_timeout: GoDuration,
}

/// Settings of mode nftables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyNFTablesConfiguration {
    /// Bit of the packet mark that asks for masquerading.
    pub masquerade_bit: Option<i32>,
    /// Masquerade everything.
    pub masquerade_all: bool,
    /// Sync at least this often.
    pub sync_period: GoDuration,
    /// Sync at most this often.
    pub min_sync_period: GoDuration,
}

/// Settings of Windows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyWinkernelConfiguration {
    /// Name of the network.
    pub network_name: String,
    /// Source address of translated traffic.
    pub source_vip: String,
    /// Direct server return.
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    /// Name of the root endpoint.
    pub root_hns_endpoint_name: String,
    /// Whether health checks are forwarded.
    pub forward_health_check_vip: bool,
}

/// What a mode of recognising local traffic needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DetectLocalConfiguration {
    /// The bridge the pods are behind.
    pub bridge_interface: String,
    /// How the names of the pods' interfaces begin.
    pub interface_name_prefix: String,
}

/// What to set about connection tracking.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyConntrackConfiguration {
    /// Entries per CPU; zero leaves the limit alone.
    pub max_per_core: Option<i32>,
    /// Entries at least.
    pub min: Option<i32>,
    /// Of idle established TCP connections; zero leaves it alone.
    pub tcp_established_timeout: Option<GoDuration>,
    /// Of TCP connections in `CLOSE_WAIT`; zero leaves it alone.
    pub tcp_close_wait_timeout: Option<GoDuration>,
    /// Let packets outside the window pass.
    pub tcp_be_liberal: bool,
    /// Of UDP; zero leaves it alone.
    pub udp_timeout: GoDuration,
    /// Of UDP with answers; zero leaves it alone.
    pub udp_stream_timeout: GoDuration,
}

/// Writes `5`, not `5.0`, and `0.1`, not what is left of it after 32 bits.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands every field over by reference"
)]
fn plain_number<S: serde::Serializer>(number: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    let text = number.to_string();
    match text.parse::<i64>() {
        Ok(integer) => serializer.serialize_i64(integer),
        Err(_) => serializer.serialize_f64(text.parse().unwrap_or(f64::from(*number))),
    }
}

impl Serialize for FlushFrequency {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.as_integer {
            serializer.serialize_i64(self.duration.as_nanos())
        } else {
            self.duration.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for FlushFrequency {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrInteger)
    }
}

struct TextOrInteger;

impl serde::de::Visitor<'_> for TextOrInteger {
    type Value = FlushFrequency;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a duration such as 5s, or nanoseconds")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<FlushFrequency, E> {
        let duration = GoDuration::parse(text).map_err(E::custom)?;
        Ok(FlushFrequency {
            duration,
            as_integer: false,
        })
    }

    fn visit_unit<E>(self) -> Result<FlushFrequency, E> {
        Ok(FlushFrequency::default())
    }

    fn visit_i64<E: serde::de::Error>(self, nanos: i64) -> Result<FlushFrequency, E> {
        Ok(FlushFrequency {
            duration: GoDuration::from_nanos(nanos),
            as_integer: true,
        })
    }
}

#[cfg(test)]
mod tests;
