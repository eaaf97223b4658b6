//! Rules that do not depend on Services, and what all rules depend on.

use std::net::{IpAddr, Ipv6Addr};

use ferrule_core::facts::{Detector, Facts, NodePorts};
use ferrule_core::model::Family;
use ferrule_kernel::xt::Table;
use ipnet::{IpNet, Ipv4Net};

use super::Options;
use super::names::{self, Shared};
use crate::xtables::rule::{Part, Place, Rule, Target};
use crate::xtables::ruleset::Statics;

/// More endpoints than this, and comments about each of them are left out.
const LARGE: usize = 1000;

/// What all rules depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderContext {
    /// Which family.
    pub family: Family,
    /// The bit of a packet's mark that asks for masquerading.
    pub mark: u32,
    /// What this machine can do.
    pub host: HostFacts,
    /// NodePorts answer on 127.0.0.0/8.
    pub localhost: bool,
    /// There are so many endpoints that comments about each would cost too much.
    pub large: bool,
    /// How packets from pods are recognised.
    pub detector: Option<Detector>,
    /// Where NodePorts answer.
    pub node_ports: NodePortMatch,
}

/// What this machine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "abilities that have nothing to do with each other"
)]
pub struct HostFacts {
    /// Masquerading may use any free port.
    pub random_fully: bool,
    /// Packets that belong to no connection are dropped.
    pub drop_invalid: bool,
    /// The counter of [`names::INVALID_COUNTER`] exists.
    pub count_invalid: bool,
    /// The counter of [`names::LOCALHOST_COUNTER`] exists.
    pub count_localhost: bool,
}

impl RenderContext {
    /// What holds for one family now.
    pub fn new(
        family: Family,
        options: Options,
        facts: &Facts,
        host: HostFacts,
        endpoints: usize,
        local: &[IpAddr],
    ) -> Self {
        Self {
            family,
            mark: options.mark,
            host,
            localhost: options.localhost_node_ports
                && facts.node_ports.contains_ipv4_loopback(family),
            large: endpoints > LARGE,
            detector: facts.detector.clone(),
            node_ports: NodePortMatch::choose(facts, family, local),
        }
    }

    /// Whether chains of Service ports that did not change are rendered the same.
    ///
    /// Comments about endpoints do not count: as in kube-proxy they come and go when their chain is
    /// written for another reason.
    pub fn renders_like(&self, other: &Self) -> bool {
        let bare = |context: &Self| Self {
            large: false,
            node_ports: NodePortMatch::All,
            ..context.clone()
        };
        bare(self) == bare(other)
    }
}

/// Which addresses of this machine NodePorts answer on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortMatch {
    /// All of them.
    All,
    /// These.
    These(Vec<IpAddr>),
}

impl NodePortMatch {
    /// The choice among the addresses that the machine has.
    pub fn choose(facts: &Facts, family: Family, local: &[IpAddr]) -> Self {
        match &facts.node_ports {
            NodePorts::All => Self::All,
            chosen => Self::These(chosen.among(local, family)),
        }
    }
}

/// What does not depend on Services.
pub fn build(context: &RenderContext) -> Statics {
    let mark = context.mark;
    let masquerade = Target::Masquerade {
        random_fully: context.host.random_fully,
    };
    let snat = "kubernetes service traffic requiring SNAT".into();
    let postrouting = vec![
        Rule::new([Part::NotMarked(mark)], Target::Return),
        // Before masquerading: a packet that comes through here again, wrapped in another one,
        // must not be masqueraded twice.
        Rule::new([], Target::FlipMark(mark)),
        Rule::new([Part::Comment(snat)], masquerade),
    ];
    let mut statics = Statics::from([
        ((Table::Filter, names::FORWARD), forward(context)),
        ((Table::Nat, names::POSTROUTING), postrouting),
        (
            (Table::Nat, names::MARK_MASQ),
            vec![Rule::new([], Target::SetMark(mark))],
        ),
        (Shared::Services.at(), last_services(context)),
    ]);
    // Without need the chain is kubelet's alone.
    if context.localhost {
        statics.insert((Table::Filter, names::FIREWALL), vec![martians()]);
    }
    statics
}

fn forward(context: &RenderContext) -> Vec<Rule> {
    let mut rules = Vec::new();
    if context.host.drop_invalid {
        let mut parts = vec![Part::State("INVALID")];
        if context.host.count_invalid {
            parts.push(Part::Count(names::INVALID_COUNTER));
        }
        rules.push(Rule::new(parts, Target::Drop));
    }
    let comment = |text: &str| Part::Comment(text.into());
    rules.push(Rule::new(
        [
            comment("kubernetes forwarding rules"),
            Part::Marked(context.mark),
        ],
        Target::Accept,
    ));
    rules.push(Rule::new(
        [
            comment("kubernetes forwarding conntrack rule"),
            Part::State("RELATED,ESTABLISHED"),
        ],
        Target::Accept,
    ));
    rules
}

/// With `route_localnet` neighbours could reach what listens on localhost.
fn martians() -> Rule {
    Rule::new(
        [
            Part::Comment("block incoming localnet connections".into()),
            Part::Destination(Place::Net(loopback_v4())),
            Part::SourceNot(loopback_v4()),
            Part::StateNot("RELATED,ESTABLISHED,DNAT"),
        ],
        Target::Drop,
    )
}

pub(super) fn loopback_v4() -> IpNet {
    Ipv4Net::new_assert([127, 0, 0, 0].into(), 8).into()
}

/// Jumps to NodePorts, for what no Service took.
fn last_services(context: &RenderContext) -> Vec<Rule> {
    let comment = || {
        let text = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
        Part::Comment(text.into())
    };
    let target = Target::Jump(names::NODE_PORTS);
    match &context.node_ports {
        NodePortMatch::All => {
            let mut parts = vec![comment(), Part::ToLocal];
            parts.extend(match context.family {
                Family::V6 => Some(Part::DestinationNot(IpAddr::V6(Ipv6Addr::LOCALHOST).into())),
                Family::V4 if !context.localhost => Some(Part::DestinationNot(loopback_v4())),
                Family::V4 => None,
            });
            vec![Rule::new(parts, target)]
        }
        NodePortMatch::These(ips) => ips
            .iter()
            .filter(|ip| !ip.is_loopback() || (ip.is_ipv4() && context.localhost))
            .map(|ip| Rule::new([comment(), Part::Destination(Place::Host(*ip))], target))
            .collect(),
    }
}
