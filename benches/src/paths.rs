//! The paths whose instructions are counted: one run of each, the same every time.
//!
//! A path is prepared first; only what happens in [`measured`] counts. The kernel's part is played
//! by one that agrees to everything, so what is counted is ours alone.

use std::hint::black_box;
use std::time::SystemTime;

use ferrule_core::desired::Desired;
use ferrule_core::facts::Settings;
use ferrule_core::model::Family;
use ferrule_core::track::{Object, Tracker};
use ferrule_dataplane::nftables::{Nftables, Options};
use ferrule_dataplane::{Dataplane, Scope, Work};
use ferrule_kernel::nft::Nft;
use ferrule_kernel::recorder::{Recorder, Script};

use crate::cluster::{events, put, slice};
use crate::contest::Pair;
use crate::sources::Guarded;

/// Services in each path's cluster.
const SERVICES: u32 = 1_000;
/// Source ranges of the one Service that has any.
const RANGES: u32 = 20_000;
/// Changes that a path about changes counts.
const CHANGES: u32 = 200;

/// All paths by name, in the order of the flow.
pub const ALL: [(&str, fn()); 7] = [
    ("core: first lists", first_lists),
    ("core: changed slices", changed_slices),
    ("core: contested addresses", contested_addresses),
    ("nftables: everything", nftables_everything),
    ("nftables: changed slices", nftables_changed_slices),
    ("nftables: source ranges", nftables_source_ranges),
    (
        "nftables: changed source ranges",
        nftables_changed_source_ranges,
    ),
];

/// What counts. The name is the one by which a profiler finds it.
#[inline(never)]
pub fn measured<T>(path: impl FnOnce() -> T) -> T {
    black_box(path())
}

/// A cluster, as far as it is known.
struct Known {
    tracker: Tracker,
    desired: Desired,
}

impl Known {
    fn nothing() -> Self {
        Self {
            tracker: Tracker::new(SystemTime::UNIX_EPOCH),
            desired: Desired::new(Settings::default()),
        }
    }

    fn everything() -> Self {
        let mut known = Self::nothing();
        known.hear_lists();
        known
    }

    fn hear_lists(&mut self) {
        for event in events(SERVICES) {
            self.tracker.on(event);
        }
        let changes = self.tracker.take().expect("the lists are complete");
        self.desired.update(&self.tracker, changes);
    }

    /// Receives one slice that changed, and programs that.
    fn hear_change(&mut self, n: u32, dataplane: Option<&mut Nftables<Recorder>>) {
        // Every other change adds an endpoint, the others replace one.
        let object = Object::Slice(slice(n * 3 % SERVICES, 2 + n));
        self.tracker.on(put(object));
        let changes = self.tracker.take().expect("something changed");
        let delta = self.desired.update(&self.tracker, changes);
        if let Some(dataplane) = dataplane {
            let scope = Scope::Delta(&delta.families[Family::V4]);
            program(dataplane, &self.desired, scope);
        }
    }
}

fn nftables() -> Nftables<Recorder> {
    let kernel = Recorder::new(Script::default());
    Nftables::new(Family::V4, Options::default(), Nft::new(kernel))
}

fn program(dataplane: &mut Nftables<Recorder>, desired: &Desired, scope: Scope<'_>) {
    let work = Work {
        desired,
        scope,
        local: &[],
    };
    let applied = dataplane.apply(&work);
    applied.expect("a kernel that agrees to everything");
}

fn first_lists() {
    let mut known = Known::nothing();
    measured(|| known.hear_lists());
}

fn changed_slices() {
    let mut known = Known::everything();
    measured(|| (0..CHANGES).for_each(|n| known.hear_change(n, None)));
}

/// Two Services of 60 ports × 60 external IPs, all of which they share.
fn contested_addresses() {
    let mut pair = Pair::new(60, true);
    measured(|| {
        pair.arrive();
        pair.leave();
    });
}

fn nftables_everything() {
    let known = Known::everything();
    let mut dataplane = nftables();
    measured(|| program(&mut dataplane, &known.desired, Scope::Full));
}

fn nftables_changed_slices() {
    let mut known = Known::everything();
    let mut dataplane = nftables();
    program(&mut dataplane, &known.desired, Scope::Full);
    measured(|| (0..CHANGES).for_each(|n| known.hear_change(n, Some(&mut dataplane))));
}

fn nftables_source_ranges() {
    let cluster = Guarded::new(1, RANGES);
    let mut dataplane = nftables();
    measured(|| program(&mut dataplane, &cluster.desired, Scope::Full));
}

/// Ten times another range in the place of one.
fn nftables_changed_source_ranges() {
    let mut cluster = Guarded::new(1, RANGES);
    let mut dataplane = nftables();
    program(&mut dataplane, &cluster.desired, Scope::Full);
    measured(|| {
        for turn in 0..10 {
            let changed = cluster.change_range(turn, &mut dataplane);
            changed.expect("a kernel that agrees to everything");
        }
    });
}
