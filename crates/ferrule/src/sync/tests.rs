//! What the crank does with inputs, failures and time.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};

use ferrule_core::facts::NodePortAddresses;
use ferrule_core::model::{PortKey, Protocol};
use serde_json::{Value, json};

use super::recorder::{Call, Recorder, Script};
use super::*;
use crate::watch::convert::convert;

/// Inputs one after another; `Late` lets due lanes run.
struct Scripted(VecDeque<Next>);

impl Source for Scripted {
    fn next(&mut self, _deadline: Instant) -> Next {
        self.0.pop_front().unwrap_or(Next::Ended)
    }

    fn try_next(&mut self) -> Option<Input> {
        None
    }
}

/// Writes down what it receives.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn note(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn lines(&self, word: &str) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines
            .iter()
            .filter(|line| line.starts_with(word))
            .cloned()
            .collect()
    }
}

impl Observer for Diary {
    fn started(&mut self, family: Family) {
        self.note(format!("started {family}"));
    }

    fn queued(&mut self, family: Family) {
        self.note(format!("queued {family}"));
    }

    fn begun(&mut self, family: Family) {
        self.note(format!("begun {family}"));
    }

    fn synced(&mut self, synced: &Synced<'_>) {
        let Synced {
            family,
            full,
            result,
            triggers,
            ..
        } = synced;
        let scope = if *full { "full" } else { "delta" };
        let result = if result.is_ok() { "ok" } else { "failed" };
        self.note(format!(
            "synced {family} {scope} {result} triggers={}",
            triggers.len()
        ));
    }

    fn repaired(&mut self, family: Family, repair: &Repair) {
        let process = repair.process.as_ref().map(|process| &*process.name);
        self.note(format!(
            "repaired {family} {} {process:?} {:?}",
            repair.steps, repair.contest
        ));
    }

    fn cleared(&mut self, cleared: &Cleared) {
        self.note(format!("cleared {} {:?}", cleared.family, cleared.result));
    }

    fn removed(&mut self, family: Family, result: Result<&Applied, &ApplyError>) {
        self.note(format!("removed {family} {}", result.is_ok()));
    }

    fn health_checks(
        &mut self,
        family: Family,
        changes: &BTreeMap<ServiceKey, Option<HealthCheck>>,
        _facts: &Facts,
        _local: &[IpAddr],
    ) {
        for (key, check) in changes {
            let count = check.map_or(-1, |check| i64::try_from(check.local_ready).unwrap());
            self.note(format!("health {family} {key} {count}"));
        }
    }

    fn node(&mut self, node: &Node) {
        self.note(format!("node {} leaving={}", node.name, node.leaving));
    }

    fn received(&mut self, services: usize, slices: usize) {
        self.note(format!("received {services} {slices}"));
    }

    fn pending(&mut self, services: usize, slices: usize) {
        self.note(format!("pending {services} {slices}"));
    }

    fn issues(&mut self, issues: &[&Issue]) {
        self.note(format!("issues {}", issues.len()));
    }
}

impl Lifecycle for Diary {
    fn node(&mut self, node: &Node) {
        self.note(format!("checked {}", node.name));
    }

    fn programmed(&mut self, family: Family, watchers: Vec<Box<dyn Watcher>>) {
        self.note(format!("guarded {family} {}", watchers.is_empty()));
    }

    fn ready(&mut self) {
        self.note("ready".to_owned());
    }

    fn complete(&mut self) {
        self.note("complete".to_owned());
    }
}

fn cluster(events: Vec<Event>) -> Next {
    Next::Input(Input::Cluster(events))
}

fn event(kind: Kind, object: Value) -> Event {
    convert(kind, serde_json::from_value(object).unwrap(), "here").unwrap()
}

fn service(name: &str, ip: &str) -> Event {
    event(
        Kind::Service,
        json!({
            "metadata": { "namespace": "ns", "name": name },
            "spec": { "clusterIP": ip, "ports": [{ "name": "http", "port": 80 }] },
        }),
    )
}

fn slice(name: &str, address: &str) -> Event {
    event(
        Kind::EndpointSlice,
        json!({
            "metadata": {
                "namespace": "ns", "name": format!("{name}-1"),
                "labels": { "kubernetes.io/service-name": name },
                "annotations": {
                    "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"
                },
            },
            "addressType": if address.contains(':') { "IPv6" } else { "IPv4" },
            "ports": [{ "name": "http", "port": 8080 }],
            "endpoints": [{ "addresses": [address], "nodeName": "here" }],
        }),
    )
}

fn lists(objects: Vec<Event>) -> Next {
    let (services, slices): (Vec<_>, Vec<_>) = objects
        .into_iter()
        .partition(|event| event.kind() == Some(Kind::Service));
    let list = |kind, objects: Vec<Event>| {
        let mut events = vec![Event::Listing(kind)];
        events.extend(objects);
        events.push(Event::Listed(kind));
        events
    };
    let mut events = list(Kind::Node, Vec::new());
    events.extend(list(Kind::Service, services));
    events.extend(list(Kind::EndpointSlice, slices));
    cluster(events)
}

fn key(name: &str) -> PortKey {
    PortKey {
        service: ServiceKey::new("ns", name),
        name: "http".into(),
        protocol: Protocol::Tcp,
    }
}

/// Runs the inputs through both families without any rest.
fn backend(family: Family, script: &Script) -> Backend {
    Backend {
        family,
        dataplane: Box::new(Recorder(family, script.clone())),
        flows: None,
    }
}

const RESTLESS: Limits = Limits {
    min: Duration::ZERO,
    rest: RestBy::Cost,
    retry: Duration::ZERO,
    max: Duration::from_hours(1),
};

fn setup(families: &[Family], script: &Script, diary: &Diary) -> Setup<Diary, Diary> {
    let backends = families.iter().map(|family| backend(*family, script));
    Setup {
        backends: backends.collect(),
        observer: diary.clone(),
        lifecycle: diary.clone(),
        on_exit: OnExit::Keep,
        started: SystemTime::UNIX_EPOCH,
    }
}

fn run(script: &Script, inputs: Vec<Next>) -> Diary {
    run_with(Settings::default(), script, inputs)
}

fn run_with(settings: Settings, script: &Script, inputs: Vec<Next>) -> Diary {
    let diary = Diary::default();
    let setup = setup(&Family::ALL, script, &diary);
    let sync = Sync::new(settings, RESTLESS, Vec::new(), setup);
    sync.run(&mut Scripted(inputs.into()));
    diary
}

#[test]
fn core_052_one_whole_sync_follows_the_first_lists_and_none_precedes_them() {
    let script = Script::default();
    let diary = run(
        &script,
        vec![
            cluster(vec![
                Event::Listing(Kind::Service),
                service("a", "10.96.0.1"),
            ]),
            Next::Late,
            cluster(vec![
                Event::Listed(Kind::Service),
                Event::Listing(Kind::Node),
                Event::Listed(Kind::Node),
                Event::Listing(Kind::EndpointSlice),
            ]),
            Next::Late,
            cluster(vec![
                slice("a", "10.1.0.1"),
                Event::Listed(Kind::EndpointSlice),
            ]),
            Next::Late,
        ],
    );
    assert_eq!(
        script.take_calls(),
        [
            Call::Full(Family::V4, vec![key("a")]),
            Call::Full(Family::V6, vec![])
        ]
    );
    assert_eq!(diary.lines("started"), ["started IPv4", "started IPv6"]);
    assert_eq!(diary.lines("queued"), ["queued IPv4", "queued IPv6"]);
    assert_eq!(
        diary.lines("received"),
        ["received 1 0", "received 0 0", "received 0 1"]
    );
    assert_eq!(diary.lines("pending").last().unwrap(), "pending 0 0");
}

#[test]
fn a_change_of_one_family_leaves_the_other_alone() {
    let script = Script::default();
    run(
        &script,
        vec![
            lists(vec![service("a", "10.96.0.1"), service("b", "10.96.0.2")]),
            cluster(vec![slice("a", "10.1.0.1")]),
        ],
    );
    let calls = script.take_calls();
    assert_eq!(
        calls[2..],
        [Call::Delta(Family::V4, vec![key("a")], vec![])]
    );
}

#[test]
fn core_054_what_is_said_again_causes_no_sync() {
    let script = Script::default();
    let objects = || vec![service("a", "10.96.0.1"), slice("a", "10.1.0.1")];
    let diary = run(
        &script,
        vec![
            lists(objects()),
            cluster(objects()),
            lists(objects()),
            Next::Late,
        ],
    );
    assert_eq!(
        script.take_calls().len(),
        2,
        "the first of each family only"
    );
    assert_eq!(diary.lines("queued").len(), 2);
}

/// Lets two calls fail from the second input on.
struct Failing(Scripted, Script, usize);
impl Source for Failing {
    fn next(&mut self, deadline: Instant) -> Next {
        self.2 += 1;
        if self.2 == 2 {
            self.1.fail_next(ErrorKind::ResourceBusy);
            self.1.fail_next(ErrorKind::ResourceBusy);
        }
        self.0.next(deadline)
    }

    fn try_next(&mut self) -> Option<Input> {
        None
    }
}

#[test]
fn core_103_after_a_failed_sync_the_next_one_is_whole_and_nothing_is_lost() {
    let script = Script::default();
    let diary = Diary::default();
    let setup = setup(&[Family::V4], &script, &diary);
    let sync = Sync::new(Settings::default(), RESTLESS, Vec::new(), setup);
    let inputs = vec![
        lists(vec![service("a", "10.96.0.1")]),
        cluster(vec![slice("a", "10.1.0.1")]),
        cluster(vec![service("b", "10.96.0.2")]),
        Next::Late,
        cluster(vec![slice("a", "10.1.0.2")]),
    ];
    sync.run(&mut Failing(Scripted(inputs.into()), script.clone(), 0));
    let both = vec![key("a"), key("b")];
    assert_eq!(
        script.take_calls(),
        [
            Call::Full(Family::V4, vec![key("a")]),
            Call::Delta(Family::V4, vec![key("a")], vec![]),
            Call::Full(Family::V4, both.clone()),
            Call::Full(Family::V4, both),
            Call::Delta(Family::V4, vec![key("a")], vec![]),
        ]
    );
    assert_eq!(
        diary.lines("synced"),
        [
            "synced IPv4 full ok triggers=0",
            "synced IPv4 delta failed triggers=0",
            "synced IPv4 full failed triggers=0",
            "synced IPv4 full ok triggers=1",
            "synced IPv4 delta ok triggers=1",
        ],
        "the trigger of the failed sync is reported once it is programmed"
    );
}

#[test]
fn a_failed_first_sync_is_retried_without_any_change() {
    let script = Script::default();
    script.fail_next(ErrorKind::PermissionDenied);
    let diary = run(
        &script,
        vec![lists(vec![service("a", "10.96.0.1")]), Next::Late],
    );
    assert_eq!(
        diary.lines("synced"),
        [
            "synced IPv4 full failed triggers=0",
            "synced IPv6 full ok triggers=0",
            "synced IPv4 full ok triggers=0",
        ]
    );
}

#[test]
fn health_checks_wait_for_the_rules_they_vouch_for() {
    let script = Script::default();
    let balanced = event(
        Kind::Service,
        json!({
            "metadata": { "namespace": "ns", "name": "a" },
            "spec": {
                "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
                "clusterIP": "10.96.0.1", "ports": [{ "name": "http", "port": 80, "nodePort": 30000 }],
            },
        }),
    );
    script.fail_next(ErrorKind::ResourceBusy);
    let diary = run(
        &script,
        vec![lists(vec![balanced, slice("a", "10.1.0.1")]), Next::Late],
    );
    let story: Vec<_> = diary
        .0
        .lock()
        .unwrap()
        .iter()
        .filter(|line| line.starts_with("synced IPv4") || line.starts_with("health"))
        .cloned()
        .collect();
    assert_eq!(
        story,
        [
            "synced IPv4 full failed triggers=0",
            "synced IPv4 full ok triggers=1",
            "health IPv4 ns/a 1",
        ]
    );
}

#[test]
fn new_settings_and_an_external_change_cause_a_sync() {
    let script = Script::default();
    let settings = Settings {
        masquerade_all: true,
        ..Settings::default()
    };
    run(
        &script,
        vec![
            lists(vec![service("a", "10.96.0.1")]),
            Next::Input(Input::Settings(Box::new(settings))),
            Next::Input(Input::Resync(Family::V6, ExternalChange::default())),
            Next::Late,
        ],
    );
    assert_eq!(
        script.take_calls()[2..],
        [
            Call::Delta(Family::V4, vec![key("a")], vec![]),
            // What holds on the node changed for both.
            Call::Delta(Family::V6, vec![], vec![]),
            Call::Full(Family::V6, vec![])
        ]
    );
}

#[test]
fn external_changes_that_come_again_and_again_are_repaired_at_growing_intervals() {
    let script = Script::default();
    let diary = Diary::default();
    let change = || {
        let process = Some(ferrule_dataplane::Process {
            id: 7,
            name: "kube-proxy".to_owned(),
        });
        let change = ExternalChange { process };
        Next::Input(Input::Resync(Family::V4, change))
    };
    let mut inputs = vec![lists(vec![service("a", "10.96.0.1")])];
    inputs.extend((0..20).map(|_| change()));
    // Changes of the cluster do not wait for that.
    inputs.push(cluster(vec![service("b", "10.96.0.2")]));
    let limits = Limits {
        retry: Duration::from_hours(1),
        ..RESTLESS
    };
    let setup = setup(&[Family::V4], &script, &diary);
    let sync = Sync::new(Settings::default(), limits, Vec::new(), setup);
    sync.run(&mut Scripted(inputs.into()));
    let repaired = "repaired IPv4 1 Some(\"kube-proxy\")";
    assert_eq!(
        diary.lines("repaired")[..3],
        [
            format!("{repaired} None"),
            format!("{repaired} None"),
            format!("{repaired} Begins(1s)"),
        ]
    );
    let calls = script.take_calls();
    // On a machine that stands still for a second, one more.
    assert!(calls.len() < 10, "{calls:?}");
    assert!(
        match calls.last() {
            Some(Call::Full(_, keys) | Call::Delta(_, keys, _)) => keys.contains(&key("b")),
            _ => false,
        },
        "{calls:?}"
    );
}

#[test]
fn a_node_that_changes_is_reported() {
    let node = |taints: Value| {
        event(
            Kind::Node,
            json!({ "metadata": { "name": "here" }, "spec": { "taints": taints } }),
        )
    };
    let leaving = json!([{ "key": "ToBeDeletedByClusterAutoscaler" }]);
    let diary = run(
        &Script::default(),
        vec![
            cluster(vec![node(json!([]))]),
            cluster(vec![node(json!([]))]),
            cluster(vec![node(leaving)]),
        ],
    );
    assert_eq!(
        diary.lines("node"),
        ["node here leaving=false", "node here leaving=true"]
    );
}

#[test]
fn core_040_a_node_that_changes_its_address_is_followed_without_a_restart() {
    let node = |address: &str| {
        event(
            Kind::Node,
            json!({
                "metadata": { "name": "here" },
                "status": { "addresses": [{ "type": "InternalIP", "address": address }] },
            }),
        )
    };
    let script = Script::default();
    run(
        &script,
        vec![
            lists(vec![service("a", "10.96.0.1")]),
            cluster(vec![node("192.0.2.1")]),
            cluster(vec![node("192.0.2.2")]),
        ],
    );
    // Where NodePorts answer may have moved, so the family is programmed; no Service changed.
    let moved = Call::Delta(Family::V4, vec![], vec![]);
    assert_eq!(script.take_calls()[2..], [moved.clone(), moved]);
}

/// Writes down until when there is no hurry.
struct Unhurried(Scripted, Vec<(Instant, Instant)>);

impl Source for Unhurried {
    fn next(&mut self, deadline: Instant) -> Next {
        self.0.next(deadline)
    }

    fn try_next(&mut self) -> Option<Input> {
        None
    }

    fn rest(&mut self, now: Instant, until: Instant) {
        self.1.push((now, until));
    }
}

/// The rests after syncs, with an hour as the longest: when each was reported, and its end.
fn rests(rest: RestBy) -> Vec<(Instant, Instant)> {
    let limits = Limits {
        min: Duration::from_hours(1),
        rest,
        retry: Duration::from_hours(1),
        max: Duration::from_hours(2),
    };
    let script = Script::default();
    let setup = setup(&Family::ALL, &script, &Diary::default());
    let sync = Sync::new(Settings::default(), limits, Vec::new(), setup);
    let inputs = vec![
        Next::Late,
        lists(vec![service("a", "10.96.0.1")]),
        cluster(vec![slice("a", "10.1.0.1")]),
        Next::Late,
    ];
    let mut source = Unhurried(Scripted(inputs.into()), Vec::new());
    sync.run(&mut source);
    source.1
}

#[test]
fn after_a_sync_there_is_no_hurry_until_the_next_one_may_run() {
    let begun = clock();
    let [(now, until)] = rests(RestBy::Fixed)[..] else {
        panic!("once, by the first sync");
    };
    assert!(begun <= now && until >= begun + Duration::from_hours(1));
}

#[test]
fn after_a_cheap_sync_the_rest_is_short() {
    let (now, until) = rests(RestBy::Cost)[0];
    // It would take three minutes of work to make it an hour.
    assert!(until < now + Duration::from_hours(1));
}

/// There is always a next input, until something was programmed.
struct Flood {
    script: Script,
    lists: Option<Next>,
    sent: usize,
}

impl Flood {
    fn more(&mut self) -> Option<Input> {
        // Far more than any round may take; without a limit the test ends by this, and fails.
        (self.sent < 100 * MOST_INPUTS).then(|| {
            self.sent += 1;
            let address = format!("10.1.0.{}", 1 + self.sent % 250);
            Input::Cluster(vec![slice("a", &address)])
        })
    }
}

impl Source for Flood {
    fn next(&mut self, _deadline: Instant) -> Next {
        match self.lists.take() {
            Some(lists) => lists,
            None if self.script.was_called() => Next::Ended,
            None => self.more().map_or(Next::Ended, Next::Input),
        }
    }

    fn try_next(&mut self) -> Option<Input> {
        self.more()
    }
}

#[test]
fn events_that_never_stop_coming_do_not_keep_sync_from_programming() {
    let script = Script::default();
    let mut flood = Flood {
        script: script.clone(),
        lists: Some(lists(vec![service("a", "10.96.0.1")])),
        sent: 0,
    };
    let setup = setup(&Family::ALL, &script, &Diary::default());
    Sync::new(Settings::default(), RESTLESS, Vec::new(), setup).run(&mut flood);
    assert!(!script.take_calls().is_empty());
    assert!(flood.sent <= MOST_INPUTS, "{} taken in", flood.sent);
}

#[test]
fn a_family_that_cannot_be_programmed_keeps_nothing_from_the_other() {
    let script = Script::default();
    script.break_family(Family::V4);
    let diary = run(
        &script,
        vec![lists(vec![service("a", "10.96.0.1")]), Next::Late],
    );
    let story: Vec<String> = diary.0.lock().unwrap().clone();
    let of = |line: &str| story.iter().position(|other| other == line);
    let guarded = of("guarded IPv6 true").expect("the other is guarded, and swept");
    assert!(guarded < of("synced IPv6 full ok triggers=0").unwrap());
    assert!(of("ready").is_some_and(|ready| ready > guarded));
    assert_eq!(diary.lines("guarded").len(), 1);
    assert_eq!(diary.lines("ready").len(), 1);
    // What another mode needs for both families stays while one of them may still need it.
    assert_eq!(diary.lines("complete").len(), 0);
}

#[test]
fn a_family_is_guarded_as_soon_as_it_is_programmed_and_once() {
    let script = Script::default();
    script.fail_next(ErrorKind::ResourceBusy);
    let diary = run(
        &script,
        vec![
            lists(vec![service("a", "10.96.0.1")]),
            Next::Late,
            cluster(vec![slice("a", "10.1.0.1")]),
        ],
    );
    assert_eq!(
        diary.lines("guarded"),
        ["guarded IPv6 true", "guarded IPv4 true"],
        "the one that failed at first comes later"
    );
    assert_eq!(diary.lines("ready").len(), 1);
    assert_eq!(diary.lines("complete").len(), 1);
}

#[test]
fn addresses_of_interfaces_come_with_the_work_and_cause_it_where_they_matter() {
    let local: Vec<IpAddr> = vec!["192.0.2.1".parse().unwrap()];
    let inputs = || {
        vec![
            lists(vec![service("a", "10.96.0.1")]),
            Next::Input(Input::Addresses(local.clone())),
            Next::Late,
        ]
    };
    let script = Script::default();
    run(&script, inputs());
    assert_eq!(script.take_calls().len(), 2, "NodePorts answer everywhere");

    let limited = Settings {
        node_port_addresses: NodePortAddresses::parse(&["192.0.2.0/24"]).unwrap(),
        ..Settings::default()
    };
    let script = Script::default();
    let mut more = inputs();
    // One that is not chosen causes nothing.
    let other: IpAddr = "198.51.100.1".parse().unwrap();
    let both = vec![local[0], other];
    more.push(Next::Input(Input::Addresses(both)));
    run_with(limited, &script, more);
    let again = [Call::Delta(Family::V4, vec![], vec![])];
    assert_eq!(script.take_calls()[2..], again);
    assert_eq!(script.local(), local);
}

#[test]
fn a_mode_that_leaves_nothing_behind_removes_its_rules_at_the_end() {
    for (on_exit, removed) in [(OnExit::Keep, 0), (OnExit::Remove, 2)] {
        let (script, diary) = (Script::default(), Diary::default());
        let setup = Setup {
            on_exit,
            ..setup(&Family::ALL, &script, &diary)
        };
        let sync = Sync::new(Settings::default(), RESTLESS, Vec::new(), setup);
        let inputs = vec![
            lists(vec![service("a", "10.96.0.1")]),
            Next::Input(Input::Stop),
            cluster(vec![slice("a", "10.1.0.1")]),
        ];
        sync.run(&mut Scripted(inputs.into()));
        let calls = script.take_calls();
        let is_removal = |call: &&Call| matches!(call, Call::Remove(_));
        assert_eq!(calls.iter().filter(is_removal).count(), removed);
        assert_eq!(calls.len(), 2 + removed, "nothing is programmed any more");
        assert_eq!(diary.lines("removed").len(), removed);
    }
}

#[test]
fn what_comes_due_by_itself_is_done_without_a_sync_and_its_failure_is_followed_by_a_full_one() {
    let script = Script::default();
    // After the sync, when it is due, and then it fails.
    script.tick_again(Some(Duration::ZERO));
    script.tick_again(Some(Duration::ZERO));
    script.tick_again(None);
    let inputs = vec![
        lists(vec![service("a", "10.96.0.1")]),
        Next::Late,
        Next::Late,
        Next::Late,
    ];
    run(&script, inputs);
    let calls = script.take_calls();
    let kinds: Vec<&str> = calls
        .iter()
        .map(|call| match call {
            Call::Full(..) => "full",
            Call::Delta(..) => "delta",
            Call::Remove(_) => "remove",
            Call::Tick => "tick",
        })
        .collect();
    assert_eq!(kinds[..4], ["full", "full", "tick", "tick"], "{calls:?}");
    assert_eq!(kinds[4..], ["tick", "full"], "{calls:?}");
}
