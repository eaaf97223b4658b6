//! Cuts a failing cluster down to what it takes to fail.
//!
//! In: the states of a cluster, and a way to try others. Out: states that still fail and from
//! which nothing can be taken away, as far as was tried.

use std::net::IpAddr;

use anyhow::Result;

use super::cluster::{Condition, Endpoint, Kind, Service, State};
use crate::probe::Protocol;

/// More would take longer than a reader needs to see what the rest is about.
const MOST_TRIES: usize = 160;

/// Something that can be taken away.
#[derive(Clone, Debug)]
enum Cut {
    State(usize),
    Service(String),
    /// In one Service.
    In(String, Part),
}

#[derive(Clone, Debug)]
enum Part {
    Kind,
    Port(u16, Protocol),
    ExternalIp(IpAddr),
    Ingress(IpAddr),
    Range(&'static str),
    Affinity,
    InternalPolicy,
    ExternalPolicy,
    SecondIp,
    Group(u8),
    GroupTarget(u8),
    Endpoint(&'static str),
    Condition(&'static str),
    /// Hints, node name and family.
    Marks(&'static str),
}

/// The smallest history found for which `fails` says yes.
pub fn shrink(
    mut history: Vec<State>,
    mut fails: impl FnMut(&[State]) -> Result<bool>,
) -> Result<Vec<State>> {
    let mut tries = 0;
    loop {
        let mut smaller = false;
        for cut in cuts(&history) {
            let candidate = without(&history, &cut);
            if candidate == history || candidate.is_empty() {
                continue;
            }
            tries += 1;
            if tries > MOST_TRIES {
                return Ok(history);
            }
            if fails(&candidate)? {
                history = candidate;
                smaller = true;
            }
        }
        if !smaller {
            return Ok(history);
        }
    }
}

/// Everything that might be taken away, the largest pieces first.
fn cuts(history: &[State]) -> Vec<Cut> {
    // The last state is the one that fails.
    let mut cuts: Vec<_> = (0..history.len() - 1).map(Cut::State).collect();
    let mut services: Vec<&Service> = Vec::new();
    for service in history.iter().rev().flat_map(|state| &state.services) {
        if !services.iter().any(|known| known.name == service.name) {
            services.push(service);
        }
    }
    let names = services.iter().map(|service| service.name.clone());
    cuts.extend(names.map(Cut::Service));
    for service in services {
        let own = parts(service).into_iter();
        cuts.extend(own.map(|part| Cut::In(service.name.clone(), part)));
    }
    cuts
}

fn parts(service: &Service) -> Vec<Part> {
    let mut parts: Vec<_> = service
        .ports
        .iter()
        .map(|port| Part::Port(port.number, port.protocol))
        .collect();
    parts.extend(service.groups.iter().map(|group| Part::Group(group.number)));
    parts.push(Part::SecondIp);
    parts.extend(service.external_ips.iter().copied().map(Part::ExternalIp));
    parts.extend(service.ingress.iter().map(|i| Part::Ingress(i.ip)));
    parts.extend([
        Part::Kind,
        Part::Affinity,
        Part::InternalPolicy,
        Part::ExternalPolicy,
    ]);
    parts.extend(service.ranges.iter().copied().map(Part::Range));
    for group in &service.groups {
        parts.extend(group.target.map(|_| Part::GroupTarget(group.number)));
    }
    for endpoint in service.endpoints() {
        parts.extend([
            Part::Endpoint(endpoint.pod),
            Part::Condition(endpoint.pod),
            Part::Marks(endpoint.pod),
        ]);
    }
    parts
}

fn without(history: &[State], cut: &Cut) -> Vec<State> {
    let mut history = history.to_vec();
    match cut {
        // Earlier cuts may have left fewer than there were; the last one is the one that fails.
        Cut::State(number) if number + 1 < history.len() => _ = history.remove(*number),
        Cut::State(_) => {}
        Cut::Service(name) => {
            for state in &mut history {
                state.services.retain(|service| service.name != *name);
            }
        }
        Cut::In(name, part) => {
            let services = history.iter_mut().flat_map(|state| &mut state.services);
            for service in services.filter(|service| service.name == *name) {
                take(service, part);
            }
        }
    }
    // A state in which nothing changes any more is none.
    history.dedup();
    history
}

fn take(service: &mut Service, part: &Part) {
    match part {
        Part::Kind => service.kind = Kind::ClusterIp,
        Part::Port(number, protocol) => {
            if service.ports.len() > 1 {
                let keep = |port: &super::cluster::Port| {
                    (port.number, port.protocol) != (*number, *protocol)
                };
                service.ports.retain(keep);
            }
        }
        Part::ExternalIp(ip) => service.external_ips.retain(|own| own != ip),
        Part::Ingress(ip) => service.ingress.retain(|ingress| ingress.ip != *ip),
        Part::Range(range) => service.ranges.retain(|own| own != range),
        Part::Affinity => service.affinity = None,
        Part::InternalPolicy => service.internal_local = false,
        Part::ExternalPolicy => service.external_local = false,
        Part::SecondIp => service.ips.truncate(1),
        Part::Group(number) => service.groups.retain(|group| group.number != *number),
        Part::GroupTarget(number) => {
            let groups = service.groups.iter_mut();
            groups
                .filter(|group| group.number == *number)
                .for_each(|group| group.target = None);
        }
        Part::Endpoint(pod) => {
            for group in &mut service.groups {
                group.endpoints.retain(|endpoint| endpoint.pod != *pod);
            }
        }
        Part::Condition(pod) => each(service, pod, |e| e.condition = Condition::Ready),
        Part::Marks(pod) => each(service, pod, |endpoint| {
            *endpoint = Endpoint {
                condition: endpoint.condition,
                ..Endpoint::plain(endpoint.pod)
            };
        }),
    }
}

fn each(service: &mut Service, pod: &str, change: impl Fn(&mut Endpoint)) {
    let endpoints = service.groups.iter_mut().flat_map(|g| &mut g.endpoints);
    endpoints.filter(|e| e.pod == pod).for_each(change);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differ::draw;

    #[test]
    fn several_states_may_go_in_one_round() {
        let history: Vec<_> = (0..5).map(|seed| draw::history(seed).remove(0)).collect();
        let small = shrink(history, |_| Ok(true)).unwrap();
        assert_eq!(small.len(), 1);
    }

    #[test]
    fn only_what_matters_is_left() {
        // As if every cluster with a Service that has affinity failed.
        let fails = |history: &[State]| {
            let last = &history[history.len() - 1];
            Ok(last.services.iter().any(|s| s.affinity.is_some()))
        };
        let histories = (0..400).map(draw::history);
        let failing = histories.filter(|history| fails(history).is_ok_and(|fails| fails));
        let mut seen = 0;
        for history in failing.take(20) {
            seen += 1;
            let small = shrink(history, fails).unwrap();
            let [state] = &small[..] else {
                panic!("more than one state is left");
            };
            let [service] = &state.services[..] else {
                panic!("more than one Service is left");
            };
            assert_eq!(service.ports.len(), 1);
            assert_eq!(service.endpoints().count(), 0);
            assert_eq!(service.kind, Kind::ClusterIp);
            assert!(service.affinity.is_some());
        }
        assert_eq!(seen, 20);
    }
}
