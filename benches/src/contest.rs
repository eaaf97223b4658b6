//! Two Services that name the same addresses, beside two that do not: what sharing costs, and how
//! the cost grows with the number of shared addresses.

use std::hint::black_box;
use std::time::{Duration, SystemTime};

use ferrule_core::desired::Desired;
use ferrule_core::facts::Settings;
use ferrule_core::issue::{Kind, ObjectKey};
use ferrule_core::model::Service;
use ferrule_core::track::{Event, Object, Tracker};
use nix::time::{ClockId, clock_gettime};

use crate::ALLOCATOR;
use crate::cluster::{many_addresses, put};
use crate::spread::Spread;

/// How often each figure is taken.
const RUNS: usize = 5;

/// Two Services with `size` ports × `size` external IPs each.
pub struct Pair {
    tracker: Tracker,
    desired: Desired,
    services: [Service; 2],
}

impl Pair {
    /// Complete first lists without any Service; the pair is yet to come. When `contested`, both
    /// name the same addresses; the second is the older one and takes them all.
    pub fn new(size: u32, contested: bool) -> Self {
        let mut tracker = Tracker::new(SystemTime::UNIX_EPOCH);
        for kind in Kind::ALL {
            tracker.on(Event::Listing(kind));
            tracker.on(Event::Listed(kind));
        }
        let mut pair = Self {
            tracker,
            desired: Desired::new(Settings::default()),
            services: [
                many_addresses(1, 0, size),
                many_addresses(0, if contested { 0 } else { size }, size),
            ],
        };
        pair.update();
        pair
    }

    /// One arrives, then the other.
    pub fn arrive(&mut self) {
        for service in self.services.clone() {
            self.tracker.on(put(Object::Service(service)));
            self.update();
        }
    }

    /// The second goes, and with it what it holds.
    pub fn leave(&mut self) {
        let key = ObjectKey::Service(self.services[1].key.clone());
        let issues = Vec::new();
        self.tracker.on(Event::Gone { key, issues });
        self.update();
    }

    fn update(&mut self) {
        let changes = self.tracker.take().expect("something changed");
        black_box(self.desired.update(&self.tracker, changes));
        black_box(self.desired.issues());
    }
}

/// What one run gives.
struct Run {
    arrive: Duration,
    leave: Duration,
    /// Bytes held once both are there.
    bytes: usize,
}

fn measure(size: u32, contested: bool) -> Run {
    let mut pair = Pair::new(size, contested);
    let empty = ALLOCATOR.current_usage();
    let arrive = worked(|| pair.arrive());
    let bytes = ALLOCATOR.current_usage() - empty;
    let leave = worked(|| pair.leave());
    Run {
        arrive,
        leave,
        bytes,
    }
}

/// How long a processor works for something, whatever else the machine does.
fn worked(work: impl FnOnce()) -> Duration {
    let now = || {
        let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
        time.map(Duration::from).expect("Linux has this clock")
    };
    let start = now();
    work();
    now().saturating_sub(start)
}

/// Prints the table.
pub fn run(sizes: &[u32]) {
    println!(
        "\nTwo Services of N ports × N external IPs, event → delta and issues; {RUNS} runs.\n"
    );
    println!(
        "| N | both arrive, own addresses | the same addresses | ratio | one leaves, own | the same | bytes per address, own | the same |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|");
    for &size in sizes {
        let [own, same] = [false, true]
            .map(|contested| -> Vec<Run> { (0..RUNS).map(|_| measure(size, contested)).collect() });
        let spread =
            |runs: &[Run], part: fn(&Run) -> Duration| Spread::new(runs.iter().map(part).collect());
        let arrive = [&own, &same].map(|runs| spread(runs, |run| run.arrive));
        let leave = [&own, &same].map(|runs| spread(runs, |run| run.leave));
        let bytes = |runs: &[Run]| runs[0].bytes / (2 * size * size) as usize;
        println!(
            "| {size} | {} | {} | {:.2} | {} | {} | {} | {} |",
            arrive[0],
            arrive[1],
            arrive[1].median().as_secs_f64() / arrive[0].median().as_secs_f64(),
            leave[0],
            leave[1],
            bytes(&own),
            bytes(&same),
        );
    }
}
