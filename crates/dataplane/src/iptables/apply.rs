//! Programs the tables, and remembers what a delta needs.
//!
//! What a delta needs to know about the rest is little: the rules that facts about the node decide,
//! and where in shared chains each Service port's rules are. The rest is not remembered but read
//! again in a full sync.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use ferrule_core::desired::{Desired, FamilyDelta};
use ferrule_core::model::{Family, PortKey};
use ferrule_kernel::memory;
use ferrule_kernel::nfacct::Nfacct;
use ferrule_kernel::nft::Nft;
use ferrule_kernel::xt::{Flavour, Xt};

use super::isolate::{LastGood, Refused};
use super::layout::LAYOUT;
use super::statics::{self, HostFacts, RenderContext};
use super::{Options, names, probe, render};
use crate::host::Host;
use crate::xtables::counts::RuleCounts;
use crate::xtables::diff::{self, Change};
use crate::xtables::error::{Failure, TablesError};
use crate::xtables::layout::Layout;
use crate::xtables::removal::{leftovers, removal};
use crate::xtables::ruleset::{PortRules, RuleIndex, Ruleset, Statics};
use crate::xtables::tables::{Sent, Tables};
use crate::{
    Applied, ApplyError, Dataplane, Refusal, Scope, Watcher, Work, Writers, ipvs, xtables,
};

/// Programs one family by iptables.
#[derive(Debug)]
pub struct Iptables {
    pub(super) family: Family,
    options: Options,
    pub(super) tables: Tables,
    host: Host,
    abilities: HostFacts,
    /// `None` when we do not know what is in the kernel.
    written: Option<Written>,
    /// Service ports that are left out, and why.
    pub(super) refused: BTreeMap<PortKey, Refused>,
}

/// What a delta needs to know about the rest.
#[derive(Debug)]
struct Written {
    context: RenderContext,
    statics: Statics,
    index: RuleIndex,
    counts: RuleCounts,
    /// Rules that were written last.
    fresh: RuleCounts,
}

impl Iptables {
    /// Opens iptables in the network namespace of the calling thread.
    ///
    /// # Errors
    /// There is no iptables for this family (`NotFound`), it does not work here, or the kernel lacks
    /// what the rules need (`Unsupported`).
    pub fn open(family: Family, options: Options) -> io::Result<Self> {
        let xt = xtables::open(family).map_err(|error| io::Error::new(error.kind(), error))?;
        let opened = Self::new(family, options, xt);
        if opened.flavour() == Flavour::Nft {
            probe::check(&mut Nft::open()?, family, options, opened.abilities)?;
        }
        Ok(opened)
    }

    /// Programs by this iptables.
    pub fn new(family: Family, options: Options, xt: Xt) -> Self {
        let host = Host::default();
        let abilities = HostFacts {
            random_fully: xt.has_random_fully(),
            drop_invalid: !host.is_tcp_liberal(),
            count_invalid: false,
            count_localhost: false,
        };
        Self {
            family,
            options,
            tables: Tables::new(family, &LAYOUT, xt),
            host,
            abilities,
            written: None,
            refused: BTreeMap::new(),
        }
    }

    /// The same as one of these writers.
    #[must_use]
    pub fn beside(mut self, writers: &Writers) -> Self {
        self.tables.join(writers);
        self
    }

    /// The same by iptables' programs alone, also where the tables could be written directly.
    #[must_use]
    pub fn by_programs(mut self) -> Self {
        self.tables = self.tables.by_programs();
        self
    }

    /// Which of the two flavours of iptables is used.
    pub const fn flavour(&self) -> Flavour {
        self.tables.xt().flavour()
    }

    fn context(&self, desired: &Desired, local: &[IpAddr]) -> RenderContext {
        let facts = desired.facts(self.family);
        let endpoints = desired.totals(self.family).listed;
        let (family, options, host) = (self.family, self.options, self.abilities);
        RenderContext::new(family, options, facts, host, endpoints, local)
    }

    fn full(&mut self, work: &Work<'_>, mut last_good: LastGood) -> Result<Applied, ApplyError> {
        let counters = make_counters();
        (self.abilities.count_invalid, self.abilities.count_localhost) = counters;
        // Everything is tried again. What a port had instead is older than any delta.
        for (key, refused) in std::mem::take(&mut self.refused) {
            last_good.remove(&key);
            last_good.extend(refused.instead.map(|instead| (key, instead)));
        }
        let context = self.context(work.desired, work.local);
        if context.localhost {
            let set = self.host.route_localnet();
            set.map_err(|error| ApplyError::Refused {
                step: "route_localnet".to_owned(),
                source: io::Error::other(error),
            })?;
        }
        let result = match self.reconcile(work, &last_good) {
            // The kernel may have counters but no way to use them in a rule.
            Err(failure) if failure.counters && self.is_counting() => {
                self.abilities.count_invalid = false;
                self.abilities.count_localhost = false;
                self.refused.clear();
                self.reconcile(work, &last_good)
            }
            result => result,
        };
        result.map_err(|failure| failure.error.into())
    }

    pub(super) const fn is_counting(&self) -> bool {
        self.abilities.count_invalid || self.abilities.count_localhost
    }

    fn reconcile(&mut self, work: &Work<'_>, last_good: &LastGood) -> Result<Applied, Failure> {
        let context = self.context(work.desired, work.local);
        let (sent, wanted) = self.isolating(work.desired, &context, last_good)?;
        self.written = Some(Written {
            context,
            index: RuleIndex::of(&wanted),
            counts: RuleCounts::of(&wanted),
            fresh: sent.rules,
            statics: wanted.statics,
        });
        Ok(self.applied(sent.steps))
    }

    /// Makes the tables have these rules.
    pub(super) fn program(&mut self, wanted: &Ruleset) -> Result<Sent, Failure> {
        self.tables.reconcile(|there| {
            let mut document = diff::full(&LAYOUT, there, wanted);
            document.append(leftovers(&LAYOUT, &[&ipvs::LAYOUT], there));
            document
        })
    }

    /// Whether a Service port changes that is not programmed as desired.
    fn concerns_refused(&self, delta: &FamilyDelta) -> bool {
        let mut keys = delta.changes.keys();
        keys.any(|key| self.refused.contains_key(key))
    }

    fn delta(
        &mut self,
        mut written: Written,
        context: RenderContext,
        desired: &Desired,
        delta: &FamilyDelta,
    ) -> Result<Applied, TablesError> {
        let rendered = |side: &Option<std::sync::Arc<_>>| {
            let exposure = side.as_deref();
            exposure.map_or_else(PortRules::default, |exposure| {
                render::exposure(exposure, &context)
            })
        };
        let changes: Vec<Change> = delta
            .changes
            .iter()
            .map(|(key, change)| Change {
                key: key.clone(),
                before: rendered(&change.before),
                after: rendered(&change.after),
            })
            .collect();
        let statics = statics::build(&context);
        let all = || self.wanted(desired, &context);
        let both = (&written.statics, &statics);
        let document = diff::delta(&LAYOUT, &changes, &mut written.index, both, all);
        let sent = self.tables.send(&document);
        let sent = sent.map_err(|failure| failure.error)?;
        let before = RuleCounts::of_statics(&written.statics);
        let counts = written
            .counts
            .with(before, RuleCounts::of_statics(&statics));
        let counts = changes.iter().fold(counts, |counts, change| {
            let before = RuleCounts::of_port(&change.before);
            counts.with(before, RuleCounts::of_port(&change.after))
        });
        self.written = Some(Written {
            context,
            statics,
            counts,
            fresh: sent.rules,
            ..written
        });
        Ok(self.applied(sent.steps))
    }

    /// A success of so many steps, and how things are since.
    fn applied(&self, steps: usize) -> Applied {
        let written = self.written.as_ref();
        let refused = self.refused.iter();
        Applied {
            steps,
            kept: 0,
            rules: written.map_or_else(Vec::new, |all| all.counts.reported(all.fresh)),
            refused: refused
                .map(|(key, refused)| Refusal {
                    key: key.clone(),
                    message: refused.message.clone(),
                })
                .collect(),
        }
    }
}

impl Dataplane for Iptables {
    fn apply(&mut self, work: &Work<'_>) -> Result<Applied, ApplyError> {
        // Whatever goes wrong below, we do not know any more what is in the kernel.
        let written = self.written.take();
        let context = self.context(work.desired, work.local);
        let mut last_good = LastGood::new();
        if let (Scope::Delta(delta), Some(written)) = (work.scope, written)
            && written.context.renders_like(&context)
            && !self.concerns_refused(delta)
        {
            match self.delta(written, context, work.desired, delta) {
                Ok(applied) => return Ok(applied),
                // The lock would be waited for again.
                Err(error) if error.is_locked() => return Err(error.into()),
                // An external change, or a rule that is refused: the full sync finds out which.
                Err(_) => last_good = before(delta),
            }
        }
        // What reading the cluster left free is not what this will need.
        memory::trim();
        let applied = self.full(work, last_good);
        // Nothing as large as this happens again soon.
        memory::trim();
        applied
    }

    /// Removes our rules and chains, whichever program made them. Chains of kubelet and of other
    /// programs stay.
    fn remove(&mut self) -> Result<Applied, ApplyError> {
        self.written = None;
        // Rules of mode ipvs jump to the same chains: neither can be removed without the other.
        let layouts: [&Layout; 2] = [&LAYOUT, &ipvs::LAYOUT];
        let sent = self.tables.reconcile(|there| removal(&layouts, there));
        let sent = sent.map_err(|failure| failure.error)?;
        Ok(Applied::steps(sent.steps))
    }

    fn watch(&mut self) -> Vec<Box<dyn Watcher>> {
        self.tables.watch()
    }
}

/// Makes the counters that rules may use; which of them there are, for packets that belong to no
/// connection and for localhost. They are a nicety: without them rules do not count.
pub(super) fn make_counters() -> (bool, bool) {
    let Ok(mut nfacct) = Nfacct::open() else {
        return (false, false);
    };
    let mut ensure = |name| nfacct.ensure(name).is_ok();
    (
        ensure(names::INVALID_COUNTER),
        ensure(names::LOCALHOST_COUNTER),
    )
}

/// Service ports as they were before the delta.
fn before(delta: &FamilyDelta) -> LastGood {
    let changes = delta.changes.iter();
    changes
        .filter_map(|(key, change)| Some((key.clone(), change.before.clone()?)))
        .collect()
}
