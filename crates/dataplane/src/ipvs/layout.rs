//! The chains of mode ipvs, as the engine sees them. All are fixed: what depends on Services is in
//! sets.

use std::sync::LazyLock;

use ferrule_kernel::xt::Table;

use super::names::{FILTER, LOAD_BALANCER, NODE_PORT, OUT_FILTER, SOURCE_RANGES};
use crate::iptables::names::{FORWARD, MARK_MASQ, POSTROUTING, PROXY_FIREWALL, SERVICES};
use crate::xtables::chain::Chain;
use crate::xtables::layout::{Fixed, Jump, Layout};
use crate::xtables::rule::{Part, Rule, Target};

/// The layout of mode ipvs.
pub static LAYOUT: LazyLock<Layout> = LazyLock::new(|| Layout {
    fixed: &FIXED,
    generated: &[],
    jumps: jumps(),
    canary: None,
    inspected: &[(Table::Filter, "INPUT"), (Table::Nat, "PREROUTING")],
});

/// In the order in which kube-proxy names them.
const FIXED: [(Table, &[Fixed]); 2] = [
    (
        Table::Nat,
        &[
            Fixed::new(SERVICES),
            Fixed::new(POSTROUTING),
            Fixed::new(NODE_PORT),
            Fixed::new(LOAD_BALANCER),
            Fixed::new(MARK_MASQ),
        ],
    ),
    (
        Table::Filter,
        &[
            Fixed::new(FORWARD),
            Fixed::new(NODE_PORT),
            Fixed::new(PROXY_FIREWALL),
            Fixed::new(SOURCE_RANGES),
            Fixed::new(FILTER),
            Fixed::new(OUT_FILTER),
        ],
    ),
];

/// In the order in which kube-proxy ensures them. Each becomes the first rule of its base chain, so
/// the last one comes to stand before the others.
fn jumps() -> Vec<Jump> {
    const PORTALS: &str = "kubernetes service portals";
    const POST: &str = "kubernetes postrouting rules";
    const FORWARDING: &str = "kubernetes forwarding rules";
    const HEALTH: &str = "kubernetes health check rules";
    const FIREWALL: &str = "kube-proxy firewall rules";
    const ACCESS: &str = "kubernetes ipvs access filter";
    use Table::{Filter, Nat};
    let jumps: [(Table, &'static str, &str, Chain); 9] = [
        (Nat, "OUTPUT", PORTALS, SERVICES),
        (Nat, "PREROUTING", PORTALS, SERVICES),
        (Nat, "POSTROUTING", POST, POSTROUTING),
        (Filter, "FORWARD", FORWARDING, FORWARD),
        (Filter, "INPUT", HEALTH, NODE_PORT),
        (Filter, "INPUT", FIREWALL, PROXY_FIREWALL),
        (Filter, "FORWARD", FIREWALL, PROXY_FIREWALL),
        (Filter, "INPUT", ACCESS, FILTER),
        (Filter, "OUTPUT", ACCESS, OUT_FILTER),
    ];
    let jumps = jumps.map(|(table, from, text, to)| {
        let rule = Rule::new([Part::Comment(text.into())], Target::Jump(to));
        Jump::first(table, from, rule)
    });
    jumps.into()
}
