//! EndpointSlices: owners, ports, endpoints, hints.

use std::time::{Duration, SystemTime};

use std::sync::Arc;

use ferrule_core::model::{Family, Protocol, Slice, SliceEndpoint};
use ferrule_core::track;

use super::*;

/// A slice with nothing wrong.
fn plain() -> Value {
    json!({
        "metadata": {
            "namespace": "ns", "name": "web-1",
            "labels": { "kubernetes.io/service-name": "web" },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "protocol": "TCP", "port": 8080 }],
        "endpoints": [{ "addresses": ["10.1.0.5"] }],
    })
}

fn event(json: Value) -> Event {
    converted(Kind::EndpointSlice, json).unwrap()
}

fn put(json: Value) -> (Slice, Event) {
    let event = event(json);
    match &event {
        Event::Put {
            object: track::Object::Slice(slice),
            ..
        } => (slice.clone(), event),
        other => panic!("{other:?}"),
    }
}

fn is_gone(event: &Event) -> bool {
    matches!(event, Event::Gone { key, .. } if key.to_string() == "EndpointSlice ns/web-1")
}

fn endpoint(json: Value) -> SliceEndpoint {
    put(with(plain(), "/endpoints/0", json)).0.endpoints[0].clone()
}

#[test]
fn a_good_slice_is_taken_whole_and_without_remark() {
    let (slice, event) = put(plain());
    assert_eq!(issues(&event), Vec::<String>::new());
    assert_eq!(
        (slice.key.as_str(), slice.service.as_str()),
        ("ns/web-1", "ns/web")
    );
    assert_eq!(slice.family, Family::V4);
    let port = &slice.ports[0];
    assert_eq!(
        (&*port.name, port.protocol, port.port.get()),
        ("http", Protocol::Tcp, 8080)
    );
    assert_eq!(slice.endpoints[0].ip.to_string(), "10.1.0.5");
    assert!(matches!(event, Event::Put { trigger: None, .. }));
}

#[test]
fn core_087_unusable_slices_and_ports_are_skipped() {
    let fqdn = event(with(plain(), "/addressType", json!("FQDN")));
    assert!(is_gone(&fqdn));
    assert_eq!(
        (fields(&fqdn), severities(&fqdn)),
        (vec!["addressType".into()], vec![Severity::Note])
    );
    let odd = event(with(plain(), "/addressType", json!("ipv4")));
    assert!(is_gone(&odd));
    assert_eq!(severities(&odd), [Severity::Warning]);

    for labels in [
        json!({}),
        json!({ "kubernetes.io/service-name": "" }),
        json!(null),
    ] {
        let orphan = event(with(plain(), "/metadata/labels", labels));
        assert!(is_gone(&orphan));
        assert_eq!(
            fields(&orphan),
            ["metadata.labels[kubernetes.io/service-name]"]
        );
        assert_eq!(severities(&orphan), [Severity::Warning]);
    }

    let ports = json!([
        { "port": 1 },
        { "name": "none" },
        { "name": "zero", "port": 0 },
        { "name": "big", "port": 70000 },
        { "name": "odd", "port": 2, "protocol": "tcp" },
        { "name": "", "port": 3 },
        { "name": "dns", "port": 53, "protocol": "UDP" },
    ]);
    let (slice, event) = put(with(plain(), "/ports", ports));
    let kept: Vec<_> = slice
        .ports
        .iter()
        .map(|p| (&*p.name, p.protocol, p.port.get()))
        .collect();
    assert_eq!(kept, [("", Protocol::Tcp, 3), ("dns", Protocol::Udp, 53)]);
    assert_eq!(
        issues(&event),
        [
            "ports[0].name: missing; the port is left out",
            "ports[1].port: missing; the port is left out",
            "ports[2].port: 0 is not a port number; the port is left out",
            "ports[3].port: 70000 is not a port number; the port is left out",
            "ports[4].protocol: \"tcp\" is not a protocol; the port is left out",
        ]
    );
    assert_eq!(slice.endpoints.len(), 1);
}

#[test]
fn slices_of_headless_and_otherwise_proxied_services_are_gone_silently() {
    for label in [
        "service.kubernetes.io/headless",
        "service.kubernetes.io/service-proxy-name",
    ] {
        let labels = json!({ "kubernetes.io/service-name": "web", label: "" });
        let event = event(with(plain(), "/metadata/labels", labels));
        assert!(is_gone(&event));
        assert_eq!(fields(&event), Vec::<String>::new());
    }
}

#[test]
fn core_088_unknown_conditions_mean_ready_serving_and_not_terminating() {
    let state = |conditions: Value| {
        let one = endpoint(json!({ "addresses": ["10.1.0.5"], "conditions": conditions }));
        (one.ready, one.serving, one.terminating)
    };
    for unknown in [
        json!(null),
        json!({}),
        json!({ "ready": null, "terminating": null }),
    ] {
        assert_eq!(state(unknown), (true, true, false));
    }
    // Nothing is derived from anything else.
    assert_eq!(state(json!({ "terminating": true })), (true, true, true));
    assert_eq!(state(json!({ "ready": false })), (false, true, false));
    assert_eq!(
        state(json!({ "ready": true, "serving": false })),
        (true, false, false)
    );
}

#[test]
fn core_090_only_the_first_address_counts() {
    let one = endpoint(json!({ "addresses": ["10.1.0.5", "bad", "10.1.0.6"] }));
    assert_eq!(one.ip.to_string(), "10.1.0.5");
}

#[test]
fn core_091_endpoint_addresses_are_canonical() {
    assert_eq!(
        endpoint(json!({ "addresses": ["010.001.0.5"] }))
            .ip
            .to_string(),
        "10.1.0.5"
    );
    let six = with(plain(), "/addressType", json!("IPv6"));
    let (slice, _) = put(with(six, "/endpoints/0/addresses", json!(["FD00:1:0::05"])));
    assert_eq!(slice.endpoints[0].ip.to_string(), "fd00:1::5");
}

#[test]
fn core_092_local_means_exactly_this_node() {
    let local =
        |node: Value| endpoint(json!({ "addresses": ["10.1.0.5"], "nodeName": node })).local;
    assert!(local(json!("here")));
    for other in [
        json!("Here"),
        json!("there"),
        json!(""),
        json!("here "),
        json!(null),
    ] {
        assert!(!local(other));
    }
    // Whoever does not know its own name has no local endpoints.
    let nameless: api::Object =
        serde_json::from_value(with(plain(), "/endpoints/0/nodeName", json!(""))).unwrap();
    let Some(Event::Put {
        object: track::Object::Slice(slice),
        ..
    }) = convert(Kind::EndpointSlice, nameless, "")
    else {
        panic!()
    };
    assert!(!slice.endpoints[0].local);
}

#[test]
fn bad_endpoints_are_left_out_and_the_others_stay() {
    let endpoints = json!([
        { "addresses": [] },
        { "addresses": ["10.1.0.1"] },
        { "addresses": ["bad"] },
        null,
        { "addresses": ["fd00::1"] },
        { "addresses": ["10.1.0.1"] },
    ]);
    let (slice, event) = put(with(plain(), "/endpoints", endpoints));
    // Duplicates are the core's to tell.
    assert_eq!(slice.endpoints.len(), 2);
    assert_eq!(
        issues(&event),
        [
            "endpoints[0].addresses: empty; the endpoint is left out",
            "endpoints[2].addresses: \"bad\" is not an address; the endpoint is left out",
            "endpoints[3].addresses: empty; the endpoint is left out",
            "endpoints[4].addresses: fd00::1 is not IPv4 as addressType says; the endpoint is \
             left out",
        ]
    );
}

#[test]
fn of_many_bad_endpoints_the_first_five_are_named_and_the_rest_counted() {
    let bad = vec![json!({ "addresses": ["bad"] }); 1_000];
    let (_, event) = put(with(plain(), "/endpoints", json!(bad)));
    let issues = issues(&event);
    assert_eq!(issues.len(), 6);
    assert_eq!(issues[5], "endpoints: and 995 more are left out");
    let (_, event) = put(with(plain(), "/endpoints", json!(bad[..5])));
    assert_eq!(fields(&event).len(), 5);
}

#[test]
fn no_hints_and_empty_hints_are_none() {
    for hints in [
        json!(null),
        json!({}),
        json!({ "forZones": [], "forNodes": null }),
    ] {
        let one = endpoint(json!({ "addresses": ["10.1.0.5"], "hints": hints }));
        assert_eq!((one.node_hint, one.zone_hints), (None, None));
    }
}

#[test]
fn node_hints_say_whether_this_node_is_meant() {
    let hint = |nodes: Value| {
        let hints = json!({ "forNodes": nodes });
        endpoint(json!({ "addresses": ["10.1.0.5"], "hints": hints })).node_hint
    };
    assert_eq!(
        hint(json!([{ "name": "there" }, { "name": "here" }])),
        Some(true)
    );
    assert_eq!(hint(json!([{ "name": "there" }])), Some(false));
}

#[test]
fn equal_zone_hints_of_a_slice_are_one_set() {
    let hinted = |zones: &[&str]| {
        let zones: Vec<Value> = zones.iter().map(|name| json!({ "name": name })).collect();
        json!({ "addresses": ["10.1.0.5"], "hints": { "forZones": zones } })
    };
    let endpoints = json!([
        hinted(&["b", "a"]),
        hinted(&["a", "b", "a"]),
        hinted(&["c"])
    ]);
    let (slice, _) = put(with(plain(), "/endpoints", endpoints));
    let zones = |index: usize| slice.endpoints[index].zone_hints.as_ref().unwrap();
    assert_eq!(
        zones(0).iter().map(|zone| &**zone).collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert!(Arc::ptr_eq(zones(0), zones(1)));
    assert!(!Arc::ptr_eq(zones(0), zones(2)));
    assert!(slice.endpoints[2].hinted_for_zone("c"));
}

#[test]
fn the_trigger_time_is_read_to_the_nanosecond() {
    let at = |text| {
        let note = json!({ "endpoints.kubernetes.io/last-change-trigger-time": text });
        match event(with(plain(), "/metadata/annotations", note)) {
            Event::Put { trigger, .. } => trigger,
            other => panic!("{other:?}"),
        }
    };
    let second = SystemTime::UNIX_EPOCH + Duration::from_secs(1_735_787_045);
    assert_eq!(at(json!("2025-01-02T03:04:05Z")), Some(second));
    let nanos = second + Duration::from_nanos(123_456_789);
    assert_eq!(
        at(json!("2025-01-02T04:04:05.123456789+01:00")),
        Some(nanos)
    );
    assert_eq!(at(json!("soon")), None);
}

#[test]
fn ten_thousand_endpoints_fit_one_slice() {
    let endpoints: Vec<Value> = (0..10_000)
        .map(|n| {
            json!({
                "addresses": [format!("10.{}.{}.{}", n / 65_536, n / 256 % 256, n % 256)],
                "nodeName": if n % 100 == 0 { "here" } else { "there" },
                "hints": { "forZones": [{ "name": format!("zone-{}", n % 3) }] },
            })
        })
        .collect();
    let (slice, event) = put(with(plain(), "/endpoints", json!(endpoints)));
    assert_eq!(slice.endpoints.len(), 10_000);
    assert_eq!(slice.endpoints.iter().filter(|one| one.local).count(), 100);
    assert_eq!(issues(&event), Vec::<String>::new());
    let zones = |index: usize| slice.endpoints[index].zone_hints.as_ref().unwrap();
    assert!(
        (0..10_000)
            .step_by(3)
            .all(|index| Arc::ptr_eq(zones(0), zones(index)))
    );
}
