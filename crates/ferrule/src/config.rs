//! What the administrator wants: from flags and a file to one [`Config`].
//!
//! In: the command line and the text of the file it names. Out: [`options::Options`] with the
//! effective, validated [`Config`], or the message that ends the program. Nothing is opened,
//! logged or applied here; files come in through a function.
//!
//! ```text
//! flags ──────────────┐
//!                     ├─► options ─► gates ─► validate ─► Config ─► settings, encode, reload
//! file ─► v1alpha1 ───┘
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ferrule_core::facts::{DetectLocal, NodePortAddresses, Settings};
use ferrule_core::model::{parse_cidr, parse_ip};
use ferrule_dataplane::userspace::PortalsBy;
use ferrule_dataplane::userspace::relay::{self, UdpIdle};
use ferrule_dataplane::{iptables, ipvs, nftables, userspace};
use ipnet::IpNet;

pub mod encode;
pub mod flags;
pub mod gates;
pub mod go;
pub mod options;
pub mod port_range;
pub mod reload;
pub mod v1alpha1;
pub mod validate;

use crate::modes::{self, Mode, Section};
use gates::{Gate, Gates};
use go::{GoDuration, split_host_port};
use v1alpha1::{
    ClientConnectionConfiguration, KubeProxyConfiguration, KubeProxyWinkernelConfiguration,
    LoggingConfiguration,
};

/// The effective configuration.
///
/// Addresses and networks are texts as they were written, because they are written back so; the
/// methods give their meaning once [`validate`] has nothing to say against them.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    clippy::struct_field_names,
    reason = "settings are independent of each other and have the names people write"
)]
pub struct Config {
    /// Feature gates as they were given; [`Gates`] has their meaning.
    pub feature_gates: BTreeMap<String, bool>,
    /// How to talk to the API server.
    pub client_connection: ClientConnectionConfiguration,
    /// How to log.
    pub logging: LoggingConfiguration,
    /// The name of the Node, where it is not the machine's.
    pub hostname_override: String,
    /// Overrides the node's address; nothing is bound to it.
    pub bind_address: String,
    /// Where `/healthz` answers; empty for nowhere.
    pub healthz_bind_address: String,
    /// Where `/metrics` answers.
    pub metrics_bind_address: String,
    /// Whether failing to bind one of these ends the program.
    pub bind_address_hard_fail: bool,
    /// Whether `/debug` answers.
    pub enable_profiling: bool,
    /// Metrics hidden since this version are shown.
    pub show_hidden_metrics_for_version: String,
    /// `iptables`, `ipvs`, `nftables` or `userspace`.
    pub mode: String,
    /// Sync at least this often.
    pub sync_period: GoDuration,
    /// Sync at most this often.
    pub min_sync_period: GoDuration,
    /// How often everything is listed again.
    pub config_sync_period: GoDuration,
    /// Masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// Bit of the packet mark that asks for masquerading, in modes iptables and ipvs.
    pub iptables_masquerade_bit: i32,
    /// Whether NodePorts answer on localhost, in mode iptables.
    pub iptables_localhost_node_ports: bool,
    /// Bit of the packet mark that asks for masquerading, in mode nftables.
    pub nftables_masquerade_bit: i32,
    /// Settings of mode ipvs.
    pub ipvs: Ipvs,
    /// Settings of Windows, kept only to be written back.
    pub winkernel: KubeProxyWinkernelConfiguration,
    /// Windows only, kept only to be written back.
    pub windows_run_as_service: bool,
    /// How traffic from pods of this node is recognised.
    pub detect_local_mode: String,
    /// The bridge the pods are behind.
    pub bridge_interface: String,
    /// How the names of the pods' interfaces begin.
    pub interface_name_prefix: String,
    /// Networks of the pods.
    pub cluster_cidrs: Vec<String>,
    /// Where NodePorts answer: networks and keywords. `None` and empty mean everywhere.
    pub node_port_addresses: Option<Vec<String>>,
    /// How unlikely the kernel is to kill this process when memory runs out.
    pub oom_score_adj: i32,
    /// What to set about connection tracking.
    pub conntrack: Conntrack,
    /// Ports on which mode userspace listens; nothing means any.
    pub port_range: String,
    /// How long mode userspace remembers an idle UDP client; `None` means as long as connection
    /// tracking does.
    pub udp_idle_timeout: Option<GoDuration>,
    /// What leads to these ports in mode userspace. No file has it.
    pub userspace_portals: PortalsBy,
    /// Endpoints of this node see their clients' addresses in mode userspace, where that is possible.
    /// No file has it.
    pub userspace_transparent: bool,
    /// How long connections may go on in mode userspace when the program is to end. No file has it.
    pub userspace_drain: GoDuration,
    /// The Unix socket over which a successor takes over in mode userspace; empty for none. No file
    /// has it.
    pub userspace_handover: String,
}

/// Settings of mode ipvs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipvs {
    /// How the kernel chooses; empty means `rr`.
    pub scheduler: String,
    /// Virtual servers in these networks are left alone.
    pub exclude_cidrs: Option<Vec<String>>,
    /// Answer ARP only where the address is.
    pub strict_arp: bool,
    /// Of idle TCP connections; zero leaves the kernel's value.
    pub tcp_timeout: GoDuration,
    /// Of TCP connections after a FIN; zero leaves the kernel's value.
    pub tcp_fin_timeout: GoDuration,
    /// Of UDP packets; zero leaves the kernel's value.
    pub udp_timeout: GoDuration,
}

impl Ipvs {
    /// Networks whose virtual servers are left alone.
    pub fn excluded(&self) -> Vec<IpNet> {
        let cidrs = self.exclude_cidrs.iter().flatten();
        cidrs.filter_map(|text| parse_cidr(text)).collect()
    }

    /// Timeouts of the kernel, in whole seconds.
    pub fn timeouts(&self) -> ipvs::Timeouts {
        let seconds = |timeout: GoDuration| {
            let seconds = timeout.to_std().as_secs();
            u32::try_from(seconds).unwrap_or(u32::MAX)
        };
        ipvs::Timeouts {
            tcp: seconds(self.tcp_timeout),
            tcp_fin: seconds(self.tcp_fin_timeout),
            udp: seconds(self.udp_timeout),
        }
    }
}

/// What to set about connection tracking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conntrack {
    /// Entries per CPU; zero leaves the limit alone.
    pub max_per_core: i32,
    /// Entries at least.
    pub min: i32,
    /// Of idle established TCP connections; zero leaves it alone.
    pub tcp_established_timeout: GoDuration,
    /// Of TCP connections in `CLOSE_WAIT`; zero leaves it alone.
    pub tcp_close_wait_timeout: GoDuration,
    /// Let packets outside the window pass.
    pub tcp_be_liberal: bool,
    /// Of UDP; zero leaves it alone.
    pub udp_timeout: GoDuration,
    /// Of UDP with answers; zero leaves it alone.
    pub udp_stream_timeout: GoDuration,
}

/// How long connections go on unless configured otherwise: less than the time that Kubernetes gives
/// a Pod to end.
pub const USERSPACE_DRAIN: GoDuration = GoDuration::from_secs(25);

impl Default for Config {
    /// What a file without settings means, before [`Config::set_platform_defaults`].
    fn default() -> Self {
        let mut file = KubeProxyConfiguration::default();
        file.set_defaults();
        file.into()
    }
}

impl Config {
    /// Fills in what depends on the operating system. Says whether the mode was left to us.
    pub fn set_platform_defaults(&mut self) -> bool {
        let blank = self.mode.is_empty();
        if blank {
            modes::DEFAULT.name.clone_into(&mut self.mode);
        }
        let anywhere = self.node_port_addresses.as_ref().is_none_or(Vec::is_empty);
        let instead = self.mode().node_port_addresses;
        if anywhere && !instead.is_empty() {
            let instead = instead.iter().map(|&entry| entry.to_owned());
            self.node_port_addresses = Some(instead.collect());
        }
        if self.detect_local_mode.is_empty() {
            "ClusterCIDR".clone_into(&mut self.detect_local_mode);
        }
        blank
    }

    /// The mode. Words that name none are refused by validation.
    pub fn mode(&self) -> &'static Mode {
        modes::find(&self.mode).unwrap_or(modes::DEFAULT)
    }

    /// Where the health server listens; `None` when it is switched off.
    pub fn healthz_address(&self) -> Option<SocketAddr> {
        socket_address(&self.healthz_bind_address)
    }

    /// Where the metrics server listens.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        socket_address(&self.metrics_bind_address)
    }

    /// The bit of the packet mark that asks for masquerading in the chosen mode.
    pub fn masquerade_bit(&self) -> i32 {
        match self.mode().section {
            Section::Nftables => self.nftables_masquerade_bit,
            Section::Iptables | Section::Ipvs => self.iptables_masquerade_bit,
        }
    }

    /// What the rules depend on in mode nftables, which must be the chosen one.
    pub fn nftables_options(&self) -> nftables::Options {
        nftables::Options {
            // Validation keeps the bit below 32.
            mark: 1 << (self.masquerade_bit() & 31),
            ..nftables::Options::default()
        }
    }

    /// What the rules depend on in mode iptables, which must be the chosen one.
    pub fn iptables_options(&self) -> iptables::Options {
        iptables::Options {
            mark: 1 << (self.masquerade_bit() & 31),
            localhost_node_ports: self.iptables_localhost_node_ports,
        }
    }

    /// What mode ipvs depends on, which must be the chosen one.
    pub fn ipvs_options(&self) -> ipvs::Options {
        let scheduler = match self.ipvs.scheduler.as_str() {
            "" => "rr",
            name => name,
        };
        ipvs::Options {
            mark: 1 << (self.masquerade_bit() & 31),
            scheduler: scheduler.into(),
            excluded: self.ipvs.excluded(),
        }
    }

    /// What mode userspace needs to know, which must be the chosen one.
    pub fn userspace_options(&self) -> userspace::Options {
        let udp_idle = self.udp_idle_timeout.map(GoDuration::to_std);
        let defaults = userspace::Options::default();
        userspace::Options {
            bind: self.bind_ip(),
            mark: 1 << (self.masquerade_bit() & 31),
            localhost_node_ports: self.iptables_localhost_node_ports,
            portals: self.userspace_portals,
            transparent: self.userspace_transparent,
            handover: Some(&self.userspace_handover)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            relay: relay::Options {
                // Validation has read it before.
                proxy_ports: port_range::parse(&self.port_range).ok().flatten(),
                udp_idle: udp_idle.map_or_else(UdpIdle::default, UdpIdle::always),
                ..defaults.relay
            },
        }
    }

    /// The address that overrides the node's own; `None` while it is unspecified.
    pub fn bind_ip(&self) -> Option<IpAddr> {
        parse_ip(&self.bind_address).filter(|ip| !ip.is_unspecified())
    }

    /// How traffic from pods of this node is recognised.
    pub fn detect_local(&self) -> DetectLocal {
        match self.detect_local_mode.as_str() {
            "NodeCIDR" => DetectLocal::NodeCidr,
            "BridgeInterface" => {
                DetectLocal::BridgeInterface(self.bridge_interface.as_str().into())
            }
            "InterfaceNamePrefix" => {
                DetectLocal::InterfaceNamePrefix(self.interface_name_prefix.as_str().into())
            }
            _ => DetectLocal::ClusterCidr(
                self.cluster_cidrs
                    .iter()
                    .filter_map(|text| parse_cidr(text))
                    .collect(),
            ),
        }
    }

    /// Where NodePorts answer.
    pub fn node_ports(&self) -> NodePortAddresses {
        let entries = self.node_port_addresses.as_deref().unwrap_or_default();
        NodePortAddresses::parse(entries).unwrap_or_default()
    }

    /// The part of the configuration that decides what Services mean.
    pub fn settings(&self, gates: &Gates) -> Settings {
        Settings {
            masquerade_all: self.masquerade_all,
            allow_external_ips: gates.is_on(Gate::AllowServiceExternalIPs),
            detect_local: self.detect_local(),
            node_port_addresses: self.node_ports(),
            bind_address: self.bind_ip(),
            connections: self.mode().connections,
        }
    }
}

fn socket_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = split_host_port(text).ok()?;
    Some(SocketAddr::new(parse_ip(host)?, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(change: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config::default();
        config.set_platform_defaults();
        change(&mut config);
        config
    }

    #[test]
    fn defaults_are_open_to_all_node_addresses_and_know_no_pods() {
        let settings = config(|_| ()).settings(&Gates::default());
        assert_eq!(settings, Settings::default());
    }

    #[test]
    fn settings_carry_what_decides_meaning() {
        let (gates, _) =
            Gates::apply(&[("AllowServiceExternalIPs".to_owned(), false)].into()).unwrap();
        let settings = config(|config| {
            config.masquerade_all = true;
            config.bind_address = "010.0.0.1".to_owned();
            config.cluster_cidrs = vec!["10.0.0.1/8".to_owned(), "fd00::/48".to_owned()];
            config.node_port_addresses = Some(vec!["primary".to_owned(), "localhost".to_owned()]);
        })
        .settings(&gates);
        assert!(settings.masquerade_all && !settings.allow_external_ips);
        assert_eq!(settings.bind_address.unwrap().to_string(), "10.0.0.1");
        let DetectLocal::ClusterCidr(nets) = settings.detect_local else {
            panic!("not by network");
        };
        assert_eq!(nets[0].to_string(), "10.0.0.0/8");
        assert_eq!(
            settings.node_port_addresses,
            NodePortAddresses::parse(&["primary", "localhost"]).unwrap()
        );
    }

    #[test]
    fn pods_are_recognised_in_the_configured_way() {
        let by = |mode: &str| {
            config(|config| {
                config.detect_local_mode = mode.to_owned();
                config.bridge_interface = "cbr0".to_owned();
                config.interface_name_prefix = "veth".to_owned();
            })
            .detect_local()
        };
        assert_eq!(by("NodeCIDR"), DetectLocal::NodeCidr);
        assert_eq!(
            by("BridgeInterface"),
            DetectLocal::BridgeInterface("cbr0".into())
        );
        assert_eq!(
            by("InterfaceNamePrefix"),
            DetectLocal::InterfaceNamePrefix("veth".into())
        );
    }

    #[test]
    fn addresses_have_a_meaning_once_validated() {
        let config = config(|config| {
            config.healthz_bind_address = String::new();
            config.metrics_bind_address = "[::1]:10249".to_owned();
            config.nftables_masquerade_bit = 7;
            config.mode = "nftables".to_owned();
        });
        assert_eq!(config.healthz_address(), None);
        assert_eq!(config.metrics_address(), "[::1]:10249".parse().ok());
        assert_eq!(config.masquerade_bit(), 7);
        assert_eq!(config.mode().name, "nftables");
    }
}
