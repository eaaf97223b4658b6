//! EndpointSlices: which backends a Service has, as seen from this node.

use std::collections::HashSet;
use std::time::SystemTime;

use ferrule_core::model::{
    Family, Port, Protocol, ServiceKey, Slice, SliceEndpoint, SliceKey, SlicePort, Zones, parse_ip,
};
use ferrule_core::track::{Event, Object};

use super::{Report, names, time};
use crate::watch::api;

/// So many bad endpoints of one slice are named; the rest is counted.
const NAMED_ENDPOINTS: usize = 5;

const SERVICE_LABEL: &str = "metadata.labels[kubernetes.io/service-name]";

/// A slice of a Service we proxy, or why it is none.
pub(super) fn slice(object: api::Object, node_name: &str, mut report: Report) -> Event {
    let api::Object {
        metadata,
        address_type,
        endpoints,
        ports,
        ..
    } = object;
    let labels = &metadata.labels;
    // kube-proxy keeps the slices of Services that someone else proxies, for nothing.
    if labels.headless.is_some() || labels.proxy_name.is_some() {
        return report.gone();
    }
    let Some(service) = labels
        .service_name
        .as_deref()
        .filter(|name| !name.is_empty())
    else {
        report.warn(
            SERVICE_LABEL,
            "missing, so the slice belongs to no Service; it is left out",
        );
        return report.gone();
    };
    if let Some(wrong) = names::label(service) {
        // Endpoints, which this may be a part of, can have such a name.
        let message = format!("{wrong}, so no Service has this name; the slice is left out");
        report.note(SERVICE_LABEL, message);
        return report.gone();
    }
    let Some(family) = family(&address_type, &mut report) else {
        return report.gone();
    };
    let slice = Slice {
        key: SliceKey::new(&metadata.namespace, &metadata.name),
        service: ServiceKey::new(&metadata.namespace, service),
        family,
        ports: ports_of(ports, &mut report),
        endpoints: endpoints_of(endpoints, family, node_name, &mut report),
    };
    let trigger = time(metadata.annotations.trigger_time.as_deref()).map(SystemTime::from);
    Event::Put {
        object: Object::Slice(slice),
        issues: report.issues,
        trigger,
    }
}

fn family(word: &str, report: &mut Report) -> Option<Family> {
    let family = Family::ALL
        .into_iter()
        .find(|family| family.as_str() == word);
    if family.is_none() {
        let message = format!("{word:?} is neither IPv4 nor IPv6; the slice is left out");
        match word {
            "FQDN" => report.note("addressType", message),
            _ => report.warn("addressType", message),
        }
    }
    family
}

fn ports_of(entries: Vec<api::SlicePort>, report: &mut Report) -> Box<[SlicePort]> {
    let entries = entries.into_iter().enumerate();
    entries
        .filter_map(|(index, entry)| port(index, entry, report))
        .collect()
}

fn port(index: usize, entry: api::SlicePort, report: &mut Report) -> Option<SlicePort> {
    let mut unusable = |name: &str, message: String| {
        report.warn(
            format!("ports[{index}].{name}"),
            format!("{message}; the port is left out"),
        );
    };
    let wrong = match &entry.name {
        None => Some("missing".to_owned()),
        Some(name) => names::port(name),
    };
    let name = entry.name.filter(|_| wrong.is_none());
    if let Some(wrong) = wrong {
        unusable("name", wrong);
    }
    // The API server fills in a missing protocol, so a missing one means what it would say.
    let word = entry
        .protocol
        .as_deref()
        .filter(|word| !word.is_empty())
        .unwrap_or("TCP");
    let protocol = Protocol::parse(word);
    if protocol.is_none() {
        unusable("protocol", format!("{word:?} is not a protocol"));
    }
    let port = entry.port.and_then(Port::new);
    match entry.port {
        // The API means "all ports" by this; kube-proxy cannot do that, and neither can we.
        None => unusable("port", "missing".to_owned()),
        Some(number) if port.is_none() => {
            unusable("port", format!("{number} is not a port number"));
        }
        Some(_) => {}
    }
    Some(SlicePort {
        name: name?.into(),
        protocol: protocol?,
        port: port?,
    })
}

fn endpoints_of(
    entries: Vec<api::Endpoint>,
    family: Family,
    node_name: &str,
    report: &mut Report,
) -> Box<[SliceEndpoint]> {
    let mut endpoints = Vec::with_capacity(entries.len());
    let mut known_zones = HashSet::new();
    let mut bad = 0;
    for (index, entry) in entries.into_iter().enumerate() {
        match endpoint(entry, family, node_name, &mut known_zones) {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(message) => {
                bad += 1;
                if bad <= NAMED_ENDPOINTS {
                    report.warn(
                        format!("endpoints[{index}].addresses"),
                        format!("{message}; the endpoint is left out"),
                    );
                }
            }
        }
    }
    if bad > NAMED_ENDPOINTS {
        report.warn(
            "endpoints",
            format!("and {} more are left out", bad - NAMED_ENDPOINTS),
        );
    }
    endpoints.into()
}

fn endpoint(
    entry: api::Endpoint,
    family: Family,
    node_name: &str,
    known_zones: &mut HashSet<Zones>,
) -> Result<SliceEndpoint, String> {
    // Others may follow; kube-proxy has only ever used the first.
    let text = entry.addresses.first().ok_or("empty")?;
    let ip = parse_ip(text).ok_or_else(|| format!("{text:?} is not an address"))?;
    if Family::of(ip) != family {
        return Err(format!("{ip} is not {family} as addressType says"));
    }
    let api::Hints {
        for_zones,
        for_nodes,
    } = entry.hints;
    Ok(SliceEndpoint {
        ip,
        // An unknown own name must not match an endpoint that names no node.
        local: !node_name.is_empty() && entry.node_name.as_deref() == Some(node_name),
        ready: entry.conditions.ready.unwrap_or(true),
        serving: entry.conditions.serving.unwrap_or(true),
        terminating: entry.conditions.terminating.unwrap_or(false),
        node_hint: (!for_nodes.is_empty())
            .then(|| for_nodes.iter().any(|node| node.name == node_name)),
        zone_hints: zones(for_zones, known_zones),
    })
}

/// The set of zones, shared with every endpoint of the slice that has the same.
fn zones(hints: Vec<api::Hint>, known: &mut HashSet<Zones>) -> Option<Zones> {
    if hints.is_empty() {
        return None;
    }
    let mut names: Vec<Box<str>> = hints.into_iter().map(|hint| hint.name.into()).collect();
    names.sort_unstable();
    names.dedup();
    if let Some(zones) = known.get(names.as_slice()) {
        return Some(zones.clone());
    }
    let zones = Zones::from(names);
    known.insert(zones.clone());
    Some(zones)
}
