//! What counts as an object, and what is filled in.

use super::*;

const ALL_KINDS: &str = "
apiVersion: v1
kind: Node
metadata: {name: here, labels: {topology.kubernetes.io/zone: a}}
---
apiVersion: v1
kind: Node
metadata: {name: there}
---
apiVersion: networking.k8s.io/v1beta1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [172.30.0.0/16]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.5]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 172.30.0.1, ports: [{port: 80}]}
";

#[test]
fn every_kind_is_listed_completely_and_in_order() {
    let events = yaml(ALL_KINDS);
    assert_eq!(
        names(&events),
        [
            "Node here",
            "ServiceCIDR kubernetes",
            "Service default/web",
            "EndpointSlice default/web-1"
        ]
    );
    assert_eq!(issues(&events), Vec::<String>::new());
    let frame: Vec<String> = events
        .iter()
        .filter(|event| matches!(event, Event::Listing(_) | Event::Listed(_)))
        .map(|event| format!("{event:?}"))
        .collect();
    let expected: Vec<String> = Kind::ALL
        .iter()
        .flat_map(|k| [format!("Listing({k:?})"), format!("Listed({k:?})")])
        .collect();
    assert_eq!(frame, expected);
}

#[test]
fn an_empty_folder_is_an_empty_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let events = read(folder.path(), "here").unwrap();
    assert_eq!(events.len(), 2 * Kind::ALL.len());
    let mut tracker = Tracker::new(std::time::SystemTime::UNIX_EPOCH);
    assert!(services(&mut tracker, events).is_empty());
    assert!(tracker.is_ready());
}

#[test]
fn deleted_objects_vanish_when_read_again() {
    let mut tracker = Tracker::new(std::time::SystemTime::UNIX_EPOCH);
    let both = format!(
        "{}---\n{}",
        service("a", "172.30.0.1"),
        service("b", "172.30.0.2")
    );
    assert_eq!(
        services(&mut tracker, yaml(&both)),
        ["default/a", "default/b"]
    );
    assert_eq!(
        services(&mut tracker, yaml(&service("b", "172.30.0.2"))),
        ["default/b"]
    );
    assert!(tracker.entry(&ServiceKey::new("default", "a")).is_none());
}

#[test]
fn other_kinds_are_ignored_even_if_they_would_not_decode() {
    let foreign = "
apiVersion: example.com/v1
kind: Odd
metadata: {name: [1, 2]}
spec: {ports: many, type: {a: b}}
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: knative}
spec: {ports: many}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: config}
data:
  a: |
    ---
    b: [
---
";
    let events = yaml(&format!("{foreign}{}", service("a", "172.30.0.1")));
    assert_eq!(names(&events), ["Service default/a"]);
    let json = r#"{"apiVersion": "example.com/v1", "kind": "Odd", "spec": 5}"#;
    assert_eq!(
        names(&read_file("odd.json", json).unwrap()),
        Vec::<String>::new()
    );
}

#[test]
fn lists_hold_objects_and_typed_lists_name_their_kind() {
    let list = "
apiVersion: v1
items:
- apiVersion: v1
  kind: Service
  metadata: {name: a, namespace: ns}
  spec: {clusterIP: 172.30.0.1}
- apiVersion: v1
  kind: Pod
  metadata: {name: p}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSliceList
  items:
  - metadata: {name: a-1, namespace: ns, labels: {kubernetes.io/service-name: a}}
    addressType: IPv4
kind: List
";
    assert_eq!(names(&yaml(list)), ["Service ns/a", "EndpointSlice ns/a-1"]);
    let typed = r#"{"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"},
        "items": [{"metadata": {"name": "a"}, "spec": {"clusterIP": "172.30.0.1"}}, null]}"#;
    assert_eq!(
        complaint("s.json", typed),
        "s.json: document 1, line 1, items[1]: Service without metadata.name"
    );
    let pods = "{kind: PodList, apiVersion: v1, items: [{metadata: 5}]}";
    assert_eq!(names(&yaml(pods)), Vec::<String>::new());
}

#[test]
fn a_mixed_list_ignores_items_that_would_not_decode() {
    let list = "
apiVersion: v1
kind: List
items:
- apiVersion: example.com/v1
  kind: Odd
  spec: {ports: many}
- apiVersion: v1
  kind: Service
  metadata: {name: a}
  spec:
    clusterIP: 172.30.0.1
    ports: [{port: 80}]
metadata: {}
";
    assert_eq!(names(&yaml(list)), ["Service default/a"]);
    let ours = list.replace("port: 80", "port: http");
    assert_eq!(
        complaint("l.yaml", ours),
        "l.yaml: document 1, line 13: expected an integer"
    );
    let unnamed = list.replace("name: a", "labels: {}");
    assert_eq!(
        complaint("l.yaml", unnamed),
        "l.yaml: document 1, line 2, items[1]: Service without metadata.name"
    );
}

#[test]
fn what_the_api_server_fills_in_is_filled_in() {
    let events = yaml(ALL_KINDS);
    let slice = events.iter().find_map(|event| match event {
        Event::Put {
            object: Object::Slice(slice),
            ..
        } => Some(slice.clone()),
        _ => None,
    });
    let port = slice.unwrap().ports[0].clone();
    assert_eq!(
        (&*port.name, port.protocol.as_str(), port.port.get()),
        ("", "TCP", 8080)
    );
}

fn only_service(content: &str) -> (ferrule_core::model::Service, Vec<String>) {
    let events = yaml(&format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: a}}\n{content}"
    ));
    let service = events.iter().find_map(|event| match event {
        Event::Put {
            object: Object::Service(service),
            ..
        } => Some(service.clone()),
        _ => None,
    });
    (service.unwrap(), issues(&events))
}

#[test]
fn a_service_may_name_its_addresses_in_any_of_the_ways_the_api_server_accepts() {
    let none = Vec::<String>::new();
    for spec in [
        "spec: {clusterIPs: [172.30.0.1, 'fd00:30::1']}",
        "spec: {clusterIP: 172.30.0.1, clusterIPs: [172.30.0.1, 'fd00:30::1']}",
    ] {
        let (service, issues) = only_service(spec);
        assert_eq!(
            (
                service.cluster_ips.v4.is_some(),
                service.cluster_ips.v6.is_some()
            ),
            (true, true)
        );
        assert_eq!(issues, none);
    }
    let (service, issues) = only_service("spec: {clusterIP: 172.30.0.1, ipFamilies: [IPv4]}");
    assert_eq!(
        (
            service.cluster_ips.v4.is_some(),
            service.cluster_ips.v6.is_some()
        ),
        (true, false)
    );
    assert_eq!(issues, none);
    // What cannot be read is still reported.
    let (service, issues) =
        only_service("spec: {clusterIPs: [172.30.0.1, bad], ipFamilies: [IPv4, IPv6]}");
    assert!(service.cluster_ips.v4.is_some());
    assert_eq!(issues.len(), 1);
}

#[test]
fn affinity_without_a_time_is_three_hours_and_no_issue() {
    let (service, issues) =
        only_service("spec: {clusterIP: 172.30.0.1, sessionAffinity: ClientIP}");
    assert_eq!(service.affinity_seconds.map(u32::from), Some(10_800));
    assert_eq!(issues, Vec::<String>::new());
}

#[test]
fn headless_services_and_bad_parts_are_no_errors() {
    let events =
        yaml("{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: None}}");
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::Gone { issues, .. } if issues.is_empty()))
    );
    let (service, issues) =
        only_service("spec: {clusterIP: 172.30.0.1, ports: [{port: 70000}, {port: 80}]}");
    assert_eq!(service.ports.len(), 1);
    assert_eq!(
        issues,
        ["Service default/a: spec.ports[0].port: 70000 is not a port number; the port is left out"]
    );
}

#[test]
fn what_a_list_is_may_be_written_behind_its_items() {
    let items = "items:
- metadata: {name: a}
  spec: {clusterIP: 172.30.0.1}
- metadata: {name: b}
  spec: {clusterIP: None}
- apiVersion: v1
  kind: Service
  metadata: {name: c}
  spec: {clusterIP: 172.30.0.3}
  items: [{apiVersion: v1, kind: Service, metadata: {name: inner}}]
";
    let typed = format!("{items}apiVersion: v1\nkind: ServiceList\n");
    let events = yaml(&typed);
    assert_eq!(names(&events), ["Service default/a", "Service default/c"]);
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::Gone { .. }))
    );
    for other in [
        "apiVersion: v1\nkind: PodList\n",
        "apiVersion: x/v1\nkind: ServiceList\n",
    ] {
        assert_eq!(names(&yaml(&format!("{items}{other}"))), [""; 0]);
    }
    assert_eq!(
        complaint("l.yaml", format!("{items}apiVersion: v1\nkind: List\n")),
        "l.yaml: document 1, line 1, items[0]: no kind"
    );
    assert_eq!(
        complaint("l.yaml", items),
        "l.yaml: document 1, line 1: no kind"
    );
}

#[test]
fn a_field_that_comes_twice_is_an_error() {
    for text in [
        r#"{"kind": "Node", "kind": "Node", "apiVersion": "v1", "metadata": {"name": "here"}}"#,
        r#"{"kind": "NodeList", "apiVersion": "v1", "items": [], "items": []}"#,
    ] {
        let message = complaint("n.json", text);
        assert!(message.contains("duplicate field"), "{message}");
    }
}
