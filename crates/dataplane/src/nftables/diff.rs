//! The steps from what is in the kernel to what is wanted.
//!
//! In: what was read back, or what changed. Out: [`Step`]s, in an order that the kernel accepts:
//! who is led to comes before who leads there, and goes after. They are sent as one transaction.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU32;

use ferrule_kernel::Family;
use ferrule_kernel::nft::{Chain, Element, Name, Rule, Set, Snapshot, Value};

use super::Options;
use super::names::{self, Container, Pick};
use super::program;
use super::ruleset::{Drawing, OwnSet, Ruleset, Shares, Statics};
use crate::kernel_family;

mod spans;
mod unused;

pub use unused::{Strangers, Unused, strangers};

/// One thing that is done to the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Adds the table, unless it is there.
    AddTable,
    /// Adds the table, which is not there.
    CreateTable,
    /// Deletes the table and everything in it.
    DeleteTable,
    /// Adds a set or map.
    AddSet(Container),
    /// Adds a set of a single Service port.
    AddOwnSet(Set),
    /// Deletes a set of a single Service port.
    DeleteOwnSet(Name),
    /// Adds ranges to a set of a single Service port.
    AddOwn(Name, Vec<Element>),
    /// Deletes ranges from such a set.
    DeleteOwn(Name, Vec<Element>),
    /// Removes all ranges of such a set.
    FlushOwn(Name),
    /// Adds a chain without rules.
    AddChain(Chain),
    /// Removes all rules of a chain.
    FlushChain(Name),
    /// Adds a rule at the end of its chain.
    AddRule(Rule),
    /// Deletes a chain.
    DeleteChain(Name),
    /// Removes all elements.
    Flush(Container),
    /// Adds elements that are not there.
    Add(Container, Vec<Element>),
    /// Deletes elements that are there.
    Delete(Container, Vec<Element>),
}

/// What rules depend on beside their purpose.
#[derive(Clone, Copy, Debug)]
pub struct RenderContext {
    /// The family.
    pub family: Family,
    /// The bit that asks for masquerading.
    pub mark: u32,
    /// How many clients are remembered with an endpoint.
    pub affinity_size: NonZeroU32,
}

impl RenderContext {
    /// What the administrator decided, for this family.
    pub fn new(family: ferrule_core::model::Family, options: Options) -> Self {
        Self {
            family: kernel_family(family),
            mark: options.mark,
            affinity_size: options.affinity_size,
        }
    }
}

/// What differs between the table and what is wanted.
#[derive(Debug, Default)]
pub struct Difference {
    /// What is to be done.
    pub steps: Vec<Step>,
    /// Chains of ours that nothing leads to and that are still there after that.
    pub idle: BTreeSet<Name>,
}

/// Whether a full sync is the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The program just started, or is out of sync with the kernel.
    First,
    /// What is in the table was known before.
    Again,
}

/// Only what differs. What is [strange](strangers) in the table must be removable.
///
/// In the first pass, chains that nothing leads to are no difference: a restart writes nothing if
/// nothing else changed meanwhile.
pub fn full(
    installed: &Snapshot,
    wanted: &Ruleset,
    context: RenderContext,
    pass: Pass,
) -> Difference {
    let mut steps = Vec::new();
    let there: BTreeSet<&str> = installed
        .chains
        .iter()
        .map(|held| &*held.object.name)
        .collect();
    for chain in names::chains() {
        if !there.contains(&*chain.name) {
            steps.push(Step::AddChain(chain));
        }
    }
    let sets: BTreeSet<&str> = installed
        .sets
        .iter()
        .map(|held| &*held.object.name)
        .collect();
    for container in Container::ALL {
        if !sets.contains(container.name()) {
            steps.push(Step::AddSet(container));
        }
    }
    let rules = by_chain(installed.rules.iter().map(|held| &held.object));
    for pick in &wanted.common.picks {
        let name = pick.name();
        if there.contains(&*name) {
            let of_chain = program::pick(context.family, pick, context.mark);
            steps.extend(replace_rules(
                &name,
                of(&rules, &name),
                &of_chain.iter().collect::<Vec<_>>(),
            ));
        } else {
            steps.extend(add_pick(pick, context));
        }
    }
    for (name, own) in &wanted.sets {
        if sets.contains(&**name) {
            let present = installed.elements.get(name).map_or(&[][..], Vec::as_slice);
            steps.extend(spans::repair(name, present, &own.elements()));
        } else {
            steps.extend(add_own_set(own.clone()));
        }
    }
    let missing = wanted
        .chains
        .keys()
        .filter(|name| !there.contains(&***name));
    steps.extend(missing.cloned().map(Chain::new).map(Step::AddChain));
    // All chains are there before any rule: one may lead to another.
    for (name, wanted) in &wanted.chains {
        let new: Vec<_> = wanted.iter().collect();
        steps.extend(replace_rules(name, of(&rules, name), &new));
    }
    element_steps_whole(installed, wanted, &mut steps);
    let wanted_rules = by_chain(&wanted.common.statics.rules);
    for chain in names::chains() {
        let (old, new) = (of(&rules, &chain.name), of(&wanted_rules, &chain.name));
        steps.extend(replace_rules(&chain.name, old, new));
    }
    let unused = Unused::find(installed, wanted, &rules);
    if pass == Pass::First && steps.is_empty() && unused.is_harmless() {
        let idle = unused.chains.into_iter().cloned().collect();
        return Difference { steps, idle };
    }
    let (more, idle) = unused.steps(&rules);
    steps.extend(more);
    Difference { steps, idle }
}

/// What the exposures of a delta change, and how it changes what they share.
#[derive(Debug, Default)]
pub struct Redrawn {
    old: Vec<Drawing>,
    new: Vec<Drawing>,
}

impl Redrawn {
    /// One Service port as it was and as it is.
    pub fn add(&mut self, old: Option<Drawing>, new: Option<Drawing>) {
        self.old.extend(old);
        self.new.extend(new);
    }

    /// Chains that are needed now.
    pub fn picks(&self) -> impl Iterator<Item = Pick> {
        self.new
            .iter()
            .flat_map(|drawing| drawing.picks.iter().copied())
    }

    /// Only what differs, given the chains that are there already.
    pub fn steps(
        &self,
        shares: &Shares,
        picks: &BTreeSet<Pick>,
        context: RenderContext,
    ) -> Vec<Step> {
        let mut steps = Vec::new();
        let needed: BTreeSet<Pick> = self.picks().collect();
        for pick in needed.difference(picks) {
            steps.extend(add_pick(pick, context));
        }
        let (old_sets, new_sets) = (sets(&self.old), sets(&self.new));
        let (old_chains, new_chains) = (chains(&self.old), chains(&self.new));
        for (name, own) in &new_sets {
            match old_sets.get(name) {
                Some(old) if old.nets == own.nets => {}
                Some(old) => {
                    steps.extend(spans::change(name, &old.elements(), &own.elements()));
                }
                None => steps.extend(add_own_set((*own).clone())),
            }
        }
        for name in new_chains.keys() {
            if !old_chains.contains_key(name) {
                steps.push(Step::AddChain(Chain::new(Name::clone(name))));
            }
        }
        // All chains are there before any rule: one may lead to another.
        for (name, new) in &new_chains {
            let old = old_chains.get(name).copied().unwrap_or_default();
            let new: Vec<_> = new.iter().collect();
            steps.extend(replace_rules(name, &old.iter().collect::<Vec<_>>(), &new));
        }
        let mut changes: BTreeMap<(Container, Value), Replacement<'_>> = BTreeMap::new();
        let mut counts: HashMap<(Container, Value), (u32, u32)> = HashMap::new();
        for (container, element) in elements(&self.old) {
            let key = (container, element.key);
            if container.is_shared() {
                counts.entry(key).or_default().0 += 1;
            }
            changes.entry(key).or_default().0 = Some(element);
        }
        for (container, element) in elements(&self.new) {
            let key = (container, element.key);
            if container.is_shared() {
                counts.entry(key).or_default().1 += 1;
            }
            changes.entry(key).or_default().1 = Some(element);
        }
        for ((container, key), change) in &mut changes {
            if let Some((gone, come)) = counts.get(&(*container, *key)) {
                let before = shares.count(*container, *key);
                let after = before.saturating_sub(*gone) + come;
                let element = change.0.or(change.1);
                *change = (
                    element.filter(|_| before > 0),
                    element.filter(|_| after > 0),
                );
            }
        }
        let changes = changes
            .into_iter()
            .map(|((container, _), change)| (container, change));
        steps.extend(element_steps(changes));
        // The chains themselves go with the next change.
        steps.extend(self.retired().map(Step::FlushChain));
        let gone = old_sets
            .keys()
            .filter(|name| !new_sets.contains_key(**name));
        steps.extend(gone.map(|name| Step::DeleteOwnSet(Name::clone(name))));
        steps
    }

    /// Chains of single Service ports that nothing leads to any more.
    pub fn retired(&self) -> impl Iterator<Item = Name> {
        let new = chains(&self.new);
        chains(&self.old)
            .into_keys()
            .filter(move |name| !new.contains_key(name))
            .cloned()
    }

    /// Whether a chain is needed now.
    pub fn needs(&self, chain: &Name) -> bool {
        self.new
            .iter()
            .any(|drawing| drawing.chains.contains_key(chain))
            || self.picks().any(|pick| pick.name() == *chain)
    }

    /// Counts what is shared as it is after the steps.
    pub fn count(&self, shares: &mut Shares) {
        for (container, element) in elements(&self.new) {
            if container.is_shared() {
                shares.add(container, element.key);
            }
        }
        for (container, element) in elements(&self.old) {
            if container.is_shared() {
                shares.remove(container, element.key);
            }
        }
    }
}

/// What changes when only facts about the node did.
pub fn statics(old: &Statics, new: &Statics) -> Vec<Step> {
    let mut steps = Vec::new();
    for (container, elements) in &new.nets {
        if old.nets.get(container) != Some(elements) {
            steps.extend(replace_nets(*container, elements));
        }
    }
    let (old, new) = (by_chain(&old.rules), by_chain(&new.rules));
    let chains: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
    for chain in chains {
        steps.extend(replace_rules(chain, of(&old, chain), of(&new, chain)));
    }
    steps
}

fn sets(drawings: &[Drawing]) -> BTreeMap<&Name, &OwnSet> {
    drawings.iter().flat_map(|drawing| &drawing.sets).collect()
}

fn chains(drawings: &[Drawing]) -> BTreeMap<&Name, &[Rule]> {
    let chains = drawings.iter().flat_map(|drawing| &drawing.chains);
    chains
        .map(|(name, rules)| (name, rules.as_slice()))
        .collect()
}

/// Adds chains of a single Service port.
pub fn add_chains(chains: &BTreeMap<Name, Vec<Rule>>) -> Vec<Step> {
    // All before any rule: one may lead to another.
    let add = chains.keys().cloned().map(Chain::new).map(Step::AddChain);
    let rules = chains.values().flatten().cloned().map(Step::AddRule);
    add.chain(rules).collect()
}

fn elements(drawings: &[Drawing]) -> impl Iterator<Item = (Container, &Element)> {
    drawings
        .iter()
        .flat_map(|drawing| &drawing.elements)
        .map(|(container, element)| (*container, element))
}

/// An element as it was and as it is.
type Replacement<'a> = (Option<&'a Element>, Option<&'a Element>);

fn element_steps<'a>(changes: impl IntoIterator<Item = (Container, Replacement<'a>)>) -> Vec<Step> {
    #[derive(Default)]
    struct Lists {
        replaced: Vec<Element>,
        added: Vec<Element>,
        removed: Vec<Element>,
    }
    let mut lists: BTreeMap<Container, Lists> = BTreeMap::new();
    for (container, (old, new)) in changes {
        if old == new {
            continue;
        }
        let lists = lists.entry(container).or_default();
        let gone = if new.is_some() {
            &mut lists.replaced
        } else {
            &mut lists.removed
        };
        gone.extend(old.cloned());
        lists.added.extend(new.cloned());
    }
    let mut steps = Vec::new();
    for (container, lists) in &mut lists {
        if !lists.replaced.is_empty() {
            steps.push(Step::Delete(
                *container,
                std::mem::take(&mut lists.replaced),
            ));
        }
        if !lists.added.is_empty() {
            steps.push(Step::Add(*container, std::mem::take(&mut lists.added)));
        }
    }
    for (container, lists) in lists.into_iter().rev() {
        if !lists.removed.is_empty() {
            steps.push(Step::Delete(container, lists.removed));
        }
    }
    steps
}

fn element_steps_whole(installed: &Snapshot, wanted: &Ruleset, steps: &mut Vec<Step>) {
    let mut changes: Vec<(Container, Replacement<'_>)> = Vec::new();
    for container in Container::ALL {
        let present = installed
            .elements
            .get(container.name())
            .map_or(&[][..], Vec::as_slice);
        if container.is_nets() {
            let nets = wanted.common.statics.nets.get(&container);
            let nets = nets.map_or(&[][..], Vec::as_slice);
            if sorted(present) != sorted(nets) {
                steps.extend(replace_nets(container, nets));
            }
            continue;
        }
        let wanted = wanted.elements(container);
        let mut found = vec![false; wanted.len()];
        for element in present {
            let place = wanted.binary_search_by(|wanted| wanted.key.cmp(&element.key));
            // One first key with two ends is two ranges; we never make such.
            let place = place
                .ok()
                .filter(|place| !std::mem::replace(&mut found[*place], true));
            let new = place.map(|place| &wanted[place]);
            changes.push((container, (Some(element), new)));
        }
        let absent = wanted.iter().zip(found).filter(|(_, found)| !found);
        changes.extend(absent.map(|(element, _)| (container, (None, Some(element)))));
    }
    steps.extend(element_steps(changes));
}

fn sorted(elements: &[Element]) -> Vec<(Value, bool)> {
    let mut keys: Vec<_> = elements
        .iter()
        .map(|element| (element.key, element.ends_range))
        .collect();
    keys.sort_unstable();
    keys
}

fn replace_nets(container: Container, elements: &[Element]) -> Vec<Step> {
    let mut steps = vec![Step::Flush(container)];
    if !elements.is_empty() {
        steps.push(Step::Add(container, elements.to_vec()));
    }
    steps
}

fn replace_rules(chain: &str, old: &[&Rule], new: &[&Rule]) -> Vec<Step> {
    if old == new {
        return Vec::new();
    }
    let mut steps = Vec::new();
    if !old.is_empty() {
        steps.push(Step::FlushChain(chain.into()));
    }
    steps.extend(new.iter().map(|rule| Step::AddRule((*rule).clone())));
    steps
}

/// Rules by the name of their chain, in order.
pub fn by_chain<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> BTreeMap<&'a str, Vec<&'a Rule>> {
    let mut chains: BTreeMap<&str, Vec<&Rule>> = BTreeMap::new();
    for rule in rules {
        chains.entry(&rule.chain).or_default().push(rule);
    }
    chains
}

/// The rules of one chain.
pub fn of<'a, 'b>(rules: &'b BTreeMap<&str, Vec<&'a Rule>>, chain: &str) -> &'b [&'a Rule] {
    rules.get(chain).map_or(&[], Vec::as_slice)
}

/// Adds a set of a single Service port, with what is in it.
pub fn add_own_set(own: OwnSet) -> Vec<Step> {
    let (name, elements) = (own.set.name.clone(), own.elements());
    let mut steps = vec![Step::AddOwnSet(own.set)];
    if !elements.is_empty() {
        steps.push(Step::AddOwn(name, elements));
    }
    steps
}

/// Adds a chain that several Service ports may use.
pub fn add_pick(pick: &Pick, context: RenderContext) -> Vec<Step> {
    let rules = program::pick(context.family, pick, context.mark);
    let rules = rules.into_iter().map(Step::AddRule);
    let chain = Step::AddChain(Chain::new(pick.name()));
    std::iter::once(chain).chain(rules).collect()
}
