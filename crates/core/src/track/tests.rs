//! What the tracker lets through, and when.

use super::*;
use crate::testing::*;

fn names(changes: Option<Changes>) -> Vec<String> {
    changes.map_or_else(Vec::new, |changes| {
        changes.services.iter().map(ToString::to_string).collect()
    })
}

#[test]
fn core_052_nothing_leaves_before_the_first_lists_are_complete() {
    let mut tracker = Tracker::new(at(0));
    assert!(!tracker.on(Event::Listing(Kind::Service)));
    assert!(!tracker.on(put(Object::Service(service("ns/a")))));
    assert!(!tracker.on(Event::Listed(Kind::Service)));
    assert!(!tracker.on(Event::Listing(Kind::Node)));
    assert!(!tracker.on(put(Object::Node(node("a")))));
    assert!(!tracker.on(Event::Listed(Kind::Node)));
    assert!(!tracker.on(Event::Listing(Kind::EndpointSlice)));
    assert!(!tracker.on(put(Object::Slice(slice(
        "ns/a-1",
        "ns/a",
        &[ep("10.1.0.1")]
    )))));
    assert_eq!(tracker.take(), None);
    assert!(tracker.on(Event::Listed(Kind::EndpointSlice)));
    assert_eq!(names(tracker.take()), ["ns/a"]);
    assert_eq!(tracker.take(), None);
}

#[test]
fn an_empty_cluster_opens_the_gate_too() {
    let mut tracker = Tracker::new(at(0));
    tracker.on(Event::Listing(Kind::Node));
    tracker.on(Event::Listed(Kind::Node));
    tracker.on(Event::Listing(Kind::Service));
    tracker.on(Event::Listed(Kind::Service));
    tracker.on(Event::Listing(Kind::EndpointSlice));
    assert!(tracker.on(Event::Listed(Kind::EndpointSlice)));
    assert!(tracker.take().is_some_and(|changes| changes.surroundings));
}

#[test]
fn core_093_a_service_added_and_deleted_between_looks_leaves_nothing_pending() {
    let mut scene = Cluster::new();
    scene.service(service("ns/a")).no_service("ns/a");
    assert!(!scene.tracker.has_pending());
    assert_eq!(scene.take(), None);
    assert!(scene.tracker.entry(&service_key("ns/a")).is_none());
}

#[test]
fn a_service_that_changes_back_is_struck_out() {
    let mut scene = Cluster::new();
    scene
        .service(service("ns/a"))
        .service(service("ns/b"))
        .step();
    scene.service(service("ns/a").node_port(30000));
    assert_eq!(scene.tracker.pending_counts(), (1, 0));
    scene.service(service("ns/a"));
    assert_eq!(scene.tracker.pending_counts(), (0, 0));
    assert_eq!(scene.take(), None);
}

#[test]
fn a_slice_that_changes_back_is_struck_out_and_its_trigger_with_it() {
    let mut scene = Cluster::new();
    let first = slice("ns/a-1", "ns/a", &[ep("10.1.0.1")]);
    scene.service(service("ns/a")).slice(first.clone()).step();
    let event = |slice: Slice| Event::Put {
        object: Object::Slice(slice),
        issues: Vec::new(),
        trigger: Some(at(2000)),
    };
    scene
        .tracker
        .on(event(slice("ns/a-1", "ns/a", &[ep("10.1.0.2")])));
    scene.tracker.on(event(first));
    assert_eq!(scene.take(), None);
}

#[test]
fn core_094_before_is_the_state_last_taken_and_after_the_newest() {
    let mut scene = Cluster::new();
    scene.service(service("ns/a").node_port(30001)).step();
    scene.service(service("ns/a").node_port(30002));
    scene.service(service("ns/a").node_port(30003));
    let delta = scene.step();
    let change = &delta.families.v4.changes[&http("ns/a")];
    let node_port = |side: &Option<Arc<crate::desired::Exposure>>| {
        side.as_ref().unwrap().frontends.last().unwrap().port
    };
    assert_eq!(node_port(&change.before), port(30001));
    assert_eq!(node_port(&change.after), port(30003));
}

#[test]
fn core_096_an_endpoint_that_moves_between_slices_never_goes_away() {
    let mut scene = Cluster::new();
    scene
        .service(service("ns/a"))
        .slice(slice("ns/a-1", "ns/a", &[ep("10.1.0.1"), ep("10.1.0.2")]))
        .slice(slice("ns/a-2", "ns/a", &[ep("10.1.0.3")]))
        .step();
    scene
        .slice(slice("ns/a-1", "ns/a", &[ep("10.1.0.2")]))
        .slice(slice("ns/a-2", "ns/a", &[ep("10.1.0.1"), ep("10.1.0.3")]));
    assert!(scene.step().is_empty(), "the endpoints are the same");
}

#[test]
fn core_097_removing_an_unknown_slice_is_no_change_and_leaves_nothing_behind() {
    let mut scene = Cluster::new();
    scene.no_slice("ns/ghost").no_service("ns/ghost");
    assert!(!scene.tracker.has_pending());
    assert_eq!(scene.tracker.keys(), []);
}

#[test]
fn core_099_trigger_times_count_when_they_belong_to_a_change_of_ours() {
    let mut scene = Cluster::new();
    let send = |scene: &mut Cluster, slice: Slice, trigger| {
        scene.tracker.on(Event::Put {
            object: Object::Slice(slice),
            issues: Vec::new(),
            trigger,
        });
    };
    scene.service(service("ns/a"));
    // The tracker started at 1000: older changes were not ours to program.
    send(
        &mut scene,
        slice("ns/a-1", "ns/a", &[ep("10.1.0.1")]),
        Some(at(999)),
    );
    send(
        &mut scene,
        slice("ns/a-1", "ns/a", &[ep("10.1.0.2")]),
        Some(at(1000)),
    );
    send(&mut scene, slice("ns/a-1", "ns/a", &[ep("10.1.0.3")]), None);
    assert_eq!(scene.take().unwrap().triggers, BTreeMap::new());

    send(
        &mut scene,
        slice("ns/a-1", "ns/a", &[ep("10.1.0.4")]),
        Some(at(1001)),
    );
    send(
        &mut scene,
        slice("ns/a-1", "ns/a", &[ep("10.1.0.5")]),
        Some(at(1002)),
    );
    // The same object again is not a change.
    send(
        &mut scene,
        slice("ns/a-1", "ns/a", &[ep("10.1.0.5")]),
        Some(at(1003)),
    );
    let triggers = scene.take().unwrap().triggers;
    assert_eq!(triggers[&service_key("ns/a")], [at(1001), at(1002)]);

    // A removed slice takes its own times with it, not those of its siblings.
    send(
        &mut scene,
        slice("ns/a-1", "ns/a", &[ep("10.1.0.6")]),
        Some(at(1004)),
    );
    send(
        &mut scene,
        slice("ns/a-2", "ns/a", &[ep("10.1.0.7")]),
        Some(at(1005)),
    );
    scene.no_slice("ns/a-1");
    let triggers = scene.take().unwrap().triggers;
    assert_eq!(triggers[&service_key("ns/a")], [at(1005)]);
}

#[test]
fn a_slice_moved_to_another_service_leaves_the_first() {
    let mut scene = Cluster::new();
    scene
        .service(service("ns/a"))
        .service(service("ns/b").cluster_ip("10.96.0.2"))
        .slice(slice("ns/x", "ns/a", &[ep("10.1.0.1")]))
        .step();
    scene.slice(slice("ns/x", "ns/b", &[ep("10.1.0.1")]));
    assert_eq!(names(scene.take()), ["ns/a", "ns/b"]);
    assert!(
        scene
            .tracker
            .entry(&service_key("ns/a"))
            .unwrap()
            .slices
            .is_empty()
    );
    assert_eq!(
        scene
            .tracker
            .entry(&service_key("ns/b"))
            .unwrap()
            .slices
            .len(),
        1
    );
}

#[test]
fn a_replayed_list_removes_who_is_missing_and_nothing_else() {
    let mut scene = Cluster::new();
    let both = [service("ns/a"), service("ns/b").cluster_ip("10.96.0.2")];
    for service in both.clone() {
        scene.service(service);
    }
    scene
        .slice(slice("ns/a-1", "ns/a", &[ep("10.1.0.1")]))
        .step();

    scene.tracker.on(Event::Listing(Kind::Service));
    scene.service(both[0].clone());
    assert!(
        !scene.tracker.has_pending(),
        "nobody is gone before the list is complete"
    );
    // The connection breaks; the list starts over.
    scene.tracker.on(Event::Listing(Kind::Service));
    scene.service(both[1].clone());
    scene.tracker.on(Event::Listed(Kind::Service));
    assert_eq!(names(scene.take()), ["ns/a"]);
    assert!(
        scene
            .tracker
            .entry(&service_key("ns/a"))
            .unwrap()
            .service
            .is_none()
    );
    assert_eq!(
        scene
            .tracker
            .entry(&service_key("ns/a"))
            .unwrap()
            .slices
            .len(),
        1
    );
}

#[test]
fn issues_follow_their_object() {
    let mut scene = Cluster::new();
    let issue = Issue {
        object: ObjectKey::Service(service_key("ns/a")),
        field: "spec.ports[0].port".to_owned(),
        message: "0 is no port".to_owned(),
        severity: crate::issue::Severity::Warning,
    };
    let with = |issues: &[Issue]| Event::Put {
        object: Object::Service(service("ns/a")),
        issues: issues.to_vec(),
        trigger: None,
    };
    scene.tracker.on(with(std::slice::from_ref(&issue)));
    assert_eq!(scene.tracker.issues().collect::<Vec<_>>(), [&issue]);
    scene.tracker.on(with(&[]));
    assert_eq!(scene.tracker.issues().count(), 0);

    // An object of no use is remembered by its complaint alone, until a list no longer names it.
    let key = ObjectKey::Slice(slice_key("ns/stray"));
    scene.tracker.on(Event::Gone {
        key,
        issues: vec![issue],
    });
    assert_eq!(scene.tracker.issues().count(), 1);
    scene.tracker.on(Event::Listing(Kind::EndpointSlice));
    scene.tracker.on(Event::Listed(Kind::EndpointSlice));
    assert_eq!(scene.tracker.issues().count(), 0);
}

#[test]
fn an_undecodable_object_stays_as_it_was() {
    let mut scene = Cluster::new();
    scene.service(service("ns/a")).step();
    let key = ObjectKey::Service(service_key("ns/a"));
    let issue = Issue {
        object: key.clone(),
        field: "metadata.name".to_owned(),
        message: "the object cannot be decoded".to_owned(),
        severity: crate::issue::Severity::Warning,
    };
    let undecodable = || Event::Undecodable {
        key: key.clone(),
        issues: vec![issue.clone()],
    };
    // Neither by itself nor within a list is it gone.
    for events in [
        vec![undecodable()],
        vec![
            Event::Listing(Kind::Service),
            undecodable(),
            Event::Listed(Kind::Service),
        ],
    ] {
        for event in events {
            scene.tracker.on(event);
        }
        assert!(!scene.tracker.has_pending());
        assert_eq!(scene.tracker.keys(), [service_key("ns/a")]);
        assert_eq!(scene.tracker.issues().collect::<Vec<_>>(), [&issue]);
    }
    scene.tracker.on(gone(key.clone()));
    assert!(scene.tracker.has_pending());
    assert_eq!(scene.tracker.issues().count(), 0);
}

#[test]
fn a_deleted_node_object_does_not_move_us() {
    let mut scene = Cluster::new();
    scene.node(node("a")).step();
    scene.tracker.on(gone(ObjectKey::Node("here".into())));
    assert!(!scene.tracker.has_pending());
    assert_eq!(scene.tracker.node(), Some(&node("a")));
}

#[test]
fn service_cidrs_are_kept_by_object() {
    let mut scene = Cluster::new();
    scene
        .service_cidr("one", &["10.96.0.0/16"])
        .service_cidr("two", &["10.96.0.0/16", "fd00::/64"]);
    assert!(scene.step().families.v4.facts);
    scene.tracker.on(gone(ObjectKey::ServiceCidr("two".into())));
    let delta = scene.step();
    assert!(!delta.families.v4.facts, "the other object still names it");
    assert!(delta.families.v6.facts);
    assert_eq!(
        scene.tracker.service_cidrs(),
        ["10.96.0.0/16".parse().unwrap()]
    );
}
