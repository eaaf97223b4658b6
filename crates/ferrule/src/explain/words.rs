//! An answer in plain sentences: what happens, and because of which field of which object.

use std::net::IpAddr;

use ferrule_core::desired::explain::{
    Claimant, Explained, Fate, HintUse, Judged, Lack, Verdict, Whence,
};
use ferrule_core::desired::{Action, Exposure, FrontendKind, Masquerade, Pool};
use ferrule_core::facts::{Connections, Detector};
use ferrule_core::issue::Severity;
use ferrule_core::model::{Port, PortKey, SliceKey, TrafficPolicy, format_socket};
use ipnet::IpNet;

use super::advice;
use super::answer::{Asked, View, issues_of};

/// Endpoints that are listed one by one; JSON has all.
const LISTED: usize = 50;

type Client = Option<(IpAddr, Whence)>;

/// An entry for an endpoint that another entry stands for.
type Again = (IpAddr, Port, SliceKey);

/// All sentences of an answer about these ports, of which the first are in the worst state.
pub fn lines(view: &View<'_>, asked: &[Asked], client: Client) -> Vec<String> {
    let mut lines = Vec::new();
    for port in asked {
        lines.extend(kernel_trouble(view, port));
        lines.extend(headlines(view, port, client));
        lines.extend(repaired(view, port));
        lines.extend(health_trouble(view, &port.explained));
    }
    for port in asked {
        lines.extend(details(view, port, client));
    }
    let mut services: Vec<_> = asked
        .iter()
        .map(|p| &p.explained.exposure.key.service)
        .collect();
    services.dedup();
    for service in services {
        let problems = issues_of(view, service).map(|issue| match issue.severity {
            Severity::Warning => format!("Problem: {issue}."),
            Severity::Note => format!("Note: {issue}."),
        });
        lines.extend(problems);
    }
    lines.extend(advice::lines(view, asked));
    lines
}

/// Where the kernel does not have what is wanted.
fn kernel_trouble(view: &View<'_>, asked: &Asked) -> Option<String> {
    let Explained {
        exposure, family, ..
    } = &asked.explained;
    let lane = &view.kernel?.families[*family];
    let key = &exposure.key;
    if let Some(words) = lane.refused.get(key) {
        return Some(format!("The kernel refused the rules of {key}: {words}."));
    }
    if !lane.used {
        return Some(format!(
            "{family} is not programmed on this node; the log of the proxy says why: \"Not programming this IP family\"."
        ));
    }
    match &lane.error {
        Some(error) if lane.programmed => Some(format!(
            "The last sync of {family} failed, and the kernel keeps what it had before: {error}."
        )),
        Some(error) => Some(format!("{family} was never programmed: {error}.")),
        None => None,
    }
}

/// External changes that were undone a short time ago.
fn repaired(view: &View<'_>, asked: &Asked) -> Option<String> {
    let family = asked.explained.family;
    let repair = view.kernel?.families[family].repaired.as_ref()?;
    let who = repair.process.as_deref().unwrap_or("Another process");
    let seconds = repair.seconds;
    Some(format!(
        "{who} changed the rules of {family}; they were repaired {seconds} s ago."
    ))
}

/// A health check that nobody can ask.
fn health_trouble(view: &View<'_>, explained: &Explained) -> Option<String> {
    let port = explained.health?.port;
    let words = view.kernel?.health.get(&explained.exposure.key.service)?;
    Some(format!(
        "A load balancer's health check on port {port} gets no answer: {words}."
    ))
}

/// One sentence for all addresses that fare alike, the worst first.
fn headlines(view: &View<'_>, asked: &Asked, client: Client) -> Vec<String> {
    let explained = &asked.explained;
    let mut groups: Vec<(Fate, String, Vec<usize>)> = Vec::new();
    for (number, fate) in &asked.frontends {
        let text = match fate {
            Fate::Balanced(pool) => balanced(view, explained, *number, *pool, client),
            _ => because(explained, *number, *fate),
        };
        match groups.iter_mut().find(|(f, t, _)| f == fate && *t == text) {
            Some((_, _, numbers)) => numbers.push(*number),
            None => groups.push((*fate, text, vec![*number])),
        }
    }
    groups.sort_by_key(|(fate, ..)| matches!(fate, Fate::Balanced(_)));
    let sentence = |(fate, text, numbers): (Fate, String, Vec<usize>)| {
        let who = subject(&explained.exposure, &numbers);
        let from = client.map_or_else(String::new, |(ip, whence)| {
            format!("From {ip}, {}: ", whence_words(whence))
        });
        let (one, several) = match fate {
            Fate::Balanced(_) => ("leads to", "lead to"),
            Fate::Refused => ("refuses connections:", "refuse connections:"),
            Fate::NoneLocal | Fate::SourceRange => ("drops connections:", "drop connections:"),
            Fate::NoNodePorts => ("does not answer:", "do not answer:"),
            Fate::Shadowed => ("leads to another Service:", "lead to another Service:"),
        };
        let verb = if numbers.len() == 1 { one } else { several };
        format!("{from}{who} {verb} {text}.")
    };
    groups.into_iter().map(sentence).collect()
}

/// The addresses, what they are, and of which Service port.
fn subject(exposure: &Exposure, numbers: &[usize]) -> String {
    let names = numbers.iter().map(|number| {
        let frontend = &exposure.frontends[*number];
        let protocol = exposure.key.protocol;
        match frontend.ip {
            Some(ip) => format!(
                "{}/{protocol} ({})",
                format_socket(ip, frontend.port),
                frontend.kind.as_str()
            ),
            None => format!("NodePort {}/{protocol}", frontend.port),
        }
    });
    let names: Vec<_> = names.collect();
    format!("{} of {}", names.join(", "), exposure.key)
}

/// Why a new connection is not balanced.
pub fn because(explained: &Explained, number: usize, fate: Fate) -> String {
    let exposure = &explained.exposure;
    let frontend = &exposure.frontends[number];
    match fate {
        Fate::Balanced(_) => String::new(),
        Fate::Refused => match &explained.lack {
            Some(lack) => lack_words(explained, lack),
            None => "no endpoint can serve".to_owned(),
        },
        Fate::NoneLocal => {
            let policy = policy_field(frontend.kind);
            let elsewhere = explained.endpoints.iter().filter(|e| {
                !e.local && !matches!(e.cluster, Verdict::NotReady | Verdict::Finished)
            });
            let here = explained.endpoints.iter().filter(|e| e.local).count();
            let here = match here {
                0 => "no endpoint runs on this node".to_owned(),
                here => format!("none of the {here} on this node is ready"),
            };
            format!(
                "{policy} is Local and {here}, while {} could serve elsewhere",
                count(elsewhere.count(), "endpoint")
            )
        }
        Fate::SourceRange => format!(
            "the client is in none of spec.loadBalancerSourceRanges ({})",
            joined(&exposure.source_ranges)
        ),
        Fate::NoNodePorts => {
            "nodePortAddresses has only primary, and the Node has no address of this family"
                .to_owned()
        }
        Fate::Shadowed => {
            let claimants = &explained.claimants[number];
            let own = claimants
                .iter()
                .find(|c| c.key == exposure.key && c.kind == frontend.kind);
            match claimants.first() {
                Some(holder) => holder_words(holder, own, frontend.kind, explained),
                None => "another Service holds the address".to_owned(),
            }
        }
    }
}

fn holder_words(
    holder: &Claimant,
    own: Option<&Claimant>,
    kind: FrontendKind,
    explained: &Explained,
) -> String {
    if holder.key == explained.exposure.key {
        return format!(
            "the same Service names the address as {} too",
            holder.kind.as_str()
        );
    }
    let created = own.map_or(explained.service.created, |own| own.created);
    let rule = if holder.kind != kind {
        let (first, then) = (holder.kind.as_str(), kind.as_str());
        format!("{first} comes before {then}")
    } else if holder.created != created {
        "its Service was created first".to_owned()
    } else {
        "both were created in the same second, and its name comes first".to_owned()
    };
    format!("{} holds the address, because {rule}", holder.key)
}

/// Why no endpoint anywhere can serve.
fn lack_words(explained: &Explained, lack: &Lack) -> String {
    let (key, family) = (&explained.exposure.key, explained.family);
    let service = &key.service;
    match lack {
        Lack::NoSlices { other_family: true } => {
            format!("{service} has no {family} EndpointSlice, only ones of the other family")
        }
        Lack::NoSlices {
            other_family: false,
        } => format!("{service} has no EndpointSlice"),
        Lack::NoEndpoints => format!(
            "the EndpointSlices of {service} list no endpoint, so spec.selector matches no Pod"
        ),
        Lack::NoPort { has } => {
            let name = match &*key.name {
                "" => "an unnamed port".to_owned(),
                name => format!("a port {name:?}"),
            };
            let ports = has.iter().map(|port| match &*port.name {
                "" => format!("{}/{}", port.port, port.protocol),
                name => format!("{name:?} {}/{}", port.port, port.protocol),
            });
            let ports: Vec<_> = ports.collect();
            let same_name = has.iter().any(|port| port.name == key.name);
            let ports = match ports.as_slice() {
                [] => "they list no port".to_owned(),
                _ => format!("they have {}", ports.join(", ")),
            };
            let hint = if same_name {
                "the protocol differs"
            } else {
                "spec.ports[].targetPort names no port of the Pods, or the names differ"
            };
            format!(
                "no endpoint of {service} has {name} of {}; {ports}: {hint}",
                key.protocol
            )
        }
        Lack::NoneReady {
            not_ready,
            finished: 0,
        } => format!(
            "{} of {key}, and none is ready",
            count(*not_ready, "endpoint")
        ),
        Lack::NoneReady {
            not_ready: 0,
            finished,
        } => format!(
            "{} of {key}, all shutting down (conditions.terminating) and none still serving",
            count(*finished, "endpoint")
        ),
        Lack::NoneReady {
            not_ready,
            finished,
        } => format!(
            "{} of {key}, and none is ready: {not_ready} not ready, {finished} shutting down",
            count(not_ready + finished, "endpoint")
        ),
    }
}

/// Where a balanced connection goes.
fn balanced(
    view: &View<'_>,
    explained: &Explained,
    number: usize,
    pool: Pool,
    client: Client,
) -> String {
    let exposure = &explained.exposure;
    let frontend = &exposure.frontends[number];
    let chosen = exposure.pool(pool).count();
    let listed = explained.endpoints.len();
    let mut text = match (chosen, listed) {
        (1, 1) => "its only endpoint".to_owned(),
        (chosen, listed) if chosen == listed => format!("one of {chosen} endpoints"),
        (1, _) => format!("one endpoint, of {listed} that are listed"),
        _ => format!("one of {chosen} endpoints, of {listed} that are listed"),
    };
    let verdicts = explained.endpoints.iter().map(|e| e.verdict(pool));
    if verdicts
        .clone()
        .any(|verdict| verdict == Verdict::LastResort)
    {
        text.push_str(", shutting down but still serving, because no better one is ready");
    }
    if pool == Pool::Local {
        text = format!(
            "{text}, on this node only ({} is Local)",
            policy_field(frontend.kind)
        );
    } else {
        text.push_str(&hints_words(view, explained));
    }
    let inside = frontend.inside.filter(|inside| *inside != frontend.action);
    let differs = || !exposure.pool(pool).eq(exposure.pool(Pool::Cluster));
    if client.is_none()
        && let Some(Action::Balance(Pool::Cluster)) = inside
        && differs()
    {
        let many = exposure.pool(Pool::Cluster).count();
        text = format!(
            "{text}; for clients in pods of this node and on it, one of {many} in the whole cluster"
        );
    }
    let restricted = frontend.kind == FrontendKind::LoadBalancerIp
        && !exposure.source_ranges.is_empty()
        && client.is_none();
    if restricted {
        text = format!(
            "{text}; clients outside {} are dropped (spec.loadBalancerSourceRanges)",
            joined(&exposure.source_ranges)
        );
    }
    text
}

fn hints_words(view: &View<'_>, explained: &Explained) -> String {
    let zone = view.known.facts(explained.family).zone.as_deref();
    let zone = zone.unwrap_or("unknown");
    match explained.hints {
        HintUse::Absent => String::new(),
        HintUse::SameNode => ": those hinted for this node (hints.forNodes)".to_owned(),
        HintUse::SameZone => format!(": those hinted for zone {zone} (hints.forZones)"),
        HintUse::Partial => {
            "; topology hints are ignored, because a ready endpoint has none".to_owned()
        }
        HintUse::NoneHere => format!(
            "; topology hints are ignored, because no ready endpoint is hinted for this node or its zone {zone}"
        ),
        HintUse::ZoneUnknown => {
            "; topology hints are ignored, because this Node has no label topology.kubernetes.io/zone"
                .to_owned()
        }
    }
}

/// Endpoints, source address, affinity, health check, kernel.
fn details(view: &View<'_>, asked: &Asked, client: Client) -> Vec<String> {
    let explained = &asked.explained;
    let Explained {
        exposure, family, ..
    } = explained;
    let key = &exposure.key;
    let mut lines = Vec::new();
    let pools = pools(asked);
    if !explained.endpoints.is_empty() {
        lines.push(format!("Endpoints of {key} ({family}/{}):", key.protocol));
        let listed = explained.endpoints.iter().take(LISTED).map(|endpoint| {
            let (_, because) = verdict(view, explained, endpoint, &pools);
            let place = if endpoint.local { ", on this node" } else { "" };
            let socket = format_socket(endpoint.ip, endpoint.port);
            let same = |(ip, port, _): &&Again| (*ip, *port) == (endpoint.ip, endpoint.port);
            let again = match explained.duplicates.iter().find(same) {
                Some((_, _, slice)) => {
                    format!("; EndpointSlice {slice} lists it again, which does not count")
                }
                None => String::new(),
            };
            format!("  {socket}{place}: {because}{again}")
        });
        lines.extend(listed);
        if explained.endpoints.len() > LISTED {
            let more = explained.endpoints.len() - LISTED;
            lines.push(format!("  and {more} more; -o json lists all"));
        }
    }
    lines.extend(claims(asked));
    if asked.serves() {
        lines.extend(source_address(view, asked, client));
        lines.extend(exposure.affinity_seconds.map(|seconds| {
            format!("A client stays with its endpoint for {seconds} s (spec.sessionAffinity is ClientIP).")
        }));
    }
    lines.extend(health(view, explained));
    lines.extend(kernel(view, explained));
    lines
}

/// Others that claim the addresses that this Service port holds.
fn claims(asked: &Asked) -> Vec<String> {
    let explained = &asked.explained;
    let held = asked
        .frontends
        .iter()
        .filter(|(_, fate)| *fate != Fate::Shadowed);
    let lines = held.filter_map(|(number, _)| {
        let own = &explained.exposure.key;
        let others = explained.claimants[*number]
            .iter()
            .map(|claimant| &claimant.key);
        let mut others: Vec<&PortKey> = others.filter(|key| *key != own).collect();
        others.dedup();
        let names: Vec<String> = others.iter().map(ToString::to_string).collect();
        (!names.is_empty()).then(|| {
            let who = subject(&explained.exposure, &[*number]);
            format!(
                "{who} is also claimed by {}, and {own} holds it.",
                names.join(", ")
            )
        })
    });
    lines.collect()
}

/// Whose source address is replaced, and why.
fn source_address(view: &View<'_>, asked: &Asked, client: Client) -> Vec<String> {
    let explained = &asked.explained;
    if view.known.settings().connections == Connections::Relayed {
        return vec![
            "Endpoints see this node's address: mode userspace copies connections.".to_owned(),
        ];
    }
    let facts = view.known.facts(explained.family);
    let served = asked
        .frontends
        .iter()
        .filter(|(_, fate)| matches!(fate, Fate::Balanced(_)));
    let mut lines: Vec<String> = Vec::new();
    for (number, _) in served {
        let frontend = &explained.exposure.frontends[*number];
        let kind = frontend.kind.as_str();
        let line = match (frontend.masquerade, client) {
            (Masquerade::Never, _) => "The client keeps its source address: no pod network is configured (clusterCIDR, detectLocalMode).".to_owned(),
            (Masquerade::Always, _) if frontend.kind == FrontendKind::ClusterIp => {
                "The source address becomes this node's (masqueradeAll).".to_owned()
            }
            (Masquerade::Always, _) => format!(
                "Through the {kind} the source address becomes this node's (externalTrafficPolicy is Cluster)."
            ),
            (Masquerade::Outside, Some((ip, Whence::Pod))) => format!(
                "{ip} keeps its source address: it is in the pod network ({}).",
                detector(facts.detector.as_ref())
            ),
            (Masquerade::Outside, Some((ip, _))) => format!(
                "The source address {ip} becomes this node's: it is outside the pod network ({}).",
                detector(facts.detector.as_ref())
            ),
            (Masquerade::Outside, None) => format!(
                "Pods keep their source address; for clients outside the pod network ({}) it becomes this node's.",
                detector(facts.detector.as_ref())
            ),
            (Masquerade::Node, _) => format!(
                "Through the {kind} clients keep their source address (externalTrafficPolicy is Local), except processes on this node."
            ),
        };
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

fn detector(detector: Option<&Detector>) -> String {
    match detector {
        Some(Detector::Source(net)) => net.to_string(),
        Some(Detector::Interface(name)) => format!("interface {name}"),
        Some(Detector::InterfacePrefix(prefix)) => format!("interfaces {prefix}*"),
        None => "unknown".to_owned(),
    }
}

/// What a cloud load balancer gets to know.
fn health(view: &View<'_>, explained: &Explained) -> Option<String> {
    let check = explained.health?;
    let port = check.port;
    if health_trouble(view, explained).is_some() {
        return None; // The first lines say so.
    }
    Some(match check.local_ready {
        0 => format!(
            "A load balancer's health check on port {port} gets 503, 0 local endpoints: it sends nothing to this node."
        ),
        many => format!(
            "A load balancer's health check on port {port} gets 200, {}, while the proxy is healthy.",
            count(many, "local endpoint")
        ),
    })
}

fn kernel(view: &View<'_>, explained: &Explained) -> Option<String> {
    let lane = &view.kernel?.families[explained.family];
    let key = &explained.exposure.key;
    if lane.refused.contains_key(key) || lane.error.is_some() || !lane.used {
        return None; // The first lines say so.
    }
    let family = explained.family;
    Some(match lane.pending.get(&key.service) {
        Some(seconds) => {
            format!("The newest change of {key} ({family}) is pending for {seconds} s.")
        }
        None if !lane.programmed => format!("{family} is not programmed yet."),
        None => format!("The kernel has this ({family}, mode {}).", view.mode),
    })
}

/// The pools that the addresses asked after use.
pub fn pools(asked: &Asked) -> Vec<Pool> {
    let mut pools = Vec::new();
    let mut add = |pool| {
        if !pools.contains(&pool) {
            pools.push(pool);
        }
    };
    for (number, fate) in &asked.frontends {
        let frontend = &asked.explained.exposure.frontends[*number];
        match (fate, frontend.action) {
            (Fate::Balanced(pool), _) => add(*pool),
            (Fate::SourceRange, Action::Balance(pool)) => add(pool),
            (Fate::NoneLocal, _) => add(Pool::Local),
            _ => {}
        }
        if let Some(Action::Balance(pool)) = frontend.inside.filter(|_| asked.by_anyone) {
            add(pool);
        }
    }
    if pools.is_empty() {
        let policy = asked.explained.exposure.internal_policy;
        pools.push(match policy {
            TrafficPolicy::Cluster => Pool::Cluster,
            TrafficPolicy::Local => Pool::Local,
        });
    }
    pools
}

/// Whether an endpoint is chosen from some pool, and why or why not.
pub fn verdict(
    view: &View<'_>,
    explained: &Explained,
    endpoint: &Judged,
    pools: &[Pool],
) -> (bool, String) {
    let verdicts: Vec<(Pool, Verdict)> = pools
        .iter()
        .map(|pool| (*pool, endpoint.verdict(*pool)))
        .filter(|(_, verdict)| *verdict != Verdict::Unused)
        .collect();
    let chosen = verdicts.iter().any(|(_, verdict)| verdict.is_chosen());
    let words = |verdict| verdict_words(view, explained, endpoint, verdict);
    let text = match verdicts.as_slice() {
        [(_, one)] => words(*one),
        [(_, one), (_, other)] if one == other => words(*one),
        several => several
            .iter()
            .map(|(pool, verdict)| match pool {
                Pool::Cluster => format!("from the whole cluster {}", words(*verdict)),
                Pool::Local => format!("from this node {}", words(*verdict)),
            })
            .collect::<Vec<_>>()
            .join("; "),
    };
    (chosen, text)
}

fn verdict_words(
    view: &View<'_>,
    explained: &Explained,
    endpoint: &Judged,
    verdict: Verdict,
) -> String {
    let slice = &endpoint.slice;
    match verdict {
        Verdict::Ready => "chosen".to_owned(),
        Verdict::LastResort => {
            "chosen although it is shutting down: it still serves, and none is ready".to_owned()
        }
        Verdict::Draining => "not chosen: it is shutting down, and others are ready".to_owned(),
        Verdict::NotReady => {
            format!("not chosen: not ready (conditions.ready is false in EndpointSlice {slice})")
        }
        Verdict::Finished => format!(
            "not chosen: shutting down and not serving (conditions of EndpointSlice {slice})"
        ),
        Verdict::OtherNode => "not chosen: hinted for other nodes (hints.forNodes)".to_owned(),
        Verdict::OtherZone => {
            let zones = endpoint.zones.as_deref().unwrap_or_default();
            let zone = view.known.facts(explained.family).zone.as_deref();
            format!(
                "not chosen: hinted for zone {}, and this node is in zone {} (hints.forZones)",
                zones.join(", "),
                zone.unwrap_or("unknown")
            )
        }
        Verdict::NotLocal => "not chosen: on another node, and the policy is Local".to_owned(),
        Verdict::Unused => "not used".to_owned(),
    }
}

/// The field with the policy for this kind of address.
pub const fn policy_field(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp => "spec.internalTrafficPolicy",
        _ => "spec.externalTrafficPolicy",
    }
}

/// Where a client is, in words.
pub const fn whence_words(whence: Whence) -> &'static str {
    match whence {
        Whence::Node => "which is this node",
        Whence::Pod => "in the pod network",
        Whence::Outside => "outside the pod network",
    }
}

fn joined(nets: &[IpNet]) -> String {
    let texts: Vec<_> = nets.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

fn count(many: usize, word: &str) -> String {
    match many {
        1 => format!("1 {word}"),
        _ => format!("{many} {word}s"),
    }
}
