//! Nodes and ServiceCIDRs.

use ferrule_core::model::{Node, ServiceCidr};
use ferrule_core::track;

use super::*;

fn node(json: Value) -> (Node, Event) {
    let event = converted(Kind::Node, json).unwrap();
    match &event {
        Event::Put {
            object: track::Object::Node(node),
            ..
        } => (node.clone(), event),
        other => panic!("{other:?}"),
    }
}

fn service_cidr(json: Value) -> (ServiceCidr, Event) {
    let event = converted(Kind::ServiceCidr, json).unwrap();
    match &event {
        Event::Put {
            object: track::Object::ServiceCidr(cidr),
            ..
        } => (cidr.clone(), event),
        other => panic!("{other:?}"),
    }
}

#[test]
fn other_nodes_are_ignored() {
    let other = json!({ "metadata": { "name": "there" } });
    assert!(converted(Kind::Node, other).is_none());
}

#[test]
fn internal_addresses_come_before_external_ones() {
    let (node, event) = node(json!({
        "metadata": { "name": "here" },
        "status": { "addresses": [
            { "type": "Hostname", "address": "here.example" },
            { "type": "ExternalIP", "address": "203.0.113.7" },
            { "type": "InternalIP", "address": "010.0.0.7" },
            { "type": "InternalIP", "address": "here" },
            { "type": "InternalIP", "address": "fd00::7" },
        ]},
    }));
    let addresses: Vec<String> = node.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.7", "fd00::7", "203.0.113.7"]);
    assert_eq!(
        issues(&event),
        ["status.addresses[3].address: \"here\" is not an address; it is left out"]
    );
}

#[test]
fn an_empty_zone_is_a_zone() {
    let zone = |labels: Value| {
        let (node, _) = node(json!({ "metadata": { "name": "here", "labels": labels } }));
        node.zone.as_deref().map(str::to_owned)
    };
    assert_eq!(
        zone(json!({ "topology.kubernetes.io/zone": "a" })).as_deref(),
        Some("a")
    );
    assert_eq!(
        zone(json!({ "topology.kubernetes.io/zone": "" })).as_deref(),
        Some("")
    );
    assert_eq!(zone(json!({ "other": "a" })), None);
}

#[test]
fn pod_networks_fall_back_to_the_single_one() {
    let nets = |spec: Value| {
        let (node, event) = node(json!({ "metadata": { "name": "here" }, "spec": spec }));
        let nets: Vec<String> = node.pod_cidrs.iter().map(ToString::to_string).collect();
        (nets.join(" "), fields(&event).join(" "))
    };
    let both = json!({ "podCIDR": "10.9.0.0/24", "podCIDRs": ["10.1.0.0/24", "x", "fd00::/64"] });
    assert_eq!(
        nets(both),
        ("10.1.0.0/24 fd00::/64".into(), "spec.podCIDRs[1]".into())
    );
    assert_eq!(
        nets(json!({ "podCIDR": "10.9.0.0/24" })),
        ("10.9.0.0/24".into(), String::new())
    );
    assert_eq!(
        nets(json!({ "podCIDR": "x" })),
        (String::new(), "spec.podCIDR".into())
    );
}

#[test]
fn service_networks_keep_what_can_be_read() {
    let (cidr, event) = service_cidr(json!({
        "metadata": { "name": "kubernetes" },
        "spec": { "cidrs": ["172.30.0.0/16", "172.30.0.0/64", "fd00:30::/108"] },
    }));
    assert_eq!(&*cidr.name, "kubernetes");
    let nets: Vec<String> = cidr.cidrs.iter().map(ToString::to_string).collect();
    assert_eq!(nets, ["172.30.0.0/16", "fd00:30::/108"]);
    assert_eq!(fields(&event), ["spec.cidrs[1]"]);
}

#[test]
fn a_node_that_is_deleted_or_marked_by_the_autoscaler_is_leaving() {
    let plain = json!({ "metadata": { "name": "here" }, "spec": { "taints": null } });
    assert!(!node(plain.clone()).0.leaving);
    let other = json!([{ "key": "node.kubernetes.io/unreachable", "effect": "NoExecute" }]);
    assert!(!node(with(plain.clone(), "/spec/taints", other)).0.leaving);
    let marked = json!([{ "key": "ToBeDeletedByClusterAutoscaler", "value": "1" }]);
    assert!(node(with(plain.clone(), "/spec/taints", marked)).0.leaving);
    let deleted = with(
        plain,
        "/metadata/deletionTimestamp",
        json!("2026-01-01T00:00:00Z"),
    );
    assert!(node(deleted).0.leaving);
}
