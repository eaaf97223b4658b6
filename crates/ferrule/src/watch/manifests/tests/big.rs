//! Documents of the size of a large cluster, and one that only pretends to be small.

use std::fmt::Write as _;

use super::*;

#[test]
fn ten_thousand_endpoints_fit_one_yaml_document() {
    let mut text = String::from(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: a-1\n  \
         labels:\n    kubernetes.io/service-name: a\naddressType: IPv4\nendpoints:\n",
    );
    for n in 0..10_000 {
        writeln!(
            text,
            "- addresses: [10.0.{}.{}]\n  conditions: {{ready: true, serving: true, terminating: \
             false}}\n  nodeName: node-{n}\n  targetRef:\n    kind: Pod\n    namespace: default\n    \
             name: pod-{n}\n    uid: 00000000-0000-0000-0000-000000000000\n  hints:\n    \
             forZones:\n    - name: zone-{}",
            n / 256,
            n % 256,
            n % 3
        )
        .unwrap();
    }
    let events = yaml(&text);
    let endpoints = events.iter().find_map(|event| match event {
        Event::Put {
            object: Object::Slice(slice),
            ..
        } => Some(slice.endpoints.len()),
        _ => None,
    });
    assert_eq!(endpoints, Some(10_000));
}

#[test]
fn ten_thousand_services_fit_one_list_and_may_share_an_anchor() {
    let mut text = String::from("apiVersion: v1\nkind: List\nitems:\n");
    for n in 0..10_000 {
        let labels = if n == 0 {
            "&labels {app: web, tier: front}"
        } else {
            "*labels"
        };
        writeln!(
            text,
            "- apiVersion: v1\n  kind: Service\n  metadata:\n    name: web-{n}\n    labels: \
             {labels}\n    annotations: {{note: \"{}\"}}\n  spec:\n    clusterIP: 172.30.{}.{}\n    \
             ports:\n    - {{name: http, port: 80, targetPort: 8080}}",
            "x".repeat(100),
            n / 256,
            n % 256
        )
        .unwrap();
    }
    assert_eq!(names(&yaml(&text)).len(), 10_000);
}

#[test]
fn an_annotation_longer_than_a_yaml_key_may_be_is_fine() {
    let note = "x".repeat(100_000);
    let text = service("a", "172.30.0.1").replace(
        "  name: a\n",
        &format!("  name: a\n  annotations: {{plain: {note}, quoted: \"{note}\"}}\n"),
    );
    assert_eq!(names(&yaml(&text)), ["Service default/a"]);
}

#[test]
fn a_document_that_grows_by_its_aliases_is_refused() {
    let mut text =
        String::from("apiVersion: v1\nkind: Service\nmetadata: {name: a}\na0: &a0 [x]\n");
    for n in 1..30 {
        let before = n - 1;
        writeln!(
            text,
            "a{n}: &a{n} [{}]",
            vec![format!("*a{before}"); 10].join(", ")
        )
        .unwrap();
    }
    assert!(read_file("bomb.yaml", &text).is_err());
}
