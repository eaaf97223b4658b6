//! Everything, from nothing.
//!
//! In: exposures and facts. Out: [`Step`]s, one after the other as they are drawn, and what a later
//! delta must know. The elements of a large cluster would be most of the program's memory, so
//! only a few of them exist at a time; whoever takes the steps keeps their bytes at most.

use std::collections::{BTreeMap, BTreeSet};

use ferrule_core::desired::Exposure;
use ferrule_core::facts::Facts;
use ferrule_core::model::Family;
use ferrule_kernel::nft::{ChainKind, Element, Name};

use super::Options;
use super::diff::{RenderContext, Step, add_chains, add_own_set, add_pick};
use super::names::{self, Container};
use super::render;
use super::ruleset::{Common, Drawing};

/// So many elements for one set are collected into one step.
const PIECE: usize = 256;

/// Tells every step to `each`, in an order that the kernel accepts.
pub fn create<'a>(
    exposures: impl IntoIterator<Item = &'a Exposure>,
    facts: &Facts,
    family: Family,
    options: Options,
    each: impl FnMut(Step),
) -> Common {
    let context = RenderContext::new(family, options);
    let statics = render::statics(facts, family, options);
    let mut creation = Creation {
        each,
        context,
        waiting: BTreeMap::new(),
        common: Common {
            statics,
            ..Common::default()
        },
    };
    creation.frame();
    for exposed in exposures {
        creation.add(render::exposure(exposed, context));
    }
    creation.finish()
}

/// Picks the steps that are needed to translate packets; the others refuse or drop some.
pub fn translation() -> impl Fn(&Step) -> bool {
    let filters: BTreeSet<Name> = names::chains()
        .into_iter()
        .filter(|chain| matches!(&chain.base, Some(base) if base.kind == ChainKind::Filter))
        .map(|chain| chain.name)
        .collect();
    let refuses = move |chain: &Name| filters.contains(chain) || names::is_sources_chain(chain);
    move |step| match step {
        Step::AddChain(chain) => !refuses(&chain.name),
        Step::AddRule(rule) => !refuses(&rule.chain),
        // Who may use an address is not asked there, and the answer may be long.
        Step::AddOwnSet(set) => !set.interval,
        Step::AddOwn(..) | Step::Add(Container::FirewallIps, _) => false,
        _ => true,
    }
}

struct Creation<F> {
    each: F,
    context: RenderContext,
    /// Elements that are not in a step yet.
    waiting: BTreeMap<Container, Vec<Element>>,
    common: Common,
}

impl<F: FnMut(Step)> Creation<F> {
    /// What there is without any Service.
    fn frame(&mut self) {
        (self.each)(Step::CreateTable);
        let chains = names::chains().into_iter().map(Step::AddChain);
        let sets = Container::ALL.into_iter().map(Step::AddSet);
        chains.chain(sets).for_each(&mut self.each);
    }

    /// What one Service port adds: who is led to comes before who leads there.
    fn add(&mut self, drawing: Drawing) {
        for pick in drawing.picks {
            if !self.common.picks.contains(&pick) {
                add_pick(&pick, self.context)
                    .into_iter()
                    .for_each(&mut self.each);
                self.common.picks.insert(pick);
            }
        }
        let sets = drawing.sets.into_values().flat_map(add_own_set);
        sets.for_each(&mut self.each);
        add_chains(&drawing.chains)
            .into_iter()
            .for_each(&mut self.each);
        for (container, element) in drawing.elements {
            // Of one that several Service ports add, the first counts.
            if container.is_shared() && self.common.shares.add(container, element.key) > 1 {
                continue;
            }
            let waiting = self.waiting.entry(container).or_default();
            waiting.push(element);
            if waiting.len() == PIECE {
                (self.each)(Step::Add(container, std::mem::take(waiting)));
            }
        }
    }

    /// What leads to all that comes last.
    fn finish(mut self) -> Common {
        for (container, nets) in &self.common.statics.nets {
            let waiting = self.waiting.entry(*container).or_default();
            waiting.extend(nets.iter().cloned());
        }
        let left = std::mem::take(&mut self.waiting).into_iter();
        let left = left.filter(|(_, elements)| !elements.is_empty());
        left.map(|(container, elements)| Step::Add(container, elements))
            .for_each(&mut self.each);
        let rules = self.common.statics.rules.iter().cloned();
        rules.map(Step::AddRule).for_each(&mut self.each);
        self.common
    }
}
