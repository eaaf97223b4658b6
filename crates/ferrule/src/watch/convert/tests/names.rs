//! Names that no API server would have accepted.

use super::*;

/// Ends a comment of iptables-restore, a string of JSON, and a line.
const ODD: &str = "a\" -j ACCEPT\n\\";

fn object() -> Value {
    json!({
        "metadata": {
            "namespace": "ns", "name": "web", "labels": { "kubernetes.io/service-name": "web" },
        },
        "spec": {
            "clusterIP": "10.96.0.1",
            "ports": [{ "name": "http", "port": 80 }, { "name": "dns", "port": 53 }],
        },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": 8080 }, { "name": "dns", "port": 53 }],
    })
}

#[test]
fn an_object_with_a_name_that_cannot_be_is_left_out_and_reported() {
    for (kind, path, bad, field) in [
        (
            Kind::Service,
            "/metadata/namespace",
            ODD,
            "metadata.namespace",
        ),
        (Kind::Service, "/metadata/name", ODD, "metadata.name"),
        (Kind::Service, "/metadata/name", "a.b", "metadata.name"),
        (
            Kind::EndpointSlice,
            "/metadata/namespace",
            "a.b",
            "metadata.namespace",
        ),
        (Kind::EndpointSlice, "/metadata/name", ODD, "metadata.name"),
        (Kind::ServiceCidr, "/metadata/name", "a_b", "metadata.name"),
        (
            Kind::EndpointSlice,
            "/metadata/labels/kubernetes.io~1service-name",
            ODD,
            "metadata.labels[kubernetes.io/service-name]",
        ),
    ] {
        let event = converted(kind, with_pointer(object(), path, json!(bad))).unwrap();
        assert!(matches!(event, Event::Gone { .. }), "{path}: {event:?}");
        assert_eq!(fields(&event), [field]);
        let text = issues(&event).concat();
        assert!(!text.contains('\n') && text.contains("left out"), "{text}");
        assert!(!key_of(&event).to_string().contains('\n'));
    }
    let node = json!({ "metadata": { "name": "No_Node" } });
    let event = convert(Kind::Node, serde_json::from_value(node).unwrap(), "No_Node").unwrap();
    assert_eq!(fields(&event), ["metadata.name"]);
}

#[test]
fn a_port_with_a_name_that_cannot_be_costs_that_port_alone() {
    for (kind, path, field) in [
        (Kind::Service, "/spec/ports/0/name", "spec.ports[0].name"),
        (Kind::EndpointSlice, "/ports/0/name", "ports[0].name"),
    ] {
        let event = converted(kind, with_pointer(object(), path, json!(ODD))).unwrap();
        assert_eq!(fields(&event), [field]);
        let Event::Put { object, .. } = event else {
            panic!("{event:?}");
        };
        let names: Vec<String> = match object {
            Object::Service(service) => service.ports.iter().map(|p| p.name.to_string()).collect(),
            Object::Slice(slice) => slice.ports.iter().map(|p| p.name.to_string()).collect(),
            other => panic!("{other:?}"),
        };
        assert_eq!(names, ["dns"]);
    }
}

fn key_of(event: &Event) -> ObjectKey {
    match event {
        Event::Gone { key, .. } => key.clone(),
        _ => panic!("{event:?}"),
    }
}

fn with_pointer(mut object: Value, path: &str, value: Value) -> Value {
    *object.pointer_mut(path).unwrap() = value;
    object
}
