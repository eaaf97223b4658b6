//! Services: which addresses and ports they really have.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use ferrule_core::model::{
    DEFAULT_AFFINITY_SECONDS, Family, PerFamily, Port, Protocol, Service, ServiceKey, ServicePort,
    ServiceType, TrafficPolicy, parse_ip,
};
use ferrule_core::track::{Event, Object};
use ipnet::IpNet;
use jiff::Timestamp;

use super::{Report, Unserved, names, networks, time};
use crate::watch::api;

/// The longest affinity the API allows: one day.
const MAX_AFFINITY_SECONDS: u32 = 86_400;

/// A Service with a cluster IP, or why it has none to offer.
pub(super) fn service(object: api::Object, mut report: Report) -> Event {
    if Unserved::of(&object).is_some() {
        return report.gone();
    }
    let api::Object {
        metadata,
        mut spec,
        status,
        ..
    } = object;
    if spec.cluster_ip.is_empty() {
        report.note(
            "spec.clusterIP",
            "empty, and nothing allocates one here; the Service is idle",
        );
        return report.gone();
    }
    let cluster_ips = cluster_ips(&spec, &mut report);
    if cluster_ips == PerFamily::default() {
        return report.gone();
    }

    let ports = ports(std::mem::take(&mut spec.ports), &mut report);
    let external_ips = external_ips(&spec.external_ips, cluster_ips, &mut report);
    let load_balancer_ips =
        load_balancer_ips(&status.load_balancer.ingress, cluster_ips, &mut report);
    let source_ranges = source_ranges(&spec, cluster_ips, &load_balancer_ips, &mut report);
    let kind = service_type(&spec.kind, &mut report);
    let external_policy_field = policy(
        "spec.externalTrafficPolicy",
        &spec.external_traffic_policy,
        &mut report,
    );
    let asked = kind == ServiceType::LoadBalancer && external_policy_field == TrafficPolicy::Local;
    let service = Service {
        key: ServiceKey::new(&metadata.namespace, &metadata.name),
        created: time(metadata.creation_timestamp.as_deref()).map_or(0, Timestamp::as_second),
        kind,
        cluster_ips,
        external_ips,
        load_balancer_ips,
        proxied_ips: proxied_ips(&status.load_balancer.ingress),
        source_ranges,
        internal_policy: policy(
            "spec.internalTrafficPolicy",
            &spec.internal_traffic_policy,
            &mut report,
        ),
        external_policy_field,
        health_check_field: health_check_port(spec.health_check_node_port, asked, &mut report),
        affinity_seconds: affinity(&spec, &mut report),
        scheduler: scheduler(metadata.annotations.ipvs_scheduler, &mut report),
        proxy_header: proxy_header(metadata.annotations.proxy_protocol.as_deref(), &mut report),
        ports,
    };
    report.put(Object::Service(service))
}

/// The schedulers of Linux; which of them a kernel has shows when one is used.
const SCHEDULERS: [&str; 14] = [
    "dh", "fo", "lblc", "lblcr", "lc", "mh", "nq", "ovf", "rr", "sed", "sh", "twos", "wlc", "wrr",
];

/// The scheduler of mode ipvs that the Service asks for.
fn scheduler(asked: Option<String>, report: &mut Report) -> Option<Arc<str>> {
    let name = asked?;
    if SCHEDULERS.contains(&name.as_str()) {
        return Some(name.into());
    }
    let known = SCHEDULERS.join(", ");
    report.warn(
        "metadata.annotations[ferrule.dev/ipvs-scheduler]",
        format!("{name:?} is not one of {known}; mode ipvs uses its default"),
    );
    None
}

/// Whether endpoints of the Service want a header of the PROXY protocol. There is one version.
fn proxy_header(asked: Option<&str>, report: &mut Report) -> bool {
    match asked {
        None => false,
        Some("v2") => true,
        Some(other) => {
            report.warn(
                "metadata.annotations[ferrule.dev/proxy-protocol]",
                format!("{other:?} is not v2; endpoints get no header"),
            );
            false
        }
    }
}

/// The cluster IP of each family: by position in `ipFamilies`, or without those the one IP.
fn cluster_ips(spec: &api::Spec, report: &mut Report) -> PerFamily<Option<IpAddr>> {
    let mut ips = PerFamily::default();
    if spec.ip_families.is_empty() {
        match parse_ip(&spec.cluster_ip) {
            Some(ip) => ips[Family::of(ip)] = Some(ip),
            None => report.warn("spec.clusterIP", not_an_address(&spec.cluster_ip)),
        }
        return ips;
    }
    for (index, word) in spec.ip_families.iter().enumerate() {
        let Some(family) = Family::ALL
            .into_iter()
            .find(|family| family.as_str() == word)
        else {
            let message = format!("{word:?} is not an address family; it is left out");
            report.warn(format!("spec.ipFamilies[{index}]"), message);
            continue;
        };
        let Some(text) = spec.cluster_ips.get(index) else {
            let message = format!("no entry for {family}; the Service has no {family} address");
            report.warn("spec.clusterIPs", message);
            continue;
        };
        let field = format!("spec.clusterIPs[{index}]");
        match parse_ip(text) {
            Some(ip) if Family::of(ip) != family => report.warn(
                field,
                format!("{ip} is not {family} as spec.ipFamilies says; it is left out"),
            ),
            Some(ip) => ips[family] = ips[family].or(Some(ip)),
            None => report.warn(field, not_an_address(text)),
        }
    }
    ips
}

/// The ports that can be used. A later one replaces an earlier one of its name and protocol.
fn ports(entries: Vec<api::ServicePort>, report: &mut Report) -> Box<[ServicePort]> {
    let mut kept: Vec<(usize, ServicePort)> = Vec::with_capacity(entries.len());
    let mut places = HashMap::new();
    for (index, entry) in entries.into_iter().enumerate() {
        let Some(port) = port(index, entry, report) else {
            continue;
        };
        let place = *places
            .entry((port.name.clone(), port.protocol))
            .or_insert(kept.len());
        if let Some(earlier) = kept.get_mut(place) {
            report.warn(
                format!("spec.ports[{index}].name"),
                format!(
                    "same name and protocol as spec.ports[{}], which it replaces",
                    earlier.0
                ),
            );
            *earlier = (index, port);
        } else {
            kept.push((index, port));
        }
    }
    kept.into_iter().map(|(_, port)| port).collect()
}

fn port(index: usize, entry: api::ServicePort, report: &mut Report) -> Option<ServicePort> {
    let field = |name| format!("spec.ports[{index}].{name}");
    let protocol = if entry.protocol.is_empty() {
        Some(Protocol::Tcp)
    } else {
        Protocol::parse(&entry.protocol)
    };
    if protocol.is_none() {
        let message = format!(
            "{:?} is not a protocol; the port is left out",
            entry.protocol
        );
        report.warn(field("protocol"), message);
    }
    let number = Port::new(entry.port);
    if number.is_none() {
        let message = format!("{} is not a port number; the port is left out", entry.port);
        report.warn(field("port"), message);
    }
    if let Some(wrong) = names::port(&entry.name) {
        report.warn(field("name"), format!("{wrong}; the port is left out"));
        return None;
    }
    let (protocol, port) = protocol.zip(number)?;
    let node_port = Port::new(entry.node_port);
    if node_port.is_none() && entry.node_port != 0 {
        // The port still works on the Service's own addresses.
        let message = format!(
            "{} is not a port number; there is no node port",
            entry.node_port
        );
        report.warn(field("nodePort"), message);
    }
    Some(ServicePort {
        name: entry.name.into(),
        protocol,
        port,
        node_port,
    })
}

fn external_ips(
    texts: &[String],
    cluster_ips: PerFamily<Option<IpAddr>>,
    report: &mut Report,
) -> Box<[IpAddr]> {
    let entries = texts
        .iter()
        .enumerate()
        .filter(|(_, text)| !text.trim().is_empty());
    let mut ips = Vec::with_capacity(texts.len());
    for (index, text) in entries {
        ips.extend(address(
            format!("spec.externalIPs[{index}]"),
            text,
            cluster_ips,
            report,
        ));
    }
    ips.into()
}

/// The load balancer addresses that arrive here unchanged. Behind `ipMode: Proxy` and behind a
/// host name the load balancer itself receives the traffic.
fn load_balancer_ips(
    ingress: &[api::Ingress],
    cluster_ips: PerFamily<Option<IpAddr>>,
    report: &mut Report,
) -> Box<[IpAddr]> {
    let mut ips = Vec::with_capacity(ingress.len());
    for (index, entry) in ingress
        .iter()
        .enumerate()
        .filter(|(_, entry)| !entry.ip.is_empty())
    {
        let field = |name| format!("status.loadBalancer.ingress[{index}].{name}");
        match entry.ip_mode.as_deref() {
            None | Some("VIP") => ips.extend(address(field("ip"), &entry.ip, cluster_ips, report)),
            Some("Proxy") => {}
            Some(word) => {
                let message = format!("{word:?} is neither VIP nor Proxy; the entry is left out");
                report.warn(field("ipMode"), message);
            }
        }
    }
    ips.into()
}

/// The load balancer addresses behind which the load balancer itself receives the traffic.
fn proxied_ips(ingress: &[api::Ingress]) -> Box<[IpAddr]> {
    let proxied = |entry: &&api::Ingress| entry.ip_mode.as_deref() == Some("Proxy");
    let proxied = ingress.iter().filter(proxied);
    proxied.filter_map(|entry| parse_ip(&entry.ip)).collect()
}

/// One address beside the cluster IPs.
fn address(
    field: String,
    text: &str,
    cluster_ips: PerFamily<Option<IpAddr>>,
    report: &mut Report,
) -> Option<IpAddr> {
    let Some(ip) = parse_ip(text) else {
        report.warn(field, not_an_address(text));
        return None;
    };
    let family = Family::of(ip);
    if cluster_ips[family].is_none() {
        let message = format!("the Service has no {family} cluster IP, so {ip} does not answer");
        report.note(field, message);
    }
    Some(ip)
}

/// The networks that may use the load balancer addresses.
fn source_ranges(
    spec: &api::Spec,
    cluster_ips: PerFamily<Option<IpAddr>>,
    load_balancer_ips: &[IpAddr],
    report: &mut Report,
) -> Box<[IpNet]> {
    const FIELD: &str = "spec.loadBalancerSourceRanges";
    let ranges = networks(FIELD, &spec.load_balancer_source_ranges, report);
    let asked = !spec.load_balancer_source_ranges.is_empty();
    // Who wrote `/0` for one family wants no restriction.
    if asked && !ranges.iter().any(|net| net.prefix_len() == 0) {
        for family in Family::ALL {
            let exposed = cluster_ips[family].is_some()
                && load_balancer_ips.iter().any(|ip| Family::of(*ip) == family);
            if exposed && !ranges.iter().any(|net| Family::of_net(net) == family) {
                // kube-proxy restricts each family by its own ranges only, and so do we.
                let message = format!(
                    "no {family} network, so the {family} load balancer address is open to everyone"
                );
                report.warn(FIELD, message);
            }
        }
    }
    ranges
}

fn service_type(word: &str, report: &mut Report) -> ServiceType {
    match word {
        "" | "ClusterIP" => ServiceType::ClusterIp,
        "NodePort" => ServiceType::NodePort,
        "LoadBalancer" => ServiceType::LoadBalancer,
        _ => {
            report.warn(
                "spec.type",
                format!("{word:?} is unknown; taken as ClusterIP"),
            );
            ServiceType::ClusterIp
        }
    }
}

fn policy(field: &str, word: &str, report: &mut Report) -> TrafficPolicy {
    match word {
        "" | "Cluster" => TrafficPolicy::Cluster,
        "Local" => TrafficPolicy::Local,
        _ => {
            report.warn(field, format!("{word:?} is unknown; taken as Cluster"));
            TrafficPolicy::Cluster
        }
    }
}

/// The health check port; `asked` says whether the Service is of a kind that needs one.
fn health_check_port(number: i64, asked: bool, report: &mut Report) -> Option<Port> {
    const FIELD: &str = "spec.healthCheckNodePort";
    let port = Port::new(number);
    if number != 0 && port.is_none() {
        report.warn(
            FIELD,
            format!("{number} is not a port number; there is no health check"),
        );
    } else if asked && port.is_none() {
        report.note(
            FIELD,
            "missing; load balancers cannot ask for local endpoints",
        );
    }
    port
}

/// How long a client stays with its endpoint.
fn affinity(spec: &api::Spec, report: &mut Report) -> Option<NonZeroU32> {
    const FIELD: &str = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    match spec.session_affinity.as_str() {
        "" | "None" => return None,
        "ClientIP" => {}
        word => {
            report.warn(
                "spec.sessionAffinity",
                format!("{word:?} is unknown; taken as None"),
            );
            return None;
        }
    }
    let Some(asked) = spec.session_affinity_config.client_ip.timeout_seconds else {
        report.note(
            FIELD,
            format!("missing; {DEFAULT_AFFINITY_SECONDS} is used"),
        );
        return Some(DEFAULT_AFFINITY_SECONDS);
    };
    let seconds = u32::try_from(asked)
        .ok()
        .filter(|seconds| *seconds <= MAX_AFFINITY_SECONDS)
        .and_then(NonZeroU32::new);
    if seconds.is_none() {
        let message = format!(
            "{asked} is not within 1 to {MAX_AFFINITY_SECONDS}; {DEFAULT_AFFINITY_SECONDS} is used"
        );
        report.warn(FIELD, message);
    }
    Some(seconds.unwrap_or(DEFAULT_AFFINITY_SECONDS))
}

fn not_an_address(text: &str) -> String {
    format!("{text:?} is not an address; it is left out")
}
