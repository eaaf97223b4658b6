//! What files mean, and what is said about files that are not right.

use super::decode::{Decoded, decode};
use super::*;
use crate::config::Config;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn read(lines: &str) -> Decoded {
    decode(&format!("{HEAD}{lines}\n")).unwrap_or_else(|error| panic!("{lines}: {error}"))
}

fn config(lines: &str) -> Config {
    let decoded = read(lines);
    assert_eq!(decoded.oddities, None, "{lines}");
    let mut config = Config::from(decoded.configuration);
    config.set_platform_defaults();
    config
}

fn fault(text: &str) -> String {
    decode(text).unwrap_err().to_string()
}

#[test]
fn core_019_a_file_without_settings_means_all_defaults() {
    let file = read("").configuration;
    let seconds = GoDuration::from_secs;
    assert_eq!(
        file.client_connection.content_type,
        "application/vnd.kubernetes.protobuf"
    );
    assert!((file.client_connection.qps - 5.0).abs() < f32::EPSILON);
    assert_eq!(file.client_connection.burst, 10);
    assert_eq!(file.logging.format, "text");
    assert_eq!(file.logging.flush_frequency.duration, seconds(5));
    assert_eq!(file.bind_address, "0.0.0.0");
    assert_eq!(file.healthz_bind_address, "0.0.0.0:10256");
    assert_eq!(file.metrics_bind_address, "127.0.0.1:10249");
    assert_eq!(file.mode, "");
    assert_eq!(file.iptables.masquerade_bit, Some(14));
    assert_eq!(file.iptables.localhost_node_ports, Some(true));
    assert_eq!(file.iptables.sync_period, seconds(30));
    assert_eq!(file.iptables.min_sync_period, seconds(1));
    assert_eq!(file.ipvs.sync_period, seconds(30));
    assert_eq!(file.ipvs.min_sync_period, seconds(0));
    assert_eq!(file.nftables.masquerade_bit, Some(14));
    assert_eq!(file.nftables.sync_period, seconds(30));
    assert_eq!(file.nftables.min_sync_period, seconds(1));
    assert_eq!(file.oom_score_adj, Some(-999));
    assert_eq!(file.conntrack.max_per_core, Some(32768));
    assert_eq!(file.conntrack.min, Some(131_072));
    assert_eq!(file.conntrack.tcp_established_timeout, Some(seconds(86400)));
    assert_eq!(file.conntrack.tcp_close_wait_timeout, Some(seconds(3600)));
    assert_eq!(file.config_sync_period, seconds(900));
    assert_eq!(file.node_port_addresses, None);
    // What the program works with is the same whether it comes from here or from flags.
    assert_eq!(Config::from(file), Config::default());
}

#[test]
fn core_020_an_ipv6_bind_address_moves_the_servers_to_ipv6() {
    let config = config("bindAddress: '::'");
    assert_eq!(config.healthz_bind_address, "[::]:10256");
    assert_eq!(config.metrics_bind_address, "[::1]:10249");
}

#[test]
fn core_021_addresses_are_completed_with_their_ports() {
    let config = config("healthzBindAddress: 1.2.3.4\nmetricsBindAddress: fd00::5");
    assert_eq!(config.healthz_bind_address, "1.2.3.4:10256");
    assert_eq!(config.metrics_bind_address, "[fd00::5]:10249");
    let config = self::config("healthzBindAddress: ''\nmetricsBindAddress: '[fd00::5]'");
    assert_eq!(config.healthz_bind_address, "0.0.0.0:10256");
    assert_eq!(config.metrics_bind_address, "[fd00::5]");
}

#[test]
fn core_022_a_minimum_of_zero_is_one_second_except_for_ipvs() {
    for (mode, expected) in [("iptables", 1), ("nftables", 1), ("ipvs", 0)] {
        let config = config(&format!("mode: {mode}\n{mode}: {{minSyncPeriod: 0s}}"));
        assert_eq!(
            config.min_sync_period,
            GoDuration::from_secs(expected),
            "{mode}"
        );
    }
}

#[test]
fn core_023_only_the_section_of_the_mode_counts() {
    let sections = "iptables: {syncPeriod: 11s, minSyncPeriod: 1s, masqueradeAll: true}\n\
                    ipvs: {syncPeriod: 12s, minSyncPeriod: 2s}\n\
                    nftables: {syncPeriod: 13s, minSyncPeriod: 3s}\n";
    for (mode, sync, min_sync, masquerade_all) in [
        ("''", 11, 1, true),
        ("iptables", 11, 1, true),
        ("ipvs", 12, 2, true),
        ("nftables", 13, 3, false),
    ] {
        let config = config(&format!("{sections}mode: {mode}"));
        assert_eq!(config.sync_period, GoDuration::from_secs(sync), "{mode}");
        assert_eq!(
            config.min_sync_period,
            GoDuration::from_secs(min_sync),
            "{mode}"
        );
        assert_eq!(config.masquerade_all, masquerade_all, "{mode}");
    }
}

#[test]
fn core_025_unknown_fields_are_passed_over_and_told_with_their_place() {
    let decoded =
        read("iptables:\n  bogus: 1\n  masqueradeBit: 7\nconntrack: {x: {y: 1}}\nMode: ipvs");
    let reported = decoded.oddities.unwrap();
    assert_eq!(
        reported.message,
        "strict decoding error: unknown field \"Mode\", unknown field \"conntrack.x\", unknown \
         field \"iptables.bogus\""
    );
    assert_eq!(
        reported.places,
        "iptables.bogus: line 4, column 3; conntrack.x: line 6, column 13; Mode: line 7, column 1"
    );
    assert_eq!(decoded.configuration.iptables.masquerade_bit, Some(7));
    assert_eq!(decoded.configuration.mode, "");
}

#[test]
fn core_025_of_repeated_fields_the_last_counts_and_all_are_told() {
    let decoded =
        read("mode: ipvs\nmode: nftables\niptables: {masqueradeAll: true, masqueradeAll: false}");
    let reported = decoded.oddities.unwrap();
    assert_eq!(
        reported.message,
        "strict decoding error: yaml: unmarshal errors:\n  line 4: key \"mode\" already set in \
         map\n  line 5: key \"masqueradeAll\" already set in map"
    );
    assert!(
        reported
            .places
            .starts_with("mode: line 4, column 1; iptables.masqueradeAll: line 5")
    );
    assert_eq!(decoded.configuration.mode, "nftables");
    assert!(!decoded.configuration.iptables.masquerade_all);
}

#[test]
fn core_025_values_of_a_wrong_type_are_fatal_and_say_where() {
    let into = "failed to decode: json: cannot unmarshal";
    for (lines, expected) in [
        (
            "bogus: 1\noomScoreAdj: high",
            format!("{into} string into Go struct field KubeProxyConfiguration.oomScoreAdj of type int32 (line 4, column 14)"),
        ),
        (
            "iptables:\n  masqueradeBit: x",
            format!("{into} string into Go struct field KubeProxyIPTablesConfiguration.iptables.masqueradeBit of type int32 (line 4, column 18)"),
        ),
        (
            "oomScoreAdj: 99999999999",
            format!("{into} number 99999999999 into Go struct field KubeProxyConfiguration.oomScoreAdj of type int32 (line 3, column 14)"),
        ),
        (
            "configSyncPeriod: 5",
            format!("{into} number into Go struct field KubeProxyConfiguration.configSyncPeriod of type string (line 3, column 19)"),
        ),
        (
            "configSyncPeriod: '5'",
            "failed to decode: time: missing unit in duration \"5\" in field configSyncPeriod (line 3, column 19)".to_owned(),
        ),
        (
            "ipvs: {tcpTimeout: 5x}",
            "failed to decode: time: unknown unit \"x\" in duration \"5x\" in field ipvs.tcpTimeout (line 3, column 20)".to_owned(),
        ),
        (
            "nodePortAddresses: primary",
            format!("{into} string into Go struct field KubeProxyConfiguration.nodePortAddresses of type []string (line 3, column 20)"),
        ),
        (
            "nodePortAddresses: [1]",
            format!("{into} number into Go struct field KubeProxyConfiguration.nodePortAddresses of type string (line 3, column 21)"),
        ),
        (
            "enableProfiling: 'true'",
            format!("{into} string into Go struct field KubeProxyConfiguration.enableProfiling of type bool (line 3, column 18)"),
        ),
        (
            "clientConnection: {qps: fast}",
            format!("{into} string into Go struct field ClientConnectionConfiguration.clientConnection.qps of type float32 (line 3, column 25)"),
        ),
        (
            "featureGates: {A: 1}",
            format!("{into} number 1 into Go struct field KubeProxyConfiguration.featureGates of type bool (line 3, column 19)"),
        ),
        (
            "conntrack: 5",
            format!("{into} number 5 into Go struct field KubeProxyConfiguration.conntrack of type KubeProxyConntrackConfiguration (line 3, column 12)"),
        ),
        (
            "logging: {options: {text: {infoBufferSize: 1x}}}",
            "failed to decode: unable to parse quantity's suffix in field logging.options.text.infoBufferSize (line 3, column 44)".to_owned(),
        ),
    ] {
        assert_eq!(fault(&format!("{HEAD}{lines}\n")), expected, "{lines}");
    }
}

#[test]
fn bad_yaml_is_fatal_and_says_where() {
    let message = fault(&format!("{HEAD}mode: [a\n"));
    assert!(
        message.starts_with("failed to decode: yaml: line "),
        "{message}"
    );
    for lines in [
        "mode: 'a\n",
        "mode: a\n\tx: y\n",
        "mode: a\n}\n",
        "mode: a\n  - b: c\n",
    ] {
        let message = fault(&format!("{HEAD}{lines}"));
        let start = "failed to decode: yaml: line ";
        assert!(
            message.starts_with(start) && message.contains("(column "),
            "{message}"
        );
    }
}

#[test]
fn a_file_nested_without_end_is_refused_and_crashes_nothing() {
    for (open, syntax) in [("[", "yaml"), ("{\"a\":", "json")] {
        let message = fault(&format!("{HEAD}x: {}", open.repeat(50_000)));
        assert!(
            message.starts_with("failed to decode: "),
            "{syntax}: {message}"
        );
        assert!(decode(&open.repeat(50_000)).is_err());
    }
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c \
                [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e \
                [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: \
                [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n";
    assert!(decode(&format!("{HEAD}{bomb}")).is_err());
}

#[test]
fn core_026_a_wrong_or_missing_kind_is_fatal() {
    let registered = |kind: &str, version: &str| {
        format!(
            "failed to decode: no kind \"{kind}\" is registered for version \"{version}\" in \
             scheme \"pkg/proxy/apis/config/scheme/scheme.go:29\""
        )
    };
    for (text, expected) in [
        (
            "apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration\n",
            registered("KubeProxyConfiguration", "kubeproxy.config.k8s.io/v1beta1"),
        ),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: Other\n",
            registered("Other", "kubeproxy.config.k8s.io/v1alpha1"),
        ),
        (
            "mode: ipvs\n",
            "failed to decode: Object 'Kind' is missing in 'mode: ipvs\n'".to_owned(),
        ),
        (
            "",
            "failed to decode: Object 'Kind' is missing in ''".to_owned(),
        ),
        (
            "# nothing\n",
            "failed to decode: Object 'Kind' is missing in '# nothing\n'".to_owned(),
        ),
        (
            "kind: KubeProxyConfiguration\n",
            "failed to decode: Object 'apiVersion' is missing in 'kind: KubeProxyConfiguration\n'"
                .to_owned(),
        ),
    ] {
        assert_eq!(fault(text), expected);
    }
    for text in ["- a\n", "just words\n", "kind: 5\n"] {
        let message = fault(text);
        let start = "failed to decode: couldn't get version/kind; json parse error: json: cannot unmarshal ";
        assert!(message.starts_with(start), "{message}");
    }
}

#[test]
fn core_027_nftables_opens_only_the_primary_addresses() {
    let primary = Some(vec!["primary".to_owned()]);
    assert_eq!(config("mode: nftables").node_port_addresses, primary);
    assert_eq!(
        config("mode: nftables\nnodePortAddresses: []").node_port_addresses,
        primary
    );
    assert_eq!(config("mode: iptables").node_port_addresses, None);
    let all = Some(vec!["all".to_owned()]);
    assert_eq!(
        config("mode: nftables\nnodePortAddresses: [all]").node_port_addresses,
        all
    );
}

#[test]
fn only_the_first_document_counts() {
    for rest in ["---\nmode: ipvs\n", "---\n[broken\n", "...\n---\na: b\n"] {
        let text = format!("---\n{HEAD}mode: nftables\n{rest}");
        let decoded = decode(&text).unwrap_or_else(|error| panic!("{rest}: {error}"));
        assert_eq!(decoded.configuration.mode, "nftables", "{rest}");
    }
}

#[test]
fn json_is_read_too_and_nothing_may_follow_it() {
    let json = "{\"kind\": \"KubeProxyConfiguration\",\n\
                \t\"apiVersion\": \"kubeproxy.config.k8s.io/v1alpha1\",\n\
                \t\"mode\": \"ipvs\",\n\t\t\"bogus\": {\"a\": [1, 2.5, null]}, \"mode\": \"nft\\u0061bles\"}\n";
    let decoded = decode(json).unwrap();
    assert_eq!(decoded.configuration.mode, "nftables");
    let reported = decoded.oddities.unwrap();
    assert_eq!(
        reported.message,
        "strict decoding error: duplicate field \"mode\", unknown field \"bogus\""
    );
    assert_eq!(
        reported.places,
        "bogus: line 4, column 3; mode: line 4, column 35"
    );
    let message = fault(&format!("{json}x"));
    let start = "failed to decode: couldn't get version/kind; json parse error: ";
    assert!(message.starts_with(start), "{message}");
    assert!(message.contains("line 5"), "{message}");
}

#[test]
fn nulls_are_fields_left_out() {
    let file = read(
        "mode: null\niptables: null\noomScoreAdj: ~\nconfigSyncPeriod:\nlogging:\n  \
         flushFrequency: null\n  vmodule: null\nfeatureGates:\nnodePortAddresses: null",
    );
    assert_eq!(file, read(""));
}

#[test]
fn logging_may_flush_after_nanoseconds() {
    let logging = read("logging: {flushFrequency: 1500000000}")
        .configuration
        .logging;
    assert_eq!(logging.flush_frequency.duration.to_string(), "1.5s");
    assert!(logging.flush_frequency.as_integer);
    let logging = read("logging: {flushFrequency: 0}").configuration.logging;
    assert_eq!(logging.flush_frequency.duration.to_string(), "5s");
    assert!(!logging.flush_frequency.as_integer);
}

#[test]
fn anchors_and_merges_are_followed() {
    let config = config("iptables: &a\n  masqueradeBit: 5\nnftables: *a\nmode: nftables");
    assert_eq!(config.nftables_masquerade_bit, 5);
}
