//! Sends steps to the kernel, and remembers what is there.
//!
//! What a delta needs to know about the rest is little: which chains there are, how often shared
//! elements are used, and the rules that facts about the node decide. The rest is not remembered
//! but read again in a full sync.

use std::collections::BTreeSet;
use std::io;

use ferrule_core::desired::{Desired, Exposure, FamilyDelta};
use ferrule_core::facts::Facts;
use ferrule_core::model::Family;
use ferrule_kernel::memory;
use ferrule_kernel::nft::{BatchError, Mark, Name, Nft, Snapshot, Table, Writers};
use ferrule_kernel::socket::{Socket, Transport};

use super::Options;
use super::batch::{Failed, batch, is_busy_chain, is_created_already, put, refused, unread};
use super::create;
use super::diff::{self, Pass, Redrawn, RenderContext, Step, Strangers};
use super::isolate::Isolation;
use super::names::{self, TABLE};
use super::render;
use super::ruleset::{Common, Ruleset};
use crate::{Applied, ApplyError, Dataplane, Listener, Scope, Watcher, Work, kernel_family, said};

/// How often a full sync starts over because of external changes meanwhile.
const ATTEMPTS: usize = 3;

/// Programs one family by nftables.
#[derive(Debug)]
pub struct Nftables<T = Socket> {
    family: Family,
    options: Options,
    nft: Nft<T>,
    /// `None` when we do not know what is in the kernel.
    written: Option<Written>,
    /// Whether something may stand in for our table.
    interim: bool,
    /// Whether the table was as we want it once. If so, what is strange in it came later.
    ours: bool,
    /// The state of all rules when the table was read last.
    read: Option<Mark>,
    isolation: Isolation,
}

/// What a delta needs to know about the rest.
#[derive(Debug)]
struct Written {
    common: Common,
    /// Chains that nothing leads to. They go with the next change.
    retired: BTreeSet<Name>,
}

/// Service ports as they were and as they are to be.
type Change<'a> = (Option<&'a Exposure>, Option<&'a Exposure>);

/// Steps that were made.
struct Done {
    /// How many.
    made: usize,
    /// Chains that could not be deleted yet.
    kept: BTreeSet<Name>,
}

impl Nftables {
    /// Opens a conversation in the network namespace of the calling thread. Nothing is written.
    ///
    /// # Errors
    /// What the kernel said: it has no nftables, or we have no right to use them.
    pub fn open(family: Family, options: Options) -> io::Result<Self> {
        let mut nft = Nft::open()?;
        nft.generation().map_err(said)?;
        Ok(Self::new(family, options, nft))
    }
}

impl<T: Transport> Nftables<T> {
    /// Programs through this conversation.
    pub fn new(family: Family, options: Options, nft: Nft<T>) -> Self {
        Self {
            family,
            options,
            nft,
            written: None,
            interim: false,
            ours: false,
            read: None,
            isolation: Isolation::default(),
        }
    }

    /// The same as one of these writers.
    #[must_use]
    pub fn beside(mut self, writers: &Writers) -> Self {
        self.nft.join(writers);
        self
    }

    fn delete(&mut self, table: &Table) -> Result<usize, ApplyError> {
        // Another process may delete it first, and deleting what is not there is refused.
        let steps = [Step::AddTable, Step::DeleteTable];
        let batch = batch(&steps, kernel_family(self.family), table);
        let done = self.nft.commit(&batch);
        done.map_err(|error| refused(error, &steps))?;
        Ok(batch.len())
    }

    fn context(&self) -> RenderContext {
        RenderContext::new(self.family, self.options)
    }

    fn full(&mut self, desired: &Desired, pass: Pass) -> Result<Applied, ApplyError> {
        let (family, context) = (kernel_family(self.family), self.context());
        let mut interim_steps = None;
        let mut attempt = 1;
        let mut replace = false;
        self.isolation.begin();
        let (mut applied, written) = loop {
            let mut wanted = self.expected(desired)?;
            let elements = |set: &str| wanted.as_ref().map_or(&[][..], |all| all.of_set(set));
            let read = self.nft.marked_snapshot(family, TABLE, &elements);
            let (installed, mark) = read.map_err(unread)?;
            self.read = Some(mark);
            // A process that writes all the time, most likely elsewhere, must not keep us forever. If
            // it was here after all, the kernel refuses what does not fit.
            let generation = installed.as_ref().map(|installed| installed.generation);
            let generation = generation.filter(|_| attempt < ATTEMPTS);
            let strangers = installed.as_ref();
            let strangers = strangers.map_or(Strangers::None, |all| diff::strangers(all, family));
            let removable = self.ours && !replace && strangers == Strangers::Removable;
            let result = match installed {
                Some(installed) if removable || strangers == Strangers::None => {
                    let wanted = wanted.take();
                    self.update_in_place(installed, wanted, desired, pass, generation)
                }
                Some(_) if interim_steps.is_none() => {
                    drop(wanted);
                    interim_steps = Some(self.install_interim_table(desired));
                    continue;
                }
                Some(_) => self.create(&[Step::DeleteTable], desired, generation),
                None => self.create(&[], desired, generation),
            };
            match result {
                Ok(done) => break done,
                Err((BatchError::Conflict, _)) if attempt < ATTEMPTS => attempt += 1,
                Err(failed) if self.isolation.blame(&failed, desired, self.family, context) => {
                    // If the interim table was refused, then for the same reason.
                    interim_steps = interim_steps.filter(|_| self.interim);
                }
                // What is strange cannot be removed on its own.
                Err((BatchError::Refused { .. }, _)) if removable => replace = true,
                Err((error, steps)) => return Err(refused(error, &steps)),
            }
        };
        applied.steps += interim_steps.unwrap_or_default();
        if self.interim {
            applied.steps += self.delete(&names::interim())?;
            self.interim = false;
        }
        self.isolation.finished();
        self.ours = true;
        self.written = Some(written);
        applied.refused = self.isolation.refusals();
        Ok(applied)
    }

    /// Everything wanted, where it helps to know that before the kernel is read: if it is very much and
    /// there is something to read.
    fn expected(&mut self, desired: &Desired) -> Result<Option<Ruleset>, ApplyError> {
        if desired.totals(self.family).listed < self.nft.large() {
            return Ok(None);
        }
        let tables = self.nft.tables(kernel_family(self.family));
        let tables = tables.map_err(unread)?;
        let is_there = tables.iter().any(|table| &*table.object.name == TABLE);
        Ok(is_there.then(|| self.wanted(desired)))
    }

    /// Everything wanted.
    fn wanted(&self, desired: &Desired) -> Ruleset {
        let exposures = self.isolation.chosen(desired, self.family);
        let facts = desired.facts(self.family);
        render::ruleset(exposures, facts, self.family, self.options)
    }

    /// Writes what differs.
    fn update_in_place(
        &mut self,
        installed: Snapshot,
        wanted: Option<Ruleset>,
        desired: &Desired,
        pass: Pass,
        generation: Option<u32>,
    ) -> Result<(Applied, Written), Failed> {
        let wanted = wanted.unwrap_or_else(|| self.wanted(desired));
        let difference = diff::full(&installed, &wanted, self.context(), pass);
        drop(installed);
        let apart = self.isolation.singly;
        let mut steps = difference.steps;
        if apart {
            steps = steps.into_iter().flat_map(pieces).collect();
        }
        let mut done = self.commit(steps, generation)?;
        let applied = Applied {
            kept: done.kept.len(),
            ..Applied::steps(done.made)
        };
        done.kept.extend(difference.idle);
        let written = Written {
            common: wanted.common,
            retired: done.kept,
        };
        Ok((applied, written))
    }

    /// Writes everything, after some other steps.
    fn create(
        &mut self,
        before: &[Step],
        desired: &Desired,
        generation: Option<u32>,
    ) -> Result<(Applied, Written), Failed> {
        let family = kernel_family(self.family);
        let table = names::table();
        let mut batch = batch(before, family, &table);
        if let Some(generation) = generation {
            batch.expect_generation(generation);
        }
        let apart = self.isolation.singly;
        let common = self.draw(desired, |step| {
            if apart {
                let pieces = pieces(step);
                pieces.for_each(|step| put(&mut batch, &step, family, &table));
            } else {
                put(&mut batch, &step, family, &table);
            }
        });
        match self.nft.commit(&batch) {
            Ok(_) => {
                let retired = BTreeSet::new();
                let written = Written { common, retired };
                Ok((Applied::steps(batch.len()), written))
            }
            // They were not kept; the error needs the one that it is about.
            Err(error) => {
                let mut steps = before.to_vec();
                self.draw(desired, |step| {
                    if apart {
                        steps.extend(pieces(step));
                    } else {
                        steps.push(step);
                    }
                });
                if is_created_already(&error, &steps) {
                    return Err((BatchError::Conflict, steps));
                }
                Err((error, steps))
            }
        }
    }

    /// Tells every step to a new table.
    fn draw(&self, desired: &Desired, each: impl FnMut(Step)) -> Common {
        let exposures = self.isolation.chosen(desired, self.family);
        let facts = desired.facts(self.family);
        create::create(exposures, facts, self.family, self.options, each)
    }

    /// Writes a table that translates packets while ours is replaced; the number of steps.
    ///
    /// Base chains go and come with their table, and each looks by itself which
    /// generation it is in, those of the new table first. A packet that is between the two when
    /// the generation changes found the new one not there yet, and finds the old one gone. With
    /// this table there is always one that is there in both.
    ///
    /// It is a courtesy: where it is refused, we replace ours without.
    fn install_interim_table(&mut self, desired: &Desired) -> usize {
        let family = kernel_family(self.family);
        let table = names::interim();
        let mut batch = batch(&[Step::AddTable, Step::DeleteTable], family, &table);
        let translates = create::translation();
        self.draw(desired, |step| {
            if translates(&step) {
                put(&mut batch, &step, family, &table);
            }
        });
        let done = self.nft.commit(&batch);
        // If the answer was lost it may be there.
        self.interim = matches!(done, Ok(_) | Err(BatchError::Lost(_)));
        done.map_or(0, |_| batch.len())
    }

    /// Makes the steps, all or none. Chains that are still busy stay.
    ///
    /// Before Linux 6.2 a chain is busy until a while after the last element that led to it went.
    /// That must not hold up what the other steps are for.
    fn commit(&mut self, mut steps: Vec<Step>, generation: Option<u32>) -> Result<Done, Failed> {
        let mut kept = BTreeSet::new();
        loop {
            let mut batch = batch(&steps, kernel_family(self.family), &names::table());
            if let Some(generation) = generation {
                batch.expect_generation(generation);
            }
            match self.nft.commit(&batch) {
                Ok(_) => {
                    let made = batch.len();
                    return Ok(Done { made, kept });
                }
                Err(error) if kept.is_empty() && is_busy_chain(&error, &steps) => {
                    steps.retain(|step| match step {
                        Step::DeleteChain(name) => {
                            kept.insert(name.clone());
                            false
                        }
                        _ => true,
                    });
                }
                Err(error) => return Err((error, steps)),
            }
        }
    }

    fn delta(
        &mut self,
        mut written: Written,
        desired: &Desired,
        delta: &FamilyDelta,
    ) -> Result<Applied, ApplyError> {
        let changes = delta.changes.iter();
        let changes: Vec<Change<'_>> = changes
            .filter(|(key, _)| !self.isolation.has(key))
            .map(|(_, change)| (change.before.as_deref(), change.after.as_deref()))
            .collect();
        let facts = delta.facts.then(|| desired.facts(self.family));
        let mut applied = Applied::default();
        match self.change(&mut written, &changes, facts) {
            Ok(done) => {
                applied.steps = done.made;
                applied.kept = done.kept.len();
            }
            Err((error, steps)) => {
                self.isolation.remember(delta);
                return Err(refused(error, &steps));
            }
        }
        // On their own, so that they hold up nobody.
        for (key, tried) in self.isolation.candidates(delta) {
            let change = (tried.instead.as_deref(), tried.wanted.as_deref());
            match self.change(&mut written, &[change], None) {
                Ok(done) => {
                    applied.steps += done.made;
                    self.isolation.accepted(&key);
                }
                Err((error, _)) if is_refusal(&error) && tried.wanted.is_some() => {
                    self.isolation.refused_again(key, tried, &error);
                }
                Err((error, steps)) => return Err(refused(error, &steps)),
            }
        }
        self.written = Some(written);
        applied.refused = self.isolation.refusals();
        Ok(applied)
    }

    /// Makes these changes, all or none.
    fn change(
        &mut self,
        written: &mut Written,
        changes: &[Change<'_>],
        facts: Option<&Facts>,
    ) -> Result<Done, Failed> {
        let context = self.context();
        let mut redrawn = Redrawn::default();
        for (before, after) in changes {
            let draw = |exposure: &Exposure| render::exposure(exposure, context);
            redrawn.add(before.map(draw), after.map(draw));
        }
        let Written { common, retired } = &mut *written;
        let retired = retired.iter().cloned();
        let (again, mut retired): (BTreeSet<_>, BTreeSet<_>) =
            retired.partition(|chain| redrawn.needs(chain));
        // One that is needed again may have its rules still.
        let mut steps: Vec<_> = again.into_iter().map(Step::FlushChain).collect();
        steps.extend(redrawn.steps(&common.shares, &common.picks, context));
        let statics = facts.map(|facts| render::statics(facts, self.family, self.options));
        if let Some(statics) = &statics {
            steps.extend(diff::statics(&common.statics, statics));
        }
        if !steps.is_empty() {
            let gone = std::mem::take(&mut retired);
            steps.extend(gone.into_iter().map(Step::DeleteChain));
        }
        let done = self.commit(steps, None)?;
        retired.extend(done.kept.iter().cloned());
        retired.extend(redrawn.retired());
        common.statics = statics.unwrap_or_else(|| std::mem::take(&mut common.statics));
        common.picks.extend(redrawn.picks());
        redrawn.count(&mut common.shares);
        written.retired = retired;
        Ok(done)
    }
}

/// Whether the kernel does not want something, and nothing was changed.
const fn is_refusal(error: &BatchError) -> bool {
    matches!(
        error,
        BatchError::Refused { .. } | BatchError::TooLong { .. }
    )
}

/// A step with each element that it adds apart.
fn pieces(step: Step) -> impl Iterator<Item = Step> {
    let (elements, other) = match step {
        Step::Add(container, elements) => (Some((container, elements)), None),
        step => (None, Some(step)),
    };
    let elements = elements.into_iter().flat_map(|(container, elements)| {
        let elements = elements.into_iter();
        elements.map(move |element| Step::Add(container, vec![element]))
    });
    elements.chain(other)
}

impl<T: Transport + Send> Dataplane for Nftables<T> {
    /// Deletes the table and everything in it, if there is one.
    fn remove(&mut self) -> Result<Applied, ApplyError> {
        self.written = None;
        self.ours = false;
        let family = kernel_family(self.family);
        let tables = self.nft.tables(family).map_err(unread)?;
        if tables.iter().all(|table| &*table.object.name != TABLE) {
            return Ok(Applied::default());
        }
        self.delete(&names::table()).map(Applied::steps)
    }

    fn watch(&mut self) -> Vec<Box<dyn Watcher>> {
        // All of the table is ours, so any change in it concerns us.
        let listener = Listener::open(self.family, &mut self.nft, self.read, &[TABLE], |_| true);
        vec![Box::new(listener)]
    }

    fn apply(&mut self, work: &Work<'_>) -> Result<Applied, ApplyError> {
        // Whatever goes wrong below, we do not know any more what is in the kernel.
        match (work.scope, self.written.take()) {
            (Scope::Delta(delta), Some(written)) => self.delta(written, work.desired, delta),
            (Scope::Delta(_) | Scope::Full, written) => {
                let pass = if written.is_some() {
                    Pass::Again
                } else {
                    Pass::First
                };
                // What reading the cluster left free is not what this will need.
                memory::trim();
                let applied = self.full(work.desired, pass);
                // Nothing as large as this happens again soon.
                memory::trim();
                applied
            }
        }
    }
}
