//! Every rule with its exact text, and what is accepted on purpose.

use ferrule_dataplane::userspace::PortalsBy;

use super::*;
use crate::config::v1alpha1::{VModuleItem, decode};

/// A file with these lines below its kind, as the program would take it.
fn config(lines: &str) -> Config {
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{lines}\n"
    );
    let mut config = Config::from(decode(&text).unwrap().configuration);
    config.set_platform_defaults();
    config
}

fn reported(config: &Config) -> String {
    let (gates, _) = Gates::apply(&config.feature_gates).unwrap();
    validate(config, &gates).map_or_else(|e| e.to_string(), |()| String::new())
}

/// `P.` stands for the root of all paths.
fn assert_told(lines: &str, expected: &str) {
    let expected = expected.replace("P.", "KubeProxyConfiguration.");
    assert_eq!(reported(&config(lines)), expected, "{lines}");
}

#[test]
fn core_028_every_rule_fails_with_its_field_and_text() {
    let range = "must be within the range [0, 31]";
    let not_negative = "must be greater than or equal to 0";
    let conntrack = "P.KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration";
    let mode = "must be iptables, ipvs, nftables, userspace or blank (blank means the best-available proxy \
                [currently iptables])";
    let pair = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, \
                fde4:8dba:82e1::/48]";
    let block = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
    let node_port = "must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'";
    let cases: &[(&str, String)] = &[
        // V2
        ("iptables: {masqueradeBit: 32}", format!("P.KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: 32: {range}")),
        ("iptables: {masqueradeBit: -1}\nmode: nftables", format!("P.KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: -1: {range}")),
        // V3 to V6
        ("mode: ipvs\nipvs: {tcpTimeout: -1s}", format!("P.KubeProxyIPVSConfiguration.TCPTimeout: Invalid value: \"-1s\": {not_negative}")),
        ("mode: ipvs\nipvs: {tcpFinTimeout: -1s}", format!("P.KubeProxyIPVSConfiguration.TCPFinTimeout: Invalid value: \"-1s\": {not_negative}")),
        ("mode: ipvs\nipvs: {udpTimeout: -1s}", format!("P.KubeProxyIPVSConfiguration.UDPTimeout: Invalid value: \"-1s\": {not_negative}")),
        ("mode: ipvs\nipvs: {excludeCIDRs: [bad]}", "P.KubeProxyIPVSConfiguration.ExcludeCidrs[0]: Invalid value: \"bad\": must be a valid CIDR".to_owned()),
        ("ipvs: {excludeCIDRs: [bad], tcpTimeout: -1s}", String::new()),
        // V7
        ("mode: nftables\nnftables: {masqueradeBit: 32}", format!("P.KubeProxyNFTablesConfiguration.MasqueradeBit: Invalid value: 32: {range}")),
        ("nftables: {masqueradeBit: 32}", String::new()),
        // V8 to V14
        ("conntrack: {maxPerCore: -1}", format!("{conntrack}.MaxPerCore: Invalid value: -1: {not_negative}")),
        ("conntrack: {min: -1}", format!("{conntrack}.Min: Invalid value: -1: {not_negative}")),
        ("conntrack: {tcpEstablishedTimeout: -1s}", format!("{conntrack}.TCPEstablishedTimeout: Invalid value: \"-1s\": {not_negative}")),
        ("conntrack: {tcpCloseWaitTimeout: -1s}", format!("{conntrack}.TCPCloseWaitTimeout: Invalid value: \"-1s\": {not_negative}")),
        ("conntrack: {udpTimeout: -1s}", format!("{conntrack}.UDPTimeout: Invalid value: \"-1s\": {not_negative}")),
        ("conntrack: {udpStreamTimeout: -1s}", format!("{conntrack}.UDPStreamTimeout: Invalid value: \"-1s\": {not_negative}")),
        ("oomScoreAdj: 1001", "P.KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: 1001: must be within the range [-1000, 1000]".to_owned()),
        // V15
        ("mode: foo", format!("P.Mode.ProxyMode: Invalid value: \"foo\": {mode}")),
        ("mode: IPTables", format!("P.Mode.ProxyMode: Invalid value: \"IPTables\": {mode}")),
        ("mode: kernelspace", format!("P.Mode.ProxyMode: Invalid value: \"kernelspace\": {mode}")),
        // V16 to V20
        ("clientConnection: {burst: -1}", format!("P.ClientConnection.Burst: Invalid value: -1: {not_negative}")),
        ("configSyncPeriod: -1s", "P.ConfigSyncPeriod: Invalid value: \"-1s\": must be greater than 0".to_owned()),
        ("iptables: {syncPeriod: -1s}", "[P.SyncPeriod: Invalid value: \"-1s\": must be greater than 0, P.SyncPeriod: Invalid value: \"1s\": must be greater than or equal to P.MinSyncPeriod]".to_owned()),
        ("iptables: {minSyncPeriod: -1s}", format!("P.MinSyncPeriod: Invalid value: \"-1s\": {not_negative}")),
        // V21
        ("bindAddress: foo", "P.BindAddress: Invalid value: \"foo\": not a valid textual representation of an IP address".to_owned()),
        // V22 to V25
        ("healthzBindAddress: foo", "P.HealthzBindAddress: Invalid value: \"foo\": must be IP:port".to_owned()),
        ("healthzBindAddress: '[fd00::5]'", "P.HealthzBindAddress: Invalid value: \"[fd00::5]\": must be IP:port".to_owned()),
        ("healthzBindAddress: localhost:10256", "P.HealthzBindAddress: Invalid value: \"localhost\": must be a valid IP".to_owned()),
        ("healthzBindAddress: 1.2.3.4:0", "P.HealthzBindAddress: Invalid value: \"0\": must be a valid port".to_owned()),
        ("healthzBindAddress: 1.2.3.4:65536", "P.HealthzBindAddress: Invalid value: \"65536\": must be a valid port".to_owned()),
        ("healthzBindAddress: 1.2.3.4:http", "P.HealthzBindAddress: Invalid value: \"http\": must be a valid port".to_owned()),
        ("metricsBindAddress: foo", "P.MetricsBindAddress: Invalid value: \"foo\": must be IP:port".to_owned()),
        ("metricsBindAddress: localhost:10249", "P.MetricsBindAddress: Invalid value: \"localhost\": must be a valid IP".to_owned()),
        ("metricsBindAddress: 1.2.3.4:0", "P.MetricsBindAddress: Invalid value: \"0\": must be a valid port".to_owned()),
        // V27
        ("nodePortAddresses: [10.0.0.1]", format!("P.NodePortAddresses[0]: Invalid value: \"10.0.0.1\": {node_port}")),
        ("nodePortAddresses: [primary, bad]", format!("P.NodePortAddresses[1]: Invalid value: \"bad\": {node_port}")),
        // V29 to V31
        ("detectLocalMode: foo", "P.DetectLocalMode: Unsupported value: \"foo\": supported values: \"ClusterCIDR\", \"NodeCIDR\", \"BridgeInterface\", \"InterfaceNamePrefix\", \"\"".to_owned()),
        ("detectLocalMode: BridgeInterface", "P.DetectLocalConfiguration.InterfaceName: Invalid value: \"\": must not be empty".to_owned()),
        ("detectLocalMode: InterfaceNamePrefix", "P.DetectLocalConfiguration.InterfacePrefix: Invalid value: \"\": must not be empty".to_owned()),
        // V32 to V34
        ("clusterCIDR: 10.0.0.0/8,11.0.0.0/8,fd00::/48", format!("P.DetectLocalConfiguration.ClusterCIDRs: Invalid value: [\"10.0.0.0/8\",\"11.0.0.0/8\",\"fd00::/48\"]: {pair}")),
        ("clusterCIDR: 10.0.0.0/8,11.0.0.0/8", format!("P.DetectLocalConfiguration.ClusterCIDRs: Invalid value: [\"10.0.0.0/8\",\"11.0.0.0/8\"]: {pair}")),
        ("clusterCIDR: 10.0.0.0", format!("P.DetectLocalConfiguration.ClusterCIDRs[0]: Invalid value: \"10.0.0.0\": {block}")),
        ("clusterCIDR: '10.0.0.0/8, fd00::/48'", format!("P.DetectLocalConfiguration.ClusterCIDRs[1]: Invalid value: \" fd00::/48\": {block}")),
    ];
    for (lines, expected) in cases {
        assert_told(lines, expected);
    }
}

#[test]
fn core_028_all_violations_are_told_in_the_order_of_the_rules() {
    assert_told(
        "mode: foo\noomScoreAdj: 1001\nbindAddress: foo",
        "[P.KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: 1001: must be within the \
         range [-1000, 1000], P.Mode.ProxyMode: Invalid value: \"foo\": must be iptables, ipvs, \
         nftables, userspace or blank (blank means the best-available proxy [currently iptables]), \
         P.BindAddress: Invalid value: \"foo\": not a valid textual representation of an IP \
         address]",
    );
}

#[test]
fn core_029_a_minimum_above_the_period_is_told_under_the_period() {
    assert_told(
        "iptables: {syncPeriod: 5s, minSyncPeriod: 10s}",
        "P.SyncPeriod: Invalid value: \"10s\": must be greater than or equal to P.MinSyncPeriod",
    );
}

#[test]
fn core_030_keywords_mix_with_networks_but_not_with_themselves() {
    for lines in [
        "nodePortAddresses: [primary]",
        "nodePortAddresses: [primary, 10.0.0.0/8]",
        "nodePortAddresses: [10.0.0.0/8, primary, localhost, all, 'fd00::/8']",
    ] {
        assert_told(lines, "");
    }
    assert_told(
        "nodePortAddresses: [primary, 10.0.0.0/8, primary, all, all]",
        "[P.NodePortAddresses[2]: Duplicate value: \"primary\", P.NodePortAddresses[4]: Duplicate \
         value: \"all\"]",
    );
}

#[test]
fn core_032_hidden_metrics_go_back_one_version() {
    assert_told("showHiddenMetricsForVersion: '1.35'", "");
    assert_told(
        "showHiddenMetricsForVersion: '1.34'",
        "P.ShowHiddenMetricsForVersion: Invalid value: \"1.34\": invalid \
         showHiddenMetricsForVersion: showHiddenMetricsForVersion: Invalid value: \"1.34\": must \
         be omitted or have the value '1.35'; only the previous minor version is allowed",
    );
}

#[test]
fn what_kube_proxy_accepts_is_accepted() {
    for lines in [
        "configSyncPeriod: 0s",
        "mode: ipvs\nipvs: {syncPeriod: 0s}",
        "metricsBindAddress: ''",
        "bindAddress: 010.0.0.1",
        "clusterCIDR: 10.1.2.3/8",
        "clusterCIDR: garbage\ndetectLocalMode: NodeCIDR",
        "hostnameOverride: '  '",
        "clientConnection: {qps: -1}",
        "featureGates: {AllAlpha: true}",
        "mode: ipvs\nipvs: {syncPeriod: 3h, minSyncPeriod: 2h, scheduler: nonsense}",
    ] {
        assert_told(lines, "");
    }
}

#[test]
fn a_rest_longer_than_the_full_sync_is_refused_instead_of_crashing() {
    assert_told(
        "iptables: {syncPeriod: 3h, minSyncPeriod: 2h}",
        "P.MinSyncPeriod: Invalid value: \"2h0m0s\": must not be greater than 1h0m0s in mode \
         iptables, which syncs everything at least that often",
    );
    assert_told(
        "mode: nftables\nnftables: {syncPeriod: 3h, minSyncPeriod: 1h}",
        "",
    );
}

#[test]
fn ipvs_can_be_gated_off_as_in_the_next_release() {
    assert_told(
        "mode: ipvs\nfeatureGates: {KubeProxyIPVS: false}",
        "P.Mode.ProxyMode: Invalid value: \"ipvs\": must be iptables, nftables, userspace or blank \
         (blank means the best-available proxy [currently iptables])",
    );
}

#[test]
fn usp_001_mode_userspace_is_accepted() {
    assert_told("mode: userspace", "");
    assert_eq!(config("mode: userspace").mode().name, "userspace");
}

#[test]
fn usp_002_ports_and_idle_time_are_checked_where_they_count() {
    for (lines, expected) in [
        ("portRange: 40000+10", ""),
        ("udpIdleTimeout: 250ms", ""),
        (
            "portRange: 2-1",
            "P.PortRange: Invalid value: \"2-1\": must be a valid port range (e.g. 300-2000)",
        ),
        (
            "udpIdleTimeout: 0s",
            "P.UDPIdleTimeout: Invalid value: \"0s\": must be greater than 0",
        ),
        (
            "udpIdleTimeout: -1s",
            "P.UDPIdleTimeout: Invalid value: \"-1s\": must be greater than 0",
        ),
    ] {
        assert_told(&format!("mode: userspace\n{lines}"), expected);
        // kube-proxy ignores them by now.
        assert_told(lines, "");
    }
}

#[test]
fn usp_003_nobody_can_be_served_on_loopback_alone() {
    for address in ["127.0.0.1", "::1"] {
        assert_told(
            &format!("mode: userspace\nbindAddress: '{address}'"),
            &format!(
                "P.BindAddress: Invalid value: \"{address}\": mode userspace cannot proxy on \
                 localhost"
            ),
        );
        assert_told(&format!("bindAddress: '{address}'"), "");
    }
}

#[test]
fn clients_addresses_take_portals_by_nftables_and_no_successor() {
    let mut config = config("mode: userspace");
    config.userspace_transparent = true;
    assert_eq!(reported(&config), "");
    config.userspace_portals = PortalsBy::Iptables;
    assert_eq!(
        reported(&config),
        "KubeProxyConfiguration.UserspaceTransparent: Invalid value: true: takes \
         --userspace-portals=nftables"
    );
    config.userspace_portals = PortalsBy::Nftables;
    config.userspace_handover = "/run/ferrule/handover.sock".to_owned();
    assert_eq!(
        reported(&config),
        "KubeProxyConfiguration.UserspaceTransparent: Invalid value: true: does not go with \
         --userspace-handover yet"
    );
    config.mode = "nftables".to_owned();
    assert_eq!(reported(&config), "");
}

#[test]
fn core_010_a_metrics_server_without_an_address_is_refused() {
    let mut config = config("");
    config.metrics_bind_address = String::new();
    config.healthz_bind_address = String::new();
    assert_eq!(
        reported(&config),
        "KubeProxyConfiguration.MetricsBindAddress: Invalid value: \"\": must be IP:port"
    );
}

#[test]
fn core_031_logging_options_that_exclude_each_other_are_refused() {
    let off = "Forbidden: Feature LoggingAlphaOptions is disabled";
    let cases: &[(&str, String)] = &[
        ("logging: {flushFrequency: -1s}", "logging.flushFrequency: Invalid value: \"-1s\": Must be greater than zero".to_owned()),
        ("logging: {format: xml}", "logging.format: Invalid value: \"xml\": Unsupported log format".to_owned()),
        ("logging: {format: json}", String::new()),
        ("logging: {format: json}\nfeatureGates: {LoggingBetaOptions: false}", "logging.format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature".to_owned()),
        ("logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}", "logging.vmodule: Forbidden: Only supported for text log format".to_owned()),
        ("logging: {verbosity: 4294967295}", "logging.verbosity: Invalid value: 4294967295: Must be <= 2147483647".to_owned()),
        ("logging: {options: {text: {infoBufferSize: 1Ki}}}", format!("logging.options.text.infoBufferSize: {off}")),
        ("logging: {options: {json: {splitStream: true, infoBufferSize: 1}}}", format!("[logging.options.json.splitStream: {off}, logging.options.json.infoBufferSize: {off}]")),
        ("logging: {options: {text: {splitStream: true, infoBufferSize: 1Ki}}}\nfeatureGates: {LoggingAlphaOptions: true}", String::new()),
    ];
    for (lines, expected) in cases {
        assert_eq!(&logging_told(&config(lines)), expected, "{lines}");
    }
}

fn logging_told(config: &Config) -> String {
    let (gates, _) = Gates::apply(&config.feature_gates).unwrap();
    validate_logging(&config.logging, &gates).map_or_else(|e| e.to_string(), |()| String::new())
}

#[test]
fn every_item_of_vmodule_is_looked_at() {
    let mut config = config("");
    config.logging.vmodule = [("", 1), ("a=b", 1), ("c", u32::MAX)]
        .map(|(pattern, verbosity)| VModuleItem {
            file_pattern: pattern.to_owned(),
            verbosity,
        })
        .to_vec();
    assert_eq!(
        logging_told(&config),
        "[logging.vmodule[0]: Required value: File pattern must not be empty, logging.vmodule[1]: \
         Invalid value: \"a=b\": File pattern must not contain equal sign or comma, \
         logging.vmodule[2]: Invalid value: 4294967295: Must be <= 2147483647]"
    );
}
