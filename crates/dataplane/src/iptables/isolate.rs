//! Keeps one Service port whose rules are refused from taking all others down.
//!
//! iptables often names the line at fault, and then its owner is left out at once. Where it does
//! not, halves of the Service ports are tried in a network of their own, where no traffic is,
//! until the culprit is alone. That costs some tries, but only on the bad day.
//!
//! A Service port that is left out keeps what it had before, if that is known.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferrule_core::desired::{Desired, Exposure};
use ferrule_core::model::PortKey;
use ferrule_kernel::netns;

use super::apply::{Iptables, make_counters};
use super::layout::LAYOUT;
use super::render;
use super::statics::RenderContext;
use crate::xtables::diff;
use crate::xtables::error::Failure;
use crate::xtables::isolate::culprits;
use crate::xtables::ruleset::Ruleset;
use crate::xtables::tables::{Sent, Tables};

/// More refused Service ports than this are not a few bad ones but a broken machine.
const MOST_REFUSED: usize = 64;

/// Why a Service port is not programmed as desired, and what it has instead.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The error.
    pub message: String,
    /// As it was when it was last programmed.
    pub instead: Option<Arc<Exposure>>,
}

/// What a search came to.
enum Finding {
    /// Rules cannot use counters here.
    Counters,
    /// These Service ports are refused, each with the error; maybe none.
    Culprits(Vec<(PortKey, String)>),
}

/// Service ports as they were when they were last programmed.
pub type LastGood = BTreeMap<PortKey, Arc<Exposure>>;

impl Iptables {
    /// Programs all Service ports but those that are refused, which are noted. Returns what
    /// was sent and what is in the tables now.
    pub(super) fn isolating(
        &mut self,
        desired: &Desired,
        context: &RenderContext,
        last_good: &LastGood,
    ) -> Result<(Sent, Ruleset), Failure> {
        loop {
            let wanted = self.wanted(desired, context);
            let mut failure = match self.program(&wanted) {
                Ok(sent) => return Ok((sent, wanted)),
                Err(failure) => failure,
            };
            if !self.is_worth_another_try(&failure) {
                return Err(failure);
            }
            let culprits = match &failure.owner {
                Some(owner) => vec![(owner.clone(), failure.error.to_string())],
                None => match self.search(desired, context) {
                    Finding::Culprits(culprits) => culprits,
                    Finding::Counters => {
                        failure.counters = true;
                        return Err(failure);
                    }
                },
            };
            let known = self.refused.len();
            let mut progress = false;
            for (key, message) in culprits {
                progress |= match self.refused.get_mut(&key) {
                    // What it had cannot be either.
                    Some(refused) => refused.instead.take().is_some(),
                    None => false,
                };
                let instead = last_good.get(&key).cloned();
                let refused = Refused { message, instead };
                self.refused.entry(key).or_insert(refused);
            }
            if !progress && self.refused.len() == known {
                return Err(failure);
            }
        }
    }

    fn is_worth_another_try(&self, failure: &Failure) -> bool {
        failure.error.is_refusal()
            && !(failure.counters && self.is_counting())
            && self.refused.len() < MOST_REFUSED
    }

    /// Everything that is to be in the tables, as far as it is not refused.
    pub(super) fn wanted(&self, desired: &Desired, context: &RenderContext) -> Ruleset {
        let all = desired.exposures(self.family).into_iter();
        let chosen = all.filter_map(|exposure| match self.refused.get(&exposure.key) {
            None => Some(&**exposure),
            Some(refused) => refused.instead.as_deref(),
        });
        render::ruleset(chosen, context)
    }

    /// Finds out what is refused, without touching what is installed.
    fn search(&self, desired: &Desired, context: &RenderContext) -> Finding {
        let all: Vec<&Exposure> = desired
            .exposures(self.family)
            .into_iter()
            .map(|exposure| match self.refused.get(&exposure.key) {
                Some(Refused {
                    instead: Some(instead),
                    ..
                }) => &**instead,
                _ => &**exposure,
            })
            .collect();
        // Direct writing names the port at fault, so only programs need this.
        let tables = self.tables.by_programs();
        let finding = netns::isolated(|| {
            let mut trial = Trial { tables, context };
            if self.is_counting() && trial.cannot_count() {
                return Finding::Counters;
            }
            // If not even this works, no Service port is at fault.
            if trial.program([], context).is_err() {
                return Finding::Culprits(Vec::new());
            }
            let found = culprits(&all, MOST_REFUSED, &mut |some| {
                let result = trial.program(some.iter().copied(), context);
                result.map(drop).map_err(|failure| failure.error)
            });
            let found = found.into_iter();
            let named = found.map(|(exposure, error)| (exposure.key.clone(), error.to_string()));
            Finding::Culprits(named.collect())
        });
        match finding {
            Ok(finding) => finding,
            // Without the right to try, the most dispensable thing goes first.
            Err(_) if self.is_counting() => Finding::Counters,
            Err(_) => Finding::Culprits(Vec::new()),
        }
    }
}

/// Attempts in a network namespace without traffic.
struct Trial<'a> {
    tables: Tables,
    context: &'a RenderContext,
}

impl Trial<'_> {
    fn program<'e>(
        &mut self,
        exposures: impl IntoIterator<Item = &'e Exposure>,
        context: &RenderContext,
    ) -> Result<Sent, Failure> {
        let wanted = render::ruleset(exposures, context);
        self.tables
            .reconcile(|there| diff::full(&LAYOUT, there, &wanted))
    }

    /// Whether rules that count are refused and the same without counting are not. Asked in a
    /// network without rules and counters.
    fn cannot_count(&mut self) -> bool {
        if make_counters() == (false, false) {
            return true;
        }
        let mut probe = self.context.clone();
        probe.host.drop_invalid = true;
        probe.host.count_invalid = true;
        if self.program([], &probe).is_ok() {
            return false;
        }
        probe.host.count_invalid = false;
        self.program([], &probe).is_ok()
    }
}
