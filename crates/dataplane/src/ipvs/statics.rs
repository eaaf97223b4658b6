//! The rules of iptables. They name sets, so that a Service adds no rule; only load balancer IPs
//! that this node itself must not use have one each.
//!
//! A rule about a set is there only while the set has entries: most clusters need few of them, and
//! each is paid for by every packet.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use ferrule_core::facts::{Detector, Facts, Masquerade};
use ferrule_core::model::{Family, Port, Protocol};
use ferrule_kernel::xt::Table;
use ipnet::{IpNet, Ipv4Net};

use super::names::{FILTER, LOAD_BALANCER, NODE_PORT, OUT_FILTER, SOURCE_RANGES, Set};
use crate::iptables::names::{FORWARD, MARK_MASQ, POSTROUTING, PROXY_FIREWALL, SERVICES};
use crate::xtables::rule::{Part, Place, Rule, Target};
use crate::xtables::ruleset::Statics;

/// What all rules depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// Which family.
    pub family: Family,
    /// The bit of a packet's mark that asks for masquerading.
    pub mark: u32,
    /// Masquerading may use any free port.
    pub random_fully: bool,
    /// How packets from pods are recognised.
    pub detector: Option<Detector>,
    /// Whose traffic to cluster IPs is masqueraded.
    pub masquerade: Masquerade,
}

impl Context {
    /// What holds for one family now.
    pub fn new(family: Family, mark: u32, random_fully: bool, facts: &Facts) -> Self {
        Self {
            family,
            mark,
            random_fully,
            detector: facts.detector.clone(),
            masquerade: facts.cluster_ip_masquerade,
        }
    }
}

/// What rules depend on that Services decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Sets with entries.
    pub occupied: BTreeSet<Set>,
    /// Load balancer IPs that processes on this node must not use.
    pub barred: BTreeSet<Barred>,
}

/// A load balancer IP that processes on this node must not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Barred {
    /// The address.
    pub ip: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: Port,
}

impl Contents {
    /// What is in one of the two.
    pub fn union(&self, other: &Self) -> Self {
        Self {
            occupied: &self.occupied | &other.occupied,
            barred: &self.barred | &other.barred,
        }
    }
}

/// The rules of all chains.
pub fn build(context: &Context, contents: &Contents) -> Statics {
    let builder = Builder { context, contents };
    Statics::from([
        ((Table::Nat, SERVICES), builder.services()),
        ((Table::Nat, POSTROUTING), builder.postrouting()),
        ((Table::Nat, NODE_PORT), builder.node_ports()),
        ((Table::Nat, LOAD_BALANCER), builder.load_balancers()),
        (
            (Table::Nat, MARK_MASQ),
            vec![Rule::new([], Target::SetMark(context.mark))],
        ),
        ((Table::Filter, FORWARD), builder.forward()),
        ((Table::Filter, NODE_PORT), builder.health_checks()),
        ((Table::Filter, PROXY_FIREWALL), builder.firewall()),
        ((Table::Filter, SOURCE_RANGES), builder.source_ranges()),
        ((Table::Filter, FILTER), builder.filter()),
        ((Table::Filter, OUT_FILTER), builder.out_filter()),
    ])
}

struct Builder<'a> {
    context: &'a Context,
    contents: &'a Contents,
}

/// Destination address and port.
const DST: &str = "dst,dst";

/// The first packet of a connection.
const NEW: Part = Part::State("NEW");

fn comment(text: &str) -> Part {
    Part::Comment(text.into())
}

impl Builder<'_> {
    fn has(&self, set: Set) -> bool {
        self.contents.occupied.contains(&set)
    }

    fn name(&self, set: Set) -> &'static str {
        set.name(self.context.family)
    }

    /// A packet is in this set, with a comment that says so.
    fn explained(&self, set: Set, fields: &'static str) -> Vec<Part> {
        vec![comment(set.comment()), self.bare(set, fields)]
    }

    fn bare(&self, set: Set, fields: &'static str) -> Part {
        Part::InSet(Box::new((self.name(set), fields)))
    }

    /// The same and more, and what happens.
    fn rule(&self, set: Set, fields: &'static str, more: &[Part], target: Target) -> Rule {
        let mut parts = self.explained(set, fields);
        parts.extend_from_slice(more);
        Rule::new(parts, target)
    }

    /// Matches packets from elsewhere than pods of this node. `None` without a way to detect pods.
    fn not_from_pods(&self) -> Option<Part> {
        Some(match self.context.detector.as_ref()? {
            Detector::Source(net) => Part::SourceNot(*net),
            Detector::Interface(name) => Part::InputNot(name.clone()),
            Detector::InterfacePrefix(prefix) => Part::InputNot(format!("{prefix}+").into()),
        })
    }

    fn services(&self) -> Vec<Rule> {
        let mark = Target::Jump(MARK_MASQ);
        let loopback = Part::Source(Place::Net(loopback(self.context.family)));
        let mut rules = vec![Rule::new([loopback], Target::Return)];
        if self.has(Set::LoadBalancer) {
            let target = Target::Jump(LOAD_BALANCER);
            rules.push(self.rule(Set::LoadBalancer, DST, &[], target));
        }
        if self.has(Set::ClusterIp) {
            rules.push(match (self.context.masquerade, self.not_from_pods()) {
                (Masquerade::Always, _) => self.rule(Set::ClusterIp, DST, &[], mark),
                (_, Some(elsewhere)) => self.rule(Set::ClusterIp, DST, &[elsewhere], mark),
                // A process on the node that connects to a cluster IP has it as its source, too.
                (_, None) => self.rule(Set::ClusterIp, "src,dst", &[], mark),
            });
        }
        if self.has(Set::ExternalIp) {
            rules.push(self.rule(Set::ExternalIp, DST, &[], mark));
            rules.extend(self.accept_external(Set::ExternalIp));
        }
        if self.has(Set::ExternalIpLocal) {
            rules.push(self.masquerade_node(Set::ExternalIpLocal, DST));
            rules.extend(self.accept_external(Set::ExternalIpLocal));
        }
        rules.push(Rule::new([Part::ToLocal], Target::Jump(NODE_PORT)));
        for set in [Set::ClusterIp, Set::LoadBalancer] {
            if self.has(set) {
                rules.push(Rule::new([self.bare(set, DST)], Target::Accept));
            }
        }
        rules
    }

    /// External traffic from other machines, and traffic to addresses of this one.
    fn accept_external(&self, set: Set) -> [Rule; 2] {
        let remote = [Part::NotBridged, Part::FromElsewhere];
        [
            self.rule(set, DST, &remote, Target::Accept),
            self.rule(set, DST, &[Part::ToLocal], Target::Accept),
        ]
    }

    /// A process on this node has the Service's address as its source: a pod of another node would
    /// answer to that node.
    fn masquerade_node(&self, set: Set, fields: &'static str) -> Rule {
        self.rule(set, fields, &[Part::FromLocal], Target::Jump(MARK_MASQ))
    }

    fn postrouting(&self) -> Vec<Rule> {
        let mark = self.context.mark;
        let masquerade = |random_fully| Target::Masquerade { random_fully };
        let mut rules = Vec::new();
        if self.has(Set::LoopBack) {
            rules.push(self.rule(Set::LoopBack, "dst,dst,src", &[], masquerade(false)));
        }
        rules.push(Rule::new([Part::NotMarked(mark)], Target::Return));
        rules.push(Rule::new([], Target::FlipMark(mark)));
        rules.push(Rule::new(
            [comment("kubernetes service traffic requiring SNAT")],
            masquerade(self.context.random_fully),
        ));
        rules
    }

    fn node_ports(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let (all, local) = Set::node_ports(protocol);
            let fields = if protocol == Protocol::Sctp {
                DST
            } else {
                "dst"
            };
            let rule = |set, more: &[Part], target| {
                let mut rule = self.rule(set, fields, more, target);
                let parts = rule.parts.iter().cloned();
                rule.parts = std::iter::once(Part::OnlyProtocol(protocol))
                    .chain(parts)
                    .collect();
                rule
            };
            let mark = Target::Jump(MARK_MASQ);
            if self.has(local) {
                rules.push(rule(local, &[Part::FromLocal], mark));
                rules.push(rule(local, &[], Target::Return));
            }
            if self.has(all) {
                rules.push(rule(all, &[], mark));
            }
        }
        rules
    }

    fn load_balancers(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        if self.has(Set::LoadBalancerLocal) {
            rules.push(self.masquerade_node(Set::LoadBalancerLocal, DST));
            rules.push(self.rule(Set::LoadBalancerLocal, DST, &[], Target::Return));
        }
        rules.push(Rule::new([], Target::Jump(MARK_MASQ)));
        rules
    }

    fn forward(&self) -> Vec<Rule> {
        let marked = [
            comment("kubernetes forwarding rules"),
            Part::Marked(self.context.mark),
        ];
        let tracked = [
            comment("kubernetes forwarding conntrack rule"),
            Part::State("RELATED,ESTABLISHED"),
        ];
        vec![
            Rule::new(marked, Target::Accept),
            Rule::new(tracked, Target::Accept),
        ]
    }

    fn health_checks(&self) -> Vec<Rule> {
        vec![self.rule(Set::HealthCheck, "dst", &[], Target::Accept)]
    }

    /// Here packets still have the Service's address as destination, except those of this node. What
    /// is connected goes on when a policy or the last local endpoint goes.
    fn firewall(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        if self.has(Set::NoEndpoint) {
            rules.push(self.rule(Set::NoEndpoint, DST, &[NEW], Target::Drop));
        }
        if self.has(Set::NoLocalEndpoint) {
            let outside = std::iter::once(NEW).chain(self.not_from_pods());
            let outside: Vec<Part> = outside.collect();
            rules.push(self.rule(Set::NoLocalEndpoint, DST, &outside, Target::Drop));
        }
        if self.has(Set::Firewalled) {
            let target = Target::Jump(SOURCE_RANGES);
            rules.push(self.rule(Set::Firewalled, DST, &[], target));
        }
        rules
    }

    fn source_ranges(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        for set in [Set::SourceCidr, Set::SourceIp] {
            if self.has(set) {
                rules.push(self.rule(set, "dst,dst,src", &[], Target::Return));
            }
        }
        rules.push(Rule::new([], Target::Drop));
        rules
    }

    /// Refuses what is addressed to a Service's address but to none of its ports.
    fn filter(&self) -> Vec<Rule> {
        let known = [
            (Set::LoadBalancer, DST),
            (Set::ClusterIp, DST),
            (Set::ExternalIp, DST),
            (Set::ExternalIpLocal, DST),
            (Set::HealthCheck, "dst"),
        ];
        let mut rules: Vec<Rule> = known
            .into_iter()
            .map(|(set, fields)| Rule::new([self.bare(set, fields)], Target::Return))
            .collect();
        rules.push(Rule::new(
            [NEW, self.bare(Set::Addresses, "dst")],
            Target::Reject,
        ));
        rules
    }

    /// Here packets of this node already have an endpoint as destination; IPVS knows for which
    /// Service.
    fn out_filter(&self) -> Vec<Rule> {
        let barred = self.contents.barred.iter();
        barred
            .map(|Barred { ip, protocol, port }| {
                let own = Part::Source(Place::Host(*ip));
                let service = Part::Virtual(*ip, *protocol, *port);
                Rule::new([own, service], Target::Drop)
            })
            .collect()
    }
}

fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => Ipv4Net::new_assert([127, 0, 0, 0].into(), 8).into(),
        Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST).into(),
    }
}
