//! Short forms: what a story says in one line and Kubernetes in thirty.
//!
//! ```yaml
//! - service: web                      # a Service and its EndpointSlices, one per family
//!   ips: [10.96.1.1, fd00:10:96::101] # one address, or one of each family
//!   ports: [80->8080, dns 53->5353/udp @30053]
//!   endpoints: [a1, b1 terminating, b2 zone=west]
//!   spec: { type: NodePort }          # anything else in the Service's spec
//!   ingress: [192.0.2.1]              # what a cloud wrote to its status
//! - endpoints: { web: [a1] }          # the same Service with other endpoints
//! - change: web                       # the same Service, different in what is said here
//!   spec: { type: ClusterIP }
//! ```
//!
//! Pods and Nodes are in `pods_and_nodes`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::pods_and_nodes::{Node, Pod};
use crate::api;
use crate::plan::{self, Family, Kind};

/// A Service and its endpoints.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    #[serde(rename = "service")]
    name: String,
    ips: Vec<IpAddr>,
    ports: Vec<Word>,
    /// Without it there are no EndpointSlices: a controller makes them, or the story does.
    #[serde(default)]
    endpoints: Option<Vec<String>>,
    #[serde(default)]
    spec: Map<String, Value>,
    #[serde(default)]
    ingress: Option<Vec<Value>>,
    #[serde(default)]
    labels: Map<String, Value>,
}

/// What is different about a Service that was written before; the rest stays.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    #[serde(rename = "change")]
    name: String,
    ips: Option<Vec<IpAddr>>,
    ports: Option<Vec<Word>>,
    endpoints: Option<Vec<String>>,
    /// Field by field; null takes one away.
    #[serde(default)]
    spec: Map<String, Value>,
    ingress: Option<Vec<Value>>,
    labels: Option<Map<String, Value>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Endpoints {
    endpoints: BTreeMap<String, Vec<String>>,
}

/// A scalar, whatever YAML takes it for.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Word {
    Text(String),
    Number(u64),
}

impl Word {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
        }
    }
}

/// What has been written in short forms so far.
#[derive(Default)]
pub struct Memory {
    services: BTreeMap<String, Service>,
}

impl Memory {
    /// The Kubernetes objects an item stands for, in the order in which they are written.
    pub fn objects(&mut self, item: &Value, namespace: &str) -> Result<Vec<Value>> {
        if item.get("kind").is_some() {
            return Ok(vec![whole(item, namespace)?]);
        }
        if item.get("service").is_some() {
            let service: Service = read(item)?;
            let objects = service.objects(namespace)?;
            self.services.insert(service.name.clone(), service);
            return Ok(objects);
        }
        if item.get("change").is_some() {
            let change: Change = read(item)?;
            let service = self.services.get_mut(&change.name);
            let service =
                service.with_context(|| format!("no Service {} was written", change.name))?;
            service.change(change);
            return service.objects(namespace);
        }
        if item.get("endpoints").is_some() {
            return self.move_endpoints(&read(item)?, namespace);
        }
        if item.get("pod").is_some() {
            return Ok(vec![read::<Pod>(item)?.object(namespace)?]);
        }
        if item.get("node").is_some() {
            return Ok(vec![read::<Node>(item)?.object()]);
        }
        bail!("{item} is neither a Kubernetes object (it has no kind) nor a short form")
    }

    fn move_endpoints(&mut self, item: &Endpoints, namespace: &str) -> Result<Vec<Value>> {
        let mut objects = Vec::new();
        for (name, endpoints) in &item.endpoints {
            let service = self.services.get_mut(name);
            let service = service.with_context(|| format!("no Service {name} was written"))?;
            service.endpoints = Some(endpoints.clone());
            objects.extend(service.slices(namespace)?);
        }
        Ok(objects)
    }

    /// The cluster IP of a Service.
    pub fn address(&self, service: &str, family: Family) -> Option<IpAddr> {
        let mut ips = self.services.get(service)?.ips.iter().copied();
        ips.find(|ip| Family::of(*ip) == family)
    }

    /// What to take away for a word in a `delete` step.
    pub fn delete(&mut self, word: &str, namespace: &str) -> Result<Vec<Value>> {
        if let Some((kind, name)) = word.split_once('/') {
            return Ok(vec![whole(
                &json!({ "kind": kind, "metadata": { "name": name } }),
                namespace,
            )?]);
        }
        let service = self.services.remove(word);
        let service = service.with_context(|| format!("no Service {word} was written"))?;
        service.objects(namespace)
    }
}

/// Fails when an item cannot be understood.
pub fn check(item: &Value) -> Result<()> {
    let mut memory = Memory::default();
    // Which Services there are by then is not known before the story runs.
    if item.get("change").is_some() {
        let change: Change = read(item)?;
        let all = change.endpoints.iter().flatten();
        return all
            .map(|word| endpoint(word, Family::V4))
            .try_for_each(|read| read.map(|_| ()));
    }
    let whole = item.get("kind").or(item.get("service")).is_some();
    if item.get("endpoints").is_some() && !whole {
        let endpoints: Endpoints = read(item)?;
        let mut all = endpoints.endpoints.values().flatten();
        return all.try_for_each(|word| endpoint(word, Family::V4).map(|_| ()));
    }
    memory.objects(item, "check").map(|_| ())
}

fn read<T: serde::de::DeserializeOwned>(item: &Value) -> Result<T> {
    T::deserialize(item).with_context(|| format!("in {item}"))
}

/// A Kubernetes object with the parts every object has.
fn whole(object: &Value, namespace: &str) -> Result<Value> {
    let mut object = object.clone();
    let kind = object["kind"]
        .as_str()
        .context("an object has no kind")?
        .to_owned();
    if object.get("apiVersion").is_none() {
        object["apiVersion"] = api::version(&kind)?.into();
    }
    if api::is_namespaced(&kind)? && object["metadata"].get("namespace").is_none() {
        object["metadata"]["namespace"] = namespace.into();
    }
    Ok(object)
}

impl Service {
    fn change(&mut self, change: Change) {
        self.ips = change.ips.unwrap_or_else(|| self.ips.clone());
        self.ports = change.ports.unwrap_or_else(|| self.ports.clone());
        self.endpoints = change.endpoints.or_else(|| self.endpoints.clone());
        self.ingress = change.ingress.or_else(|| self.ingress.clone());
        self.labels = change.labels.unwrap_or_else(|| self.labels.clone());
        self.spec.extend(change.spec);
        self.spec.retain(|_, value| !value.is_null());
    }

    fn objects(&self, namespace: &str) -> Result<Vec<Value>> {
        let mut objects = vec![self.object(namespace)?];
        objects.extend(self.slices(namespace)?);
        Ok(objects)
    }

    fn object(&self, namespace: &str) -> Result<Value> {
        ensure!((1..=2).contains(&self.ips.len()), "one or two ips");
        let ports: Vec<_> = self.ports()?.iter().map(Port::of_service).collect();
        let mut spec = self.spec.clone();
        spec.insert("clusterIP".to_owned(), json!(self.ips[0]));
        spec.insert("clusterIPs".to_owned(), json!(self.ips));
        spec.insert("ports".to_owned(), json!(ports));
        let policy = ["SingleStack", "RequireDualStack"][self.ips.len() - 1];
        spec.entry("ipFamilyPolicy").or_insert(json!(policy));
        let mut object = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": self.name, "namespace": namespace, "labels": self.labels },
            "spec": spec,
        });
        // The API server clears it for every other type, and lets nobody write it.
        if self.spec.get("type") == Some(&json!("LoadBalancer")) {
            let written = self.ingress.iter().flatten();
            let ingress: Vec<_> = written.map(ingress).collect();
            object["status"] = json!({ "loadBalancer": { "ingress": ingress } });
        }
        Ok(object)
    }

    /// One slice per family, also when there is nobody in it.
    fn slices(&self, namespace: &str) -> Result<Vec<Value>> {
        let Some(endpoints) = &self.endpoints else {
            return Ok(Vec::new());
        };
        let ports: Vec<_> = self.ports()?.iter().map(Port::of_slice).collect();
        let families = self.ips.iter().map(|ip| Family::of(*ip));
        families
            .map(|family| {
                let (suffix, kind) = match family {
                    Family::V4 => ("4", "IPv4"),
                    Family::V6 => ("6", "IPv6"),
                };
                let endpoints: Result<Vec<_>> = endpoints
                    .iter()
                    .map(|word| endpoint(word, family))
                    .collect();
                Ok(json!({
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {
                        "name": format!("{}-{suffix}", self.name),
                        "namespace": namespace,
                        "labels": { "kubernetes.io/service-name": self.name },
                    },
                    "addressType": kind,
                    "endpoints": endpoints?,
                    "ports": ports,
                }))
            })
            .collect()
    }

    fn ports(&self) -> Result<Vec<Port>> {
        let alone = self.ports.len() == 1;
        self.ports
            .iter()
            .map(|word| Port::parse(&word.text(), alone))
            .collect()
    }
}

/// The ports of an EndpointSlice for ports of a Service in short form.
pub fn slice_ports(words: &[String]) -> Result<Vec<Value>> {
    let alone = words.len() == 1;
    let port = |word: &String| Ok(Port::parse(word, alone)?.of_slice());
    words.iter().map(port).collect()
}

/// An address, or the whole entry.
fn ingress(written: &Value) -> Value {
    match written {
        Value::String(ip) => json!({ "ip": ip }),
        other => other.clone(),
    }
}

/// `name 80->8080/udp @30080`.
#[derive(Debug, PartialEq, Eq)]
struct Port {
    name: String,
    own: u16,
    target: u16,
    protocol: String,
    on_nodes: Option<u16>,
}

impl Port {
    fn parse(text: &str, alone: bool) -> Result<Self> {
        let strange = || format!("{text:?} is not a port such as `http 80->8080/tcp @30080`");
        let (mut name, mut numbers, mut on_nodes) = (None, None, None);
        for word in text.split_whitespace() {
            if let Some(number) = word.strip_prefix('@') {
                on_nodes = Some(number.parse().with_context(strange)?);
            } else if word.starts_with(|c: char| c.is_ascii_digit()) {
                numbers = Some(word);
            } else {
                name = Some(word.to_owned());
            }
        }
        let numbers = numbers.with_context(strange)?;
        let (numbers, protocol) = numbers.split_once('/').unwrap_or((numbers, "tcp"));
        let (port, target) = numbers.split_once("->").unwrap_or((numbers, "8080"));
        // Several ports must have names; a port's own number and protocol will do.
        let name = name.unwrap_or_else(|| {
            if alone {
                String::new()
            } else {
                format!("p{port}-{protocol}")
            }
        });
        Ok(Self {
            name,
            own: port.parse().with_context(strange)?,
            target: target.parse().with_context(strange)?,
            protocol: protocol.to_uppercase(),
            on_nodes,
        })
    }

    fn of_service(&self) -> Value {
        let mut port = json!({
            "name": self.name,
            "port": self.own,
            "targetPort": self.target,
            "protocol": self.protocol,
        });
        if let Some(number) = self.on_nodes {
            port["nodePort"] = number.into();
        }
        port
    }

    fn of_slice(&self) -> Value {
        json!({ "name": self.name, "port": self.target, "protocol": self.protocol })
    }
}

/// `a1`, and words about it: `unready`, `terminating` (serves until it is gone), `gone`
/// (terminating and no longer serving), `zone=west`, `for-node=node1`, `on=node2`.
pub fn endpoint(text: &str, family: Family) -> Result<Value> {
    let mut words = text.split_whitespace();
    let name = words.next().context("an endpoint has no name")?;
    let pod = plan::pods().find(|pod| pod.name == name);
    let pod = pod.with_context(|| format!("there is no pod {name}"))?;
    let Kind::Pod(node) = pod.kind else {
        bail!("{name} is not a pod");
    };
    let mut endpoint = json!({
        "addresses": [pod.address(family).to_string()],
        "conditions": { "ready": true },
        "nodeName": format!("node{node}"),
    });
    let conditions = |ready: bool, serving: bool, terminating: bool| json!({ "ready": ready, "serving": serving, "terminating": terminating });
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("unready", "") => endpoint["conditions"] = conditions(false, false, false),
            ("terminating", "") => endpoint["conditions"] = conditions(false, true, true),
            ("gone", "") => endpoint["conditions"] = conditions(false, false, true),
            ("zone", zone) => endpoint["hints"]["forZones"] = json!([{ "name": zone }]),
            ("for-node", node) => endpoint["hints"]["forNodes"] = json!([{ "name": node }]),
            ("on", node) => endpoint["nodeName"] = node.into(),
            _ => bail!("{text:?}: nobody knows what {word:?} means"),
        }
    }
    Ok(endpoint)
}
