//! The desired state as rows, one per address: the stable JSON and what the table is made of.

use ferrule_core::desired::{Action, Desired, Exposure, Frontend, FrontendKind, Masquerade};
use ferrule_core::facts::NodePorts;
use ferrule_core::model::{Family, Port};
use serde::Serialize;

/// What one address does. Field names are an interface: scripts read them.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// `namespace/name`
    pub service: String,
    /// Empty for an unnamed port.
    pub port_name: String,
    /// `TCP`, `UDP`, `SCTP`
    pub protocol: &'static str,
    /// `IPv4`, `IPv6`
    pub family: &'static str,
    /// `ClusterIP`, `ExternalIP`, `LoadBalancerIP`, `NodePort`
    pub kind: &'static str,
    /// The IP; for a NodePort `*`, or the networks it is limited to, or `none`.
    pub address: String,
    /// The port.
    pub port: u16,
    /// `balance`, `reject`, `drop`
    pub action: &'static str,
    /// `ip:port` of the endpoints behind it.
    pub endpoints: Vec<String>,
    /// What clients on this node and in its pods get, where that differs.
    pub in_cluster_endpoints: Option<Vec<String>>,
    /// The policy that chose the endpoints: `Cluster`, `Local`.
    pub traffic_policy: &'static str,
    /// Seconds a client stays with its endpoint.
    pub affinity_seconds: Option<u32>,
    /// Networks allowed to use a load balancer IP; empty means all.
    pub source_ranges: Vec<String>,
    /// Whose source address is replaced by the node's: `never`, `always`, `outside` (clients
    /// outside the pod network), `node` (processes on this node).
    pub masquerade: &'static str,
    /// Where load balancers ask for local endpoints.
    pub health_check_node_port: Option<u16>,
    /// How many local endpoints it reports.
    pub health_check_local_endpoints: Option<usize>,
}

/// Rows of all addresses, sorted by Service, port, family, kind and address. Addresses another
/// Service holds are left out: each address has one row.
pub fn rows(desired: &Desired, families: &[Family]) -> Vec<Row> {
    let mut rows = Vec::new();
    for &family in families {
        let node_ports = node_port_address(&desired.facts(family).node_ports);
        for exposure in desired.exposures(family) {
            let health = desired.health_check(family, &exposure.key.service);
            let local_ready = health.map(|health| health.local_ready);
            rows.extend(exposure.holding().map(|frontend| {
                let address = frontend
                    .ip
                    .map_or_else(|| node_ports.clone(), |ip| ip.to_string());
                row(family, exposure, frontend, address, local_ready)
            }));
        }
    }
    rows.sort_by(|a, b| a.order().cmp(&b.order()));
    rows
}

impl Row {
    fn order(&self) -> impl Ord + '_ {
        let port = (&self.service, &self.port_name, self.protocol);
        (port, self.family, self.kind, &self.address, self.port)
    }
}

fn row(
    family: Family,
    exposure: &Exposure,
    frontend: &Frontend,
    address: String,
    local_ready: Option<usize>,
) -> Row {
    let endpoints = |action| exposure.behind(action).map(ToString::to_string).collect();
    let internal = frontend.kind == FrontendKind::ClusterIp;
    let policy = if internal {
        exposure.internal_policy
    } else {
        exposure.external_policy
    };
    Row {
        service: exposure.key.service.to_string(),
        port_name: exposure.key.name.to_string(),
        protocol: exposure.key.protocol.as_str(),
        family: family.as_str(),
        kind: frontend.kind.as_str(),
        address,
        port: frontend.port.get(),
        action: match frontend.action {
            Action::Balance(_) => "balance",
            Action::Reject => "reject",
            Action::Drop => "drop",
        },
        endpoints: endpoints(frontend.action),
        in_cluster_endpoints: frontend.inside.map(endpoints),
        traffic_policy: policy.as_str(),
        affinity_seconds: exposure.affinity_seconds.map(Into::into),
        source_ranges: match frontend.kind {
            FrontendKind::LoadBalancerIp => exposure
                .source_ranges
                .iter()
                .map(ToString::to_string)
                .collect(),
            _ => Vec::new(),
        },
        masquerade: match frontend.masquerade {
            Masquerade::Never => "never",
            Masquerade::Always => "always",
            Masquerade::Outside => "outside",
            Masquerade::Node => "node",
        },
        health_check_node_port: exposure.health_check_port.map(Port::get),
        health_check_local_endpoints: local_ready,
    }
}

fn node_port_address(node_ports: &NodePorts) -> String {
    match node_ports {
        NodePorts::All => "*".to_owned(),
        NodePorts::Nowhere => "none".to_owned(),
        NodePorts::Within(nets) => {
            let words = nets.iter().map(|net| {
                if net.prefix_len() == net.max_prefix_len() {
                    net.addr().to_string()
                } else {
                    net.to_string()
                }
            });
            words.collect::<Vec<_>>().join(",")
        }
    }
}
