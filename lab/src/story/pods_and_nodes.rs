//! Pods and Nodes in short form: who is on stage beside the Services.
//!
//! ```yaml
//! - { pod: a1, labels: { app: web }, ready: false, ports: { http: 8080 } }
//! - { node: node1, labels: { topology.kubernetes.io/zone: west }, taints: [] }
//! - { node: node1, addresses: [172.19.0.1] }     # what its status says
//! - { node: node1, leaving: true }               # deleted, and kept by a finalizer
//! ```

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::plan::{self, Family, Kind};

/// A Pod object of one of the lab's pods, as a kubelet would report it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pod {
    #[serde(rename = "pod")]
    name: String,
    #[serde(default)]
    labels: Map<String, Value>,
    #[serde(default = "yes")]
    ready: bool,
    /// Named ports, for Services whose target is a name.
    #[serde(default)]
    ports: BTreeMap<String, u16>,
}

/// What is different about a Node; the rest stays.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    #[serde(rename = "node")]
    name: String,
    #[serde(default)]
    labels: Map<String, Value>,
    #[serde(default)]
    taints: Vec<Value>,
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    leaving: bool,
}

/// Keeps a deleted Node from being gone until the story ends.
const FINALIZER: &str = "lab.invalid/story";

fn yes() -> bool {
    true
}

impl Pod {
    pub fn object(&self, namespace: &str) -> Result<Value> {
        let pod = plan::pods().find(|pod| pod.name == self.name);
        let pod = pod.with_context(|| format!("there is no pod {}", self.name))?;
        let Kind::Pod(node) = pod.kind else {
            bail!("{} is not a pod", self.name);
        };
        let ready = if self.ready { "True" } else { "False" };
        let ports = self.ports.iter();
        let ports: Vec<_> = ports
            .map(|(name, number)| json!({ "name": name, "containerPort": number }))
            .collect();
        let ips = Family::BOTH.map(|family| json!({ "ip": pod.address(family).to_string() }));
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": self.name, "namespace": namespace, "labels": self.labels },
            "spec": {
                "nodeName": format!("node{node}"),
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "answers", "image": "none.invalid/answers", "ports": ports,
                }],
            },
            "status": {
                "phase": "Running",
                "podIP": pod.v4.to_string(),
                "podIPs": ips,
                "conditions": [{ "type": "Ready", "status": ready }],
            },
        }))
    }
}

impl Node {
    pub fn object(&self) -> Value {
        let mut object = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": { "name": self.name, "labels": self.labels },
            "spec": { "taints": self.taints },
        });
        if !self.addresses.is_empty() {
            let addresses = self.addresses.iter();
            let addresses: Vec<_> = addresses
                .map(|address| json!({ "type": "InternalIP", "address": address }))
                .collect();
            object["status"] = json!({ "addresses": addresses });
        }
        if self.leaving {
            object["metadata"]["finalizers"] = json!([FINALIZER]);
        }
        object
    }
}
