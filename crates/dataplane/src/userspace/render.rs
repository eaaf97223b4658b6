//! Draws plans as rules and elements of nftables.
//!
//! In: the facts about the node, and the plan of one Service port with the proxy ports of its lanes.
//! Out: [`Statics`] and [`Drawing`]s. Packets that begin a connection to a Service address are
//! redirected to the proxy port that a map has for it; all Services share these few rules.

use std::collections::BTreeMap;

use ferrule_core::desired::FrontendKind;
use ferrule_core::facts::{Facts, NodePorts};
use ferrule_core::model::{Family, PortKey};
use ferrule_kernel::nft::expr::{Found, NatKind, Reject};
use ferrule_kernel::nft::{Comment, Element, Expr, Reg, Rule, Value, Verdict, ranges};
use ipnet::IpNet;

use super::Options;
use super::names::{self, Container};
use super::plan::{Portal, Served, Target};
use super::transparent;
use crate::nftables::names::MatchKey;
use crate::nftables::program;
use crate::{kernel_family, protocol_number};

/// What does not depend on Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statics {
    /// Rules, those of one chain in order.
    pub rules: Vec<Rule>,
    /// Elements of sets of networks.
    pub nets: BTreeMap<Container, Vec<Element>>,
}

/// What one Service port puts into the table.
pub type Drawing = Vec<(Container, Element)>;

/// What does not depend on Services.
pub fn statics(facts: &Facts, family: Family, options: &Options) -> Statics {
    let mut rules = Vec::new();
    for chain in [names::NAT_PREROUTING, names::NAT_OUTPUT] {
        rules.push(Rule::new(chain, vec![program::jump(names::PORTALS)]));
    }
    let drawing = Drawn {
        family: kernel_family(family),
        facts,
        options,
        bind: options.bind_ip(family),
    };
    rules.extend(drawing.portals());
    rules.extend(drawing.proxied());
    rules.extend(drawing.refusals());
    rules.extend(drawing.firewall());
    if options.transparent {
        rules.extend(transparent::rules());
    }
    let node_port_nets: &[IpNet] = match &facts.node_ports {
        NodePorts::Within(nets) => nets,
        NodePorts::All | NodePorts::Nowhere => &[],
    };
    Statics {
        rules,
        nets: [
            (Container::NodePortNets, nets(node_port_nets)),
            (Container::ServiceCidrs, nets(&facts.service_cidrs)),
        ]
        .into(),
    }
}

struct Drawn<'a> {
    family: ferrule_kernel::Family,
    facts: &'a Facts,
    options: &'a Options,
    bind: Option<std::net::IpAddr>,
}

impl Drawn<'_> {
    /// Rules that lead to proxy ports. Addresses come before NodePorts: an address of a load
    /// balancer may be the node's own, and its port some other Service's NodePort.
    fn portals(&self) -> Vec<Rule> {
        let (address, node_port) = (MatchKey::Address, MatchKey::NodePort);
        let mut rules = self.inside(names::PORTALS, names::INSIDE);
        rules.extend(self.redirects(names::PORTALS, address, Container::Portals));
        if let Some(mut expressions) = self.on_node_ports() {
            expressions.push(program::jump(names::NODE_PORTS));
            rules.push(Rule::new(names::PORTALS, expressions));
        }
        rules.extend(self.redirects(names::INSIDE, address, Container::Inside));
        rules.extend(self.inside(names::NODE_PORTS, names::NODE_PORTS_INSIDE));
        rules.extend(self.redirects(names::NODE_PORTS, node_port, Container::NodePorts));
        let inside = Container::NodePortsInside;
        rules.extend(self.redirects(names::NODE_PORTS_INSIDE, node_port, inside));
        rules
    }

    /// Rules that send clients in the cluster through a chain of their own first.
    fn inside(&self, chain: &str, to: &str) -> Vec<Rule> {
        let detector = self.facts.detector.as_ref();
        let pods = detector.and_then(|detector| program::from_pod(self.family, detector, true));
        let node = program::from_here().to_vec();
        let clients = [(pods, "clients in pods"), (Some(node), "the node itself")];
        clients
            .into_iter()
            .filter_map(|(from, comment)| {
                let mut expressions = from?;
                expressions.push(program::jump(to));
                Some(Rule::new(chain, expressions).comment(comment))
            })
            .collect()
    }

    /// One rule for each protocol: without naming one, `nft` would not read its own listing.
    fn redirects(&self, chain: &str, key: MatchKey, map: Container) -> Vec<Rule> {
        [super::TCP, super::UDP]
            .into_iter()
            .map(|protocol| {
                let mut expressions = vec![
                    Expr::protocol(Reg::FIRST),
                    Expr::equal(Reg::FIRST, Value::new().protocol(protocol)),
                ];
                expressions.extend(self.redirect(key, map));
                Rule::new(chain, expressions)
            })
            .collect()
    }

    fn redirect(&self, key: MatchKey, map: Container) -> Vec<Expr> {
        let mut expressions = Vec::new();
        let mut from = 0;
        if let Some(ip) = self.bind {
            expressions.push(Expr::Load {
                value: ip.into(),
                into: Reg::FIRST,
            });
            from = program::words(self.family);
        }
        expressions.extend(program::load_key_at(self.family, key, from));
        let port = Reg::new(from);
        expressions.push(lookup(map, port, Found::Value(port)));
        expressions.push(if self.bind.is_some() {
            Expr::Nat {
                kind: NatKind::Destination,
                family: self.family,
                address: Some(Reg::FIRST),
                port: Some(port),
                flags: 0,
            }
        } else {
            Expr::Redirect { port }
        });
        expressions
    }

    /// Passes packets to addresses on which NodePorts answer; `None` if there are none.
    fn on_node_ports(&self) -> Option<Vec<Expr>> {
        let mut expressions = program::to_here().to_vec();
        if !self.options.localhost_node_ports {
            expressions.extend(program::not_to_loopback(self.family));
        }
        match self.facts.node_ports {
            NodePorts::All => {}
            NodePorts::Within(_) => {
                expressions.push(Expr::destination_address(self.family, Reg::FIRST));
                expressions.push(lookup(Container::NodePortNets, Reg::FIRST, Found::Present));
            }
            NodePorts::Nowhere => return None,
        }
        Some(expressions)
    }

    /// What arrives at proxy ports: only what came by a portal may.
    fn proxied(&self) -> Vec<Rule> {
        let mut to_proxy = program::is_new();
        to_proxy.extend(program::load_key(self.family, MatchKey::NodePort));
        to_proxy.push(lookup(Container::ProxyPorts, Reg::FIRST, Found::Present));
        to_proxy.push(program::jump(names::PROXIED));
        let mark = program::set_mark(self.options.mark).to_vec();
        let return_it = vec![Expr::Verdict(Verdict::Return)];
        let marked = [program::is_translated(), mark].concat();
        let through = [program::is_translated(), return_it].concat();
        let reset = vec![
            Expr::protocol(Reg::FIRST),
            Expr::equal(Reg::FIRST, Value::new().protocol(super::TCP)),
            Expr::Reject(Reject::Reset),
        ];
        let reject = vec![Expr::Reject(Reject::port_unreachable(self.family))];
        vec![
            Rule::new(names::FILTER_INPUT, to_proxy),
            Rule::new(names::PROXIED, marked).comment("for firewalls: came by a portal"),
            Rule::new(names::PROXIED, through),
            Rule::new(names::PROXIED, reset).comment("only portals lead to proxy ports"),
            Rule::new(names::PROXIED, reject),
        ]
    }

    /// Rules that refuse or drop.
    fn refusals(&self) -> Vec<Rule> {
        let reject = Expr::Reject(Reject::port_unreachable(self.family));
        let dispatch = |key, map| {
            let mut expressions = program::load_key(self.family, key);
            expressions.push(lookup(map, Reg::FIRST, Found::Verdict));
            expressions
        };
        let destination_in = |set, verdict| {
            vec![
                Expr::destination_address(self.family, Reg::FIRST),
                lookup(set, Reg::FIRST, Found::Present),
                verdict,
            ]
        };
        let to_check = [program::is_new(), vec![program::jump(names::CHECK)]].concat();
        let chains = [
            names::FILTER_INPUT,
            names::FILTER_FORWARD,
            names::FILTER_OUTPUT,
        ];
        let mut rules: Vec<_> = chains
            .into_iter()
            .map(|chain| Rule::new(chain, to_check.clone()))
            .collect();
        if let Some(on_node_ports) = self.on_node_ports() {
            let refused = dispatch(MatchKey::NodePort, Container::RefusedNodePorts);
            let expressions = [program::is_new(), on_node_ports, refused].concat();
            rules.push(Rule::new(names::FILTER_INPUT, expressions));
        }
        let invalid = destination_in(Container::ClusterIps, reject.clone());
        let unallocated = destination_in(Container::ServiceCidrs, Expr::Verdict(Verdict::Drop));
        for chain in [names::FILTER_FORWARD, names::FILTER_OUTPUT] {
            let to_check = vec![program::jump(names::CLUSTER_IPS)];
            rules.push(Rule::new(chain, [program::is_new(), to_check].concat()));
        }
        rules.extend([
            Rule::new(
                names::CHECK,
                dispatch(MatchKey::Address, Container::Refused),
            ),
            Rule::new(names::CLUSTER_IPS, invalid)
                .comment("Reject traffic to invalid ports of ClusterIPs"),
            Rule::new(names::CLUSTER_IPS, unallocated)
                .comment("Drop traffic to unallocated ClusterIPs"),
            Rule::new(names::REJECT, vec![reject]),
        ]);
        rules
    }
}

impl Drawn<'_> {
    /// Rules that drop what sources outside the ranges send to load balancer addresses.
    fn firewall(&self) -> Vec<Rule> {
        let to_check = [
            program::is_new(),
            vec![program::jump(names::FIREWALL_CHECK)],
        ]
        .concat();
        let mut check = program::load_key(self.family, MatchKey::Address);
        check.push(lookup(Container::FirewallIps, Reg::FIRST, Found::Verdict));
        let mut drop = program::load_key(self.family, MatchKey::Address);
        drop.extend([
            Expr::source_address(self.family, Reg::new(program::words(self.family) + 2)),
            lookup(Container::FirewallSources, Reg::FIRST, Found::Absent),
            Expr::Verdict(Verdict::Drop),
        ]);
        vec![
            Rule::new(names::FILTER_PREROUTING, to_check.clone()),
            Rule::new(names::FILTER_OUTPUT_PRE, to_check),
            Rule::new(names::FIREWALL_CHECK, check),
            Rule::new(names::FIREWALL, drop),
        ]
    }
}

fn lookup(set: Container, key: Reg, found: Found) -> Expr {
    Expr::Lookup {
        set: set.name().into(),
        key,
        found,
    }
}

fn nets(nets: &[IpNet]) -> Vec<Element> {
    ranges::elements(
        nets.iter()
            .map(|net| (Value::from(net.network()), Value::from(net.broadcast()))),
    )
}

/// What one Service port puts into the table. An address whose lane has no proxy port refuses.
pub fn drawing(key: &PortKey, served: &Served) -> Drawing {
    let protocol = protocol_number(key.protocol);
    let comment = Comment::new(&key.to_string());
    let mut drawing = Drawing::new();
    for portal in &served.plan.portals {
        let (map, inside, refused) = containers(portal);
        let start = portal.ip.map_or_else(Value::new, Value::from);
        let address = start.protocol(protocol).port(portal.port.get());
        let redirect = served
            .ports
            .get(&portal.class())
            .map(|port| Element::value(address, Value::new().port(*port)));
        let refuse = |verdict| Element::verdict(address, verdict);
        let mut put = |container, element| {
            let comment = Some(comment.clone());
            drawing.push((container, Element { comment, ..element }));
        };
        if let (Some(Target::Lane), Some(redirect)) = (portal.inside, &redirect) {
            put(inside, redirect.clone());
        }
        match (portal.target, redirect) {
            (Target::Lane, Some(redirect)) => put(map, redirect),
            (Target::Drop, _) => put(refused, refuse(Verdict::Drop)),
            (Target::Lane | Target::Reject, _) => {
                put(refused, refuse(Verdict::Goto(names::REJECT.into())));
            }
        }
        if let Some(sources) = served.plan.sources(portal) {
            put(
                Container::FirewallIps,
                refuse(Verdict::Goto(names::FIREWALL.into())),
            );
            for (first, last) in ranges::ranges(&nets(&sources.from)) {
                let element = Element {
                    last: Some(Box::new(address.field(last.as_bytes()))),
                    ..Element::new(address.field(first.as_bytes()))
                };
                drawing.push((Container::FirewallSources, element));
            }
        }
        if let (FrontendKind::ClusterIp, Some(ip)) = (portal.kind, portal.ip) {
            drawing.push((Container::ClusterIps, Element::new(ip.into())));
        }
    }
    // One that is about to be closed is nobody's: another process may have it next.
    let kept = served.ports.iter();
    for (_, port) in kept.filter(|(class, _)| served.plan.keeps(**class)) {
        let key = Value::new().protocol(protocol).port(*port);
        let element = Element {
            comment: Some(comment.clone()),
            ..Element::new(key)
        };
        drawing.push((Container::ProxyPorts, element));
    }
    drawing
}

/// Where its proxy port is, the one for clients inside, and its refusal.
const fn containers(portal: &Portal) -> (Container, Container, Container) {
    if portal.ip.is_some() {
        (Container::Portals, Container::Inside, Container::Refused)
    } else {
        (
            Container::NodePorts,
            Container::NodePortsInside,
            Container::RefusedNodePorts,
        )
    }
}
