//! What is in the table and not wanted there: external objects, and our own of yesterday.

use std::collections::{BTreeMap, BTreeSet};

use ferrule_kernel::Family;
use ferrule_kernel::nft::{Chain, Data, Expr, Name, Rule, Set, Snapshot, Verdict};

use super::{Step, of};
use crate::nftables::names::{self, Container, Pick};
use crate::nftables::ruleset::Ruleset;

/// What in a table is not of our making.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strangers {
    /// Nothing.
    None,
    /// Chains and sets beside ours.
    Removable,
    /// Something that has the name of ours and is of another kind, or the table itself.
    InTheWay,
}

/// Looks for what is not of our making.
pub fn strangers(installed: &Snapshot, family: Family) -> Strangers {
    let chains: BTreeMap<Name, Chain> = names::chains()
        .into_iter()
        .map(|chain| (chain.name.clone(), chain))
        .collect();
    let sets: BTreeMap<&str, Container> = Container::ALL
        .into_iter()
        .map(|container| (container.name(), container))
        .collect();
    let is_own_set = |set: &Set| {
        names::is_affinity_set(set, family)
            || names::is_sources_set(set, family)
            || names::is_former_set(set, family)
    };
    let judge_chain = |chain: &Chain| match chains.get(&chain.name) {
        Some(ours) if ours.base != chain.base => Strangers::InTheWay,
        Some(_) => Strangers::None,
        None if is_own_chain(&chain.name) && chain.base.is_some() => Strangers::InTheWay,
        None if is_own_chain(&chain.name) => Strangers::None,
        None => Strangers::Removable,
    };
    let judge_set = |set: &Set| match sets.get(&*set.name) {
        Some(ours) => {
            let ours = ours.set(family);
            let same = (set.anonymous, set.interval, set.dynamic, set.timeout)
                == (false, ours.interval, ours.dynamic, ours.timeout)
                && set.key == ours.key
                && set.data == ours.data;
            if same {
                Strangers::None
            } else {
                Strangers::InTheWay
            }
        }
        None if is_own_set(set) => Strangers::None,
        None if names::is_own_set_name(&set.name) => Strangers::InTheWay,
        None => Strangers::Removable,
    };
    if installed.table.object.flags != 0 {
        return Strangers::InTheWay;
    }
    let chains = installed.chains.iter();
    let chains = chains.map(|held| judge_chain(&held.object));
    let sets = installed.sets.iter().map(|held| judge_set(&held.object));
    chains.chain(sets).max().unwrap_or(Strangers::None)
}

/// Whether a chain of this name is one of ours that not every table has.
fn is_own_chain(name: &str) -> bool {
    Pick::is_name(name)
        || names::is_stay_chain(name)
        || names::is_sources_chain(name)
        || names::is_former_chain(name)
}

/// A chain that belongs to a rule, and goes with it: `jump { … }`.
fn is_of_a_rule(chain: &Chain) -> bool {
    chain.base.is_none() && chain.name.starts_with("__chain")
}

/// Chains and sets that nobody needs, ours and others.
pub struct Unused<'a> {
    /// The chains.
    pub chains: Vec<&'a Name>,
    sets: Vec<&'a Name>,
    /// Chains that something leads to, needed or not.
    led_to: BTreeSet<&'a Name>,
    /// Those of the chains that packets enter by themselves.
    entered: BTreeSet<&'a Name>,
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
        // What belongs to a rule goes with it.
        let chains = installed.chains.iter().map(|held| &held.object);
        let chains = chains.filter(|chain| !is_of_a_rule(chain));
        let chains = chains.filter(|chain| !needed.contains(&chain.name));
        let chains: Vec<&Chain> = chains.collect();
        let sets = installed.sets.iter().map(|held| &held.object);
        let sets = sets.filter(|set| !set.anonymous).map(|set| &set.name);
        let ours = |name: &Name| Container::ALL.iter().any(|ours| ours.name() == &**name);
        Self {
            entered: chains
                .iter()
                .filter(|chain| chain.base.is_some())
                .map(|chain| &chain.name)
                .collect(),
            chains: chains.into_iter().map(|chain| &chain.name).collect(),
            sets: sets
                .filter(|name| !ours(name) && !wanted.sets.contains_key(*name))
                .collect(),
            led_to: led_to.collect(),
        }
    }

    /// The chains but for those of ours that nothing leads to any more.
    pub fn strange_chains(&self) -> impl Iterator<Item = &Name> {
        let is_idle = |name: &Name| {
            is_own_chain(name) && !self.led_to.contains(name) && !self.entered.contains(name)
        };
        let chains = self.chains.iter().copied();
        chains.filter(move |name| !is_idle(name))
    }

    /// The sets.
    pub fn sets(&self) -> &[&'a Name] {
        &self.sets
    }

    /// Whether packets and people hardly notice.
    pub fn is_harmless(&self) -> bool {
        self.entered.is_empty()
            && self.sets.is_empty()
            && self.chains.iter().all(|name| !self.led_to.contains(name))
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
