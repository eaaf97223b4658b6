//! What only the kernel of this machine knows: flows that live on, and whether there is room for more.
//!
//! In: an answer of the running proxy. Out: the same with sentences about tracked flows. Read by whoever asks,
//! so that the proxy is not delayed; without the right to read them there are no such sentences.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr};

use ferrule_core::model::{Family, Port, PortKey, Protocol, ServiceKey, format_socket};
use ferrule_dataplane::affinity::Binding;
use ferrule_dataplane::support::flows::{self, LiveFlow};

use super::answer::{Answer, PortAnswer, State};
use crate::modes;

/// Flows that are read per address.
const MOST: usize = 10_000;

/// Endpoints that are asked whether a client stays with them.
const MOST_ENDPOINTS: usize = 200;

/// Clients and endpoints that are named.
const NAMED: usize = 5;

/// Adds what the kernel knows.
pub fn add(answer: &mut Answer, client: Option<IpAddr>) {
    if let Some(line) = flows::room().and_then(|(count, most)| full(count, most)) {
        answer.lines.insert(0, line);
        answer.lines.push(
            "To do: raise net.netfilter.nf_conntrack_max (conntrack.maxPerCore), or find out who opens so many."
                .to_owned(),
        );
    }
    // There flows lead to the proxy itself, which closes them with their endpoint.
    let relays = modes::find(&answer.mode).is_none_or(modes::Mode::relays);
    if relays || answer.state == State::Missing {
        return;
    }
    let mut first = Vec::new();
    let mut last = Vec::new();
    for port in &answer.ports {
        // Whoever may not read flows still has the rest.
        let Ok(found) = of_port(port) else { return };
        let found = found.into_iter();
        let found: Vec<_> = found
            .filter(|flow| client.is_none_or(|client| client == flow.client.ip()))
            .collect();
        if let Some(client) = client {
            last.extend(bound(&answer.mode, port, client));
        }
        let sentences = sentences(port, &found, client);
        first.extend(sentences.gone);
        last.extend(sentences.others);
    }
    let todo = (!first.is_empty()).then(|| {
        "To do: ferrule removes stale UDP flows after each change; TCP connections to endpoints that are gone end \
         when their clients give up. `conntrack -D --orig-dst IP` removes flows at once."
            .to_owned()
    });
    let after_headline = answer.lines.len().min(1);
    answer.lines.splice(after_headline..after_headline, first);
    answer.lines.extend(last);
    answer.lines.extend(todo);
}

/// With which endpoint the kernel remembers a client.
fn bound(mode: &str, port: &PortAnswer, client: IpAddr) -> Option<String> {
    let seconds = port.affinity_seconds?;
    let find = modes::find(mode)?.binding?;
    let (namespace, name) = port.service.split_once('/')?;
    let key = PortKey {
        service: ServiceKey::new(namespace, name),
        name: port.port_name.as_str().into(),
        protocol: Protocol::parse(&port.protocol)?,
    };
    let endpoints = port.endpoints.iter().take(MOST_ENDPOINTS);
    let endpoints: Vec<(IpAddr, Port)> = endpoints
        .filter_map(|endpoint| {
            let socket: SocketAddr = endpoint.address.parse().ok()?;
            Some((socket.ip(), Port::new(socket.port().into())?))
        })
        .collect();
    Some(match find(&key, &endpoints, client).ok()? {
        Some(Binding { endpoint, left }) => {
            let left = left.map_or_else(
                || format!("for up to {seconds} s after its last connection"),
                |left| {
                    format!(
                        "for {} s more, and {seconds} s after each connection",
                        left.as_secs()
                    )
                },
            );
            let endpoint = format_socket(endpoint.0, endpoint.1);
            format!("{client} stays with {endpoint} {left} (session affinity).")
        }
        None => format!(
            "{client} stays with no endpoint yet: its next connection decides (session affinity)."
        ),
    })
}

/// Where new connections are dropped for want of room.
fn full(count: u64, most: u64) -> Option<String> {
    // The kernel begins to drop at the limit; a little before, it is near enough to be the cause.
    let is_full = most > 0 && count.saturating_mul(100) >= most.saturating_mul(98);
    is_full.then(|| {
        format!(
            "Connection tracking of this machine is full ({count} of {most} flows): the kernel drops new connections, whatever the Service."
        )
    })
}

/// The flows from all addresses of a Service port.
fn of_port(port: &PortAnswer) -> io::Result<Vec<LiveFlow>> {
    let protocol = Protocol::parse(&port.protocol);
    let family = Family::ALL.into_iter().find(|f| f.as_str() == port.family);
    let mut all = Vec::new();
    for frontend in &port.frontends {
        let Some(((protocol, family), (ip, number))) =
            protocol.zip(family).zip(address(&frontend.address))
        else {
            continue; // Of another version.
        };
        if frontend.fate != "shadowed" {
            all.extend(flows::live(family, protocol, ip, number, MOST)?);
        }
    }
    Ok(all)
}

/// An address, or the port of every address.
fn address(text: &str) -> Option<(Option<IpAddr>, u16)> {
    if let Some(port) = text.strip_prefix("nodeport:") {
        return Some((None, port.parse().ok()?));
    }
    let socket: SocketAddr = text.parse().ok()?;
    Some((Some(socket.ip()), socket.port()))
}

/// What is said about the flows of one Service port.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sentences {
    gone: Option<String>,
    others: Option<String>,
}

fn sentences(port: &PortAnswer, found: &[LiveFlow], client: Option<IpAddr>) -> Sentences {
    let listed: BTreeSet<&str> = port.endpoints.iter().map(|e| e.address.as_str()).collect();
    let is_listed = |flow: &&LiveFlow| listed.contains(flow.endpoint.to_string().as_str());
    let (there, gone): (Vec<&LiveFlow>, Vec<&LiveFlow>) = found.iter().partition(is_listed);
    let whose = |many: usize| match client {
        Some(client) => format!("{client} has"),
        None if many == 1 => "There is".to_owned(),
        None => "There are".to_owned(),
    };
    let name = match port.port_name.as_str() {
        "" => port.service.clone(),
        name => format!("{}:{name}", port.service),
    };
    let protocol = &port.protocol;
    let gone = (!gone.is_empty()).then(|| {
        format!(
            "{} {} {protocol} of {name} to endpoints that are gone: {}.",
            whose(gone.len()),
            count(gone.len()),
            led(&gone)
        )
    });
    let others = (!there.is_empty()).then(|| {
        format!(
            "{} {} {protocol} of {name} to endpoints that are listed: {}.",
            whose(there.len()),
            count(there.len()),
            led(&there)
        )
    });
    Sentences { gone, others }
}

fn count(many: usize) -> String {
    match many {
        1 => "1 live flow over".to_owned(),
        MOST.. => format!("{MOST} or more live flows over"),
        _ => format!("{many} live flows over"),
    }
}

/// Where flows lead, and some of those who sent them.
fn led(flows: &[&LiveFlow]) -> String {
    let mut endpoints: BTreeMap<SocketAddr, BTreeSet<IpAddr>> = BTreeMap::new();
    for flow in flows {
        let clients = endpoints.entry(flow.endpoint).or_default();
        clients.insert(flow.client.ip());
    }
    let named = endpoints.iter().take(NAMED).map(|(endpoint, clients)| {
        let named: Vec<_> = clients.iter().take(NAMED).map(IpAddr::to_string).collect();
        let more = match clients.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{endpoint} from {}{more}", named.join(", "))
    });
    let mut text = named.collect::<Vec<_>>().join("; ");
    if endpoints.len() > NAMED {
        _ = write!(text, "; and {} more endpoints", endpoints.len() - NAMED);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::answer::EndpointAnswer;
    use super::*;

    fn port() -> PortAnswer {
        PortAnswer {
            service: "kube-system/dns".to_owned(),
            port_name: "dns".to_owned(),
            protocol: "UDP".to_owned(),
            family: "IPv4".to_owned(),
            frontends: Vec::new(),
            endpoints: vec![EndpointAnswer {
                address: "10.1.0.1:53".to_owned(),
                chosen: true,
                because: String::new(),
                local: false,
                slice: String::new(),
            }],
            affinity_seconds: None,
            health_check_node_port: None,
            health_check_local_endpoints: None,
            kernel: None,
        }
    }

    fn flow(client: &str, endpoint: &str) -> LiveFlow {
        LiveFlow {
            client: client.parse().unwrap(),
            endpoint: endpoint.parse().unwrap(),
        }
    }

    #[test]
    fn flows_to_endpoints_that_are_gone_are_told_apart() {
        let found = [
            flow("10.0.0.5:4000", "10.1.0.9:53"),
            flow("10.0.0.5:4001", "10.1.0.9:53"),
            flow("10.0.0.6:4000", "10.1.0.1:53"),
        ];
        let said = sentences(&port(), &found, None);
        assert_eq!(
            said.gone.unwrap(),
            "There are 2 live flows over UDP of kube-system/dns:dns to endpoints that are gone: 10.1.0.9:53 from 10.0.0.5."
        );
        assert_eq!(
            said.others.unwrap(),
            "There is 1 live flow over UDP of kube-system/dns:dns to endpoints that are listed: 10.1.0.1:53 from 10.0.0.6."
        );
        assert_eq!(sentences(&port(), &[], None), Sentences::default());
    }

    #[test]
    fn tracking_without_room_is_said_and_addresses_are_read() {
        assert_eq!(full(100, 262_144), None);
        assert_eq!(full(0, 0), None);
        assert!(
            full(262_144, 262_144)
                .unwrap()
                .contains("full (262144 of 262144")
        );
        assert_eq!(address("nodeport:30080"), Some((None, 30080)));
        assert_eq!(
            address("[fd00::1]:80"),
            Some((Some("fd00::1".parse().unwrap()), 80))
        );
        assert_eq!(address("nonsense"), None);
    }
}
