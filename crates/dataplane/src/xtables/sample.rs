//! A small layout for tests of the engine.

use std::sync::LazyLock;

use ferrule_core::model::{PortKey, Protocol, ServiceKey};
use ferrule_kernel::xt::Table;

use super::chain::Chain;
use super::layout::{Fixed, Generated, Jump, Layout, Position};
use super::rule::{Rule, Target};

/// Chains of two kinds, jumps before and behind others, and a chain that is kubelet's as well.
pub static LAYOUT: LazyLock<Layout> = LazyLock::new(|| Layout {
    fixed: &FIXED,
    generated: &GENERATED,
    jumps: vec![
        Jump::first(Table::Filter, "INPUT", to(FIREWALL)),
        Jump::first(Table::Filter, "FORWARD", to(FORWARD)),
        Jump {
            position: Position::Last,
            ..Jump::first(Table::Nat, "PREROUTING", to(SERVICES))
        },
    ],
    canary: None,
    inspected: &[],
});

const FIXED: [(Table, &[Fixed]); 2] = [
    (
        Table::Filter,
        &[Fixed::new(FORWARD), Fixed::new(FIREWALL).kubelets()],
    ),
    (
        Table::Nat,
        &[Fixed::new(SERVICES).shared().depth(3), Fixed::new(MARK)],
    ),
];

const GENERATED: [Generated; 2] = [generated("KUBE-SVC-", 2), generated("KUBE-SEP-", 1)];

pub const SERVICES: Chain = Chain::new("KUBE-SERVICES");
pub const MARK: Chain = Chain::new("KUBE-MARK-MASQ");
pub const FORWARD: Chain = Chain::new("KUBE-FORWARD");
pub const FIREWALL: Chain = Chain::new("KUBE-FIREWALL");

const fn generated(prefix: &'static str, depth: u8) -> Generated {
    Generated {
        table: Table::Nat,
        prefix,
        depth,
    }
}

/// A rule that jumps there.
pub fn to(chain: Chain) -> Rule {
    Rule::new([], Target::Jump(chain))
}

/// A port of this Service.
pub fn key(name: &str) -> PortKey {
    PortKey {
        service: ServiceKey::new("demo", name),
        name: "".into(),
        protocol: Protocol::Tcp,
    }
}
