//! All Service ports of this node, as they are decided.
//!
//! Field names are an interface. Costs all of them, each time.

use ferrule_core::desired::explain::Known;
use ferrule_core::desired::{Action, Exposure, Frontend};
use ferrule_core::model::{Family, PortKey, format_socket};
use serde::Serialize;

/// All Service ports of this node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicesAnswer {
    /// [`crate::explain::answer::VERSION`]
    pub version: String,
    /// The node that the answer is about.
    pub node: String,
    /// The mode that programs the kernel.
    pub mode: String,
    /// Service ports in order of their names.
    pub services: Vec<ServiceAnswer>,
}

/// One Service port in one family.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAnswer {
    /// `namespace/name`
    pub service: String,
    /// Empty for an unnamed port.
    pub port_name: String,
    /// `TCP`, `UDP`, `SCTP`
    pub protocol: String,
    /// `IPv4`, `IPv6`
    pub family: String,
    /// What happens to new connections: `balanced`, `refused` or `noneLocal` at all of its addresses,
    /// or `partly` where they differ; `shadowed` if other Service ports hold all of them.
    pub decision: &'static str,
    /// Its addresses.
    pub addresses: Vec<AddressAnswer>,
    /// How many endpoints new connections may go to.
    pub chosen: usize,
    /// How many are listed and get none.
    pub others: usize,
    /// What became of it in the kernel.
    pub kernel: Option<&'static str>,
}

/// One address.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressAnswer {
    /// `ClusterIP`, `ExternalIP`, `LoadBalancerIP`, `NodePort`
    pub kind: &'static str,
    /// `ip:port`, or `nodeport:port`.
    pub address: String,
    /// What happens to a new connection from outside.
    pub fate: &'static str,
}

/// All of them; `kernel` says what became of one.
pub fn services(
    known: &Known,
    families: &[Family],
    kernel: impl Fn(&PortKey, Family) -> Option<&'static str>,
) -> Vec<ServiceAnswer> {
    let desired = known.desired();
    let of = |family: Family| {
        let exposures = desired.exposures(family).into_iter();
        let one =
            |exposure: &Exposure| service(known, exposure, family, kernel(&exposure.key, family));
        exposures
            .map(|exposure| one(exposure.as_ref()))
            .collect::<Vec<_>>()
    };
    let mut all: Vec<_> = families.iter().flat_map(|family| of(*family)).collect();
    all.sort_by(|a, b| (&a.service, &a.port_name).cmp(&(&b.service, &b.port_name)));
    all
}

fn service(
    known: &Known,
    exposure: &Exposure,
    family: Family,
    kernel: Option<&'static str>,
) -> ServiceAnswer {
    let chosen = exposure.endpoints.len();
    let addresses = exposure.frontends.iter().map(|frontend| AddressAnswer {
        kind: frontend.kind.as_str(),
        address: frontend.ip.map_or_else(
            || format!("nodeport:{}", frontend.port),
            |ip| format_socket(ip, frontend.port),
        ),
        fate: fate(frontend),
    });
    ServiceAnswer {
        service: exposure.key.service.to_string(),
        port_name: exposure.key.name.to_string(),
        protocol: exposure.key.protocol.to_string(),
        family: family.to_string(),
        decision: decision(exposure),
        addresses: addresses.collect(),
        chosen,
        others: listed(known, &exposure.key, family).saturating_sub(chosen),
        kernel,
    }
}

/// How many endpoints are listed for a Service port, in any condition.
fn listed(known: &Known, key: &PortKey, family: Family) -> usize {
    let entry = known.entry(&key.service);
    let slices = entry.iter().flat_map(|entry| &entry.slices);
    let slices = slices.filter(|slice| {
        let mut ports = slice.ports.iter();
        let has_port = ports.any(|port| port.name == key.name && port.protocol == key.protocol);
        slice.family == family && has_port
    });
    slices.map(|slice| slice.endpoints.len()).sum()
}

const fn fate(frontend: &Frontend) -> &'static str {
    match frontend.action {
        _ if frontend.shadowed => "shadowed",
        Action::Balance(_) => "balanced",
        Action::Reject => "refused",
        Action::Drop => "noneLocal",
    }
}

fn decision(exposure: &Exposure) -> &'static str {
    let mut fates = exposure.holding().map(fate);
    let Some(first) = fates.next() else {
        return "shadowed";
    };
    if fates.all(|fate| fate == first) {
        first
    } else {
        "partly"
    }
}
