//! What only the kernel knows, told by `ferrule explain` beside a proxy that programs it.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use ferrule_kernel::conntrack::{Conntrack, Flow, Tuple};
use ferrule_testbed::{in_namespace, run};

use crate::proxy::{free_address, until};
use crate::{ferrule, text};

struct Node {
    child: Child,
    folder: tempfile::TempDir,
}

impl Drop for Node {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

const CLUSTER: &str = "\
apiVersion: v1
kind: Node
metadata: {name: node-a}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: kube-system}
spec: {clusterIP: 10.96.0.10, ports: [{name: dns, port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dns-1, namespace: kube-system, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports: [{name: dns, port: 53, protocol: UDP}]
endpoints: [{addresses: [10.1.0.1], nodeName: node-a}]
---
apiVersion: v1
kind: Service
metadata: {name: lb, namespace: shop}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.11
  externalTrafficPolicy: Local
  healthCheckNodePort: 32100
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: lb-1, namespace: shop, labels: {kubernetes.io/service-name: lb}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.1.0.2], nodeName: node-a}]
---
apiVersion: v1
kind: Service
metadata: {name: sticky, namespace: shop}
spec: {clusterIP: 10.96.0.12, sessionAffinity: ClientIP, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sticky-1, namespace: shop, labels: {kubernetes.io/service-name: sticky}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.1.0.2]}, {addresses: [10.1.0.3]}]
";

impl Node {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cluster = folder.path().join("cluster.yaml");
        fs::write(&cluster, CLUSTER).unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let child = ferrule()
            .args([
                "proxy",
                "--proxy-mode=nftables",
                "--hostname-override=node-a",
            ])
            .args([
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0",
            ])
            .args([
                "--conntrack-tcp-timeout-close-wait=0",
                "--nodeport-addresses=127.0.0.0/8",
            ])
            .arg("--manifests")
            .arg(cluster)
            .arg(format!("--healthz-bind-address={}", free_address()))
            .arg(format!("--metrics-bind-address={}", free_address()))
            .arg(format!(
                "--admin-socket={}",
                folder.path().join("s").display()
            ))
            .stderr(log)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let node = Self { child, folder };
        node.until_says("kube-system/dns", "The kernel has this (IPv4");
        node
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    fn says(&self, arguments: &[&str]) -> String {
        let mut command = ferrule();
        command
            .arg("explain")
            .args(arguments)
            .arg("--socket")
            .arg(self.socket());
        text(&command.output().unwrap().stdout)
    }

    fn until_says(&self, target: &str, words: &str) -> String {
        let log = || fs::read_to_string(self.folder.path().join("log")).unwrap();
        until(&format!("{words}: {}", log()), || {
            let said = self.says(&[target]);
            said.contains(words).then_some(said)
        })
    }
}

fn first_three(said: &str) -> String {
    said.lines().take(3).collect::<Vec<_>>().join("\n")
}

fn flow(client: &str, service: &str, endpoint: &str) -> Flow {
    let socket = |text: &str| text.parse::<SocketAddr>().unwrap();
    let original = Tuple {
        source: socket(client),
        destination: socket(service),
        protocol: 17,
    };
    let reply = Tuple {
        source: socket(endpoint),
        destination: original.source,
        protocol: 17,
    };
    Flow {
        timeout: 600,
        ..Flow::new(original, reply)
    }
}

#[test]
fn flows_to_endpoints_that_are_gone_are_in_the_first_three_lines() {
    in_namespace(|| {
        let node = Node::start();
        let mut conntrack = Conntrack::open().unwrap();
        for (client, endpoint) in [
            ("10.1.0.5:4000", "10.1.0.1:53"),
            ("10.1.0.6:4000", "10.1.0.9:53"),
        ] {
            let flow = flow(client, "10.96.0.10:53", endpoint);
            conntrack.insert(&flow).unwrap();
        }
        let said = node.says(&["kube-system/dns"]);
        let gone = "1 live flow over UDP of kube-system/dns:dns to endpoints that are gone: 10.1.0.9:53 from 10.1.0.6";
        assert!(first_three(&said).contains(gone), "{said}");
        assert!(said.contains("conntrack -D"), "{said}");
        let listed = "to endpoints that are listed: 10.1.0.1:53 from 10.1.0.5.";
        assert!(said.contains(listed), "{said}");
        // Of one client.
        let said = node.says(&["10.96.0.10:53/UDP", "--from", "10.1.0.5"]);
        assert!(said.contains("10.1.0.5 has 1 live flow"), "{said}");
        assert!(!said.contains("gone"), "{said}");
        // Another Service has none.
        assert!(!node.says(&["shop/lb"]).contains("live flow"));
    });
}

#[test]
fn external_changes_that_were_repaired_are_told() {
    in_namespace(|| {
        let node = Node::start();
        run("nft", &["delete", "table", "ip", "kube-proxy"]);
        let said = node.until_says(
            "kube-system/dns",
            "changed the rules of IPv4; they were repaired",
        );
        assert!(first_three(&said).contains("they were repaired"), "{said}");
    });
}

#[test]
fn a_health_check_port_that_is_taken_is_in_the_first_three_lines() {
    in_namespace(|| {
        let _taken = TcpListener::bind("127.0.0.1:32100").unwrap();
        let node = Node::start();
        let said = node.until_says("shop/lb", "health check on port 32100 gets no answer");
        assert!(first_three(&said).contains("gets no answer"), "{said}");
    });
}

#[test]
fn a_client_is_told_with_which_endpoint_it_stays() {
    in_namespace(|| {
        let node = Node::start();
        let ask = || node.says(&["shop/sticky", "--from", "10.1.0.5"]);
        let said = ask();
        assert!(
            said.contains("10.1.0.5 stays with no endpoint yet"),
            "{said}"
        );
        let set = "ferrule-affinity-shop.sticky.http.tcp-10.1.0.3.8080";
        let element = ["{ 10.1.0.5 timeout 600s }"];
        let words = [&["add", "element", "ip", "kube-proxy", set][..], &element].concat();
        run("nft", &words);
        let said = ask();
        assert!(
            said.contains("10.1.0.5 stays with 10.1.0.3:8080 for "),
            "{said}"
        );
        // Others do not, and Services without session affinity have no such sentence.
        let other = node.says(&["shop/sticky", "--from", "10.1.0.6"]);
        assert!(
            other.contains("10.1.0.6 stays with no endpoint yet"),
            "{other}"
        );
        let plain = node.says(&["shop/lb", "--from", "10.1.0.5"]);
        assert!(!plain.contains("stays with"), "{plain}");
    });
}

#[test]
fn manifests_and_the_running_proxy_are_compared() {
    in_namespace(|| {
        let node = Node::start();
        let manifests = |name: &str, content: &str| {
            let path = node.folder.path().join(name);
            fs::write(&path, content).unwrap();
            path
        };
        let compare = |path: &Path| {
            node.says(&[
                "kube-system/dns",
                "--node",
                "node-a",
                "--manifests",
                path.to_str().unwrap(),
            ])
        };
        let same = manifests("same.yaml", CLUSTER);
        let said = compare(&same);
        let first = "The running proxy of node-a agrees with the manifests.";
        assert!(said.starts_with(first), "{said}");
        let other = manifests("other.yaml", &CLUSTER.replace("[10.1.0.1]", "[10.1.0.7]"));
        let said = compare(&other);
        assert!(
            said.starts_with("The running proxy and the manifests differ in 2 things:"),
            "{said}"
        );
        assert!(
            said.contains(
                "only the manifests: kube-system/dns:dns (IPv4/UDP): endpoint 10.1.0.7:53 is chosen"
            ),
            "{said}"
        );
        assert!(
            said.contains(
                "only the proxy: kube-system/dns:dns (IPv4/UDP): endpoint 10.1.0.1:53 is chosen"
            ),
            "{said}"
        );
    });
}
