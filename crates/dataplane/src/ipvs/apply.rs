//! Programs sets, rules, virtual servers and addresses, and remembers what a delta needs.
//!
//! Remembered is what is wanted, as it was last written: every change is compared with that, and
//! the kernel is not asked. In a full sync everything is read again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrule_core::desired::{Desired, FamilyDelta};
use ferrule_core::model::{Family, PortKey};
use ferrule_kernel::ipset::Entry;
use ferrule_kernel::ipvs::ServerKey;
use ferrule_kernel::socket::{Socket, Transport};
use ferrule_kernel::xt::Xt;

use super::conversation::{Conversation, Failure, RefusedServer};
use super::diff::{self, Difference, Rules, Step};
use super::drain::{Drains, LINGER};
use super::layout::LAYOUT;
use super::names::Set;
use super::render::{self, Service};
use super::statics::{self, Contents};
use super::wanted::{Touched, Wanted};
use super::watch::{Expected, Numbers, Sentinel};
use super::{Options, removal};
use crate::xtables::diff as rules;
use crate::xtables::removal::leftovers;
use crate::xtables::ruleset::{RuleIndex, Ruleset, Statics};
use crate::xtables::tables::Tables;
use crate::{Applied, ApplyError, Dataplane, Refusal, Scope, Watcher, Work, iptables};

/// Programs one family by IPVS.
#[derive(Debug)]
pub struct Ipvs<T = Socket> {
    pub(super) family: Family,
    options: Options,
    pub(super) kernel: Conversation<T>,
    pub(super) tables: Tables,
    random_fully: bool,
    /// `None` when we do not know what is in the kernel.
    written: Option<Written>,
    drains: Drains,
    /// How long connections that are not established keep a destination that must get no new ones.
    linger: Duration,
    /// Schedulers that Services ask for and this kernel lacks.
    missing: BTreeSet<Arc<str>>,
    /// Service ports that are not as desired, and why.
    refused: BTreeMap<PortKey, String>,
    /// What the watchers expect.
    expected: Expected,
}

/// What a delta needs to know about the rest.
#[derive(Debug)]
struct Written {
    context: render::Context,
    rules: statics::Context,
    statics: Statics,
    wanted: Wanted,
    /// The interface.
    link: u32,
}

/// What became of steps.
struct Done {
    statics: Statics,
    refused: Vec<RefusedServer>,
}

impl<T: Transport> Ipvs<T> {
    /// Programs through these conversations and this iptables.
    pub fn new(family: Family, options: Options, kernel: Conversation<T>, xt: Xt) -> Self {
        let random_fully = xt.has_random_fully();
        Self {
            family,
            options,
            kernel,
            // A handful of rules that hardly ever change.
            tables: Tables::new(family, &LAYOUT, xt).by_programs(),
            random_fully,
            written: None,
            drains: Drains::default(),
            linger: LINGER,
            missing: BTreeSet::new(),
            refused: BTreeMap::new(),
            expected: Expected::default(),
        }
    }

    /// The same, but does not wait for connections that are not established: a kernel that keeps
    /// sending reused ports to such a destination would never end.
    #[must_use]
    pub const fn without_lingering(mut self) -> Self {
        self.linger = Duration::ZERO;
        self
    }

    fn context(&self, work: &Work<'_>) -> render::Context {
        render::Context::new(
            self.family,
            self.options.scheduler.clone(),
            self.missing.clone(),
            work.desired.facts(self.family),
            work.local,
        )
    }

    fn rules(&self, desired: &Desired) -> statics::Context {
        let facts = desired.facts(self.family);
        statics::Context::new(self.family, self.options.mark, self.random_fully, facts)
    }

    /// Everything that is wanted now.
    fn wanted(&self, desired: &Desired, context: &render::Context) -> Wanted {
        let all = desired.exposures(self.family).into_iter();
        Wanted::of(all.map(|exposure| (&exposure.key, render::exposure(exposure, context))))
    }

    fn full(&mut self, work: &Work<'_>) -> Result<Applied, ApplyError> {
        // Everything is tried again.
        self.missing.clear();
        let mut applied = self.reconcile(work)?;
        if !self.missing.is_empty() {
            // Services that asked for a scheduler that is not there get the other one.
            let reasons = std::mem::take(&mut self.refused);
            let again = self.reconcile(work)?;
            applied.steps += again.steps;
            self.refused.extend(reasons);
            applied.refused = self.refusals();
        }
        Ok(applied)
    }

    fn reconcile(&mut self, work: &Work<'_>) -> Result<Applied, ApplyError> {
        self.refused.clear();
        let context = self.context(work);
        let wanted = self.wanted(work.desired, &context);
        let target = wanted.target();
        let (link, created) = self.kernel.ensure_link()?;
        let mut steps = usize::from(created);
        steps += self.kernel.ensure_sets(&target.entries)?;
        let installed = self.kernel.installed(link, &self.options.excluded, |key| {
            target.servers.contains_key(key)
        })?;
        let after = wanted.contents();
        let before = Contents {
            occupied: installed.occupied(),
            barred: BTreeSet::new(),
        };
        let rules = Rules::between(&before, after);
        let difference = diff::diff(&installed, &target, rules);
        drop(installed);
        self.drains.replace(&difference.closed);
        let context_of_rules = self.rules(work.desired);
        let done = self.run(&difference, link, None, &context_of_rules, &mut steps);
        let done = done.map_err(ApplyError::from)?;
        self.note_refused(done.refused, &wanted);
        self.expected.set(Numbers::of(&wanted));
        self.written = Some(Written {
            context,
            rules: context_of_rules,
            statics: done.statics,
            wanted,
            link,
        });
        Ok(self.applied(steps))
    }

    fn delta(
        &mut self,
        mut written: Written,
        context: render::Context,
        work: &Work<'_>,
        delta: &FamilyDelta,
    ) -> Result<Applied, Failure> {
        let mut touched = Touched::default();
        let wanted = &mut written.wanted;
        if written.context == context {
            for (key, change) in &delta.changes {
                if let Some(before) = &change.before {
                    let before = render::exposure(before, &context);
                    wanted.remove(key, &before, &mut touched);
                }
            }
            // All that go before any that come: an address may pass from one to another.
            for (key, change) in &delta.changes {
                if let Some(after) = &change.after {
                    let after = render::exposure(after, &context);
                    wanted.add(key, after, &mut touched);
                }
            }
        } else {
            let new = self.wanted(work.desired, &context);
            touched = Touched::between(wanted, &new);
            *wanted = new;
        }
        let rules = self.rules(work.desired);
        let contents = touched.rules(wanted);
        let contents = match contents {
            Some((before, after)) => Rules::between(&before, after),
            None if rules != written.rules => Rules {
                early: Some(wanted.contents()),
                late: None,
            },
            None => Rules::default(),
        };
        let before = touched.before(|key| self.drains.of(key).collect());
        let difference = diff::diff(&before, &touched.after(wanted), contents);
        let mut closed: BTreeMap<ServerKey, Vec<_>> = BTreeMap::new();
        for key in touched.servers() {
            closed.insert(*key, Vec::new());
        }
        for (key, address) in &difference.closed {
            closed.entry(*key).or_default().push(*address);
        }
        for (key, closed) in closed {
            self.drains.set(key, closed);
        }
        let mut steps = 0;
        let (link, statics) = (written.link, Some(written.statics));
        let done = self.run(&difference, link, statics, &rules, &mut steps)?;
        if done.refused.iter().any(|refused| refused.no_scheduler) {
            // The full sync finds out which schedulers there are.
            let error = done.refused.into_iter().next().map(|refused| refused.error);
            let error = error.unwrap_or_else(|| io::ErrorKind::NotFound.into());
            return Err(Failure::Unexpected(error));
        }
        self.note_refused(done.refused, &written.wanted);
        self.expected.set(Numbers::of(&written.wanted));
        self.written = Some(Written {
            context,
            rules,
            statics: done.statics,
            ..written
        });
        Ok(self.applied(steps))
    }

    /// Makes the steps in order. Without `statics` the rules that are installed are read.
    fn run(
        &mut self,
        difference: &Difference,
        link: u32,
        mut statics: Option<Statics>,
        rules: &statics::Context,
        count: &mut usize,
    ) -> Result<Done, Failure> {
        let mut refused = Vec::new();
        let mut rest = difference.steps.as_slice();
        while let Some(first) = rest.first() {
            let kind = Kind::of(first);
            let alike = rest.iter().take_while(|step| Kind::of(step) == kind);
            let (steps, others) = rest.split_at(alike.count());
            rest = others;
            match kind {
                Kind::Entries(set, add) => {
                    let entries: Vec<Entry> = steps.iter().filter_map(entry).collect();
                    self.kernel.change_entries(set, &entries, add)?;
                    *count += entries.len();
                }
                Kind::Addresses(add) => {
                    let ips: Vec<_> = steps.iter().filter_map(ip).collect();
                    self.kernel.change_addresses(link, &ips, add)?;
                    *count += ips.len();
                }
                Kind::Servers => {
                    refused.extend(self.kernel.change_servers(steps)?);
                    *count += steps.len();
                }
                Kind::Rules => {
                    for step in steps {
                        if let Step::Rules(contents) = step {
                            let new = statics::build(rules, contents);
                            *count += self.write_rules(statics.as_ref(), &new)?;
                            statics = Some(new);
                        }
                    }
                }
            }
        }
        Ok(Done {
            statics: statics.unwrap_or_default(),
            refused,
        })
    }

    fn write_rules(&mut self, old: Option<&Statics>, new: &Statics) -> Result<usize, ApplyError> {
        let sent = if let Some(old) = old {
            let mut index = RuleIndex::default();
            let both = (old, new);
            let document = rules::delta(&LAYOUT, &[], &mut index, both, Ruleset::default);
            if document.len() == 0 {
                return Ok(0);
            }
            self.tables.send(&document)
        } else {
            let wanted = Ruleset {
                statics: new.clone(),
                ..Ruleset::default()
            };
            self.tables.reconcile(|there| {
                let mut document = rules::full(&LAYOUT, there, &wanted);
                document.append(leftovers(&LAYOUT, &[&iptables::LAYOUT], there));
                document
            })
        };
        Ok(sent.map_err(|failure| failure.error)?.steps)
    }

    fn note_refused(&mut self, refused: Vec<RefusedServer>, wanted: &Wanted) {
        for refusal in refused {
            let Some(owner) = wanted.owner(&refusal.key) else {
                continue;
            };
            let scheduler = wanted.server(&refusal.key).map(scheduler);
            let default = &self.options.scheduler;
            let message = match scheduler.filter(|_| refusal.no_scheduler) {
                Some(asked) if asked != default => {
                    self.missing.insert(asked.clone());
                    format!("this kernel has no scheduler {asked}, so {default} is used")
                }
                Some(asked) => format!("this kernel has no scheduler {asked}"),
                None => format!("virtual server {}: {}", refusal.key, refusal.error),
            };
            self.refused.entry(owner.clone()).or_insert(message);
        }
    }

    /// Whether a Service port changes that is not as desired.
    fn concerns_refused(&self, delta: &FamilyDelta) -> bool {
        let mut keys = delta.changes.keys();
        keys.any(|key| self.refused.contains_key(key))
    }

    fn refusals(&self) -> Vec<Refusal> {
        let refused = self.refused.iter();
        refused
            .map(|(key, message)| Refusal {
                key: key.clone(),
                message: message.clone(),
            })
            .collect()
    }

    fn applied(&self, steps: usize) -> Applied {
        Applied {
            refused: self.refusals(),
            ..Applied::steps(steps)
        }
    }
}

fn scheduler(service: &Service) -> &Arc<str> {
    &service.scheduler
}

impl<T: Transport + Send> Dataplane for Ipvs<T> {
    fn apply(&mut self, work: &Work<'_>) -> Result<Applied, ApplyError> {
        // Whatever goes wrong below, we do not know any more what is in the kernel.
        let written = self.written.take();
        self.expected.forget();
        let context = self.context(work);
        if let (Scope::Delta(delta), Some(written)) = (work.scope, written)
            && !self.concerns_refused(delta)
        {
            match self.delta(written, context, work, delta) {
                Ok(applied) => return Ok(applied),
                // The lock would be waited for again.
                Err(Failure::Other(error)) if error.has_waited() => return Err(error),
                // An external change; the full sync undoes it.
                Err(_) => {}
            }
        }
        self.full(work)
    }

    fn remove(&mut self) -> Result<Applied, ApplyError> {
        self.written = None;
        self.drains.clear();
        self.expected.forget();
        removal::of_family(&mut self.kernel, &mut self.tables)
    }

    fn watch(&self) -> Vec<Box<dyn Watcher>> {
        let mut watchers = self.tables.watch();
        let (expected, excludes) = (self.expected.clone(), !self.options.excluded.is_empty());
        watchers.push(Box::new(Sentinel::new(self.family, expected, excludes)));
        watchers
    }

    /// Deletes destinations whose connections have ended.
    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, ApplyError> {
        if self.written.is_none() {
            return Ok(None);
        }
        let due = self.drains.due(now);
        if due.is_empty() {
            return Ok(self.drains.wake(now));
        }
        let mut steps = Vec::new();
        for server in due {
            let counts = self.kernel.counts(&server)?;
            let over = self.drains.count(&server, &counts, now, self.linger);
            let delete = |address| Step::DeleteDestination(server, address);
            steps.extend(over.into_iter().map(delete));
        }
        let refused = self.kernel.change_servers(&steps)?;
        if let Some(refused) = refused.into_iter().next() {
            return Err(ApplyError::Refused {
                step: format!("delete a destination of {}", refused.key),
                source: refused.error,
            });
        }
        Ok(self.drains.counted(now))
    }

    fn follows_addresses(&self) -> bool {
        true
    }
}

/// Steps that can be made in one go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Entries(Set, bool),
    Rules,
    Servers,
    Addresses(bool),
}

impl Kind {
    const fn of(step: &Step) -> Self {
        match step {
            Step::Enter(set, _) => Self::Entries(*set, true),
            Step::Leave(set, _) => Self::Entries(*set, false),
            Step::Rules(_) => Self::Rules,
            Step::Bind(_) => Self::Addresses(true),
            Step::Unbind(_) => Self::Addresses(false),
            Step::AddServer(..)
            | Step::SetServer(..)
            | Step::DeleteServer(_)
            | Step::AddDestination(..)
            | Step::Open(..)
            | Step::Close(..)
            | Step::DeleteDestination(..) => Self::Servers,
        }
    }
}

const fn entry(step: &Step) -> Option<Entry> {
    match step {
        Step::Enter(_, entry) | Step::Leave(_, entry) => Some(*entry),
        _ => None,
    }
}

const fn ip(step: &Step) -> Option<std::net::IpAddr> {
    match step {
        Step::Bind(ip) | Step::Unbind(ip) => Some(*ip),
        _ => None,
    }
}
