//! The chains of mode iptables, as the engine sees them.

use std::sync::LazyLock;

use ferrule_kernel::xt::Table;

use super::names::{self, Role};
use crate::xtables::chain::Chain;
use crate::xtables::layout::{Fixed, Generated, Jump, Layout};
use crate::xtables::rule::{Part, Rule, Target};

/// The layout of mode iptables.
pub static LAYOUT: LazyLock<Layout> = LazyLock::new(|| Layout {
    fixed: &FIXED,
    generated: &GENERATED,
    jumps: jumps(),
    canary: Some(names::CANARY),
    inspected: &[(Table::Filter, "INPUT"), (Table::Nat, "PREROUTING")],
});

const SERVICES: Fixed = Fixed::new(names::SERVICES).shared().depth(6);
const NODE_PORTS: Fixed = Fixed::new(names::NODE_PORTS).shared().depth(5);
const CANARY: Fixed = Fixed::new(names::CANARY);

/// In the order in which kube-proxy names them.
const FIXED: [(Table, &[Fixed]); 3] = [
    (Table::Mangle, &[CANARY]),
    (
        Table::Filter,
        &[
            SERVICES,
            Fixed::new(names::EXTERNAL_SERVICES).shared(),
            Fixed::new(names::FORWARD),
            NODE_PORTS,
            Fixed::new(names::PROXY_FIREWALL).shared(),
            Fixed::new(names::FIREWALL).kubelets(),
            CANARY,
        ],
    ),
    (
        Table::Nat,
        &[
            SERVICES,
            NODE_PORTS,
            Fixed::new(names::POSTROUTING),
            Fixed::new(names::MARK_MASQ),
            CANARY,
        ],
    ),
];

const GENERATED: [Generated; 5] = [
    generated(Role::Cluster, 2),
    generated(Role::Local, 2),
    generated(Role::External, 3),
    generated(Role::Firewall, 4),
    generated(Role::Endpoint, 1),
];

const fn generated(role: Role, depth: u8) -> Generated {
    Generated {
        table: Table::Nat,
        prefix: role.prefix(),
        depth,
    }
}

/// In the order in which kube-proxy ensures them.
fn jumps() -> Vec<Jump> {
    const PORTALS: &str = "kubernetes service portals";
    const EXTERNAL: &str = "kubernetes externally-visible service portals";
    const BALANCER: &str = "kubernetes load balancer firewall";
    let comment = |text: &str| Part::Comment(text.into());
    let to = |chain: Chain, parts: Vec<Part>| Rule::new(parts, Target::Jump(chain));
    let new = |text: &str, chain| to(chain, vec![Part::State("NEW"), comment(text)]);
    let all = |text: &str, chain| to(chain, vec![comment(text)]);
    let external = new(EXTERNAL, names::EXTERNAL_SERVICES);
    let health = all("kubernetes health check service ports", names::NODE_PORTS);
    let services = new(PORTALS, names::SERVICES);
    let forward = all("kubernetes forwarding rules", names::FORWARD);
    let firewall = new(BALANCER, names::PROXY_FIREWALL);
    let portals = all(PORTALS, names::SERVICES);
    let post = all("kubernetes postrouting rules", names::POSTROUTING);
    let kubelets = to(names::FIREWALL, Vec::new());
    [
        (Table::Filter, "INPUT", external.clone()),
        (Table::Filter, "FORWARD", external),
        (Table::Filter, "INPUT", health),
        (Table::Filter, "FORWARD", services.clone()),
        (Table::Filter, "OUTPUT", services),
        (Table::Filter, "FORWARD", forward),
        (Table::Filter, "INPUT", firewall.clone()),
        (Table::Filter, "OUTPUT", firewall.clone()),
        (Table::Filter, "FORWARD", firewall),
        (Table::Nat, "OUTPUT", portals.clone()),
        (Table::Nat, "PREROUTING", portals),
        (Table::Nat, "POSTROUTING", post),
        (Table::Filter, "INPUT", kubelets.clone()),
        (Table::Filter, "OUTPUT", kubelets),
    ]
    .map(|(table, from, rule)| Jump::first(table, from, rule))
    .into()
}
