//! What is reported, and how often.

use ferrule_core::desired::Totals;
use ferrule_core::issue::ObjectKey;
use ferrule_core::model::Protocol;
use ferrule_dataplane::RuleCount;

use super::*;
use crate::modes;
use crate::watch::kubernetes::tests::log::Log;
use crate::watch::kubernetes::tests::recorder::recorder;
use crate::watch::kubernetes::tests::server::Server;

fn reporter(mode: &str) -> (Reporter, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::new(modes::find(mode).unwrap()));
    let reporter = Reporter::new(metrics.clone(), None, Vec::new(), None, "here".to_owned());
    (reporter, metrics)
}

fn key(name: &str) -> PortKey {
    PortKey {
        service: ServiceKey::new("ns", name),
        name: "http".into(),
        protocol: Protocol::Tcp,
    }
}

fn synced<'a>(full: bool, result: Result<&'a Applied, &'a ApplyError>) -> Synced<'a> {
    Synced {
        family: Family::V4,
        full,
        took: Duration::from_millis(3),
        result,
        triggers: &[],
        totals: Totals::default(),
    }
}

fn sample(metrics: &Metrics, series: &str) -> Option<String> {
    let text = metrics.render();
    let line = text.lines().find_map(|line| line.strip_prefix(series))?;
    Some(line.trim().to_owned())
}

#[test]
fn a_refused_service_port_is_reported_once_until_it_is_programmed() {
    let (mut reporter, _) = reporter("iptables");
    let log = Log::new();
    let refusing = |names: &[&str]| Applied {
        refused: names
            .iter()
            .map(|name| Refusal {
                key: key(name),
                message: "no such match".to_owned(),
            })
            .collect(),
        ..Applied::default()
    };
    for refused in [&["a"][..], &["a", "b"], &["b"], &["a"]] {
        reporter.synced(&synced(true, Ok(&refusing(refused))));
    }
    let about = |name: &str| {
        let name = key(name).to_string();
        let lines = log.lines().into_iter();
        let named = lines.filter(|line| line.contains("refused") && line.contains(&name));
        named.count()
    };
    assert_eq!(about("a"), 2, "once each time it begins");
    assert_eq!(about("b"), 1);
}

#[test]
fn a_success_shows_in_metrics_and_a_failure_too() {
    let (mut reporter, metrics) = reporter("nftables");
    let applied = Applied {
        kept: 1,
        ..Applied::steps(5)
    };
    reporter.synced(&synced(true, Ok(&applied)));
    let family = "{ip_family=\"IPv4\"}";
    let value = |name: &str| sample(&metrics, &format!("{name}{family}"));
    assert_eq!(value("ferrule_sync_steps_total").as_deref(), Some("5"));
    let nftables = "kubeproxy_sync_proxy_rules_nftables";
    let failures = format!("{nftables}_cleanup_failures_total");
    assert_eq!(value(&failures).as_deref(), Some("1"));
    let failures = format!("{nftables}_sync_failures_total");
    assert_eq!(value(&failures), None);
    let lost = ApplyError::OutOfSync(std::io::ErrorKind::TimedOut.into());
    reporter.synced(&synced(false, Err(&lost)));
    assert_eq!(value(&failures).as_deref(), Some("1"));
    assert_eq!(value("ferrule_sync_steps_total").as_deref(), Some("5"));
}

#[test]
fn a_contest_is_logged_once_with_the_process() {
    let (mut reporter, _) = reporter("nftables");
    let log = Log::new();
    let wait = Duration::from_secs(1);
    for contest in [
        Contest::None,
        Contest::Begins(wait),
        Contest::Lasts(wait),
        Contest::Lasts(wait),
    ] {
        let process = Some(ferrule_dataplane::Process {
            id: 4711,
            name: "kube-proxy".to_owned(),
        });
        let repair = Repair {
            steps: 3,
            process,
            contest,
        };
        reporter.repaired(Family::V4, &repair);
    }
    let lines = log.lines();
    let about = |words: &str| {
        let about = |line: &&String| line.contains(words) && line.contains("4711");
        lines.iter().filter(about).count()
    };
    assert_eq!(about("Repaired external changes to our rules"), 1);
    assert_eq!(about("Another process keeps changing our rules"), 1);
}

#[test]
fn rules_are_counted_by_table() {
    let (mut reporter, metrics) = reporter("iptables");
    let applied = Applied {
        rules: vec![RuleCount {
            table: "nat",
            owned: 12,
            written: 3,
        }],
        ..Applied::default()
    };
    reporter.synced(&synced(true, Ok(&applied)));
    let labels = "{ip_family=\"IPv4\",table=\"nat\"}";
    let value = |name: &str| {
        let name = format!("kubeproxy_sync_proxy_rules_iptables_{name}{labels}");
        sample(&metrics, &name)
    };
    assert_eq!(value("total").as_deref(), Some("12"));
    assert_eq!(value("last").as_deref(), Some("3"));
}

#[test]
fn an_issue_is_logged_once_while_it_lasts() {
    let (mut reporter, metrics) = reporter("nftables");
    let log = Log::new();
    let issue = Issue {
        object: ObjectKey::Node("n".into()),
        field: "spec.podCIDRs".to_owned(),
        message: "not a network".to_owned(),
        severity: Severity::Warning,
    };
    for issues in [&[&issue][..], &[&issue], &[], &[&issue]] {
        reporter.issues(issues);
    }
    let lines = log.lines();
    let logged = lines.iter().filter(|line| line.contains("spec.podCIDRs"));
    assert_eq!(logged.count(), 2);
    let warnings = sample(&metrics, "ferrule_issues{severity=\"warning\"}");
    assert_eq!(warnings.as_deref(), Some("1"));
}

#[test]
fn services_that_cannot_work_have_events_and_not_too_many() {
    kubernetes::tests::run(async {
        let server = Server::start().await;
        let (mut reporter, _) = reporter("nftables");
        let recorder = recorder(&server);
        reporter.recorder = Some(recorder.clone());
        let issue = |field: &str, severity| Issue {
            object: ObjectKey::Service(ServiceKey::new("ns", "a")),
            field: field.to_owned(),
            message: "is no network".to_owned(),
            severity,
        };
        let note = issue("spec.type", Severity::Note);
        let another = Issue {
            object: ObjectKey::Node("n".into()),
            ..issue("spec.podCIDRs", Severity::Warning)
        };
        let bad = issue("spec.loadBalancerSourceRanges[0]", Severity::Warning);
        // It comes and goes; notes and other objects have none.
        for issues in [&[&bad, &note, &another][..], &[], &[&bad]] {
            reporter.issues(issues);
        }
        let refused = Applied {
            refused: vec![Refusal {
                key: key("a"),
                message: "no such match".to_owned(),
            }],
            ..Applied::default()
        };
        reporter.synced(&synced(true, Ok(&refused)));
        // Somebody makes it wrong again and again.
        let many: Vec<_> = (0..100)
            .map(|number| issue(&format!("spec.ports[{number}]"), Severity::Warning))
            .collect();
        reporter.issues(&many.iter().collect::<Vec<_>>());
        assert!(recorder.flush(Duration::from_secs(30)).await);
        let seen = server.seen("/apis/events.k8s.io/v1/namespaces/ns/events");
        let events: Vec<serde_json::Value> = seen
            .iter()
            .map(|seen| serde_json::from_slice(&seen.body).unwrap())
            .collect();
        assert_eq!(events.len(), 5, "{events:#?}");
        assert_eq!(events[0]["reason"], "PartlyIgnored");
        let note = "spec.loadBalancerSourceRanges[0]: is no network";
        assert_eq!(events[0]["note"], note);
        assert_eq!(events[0]["regarding"]["name"], "a");
        assert_eq!(events[1]["reason"], "FailedToProgram");
        assert_eq!(events[1]["action"], "Program");
    });
}
