//! Portals as rules of iptables: the chains and rule shapes of kube-proxy up to v1.25.
//!
//! In: plans with the proxy ports of their lanes. Out: rules, which the engine in `xtables` compares
//! with what is installed and writes. A new connection walks all rules of its chain, so this is for
//! machines whose tools know these chains; portals by nftables look addresses up in maps.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::LazyLock;

use ferrule_core::desired::FrontendKind;
use ferrule_core::facts::{Facts, NodePorts};
use ferrule_core::model::{Family, Port, PortKey, Protocol, parse_ip};
use ferrule_kernel::xt::Table;
use ipnet::IpNet;

use super::Options;
use super::plan::{Change, Portal, Served};
use crate::verify::Report;
use crate::xtables::chain::{Chain, TableChain};
use crate::xtables::counts::RuleCounts;
use crate::xtables::diff;
use crate::xtables::installed::Inventory;
use crate::xtables::layout::{Fixed, Jump, Layout};
use crate::xtables::removal::removal;
use crate::xtables::rule::{Part, Place, Rule, Target};
use crate::xtables::ruleset::{PortRules, RuleIndex, Ruleset, Statics};
use crate::xtables::tables::Tables;
use crate::xtables::verify::Comparison;
use crate::{ApplyError, RuleCount, Watcher, xtables};

const CONTAINER: Chain = Chain::new("KUBE-PORTALS-CONTAINER");
const HOST: Chain = Chain::new("KUBE-PORTALS-HOST");
const NODE_PORT_CONTAINER: Chain = Chain::new("KUBE-NODEPORT-CONTAINER");
const NODE_PORT_HOST: Chain = Chain::new("KUBE-NODEPORT-HOST");
pub(super) const NON_LOCAL: Chain = Chain::new("KUBE-NODEPORT-NON-LOCAL");

/// The five chains of the mode, in the order in which kube-proxy ensured them.
pub(crate) static LAYOUT: LazyLock<Layout> = LazyLock::new(|| Layout {
    fixed: &FIXED,
    generated: &[],
    jumps: jumps(),
    canary: None,
    inspected: &[
        (Table::Nat, "PREROUTING"),
        (Table::Nat, "OUTPUT"),
        (Table::Filter, "INPUT"),
    ],
});

static FIXED: [(Table, &[Fixed]); 2] = [
    (
        Table::Nat,
        &[
            Fixed::new(CONTAINER).shared(),
            Fixed::new(HOST).shared(),
            Fixed::new(NODE_PORT_CONTAINER).shared(),
            Fixed::new(NODE_PORT_HOST).shared(),
        ],
    ),
    (Table::Filter, &[Fixed::new(NON_LOCAL).shared()]),
];

/// The chains that lead to proxy ports: what there is of them when portals are in a table of
/// nftables leads nowhere.
pub(super) static NAT: LazyLock<Layout> = LazyLock::new(|| {
    let mut jumps = jumps();
    jumps.retain(|jump| jump.table == Table::Nat);
    Layout {
        fixed: &FIXED[..1],
        generated: &[],
        jumps,
        canary: None,
        inspected: &[],
    }
});

/// Portals come first and NodePorts last: an address of a load balancer may be the node's own, and
/// its port some other Service's NodePort.
fn jumps() -> Vec<Jump> {
    const PORTALS: &str = "handle ClusterIPs; NOTE: this must be before the NodePort rules";
    const NODE_PORTS: &str =
        "handle service NodePorts; NOTE: this must be the last rule in the chain";
    let first = |from, to| {
        let rule = Rule::new([Part::Comment(PORTALS.into())], Target::Jump(to));
        Jump::first(Table::Nat, from, rule)
    };
    let last = |from, to| {
        let parts = [Part::ToLocal, Part::Comment(NODE_PORTS.into())];
        Jump::last(Table::Nat, from, Rule::new(parts, Target::Jump(to)))
    };
    vec![
        first("PREROUTING", CONTAINER),
        first("OUTPUT", HOST),
        last("PREROUTING", NODE_PORT_CONTAINER),
        last("OUTPUT", NODE_PORT_HOST),
        non_local(),
    ]
}

/// The jump to the chain that accepts what came by portals.
pub(super) fn non_local() -> Jump {
    const ACCEPT: &str = "Ensure that non-local NodePort traffic can flow";
    let rule = Rule::new([Part::Comment(ACCEPT.into())], Target::Jump(NON_LOCAL));
    Jump::first(Table::Filter, "INPUT", rule)
}

/// Where rules lead, beside the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The address on which lanes listen, if not on all.
    bind: Option<IpAddr>,
    /// The node's own address, where it is known.
    host: Option<IpAddr>,
    /// Where NodePorts answer.
    node_ports: NodePorts,
}

impl Context {
    /// What holds on this node.
    pub fn new(family: Family, facts: &Facts, options: &Options) -> Self {
        Self {
            bind: options.bind_ip(family),
            host: Some(facts.node_ip).filter(|ip| !ip.is_loopback()),
            node_ports: facts.node_ports.clone(),
        }
    }

    /// Traffic from pods and from the network: to the address at which it came in, so that answers
    /// leave from where they are expected.
    fn for_outside(&self, port: Port) -> Target {
        self.bind
            .map_or(Target::Redirect(port), |ip| Target::Dnat(ip, port))
    }

    /// Traffic of the node itself.
    fn for_node(&self, port: Port) -> Target {
        self.bind
            .or(self.host)
            .map_or(Target::Redirect(port), |ip| Target::Dnat(ip, port))
    }
}

/// The rules of one Service port.
pub fn rules(key: &PortKey, served: &Served, context: &Context) -> PortRules {
    let mut rules = PortRules::default();
    let label = key.to_string();
    for portal in &served.plan.portals {
        let port = served.ports.get(&portal.class());
        let Some(port) = port.and_then(|port| Port::new((*port).into())) else {
            continue;
        };
        let head = |matched: Port| {
            vec![
                Part::Comment(label.as_str().into()),
                Part::Protocol(key.protocol),
                Part::Port(matched),
            ]
        };
        let mut put = |at: TableChain, more: &[Part], target| {
            let mut parts = head(portal.port);
            parts.extend_from_slice(more);
            rules.add(at, false, Rule::new(parts, target));
        };
        let (outside, node) = (context.for_outside(port), context.for_node(port));
        match (portal.kind, portal.ip) {
            (FrontendKind::ClusterIp | FrontendKind::LoadBalancerIp, Some(ip)) => {
                // Who may not use the address is not led to the proxy. Of datagrams the proxy could
                // not tell afterwards for which address they were.
                let froms = served.plan.sources(portal).map_or_else(
                    || vec![Vec::new()],
                    |sources| sources.from.iter().map(|net| vec![source(*net)]).collect(),
                );
                for mut to in froms {
                    to.push(Part::Destination(Place::Host(ip)));
                    put((Table::Nat, CONTAINER), &to, outside);
                    put((Table::Nat, HOST), &to, node);
                }
            }
            // Containers and the host that reach for an address elsewhere are left alone.
            (_, Some(ip)) => {
                let to = |part| [Part::Destination(Place::Host(ip)), part];
                put((Table::Nat, CONTAINER), &to(Part::NotBridged), outside);
                put((Table::Nat, CONTAINER), &to(Part::ToLocal), outside);
                put((Table::Nat, HOST), &to(Part::ToLocal), node);
            }
            (_, None) => {
                for to in places(&context.node_ports) {
                    put((Table::Nat, NODE_PORT_CONTAINER), &to, outside);
                    put((Table::Nat, NODE_PORT_HOST), &to, node);
                }
                let mut parts = head(port);
                parts.push(Part::State("NEW"));
                let accept = Rule::new(parts, Target::Accept);
                rules.add((Table::Filter, NON_LOCAL), false, accept);
            }
        }
    }
    rules
}

/// A condition on the client's address.
fn source(net: IpNet) -> Part {
    Part::Source(Place::Net(net))
}

/// Conditions on the address of a NodePort: one list for each rule.
fn places(node_ports: &NodePorts) -> Vec<Vec<Part>> {
    match node_ports {
        NodePorts::All => vec![Vec::new()],
        NodePorts::Within(nets) => nets
            .iter()
            .map(|net| vec![Part::Destination(Place::Net(*net))])
            .collect(),
        NodePorts::Nowhere => Vec::new(),
    }
}

/// The chains of one family.
#[derive(Debug)]
pub struct PortalChains {
    tables: Tables,
    /// `None` when we do not know what is installed.
    written: Option<Written>,
    /// Proxy ports that an earlier process used.
    before: BTreeMap<Address, u16>,
}

#[derive(Debug)]
struct Written {
    context: Context,
    index: RuleIndex,
    counts: RuleCounts,
}

/// What a rule matches.
type Address = (Option<IpAddr>, Protocol, Port);

impl PortalChains {
    /// Opens iptables in the network namespace of the calling thread.
    ///
    /// # Errors
    /// There is no iptables for this family, or it does not work here.
    pub fn open(family: Family) -> io::Result<Self> {
        let xt = xtables::open(family).map_err(|error| io::Error::new(error.kind(), error))?;
        Ok(Self {
            tables: Tables::new(family, &LAYOUT, xt),
            written: None,
            before: BTreeMap::new(),
        })
    }

    /// Reads which proxy ports an earlier process used. Where that fails they only get other ones.
    #[must_use]
    pub fn recall(mut self) -> Self {
        let saved = self.tables.xt().save(Table::Nat).unwrap_or_default();
        self.before = saved.lines().filter_map(former).collect();
        self
    }

    /// The proxy port to which this portal led when the program started.
    pub fn port_before(&self, protocol: Protocol, portal: &Portal) -> Option<u16> {
        let address = (portal.ip, protocol, portal.port);
        self.before.get(&address).copied()
    }

    /// Makes these changes. `all` is what there is with them; where nothing is known, or with
    /// `full`, it is compared with what is installed. Returns the number of steps, and how many
    /// rules there are.
    ///
    /// # Errors
    /// See [`ApplyError`]. The next update must be complete.
    pub fn update(
        &mut self,
        context: Context,
        changes: &[Change],
        all: &BTreeMap<PortKey, Served>,
        full: bool,
    ) -> Result<(usize, Vec<RuleCount>), ApplyError> {
        let whole = || {
            let mut wanted = Ruleset::default();
            for (key, served) in all {
                wanted.add(key, rules(key, served, &context));
            }
            wanted
        };
        let written = self.written.take();
        let written = written.filter(|written| !full && written.context == context);
        let (sent, index, counts) = if let Some(mut written) = written {
            let changes: Vec<_> = changes
                .iter()
                .map(|change| diff::Change {
                    key: change.key.clone(),
                    before: rules(&change.key, &change.before, &context),
                    after: rules(&change.key, &change.after, &context),
                })
                .collect();
            let nothing = Statics::new();
            let both = (&nothing, &nothing);
            let document = diff::delta(&LAYOUT, &changes, &mut written.index, both, whole);
            let counts = changes.iter().fold(written.counts, |counts, change| {
                let before = RuleCounts::of_port(&change.before);
                counts.with(before, RuleCounts::of_port(&change.after))
            });
            (self.tables.send(&document), written.index, counts)
        } else {
            let wanted = whole();
            let full = |there: &dyn Inventory| diff::full(&LAYOUT, there, &wanted);
            let sent = self.tables.reconcile(full);
            (sent, RuleIndex::of(&wanted), RuleCounts::of(&wanted))
        };
        let sent = sent.map_err(|failure| ApplyError::from(failure.error))?;
        self.written = Some(Written {
            context,
            index,
            counts,
        });
        Ok((sent.steps, counts.reported(sent.rules)))
    }

    /// Removes chains and jumps, whichever program made them.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub fn remove(&mut self) -> Result<usize, ApplyError> {
        self.written = None;
        let sent = self.tables.reconcile(|there| removal(&[&LAYOUT], there));
        let sent = sent.map_err(|failure| ApplyError::from(failure.error))?;
        Ok(sent.steps)
    }

    /// How the chains differ from what is wanted. Nothing is written.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn verify(&mut self, wanted: &Ruleset, family: Family) -> io::Result<Report> {
        let comparison = Comparison {
            layout: &LAYOUT,
            others: &[],
            wanted,
            tolerates_idle: false,
        };
        comparison.of(&mut self.tables, family)
    }

    /// Watchers for external changes.
    pub fn watch(&mut self) -> Vec<Box<dyn Watcher>> {
        self.tables.watch()
    }
}

/// The portal and the proxy port of a line that `iptables-save` printed.
fn former(line: &str) -> Option<(Address, u16)> {
    let mut words = line.split_whitespace();
    let portals = [CONTAINER, NODE_PORT_CONTAINER];
    if words.next() != Some("-A")
        || !portals
            .map(|c| c.to_string())
            .contains(&words.next()?.into())
    {
        return None;
    }
    let (mut ip, mut protocol, mut port, mut to) = (None, None, None, None);
    while let Some(word) = words.next() {
        match word {
            "-d" => {
                let place = words.next()?;
                ip = parse_ip(place.split_once('/').map_or(place, |(ip, _)| ip));
            }
            "-p" => {
                protocol = match words.next()? {
                    "tcp" => Some(Protocol::Tcp),
                    "udp" => Some(Protocol::Udp),
                    _ => None,
                }
            }
            "--dport" => port = Port::new(words.next()?.parse().ok()?),
            "--to-ports" => to = words.next()?.parse().ok(),
            "--to-destination" => to = words.next()?.rsplit_once(':')?.1.parse().ok(),
            _ => {}
        }
    }
    Some(((ip, protocol?, port?), to?))
}
