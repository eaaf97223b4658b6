//! Draws desired state as rules and elements.
//!
//! In: the facts about the node, and one exposure at a time. Out: [`Statics`] and [`Drawing`]s.
//! Each exposure is drawn without looking at others, so that a change redraws only what changed.

use std::num::NonZeroU32;
use std::time::Duration;

use ferrule_core::desired::{Action, Endpoint, Exposure, Frontend, FrontendKind, Masquerade, Pool};
use ferrule_core::facts::{Facts, NodePorts};
use ferrule_core::model::Family;
use ferrule_kernel::nft::expr::{Found, NAT_FULLY_RANDOM, Reject};
use ferrule_kernel::nft::{Comment, Element, Expr, Name, Reg, Rule, Set, Value, Verdict};
use ipnet::IpNet;

use super::Options;
use super::diff::RenderContext;
use super::names::{self, Container, Draw, MatchKey, Pick};
use super::program::{self, Stay};
use super::ruleset::{Drawing, OwnSet, Ruleset, Statics, elements};
use crate::kernel_family;

/// So many source ranges are rules, and more of them a set. Most Services have few, and where very
/// many Services have a set the kernel takes long to find each.
const FEW_RANGES: usize = 16;

/// Everything that is to be in the table.
pub fn ruleset<'a>(
    exposures: impl IntoIterator<Item = &'a Exposure>,
    facts: &Facts,
    family: Family,
    options: Options,
) -> Ruleset {
    let mut ruleset = Ruleset::default();
    ruleset.common.statics = statics(facts, family, options);
    let context = RenderContext::new(family, options);
    for exposed in exposures {
        ruleset.add(exposure(exposed, context));
    }
    ruleset.sort();
    ruleset
}

/// What does not depend on Services.
pub fn statics(facts: &Facts, family: Family, options: Options) -> Statics {
    let node_port_nets: &[IpNet] = match &facts.node_ports {
        NodePorts::Within(nets) => nets,
        NodePorts::All | NodePorts::Nowhere => &[],
    };
    let family = kernel_family(family);
    let mut rules = jumps();
    rules.extend(checks(family, facts));
    rules.extend(services(family, facts, options));
    for (match_key, chain, inside, outside) in [
        (
            MatchKey::Address,
            names::EXTERNAL_LOCAL,
            Container::Inside,
            Container::Outside,
        ),
        (
            MatchKey::NodePort,
            names::NODEPORT_LOCAL,
            Container::NodePortInside,
            Container::NodePortOutside,
        ),
    ] {
        let dispatch = |map| program::dispatch(family, match_key, map);
        if let Some(pod) = facts
            .detector
            .as_ref()
            .and_then(|detector| program::from_pod(family, detector, true))
        {
            let rule = Rule::new(chain, [pod, dispatch(inside)].concat());
            rules.push(rule.comment("short-circuit pod traffic"));
        }
        let here = || program::from_here().to_vec();
        let mark = [here(), program::set_mark(options.mark).to_vec()].concat();
        rules.push(Rule::new(chain, mark).comment("masquerade local traffic"));
        let short = [here(), dispatch(inside)].concat();
        rules.push(Rule::new(chain, short).comment("short-circuit local traffic"));
        rules.push(Rule::new(chain, dispatch(outside)));
    }
    Statics {
        rules,
        nets: [
            (Container::NodePortNets, elements(node_port_nets)),
            (Container::ServiceCidrs, elements(&facts.service_cidrs)),
        ]
        .into(),
    }
}

/// From where packets enter to the chains that decide.
fn jumps() -> Vec<Rule> {
    let all = [
        (names::FILTER_INPUT, names::NODEPORT_CHECK, true),
        (names::FILTER_INPUT, names::SERVICE_CHECK, true),
        (names::FILTER_FORWARD, names::SERVICE_CHECK, true),
        (names::FILTER_OUTPUT, names::SERVICE_CHECK, true),
        (names::FILTER_PREROUTING, names::FIREWALL_CHECK, true),
        (names::FILTER_OUTPUT_PRE, names::FIREWALL_CHECK, true),
        (names::NAT_OUTPUT, names::SERVICES, false),
        (names::NAT_PREROUTING, names::SERVICES, false),
        (names::NAT_POSTROUTING, names::MASQUERADING, false),
        (names::FILTER_FORWARD, names::CLUSTER_IPS_CHECK, true),
        (names::FILTER_OUTPUT, names::CLUSTER_IPS_CHECK, true),
    ];
    all.into_iter()
        .map(|(from, to, only_new)| {
            let mut expressions = if only_new {
                program::is_new()
            } else {
                Vec::new()
            };
            expressions.push(program::jump(to));
            Rule::new(from, expressions)
        })
        .collect()
}

/// Rules that refuse or drop.
fn checks(family: ferrule_kernel::Family, facts: &Facts) -> Vec<Rule> {
    let reject = Expr::Reject(Reject::port_unreachable(family));
    let mut invalid = program::destination_in(family, Container::ClusterIps).to_vec();
    invalid.push(reject.clone());
    let mut unallocated = program::destination_in(family, Container::ServiceCidrs).to_vec();
    unallocated.push(Expr::Verdict(Verdict::Drop));
    let mut rules = vec![
        Rule::new(names::CLUSTER_IPS_CHECK, invalid)
            .comment("Reject traffic to invalid ports of ClusterIPs"),
        Rule::new(names::CLUSTER_IPS_CHECK, unallocated)
            .comment("Drop traffic to unallocated ClusterIPs"),
        Rule::new(names::REJECT, vec![reject]),
        Rule::new(
            names::SERVICE_CHECK,
            program::dispatch(family, MatchKey::Address, Container::NoEndpointServices),
        ),
        Rule::new(
            names::FIREWALL_CHECK,
            program::dispatch(family, MatchKey::Address, Container::FirewallIps),
        ),
    ];
    // Packets that get here are to this machine.
    if let Some(mut expressions) = on_node_ports(family, facts) {
        expressions.extend(program::dispatch(
            family,
            MatchKey::NodePort,
            Container::NoEndpointNodePorts,
        ));
        rules.push(Rule::new(names::NODEPORT_CHECK, expressions));
    }
    rules
}

/// Passes packets to addresses on which NodePorts answer; `None` if there are none.
fn on_node_ports(family: ferrule_kernel::Family, facts: &Facts) -> Option<Vec<Expr>> {
    let mut expressions = program::not_to_loopback(family);
    match facts.node_ports {
        NodePorts::All => {}
        NodePorts::Within(_) => {
            expressions.extend(program::destination_in(family, Container::NodePortNets));
        }
        NodePorts::Nowhere => return None,
    }
    Some(expressions)
}

/// Rules that lead to endpoints, and those that masquerade.
fn services(family: ferrule_kernel::Family, facts: &Facts, options: Options) -> Vec<Rule> {
    let mut rules = Vec::new();
    let masquerade = Expr::Masquerade {
        flags: NAT_FULLY_RANDOM,
    };
    let mut marked = program::is_marked(options.mark);
    marked.extend(program::flip_mark(options.mark));
    marked.push(masquerade.clone());
    rules.push(Rule::new(names::MASQUERADING, marked));
    let mut hairpin = program::is_translated();
    hairpin.extend(load_hairpin(family));
    hairpin.push(masquerade);
    rules.push(Rule::new(names::MASQUERADING, hairpin));

    let whose = match facts.cluster_ip_masquerade {
        Masquerade::Always => Some((Vec::new(), "masquerade all clusterIP traffic")),
        Masquerade::Outside => facts
            .detector
            .as_ref()
            .and_then(|detector| program::from_pod(family, detector, false))
            .map(|outside| (outside, "masquerade clusterIP traffic from outside cluster")),
        Masquerade::Never | Masquerade::Node => None,
    };
    if let Some((condition, comment)) = whose {
        let mut expressions = program::destination_in(family, Container::ClusterIps).to_vec();
        expressions.extend(condition);
        expressions.extend(program::set_mark(options.mark));
        rules.push(Rule::new(names::SERVICES, expressions).comment(comment));
    }
    let addresses = program::dispatch(family, MatchKey::Address, Container::ServiceIps);
    rules.push(Rule::new(names::SERVICES, addresses));
    if let Some(expressions) = on_node_ports(family, facts) {
        // The nets say which of this machine's addresses; others in them are not ours to answer.
        let node_ports = [
            program::to_here().to_vec(),
            expressions,
            program::dispatch(family, MatchKey::NodePort, Container::ServiceNodePorts),
        ];
        rules.push(Rule::new(names::SERVICES, node_ports.concat()));
    }
    rules
}

fn load_hairpin(family: ferrule_kernel::Family) -> Vec<Expr> {
    let words = match family {
        ferrule_kernel::Family::V4 => 1,
        ferrule_kernel::Family::V6 => 4,
    };
    vec![
        Expr::source_address(family, Reg::FIRST),
        Expr::destination_address(family, Reg::new(words)),
        Expr::protocol(Reg::new(2 * words)),
        Expr::destination_port(Reg::new(2 * words + 1)),
        program::lookup(Container::Hairpin, Reg::FIRST, Found::Present),
    ]
}

/// What one Service port puts into the table.
pub fn exposure(exposure: &Exposure, context: RenderContext) -> Drawing {
    let mut sketch = Sketch {
        exposure,
        context,
        protocol: crate::protocol_number(exposure.key.protocol),
        label: Comment::new(&exposure.key.to_string()),
        drawing: Drawing::default(),
    };
    for endpoint in exposure.endpoints.iter().filter(|endpoint| endpoint.local) {
        let key = Value::from(endpoint.ip)
            .address(endpoint.ip)
            .protocol(sketch.protocol)
            .port(endpoint.port.get());
        sketch.put(Container::Hairpin, Element::new(key));
    }
    for frontend in exposure.holding() {
        sketch.frontend(frontend);
    }
    sketch.drawing
}

struct Sketch<'a> {
    exposure: &'a Exposure,
    context: RenderContext,
    protocol: u8,
    label: Comment,
    drawing: Drawing,
}

impl Sketch<'_> {
    fn put(&mut self, container: Container, element: Element) {
        self.drawing.elements.push((container, element));
    }

    fn lead(&mut self, container: Container, key: Value, verdict: Verdict) {
        let element = Element {
            comment: Some(self.label.clone()),
            ..Element::verdict(key, verdict)
        };
        self.put(container, element);
    }

    fn frontend(&mut self, frontend: &Frontend) {
        let match_key = if frontend.ip.is_some() {
            MatchKey::Address
        } else {
            MatchKey::NodePort
        };
        let key = self.key(frontend);
        if let (FrontendKind::ClusterIp, Some(ip)) = (frontend.kind, frontend.ip) {
            self.put(Container::ClusterIps, Element::new(ip.into()));
        }
        if let (FrontendKind::LoadBalancerIp, Some(_)) = (frontend.kind, frontend.ip) {
            self.firewall(key);
        }
        let slots = Slots::arrange(self.exposure, frontend);
        let endpoints = match_key.choose(Container::Endpoints, Container::NodePortEndpoints);
        // Those that clients stay with are named in chains.
        let numbered: &[_] = match self.exposure.affinity_seconds {
            None => &slots.endpoints,
            Some(_) => &[],
        };
        for (slot, endpoint) in (0..).zip(numbered) {
            let value = Value::from(endpoint.ip).port(endpoint.port.get());
            self.put(endpoints, Element::value(key.number(slot), value));
        }
        let none = match_key.choose(
            Container::NoEndpointServices,
            Container::NoEndpointNodePorts,
        );
        let outside = match frontend.action {
            Action::Balance(pool) => self.pick(match_key, &slots, pool, frontend),
            Action::Reject | Action::Drop => None,
        };
        if outside.is_none() {
            let verdict = match frontend.action {
                Action::Reject => Verdict::Goto(names::REJECT.into()),
                Action::Drop | Action::Balance(_) => Verdict::Drop,
            };
            self.lead(none, key, verdict);
        }
        let services = match_key.choose(Container::ServiceIps, Container::ServiceNodePorts);
        let inside = match frontend.inside {
            Some(Action::Balance(pool)) => self.pick(match_key, &slots, pool, frontend),
            _ => None,
        };
        let Some(inside) = inside else {
            if let Some(outside) = outside {
                self.lead(services, key, outside);
            }
            return;
        };
        let (fork, insides, outsides) = match match_key {
            MatchKey::Address => (names::EXTERNAL_LOCAL, Container::Inside, Container::Outside),
            MatchKey::NodePort => (
                names::NODEPORT_LOCAL,
                Container::NodePortInside,
                Container::NodePortOutside,
            ),
        };
        self.lead(insides, key, inside);
        if let Some(outside) = outside {
            self.lead(outsides, key, outside);
        }
        self.lead(services, key, Verdict::Goto(fork.into()));
    }

    fn key(&self, frontend: &Frontend) -> Value {
        let start = frontend.ip.map_or_else(Value::new, Value::from);
        start.protocol(self.protocol).port(frontend.port.get())
    }

    /// Leads to a chain that chooses from a pool; `None` if nothing is in it.
    fn pick(
        &mut self,
        match_key: MatchKey,
        slots: &Slots<'_>,
        pool: Pool,
        frontend: &Frontend,
    ) -> Option<Verdict> {
        let (first, count) = match pool {
            Pool::Local => (0, slots.local),
            Pool::Cluster => (slots.only_local, slots.endpoints.len() - slots.only_local),
        };
        let count = NonZeroU32::new(u32::try_from(count).unwrap_or(u32::MAX))?;
        // Clients of cluster IPs are marked before they get here.
        let masquerade =
            frontend.kind != FrontendKind::ClusterIp && frontend.masquerade == Masquerade::Always;
        if let Some(seconds) = self.exposure.affinity_seconds {
            let time = Duration::from_secs(seconds.get().into());
            return Some(Verdict::Goto(self.stay(pool, masquerade, time)));
        }
        // Behind the local pool there may be endpoints that are not in it.
        let last = pool == Pool::Cluster || slots.local == slots.endpoints.len();
        let pick = Pick {
            match_key,
            first: u32::try_from(first).unwrap_or(u32::MAX),
            draw: if last {
                Draw::up_to(count)
            } else {
                Draw::Exactly(count)
            },
            masquerade,
        };
        self.drawing.picks.insert(pick);
        Some(Verdict::Goto(pick.name()))
    }

    /// The chain that leads clients to the endpoint of this pool that they were with before.
    fn stay(&mut self, pool: Pool, masquerade: bool, time: Duration) -> Name {
        let (family, size) = (self.context.family, self.context.affinity_size);
        let label = names::label(&self.exposure.key);
        let chain = names::stay_chain(&label, pool, false);
        if !self.drawing.chains.contains_key(&chain) {
            let mut stays = Vec::new();
            for endpoint in self.exposure.pool(pool) {
                let set = names::affinity_set(&label, endpoint, size);
                let stay = Stay {
                    set: set.name.clone(),
                    chain: names::stay_endpoint_chain(&label, endpoint),
                };
                let rules = program::stay_with(family, &stay, self.protocol, endpoint, time);
                self.drawing.chains.insert(stay.chain.clone(), rules);
                self.own_set(set, Vec::new());
                stays.push(stay);
            }
            let rules = program::stay(family, &chain, &stays);
            self.drawing.chains.insert(chain.clone(), rules);
        }
        if !masquerade {
            return chain;
        }
        let marking = names::stay_chain(&label, pool, true);
        let goto = Expr::Verdict(Verdict::Goto(chain));
        let rules = vec![
            Rule::new(
                Name::clone(&marking),
                program::set_mark(self.context.mark).into(),
            ),
            Rule::new(Name::clone(&marking), vec![goto]),
        ];
        self.drawing.chains.insert(marking.clone(), rules);
        marking
    }

    /// Sources other than those allowed are dropped at this load balancer address.
    fn firewall(&mut self, key: Value) {
        let exposure = self.exposure;
        if exposure.source_ranges.is_empty() {
            return;
        }
        let own: Vec<IpNet> = if exposure.source_ranges_include_node {
            exposure
                .frontends
                .iter()
                .filter(|frontend| frontend.kind == FrontendKind::LoadBalancerIp)
                .filter_map(|frontend| frontend.ip.map(IpNet::from))
                .collect()
        } else {
            Vec::new()
        };
        let allowed: Vec<IpNet> = exposure.source_ranges.iter().copied().chain(own).collect();
        let label = names::label(&exposure.key);
        let chain = names::sources_chain(&label);
        // All load balancer addresses of a Service port have the same sources.
        if !self.drawing.chains.contains_key(&chain) {
            let family = self.context.family;
            let rules = if allowed.len() <= FEW_RANGES {
                program::allow_few(family, &chain, &IpNet::aggregate(&allowed))
            } else {
                let set = names::sources_set(&label, family);
                let rule = program::allow_only(family, &chain, &set.name);
                self.own_set(set, allowed);
                vec![rule]
            };
            self.drawing.chains.insert(chain.clone(), rules);
        }
        self.lead(Container::FirewallIps, key, Verdict::Goto(chain));
    }

    fn own_set(&mut self, set: Set, nets: Vec<IpNet>) {
        let name = set.name.clone();
        self.drawing.sets.insert(name, OwnSet { set, nets });
    }
}

/// The endpoints that a frontend needs, numbered so that each of its pools is a run of numbers.
struct Slots<'a> {
    /// First those only in the local pool, then those in both, then those only in the other.
    endpoints: Vec<&'a Endpoint>,
    only_local: usize,
    local: usize,
}

impl<'a> Slots<'a> {
    fn arrange(exposure: &'a Exposure, frontend: &Frontend) -> Self {
        let uses = |pool| {
            let balance = Action::Balance(pool);
            frontend.action == balance || frontend.inside == Some(balance)
        };
        let (uses_local, uses_cluster) = (uses(Pool::Local), uses(Pool::Cluster));
        let part = |local: bool, cluster: bool| {
            exposure
                .endpoints
                .iter()
                .filter(move |endpoint| {
                    (uses_local && endpoint.in_local_pool) == local
                        && (uses_cluster && endpoint.in_cluster_pool) == cluster
                })
                .flat_map(|endpoint| std::iter::repeat_n(endpoint, endpoint.weight.into()))
        };
        let mut endpoints: Vec<_> = part(true, false).collect();
        let only_local = endpoints.len();
        endpoints.extend(part(true, true));
        let local = endpoints.len();
        endpoints.extend(part(false, true));
        Self {
            endpoints,
            only_local,
            local,
        }
    }
}
