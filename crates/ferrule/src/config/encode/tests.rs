//! The written files byte for byte, and that reading them changes nothing.

use super::*;
use crate::config::flags::parse;
use crate::config::options::{Options, complete};

const IPTABLES: &str = include_str!("testdata/iptables.yaml");
const IPVS: &str = include_str!("testdata/ipvs.yaml");
const NFTABLES: &str = include_str!("testdata/nftables.yaml");

fn options(words: &[&str], file: &str) -> Options {
    let flags = parse(words.iter().copied()).unwrap();
    complete(flags, |_| Ok(file.to_owned()), || Ok("node".to_owned()))
        .unwrap_or_else(|failure| panic!("{words:?}: {}", failure.error))
}

fn written(words: &[&str]) -> String {
    let words: Vec<_> = words
        .iter()
        .copied()
        .chain(["--write-config-to=f"])
        .collect();
    yaml(&options(&words, "").config)
}

/// What is written after reading `file`.
fn again(file: &str) -> String {
    yaml(&options(&["--config=f"], file).config)
}

#[test]
fn core_014_the_default_configuration_is_written_byte_for_byte() {
    assert_eq!(IPTABLES.len(), 1396);
    assert_eq!(written(&[]), IPTABLES);
}

#[test]
fn core_014_writing_wins_over_cleanup() {
    let options = options(&["--write-config-to=f", "--cleanup"], "");
    // Both are reported; the program looks at the first one first.
    assert_eq!(options.write_config_to.unwrap().to_str(), Some("f"));
    assert!(options.cleanup);
}

#[test]
fn core_024_periods_stand_in_the_section_of_the_mode() {
    assert_eq!(written(&["--proxy-mode=ipvs"]), IPVS);
    assert_eq!(written(&["--proxy-mode=nftables"]), NFTABLES);
}

#[test]
fn core_024_masquerade_all_stands_in_the_section_of_the_mode() {
    let nftables = written(&["--proxy-mode=nftables", "--masquerade-all"]);
    assert!(nftables.contains("nftables:\n  masqueradeAll: true\n"));
    assert!(nftables.contains("  localhostNodePorts: true\n  masqueradeAll: false\n"));
    let ipvs = written(&["--proxy-mode=ipvs", "--masquerade-all"]);
    assert!(ipvs.contains("nftables:\n  masqueradeAll: false\n"));
    assert!(ipvs.contains("  localhostNodePorts: true\n  masqueradeAll: true\n"));
}

#[test]
fn core_024_the_range_of_ports_is_always_written_empty() {
    let file = IPTABLES.replace("portRange: \"\"", "portRange: 1000-2000");
    assert_eq!(again(&file), IPTABLES);
}

#[test]
fn reading_a_written_file_and_writing_it_again_changes_nothing() {
    let everything = written(&[
        "--proxy-mode=nftables",
        "--feature-gates=WatchListClient=false,AllAlpha=true,LoggingAlphaOptions=true",
        "--vmodule=proxier=4,sync*=2",
        "--bind-address=::",
        "--metrics-bind-address=::1",
        "--healthz-bind-address=[::]:1",
        "--nodeport-addresses=10.0.0.0/8,localhost",
        "--ipvs-exclude-cidrs=",
        "--hostname-override=1234",
        "--cluster-cidr=10.0.0.0/8,fd00::/48",
        "--kube-api-qps=0.5",
        "--log-text-split-stream",
        "--log-text-info-buffer-size=4096",
    ]);
    for file in [IPTABLES, IPVS, NFTABLES, &everything] {
        assert_eq!(again(file), file);
    }
}

#[test]
fn optional_keys_take_their_alphabetical_place() {
    let text = written(&[
        "--feature-gates=WatchListClient=false,AllAlpha=true",
        "--vmodule=proxier=4",
        "--bind-address=::",
        "--metrics-bind-address=::1",
        "--nodeport-addresses=10.0.0.0/8,localhost",
        "--ipvs-exclude-cidrs=",
    ]);
    for part in [
        "enableProfiling: false\nfeatureGates:\n  AllAlpha: true\n  WatchListClient: false\n",
        "  verbosity: 0\n  vmodule:\n  - filePattern: proxier\n    verbosity: 4\nmetrics",
        "bindAddress: '::'\n",
        "metricsBindAddress: '[::1]:10249'\n",
        "nodePortAddresses:\n- 10.0.0.0/8\n- localhost\n",
        "  excludeCIDRs: []\n",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn a_split_stream_and_nanoseconds_are_written_as_they_were_read() {
    let file = IPTABLES
        .replace("flushFrequency: 5s", "flushFrequency: 5000000000")
        .replace(
            "enableProfiling: false\n",
            "enableProfiling: false\nfeatureGates:\n  LoggingAlphaOptions: true\n",
        )
        .replace(
            "    text:\n      infoBufferSize: \"0\"\n",
            "    text:\n      infoBufferSize: 2Mi\n      splitStream: true\n",
        )
        + "windowsRunAsService: true\n";
    assert_eq!(again(&file.replace("2Mi", "2048Ki")), {
        // The flag for Windows takes its place before the section.
        let (body, flag) = file.split_at(file.len() - "windowsRunAsService: true\n".len());
        body.replace("winkernel:", &format!("{flag}winkernel:"))
    });
}

#[test]
fn configz_is_compact_json_in_the_order_of_declaration() {
    let expected = include_str!("testdata/configz.json").trim_end();
    let config = options(&[], "").config;
    assert_eq!(json(&config), expected);
    assert_eq!(
        configz(&config),
        format!("{{\"kubeproxy.config.k8s.io\":{expected}}}")
    );
}

#[test]
fn texts_are_quoted_only_where_they_would_be_misread() {
    for (text, written) in [
        ("", "\"\""),
        ("0.0.0.0:10256", "0.0.0.0:10256"),
        ("::", "'::'"),
        ("::1", "::1"),
        ("[::1]:10249", "'[::1]:10249'"),
        ("a b", "a b"),
        ("a: b", "'a: b'"),
        ("a #b", "'a #b'"),
        ("a#b", "a#b"),
        ("-a", "-a"),
        ("- a", "'- a'"),
        ("-", "'-'"),
        ("it's", "it's"),
        ("'", "''''"),
        (" a", "' a'"),
        ("*.log", "'*.log'"),
        ("a,b", "a,b"),
        ("1.36", "\"1.36\""),
        ("123", "\"123\""),
        ("0x1f", "\"0x1f\""),
        ("1e3", "\"1e3\""),
        ("1:30", "\"1:30\""),
        ("12:34:56", "\"12:34:56\""),
        ("fd00:1::/48", "fd00:1::/48"),
        ("2006-01-02", "\"2006-01-02\""),
        ("true", "\"true\""),
        ("off", "\"off\""),
        ("~", "\"~\""),
        ("null", "\"null\""),
        (".inf", "\".inf\""),
        ("infinity", "infinity"),
        ("a\nb", "\"a\\nb\""),
        ("---", "'---'"),
    ] {
        assert_eq!(scalar(text), written, "{text:?}");
    }
}
