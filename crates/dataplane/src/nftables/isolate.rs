//! Keeps one refused Service port from taking all others down.
//!
//! The kernel names every message of a transaction that it refuses. Whoever drew what the message
//! was about is left out, and the rest is tried again, from then on with a message for each element,
//! so that one attempt finds all that are refused. So the attempts do not grow with the number of
//! Services, and hardly with the number of those refused.
//!
//! A Service port that is left out keeps what it had before, if that is known and nobody else needs
//! its addresses. It is tried again when it changes, in turn with every other change, and with
//! every full sync.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use ferrule_core::desired::{Desired, Exposure, FamilyDelta};
use ferrule_core::model::{Family, Port, PortKey, Protocol};
use ferrule_kernel::nft::{BatchError, Name, Value};

use super::batch::Failed;
use super::diff::{RenderContext, Step};
use super::names::Container;
use super::render;
use crate::Refusal;

/// How often what is refused is left out before we give up.
const ROUNDS: usize = 8;

/// More refused Service ports than this, and than a quarter of all, are not some bad ones but a
/// kernel that lacks something.
const MANY: usize = 64;

/// Service ports that the kernel refuses.
#[derive(Debug, Default)]
pub struct Isolation {
    refused: BTreeMap<PortKey, Refused>,
    /// Service ports as they were before a change that failed.
    before: BTreeMap<PortKey, Arc<Exposure>>,
    /// Which one was tried last in its turn.
    turn: Option<PortKey>,
    /// Full syncs send a message for each element.
    pub singly: bool,
    rounds: usize,
}

/// A Service port that is not programmed as desired.
#[derive(Clone, Debug)]
pub struct Refused {
    /// What the kernel said.
    message: String,
    /// As it should be.
    pub wanted: Option<Arc<Exposure>>,
    /// As it is: as it was when it was last programmed.
    pub instead: Option<Arc<Exposure>>,
}

/// Something in the table that belongs to Service ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Element(Container, Value),
    Chain(Name),
    Set(Name),
}

impl Isolation {
    /// Everything is tried again.
    pub fn begin(&mut self) {
        for (key, refused) in std::mem::take(&mut self.refused) {
            // What it has now is older than any change.
            self.before.remove(&key);
            self.before
                .extend(refused.instead.map(|instead| (key, instead)));
        }
        self.singly = false;
        self.rounds = 0;
    }

    /// Everything else is programmed.
    pub fn finished(&mut self) {
        self.before.clear();
        self.singly = false;
    }

    /// A change failed: this is how things were.
    pub fn remember(&mut self, delta: &FamilyDelta) {
        for (key, change) in &delta.changes {
            if let Some(before) = &change.before {
                self.before.insert(key.clone(), before.clone());
            }
        }
    }

    /// Whether this one is left out.
    pub fn has(&self, key: &PortKey) -> bool {
        self.refused.contains_key(key)
    }

    /// Those left out that are to be tried with this change: the ones that it changes, and the next
    /// one of the others. Each as it is to be.
    pub fn candidates(&mut self, delta: &FamilyDelta) -> Vec<(PortKey, Refused)> {
        let changed = |key: &PortKey| delta.changes.get(key);
        let mut after = self.refused.range::<PortKey, _>((
            self.turn.as_ref().map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        ));
        let next = after.next().or_else(|| self.refused.iter().next());
        let turn = next.map(|(key, _)| key.clone());
        let tried: Vec<_> = self
            .refused
            .iter()
            .filter(|(key, _)| changed(key).is_some() || turn.as_ref() == Some(key))
            .map(|(key, refused)| {
                let mut refused = refused.clone();
                if let Some(change) = changed(key) {
                    refused.wanted.clone_from(&change.after);
                }
                (key.clone(), refused)
            })
            .collect();
        self.turn = turn;
        tried
    }

    /// This one is programmed as desired.
    pub fn accepted(&mut self, key: &PortKey) {
        self.refused.remove(key);
    }

    /// This one is still refused.
    pub fn refused_again(&mut self, key: PortKey, refused: Refused, error: &BatchError) {
        let message = message(error);
        self.refused.insert(key, Refused { message, ..refused });
    }

    /// What is to be in the table, as far as it is not refused.
    pub fn chosen<'a>(
        &'a self,
        desired: &'a Desired,
        family: Family,
    ) -> impl Iterator<Item = &'a Exposure> {
        let all = desired.exposures(family).into_iter();
        all.filter_map(|exposure| match self.refused.get(&exposure.key) {
            None => Some(&**exposure),
            Some(refused) => refused.instead.as_deref(),
        })
    }

    /// Leaves out who is at fault. Returns whether another attempt may succeed.
    pub fn blame(
        &mut self,
        failed: &Failed,
        desired: &Desired,
        family: Family,
        context: RenderContext,
    ) -> bool {
        self.rounds += 1;
        let Some(Faults { first, parts }) = Faults::find(failed) else {
            return false;
        };
        let singly = std::mem::replace(&mut self.singly, true);
        if self.rounds > ROUNDS {
            return false;
        }
        let mut culprits = BTreeMap::new();
        let mut first_is_owned = false;
        for exposure in self.chosen(desired, family) {
            for part in parts_of(exposure, context) {
                if let Some(message) = parts.get(&part) {
                    first_is_owned |= first.as_ref() == Some(&part);
                    culprits
                        .entry(exposure.key.clone())
                        .or_insert_with(|| message.clone());
                }
            }
        }
        // What follows from a fault of nobody's is nobody's fault either.
        if first.is_some() && !first_is_owned {
            return false;
        }
        let progress = self.leave_out(culprits, desired, family);
        let all = desired.totals(family).ports;
        (progress || !singly) && self.refused.len() <= MANY.max(all / 4)
    }

    fn leave_out(
        &mut self,
        culprits: BTreeMap<PortKey, String>,
        desired: &Desired,
        family: Family,
    ) -> bool {
        let mut progress = false;
        let mut fresh = Vec::new();
        for (key, message) in culprits {
            match self.refused.get_mut(&key) {
                // What it had cannot be either.
                Some(refused) => progress |= refused.instead.take().is_some(),
                None => fresh.push((key, message)),
            }
        }
        if fresh.is_empty() {
            return progress;
        }
        let keys: BTreeSet<&PortKey> = fresh.iter().map(|(key, _)| key).collect();
        let mut wanted = BTreeMap::new();
        let mut taken = BTreeSet::new();
        for exposure in desired.exposures(family) {
            if keys.contains(&exposure.key) {
                wanted.insert(exposure.key.clone(), exposure.clone());
            } else if !self.has(&exposure.key) {
                taken.extend(addresses(exposure));
            }
        }
        for (key, message) in fresh {
            let instead = self.before.get(&key).filter(|before| {
                // Two of these may want the same address, too: the first one has it.
                let mut addresses = addresses(before);
                addresses.all(|address| !taken.contains(&address))
            });
            let instead = instead.cloned();
            taken.extend(instead.as_deref().into_iter().flat_map(addresses));
            let refused = Refused {
                message,
                wanted: wanted.remove(&key),
                instead,
            };
            self.refused.insert(key, refused);
        }
        true
    }

    /// All that are left out, and why.
    pub fn refusals(&self) -> Vec<Refusal> {
        let refused = self.refused.iter();
        refused
            .map(|(key, refused)| Refusal {
                key: key.clone(),
                message: refused.message.clone(),
            })
            .collect()
    }
}

/// What was refused of the parts that may belong to Service ports, each with what was said.
struct Faults {
    /// The part that was refused first, if it is known which one that was.
    first: Option<Part>,
    parts: BTreeMap<Part, String>,
}

impl Faults {
    /// `None` if no Service port is at fault.
    fn find((error, steps): &Failed) -> Option<Self> {
        let mut found = Self {
            first: None,
            parts: BTreeMap::new(),
        };
        match error {
            BatchError::Refused { source, faults, .. } => {
                if is_unrelated(source) {
                    return None;
                }
                for (number, fault) in faults.iter().enumerate() {
                    let part = steps.get(fault.step).map(|step| part(step, fault.element));
                    match part {
                        Some(Whose::Part(part)) => {
                            if number == 0 {
                                found.first = Some(part.clone());
                            }
                            let message = || said(&fault.what, fault.errno);
                            found.parts.entry(part).or_insert_with(message);
                        }
                        Some(Whose::Nobody) | None if number == 0 => return None,
                        Some(Whose::Unknown | Whose::Nobody) | None => {}
                    }
                }
            }
            BatchError::TooLong { step, .. } => match steps.get(*step).map(|step| part(step, None))
            {
                Some(Whose::Part(part)) => {
                    found.first = Some(part.clone());
                    found.parts.insert(part, message(error));
                }
                _ => return None,
            },
            _ => return None,
        }
        Some(found)
    }
}

/// Whom a step is for.
enum Whose {
    Part(Part),
    /// One of several elements.
    Unknown,
    Nobody,
}

/// Only what is added can be at fault; what is removed was there.
fn part(step: &Step, element: Option<usize>) -> Whose {
    match step {
        Step::Add(container, elements) => {
            let element = match (element, &elements[..]) {
                (Some(at), all) => all.get(at),
                (None, [only]) => Some(only),
                (None, _) => None,
            };
            element.map_or(Whose::Unknown, |element| {
                Whose::Part(Part::Element(*container, element.key))
            })
        }
        Step::AddChain(chain) => Whose::Part(Part::Chain(chain.name.clone())),
        Step::AddRule(rule) => Whose::Part(Part::Chain(rule.chain.clone())),
        Step::AddOwnSet(set) => Whose::Part(Part::Set(set.name.clone())),
        Step::AddOwn(set, _) => Whose::Part(Part::Set(set.clone())),
        _ => Whose::Nobody,
    }
}

/// Everything that one Service port puts into the table.
fn parts_of(exposure: &Exposure, context: RenderContext) -> impl Iterator<Item = Part> {
    let drawing = render::exposure(exposure, context);
    let elements = drawing.elements.into_iter();
    let elements = elements.map(|(container, element)| Part::Element(container, element.key));
    let picks = drawing.picks.into_iter().map(|pick| pick.name());
    let chains = picks.chain(drawing.chains.into_keys()).map(Part::Chain);
    let sets = drawing.sets.into_keys().map(Part::Set);
    elements.chain(chains).chain(sets)
}

/// Where it answers.
fn addresses(exposure: &Exposure) -> impl Iterator<Item = (Option<IpAddr>, Port, Protocol)> {
    let protocol = exposure.key.protocol;
    let held = exposure.holding();
    held.map(move |frontend| (frontend.ip, frontend.port, protocol))
}

/// Whether it says nothing about what was asked for.
fn is_unrelated(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, OutOfMemory, PermissionDenied, WouldBlock};
    matches!(
        error.kind(),
        Interrupted | OutOfMemory | PermissionDenied | WouldBlock
    )
}

fn said(what: &str, errno: i32) -> String {
    let error = io::Error::from_raw_os_error(errno);
    format!("the kernel refused {what}: {error}")
}

fn message(error: &BatchError) -> String {
    match error {
        BatchError::Refused { what, source, .. } => {
            format!("the kernel refused {what}: {source}")
        }
        error => ferrule_kernel::error_chain(error),
    }
}
