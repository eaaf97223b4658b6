//! Where nothing answers: no such Service, no such address, or one that is left alone on purpose.

use std::net::IpAddr;

use ferrule_core::desired::FrontendKind;
use ferrule_core::desired::explain::Named;
use ferrule_core::facts::NodePorts;
use ferrule_core::model::{Family, Port, Protocol, Service, ServiceKey, format_socket};

use super::answer::{Question, State, View, issues_of};
use super::target::Target;
use crate::watch::Unserved;

/// What there is instead.
pub fn lines(view: &View<'_>, question: &Question) -> (State, Vec<String>) {
    match &question.target {
        Target::Service { key, port } => service(view, question, key, port.as_deref()),
        Target::Address { ip, port, protocol } => address(view, *ip, *port, *protocol),
        Target::NodePort { port, protocol } => {
            let protocol = protocol.map_or_else(String::new, |p| format!("/{p}"));
            let line = format!("No Service has NodePort {port}{protocol}.");
            let todo = "To do: look up spec.ports[].nodePort with `kubectl get service -A`.";
            (State::Missing, vec![line, todo.to_owned()])
        }
    }
}

/// Whether NodePorts answer on this address of the machine.
pub fn answers_node_ports(view: &View<'_>, ip: IpAddr) -> bool {
    let family = Family::of(ip);
    let facts = view.known.facts(family);
    let candidates = if is_of_node(view, ip) {
        vec![ip]
    } else {
        Vec::new()
    };
    !facts.node_ports.among(&candidates, family).is_empty()
}

fn is_of_node(view: &View<'_>, ip: IpAddr) -> bool {
    let node = view.known.node().map_or(&[][..], |node| &node.addresses);
    view.local.contains(&ip)
        || node.contains(&ip)
        || view.known.facts(Family::of(ip)).node_ip == ip
        || ip.is_loopback()
}

fn service(
    view: &View<'_>,
    question: &Question,
    key: &ServiceKey,
    port: Option<&str>,
) -> (State, Vec<String>) {
    if let Some(service) = view
        .known
        .entry(key)
        .and_then(|entry| entry.service.as_ref())
    {
        return without_port(question, service, port);
    }
    if let Some(why) = view.unserved.get(key) {
        return (State::Elsewhere, unserved(key, why));
    }
    let mut lines = vec![format!(
        "There is no Service {key} that node proxies serve: it does not exist, or it is headless, of type ExternalName, or labelled service.kubernetes.io/service-proxy-name."
    )];
    let slices = view.known.entry(key).map_or(0, |entry| entry.slices.len());
    if slices > 0 {
        lines.push(format!(
            "EndpointSlices name {key} by the label kubernetes.io/service-name all the same ({slices})."
        ));
    }
    lines.extend(issues_of(view, key).map(|issue| format!("Problem: {issue}.")));
    lines.push(format!(
        "To do: `kubectl get service -n {} {} -o yaml`.",
        key.namespace(),
        key.name()
    ));
    (State::Missing, lines)
}

/// The Service is there, and has nothing that was asked for.
fn without_port(
    question: &Question,
    service: &Service,
    port: Option<&str>,
) -> (State, Vec<String>) {
    let key = &service.key;
    if let Some(ip) = question.from {
        let family = Family::of(ip);
        if service.cluster_ips[family].is_none() {
            let line = format!(
                "Service {key} has no {family} cluster IP, and the client {ip} is {family}."
            );
            let todo = "To do: use the address of the other family, or set spec.ipFamilyPolicy to PreferDualStack.";
            return (State::Broken, vec![line, todo.to_owned()]);
        }
    }
    let line = match port {
        Some(port) => format!(
            "Service {key} has no port {port}; it has {}.",
            ports(service)
        ),
        None => format!("Service {key} has no usable port."),
    };
    (State::Missing, vec![line])
}

fn unserved(key: &ServiceKey, why: &Unserved) -> Vec<String> {
    let first = match why {
        Unserved::Headless => format!(
            "Service {key} is headless (spec.clusterIP is None): clients get the addresses of its pods from DNS, and no node proxy does anything for it."
        ),
        Unserved::ExternalName => format!(
            "Service {key} is of type ExternalName: DNS answers with another name, and no node proxy does anything for it."
        ),
        Unserved::OtherProxy(name) => format!(
            "Service {key} is for another proxy: its label service.kubernetes.io/service-proxy-name is {name:?}, so ferrule leaves it alone."
        ),
    };
    let todo = match why {
        Unserved::Headless | Unserved::ExternalName => {
            "To do, if it does not answer: ask the cluster's DNS for its name from a pod."
        }
        Unserved::OtherProxy(_) => {
            "To do, if it does not answer: look at that proxy, or remove the label."
        }
    };
    vec![first, todo.to_owned()]
}

fn address(
    view: &View<'_>,
    ip: IpAddr,
    port: Port,
    protocol: Option<Protocol>,
) -> (State, Vec<String>) {
    let socket = format_socket(ip, port);
    let asked = protocol.map_or_else(|| socket.clone(), |p| format!("{socket}/{p}"));
    let mut lines: Vec<String> = Vec::new();
    for (key, named) in view.known.naming(ip) {
        let entry = view.known.entry(&key);
        let Some(service) = entry.and_then(|entry| entry.service.as_ref()) else {
            continue;
        };
        lines.push(match named {
            Named::Proxied => format!(
                "{ip} is a load balancer address of {key} with ipMode Proxy (status.loadBalancer.ingress[].ipMode): traffic is meant to reach the load balancer itself, so this node does not redirect it."
            ),
            Named::As(kind) => not_there(view, service, kind, ip, &asked),
        });
    }
    if is_of_node(view, ip) {
        lines.push(node_address(view, ip, port));
    }
    if lines.is_empty() {
        lines.push(format!(
            "No Service has the address {asked}, and {ip} is no address of this node that is known here."
        ));
        let mut cidrs = view.known.facts(Family::of(ip)).service_cidrs.iter();
        if let Some(net) = cidrs.find(|net| net.contains(&ip)) {
            lines.push(format!(
                "It is in the Service network {net}: the Service that had it may be deleted."
            ));
        }
    }
    lines.push("To do: compare with `kubectl get service -A -o wide`.".to_owned());
    (State::Missing, lines)
}

/// Why a Service that names an IP does not answer there on this port.
fn not_there(
    view: &View<'_>,
    service: &Service,
    kind: FrontendKind,
    ip: IpAddr,
    asked: &str,
) -> String {
    let (key, family) = (&service.key, Family::of(ip));
    let kind_word = kind.as_str();
    if service.cluster_ips[family].is_none() {
        return format!(
            "{ip} is the {kind_word} of {key}, which has no {family} cluster IP, so nothing answers on {family} addresses (spec.ipFamilies)."
        );
    }
    if kind == FrontendKind::ExternalIp && !view.known.settings().allow_external_ips {
        return format!(
            "{ip} is an external IP of {key}, and external IPs are switched off (feature gate AllowServiceExternalIPs)."
        );
    }
    format!(
        "{ip} is the {kind_word} of {key}, which has no port for {asked}; it has {}.",
        ports(service)
    )
}

/// Why an address of this node does not answer on this port.
fn node_address(view: &View<'_>, ip: IpAddr, port: Port) -> String {
    let family = Family::of(ip);
    let claimants = view.known.claimants(family, None, port);
    let holder = claimants.first().and_then(|claimants| claimants.first());
    let Some(holder) = holder else {
        return format!("{ip} is an address of this node, and no Service has NodePort {port}.");
    };
    let where_to = match &view.known.facts(family).node_ports {
        NodePorts::All => "every address".to_owned(),
        NodePorts::Nowhere => "no address".to_owned(),
        NodePorts::Within(nets) => {
            let nets: Vec<_> = nets.iter().map(ToString::to_string).collect();
            nets.join(", ")
        }
    };
    format!(
        "NodePort {port} of {} does not answer on {ip}: nodePortAddresses (--nodeport-addresses) has {where_to} only.",
        holder.key
    )
}

fn ports(service: &Service) -> String {
    let ports = service.ports.iter().map(|port| match &*port.name {
        "" => format!("{}/{}", port.port, port.protocol),
        name => format!("{}/{} ({name})", port.port, port.protocol),
    });
    let ports: Vec<_> = ports.collect();
    if ports.is_empty() {
        "none".to_owned()
    } else {
        ports.join(", ")
    }
}
