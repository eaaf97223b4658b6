//! What is shown, by mode; and that the document lists what is declared.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use ferrule_core::issue::ObjectKey;

use super::packets::PacketCounter;
use super::*;
use crate::modes;

const E: &str = "0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 \
                 8.192 16.384 +Inf";

/// kube-proxy's metrics: name without prefix, type, labels, modes (i, v, n), buckets.
const EXPECTED: &str = "
    sync_proxy_rules_duration_seconds histogram ip_family ivn E
    sync_full_proxy_rules_duration_seconds histogram ip_family in E
    sync_partial_proxy_rules_duration_seconds histogram ip_family in E
    sync_proxy_rules_last_timestamp_seconds gauge ip_family ivn
    sync_proxy_rules_last_queued_timestamp_seconds gauge ip_family ivn
    network_programming_duration_seconds histogram ip_family ivn N
    sync_proxy_rules_endpoint_changes_pending gauge - ivn
    sync_proxy_rules_endpoint_changes_total counter - ivn
    sync_proxy_rules_service_changes_pending gauge - ivn
    sync_proxy_rules_service_changes_total counter - ivn
    sync_proxy_rules_no_local_endpoints_total gauge ip_family,traffic_policy ivn
    proxy_healthz_total counter code ivn
    proxy_livez_total counter code ivn
    sync_proxy_rules_iptables_restore_failures_total counter ip_family iv
    sync_proxy_rules_iptables_partial_restore_failures_total counter ip_family i
    sync_proxy_rules_iptables_total gauge ip_family,table i
    sync_proxy_rules_iptables_last gauge ip_family,table i
    iptables_ct_state_invalid_dropped_packets_total counter - i
    iptables_localhost_nodeports_accepted_packets_total counter - i
    sync_proxy_rules_nftables_sync_failures_total counter ip_family n
    sync_proxy_rules_nftables_cleanup_failures_total counter ip_family n
    conntrack_reconciler_sync_duration_seconds histogram ip_family ivn E
    conntrack_reconciler_deleted_entries_total counter ip_family ivn";

fn now() -> Timestamp {
    "2026-11-15T09:26:51.5Z".parse().unwrap()
}

fn mode(name: &str) -> &'static Mode {
    modes::find(name).unwrap()
}

fn with_packets(mode: &'static Mode) -> Metrics {
    let metrics = Metrics::new(mode);
    if mode.packets.is_some() {
        metrics.read_packets_with(|_| Ok(7));
    }
    metrics
}

/// Everything is called once for both families.
fn exercised(mode: &'static Mode) -> Metrics {
    let metrics = with_packets(mode);
    let second = Duration::from_secs(1);
    metrics.received(1, 1);
    metrics.set_pending(1, 1);
    metrics.healthz_answered(StatusCode::OK);
    metrics.livez_answered(StatusCode::SERVICE_UNAVAILABLE);
    for family in Family::ALL {
        metrics.observe_sync(family, SyncKind::Full, second, Some(now()));
        metrics.observe_sync(family, SyncKind::Partial, second, None);
        metrics.set_last_queued(family, now());
        metrics.network_programming(family, second);
        metrics.set_no_local_endpoints(family, &Totals::default());
        metrics.set_desired(family, &Totals::default());
        metrics.iptables_restore_failed(family);
        metrics.iptables_partial_restore_failed(family);
        metrics.set_iptables_rules(family, "nat", 9, 3);
        metrics.nftables_sync_failed(family);
        metrics.cleanup_failed(family);
        metrics.observe_conntrack(family, second, 0);
        metrics.count_steps(family, 3);
    }
    metrics.watch_restarted("endpointslices");
    metrics.observe_request("200", "GET", "10.0.0.1:6443", second);
    metrics.set_features([("ComponentFlagz", "BETA", true), ("Old", "", false)]);
    metrics.set_issues([]);
    metrics.set_build(&Build {
        major: "1",
        minor: "36",
        git_version: "v1.36.4",
        commit: "abc",
        date: "2026-11-15T00:00:00Z",
        compiler: "rustc 1.95.0",
        platform: "linux/amd64",
        ferrule: "0.1.0",
    });
    metrics
}

/// One metric as it is shown.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shown {
    kind: String,
    labels: BTreeSet<String>,
    /// The bounds of the first series.
    bounds: Vec<String>,
}

/// Reads an exposition; checks that each family has its help first.
fn read(text: &str) -> BTreeMap<String, Shown> {
    let mut shown: BTreeMap<String, Shown> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            current = help.split(' ').next().unwrap().to_owned();
            let words = help.split_once(' ').unwrap().1;
            assert!(!current.starts_with("kubeproxy_") || words.starts_with("[ALPHA] "));
            assert!(shown.insert(current.clone(), Shown::default()).is_none());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, current);
            shown.get_mut(&current).unwrap().kind = kind.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap();
            assert!(series.starts_with(&current), "{line}");
            let labels = series.split_once('{').map_or("", |(_, labels)| labels);
            let metric = shown.get_mut(&current).unwrap();
            for pair in labels.trim_end_matches('}').split(',') {
                match pair.split_once('=') {
                    Some(("le", bound)) => {
                        let bound = bound.trim_matches('"').to_owned();
                        if !metric.bounds.contains(&bound) {
                            metric.bounds.push(bound);
                        }
                    }
                    Some((label, _)) => {
                        metric.labels.insert(label.to_owned());
                    }
                    None => {}
                }
            }
        }
    }
    shown
}

/// kube-proxy's metrics among what is shown, without their prefix.
fn kube_proxy(text: &str) -> BTreeMap<String, Shown> {
    read(text)
        .into_iter()
        .filter_map(|(name, shown)| Some((name.strip_prefix("kubeproxy_")?.to_owned(), shown)))
        .collect()
}

fn names(text: &str) -> Vec<String> {
    kube_proxy(text).into_keys().collect()
}

fn sample<'a>(text: &'a str, series: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
}

#[test]
fn core_075_each_mode_shows_its_metrics_with_their_labels_and_buckets() {
    let programming: Vec<String> = ["0", "0.25", "0.5"]
        .into_iter()
        .map(str::to_owned)
        .chain((1..60).map(|bound| bound.to_string()))
        .chain((60..=115).step_by(5).map(|bound| bound.to_string()))
        .chain((120..=300).step_by(30).map(|bound| bound.to_string()))
        .chain(["+Inf".to_owned()])
        .collect();
    assert_eq!(programming.len(), 82, "81 bounds and infinity");
    for (mode, letter) in [
        (mode("iptables"), 'i'),
        (mode("ipvs"), 'v'),
        (mode("nftables"), 'n'),
    ] {
        let expected: BTreeMap<String, Shown> = EXPECTED
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .filter(|row| row.get(3).is_some_and(|modes| modes.contains(letter)))
            .map(|row| {
                let labels = row[2].split(',').filter(|label| *label != "-");
                let shown = Shown {
                    kind: row[1].to_owned(),
                    labels: labels.map(str::to_owned).collect(),
                    bounds: match row.get(4) {
                        Some(&"E") => E.split_whitespace().map(str::to_owned).collect(),
                        Some(_) => programming.clone(),
                        None => Vec::new(),
                    },
                };
                (row[0].to_owned(), shown)
            })
            .collect();
        assert_eq!(kube_proxy(&exercised(mode).render()), expected, "{mode:?}");
    }
}

#[test]
fn core_075_before_anything_happens_only_unlabelled_metrics_are_there() {
    let changes = [
        "sync_proxy_rules_endpoint_changes_pending",
        "sync_proxy_rules_endpoint_changes_total",
        "sync_proxy_rules_service_changes_pending",
        "sync_proxy_rules_service_changes_total",
    ];
    assert_eq!(names(&with_packets(mode("nftables")).render()), changes);
    assert_eq!(names(&with_packets(mode("ipvs")).render()), changes);
    let packets = [
        "iptables_ct_state_invalid_dropped_packets_total",
        "iptables_localhost_nodeports_accepted_packets_total",
    ];
    assert_eq!(
        names(&with_packets(mode("iptables")).render()),
        [&packets[..], &changes[..]].concat()
    );
}

#[test]
fn core_075_after_the_first_sync_its_metrics_are_there_and_failures_are_not() {
    let metrics = Metrics::new(mode("nftables"));
    for family in Family::ALL {
        metrics.set_last_queued(family, now());
        let took = Duration::from_millis(3);
        metrics.observe_sync(family, SyncKind::Full, took, Some(now()));
        metrics.set_no_local_endpoints(
            family,
            &Totals {
                no_local_internal: 2,
                no_local_external: 5,
                ..Totals::default()
            },
        );
    }
    let text = metrics.render();
    let present: Vec<_> = names(&text)
        .into_iter()
        .filter(|name| !name.contains("_changes_"))
        .collect();
    assert_eq!(
        present,
        [
            "sync_full_proxy_rules_duration_seconds",
            "sync_proxy_rules_duration_seconds",
            "sync_proxy_rules_last_queued_timestamp_seconds",
            "sync_proxy_rules_last_timestamp_seconds",
            "sync_proxy_rules_no_local_endpoints_total",
        ]
    );
    for (family, policy, number) in [
        ("IPv4", "internal", "2"),
        ("IPv4", "external", "5"),
        ("IPv6", "internal", "2"),
        ("IPv6", "external", "5"),
    ] {
        let series = format!(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total\
             {{ip_family=\"{family}\",traffic_policy=\"{policy}\"}}"
        );
        assert_eq!(sample(&text, &series), Some(number), "{series}");
    }
    let series = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv6\"}";
    assert_eq!(sample(&text, series), Some("1794734811.5"));
}

#[test]
fn core_076_a_failed_sync_is_observed_but_moves_no_timestamp() {
    let metrics = Metrics::new(mode("nftables"));
    metrics.observe_sync(Family::V4, SyncKind::Partial, Duration::from_secs(1), None);
    let text = metrics.render();
    let count = |kind: &str| {
        let name = format!("kubeproxy_sync_{kind}proxy_rules_duration_seconds_count");
        sample(&text, &format!("{name}{{ip_family=\"IPv4\"}}")).map(str::to_owned)
    };
    assert_eq!(count("").as_deref(), Some("1"));
    assert_eq!(count("partial_").as_deref(), Some("1"));
    assert_eq!(count("full_"), None);
    assert!(!text.contains("last_timestamp"));
}

#[test]
fn ipt_074_a_failed_partial_sync_counts_twice_and_a_full_one_once() {
    let metrics = Metrics::new(mode("iptables"));
    let counts = || {
        let text = metrics.render();
        ["", "partial_"].map(|kind| {
            let name = format!("kubeproxy_sync_proxy_rules_iptables_{kind}restore_failures_total");
            sample(&text, &format!("{name}{{ip_family=\"IPv4\"}}")).map(str::to_owned)
        })
    };
    let shown = |number: &str| Some(number.to_owned());
    metrics.sync_failed(Family::V4, SyncKind::Full);
    assert_eq!(counts(), [shown("1"), None]);
    metrics.sync_failed(Family::V4, SyncKind::Partial);
    assert_eq!(counts(), [shown("2"), shown("1")]);
}

#[test]
fn core_078_packet_counters_are_absent_when_the_kernel_has_none() {
    let without = Metrics::new(mode("iptables")).render();
    assert!(!without.contains("kubeproxy_iptables_"), "{without}");

    let metrics = Metrics::new(mode("iptables"));
    metrics.read_packets_with(|object| {
        if object == PacketCounter::InvalidDropped.object() {
            return Ok(41);
        }
        Err(io::Error::from(io::ErrorKind::NotFound))
    });
    let text = metrics.render();
    let dropped = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total";
    assert_eq!(sample(&text, dropped), Some("41"));
    assert!(
        !text.contains("localhost"),
        "one that is missing is left out"
    );
}

#[test]
fn changes_are_counted_once_and_wait_until_they_are_taken() {
    let metrics = Metrics::new(mode("nftables"));
    metrics.received(3, 1);
    metrics.received(1, 2);
    metrics.set_pending(2, 2);
    let value = |what: &str| {
        let series = format!("kubeproxy_sync_proxy_rules_{what}");
        sample(&metrics.render(), &series).map(str::to_owned)
    };
    assert_eq!(value("service_changes_total").as_deref(), Some("4"));
    assert_eq!(value("service_changes_pending").as_deref(), Some("2"));
    assert_eq!(value("endpoint_changes_total").as_deref(), Some("3"));
    assert_eq!(value("endpoint_changes_pending").as_deref(), Some("2"));
    metrics.set_pending(0, 0);
    assert_eq!(value("service_changes_pending").as_deref(), Some("0"));
    assert_eq!(value("endpoint_changes_pending").as_deref(), Some("0"));
    assert_eq!(value("service_changes_total").as_deref(), Some("4"));
}

#[test]
fn what_is_generic_and_what_is_ours() {
    let metrics = exercised(mode("nftables"));
    let issue = |severity| Issue {
        object: ObjectKey::Node("n".into()),
        field: "f".to_owned(),
        message: "m".to_owned(),
        severity,
    };
    let issues = [Severity::Warning, Severity::Note, Severity::Warning].map(issue);
    metrics.set_issues(&issues);
    metrics.set_desired(
        Family::V6,
        &Totals {
            ports: 12,
            endpoints: 34,
            ..Totals::default()
        },
    );
    let text = metrics.render();
    for (series, value) in [
        (
            "kubernetes_build_info{build_date=\"2026-11-15T00:00:00Z\",compiler=\"rustc 1.95.0\",\
             git_commit=\"abc\",git_tree_state=\"clean\",git_version=\"v1.36.4\",go_version=\"\",\
             major=\"1\",minor=\"36\",platform=\"linux/amd64\"}",
            "1",
        ),
        (
            "kubernetes_feature_enabled{name=\"ComponentFlagz\",stage=\"BETA\"}",
            "1",
        ),
        ("kubernetes_feature_enabled{name=\"Old\",stage=\"\"}", "0"),
        (
            "rest_client_requests_total{code=\"200\",host=\"10.0.0.1:6443\",method=\"GET\"}",
            "1",
        ),
        (
            "ferrule_build_info{commit=\"abc\",mode=\"nftables\",version=\"0.1.0\"}",
            "1",
        ),
        ("ferrule_issues{severity=\"note\"}", "1"),
        ("ferrule_issues{severity=\"warning\"}", "2"),
        ("ferrule_desired_service_ports{ip_family=\"IPv6\"}", "12"),
        ("ferrule_desired_endpoints{ip_family=\"IPv6\"}", "34"),
        ("ferrule_sync_steps_total{ip_family=\"IPv4\"}", "3"),
        (
            "ferrule_watch_restarts_total{resource=\"endpointslices\"}",
            "1",
        ),
    ] {
        assert_eq!(sample(&text, series), Some(value), "{series}");
    }
}

#[test]
fn the_document_lists_what_is_declared() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let document = std::fs::read_to_string(document).unwrap();
    let listed: Vec<Vec<&str>> = document
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let mut declared = BTreeMap::new();
    for metric in super::names::ALL {
        let labels: Vec<_> = metric
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        let group = metric.group;
        let modes: Vec<_> = modes::ALL
            .iter()
            .filter(|mode| mode.about.is_some() && mode.metrics.contains(&group))
            .map(|mode| mode.name)
            .collect();
        let row = [
            metric.kind.as_str().to_owned(),
            match labels.as_slice() {
                [] => "–".to_owned(),
                labels => labels.join(", "),
            },
            if group == Group::All {
                "all".to_owned()
            } else {
                modes.join(", ")
            },
        ];
        let twice = declared.insert(format!("`{}`", metric.name), row);
        assert!(twice.is_none(), "{} is declared twice", metric.name);
    }
    assert_eq!(listed.len(), declared.len(), "rows and metrics");
    for row in listed {
        let [name, kind, labels, modes, meaning] = row[..] else {
            panic!("a row has five cells: {row:?}");
        };
        let expected = declared.get(name);
        let expected = expected.unwrap_or_else(|| panic!("{name} is not declared"));
        assert_eq!([kind, labels, modes], *expected, "{name}");
        assert!(meaning.contains(' '), "{name} has no meaning");
    }
}
