//! Conversion of every kind, good and bad.

use serde_json::{Value, json};

use super::*;

mod names;
mod node;
mod service;
mod slice;

/// What `convert` makes of this JSON on node `here`.
fn converted(kind: Kind, json: Value) -> Option<Event> {
    convert(kind, serde_json::from_value(json).unwrap(), "here")
}

/// `field: message` of each issue, after a look at the object they name.
fn issues(event: &Event) -> Vec<String> {
    let (key, issues) = match event {
        Event::Put { object, issues, .. } => (object.key(), issues),
        Event::Gone { key, issues } => (key.clone(), issues),
        _ => panic!("{event:?}"),
    };
    assert!(issues.iter().all(|issue| issue.object == key), "{issues:?}");
    issues
        .iter()
        .map(|issue| format!("{}: {}", issue.field, issue.message))
        .collect()
}

fn severities(event: &Event) -> Vec<Severity> {
    match event {
        Event::Put { issues, .. } | Event::Gone { issues, .. } => {
            issues.iter().map(|issue| issue.severity).collect()
        }
        _ => panic!("{event:?}"),
    }
}

/// The fields with issues.
fn fields(event: &Event) -> Vec<String> {
    issues(event)
        .iter()
        .map(|issue| issue.split(": ").next().unwrap().to_owned())
        .collect()
}

/// Sets one field or entry of an object, by a path such as `/spec/ports/0`.
fn with(mut object: Value, path: &str, value: Value) -> Value {
    let (parent, field) = path.rsplit_once('/').unwrap();
    match object.pointer_mut(parent).unwrap() {
        Value::Array(entries) => entries[field.parse::<usize>().unwrap()] = value,
        fields => fields[field] = value,
    }
    object
}

#[test]
fn keys_say_kind_namespace_and_name() {
    let object: api::Object =
        serde_json::from_value(json!({ "metadata": { "namespace": "ns", "name": "a" } })).unwrap();
    let keys = Kind::ALL.map(|kind| key(kind, &object.metadata).to_string());
    assert_eq!(
        keys,
        [
            "Node a",
            "ServiceCIDR a",
            "Service ns/a",
            "EndpointSlice ns/a"
        ]
    );
}

#[test]
fn an_empty_object_of_any_kind_is_harmless() {
    for kind in Kind::ALL {
        converted(kind, json!({}));
        let nulls = json!({ "metadata": null, "spec": null, "status": null, "endpoints": null });
        converted(kind, nulls);
    }
}

#[test]
fn core_095_changes_of_fields_we_ignore_leave_nothing_pending() {
    let service = json!({
        "metadata": { "namespace": "ns", "name": "a", "resourceVersion": "1" },
        "spec": { "clusterIP": "10.96.0.1", "ports": [{ "name": "http", "port": 80 }] },
    });
    let slice = json!({
        "metadata": { "namespace": "ns", "name": "a-1", "labels": { "kubernetes.io/service-name": "a" } },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": 8080 }],
        "endpoints": [{ "addresses": ["10.1.0.1"], "nodeName": "here" }],
    });
    let mut tracker = ferrule_core::track::Tracker::new(std::time::SystemTime::UNIX_EPOCH);
    tracker.on(Event::Listing(Kind::Node));
    tracker.on(Event::Listed(Kind::Node));
    for (kind, object) in [(Kind::Service, &service), (Kind::EndpointSlice, &slice)] {
        tracker.on(Event::Listing(kind));
        tracker.on(converted(kind, object.clone()).unwrap());
        tracker.on(Event::Listed(kind));
    }
    assert!(tracker.take().is_some());

    let ignored = [
        (
            Kind::Service,
            with(service.clone(), "/metadata/resourceVersion", json!("2")),
        ),
        (
            Kind::Service,
            with(
                service.clone(),
                "/metadata/labels",
                json!({ "team": "red" }),
            ),
        ),
        (
            Kind::Service,
            with(
                service.clone(),
                "/metadata/annotations",
                json!({ "a": "b" }),
            ),
        ),
        (
            Kind::Service,
            with(service.clone(), "/spec/selector", json!({ "app": "a" })),
        ),
        (
            Kind::Service,
            with(
                service.clone(),
                "/spec/trafficDistribution",
                json!("PreferClose"),
            ),
        ),
        (
            Kind::Service,
            with(service, "/spec/ports/0/targetPort", json!("web")),
        ),
        // kube-proxy syncs on these two; the endpoints they describe are the same.
        (
            Kind::EndpointSlice,
            with(slice.clone(), "/metadata/annotations", json!({ "a": "b" })),
        ),
        (
            Kind::EndpointSlice,
            with(slice, "/endpoints/0/targetRef", json!({ "kind": "Pod" })),
        ),
    ];
    for (kind, object) in ignored {
        assert!(
            !tracker.on(converted(kind, object.clone()).unwrap()),
            "{object}"
        );
    }
}
