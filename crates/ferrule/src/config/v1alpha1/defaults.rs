//! Values for what a file leaves out.
//!
//! For many fields a zero counts as left out, so some values cannot be expressed in a file; that
//! is kube-proxy's rule, and files in use rely on it.

use ferrule_core::model::parse_ip;

use super::{FlushFrequency, KubeProxyConfiguration};
use crate::config::go::{GoDuration, split_host_port};

/// The port of the health server.
pub const HEALTHZ_PORT: i32 = 10256;
/// The port of the metrics server.
pub const METRICS_PORT: i32 = 10249;
/// The bit of the packet mark that asks for masquerading.
const MASQUERADE_BIT: i32 = 14;

impl KubeProxyConfiguration {
    /// Fills in everything that was left out.
    pub fn set_defaults(&mut self) {
        self.set_address_defaults();
        self.set_period_defaults();
        self.iptables.masquerade_bit.get_or_insert(MASQUERADE_BIT);
        self.iptables.localhost_node_ports.get_or_insert(true);
        self.nftables.masquerade_bit.get_or_insert(MASQUERADE_BIT);
        self.oom_score_adj.get_or_insert(-999);

        let conntrack = &mut self.conntrack;
        conntrack.max_per_core.get_or_insert(32 * 1024);
        conntrack.min.get_or_insert(128 * 1024);
        conntrack
            .tcp_established_timeout
            .get_or_insert(GoDuration::from_secs(24 * 3600));
        conntrack
            .tcp_close_wait_timeout
            .get_or_insert(GoDuration::from_secs(3600));

        let client = &mut self.client_connection;
        if client.content_type.is_empty() {
            "application/vnd.kubernetes.protobuf".clone_into(&mut client.content_type);
        }
        if client.qps == 0.0 {
            client.qps = 5.0;
        }
        if client.burst == 0 {
            client.burst = 10;
        }

        let logging = &mut self.logging;
        if logging.format.is_empty() {
            "text".clone_into(&mut logging.format);
        }
        if logging.flush_frequency.duration.is_zero() {
            logging.flush_frequency = FlushFrequency {
                duration: GoDuration::from_secs(5),
                as_integer: false,
            };
        }
    }

    fn set_address_defaults(&mut self) {
        if self.bind_address.is_empty() {
            "0.0.0.0".clone_into(&mut self.bind_address);
        }
        let is_ipv4 = parse_ip(&self.bind_address).is_some_and(|ip| ip.is_ipv4());
        let (healthz, metrics) = if is_ipv4 {
            ("0.0.0.0", "127.0.0.1")
        } else {
            ("::", "::1")
        };
        for (address, host, port) in [
            (&mut self.healthz_bind_address, healthz, HEALTHZ_PORT),
            (&mut self.metrics_bind_address, metrics, METRICS_PORT),
        ] {
            if address.is_empty() {
                host.clone_into(address);
            }
            *address = with_port(address, port);
        }
    }

    fn set_period_defaults(&mut self) {
        const SYNC: GoDuration = GoDuration::from_secs(30);
        const MIN_SYNC: GoDuration = GoDuration::from_secs(1);
        for (period, default) in [
            (&mut self.iptables.sync_period, SYNC),
            (&mut self.iptables.min_sync_period, MIN_SYNC),
            // No minimum for ipvs: there a zero in the file stays zero.
            (&mut self.ipvs.sync_period, SYNC),
            (&mut self.nftables.sync_period, SYNC),
            (&mut self.nftables.min_sync_period, MIN_SYNC),
            (&mut self.config_sync_period, GoDuration::from_secs(15 * 60)),
        ] {
            if period.is_zero() {
                *period = default;
            }
        }
    }
}

/// Appends the port to an address that is just an IP; anything else is left to validation.
pub fn with_port(address: &str, port: i32) -> String {
    if split_host_port(address).is_ok() {
        return address.to_owned();
    }
    match parse_ip(address) {
        None => address.to_owned(),
        Some(_) if address.contains(':') => format!("[{address}]:{port}"),
        Some(_) => format!("{address}:{port}"),
    }
}
