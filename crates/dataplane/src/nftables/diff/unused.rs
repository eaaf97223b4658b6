//! What is in the table and not wanted there: external objects, and our own of yesterday.

use std::collections::{BTreeMap, BTreeSet};

use ferrule_kernel::Family;
use ferrule_kernel::nft::{Chain, Data, Expr, Name, Rule, Set, Snapshot, Verdict};

use super::{Step, of};
use crate::nftables::names::{self, Container, Pick};
use crate::nftables::ruleset::Ruleset;

/// Whether something in the table is not of our making.
pub fn is_unusable(installed: &Snapshot, family: Family) -> bool {
    let chains: BTreeMap<Name, Chain> = names::chains()
        .into_iter()
        .map(|chain| (chain.name.clone(), chain))
        .collect();
    let sets: BTreeMap<&str, Container> = Container::ALL
        .into_iter()
        .map(|container| (container.name(), container))
        .collect();
    let is_own = |name: &str| {
        Pick::is_name(name)
            || names::is_stay_chain(name)
            || names::is_sources_chain(name)
            || names::is_former_chain(name)
    };
    let is_own_set = |set: &Set| {
        names::is_affinity_set(set, family)
            || names::is_sources_set(set, family)
            || names::is_former_set(set, family)
    };
    let strange_chain = |chain: &Chain| match chains.get(&chain.name) {
        Some(ours) => ours.base != chain.base,
        None => chain.base.is_some() || !is_own(&chain.name),
    };
    let strange_set = |set: &Set| match sets.get(&*set.name) {
        Some(ours) => {
            let ours = ours.set(family);
            (set.anonymous, set.interval, set.dynamic, set.timeout)
                != (false, ours.interval, ours.dynamic, ours.timeout)
                || set.key != ours.key
                || set.data != ours.data
        }
        None => !is_own_set(set),
    };
    installed.table.object.flags != 0
        || installed
            .chains
            .iter()
            .any(|held| strange_chain(&held.object))
        || installed.sets.iter().any(|held| strange_set(&held.object))
}

/// Chains and sets of ours that nobody needs.
pub struct Unused<'a> {
    /// The chains.
    pub chains: Vec<&'a Name>,
    sets: Vec<&'a Name>,
    /// Chains that something leads to, needed or not.
    led_to: BTreeSet<&'a Name>,
}

impl<'a> Unused<'a> {
    /// Looks for them.
    pub fn find(
        installed: &'a Snapshot,
        wanted: &Ruleset,
        rules: &BTreeMap<&str, Vec<&'a Rule>>,
    ) -> Self {
        let elements = installed
            .elements
            .values()
            .flatten()
            .map(|element| &element.data);
        let verdicts = elements.filter_map(|data| match data {
            Data::Verdict(verdict) => Some(verdict),
            _ => None,
        });
        let jumps = rules.values().flatten().flat_map(|rule| &rule.expressions);
        let jumps = jumps.filter_map(|expr| match expr {
            Expr::Verdict(verdict) => Some(verdict),
            _ => None,
        });
        let led_to = verdicts.chain(jumps).filter_map(|verdict| match verdict {
            Verdict::Goto(chain) | Verdict::Jump(chain) => Some(chain),
            _ => None,
        });
        let mut needed: BTreeSet<Name> = wanted.common.picks.iter().map(Pick::name).collect();
        needed.extend(wanted.chains.keys().cloned());
        needed.extend(names::chains().into_iter().map(|chain| chain.name));
        let chains = installed.chains.iter().map(|held| &held.object.name);
        let sets = installed.sets.iter().map(|held| &held.object.name);
        let ours = |name: &Name| Container::ALL.iter().any(|ours| ours.name() == &**name);
        Self {
            chains: chains.filter(|name| !needed.contains(*name)).collect(),
            sets: sets
                .filter(|name| !ours(name) && !wanted.sets.contains_key(*name))
                .collect(),
            led_to: led_to.collect(),
        }
    }

    /// Whether packets and people hardly notice.
    pub fn is_harmless(&self) -> bool {
        self.sets.is_empty() && self.chains.iter().all(|name| !self.led_to.contains(name))
    }

    /// Empties the chains, and deletes them and the sets; and which chains stay. Those that
    /// something led to until now wait for the next change: kernels before 6.2 refuse to delete
    /// them in the same transaction.
    pub fn steps(self, rules: &BTreeMap<&str, Vec<&Rule>>) -> (Vec<Step>, BTreeSet<Name>) {
        let mut steps = Vec::new();
        for name in &self.chains {
            if !of(rules, name).is_empty() {
                steps.push(Step::FlushChain(Name::clone(name)));
            }
        }
        let (stay, go): (Vec<&Name>, Vec<&Name>) = self
            .chains
            .iter()
            .partition(|name| self.led_to.contains(*name));
        steps.extend(go.into_iter().cloned().map(Step::DeleteChain));
        steps.extend(self.sets.into_iter().cloned().map(Step::DeleteOwnSet));
        (steps, stay.into_iter().cloned().collect())
    }
}
