//! Between the file form and the form the program works with.
//!
//! The file has a section per mode with periods and masquerading in each; the program has one of
//! each. Which section counts is decided by the mode as it is written, before a blank one gets
//! its default.

use super::{
    API_VERSION, DetectLocalConfiguration, KIND, KubeProxyConfiguration,
    KubeProxyConntrackConfiguration, KubeProxyIPTablesConfiguration, KubeProxyIPVSConfiguration,
    KubeProxyNFTablesConfiguration,
};
use ferrule_dataplane::userspace::PortalsBy;

use crate::config::{Config, Conntrack, Ipvs, USERSPACE_DRAIN};
use crate::modes::{self, Mode, Section};

impl From<KubeProxyConfiguration> for Config {
    /// Expects a file whose defaults are filled in.
    fn from(file: KubeProxyConfiguration) -> Self {
        let (sync_period, min_sync_period, masquerade_all) = match section(&file.mode) {
            Section::Ipvs => (
                file.ipvs.sync_period,
                file.ipvs.min_sync_period,
                file.iptables.masquerade_all,
            ),
            Section::Nftables => (
                file.nftables.sync_period,
                file.nftables.min_sync_period,
                file.nftables.masquerade_all,
            ),
            Section::Iptables => (
                file.iptables.sync_period,
                file.iptables.min_sync_period,
                file.iptables.masquerade_all,
            ),
        };
        let cluster_cidrs = match file.cluster_cidr.as_str() {
            "" => Vec::new(),
            text => text.split(',').map(str::to_owned).collect(),
        };
        Self {
            feature_gates: file.feature_gates,
            client_connection: file.client_connection,
            logging: file.logging,
            hostname_override: file.hostname_override,
            bind_address: file.bind_address,
            healthz_bind_address: file.healthz_bind_address,
            metrics_bind_address: file.metrics_bind_address,
            bind_address_hard_fail: file.bind_address_hard_fail,
            enable_profiling: file.enable_profiling,
            show_hidden_metrics_for_version: file.show_hidden_metrics_for_version,
            mode: file.mode,
            sync_period,
            min_sync_period,
            config_sync_period: file.config_sync_period,
            masquerade_all,
            iptables_masquerade_bit: file.iptables.masquerade_bit.unwrap_or_default(),
            iptables_localhost_node_ports: file.iptables.localhost_node_ports.unwrap_or_default(),
            nftables_masquerade_bit: file.nftables.masquerade_bit.unwrap_or_default(),
            ipvs: Ipvs {
                scheduler: file.ipvs.scheduler,
                exclude_cidrs: file.ipvs.exclude_cidrs,
                strict_arp: file.ipvs.strict_arp,
                tcp_timeout: file.ipvs.tcp_timeout,
                tcp_fin_timeout: file.ipvs.tcp_fin_timeout,
                udp_timeout: file.ipvs.udp_timeout,
            },
            winkernel: file.winkernel,
            windows_run_as_service: file.windows_run_as_service,
            detect_local_mode: file.detect_local_mode,
            bridge_interface: file.detect_local.bridge_interface,
            interface_name_prefix: file.detect_local.interface_name_prefix,
            cluster_cidrs,
            node_port_addresses: file.node_port_addresses,
            oom_score_adj: file.oom_score_adj.unwrap_or_default(),
            conntrack: conntrack_from(&file.conntrack),
            port_range: file.port_range,
            udp_idle_timeout: file.udp_idle_timeout,
            userspace_portals: PortalsBy::default(),
            userspace_transparent: false,
            userspace_drain: USERSPACE_DRAIN,
            userspace_handover: String::new(),
        }
    }
}

/// Where the file has what every mode has. A mode that there is not is refused later.
fn section(mode: &str) -> Section {
    modes::find(mode).unwrap_or(modes::DEFAULT).section
}

fn conntrack_from(file: &KubeProxyConntrackConfiguration) -> Conntrack {
    Conntrack {
        max_per_core: file.max_per_core.unwrap_or_default(),
        min: file.min.unwrap_or_default(),
        tcp_established_timeout: file.tcp_established_timeout.unwrap_or_default(),
        tcp_close_wait_timeout: file.tcp_close_wait_timeout.unwrap_or_default(),
        tcp_be_liberal: file.tcp_be_liberal,
        udp_timeout: file.udp_timeout,
        udp_stream_timeout: file.udp_stream_timeout,
    }
}

impl From<&Config> for KubeProxyConfiguration {
    fn from(config: &Config) -> Self {
        let config = config.clone();
        let relays = modes::find(&config.mode).is_some_and(Mode::relays);
        let mut file = Self {
            kind: KIND.to_owned(),
            api_version: API_VERSION.to_owned(),
            feature_gates: config.feature_gates,
            client_connection: config.client_connection,
            logging: config.logging,
            hostname_override: config.hostname_override,
            bind_address: config.bind_address,
            healthz_bind_address: config.healthz_bind_address,
            metrics_bind_address: config.metrics_bind_address,
            bind_address_hard_fail: config.bind_address_hard_fail,
            enable_profiling: config.enable_profiling,
            show_hidden_metrics_for_version: config.show_hidden_metrics_for_version,
            iptables: KubeProxyIPTablesConfiguration {
                masquerade_bit: Some(config.iptables_masquerade_bit),
                localhost_node_ports: Some(config.iptables_localhost_node_ports),
                ..KubeProxyIPTablesConfiguration::default()
            },
            ipvs: KubeProxyIPVSConfiguration {
                scheduler: config.ipvs.scheduler,
                exclude_cidrs: config.ipvs.exclude_cidrs,
                strict_arp: config.ipvs.strict_arp,
                tcp_timeout: config.ipvs.tcp_timeout,
                tcp_fin_timeout: config.ipvs.tcp_fin_timeout,
                udp_timeout: config.ipvs.udp_timeout,
                ..KubeProxyIPVSConfiguration::default()
            },
            nftables: KubeProxyNFTablesConfiguration {
                masquerade_bit: Some(config.nftables_masquerade_bit),
                ..KubeProxyNFTablesConfiguration::default()
            },
            winkernel: config.winkernel,
            detect_local_mode: config.detect_local_mode,
            detect_local: DetectLocalConfiguration {
                bridge_interface: config.bridge_interface,
                interface_name_prefix: config.interface_name_prefix,
            },
            cluster_cidr: config.cluster_cidrs.join(","),
            node_port_addresses: config.node_port_addresses,
            oom_score_adj: Some(config.oom_score_adj),
            conntrack: conntrack_to(&config.conntrack),
            config_sync_period: config.config_sync_period,
            port_range: if relays {
                config.port_range
            } else {
                String::new()
            },
            udp_idle_timeout: config.udp_idle_timeout.filter(|_| relays),
            windows_run_as_service: config.windows_run_as_service,
            mode: config.mode,
        };
        let (sync, min_sync, masquerade_all) = match section(&file.mode) {
            Section::Ipvs => (
                &mut file.ipvs.sync_period,
                &mut file.ipvs.min_sync_period,
                &mut file.iptables.masquerade_all,
            ),
            Section::Nftables => (
                &mut file.nftables.sync_period,
                &mut file.nftables.min_sync_period,
                &mut file.nftables.masquerade_all,
            ),
            Section::Iptables => (
                &mut file.iptables.sync_period,
                &mut file.iptables.min_sync_period,
                &mut file.iptables.masquerade_all,
            ),
        };
        *sync = config.sync_period;
        *min_sync = config.min_sync_period;
        *masquerade_all = config.masquerade_all;
        file
    }
}

fn conntrack_to(config: &Conntrack) -> KubeProxyConntrackConfiguration {
    KubeProxyConntrackConfiguration {
        max_per_core: Some(config.max_per_core),
        min: Some(config.min),
        tcp_established_timeout: Some(config.tcp_established_timeout),
        tcp_close_wait_timeout: Some(config.tcp_close_wait_timeout),
        tcp_be_liberal: config.tcp_be_liberal,
        udp_timeout: config.udp_timeout,
        udp_stream_timeout: config.udp_stream_timeout,
    }
}
