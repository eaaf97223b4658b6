//! A small cluster as plain values that can be drawn, changed, cut down, and written as the items
//! of a story.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::plan::{self, Family};
use crate::probe::Protocol;
use crate::story::short;

/// Everything there is at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub services: Vec<Service>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    ClusterIp,
    NodePort,
    LoadBalancer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub name: String,
    /// One, or one of each family; never changed, because the API server would refuse.
    pub ips: Vec<IpAddr>,
    pub kind: Kind,
    pub ports: Vec<Port>,
    /// Seconds for which a client stays with its endpoint.
    pub affinity: Option<u32>,
    pub internal_local: bool,
    pub external_local: bool,
    pub external_ips: Vec<IpAddr>,
    pub ingress: Vec<Ingress>,
    pub ranges: Vec<&'static str>,
    pub health_port: u16,
    /// Whether a load balancer has node ports too.
    pub node_ports: bool,
    pub groups: Vec<Group>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub number: u16,
    pub target: u16,
    pub protocol: Protocol,
    /// Its number on nodes, where it has one.
    pub on_nodes: u16,
}

/// An address a cloud gave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ingress {
    pub ip: IpAddr,
    /// The balancer sends from an address of its own, so nodes leave this one alone.
    pub proxied: bool,
}

/// An EndpointSlice for each family of its Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Part of the slices' names.
    pub number: u8,
    /// Another target port than the Service names, as named ports allow.
    pub target: Option<u16>,
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub pod: &'static str,
    pub condition: Condition,
    pub zone: Option<&'static str>,
    pub for_node: Option<&'static str>,
    /// Another node than the one the pod is on.
    pub on: Option<&'static str>,
    /// Missing in the slice of the other family.
    pub only: Option<Family>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Ready,
    Unready,
    /// Shutting down, but still serving.
    Terminating,
    /// Shutting down, and not serving any more.
    Gone,
}

/// Where a Service answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Door {
    Cluster,
    External,
    Balancer,
    /// On the node with this number.
    NodePort(u8),
}

/// One address and port of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frontend {
    pub to: SocketAddr,
    pub protocol: Protocol,
    pub door: Door,
}

impl State {
    /// The items of a story that make everything so.
    pub fn items(&self) -> Result<Vec<Value>> {
        let mut items = Vec::new();
        for service in &self.services {
            items.extend(service.items()?);
        }
        Ok(items)
    }

    /// Every Service and port that names a frontend.
    pub fn owners(&self, to: SocketAddr, protocol: Protocol) -> Vec<(&Service, &Port)> {
        let mut owners = Vec::new();
        for service in &self.services {
            for port in &service.ports {
                let mut frontends = service.frontends(port).into_iter();
                if frontends.any(|frontend| frontend.to == to && frontend.protocol == protocol) {
                    owners.push((service, port));
                }
            }
        }
        owners
    }
}

impl Service {
    /// Whether traffic from outside the cluster can reach it.
    pub fn is_open(&self) -> bool {
        self.kind != Kind::ClusterIp || !self.external_ips.is_empty()
    }

    /// Whether nodes answer for it with a number of endpoints.
    pub fn has_health(&self) -> bool {
        self.kind == Kind::LoadBalancer && self.external_local
    }

    pub fn has_node_ports(&self) -> bool {
        match self.kind {
            Kind::ClusterIp => false,
            Kind::NodePort => true,
            Kind::LoadBalancer => self.node_ports,
        }
    }

    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.groups.iter().flat_map(|group| &group.endpoints)
    }

    /// Where a port of it may answer, addresses of the wrong family included.
    pub fn frontends(&self, port: &Port) -> Vec<Frontend> {
        let mut all = Vec::new();
        let mut add = |ip: IpAddr, number: u16, door: Door| {
            all.push(Frontend {
                to: SocketAddr::new(ip, number),
                protocol: port.protocol,
                door,
            });
        };
        for ip in &self.ips {
            add(*ip, port.number, Door::Cluster);
        }
        for ip in &self.external_ips {
            add(*ip, port.number, Door::External);
        }
        if self.kind == Kind::LoadBalancer {
            for ingress in &self.ingress {
                add(ingress.ip, port.number, Door::Balancer);
            }
        }
        if self.has_node_ports() {
            for node in plan::nodes() {
                for family in Family::BOTH {
                    let door = Door::NodePort(node.number());
                    add(node.address(family), port.on_nodes, door);
                }
            }
        }
        all
    }

    fn items(&self) -> Result<Vec<Value>> {
        let mut item = json!({
            "service": self.name,
            "ips": self.ips,
            "ports": self.ports.iter().map(|port| self.port(port)).collect::<Vec<_>>(),
        });
        let spec = self.spec();
        if !spec.is_empty() {
            item["spec"] = spec.into();
        }
        if self.kind == Kind::LoadBalancer {
            item["ingress"] = self.ingress.iter().map(Ingress::entry).collect();
        }
        let Some(words) = self.words() else {
            let mut items = vec![item];
            items.extend(self.slices()?);
            return Ok(items);
        };
        item["endpoints"] = words.into();
        Ok(vec![item])
    }

    fn port(&self, port: &Port) -> String {
        let protocol = match port.protocol {
            Protocol::Tcp => "",
            Protocol::Udp => "/udp",
        };
        let mut text = format!("{}->{}{protocol}", port.number, port.target);
        if self.has_node_ports() {
            text = format!("{text} @{}", port.on_nodes);
        }
        text
    }

    fn spec(&self) -> Map<String, Value> {
        let mut spec = Map::new();
        let mut set = |name: &str, value: Value| {
            spec.insert(name.to_owned(), value);
        };
        match self.kind {
            Kind::ClusterIp => {}
            Kind::NodePort => set("type", "NodePort".into()),
            Kind::LoadBalancer => set("type", "LoadBalancer".into()),
        }
        if let Some(seconds) = self.affinity {
            set("sessionAffinity", "ClientIP".into());
            let config = json!({ "clientIP": { "timeoutSeconds": seconds } });
            set("sessionAffinityConfig", config);
        }
        if self.internal_local {
            set("internalTrafficPolicy", "Local".into());
        }
        if self.external_local && self.is_open() {
            set("externalTrafficPolicy", "Local".into());
        }
        if !self.external_ips.is_empty() {
            set("externalIPs", json!(self.external_ips));
        }
        if self.kind == Kind::LoadBalancer {
            if !self.ranges.is_empty() {
                set("loadBalancerSourceRanges", json!(self.ranges));
            }
            if !self.node_ports {
                set("allocateLoadBalancerNodePorts", false.into());
            }
        }
        if self.has_health() {
            set("healthCheckNodePort", self.health_port.into());
        }
        spec
    }

    /// The endpoints in short form, when that can say everything.
    fn words(&self) -> Option<Vec<String>> {
        let [group] = &self.groups[..] else {
            return None;
        };
        let plain = group.target.is_none() && group.endpoints.iter().all(|e| e.only.is_none());
        plain.then(|| group.endpoints.iter().map(Endpoint::words).collect())
    }

    fn slices(&self) -> Result<Vec<Value>> {
        let mut slices = Vec::new();
        for group in &self.groups {
            for ip in &self.ips {
                slices.push(self.slice(group, Family::of(*ip))?);
            }
        }
        Ok(slices)
    }

    fn slice(&self, group: &Group, family: Family) -> Result<Value> {
        let here = |endpoint: &&Endpoint| endpoint.only.is_none_or(|only| only == family);
        let endpoints: Result<Vec<_>> = group
            .endpoints
            .iter()
            .filter(here)
            .map(|endpoint| short::endpoint(&endpoint.words(), family))
            .collect();
        let (suffix, kind) = match family {
            Family::V4 => ("4", "IPv4"),
            Family::V6 => ("6", "IPv6"),
        };
        // The first is named as in short form, so that it stays the same slice.
        let name = match group.number {
            1 => format!("{}-{suffix}", self.name),
            number => format!("{}-{number}-{suffix}", self.name),
        };
        let words: Vec<_> = self.ports.iter().map(|port| self.port(port)).collect();
        let mut ports = short::slice_ports(&words)?;
        if let Some(target) = group.target {
            for port in &mut ports {
                port["port"] = target.into();
            }
        }
        Ok(json!({
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "labels": { "kubernetes.io/service-name": self.name },
            },
            "addressType": kind,
            "endpoints": endpoints?,
            "ports": ports,
        }))
    }
}

impl Ingress {
    fn entry(&self) -> Value {
        if self.proxied {
            json!({ "ip": self.ip, "ipMode": "Proxy" })
        } else {
            json!(self.ip)
        }
    }
}

impl Endpoint {
    pub fn plain(pod: &'static str) -> Self {
        Self {
            pod,
            condition: Condition::Ready,
            zone: None,
            for_node: None,
            on: None,
            only: None,
        }
    }

    fn words(&self) -> String {
        let mut text = self.pod.to_owned();
        match self.condition {
            Condition::Ready => {}
            Condition::Unready => text.push_str(" unready"),
            Condition::Terminating => text.push_str(" terminating"),
            Condition::Gone => text.push_str(" gone"),
        }
        let marks = [
            ("zone", self.zone),
            ("for-node", self.for_node),
            ("on", self.on),
        ];
        for (word, value) in marks {
            if let Some(value) = value {
                text = format!("{text} {word}={value}");
            }
        }
        text
    }
}
