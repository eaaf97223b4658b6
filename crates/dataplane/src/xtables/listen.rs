//! Which changes to the tables concern our rules.
//!
//! Other programs change these tables all the time, so only what concerns our chains and the jumps
//! to them counts.

use ferrule_kernel::nft::{Change, Expr, Object, Rule, Verdict};
use ferrule_kernel::xt::Table;

use super::base_chains::is_base_chain;
use super::layout::Layout;

/// Whether our rules are no longer what we wrote.
pub fn concerns_us(layout: &Layout, change: &Change) -> bool {
    let name = change.object.table();
    let Some(table) = name.and_then(|name| Table::from_name(name)) else {
        return false;
    };
    match &change.object {
        Object::Table(_) => change.gone,
        Object::Chain(held) => {
            change.gone
                && (is_base_chain(&held.object.name) || layout.owns(table, &held.object.name))
        }
        Object::Rule(held) => concerns(layout, table, &held.object, change.gone),
        _ => false,
    }
}

/// Whether a rule that came or went is ours, or is in a chain of ours.
fn concerns(layout: &Layout, table: Table, rule: &Rule, gone: bool) -> bool {
    if is_base_chain(&rule.chain) {
        let jumps_to_us = rule
            .expressions
            .iter()
            .any(|expr| matches!(expr, Expr::Verdict(Verdict::Jump(to)) if layout.owns(table, to)));
        return gone && jumps_to_us;
    }
    // Kubelet may add rules to the chain that it uses too.
    layout.owns(table, &rule.chain) && (gone || !layout.is_kubelets(table, &rule.chain))
}
