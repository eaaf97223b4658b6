//! Removes everything that is ours: for `--cleanup`, and for a start in another mode.
//!
//! Modes share chains, and a chain cannot be removed while a rule of another mode jumps to it, so
//! the chains of several modes go at once.

use ferrule_kernel::xt::Table;

use super::chain::Chain;
use super::document::{Document, Stage, Step};
use super::installed::Inventory;
use super::layout::{Jump, Layout};

/// What removes everything of these layouts that is installed. What kubelet uses too stays.
pub fn removal(layouts: &[&Layout], installed: &dyn Inventory) -> Document {
    remove(layouts, None, installed)
}

/// The same, but what another layout has too stays: for a start in its mode. Its chains must have
/// their own rules by then.
pub fn leftovers(own: &Layout, layouts: &[&Layout], installed: &dyn Inventory) -> Document {
    remove(layouts, Some(own), installed)
}

fn remove(layouts: &[&Layout], own: Option<&Layout>, installed: &dyn Inventory) -> Document {
    let mut document = Document::default();
    let has_jump = |jump: &Jump| own.is_some_and(|own| own.jumps.contains(jump));
    let has_chain = |table, name: &str| own.is_some_and(|own| own.owns(table, name));
    for table in Table::ALL.into_iter().rev() {
        let mut stage = Stage::new(table);
        for jump in jumps(layouts, table)
            .into_iter()
            .filter(|jump| !has_jump(jump))
        {
            for _ in 0..installed.count((table, jump.from), &jump.rule) {
                let step = Step::Delete(Chain::new(jump.from), jump.rule.clone());
                stage.rules.push((None, step));
            }
        }
        for chain in fixed(layouts, table) {
            if installed.has(table, chain.as_str()) && !has_chain(table, chain.as_str()) {
                stage.remove(chain.as_str());
            }
        }
        let is_generated = |name: &str| {
            let mut layouts = layouts.iter();
            !has_chain(table, name) && layouts.any(|layout| layout.is_generated(table, name))
        };
        let chains = installed.chains(table).into_iter();
        let generated = chains.filter(|name| is_generated(name));
        generated.for_each(|name| stage.remove(name));
        document.push(stage);
    }
    document
}

/// Each jump to a chain of ours alone once.
fn jumps<'l>(layouts: &[&'l Layout], table: Table) -> Vec<&'l Jump> {
    let mut jumps: Vec<&Jump> = Vec::new();
    for jump in layouts.iter().flat_map(|layout| &layout.jumps) {
        let to_kubelets = jump
            .to()
            .is_some_and(|to| is_kubelets(layouts, table, to.as_str()));
        if jump.table == table && !to_kubelets && !jumps.contains(&jump) {
            jumps.push(jump);
        }
    }
    jumps
}

/// Each fixed chain of ours alone once.
fn fixed(layouts: &[&Layout], table: Table) -> Vec<Chain> {
    let mut chains = Vec::new();
    for (at, fixed) in layouts.iter().flat_map(|layout| layout.fixed()) {
        let kubelets = is_kubelets(layouts, table, fixed.chain.as_str());
        if at == table && !kubelets && !chains.contains(&fixed.chain) {
            chains.push(fixed.chain);
        }
    }
    chains
}

fn is_kubelets(layouts: &[&Layout], table: Table, name: &str) -> bool {
    let mut layouts = layouts.iter();
    layouts.any(|layout| layout.is_kubelets(table, name))
}
