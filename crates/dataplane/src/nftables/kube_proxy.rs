//! A table that kube-proxy wrote in its mode nftables, compared by what it does.
//!
//! In: a snapshot of the table. Out: a [`Report`]. kube-proxy has a chain per Service, with a map of
//! its own; we have not. So its chains are followed from each Service address to the endpoints, and
//! what comes of that is compared with the desired state: which endpoints, for clients inside and
//! outside, whether they are masqueraded, who is refused or dropped, for how long clients stay.
//! What both programs have alike, base chains, fixed rules and sets of addresses, is compared as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use ferrule_core::desired::{Action, Desired, Exposure, Frontend, FrontendKind, Masquerade};
use ferrule_core::facts::NodePorts;
use ferrule_core::model::{Family, PortKey};
use ferrule_kernel::nft::{Data, Element, Rule, Snapshot, Value, Verdict, text};
use ipnet::IpNet;

use super::Options;
use super::diff::{RenderContext, by_chain, of};
use super::names::{self, Container, TABLE};
use super::render;
use super::ruleset::elements;
use super::verify::{Words, elements_of_set, rules_by_words};
use crate::verify::{Discrepancy, Report};
use crate::{kernel_family, protocol_number};

mod chains;

use chains::{Chains, Unreadable};

/// Addresses on which NodePorts answer.
const NODEPORT_IPS: &str = "nodeport-ips";

/// Whether kube-proxy wrote this table, or it is empty but for what kube-proxy declares.
pub fn is_its(installed: &Snapshot) -> bool {
    let mut sets = installed.sets.iter().map(|held| &*held.object.name);
    let mut chains = installed.chains.iter().map(|held| &*held.object.name);
    let is_ours = sets.any(|name| name.starts_with("ferrule-"))
        || chains.any(|name| name.starts_with("ferrule-") || name.starts_with("pick-"));
    let mut sets = installed.sets.iter().map(|held| &*held.object.name);
    !is_ours && sets.any(|name| name == Container::ServiceIps.name())
}

/// What a packet matches: address, protocol and port, or protocol and port of a NodePort.
type Key = Value;

/// What happens to packets to one Service address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Conduct {
    /// To those of clients outside.
    outside: Outcome,
    /// To those of pods and of the node.
    inside: Outcome,
    /// Whose packets are not dropped, if not everybody's.
    sources: Option<Vec<(Value, Value)>>,
    /// For how long clients stay with an endpoint, in seconds.
    affinity: Option<u64>,
}

/// What happens to a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Outcome {
    /// Nothing.
    #[default]
    Nothing,
    /// It goes to one of these endpoints; the client's address is replaced always, or not always.
    Balance(BTreeSet<SocketAddr>, bool),
    /// It is refused.
    Reject,
    /// It is dropped.
    Drop,
}

/// How the table differs from what is desired.
pub fn compare(
    installed: &Snapshot,
    desired: &Desired,
    family: Family,
    options: Options,
) -> Report {
    let mut report = Report::default();
    report.note(format!(
        "the rules of {family} were written by kube-proxy: compared is what they do"
    ));
    let words = Words::new(kernel_family(family), TABLE);
    let rules = by_chain(installed.rules.iter().map(|held| &held.object));
    let table = Comparison {
        installed,
        desired,
        family,
        options,
        words,
        rules,
    };
    table.base_chains(&mut report);
    table.fixed_rules(&mut report);
    table.addresses(&mut report);
    table.node_port_addresses(&mut report);
    table.services(&mut report);
    report
}

struct Comparison<'a> {
    installed: &'a Snapshot,
    desired: &'a Desired,
    family: Family,
    options: Options,
    words: Words,
    rules: BTreeMap<&'a str, Vec<&'a Rule>>,
}

impl Comparison<'_> {
    fn elements(&self, set: &str) -> &[Element] {
        let elements = self.installed.elements.get(set);
        elements.map_or(&[], Vec::as_slice)
    }

    fn chains(&self) -> Chains<'_> {
        let family = kernel_family(self.family);
        Chains::new(self.installed, &self.rules, family, self.options.mark)
    }

    /// Chains where packets enter, and the fixed chains that they lead to: both programs have them
    /// alike, but for those that are ours alone.
    fn base_chains(&self, report: &mut Report) {
        let present = self.installed.chains.iter();
        let present: BTreeMap<&str, _> = present
            .map(|held| (&*held.object.name, &held.object))
            .collect();
        for chain in names::chains() {
            if chain.name.starts_with("ferrule-") {
                continue;
            }
            let object = self.words.chain(&chain.name);
            match present.get(&*chain.name) {
                None => report.add(Discrepancy::missing(object)),
                Some(found) if found.base != chain.base => {
                    let found = text::chain(found).unwrap_or_default().join("; ");
                    report.add(Discrepancy::different(object, found));
                }
                Some(_) => {}
            }
        }
        for name in present.keys() {
            let is_known = names::chains().iter().any(|chain| *chain.name == **name);
            if !is_known && !name.contains('/') && !name.starts_with("__") {
                report.add(Discrepancy::unexpected(self.words.chain(name)));
            }
        }
    }

    /// Rules that do not depend on Services. Where the programs write them differently, by the words
    /// that kube-proxy gives `nft`.
    fn fixed_rules(&self, report: &mut Report) {
        let facts = self.desired.facts(self.family);
        let statics = render::statics(facts, self.family, self.options);
        let wanted = by_chain(&statics.rules);
        for chain in names::chains() {
            let name = &*chain.name;
            let (rules, found) = (of(&wanted, name), of(&self.rules, name));
            let found = match name {
                names::CLUSTER_IPS_CHECK => {
                    // Of the networks of Services we have a set, and kube-proxy a rule.
                    let (drops, others): (Vec<&Rule>, Vec<&Rule>) =
                        found.iter().partition(|rule| chains::drops(rule));
                    self.service_networks(&drops, report);
                    let rules: Vec<&Rule> = rules
                        .iter()
                        .copied()
                        .filter(|rule| !chains::drops(rule))
                        .collect();
                    rules_by_words(self.words, name, &rules, &others)
                }
                names::SERVICES | names::NODEPORT_CHECK => self.node_port_rules(name, rules, found),
                _ if name.starts_with("ferrule-") => continue,
                _ => rules_by_words(self.words, name, rules, found),
            };
            report.discrepancies.extend(found);
        }
    }

    /// The rules of a chain that ends with those for NodePorts.
    fn node_port_rules(&self, chain: &str, wanted: &[&Rule], found: &[&Rule]) -> Vec<Discrepancy> {
        let set = match chain {
            names::SERVICES => Container::ServiceNodePorts,
            _ => Container::NoEndpointNodePorts,
        };
        let is_other = |rule: &&Rule| !chains::looks_in(rule, set.name());
        let wanted: Vec<&Rule> = wanted.iter().copied().filter(is_other).collect();
        let (others, about): (Vec<&Rule>, Vec<&Rule>) = found.iter().copied().partition(is_other);
        let mut differences = rules_by_words(self.words, chain, &wanted, &others);
        let lines: Vec<_> = about.iter().map(|rule| self.words.of_rule(rule)).collect();
        let text = lines.join("; ");
        let expected = self.node_port_rule(chain, set);
        if text.is_empty() {
            differences.push(Discrepancy::missing(self.words.rule(chain, &expected)));
        } else if text != expected {
            let object = self.words.rule(chain, &expected);
            differences.push(Discrepancy::different(object, text));
        }
        differences
    }

    /// How kube-proxy leads to NodePorts.
    fn node_port_rule(&self, chain: &str, set: Container) -> String {
        let (ip, loopback) = match self.family {
            Family::V4 => ("ip", "127.0.0.0/8"),
            Family::V6 => ("ip6", "::1"),
        };
        let lookup = format!("meta l4proto . th dport vmap @{}", set.name());
        if self.node_port_ips().is_some() {
            return format!("{ip} daddr @{NODEPORT_IPS} {lookup}");
        }
        let local = match chain {
            names::SERVICES => "fib daddr type local ",
            _ => "",
        };
        format!("{local}{ip} daddr != {loopback} {lookup}")
    }

    fn node_port_ips(&self) -> Option<&[Element]> {
        let all = &self.installed.elements;
        all.get(NODEPORT_IPS).map(Vec::as_slice)
    }

    /// Networks in which addresses of no Service are dropped.
    fn service_networks(&self, drops: &[&Rule], report: &mut Report) {
        let wanted = &self.desired.facts(self.family).service_cidrs;
        let wanted = ferrule_kernel::nft::ranges::ranges(&elements(wanted));
        let found = match drops {
            [rule] => {
                let chains = self.chains();
                chains.addresses_of(rule, false).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        if wanted == found {
            return;
        }
        let networks = say_ranges(self.family, &wanted);
        let object = self.words.rule(
            names::CLUSTER_IPS_CHECK,
            &format!("… daddr {{ {networks} }} drop"),
        );
        report.add(if drops.is_empty() {
            Discrepancy::missing(object)
        } else {
            let lines = drops.iter().map(|rule| self.words.of_rule(rule));
            let lines: Vec<_> = lines.collect();
            Discrepancy::different(object, lines.join("; "))
        });
    }

    /// Cluster IPs and connections of pods to themselves: both programs have the same sets.
    fn addresses(&self, report: &mut Report) {
        let context = RenderContext::new(self.family, self.options);
        let mut wanted: BTreeMap<Container, BTreeMap<Value, &PortKey>> = BTreeMap::new();
        for exposure in self.desired.exposures(self.family) {
            for (container, element) in render::exposure(exposure, context).elements {
                let keys = wanted.entry(container).or_default();
                keys.entry(element.key).or_insert(&exposure.key);
            }
        }
        for container in [Container::ClusterIps, Container::Hairpin] {
            let set = container.set(kernel_family(self.family));
            if !self.installed.elements.contains_key(&set.name) {
                report.add(Discrepancy::missing(self.words.set(&set)));
                continue;
            }
            let keys = wanted.remove(&container).unwrap_or_default();
            let all: Vec<Element> = keys.keys().copied().map(Element::new).collect();
            let found = self.elements(&set.name);
            for one in elements_of_set(self.words, &set, &all, found) {
                let owner = keys.iter().find(|(key, _)| {
                    let element = text::elements(&set, [&Element::new(**key)]);
                    one.object
                        == self
                            .words
                            .element(&set.name, &element.unwrap_or_default().concat())
                });
                report.add(one.of(owner.map(|(_, key)| *key)));
            }
        }
    }

    /// Addresses on which NodePorts answer, where not on all of them.
    fn node_port_addresses(&self, report: &mut Report) {
        let facts = self.desired.facts(self.family);
        let set = ferrule_kernel::nft::Set::new(
            NODEPORT_IPS,
            [ferrule_kernel::nft::Field::address(kernel_family(
                self.family,
            ))],
        );
        match (&facts.node_ports, self.node_port_ips()) {
            (NodePorts::All, None) | (NodePorts::Nowhere, _) => {}
            (NodePorts::All, Some(_)) => {
                report.add(Discrepancy::unexpected(self.words.set(&set)));
            }
            (NodePorts::Within(_), None) => {
                report.add(Discrepancy::missing(self.words.set(&set)));
            }
            (NodePorts::Within(nets), Some(found)) => {
                // Which addresses the node has is not known here; those of a single address are.
                let single = nets
                    .iter()
                    .filter(|net| net.prefix_len() == net.max_prefix_len());
                let say = |ip: IpAddr| self.words.element(NODEPORT_IPS, &ip.to_string());
                let found: BTreeSet<IpAddr> =
                    found.iter().filter_map(|e| address(&e.key)).collect();
                for net in single.filter(|net| !net.addr().is_loopback()) {
                    if !found.contains(&net.addr()) {
                        report.add(Discrepancy::missing(say(net.addr())));
                    }
                }
                let strange = |ip: &&IpAddr| !nets.iter().any(|net| net.contains(*ip));
                for ip in found.iter().filter(strange) {
                    report.add(Discrepancy::unexpected(say(*ip)));
                }
            }
        }
    }

    /// Every Service address, and what happens there.
    fn services(&self, report: &mut Report) {
        let mut wanted: BTreeMap<(bool, Key), (&PortKey, Conduct)> = BTreeMap::new();
        for exposure in self.desired.exposures(self.family) {
            for frontend in exposure.holding() {
                let key = key(exposure, frontend);
                let conduct = conduct(exposure, frontend);
                wanted.insert((frontend.ip.is_none(), key), (&exposure.key, conduct));
            }
        }
        let found = self.found();
        for (at, (owner, conduct)) in &wanted {
            let object = self.address(*at);
            let discrepancy = match found.get(at) {
                None => Discrepancy::missing(format!("{object} -> {}", self.say(conduct))),
                Some(Ok(found)) if found == conduct => continue,
                Some(Ok(found)) => Discrepancy::different(
                    format!("{object} -> {}", self.say(conduct)),
                    self.say(found),
                ),
                Some(Err(unreadable)) => Discrepancy::different(
                    format!("{object} -> {}", self.say(conduct)),
                    unreadable.0.clone(),
                ),
            };
            report.add(discrepancy.of(Some(owner)));
        }
        for (at, found) in found {
            if wanted.contains_key(&at) {
                continue;
            }
            let found = found.map_or_else(|unreadable| unreadable.0, |found| self.say(&found));
            let object = self.address(at);
            report.add(Discrepancy::unexpected(format!("{object} -> {found}")));
        }
    }

    /// What the table does, by address.
    fn found(&self) -> BTreeMap<(bool, Key), Result<Conduct, Unreadable>> {
        let chains = self.chains();
        let mut found: BTreeMap<(bool, Key), Result<Conduct, Unreadable>> = BTreeMap::new();
        for (is_node_port, map) in [
            (false, Container::ServiceIps),
            (true, Container::ServiceNodePorts),
        ] {
            for element in self.elements(map.name()) {
                let conduct = match &element.data {
                    Data::Verdict(Verdict::Goto(chain)) => chains.conduct(chain),
                    other => Err(Unreadable(format!("{other:?}"))),
                };
                found.insert((is_node_port, element.key), conduct);
            }
        }
        for (is_node_port, map) in [
            (false, Container::NoEndpointServices),
            (true, Container::NoEndpointNodePorts),
        ] {
            for element in self.elements(map.name()) {
                let outcome = match &element.data {
                    Data::Verdict(Verdict::Drop) => Outcome::Drop,
                    Data::Verdict(Verdict::Goto(chain)) if **chain == *names::REJECT => {
                        Outcome::Reject
                    }
                    _ => Outcome::Nothing,
                };
                let entry = found.entry((is_node_port, element.key));
                // Those that are translated never get here.
                if let Ok(conduct) = entry.or_insert_with(|| Ok(Conduct::default())) {
                    for side in [&mut conduct.outside, &mut conduct.inside] {
                        if *side == Outcome::Nothing {
                            *side = outcome.clone();
                        }
                    }
                }
            }
        }
        for element in self.elements(Container::FirewallIps.name()) {
            let sources = match &element.data {
                Data::Verdict(Verdict::Goto(chain)) => chains.sources(chain),
                other => Err(Unreadable(format!("{other:?}"))),
            };
            let entry = found.entry((false, element.key));
            let entry = entry.or_insert_with(|| Ok(Conduct::default()));
            match (&mut *entry, sources) {
                (Ok(conduct), Ok(sources)) => conduct.sources = Some(sources),
                (Ok(_), Err(unreadable)) => *entry = Err(unreadable),
                (Err(_), _) => {}
            }
        }
        found
    }

    /// An address in the words of `nft`.
    fn address(&self, (is_node_port, key): (bool, Key)) -> String {
        let map = if is_node_port {
            Container::ServiceNodePorts
        } else {
            Container::ServiceIps
        };
        let mut set = map.set(kernel_family(self.family));
        set.data = ferrule_kernel::nft::MapData::None;
        let text = text::elements(&set, [&Element::new(key)]);
        let text = text.map_or_else(|none| none.to_string(), |all| all.concat());
        self.words.element(map.name(), &text)
    }

    fn say(&self, conduct: &Conduct) -> String {
        let mut text = outcome(&conduct.outside);
        if conduct.inside != conduct.outside {
            let _ = write!(
                text,
                "; from pods and the node: {}",
                outcome(&conduct.inside)
            );
        }
        if let Some(sources) = &conduct.sources {
            let _ = write!(text, "; only from {}", say_ranges(self.family, sources));
        }
        if let Some(seconds) = conduct.affinity {
            let _ = write!(text, "; clients stay for {seconds} s");
        }
        text
    }
}

fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Nothing => "nothing".to_owned(),
        Outcome::Reject => "reject".to_owned(),
        Outcome::Drop => "drop".to_owned(),
        Outcome::Balance(endpoints, masquerade) => {
            let endpoints: Vec<_> = endpoints.iter().map(ToString::to_string).collect();
            let masquerade = if *masquerade { "masquerade, " } else { "" };
            format!("{masquerade}dnat to {}", endpoints.join(", "))
        }
    }
}

fn say_ranges(family: Family, ranges: &[(Value, Value)]) -> String {
    let set = Container::ServiceCidrs.set(kernel_family(family));
    let all = ferrule_kernel::nft::ranges::elements(ranges.iter().copied());
    let words = text::elements(&set, &all);
    words.map_or_else(|none| none.to_string(), |words| words.join(", "))
}

fn address(key: &Value) -> Option<IpAddr> {
    let bytes = key.as_bytes();
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

fn key(exposure: &Exposure, frontend: &Frontend) -> Key {
    let start = frontend.ip.map_or_else(Value::new, Value::from);
    start
        .protocol(protocol_number(exposure.key.protocol))
        .port(frontend.port.get())
}

/// What should happen to packets to this address.
fn conduct(exposure: &Exposure, frontend: &Frontend) -> Conduct {
    // Clients of cluster IPs are marked before they get to the chains of a Service.
    let masquerade =
        frontend.kind != FrontendKind::ClusterIp && frontend.masquerade == Masquerade::Always;
    let outcome = |action| match action {
        Action::Reject => Outcome::Reject,
        Action::Drop => Outcome::Drop,
        Action::Balance(pool) => {
            let endpoints = exposure.pool(pool);
            let sockets: BTreeSet<_> = endpoints
                .map(|endpoint| SocketAddr::new(endpoint.ip, endpoint.port.get()))
                .collect();
            if sockets.is_empty() {
                Outcome::Drop
            } else {
                Outcome::Balance(sockets, masquerade)
            }
        }
    };
    let outside = outcome(frontend.action);
    let inside = frontend.inside.map_or_else(|| outside.clone(), outcome);
    let leads = [&outside, &inside]
        .into_iter()
        .any(|outcome| matches!(outcome, Outcome::Balance(..)));
    let affinity = exposure.affinity_seconds.filter(|_| leads);
    Conduct {
        outside,
        inside,
        sources: sources(exposure, frontend),
        affinity: affinity.map(|seconds| u64::from(seconds.get())),
    }
}

/// Who may use a load balancer address, if not everybody.
fn sources(exposure: &Exposure, frontend: &Frontend) -> Option<Vec<(Value, Value)>> {
    if frontend.kind != FrontendKind::LoadBalancerIp || exposure.source_ranges.is_empty() {
        return None;
    }
    let mut allowed: Vec<IpNet> = exposure.source_ranges.to_vec();
    if exposure.source_ranges_include_node {
        let balancers = exposure.frontends.iter();
        let balancers = balancers.filter(|other| other.kind == FrontendKind::LoadBalancerIp);
        allowed.extend(balancers.filter_map(|other| other.ip.map(IpNet::from)));
    }
    Some(ferrule_kernel::nft::ranges::ranges(&elements(&allowed)))
}
