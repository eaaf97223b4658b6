//! Sends steps to the kernel, and remembers what is there.
//!
//! What a delta needs to know about the rest is little: which chains there are, how often shared
//! elements are used, and the rules that facts about the node decide. The rest is not remembered
//! but read again in a full sync.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use ferrule_core::desired::{Desired, Exposure, FamilyDelta};
use ferrule_core::model::Family;
use ferrule_kernel::exchange::RequestError;
use ferrule_kernel::memory;
use ferrule_kernel::nft::{Batch, BatchError, Name, Nft, Snapshot, Table};
use ferrule_kernel::socket::{Socket, Transport};

use super::Options;
use super::create;
use super::diff::{self, Pass, Redrawn, RenderContext, Step};
use super::names::{self, TABLE};
use super::render;
use super::ruleset::Common;
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
}

/// What a delta needs to know about the rest.
#[derive(Debug)]
struct Written {
    common: Common,
    /// Chains that nothing leads to. They go with the next change.
    retired: BTreeSet<Name>,
}

/// What the kernel said, and to which steps.
type Failed = (BatchError, Vec<Step>);

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
    pub const fn new(family: Family, options: Options, nft: Nft<T>) -> Self {
        Self {
            family,
            options,
            nft,
            written: None,
            interim: false,
        }
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
        RenderContext {
            family: kernel_family(self.family),
            mark: self.options.mark,
        }
    }

    fn full(&mut self, desired: &Desired, pass: Pass) -> Result<Applied, ApplyError> {
        let family = kernel_family(self.family);
        let mut interim_steps = None;
        let mut attempt = 1;
        let (mut applied, written) = loop {
            let installed = self.nft.snapshot(family, TABLE).map_err(unread)?;
            // A process that writes all the time, most likely elsewhere, must not keep us forever. If
            // it was here after all, the kernel refuses what does not fit.
            let generation = installed.as_ref().map(|installed| installed.generation);
            let generation = generation.filter(|_| attempt < ATTEMPTS);
            let result = match installed {
                Some(installed) if !diff::is_unusable(&installed, family) => {
                    self.update_in_place(installed, desired, pass, generation)
                }
                Some(_) if interim_steps.is_none() => {
                    interim_steps = Some(self.install_interim_table(desired));
                    continue;
                }
                Some(_) => self.create(&[Step::DeleteTable], desired, generation),
                None => self.create(&[], desired, generation),
            };
            match result {
                Ok(done) => break done,
                Err((BatchError::Conflict, _)) if attempt < ATTEMPTS => attempt += 1,
                Err((error, steps)) => return Err(refused(error, &steps)),
            }
        };
        applied.steps += interim_steps.unwrap_or_default();
        if self.interim {
            applied.steps += self.delete(&names::interim())?;
            self.interim = false;
        }
        self.written = Some(written);
        Ok(applied)
    }

    /// Writes what differs.
    fn update_in_place(
        &mut self,
        installed: Snapshot,
        desired: &Desired,
        pass: Pass,
        generation: Option<u32>,
    ) -> Result<(Applied, Written), Failed> {
        let wanted = render::ruleset(desired, self.family, self.options);
        let difference = diff::full(&installed, &wanted, self.context(), pass);
        drop(installed);
        let mut done = self.commit(difference.steps, generation)?;
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
        let common = create::create(desired, self.family, self.options, |step| {
            put(&mut batch, &step, family, &table);
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
                let each = |step| steps.push(step);
                create::create(desired, self.family, self.options, each);
                Err((error, steps))
            }
        }
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
        create::create(desired, self.family, self.options, |step| {
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
        written: Written,
        desired: &Desired,
        delta: &FamilyDelta,
    ) -> Result<Applied, ApplyError> {
        let mut common = written.common;
        let context = self.context();
        let mut redrawn = Redrawn::default();
        for change in delta.changes.values() {
            let draw = |side: &Option<Arc<Exposure>>| {
                side.as_deref()
                    .map(|exposure| render::exposure(exposure, context))
            };
            redrawn.add(draw(&change.before), draw(&change.after));
        }
        let retired = written.retired.into_iter();
        let (again, mut retired): (BTreeSet<_>, BTreeSet<_>) =
            retired.partition(|chain| redrawn.needs(chain));
        // One that is needed again may have its rules still.
        let mut steps: Vec<_> = again.into_iter().map(Step::FlushChain).collect();
        steps.extend(redrawn.steps(&common.shares, &common.picks, context));
        if delta.facts {
            let facts = desired.facts(self.family);
            let statics = render::statics(facts, self.family, self.options);
            steps.extend(diff::statics(&common.statics, &statics));
            common.statics = statics;
        }
        if !steps.is_empty() {
            let gone = std::mem::take(&mut retired);
            steps.extend(gone.into_iter().map(Step::DeleteChain));
        }
        let done = self.commit(steps, None);
        let done = done.map_err(|(error, steps)| refused(error, &steps))?;
        let kept = done.kept.len();
        retired.extend(done.kept);
        retired.extend(redrawn.retired());
        common.picks.extend(redrawn.picks());
        redrawn.count(&mut common.shares);
        self.written = Some(Written { common, retired });
        Ok(Applied {
            kept,
            ..Applied::steps(done.made)
        })
    }
}

impl<T: Transport + Send> Dataplane for Nftables<T> {
    /// Deletes the table and everything in it, if there is one.
    fn remove(&mut self) -> Result<Applied, ApplyError> {
        self.written = None;
        let family = kernel_family(self.family);
        let tables = self.nft.tables(family).map_err(unread)?;
        if tables.iter().all(|table| &*table.object.name != TABLE) {
            return Ok(Applied::default());
        }
        self.delete(&names::table()).map(Applied::steps)
    }

    fn watch(&self) -> Vec<Box<dyn Watcher>> {
        // All of the table is ours, so any change in it concerns us.
        let listener = Listener::open(self.family, self.nft.port(), &[TABLE], |_| true);
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

fn batch(steps: &[Step], family: ferrule_kernel::Family, table: &Table) -> Batch {
    let mut batch = Batch::new(family, table.name.clone());
    for step in steps {
        put(&mut batch, step, family, table);
    }
    batch
}

pub(super) fn put(batch: &mut Batch, step: &Step, family: ferrule_kernel::Family, table: &Table) {
    match step {
        Step::AddTable => batch.add_table(table),
        Step::DeleteTable => batch.delete_table(),
        Step::AddSet(container) => batch.add_set(&container.set(family)),
        Step::AddOwnSet(set) => batch.add_set(set),
        Step::DeleteOwnSet(name) => batch.delete_set(name),
        Step::AddChain(chain) => batch.add_chain(chain),
        Step::FlushChain(name) => batch.flush_chain(name),
        Step::AddRule(rule) => batch.add_rule(rule),
        Step::DeleteChain(name) => batch.delete_chain(name),
        Step::Flush(container) => batch.flush_set(container.name()),
        Step::Add(container, elements) => batch.add_elements(container.name(), elements),
        Step::Delete(container, elements) => batch.delete_elements(container.name(), elements),
    };
}

/// Whether it was the deletion of a chain that was refused, because something still leads there.
fn is_busy_chain(error: &BatchError, steps: &[Step]) -> bool {
    matches!(error, BatchError::Refused { step, source, .. }
        if source.kind() == io::ErrorKind::ResourceBusy
            && matches!(steps.get(*step), Some(Step::DeleteChain(_))))
}

fn refused(error: BatchError, steps: &[Step]) -> ApplyError {
    let text = error.to_string();
    match error {
        BatchError::Refused {
            step,
            element,
            what,
            message,
            source,
            ..
        } => {
            let which = element.and_then(|at| element_of(steps.get(step)?, at));
            let which = which.map_or_else(String::new, |which| format!(" ({which})"));
            let words = message.map_or_else(String::new, |words| format!(": {words}"));
            ApplyError::Refused {
                step: format!("{what}{which}{words}"),
                source,
            }
        }
        BatchError::Denied(source) | BatchError::Unsent { source, .. } => ApplyError::Refused {
            step: "the whole transaction".to_owned(),
            source,
        },
        BatchError::TooLong { what, .. } => ApplyError::Refused {
            step: what,
            source: io::Error::other(text),
        },
        BatchError::Conflict => ApplyError::OutOfSync(io::Error::other(text)),
        BatchError::Lost(source) => ApplyError::OutOfSync(source),
    }
}

/// What there is to say about one element of a step: whose it is, or its bytes.
fn element_of(step: &Step, at: usize) -> Option<String> {
    let (Step::Add(_, elements) | Step::Delete(_, elements)) = step else {
        return None;
    };
    let element = elements.get(at)?;
    Some(match &element.comment {
        Some(comment) => comment.as_str().to_owned(),
        None => format!("{:?}", element.key),
    })
}

fn unread(error: RequestError) -> ApplyError {
    ApplyError::OutOfSync(said(error))
}
