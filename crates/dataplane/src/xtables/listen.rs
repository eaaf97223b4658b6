//! Which changes in the tables that everybody uses concern our rules.
//!
//! Other programs change these tables all the time, so only what concerns our chains and the jumps
//! to them counts.

use ferrule_kernel::nft::{Change, Expr, Object, Rule, Verdict};
use ferrule_kernel::xt::Table;

use super::base_chains::is_base_chain;
use super::layout::Layout;

/// Whether our rules are not any more what we wrote.
pub fn concerns_us(layout: &Layout, change: &Change) -> bool {
    let Some(name) = change.object.table() else {
        return false;
    };
    let mut tables = Table::ALL.into_iter();
    let Some(table) = tables.find(|table| table.as_str() == &**name) else {
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

/// Whether a rule that came or went is ours, or stands among ours.
fn concerns(layout: &Layout, table: Table, rule: &Rule, gone: bool) -> bool {
    if is_base_chain(&rule.chain) {
        let leads_to_us = rule
            .expressions
            .iter()
            .any(|expr| matches!(expr, Expr::Verdict(Verdict::Jump(to)) if layout.owns(table, to)));
        return gone && leads_to_us;
    }
    // What kubelet adds to its own chain is kubelet's affair.
    layout.owns(table, &rule.chain) && (gone || !layout.is_kubelets(table, &rule.chain))
}
