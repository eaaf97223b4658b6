//! What an address or a Service does on this node, and why: the answer, for scripts and people.
//!
//! In: a [`Question`] and a [`View`], what is known. Out: an [`Answer`], whose lines are plain
//! sentences, most important first, and whose ports say the same in fields. Field names are an
//! interface: scripts read them, and programs of other versions.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ferrule_core::desired::explain::{Explained, Fate, Known, Whence};
use ferrule_core::issue::{Issue, ObjectKey};
use ferrule_core::model::{Family, PerFamily, Port, PortKey, Protocol, ServiceKey, format_socket};
use serde::{Deserialize, Serialize};

use super::target::Target;
use super::{missing, words};
use crate::watch::Unserved;

/// The version of [`Answer`]; it grows when a field changes its meaning.
pub const VERSION: &str = "v1";

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// What to explain.
    pub target: Target,
    /// For which client, of the family of the target.
    pub from: Option<IpAddr>,
}

/// A client that cannot ask for the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client {client} is {}, and {address} is {}", Family::of(*client), Family::of(*address))]
pub struct OtherFamily {
    client: IpAddr,
    address: IpAddr,
}

impl Question {
    /// A question that makes sense.
    pub fn new(target: Target, from: Option<IpAddr>) -> Result<Self, OtherFamily> {
        if let (Target::Address { ip, .. }, Some(client)) = (&target, from)
            && Family::of(*ip) != Family::of(client)
        {
            let address = *ip;
            return Err(OtherFamily { client, address });
        }
        Ok(Self { target, from })
    }
}

/// What is known where the question is answered.
pub struct View<'a> {
    /// The cluster and the settings.
    pub known: &'a Known,
    /// The name of this node.
    pub node: &'a str,
    /// The mode that programs the kernel.
    pub mode: &'a str,
    /// What is wrong in objects.
    pub issues: &'a [Issue],
    /// Addresses of this machine, where they are known.
    pub local: &'a [IpAddr],
    /// Services that no node proxy serves, where that is known.
    pub unserved: &'a BTreeMap<ServiceKey, Unserved>,
    /// What became of programming the kernel; `None` where nothing programs it.
    pub kernel: Option<&'a Kernel>,
}

/// What became of programming the kernel.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// Per family.
    pub families: PerFamily<Lane>,
    /// Services whose health check port could not be opened, and why.
    pub health: BTreeMap<ServiceKey, String>,
}

/// One family.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// Whether this family is programmed at all.
    pub used: bool,
    /// It was programmed once.
    pub programmed: bool,
    /// The last attempt failed, for this reason.
    pub error: Option<String>,
    /// Services that changed since the last success, each with the seconds since then.
    pub pending: BTreeMap<ServiceKey, u64>,
    /// Service ports that the kernel refuses, with its words.
    pub refused: BTreeMap<PortKey, String>,
    /// External changes that were undone a short time ago.
    pub repaired: Option<Repaired>,
}

/// External changes that were undone.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// How long ago.
    pub seconds: u64,
    /// Who made them, where that is known.
    pub process: Option<String>,
}

/// Whether it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Everything asked after works.
    Works,
    /// Some of it does.
    Partly,
    /// It exists and cannot work.
    Broken,
    /// There is no such Service or address.
    Missing,
    /// Node proxies leave it alone, and that is right.
    Elsewhere,
}

/// The answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// [`VERSION`]
    pub version: String,
    /// What was asked.
    pub target: String,
    /// The node that the answer is about.
    pub node: String,
    /// The mode that programs the kernel; empty where nothing does.
    #[serde(default)]
    pub mode: String,
    /// Whether it works.
    pub state: State,
    /// The answer in sentences.
    pub lines: Vec<String>,
    /// The Service ports that were asked after.
    pub ports: Vec<PortAnswer>,
}

/// One Service port in one family.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortAnswer {
    /// `namespace/name`
    pub service: String,
    /// Empty for an unnamed port.
    pub port_name: String,
    /// `TCP`, `UDP`, `SCTP`
    pub protocol: String,
    /// `IPv4`, `IPv6`
    pub family: String,
    /// The addresses that were asked after.
    pub frontends: Vec<FrontendAnswer>,
    /// Every endpoint listed for the port.
    pub endpoints: Vec<EndpointAnswer>,
    /// Seconds a client stays with its endpoint.
    pub affinity_seconds: Option<u32>,
    /// Where load balancers ask for local endpoints.
    pub health_check_node_port: Option<u16>,
    /// How many they are told.
    pub health_check_local_endpoints: Option<usize>,
    /// What became of it in the kernel: `programmed`, `pending`, `refused`, `failing`; absent where
    /// nothing programs it.
    pub kernel: Option<String>,
}

/// One address.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendAnswer {
    /// `ClusterIP`, `ExternalIP`, `LoadBalancerIP`, `NodePort`
    pub kind: String,
    /// `ip:port`, or `nodeport:port`.
    pub address: String,
    /// `balanced`, `refused`, `noneLocal`, `sourceRange`, `noNodePorts`, `shadowed`
    pub fate: String,
    /// Why, in words; empty where it is balanced.
    pub because: String,
    /// Who claims the address, the holder first.
    pub claimed_by: Vec<String>,
}

/// One endpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointAnswer {
    /// `ip:port`
    pub address: String,
    /// Whether a new connection may go there.
    pub chosen: bool,
    /// Why, or why not.
    pub because: String,
    /// It runs on this node.
    pub local: bool,
    /// `namespace/name` of the slice that lists it.
    pub slice: String,
}

/// One Service port, and which of its addresses are asked after.
pub struct Asked {
    /// The decision and its reasons.
    pub explained: Explained,
    /// The numbers of its frontends, each with what happens there.
    pub frontends: Vec<(usize, Fate)>,
    /// No client was named: what others than outside clients get counts too.
    pub by_anyone: bool,
}

impl Asked {
    /// Whether a new connection to some of the addresses is served.
    pub fn serves(&self) -> bool {
        self.frontends.iter().any(|(_, fate)| is_served(*fate))
    }

    fn is_whole(&self) -> bool {
        self.frontends.iter().all(|(_, fate)| is_served(*fate))
    }
}

const fn is_served(fate: Fate) -> bool {
    matches!(fate, Fate::Balanced(_))
}

/// Answers a question.
pub fn answer(view: &View<'_>, question: &Question) -> Answer {
    let client = question
        .from
        .map(|ip| (ip, view.known.whence(ip, view.local)));
    let of_family = |family: &Family| question.from.is_none_or(|ip| Family::of(ip) == *family);
    let families: Vec<Family> = Family::ALL.into_iter().filter(of_family).collect();
    let mut asked = find(view, &question.target, &families, client);
    if asked.is_empty() {
        return nothing(view, question);
    }
    let refused = |asked: &Asked| {
        let lane = view
            .kernel
            .map(|kernel| &kernel.families[asked.explained.family]);
        lane.is_some_and(|lane| lane.refused.contains_key(&asked.explained.exposure.key))
    };
    // A port that works in one family works.
    let mut works: BTreeMap<PortKey, bool> = BTreeMap::new();
    for port in &asked {
        let serves = port.serves() && !refused(port);
        *works
            .entry(port.explained.exposure.key.clone())
            .or_default() |= serves;
    }
    let state = if works.values().any(|works| !works) {
        State::Broken
    } else if asked.iter().all(|port| port.is_whole() && !refused(port)) {
        State::Works
    } else {
        State::Partly
    };
    // What is wrong comes first.
    asked.sort_by_key(|port| (port.serves() && !refused(port), port.is_whole()));
    Answer {
        state,
        lines: words::lines(view, &asked, client),
        ports: asked.iter().map(|port| port_answer(view, port)).collect(),
        ..blank(view, question)
    }
}

/// The ports that a target means, with its addresses.
fn find(
    view: &View<'_>,
    target: &Target,
    families: &[Family],
    client: Option<(IpAddr, Whence)>,
) -> Vec<Asked> {
    let known = view.known;
    let all = |key: &ServiceKey, family| known.explain(key, family).into_iter();
    let take = |explained: Explained, only: Option<(Option<IpAddr>, Port)>| {
        let frontends = explained.exposure.frontends.iter().enumerate();
        let frontends = frontends
            .filter(|(_, frontend)| only.is_none_or(|only| only == (frontend.ip, frontend.port)))
            // An IP that is named twice is asked after once.
            .filter(|(_, frontend)| only.is_none() || !frontend.shadowed)
            .map(|(number, frontend)| (number, explained.fate(known, frontend, client)))
            .collect();
        Asked {
            explained,
            frontends,
            by_anyone: client.is_none(),
        }
    };
    let holders = |family, ip, port, protocol: Option<Protocol>| {
        let claimants = known.claimants(family, ip, port).into_iter();
        claimants
            .filter_map(|claimants| claimants.into_iter().next())
            .filter(move |holder| protocol.is_none_or(|asked| asked == holder.key.protocol))
            .flat_map(|holder| {
                let ports = known.explain(&holder.key.service, family).into_iter();
                ports.filter(move |port| port.exposure.key == holder.key)
            })
            .map(|explained| take(explained, Some((ip, port))))
            .collect::<Vec<_>>()
    };
    match target {
        Target::Service { key, port } => {
            let is_asked = |explained: &Explained| {
                let number = explained.exposure.frontends.first().map(|first| first.port);
                port.as_ref().is_none_or(|port| {
                    **port == *explained.exposure.key.name
                        || number.is_some_and(|number| number.to_string() == *port)
                })
            };
            let ports = families.iter().flat_map(|family| all(key, *family));
            ports
                .filter(is_asked)
                .map(|port| take(port, None))
                .collect()
        }
        Target::NodePort { port, protocol } => families
            .iter()
            .flat_map(|family| holders(*family, None, *port, *protocol))
            .collect(),
        Target::Address { ip, port, protocol } => {
            let family = Family::of(*ip);
            let found = holders(family, Some(*ip), *port, *protocol);
            if found.is_empty() && missing::answers_node_ports(view, *ip) {
                return holders(family, None, *port, *protocol);
            }
            found
        }
    }
}

/// The answer where nothing is found.
fn nothing(view: &View<'_>, question: &Question) -> Answer {
    let (state, lines) = missing::lines(view, question);
    Answer {
        state,
        lines,
        ..blank(view, question)
    }
}

fn blank(view: &View<'_>, question: &Question) -> Answer {
    Answer {
        version: VERSION.to_owned(),
        target: question.target.to_string(),
        node: view.node.to_owned(),
        mode: view.kernel.map_or("", |_| view.mode).to_owned(),
        state: State::Missing,
        lines: Vec::new(),
        ports: Vec::new(),
    }
}

fn port_answer(view: &View<'_>, asked: &Asked) -> PortAnswer {
    let Asked {
        explained,
        frontends,
        ..
    } = asked;
    let Explained {
        exposure, family, ..
    } = explained;
    let frontends = frontends.iter().map(|(number, fate)| {
        let frontend = &exposure.frontends[*number];
        FrontendAnswer {
            kind: frontend.kind.as_str().to_owned(),
            address: frontend.ip.map_or_else(
                || format!("nodeport:{}", frontend.port),
                |ip| format_socket(ip, frontend.port),
            ),
            fate: fate_word(*fate).to_owned(),
            because: match fate {
                Fate::Balanced(_) => String::new(),
                _ => words::because(explained, *number, *fate),
            },
            claimed_by: explained.claimants[*number]
                .iter()
                .map(|claimant| claimant.key.to_string())
                .collect(),
        }
    });
    let pools = words::pools(asked);
    let endpoints = explained.endpoints.iter().map(|endpoint| {
        let (chosen, because) = words::verdict(view, explained, endpoint, &pools);
        EndpointAnswer {
            address: format_socket(endpoint.ip, endpoint.port),
            chosen,
            because,
            local: endpoint.local,
            slice: endpoint.slice.to_string(),
        }
    });
    let kernel = view.kernel.map(|kernel| &kernel.families[*family]);
    PortAnswer {
        service: exposure.key.service.to_string(),
        port_name: exposure.key.name.to_string(),
        protocol: exposure.key.protocol.to_string(),
        family: family.to_string(),
        frontends: frontends.collect(),
        endpoints: endpoints.collect(),
        affinity_seconds: exposure.affinity_seconds.map(Into::into),
        health_check_node_port: exposure.health_check_port.map(Port::get),
        health_check_local_endpoints: explained.health.map(|health| health.local_ready),
        kernel: kernel.map(|lane| lane.word(&exposure.key).to_owned()),
    }
}

impl Lane {
    /// What became of a Service port.
    pub fn word(&self, key: &PortKey) -> &'static str {
        if self.refused.contains_key(key) {
            "refused"
        } else if !self.used || !self.programmed || self.error.is_some() {
            "failing"
        } else if self.pending.contains_key(&key.service) {
            "pending"
        } else {
            "programmed"
        }
    }
}

const fn fate_word(fate: Fate) -> &'static str {
    match fate {
        Fate::Balanced(_) => "balanced",
        Fate::Refused => "refused",
        Fate::NoneLocal => "noneLocal",
        Fate::SourceRange => "sourceRange",
        Fate::NoNodePorts => "noNodePorts",
        Fate::Shadowed => "shadowed",
    }
}

/// What is wrong in a Service or in one of its slices.
pub fn issues_of<'a>(view: &'a View<'_>, key: &ServiceKey) -> impl Iterator<Item = &'a Issue> {
    let entry = view.known.entry(key);
    let slices: Vec<_> = entry
        .iter()
        .flat_map(|entry| entry.slices.iter().map(|slice| slice.key.clone()))
        .collect();
    let key = key.clone();
    view.issues.iter().filter(move |issue| match &issue.object {
        ObjectKey::Service(service) => *service == key,
        ObjectKey::Slice(slice) => slices.contains(slice),
        ObjectKey::Node(_) | ObjectKey::ServiceCidr(_) => false,
    })
}
