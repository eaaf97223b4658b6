//! What flags and a file mean together.

use super::*;
use crate::config::flags::parse;
use crate::config::go::GoDuration;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn try_complete(words: &[&str], lines: &str) -> Result<Options, Box<Failure>> {
    let flags = parse(words.iter().copied()).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    let file = format!("{HEAD}{lines}\n");
    complete(
        flags,
        |_| Ok(file.clone()),
        || Ok(" Machine-1 \n".to_owned()),
    )
}

fn options(words: &[&str], lines: &str) -> Options {
    try_complete(words, lines).unwrap_or_else(|failure| panic!("{words:?}: {}", failure.error))
}

fn config(words: &[&str]) -> Config {
    options(words, "").config
}

fn message(words: &[&str], lines: &str) -> String {
    try_complete(words, lines).unwrap_err().error.to_string()
}

#[test]
fn core_004_with_a_file_most_flags_count_for_nothing() {
    let bare = options(&["--config=f"], "mode: nftables").config;
    let crowded = options(
        &[
            "--config=f",
            "--proxy-mode=ipvs",
            "--feature-gates=Nope=true",
            "--ipvs-scheduler=lc",
            "--cluster-cidr=garbage",
            "--iptables-sync-period=-1s",
            "--healthz-port=0",
            "--metrics-port=0",
            "--bind-address=1.2.3.4",
            "--kube-api-burst=-1",
            "--nodeport-addresses=bad",
            "--conntrack-min=-1",
            "--masquerade-all",
        ],
        "mode: nftables",
    );
    assert_eq!(crowded.config, bare);
}

#[test]
fn core_005_logging_flags_the_node_name_and_the_master_count_beside_a_file() {
    let options = options(
        &[
            "--config=f",
            "-v=3",
            "--vmodule=a=1,b=2",
            "--hostname-override=Flag",
            "--master=https://example.org",
            "--log-flush-frequency=7s",
        ],
        "hostnameOverride: file\nlogging:\n  verbosity: 9\n  vmodule: [{filePattern: c, \
         verbosity: 3}]",
    );
    let logging = &options.config.logging;
    assert_eq!(logging.verbosity, 3);
    let patterns: Vec<_> = logging
        .vmodule
        .iter()
        .map(|item| &item.file_pattern)
        .collect();
    assert_eq!(patterns, ["a", "b", "c"]);
    assert_eq!(logging.flush_frequency.duration.to_string(), "7s");
    assert_eq!(options.config.hostname_override, "flag");
    assert_eq!(options.node_name.unwrap(), "flag");
    assert_eq!(options.master, "https://example.org");
    let json = self::options(&["--config=f", "--logging-format=json"], "");
    assert_eq!(json.config.logging.format, "json");
}

#[test]
fn core_006_logging_flags_that_were_not_given_leave_the_file_alone() {
    let lines = "featureGates: {LoggingAlphaOptions: true}\nlogging: {format: json, verbosity: 4, \
                 flushFrequency: 9s, options: {json: {splitStream: true, infoBufferSize: 1Ki}}}";
    let logging = options(&["--config=f"], lines).config.logging;
    assert_eq!((logging.format.as_str(), logging.verbosity), ("json", 4));
    assert_eq!(logging.flush_frequency.duration.to_string(), "9s");
    assert!(logging.options.json.split_stream);
    assert_eq!(logging.options.json.info_buffer_size.value(), 1024);
    let logging = options(&["--config=f", "--log-json-split-stream=false"], lines)
        .config
        .logging;
    assert!(!logging.options.json.split_stream);
}

#[test]
fn core_007_the_node_name_is_trimmed_lowered_and_never_blank() {
    let name = |words: &[&str], lines: &str| options(words, lines).node_name;
    assert_eq!(name(&["--hostname-override= Foo "], "").unwrap(), "foo");
    assert_eq!(
        name(
            &["--config=f", "--hostname-override=A"],
            "hostnameOverride: b"
        )
        .unwrap(),
        "a"
    );
    assert_eq!(
        name(&["--config=f"], "hostnameOverride: ' B '").unwrap(),
        "b"
    );
    assert_eq!(name(&["--hostname-override="], "").unwrap(), "machine-1");
    assert_eq!(
        message(&["--hostname-override= "], ""),
        "failed complete: empty hostname-override is invalid"
    );
    let blank = name(&["--config=f"], "hostnameOverride: '  '").unwrap_err();
    assert_eq!(blank.to_string(), "empty hostname is invalid");
}

#[test]
fn core_008_an_address_without_a_port_gets_the_default_one() {
    let config = config(&[
        "--healthz-bind-address=fd00::5",
        "--metrics-bind-address=1.2.3.4",
    ]);
    assert_eq!(config.healthz_bind_address, "[fd00::5]:10256");
    assert_eq!(config.metrics_bind_address, "1.2.3.4:10249");
    // kube-proxy forgets it when the configuration is to be written, and refuses it then.
    let config = self::config(&["--healthz-bind-address=fd00::5", "--write-config-to=f"]);
    assert_eq!(config.healthz_bind_address, "[fd00::5]:10256");
}

#[test]
fn core_009_a_port_flag_is_not_heard_while_the_address_has_a_port() {
    let config = config(&["--healthz-port=9999", "--metrics-port=8888"]);
    assert_eq!(config.healthz_bind_address, "0.0.0.0:10256");
    assert_eq!(config.metrics_bind_address, "127.0.0.1:10249");
    let config = self::config(&["--healthz-bind-address=127.0.0.1", "--healthz-port=9999"]);
    assert_eq!(config.healthz_bind_address, "127.0.0.1:9999");
}

#[test]
fn core_010_port_zero_switches_health_off_and_is_refused_for_metrics() {
    let config = config(&["--healthz-port=0"]);
    assert_eq!(config.healthz_address(), None);
    assert_eq!(
        message(&["--metrics-port=0"], ""),
        "failed validate: KubeProxyConfiguration.MetricsBindAddress: Invalid value: \"\": must be \
         IP:port"
    );
    let written = self::config(&["--healthz-port=0", "--write-config-to=f"]);
    assert_eq!(written.healthz_bind_address, "0.0.0.0:10256");
}

#[test]
fn core_011_an_empty_address_keeps_the_default() {
    let config = config(&[
        "--metrics-bind-address=",
        "--healthz-bind-address=",
        "--bind-address=",
    ]);
    assert_eq!(config.metrics_bind_address, "127.0.0.1:10249");
    assert_eq!(config.healthz_bind_address, "0.0.0.0:10256");
    assert_eq!(config.bind_address, "0.0.0.0");
}

#[test]
fn an_ipv6_bind_address_flag_leaves_the_servers_where_they_are() {
    let config = config(&["--bind-address=::"]);
    assert_eq!(config.healthz_bind_address, "0.0.0.0:10256");
    assert_eq!(config.metrics_bind_address, "127.0.0.1:10249");
}

#[test]
fn port_zero_in_an_address_passes_the_flag_and_fails_validation() {
    assert_eq!(
        message(&["--healthz-bind-address=1.2.3.4:0"], ""),
        "failed validate: KubeProxyConfiguration.HealthzBindAddress: Invalid value: \"0\": must \
         be a valid port"
    );
}

#[test]
fn core_012_iptables_periods_rule_every_mode_but_ipvs() {
    let seconds = GoDuration::from_secs;
    let periods = |mode: &str| {
        let config = config(&[
            mode,
            "--iptables-sync-period=5s",
            "--iptables-min-sync-period=2s",
            "--ipvs-sync-period=9s",
            "--ipvs-min-sync-period=8s",
        ]);
        (config.sync_period, config.min_sync_period)
    };
    assert_eq!(periods("--proxy-mode=iptables"), (seconds(5), seconds(2)));
    assert_eq!(periods("--proxy-mode="), (seconds(5), seconds(2)));
    assert_eq!(periods("--proxy-mode=nftables"), (seconds(5), seconds(2)));
    assert_eq!(periods("--proxy-mode=ipvs"), (seconds(9), seconds(8)));
    let ipvs = config(&["--proxy-mode=ipvs", "--iptables-sync-period=5s"]);
    assert_eq!(
        (ipvs.sync_period, ipvs.min_sync_period),
        (seconds(30), seconds(1))
    );
}

#[test]
fn core_013_cluster_cidr_takes_one_network_per_family() {
    let cidrs = |flag: &str| config(&[flag]).cluster_cidrs;
    assert_eq!(
        cidrs("--cluster-cidr=10.0.0.0/8,fd00::/48"),
        ["10.0.0.0/8", "fd00::/48"]
    );
    // kube-proxy takes nothing for one network that cannot be read.
    assert_eq!(cidrs("--cluster-cidr="), Vec::<String>::new());
}

#[test]
fn core_018_gates_fail_before_validation() {
    assert_eq!(
        message(&["--feature-gates=Nope=true", "--proxy-mode=foo"], ""),
        "failed complete: unrecognized feature gate: Nope"
    );
    assert_eq!(
        message(&["--config=f"], "featureGates: {NFTablesProxyMode: false}"),
        "failed complete: cannot set feature gate NFTablesProxyMode to false, feature is locked \
         to true"
    );
}

#[test]
fn core_031_logging_fails_before_everything_else() {
    assert_eq!(
        message(
            &["--logging-format=json", "--vmodule=a=1", "--proxy-mode=foo"],
            ""
        ),
        "initialize logging: logging.vmodule: Forbidden: Only supported for text log format"
    );
    for flag in [
        "--log-text-split-stream",
        "--log-json-split-stream",
        "--log-text-info-buffer-size=1",
        "--log-json-info-buffer-size=1Ki",
    ] {
        let message = message(&[flag], "");
        assert!(
            message.starts_with("initialize logging: logging.options."),
            "{message}"
        );
        options(&[flag, "--feature-gates=LoggingAlphaOptions=true"], "");
    }
    // kube-proxy loses this setting of the file without a word.
    let lines = "logging: {options: {text: {splitStream: true}}}";
    assert_eq!(
        message(&["--config=f"], lines),
        "initialize logging: logging.options.text.splitStream: Forbidden: Feature \
         LoggingAlphaOptions is disabled"
    );
}

#[test]
fn core_025_a_lenient_reading_is_noticed() {
    let notices = options(&["--config=f"], "bogus: 1\nmode: iptables").notices;
    let Some(Notice::Lenient(reported)) = notices.first() else {
        panic!("{notices:?}");
    };
    assert_eq!(
        reported.message,
        "strict decoding error: unknown field \"bogus\""
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let failure = |kind: io::ErrorKind, code: i32| {
        let flags = parse(["--config=/etc/x"]).unwrap();
        let error = move || match code {
            0 => io::Error::from(kind),
            code => io::Error::from_raw_os_error(code),
        };
        let outcome = complete(flags, |_| Err(error()), || Ok(String::new()));
        outcome.unwrap_err().error.to_string()
    };
    assert_eq!(
        failure(io::ErrorKind::NotFound, 2),
        "failed complete: open /etc/x: no such file or directory"
    );
    assert_eq!(
        failure(io::ErrorKind::PermissionDenied, 13),
        "failed complete: open /etc/x: permission denied"
    );
    assert_eq!(
        failure(io::ErrorKind::IsADirectory, 21),
        "failed complete: read /etc/x: is a directory"
    );
    let bare = failure(io::ErrorKind::NotFound, 0);
    assert!(bare.starts_with("failed complete: open /etc/x: "), "{bare}");
}

#[test]
fn the_default_mode_and_changed_gates_are_noticed_once() {
    let notices = options(
        &["--feature-gates=AllowServiceExternalIPs=false", "-v=1"],
        "",
    )
    .notices;
    assert_eq!(notices[0], Notice::DefaultMode);
    assert!(matches!(&notices[1], Notice::Gate(gate) if gate.name == "AllowServiceExternalIPs"));
    let flags: Vec<_> = notices[2..].iter().collect();
    assert!(
        flags
            .iter()
            .all(|notice| matches!(notice, Notice::Flag { .. }))
    );
    let v = Notice::Flag {
        name: "v",
        value: "1".to_owned(),
    };
    assert!(flags.contains(&&v));
    let notices = options(&["--proxy-mode=ipvs"], "").notices;
    assert!(matches!(notices[0], Notice::Flag { .. }));
}

#[test]
fn a_failure_brings_what_was_noticed_and_how_to_log_it() {
    let failure = try_complete(&["--logging-format=json", "--oom-score-adj=2000"], "").unwrap_err();
    assert_eq!(failure.notices[0], Notice::DefaultMode);
    assert_eq!(failure.logging.unwrap().format, "json");
    let failure = try_complete(&["--logging-format=xml"], "").unwrap_err();
    assert!(failure.logging.is_none());
}

#[test]
fn ways_of_running_are_passed_on() {
    let options = options(
        &[
            "--cleanup",
            "--init-only",
            "--manifests=m",
            "--dry-run",
            "--config=f",
        ],
        "",
    );
    assert!(options.cleanup && options.init_only && options.dry_run);
    assert_eq!(options.manifests.unwrap().to_str(), Some("m"));
    assert_eq!(options.config_file.unwrap().to_str(), Some("f"));
    assert_eq!(options.write_config_to, None);
}

#[test]
fn a_machine_without_a_name_stops_only_proxying() {
    let flags = parse(["--cleanup"]).unwrap();
    let options = complete(
        flags,
        |_| Ok(String::new()),
        || Err(io::Error::from_raw_os_error(1)),
    )
    .unwrap();
    let error = options.node_name.unwrap_err().to_string();
    assert_eq!(
        error,
        "couldn't determine hostname: operation not permitted"
    );
}
