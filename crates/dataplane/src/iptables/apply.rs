//! Sends steps to the kernel, and remembers what is there.
//!
//! What a delta needs to know about the rest is little: the rules that facts about the node decide,
//! and where in shared chains each Service port's rules are. The rest is not remembered but read
//! back when there is doubt.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use ferrule_core::desired::{Desired, FamilyDelta};
use ferrule_core::model::{Family, PortKey};
use ferrule_kernel::nfacct::Nfacct;
use ferrule_kernel::xt::{Flavour, Xt, XtError};

use super::canary::Canary;
use super::census::Census;
use super::diff::{self, Redrawn};
use super::isolate::{LastGood, Refused};
use super::listen::is_about_us;
use super::ruleset::{Drawing, Roster, Ruleset, Statics};
use super::statics::{self, Ground, HostFacts};
use super::tables::{Failure, Sent, Tables, unreadable};
use super::{Options, cleanup, names, render};
use crate::host::Host;
use crate::{
    Applied, ApplyError, Dataplane, Listener, Refusal, Scope, Watcher, Work, kernel_family,
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
    ground: Ground,
    statics: Statics,
    roster: Roster,
    census: Census,
    /// Rules that were written last.
    fresh: Census,
}

impl Iptables {
    /// Opens a conversation in the network namespace of the calling thread.
    ///
    /// # Errors
    /// There is no iptables for this family (`NotFound`), or it does not work here.
    pub fn open(family: Family, options: Options) -> io::Result<Self> {
        let xt = Xt::open(kernel_family(family)).map_err(|error| {
            let kind = match &error {
                XtError::Unusable { source, .. } => source.kind(),
                XtError::Missing { .. } => io::ErrorKind::Unsupported,
                XtError::Locked { .. } | XtError::Refused { .. } => io::ErrorKind::Other,
            };
            io::Error::new(kind, error)
        })?;
        Ok(Self::new(family, options, xt))
    }

    /// Programs through this conversation.
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
            tables: Tables::new(family, xt),
            host,
            abilities,
            written: None,
            refused: BTreeMap::new(),
        }
    }

    /// The same by iptables' programs alone, also where the tables could be spoken to directly.
    #[must_use]
    pub fn by_programs(mut self) -> Self {
        self.tables = self.tables.by_programs();
        self
    }

    /// Which of the two flavours of iptables is used.
    pub const fn flavour(&self) -> Flavour {
        self.tables.xt().flavour()
    }

    fn ground(&self, desired: &Desired, local: &[IpAddr]) -> Ground {
        let facts = desired.facts(self.family);
        let endpoints = desired.totals(self.family).listed;
        let (family, options, host) = (self.family, self.options, self.abilities);
        Ground::new(family, options, facts, host, endpoints, local)
    }

    fn whole(&mut self, work: &Work<'_>, mut last_good: LastGood) -> Result<Applied, ApplyError> {
        let counters = make_counters();
        (self.abilities.count_invalid, self.abilities.count_localhost) = counters;
        // Another chance for everybody. What somebody had instead is older than any delta.
        for (key, refused) in std::mem::take(&mut self.refused) {
            last_good.remove(&key);
            last_good.extend(refused.instead.map(|instead| (key, instead)));
        }
        let result = match self.settle(work, &last_good) {
            // The kernel may have counters but no way to use them in a rule.
            Err(failure) if failure.counters && self.is_counting() => {
                self.abilities.count_invalid = false;
                self.abilities.count_localhost = false;
                self.refused.clear();
                self.settle(work, &last_good)
            }
            result => result,
        };
        result.map_err(|failure| refused(failure.error))
    }

    pub(super) const fn is_counting(&self) -> bool {
        self.abilities.count_invalid || self.abilities.count_localhost
    }

    fn settle(&mut self, work: &Work<'_>, last_good: &LastGood) -> Result<Applied, Failure> {
        let ground = self.ground(work.desired, work.local);
        if ground.localhost {
            let set = self.host.route_localnet();
            set.map_err(|error| unreadable(io::Error::other(error)))?;
        }
        let (sent, wanted) = self.isolating(work.desired, &ground, last_good)?;
        self.written = Some(Written {
            ground,
            roster: Roster::of(&wanted),
            census: Census::of(&wanted),
            fresh: sent.rules,
            statics: wanted.statics,
        });
        Ok(self.applied(sent.steps))
    }

    /// Makes the tables be so; what it took.
    pub(super) fn program(&mut self, wanted: &Ruleset) -> Result<Sent, Failure> {
        self.tables.settle(|there| diff::whole(there, wanted))
    }

    /// Whether something changes about which our picture differs from what was told.
    fn concerns_refused(&self, delta: &FamilyDelta) -> bool {
        let mut keys = delta.changes.keys();
        keys.any(|key| self.refused.contains_key(key))
    }

    fn delta(
        &mut self,
        mut written: Written,
        ground: Ground,
        desired: &Desired,
        delta: &FamilyDelta,
    ) -> Result<Applied, XtError> {
        let draw = |side: &Option<std::sync::Arc<_>>| {
            let exposure = side.as_deref();
            exposure.map_or_else(Drawing::default, |exposure| {
                render::exposure(exposure, &ground)
            })
        };
        let redrawn: Vec<Redrawn> = delta
            .changes
            .iter()
            .map(|(key, change)| Redrawn {
                key: key.clone(),
                before: draw(&change.before),
                after: draw(&change.after),
            })
            .collect();
        let statics = statics::build(&ground);
        let all = || self.wanted(desired, &ground);
        let both = (&written.statics, &statics);
        let document = diff::delta(&redrawn, &mut written.roster, both, all);
        let sent = self.tables.send(&document);
        let sent = sent.map_err(|failure| failure.error)?;
        let before = Census::of_statics(&written.statics);
        let census = written.census.with(before, Census::of_statics(&statics));
        let census = redrawn.iter().fold(census, |census, change| {
            let before = Census::of_drawing(&change.before);
            census.with(before, Census::of_drawing(&change.after))
        });
        self.written = Some(Written {
            ground,
            statics,
            census,
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
            rules: written.map_or_else(Vec::new, |all| all.census.told(all.fresh)),
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
        let ground = self.ground(work.desired, work.local);
        let mut last_good = LastGood::new();
        if let (Scope::Delta(delta), Some(written)) = (work.scope, written)
            && written.ground.draws_like(&ground)
            && !self.concerns_refused(delta)
        {
            match self.delta(written, ground, work.desired, delta) {
                Ok(applied) => return Ok(applied),
                // Whoever has the lock would keep us waiting for it again.
                Err(error @ XtError::Locked { .. }) => return Err(refused(error)),
                // Somebody changed our chains, or a rule cannot be: the whole tells which.
                Err(_) => last_good = before(delta),
            }
        }
        self.whole(work, last_good)
    }

    /// Removes our rules and chains, whichever of the two programs made them. What belongs to
    /// kubelet and to others stays.
    fn remove(&mut self) -> Result<Applied, ApplyError> {
        self.written = None;
        let sent = self.tables.settle(cleanup::leftovers);
        let sent = sent.map_err(|failure| refused(failure.error))?;
        Ok(Applied::steps(sent.steps))
    }

    fn watch(&self) -> io::Result<Vec<Box<dyn Watcher>>> {
        // Where the kernel notifies nobody, and for what happened before anybody listened.
        let directly = self.tables.port().is_some();
        let canary = Canary::new(self.family, self.tables.xt().clone(), directly);
        let mut watchers: Vec<Box<dyn Watcher>> = vec![Box::new(canary)];
        if let Some(port) = self.tables.port() {
            let tables = &["mangle", "filter", "nat"];
            let listener = Listener::open(self.family, port, tables, is_about_us)?;
            watchers.push(Box::new(listener));
        }
        Ok(watchers)
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

pub(super) fn refused(error: XtError) -> ApplyError {
    let step = match &error {
        XtError::Locked { .. } => return ApplyError::Locked(io::Error::other(error)),
        XtError::Unusable { program, .. }
        | XtError::Missing { program, .. }
        | XtError::Refused { program, .. } => program.clone(),
    };
    ApplyError::Refused {
        step,
        source: io::Error::other(error),
    }
}
