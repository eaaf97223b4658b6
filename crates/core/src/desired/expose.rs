//! On which addresses a Service answers on this node, and what happens there.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::family::Plan;
use super::gather::{Candidate, Gathered, gather};
use super::select::{Wanted, select};
use super::{
    Action, Algorithm, Endpoint, Exposure, Frontend, FrontendKind, HealthCheck, Idle, Masquerade,
    Pool,
};
use crate::facts::{Connections, Facts, Settings};
use crate::issue::{Issue, ObjectKey, Severity};
use crate::model::{
    Family, Port, PortKey, Protocol, Service, ServicePort, Slice, TrafficPolicy, format_socket,
};
use crate::track::Entry;

/// What one Service comes to in one family; `None` when it has no part in it.
pub(super) fn draw(
    settings: &Settings,
    facts: &Facts,
    family: Family,
    entry: &Entry,
    issues: &mut Vec<Issue>,
) -> Option<Plan> {
    let Some(service) = &entry.service else {
        orphans(&entry.slices, family, issues);
        return None;
    };
    let cluster_ip = service.cluster_ips[family]?;
    let of_family = || entry.slices.iter().filter(|slice| slice.family == family);
    if of_family().next().is_none() {
        issues.push(Issue {
            object: ObjectKey::Service(service.key.clone()),
            field: "EndpointSlices".to_owned(),
            message: format!(
                "no {family} EndpointSlice; connections to {family} addresses are rejected"
            ),
            severity: Severity::Note,
        });
    }
    let draft = Draft {
        facts,
        family,
        service,
        cluster_ip,
        external_ips: external_ips(settings, service, family),
        connections: settings.connections,
    };
    let mut listed = 0;
    let mut exposures: Vec<Arc<Exposure>> = service
        .ports
        .iter()
        .map(|port| {
            let gathered = gather(&entry.slices, family, &port.name, port.protocol);
            duplicates(&gathered, issues);
            listed += gathered.candidates.len();
            Arc::new(draft.exposure(port, &gathered.candidates))
        })
        .collect();
    exposures.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    let health = service.health_check_port().map(|port| HealthCheck {
        port,
        local_ready: local_ready(of_family()),
    });
    let hinted = of_family().any(|slice| {
        slice
            .endpoints
            .iter()
            .any(|endpoint| endpoint.zone_hints.is_some())
    });
    Some(Plan {
        exposures: exposures.into(),
        health,
        created: service.created,
        hinted,
        listed,
    })
}

/// Which pools a port needs; `has_external` says whether it has addresses beside the cluster IP.
pub(super) fn wanted(service: &Service, has_external: bool) -> Wanted {
    let external_local = service.external_policy() == TrafficPolicy::Local;
    Wanted {
        cluster: service.internal_policy == TrafficPolicy::Cluster || has_external,
        local: service.internal_policy == TrafficPolicy::Local || (external_local && has_external),
    }
}

/// What all ports of the Service share while it is drawn.
struct Draft<'a> {
    facts: &'a Facts,
    family: Family,
    service: &'a Service,
    cluster_ip: IpAddr,
    external_ips: Vec<(FrontendKind, IpAddr)>,
    connections: Connections,
}

impl Draft<'_> {
    fn exposure(&self, port: &ServicePort, candidates: &[Candidate<'_>]) -> Exposure {
        let service = self.service;
        let external = self.external_addresses(port);
        let internal_policy = service.internal_policy;
        let external_policy = service.external_policy();
        let wanted = wanted(service, !external.is_empty());
        let selection = select(candidates, wanted, self.facts.zone.as_deref());
        let endpoints: Box<[Endpoint]> = candidates
            .iter()
            .zip(&selection.pools)
            .filter(|(_, (cluster, local))| *cluster || *local)
            .map(|(candidate, (cluster, local))| Endpoint {
                ip: candidate.endpoint.ip,
                port: candidate.port,
                weight: 1,
                local: candidate.endpoint.local,
                in_cluster_pool: *cluster,
                in_local_pool: *local,
            })
            .collect();
        let action = |policy| match policy {
            _ if !selection.any => Action::Reject,
            TrafficPolicy::Cluster => Action::Balance(Pool::Cluster),
            TrafficPolicy::Local if endpoints.iter().any(|endpoint| endpoint.in_local_pool) => {
                Action::Balance(Pool::Local)
            }
            TrafficPolicy::Local => Action::Drop,
        };
        let cluster = Frontend {
            kind: FrontendKind::ClusterIp,
            ip: Some(self.cluster_ip),
            port: port.port,
            action: action(internal_policy),
            inside: None,
            masquerade: self.facts.cluster_ip_masquerade,
            shadowed: false,
        };
        let has_vip = external
            .iter()
            .any(|(kind, ..)| *kind == FrontendKind::LoadBalancerIp);
        let external = external.into_iter().map(|(kind, ip, port)| Frontend {
            kind,
            ip,
            port,
            action: action(external_policy),
            inside: (external_policy == TrafficPolicy::Local && selection.any)
                .then_some(Action::Balance(Pool::Cluster)),
            masquerade: match external_policy {
                TrafficPolicy::Cluster => Masquerade::Always,
                TrafficPolicy::Local => Masquerade::Node,
            },
            shadowed: false,
        });
        let source_ranges = if has_vip {
            self.source_ranges()
        } else {
            Box::default()
        };
        Exposure {
            key: PortKey {
                service: service.key.clone(),
                name: port.name.clone(),
                protocol: port.protocol,
            },
            frontends: std::iter::once(cluster).chain(external).collect(),
            answering: match port.protocol {
                Protocol::Tcp if self.connections != Connections::Relayed => Box::default(),
                Protocol::Tcp | Protocol::Udp => candidates
                    .iter()
                    .filter(|candidate| candidate.endpoint.serving)
                    .map(|candidate| (candidate.endpoint.ip, candidate.port))
                    .collect(),
                Protocol::Sctp => Box::default(),
            },
            idle: self.idle(candidates, &selection.pools),
            endpoints,
            algorithm: Algorithm::default(),
            scheduler: service.scheduler.clone(),
            proxy_header: service.proxy_header,
            affinity_seconds: service.affinity_seconds,
            source_ranges_include_node: source_ranges
                .iter()
                .any(|net| net.contains(&self.facts.node_ip)),
            source_ranges,
            internal_policy,
            external_policy,
            health_check_port: service.health_check_port(),
        }
    }

    /// Endpoints in no pool, if their connections are to end.
    fn idle(&self, candidates: &[Candidate<'_>], pools: &[(bool, bool)]) -> Box<[Idle]> {
        if self.connections != Connections::Drained {
            return Box::default();
        }
        let in_no_pool = candidates.iter().zip(pools);
        in_no_pool
            .filter(|(_, pools)| **pools == (false, false))
            .map(|(candidate, _)| Idle {
                ip: candidate.endpoint.ip,
                port: candidate.port,
                local: candidate.endpoint.local,
            })
            .collect()
    }

    /// Addresses that outside clients use, each kind's in the order of the Service.
    fn external_addresses(&self, port: &ServicePort) -> Vec<(FrontendKind, Option<IpAddr>, Port)> {
        let ips = self.external_ips.iter();
        let node_port = port.node_port;
        ips.map(|(kind, ip)| (*kind, Some(*ip), port.port))
            .chain(node_port.map(|port| (FrontendKind::NodePort, None, port)))
            .collect()
    }

    /// The ranges of this family; one that holds everything lifts the restriction.
    fn source_ranges(&self) -> Box<[IpNet]> {
        let of_family = |net: &&IpNet| Family::of_net(net) == self.family;
        let ranges: Box<[IpNet]> = self
            .service
            .source_ranges
            .iter()
            .filter(of_family)
            .copied()
            .collect();
        if ranges.iter().any(|net| net.prefix_len() == 0) {
            Box::default()
        } else {
            ranges
        }
    }
}

/// The external and load balancer IPs of one family, each once in each kind.
fn external_ips(
    settings: &Settings,
    service: &Service,
    family: Family,
) -> Vec<(FrontendKind, IpAddr)> {
    let external_ips: &[IpAddr] = if settings.allow_external_ips {
        &service.external_ips
    } else {
        &[]
    };
    let of_kind = |kind, ips: &[IpAddr]| -> Vec<(FrontendKind, IpAddr)> {
        let mut seen = HashSet::new();
        ips.iter()
            .filter(|ip| Family::of(**ip) == family && seen.insert(**ip))
            .map(|ip| (kind, *ip))
            .collect()
    };
    let mut all = of_kind(FrontendKind::ExternalIp, external_ips);
    all.extend(of_kind(
        FrontendKind::LoadBalancerIp,
        &service.load_balancer_ips,
    ));
    all
}

/// Ready endpoints on this node, by address: two ports of one pod are one endpoint.
fn local_ready<'a>(slices: impl Iterator<Item = &'a Arc<Slice>>) -> usize {
    let mut ips: Vec<IpAddr> = slices
        .filter(|slice| !slice.ports.is_empty())
        .flat_map(|slice| &slice.endpoints)
        .filter(|endpoint| endpoint.local && endpoint.ready)
        .map(|endpoint| endpoint.ip)
        .collect();
    ips.sort_unstable();
    ips.dedup();
    ips.len()
}

fn orphans(slices: &[Arc<Slice>], family: Family, issues: &mut Vec<Issue>) {
    issues.extend(
        slices
            .iter()
            .filter(|slice| slice.family == family)
            .map(|slice| Issue {
                object: ObjectKey::Slice(slice.key.clone()),
                field: "metadata.labels[kubernetes.io/service-name]".to_owned(),
                message: format!(
                    "Service {} does not exist or has no cluster IP",
                    slice.service
                ),
                severity: Severity::Note,
            }),
    );
}

/// One line per Service port, not one per duplicate: a whole slice may be listed twice.
fn duplicates(gathered: &Gathered<'_>, issues: &mut Vec<Issue>) {
    let Some(first) = gathered.duplicates.first() else {
        return;
    };
    let socket = format_socket(first.endpoint.ip, first.port);
    let others = match gathered.duplicates.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more endpoints)"),
    };
    issues.push(Issue {
        object: ObjectKey::Slice(first.slice.key.clone()),
        field: "endpoints".to_owned(),
        message: format!(
            "{socket} is listed more than once for {}{others}",
            first.slice.service
        ),
        severity: Severity::Note,
    });
}
