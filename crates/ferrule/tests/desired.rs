//! `ferrule desired` as people and scripts run it.

#![expect(clippy::disallowed_methods, reason = "these tests run the program")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn ferrule() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ferrule"))
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn desired(manifests: &Path, extra: &[&str]) -> Output {
    ferrule()
        .args(["desired", "--node", "node-a", "--manifests"])
        .arg(manifests)
        .args(extra)
        .output()
        .expect("the program starts")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn rows(output: &Output) -> Vec<Value> {
    match serde_json::from_str(&stdout(output)).unwrap() {
        Value::Array(rows) => rows,
        other => panic!("not an array: {other}"),
    }
}

/// Rows of a cluster given as YAML, and what was said about it.
fn decide(yaml: &str) -> (Vec<Value>, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("cluster.yaml"), yaml).unwrap();
    let output = desired(folder.path(), &["-o", "json"]);
    (rows(&output), stderr(&output))
}

fn summary(rows: &[Value]) -> Vec<String> {
    rows.iter()
        .map(|row| {
            let text = |key: &str| row[key].as_str().unwrap().to_owned();
            let endpoints: Vec<_> = row["endpoints"]
                .as_array()
                .unwrap()
                .iter()
                .map(|e| e.as_str().unwrap())
                .collect();
            format!(
                "{} {} {}:{} {} {}",
                text("service"),
                text("kind"),
                text("address"),
                row["port"],
                text("action"),
                endpoints.join(",")
            )
            .trim_end()
            .to_owned()
        })
        .collect()
}

const GOOD: &str = "
apiVersion: v1
kind: Service
metadata: {name: good, namespace: ns}
spec:
  clusterIP: 10.96.0.1
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: good-1, namespace: ns, labels: {kubernetes.io/service-name: good}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.1.0.1]}]
---
";

const GOOD_ROW: &str = "ns/good ClusterIP 10.96.0.1:80 balance 10.1.0.1:8080";

#[test]
fn the_examples_read_as_a_table() {
    let text = stdout(&desired(&examples(), &["--cluster-cidr", "10.244.0.0/16"]));
    let expected = "\
SERVICE              KIND            ADDRESS              ACTION   ENDPOINTS                    NOTES
kube-system/dns:dns  ClusterIP       10.96.0.53:53/TCP    balance  10.244.1.2:53 10.244.2.2:53  masquerade from outside the pod network
kube-system/dns:dns  ClusterIP       10.96.0.53:53/UDP    balance  10.244.1.2:53 10.244.2.2:53  masquerade from outside the pod network
shop/catalog:http    ClusterIP       10.96.0.10:80/TCP    balance  10.244.1.5:8080              sticky 600s; masquerade from outside the pod network
shop/checkout:https  ClusterIP       10.96.0.20:443/TCP   balance  10.244.1.7:8443              masquerade from outside the pod network
shop/checkout:https  LoadBalancerIP  192.0.2.100:443/TCP  balance  10.244.1.7:8443              local endpoints only; from inside: 10.244.1.7:8443; only from 203.0.113.0/24 198.51.100.0/24; masquerade from this node; health check on 32100 reports 1
shop/checkout:https  NodePort        *:30443/TCP          balance  10.244.1.7:8443              IPv4 addresses of the node; local endpoints only; from inside: 10.244.1.7:8443; masquerade from this node; health check on 32100 reports 1
shop/idle            ClusterIP       10.96.0.30:80/TCP    reject   -
shop/idle            ExternalIP      192.0.2.101:80/TCP   reject   -
shop/idle            NodePort        *:30080/TCP          reject   -                            IPv4 addresses of the node
";
    assert_eq!(text, expected);
}

#[test]
fn json_has_one_sorted_object_per_address_with_stable_keys() {
    let rows = rows(&desired(&examples(), &["-o", "json", "--family", "ipv4"]));
    assert_eq!(rows.len(), 9);
    let checkout = rows
        .iter()
        .find(|row| row["kind"] == "LoadBalancerIP")
        .unwrap();
    let expected: Value = serde_json::json!({
        "service": "shop/checkout", "portName": "https", "protocol": "TCP", "family": "IPv4",
        "kind": "LoadBalancerIP", "address": "192.0.2.100", "port": 443, "action": "balance",
        "endpoints": ["10.244.1.7:8443"], "inClusterEndpoints": ["10.244.1.7:8443"],
        "trafficPolicy": "Local", "affinitySeconds": null,
        "sourceRanges": ["203.0.113.0/24", "198.51.100.0/24"], "masquerade": "node",
        "healthCheckNodePort": 32100, "healthCheckLocalEndpoints": 1,
    });
    assert_eq!(*checkout, expected);
    let order: Vec<_> = rows
        .iter()
        .map(|row| {
            [
                "service", "portName", "protocol", "family", "kind", "address",
            ]
            .map(|key| row[key].as_str().unwrap().to_owned())
        })
        .collect();
    assert!(order.is_sorted());
    assert!(self::rows(&desired(&examples(), &["-o", "json", "--family", "ipv6"])).is_empty());
}

#[test]
fn node_port_addresses_show_where_node_ports_answer() {
    let address = |words: &str| {
        let flag = format!("--nodeport-addresses={words}");
        let rows = rows(&desired(&examples(), &["-o", "json", &flag]));
        rows.iter().find(|row| row["kind"] == "NodePort").unwrap()["address"].clone()
    };
    assert_eq!(address("primary"), "192.0.2.11");
    assert_eq!(
        address("192.0.2.0/24,localhost"),
        "192.0.2.0/24,127.0.0.0/8"
    );
    assert_eq!(address("all"), "*");
}

#[test]
fn a_malformed_manifest_names_file_document_and_line_and_exits_1() {
    let folder = tempfile::tempdir().unwrap();
    let broken = format!("{GOOD}apiVersion: v1\nkind: Service\nmetadata: {{name: x]\n");
    let line = broken.lines().count();
    fs::write(folder.path().join("cluster.yaml"), broken).unwrap();
    let output = desired(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let text = stderr(&output);
    assert!(text.starts_with("Error: "), "{text}");
    assert!(text.contains("cluster.yaml: document 3"), "{text}");
    assert!(text.contains(&format!("line {line}")), "{text}");

    let output = desired(&folder.path().join("nowhere"), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nowhere"), "{}", stderr(&output));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table is one pattern repeated")]
fn bad_parts_are_left_out_and_named_and_every_other_service_works() {
    let service = |spec: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: bad, namespace: ns}}\nspec: {spec}\n"
        )
    };
    let slice = |rest: &str| {
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: bad-1, \
             namespace: ns, labels: {{kubernetes.io/service-name: good}}}}\n{rest}\n"
        )
    };
    let cases = [
        (
            service("{clusterIP: 10.96.0.300, ports: [{port: 80}]}"),
            "Service ns/bad: spec.clusterIP",
        ),
        (
            service("{clusterIP: 10.96.0.2, externalIPs: [nonsense], ports: [{port: 80}]}"),
            "Service ns/bad: spec.externalIPs[0]",
        ),
        (
            service(
                "{clusterIP: 10.96.0.2, clusterIPs: [10.96.0.2], ipFamilies: [IPv6], ports: [{port: 80}]}",
            ),
            "Service ns/bad: spec.clusterIPs[0]",
        ),
        (
            service("{clusterIP: 10.96.0.2, ports: [{port: 80, protocol: QUIC}]}"),
            "Service ns/bad: spec.ports[0].protocol",
        ),
        (
            service("{clusterIP: 10.96.0.2, ports: [{port: 0}]}"),
            "Service ns/bad: spec.ports[0].port",
        ),
        (
            service("{clusterIP: 10.96.0.2, ports: [{name: a, port: 81}, {name: b, port: 70000}]}"),
            "Service ns/bad: spec.ports[1].port",
        ),
        (
            service("{clusterIP: 10.96.0.2, ports: [{port: 80, nodePort: 70000}]}"),
            "Service ns/bad: spec.ports[0].nodePort",
        ),
        (
            service("{clusterIP: 10.96.0.2, ports: [{port: 80}]}"),
            "Service ns/bad: EndpointSlices",
        ),
        (
            slice(
                "addressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints: [{addresses: [nonsense]}]",
            ),
            "EndpointSlice ns/bad-1: endpoints[0].addresses",
        ),
        (
            slice(
                "addressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints: [{addresses: [\"fd00::1\"]}]",
            ),
            "EndpointSlice ns/bad-1: endpoints[0].addresses",
        ),
        (
            slice(
                "addressType: IPv4\nports: [{name: http, port: 70000}]\nendpoints: [{addresses: [10.1.0.9]}]",
            ),
            "EndpointSlice ns/bad-1: ports[0].port",
        ),
        (
            slice(
                "addressType: IPv4\nports: [{name: http, port: 80, protocol: X}]\nendpoints: [{addresses: [10.1.0.9]}]",
            ),
            "EndpointSlice ns/bad-1: ports[0].protocol",
        ),
        (
            slice(
                "addressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints: [{addresses: [10.1.0.1]}]",
            ),
            "endpoints: 10.1.0.1:8080 is listed more than once for ns/good",
        ),
        (
            slice(
                "addressType: FQDN\nports: [{name: http, port: 8080}]\nendpoints: [{addresses: [a.example]}]",
            ),
            "EndpointSlice ns/bad-1: addressType",
        ),
        (
            slice("addressType: IPv4\nports: []")
                .replace("service-name: good", "service-name: nobody"),
            "EndpointSlice ns/bad-1: metadata.labels[kubernetes.io/service-name]",
        ),
        (
            slice("addressType: IPv4\nports: []")
                .replace("kubernetes.io/service-name: good", "a: b"),
            "EndpointSlice ns/bad-1: metadata.labels[kubernetes.io/service-name]",
        ),
    ];
    for (bad, complaint) in cases {
        let (rows, told) = decide(&format!("{GOOD}{bad}"));
        assert!(told.contains(complaint), "{bad}\nsaid: {told}");
        assert!(
            summary(&rows).contains(&GOOD_ROW.to_owned()),
            "{bad}\n{:?}",
            summary(&rows)
        );
    }
}

#[test]
fn ten_thousand_endpoints_in_one_slice_are_all_there() {
    let addresses = (0..10_000).map(|n| format!("- addresses: [10.1.{}.{}]", n / 250, n % 250));
    let endpoints = addresses.collect::<Vec<_>>().join("\n");
    let yaml = GOOD.replace(
        "endpoints: [{addresses: [10.1.0.1]}]",
        &format!("endpoints:\n{endpoints}"),
    );
    let (rows, _) = decide(&yaml);
    assert_eq!(rows[0]["endpoints"].as_array().unwrap().len(), 10_000);
}

#[test]
fn other_kinds_are_passed_over_and_lists_are_opened() {
    let (rows, told) = decide(
        "
apiVersion: v1
kind: List
items:
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: x}
  spec: {ports: {not: a list}}
- apiVersion: v1
  kind: Service
  metadata: {name: a, namespace: ns}
  spec: {clusterIP: 10.96.0.9, ports: [{port: 80}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: x}
data: {a: b}
",
    );
    assert_eq!(
        summary(&rows),
        ["ns/a ClusterIP 10.96.0.9:80 reject"],
        "{told}"
    );
}

#[test]
fn watching_prints_what_becomes_different() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.yaml");
    fs::write(&file, GOOD).unwrap();
    let mut child = ferrule()
        .args(["desired", "--watch", "--node", "node-a", "--manifests"])
        .arg(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("SERVICE"));
    assert!(lines.next().unwrap().contains("10.1.0.1:8080"));
    // Broken for a moment, as while it is being edited, then good again.
    fs::write(&file, "kind: [").unwrap();
    fs::write(&file, GOOD.replace("10.1.0.1", "10.1.0.2")).unwrap();
    assert!(lines.next().unwrap().starts_with("- ns/good:http"));
    let now = lines.next().unwrap();
    assert!(
        now.starts_with("+ ns/good:http") && now.contains("10.1.0.2:8080"),
        "{now}"
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut child = ferrule()
        .args(["desired", "--node", "node-a", "--manifests"])
        .arg(examples())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
}

#[test]
fn help_and_usage_errors_are_readable() {
    let help = ferrule().args(["desired", "--help"]).output().unwrap();
    let text = stdout(&help);
    for flag in ["--manifests", "--node", "--family", "--output", "--watch"] {
        assert!(text.contains(flag), "{flag} is missing from\n{text}");
    }
    let output = ferrule()
        .args(["desired", "--manifests", "x"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("--node"));
}
