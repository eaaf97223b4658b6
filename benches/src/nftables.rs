//! Desired state → nftables, committed by the real kernel, in networks of their own.
//!
//! Everything at once beside the least that the kernel must receive, one changed endpoint from
//! event to commit while changes are listened to, and a start over what is already right. Sizes take turns, so that whatever
//! else the machine does falls on all of them alike.

use std::error::Error;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

use ferrule_core::desired::Desired;
use ferrule_core::facts::Settings;
use ferrule_core::model::Family;
use ferrule_core::track::{Event, Object, Tracker};
use ferrule_dataplane::nftables::{Nftables, Options};
use ferrule_dataplane::{Dataplane, Scope, Watcher, Work};
use ferrule_kernel::netns;
use ferrule_kernel::nft::Nft;
use ferrule_kernel::socket::Transport;
use nix::time::{ClockId, clock_gettime};

use crate::cluster::{events_with, put, slice_with};
use crate::floor;
use crate::spread::{Spread, human};

/// The number of endpoints of each Service.
pub const ENDPOINTS: u32 = 2;
/// In how many turns changes are made.
const ROUNDS: u32 = 20;

/// What a measurement comes to, or why there is none.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How much is measured.
pub struct Extent {
    /// Cluster sizes.
    pub sizes: &'static [u32],
    /// How often everything is programmed.
    pub wholes: u32,
    /// How many changes are made in each cluster.
    pub changes: u32,
}

/// Prints the tables.
pub fn run(extent: &Extent) -> Outcome<()> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    println!(
        "Desired → committed, {ENDPOINTS} endpoints per Service, Linux {}; median (least–most).\n",
        kernel.trim()
    );
    wholes(extent)?;
    let mut worlds = extent
        .sizes
        .iter()
        .map(|&services| World::open(services, extent.wholes))
        .collect::<Outcome<Vec<_>>>()?;
    changes(&mut worlds, extent.changes)?;
    restarts(&mut worlds)
}

/// Prints the table of starts alone.
pub fn only_restarts(extent: &Extent) -> Outcome<()> {
    let worlds = extent.sizes.iter();
    let worlds = worlds.map(|&services| World::open(services, extent.wholes));
    restarts(&mut worlds.collect::<Outcome<Vec<_>>>()?)
}

/// The whole table, and the floor, in turns.
fn wholes(extent: &Extent) -> Outcome<()> {
    println!(
        "Everything at once, {} runs; the ratio is that of processor times:\n",
        extent.wholes
    );
    println!(
        "| Services | ferrule | its processor time | the kernel's floor | its processor time | ratio |"
    );
    println!("|---:|---:|---:|---:|---:|---:|");
    let open = || -> std::io::Result<_> {
        let dataplane = Nftables::open(Family::V4, Options::default())?;
        Ok((Nft::open()?, dataplane))
    };
    let (mut nft, mut dataplane) = netns::isolated(open)??;
    for &services in extent.sizes {
        let (_, desired) = decide(services);
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        for _ in 0..extent.wholes {
            floor.push(stopped(|| Ok(floor::load(&mut nft, services)?))?);
            floor::delete(&mut nft)?;
            settle(services);
            ours.push(stopped(|| {
                program(&mut dataplane, &desired, Scope::Full).map(drop)
            })?);
            dataplane.remove()?;
            settle(services);
        }
        let (ours, our_work) = both(ours);
        let (floor, floor_work) = both(floor);
        println!(
            "| {services} | {ours} | {} | {floor} | {} | {:.2} |",
            human(our_work.median()),
            human(floor_work.median()),
            our_work.median().as_secs_f64() / floor_work.median().as_secs_f64(),
        );
    }
    println!();
    Ok(())
}

/// One changed endpoint, from event to commit.
fn changes(worlds: &mut [World], changes: u32) -> Outcome<()> {
    let sizes: Vec<_> = worlds.iter().map(|world| world.services).collect();
    let mut tables = [Times::new(&sizes), Times::new(&sizes)];
    for round in 0..ROUNDS {
        let turns = round * (changes / ROUNDS)..(round + 1) * (changes / ROUNDS);
        for (at, world) in worlds.iter_mut().enumerate() {
            let [addresses, counts] = &mut tables;
            addresses.ours[at].extend(world.addresses(turns.clone())?);
            counts.ours[at].extend(world.counts(turns.clone())?);
            let services = world.services;
            let floor = &mut world.floor;
            addresses.floor[at].extend(floor::replacements(floor, services, turns.clone())?);
            counts.floor[at].extend(floor::growth(floor, services, turns.clone())?);
        }
    }
    let [addresses, counts] = tables;
    addresses.print(&format!("One address replaced, {changes} times"), &sizes);
    let twice = 2 * changes;
    counts.print(&format!("One endpoint more or less, {twice} times"), &sizes);
    Ok(())
}

/// Timings by size.
struct Times {
    ours: Vec<Vec<Duration>>,
    floor: Vec<Vec<Duration>>,
}

impl Times {
    fn new(sizes: &[u32]) -> Self {
        let empty = vec![Vec::new(); sizes.len()];
        Self {
            ours: empty.clone(),
            floor: empty,
        }
    }

    fn print(self, title: &str, sizes: &[u32]) {
        println!("{title}, event in → committed:\n");
        println!("| Services | ferrule | p99 | the kernel's floor | p99 |");
        println!("|---:|---:|---:|---:|---:|");
        let mut medians = Vec::new();
        for ((services, ours), floor) in sizes.iter().zip(self.ours).zip(self.floor) {
            let (ours, floor) = (Spread::new(ours), Spread::new(floor));
            println!(
                "| {services} | {ours} | {} | {floor} | {} |",
                human(ours.percentile(99)),
                human(floor.percentile(99)),
            );
            medians.push(ours.median().as_secs_f64());
        }
        if let ([first, .., last], [least, .., most]) = (&medians[..], sizes) {
            println!("\n{:.2}× from {least} to {most} Services.\n", last / first);
        }
    }
}

/// Starts over what is already right.
fn restarts(worlds: &mut [World]) -> Outcome<()> {
    println!("Start over unchanged rules, with everything read back and compared:\n");
    println!("| Services | time | writes |");
    println!("|---:|---:|---:|");
    for world in worlds {
        // What the changes before left over is tidied up by the next look at everything.
        program(&mut world.dataplane, &world.desired, Scope::Full)?;
        let mut times = Vec::new();
        let mut steps = 0;
        for mut fresh in world.fresh.drain(..) {
            let start = Instant::now();
            steps += program(&mut fresh, &world.desired, Scope::Full)?;
            times.push(start.elapsed());
        }
        println!("| {} | {} | {steps} |", world.services, Spread::new(times));
    }
    Ok(())
}

/// A cluster, programmed into a network of its own, and the floor in another one.
struct World {
    services: u32,
    tracker: Tracker,
    desired: Desired,
    dataplane: Nftables,
    /// Conversations that know nothing yet, as after a start.
    fresh: Vec<Nftables>,
    floor: Nft,
}

impl World {
    fn open(services: u32, fresh: u32) -> Outcome<Self> {
        let (tracker, desired) = decide(services);
        // The sockets keep their networks.
        let open = || Nftables::open(Family::V4, Options::default());
        let (dataplane, fresh, watchers) = netns::isolated(|| -> Outcome<_> {
            let mut dataplane = open()?;
            program(&mut dataplane, &desired, Scope::Full)?;
            let fresh = (0..fresh).map(|_| open()).collect::<Result<Vec<_>, _>>()?;
            let watchers = dataplane.watch();
            Ok((dataplane, fresh, watchers))
        })??;
        watchers.into_iter().for_each(listen);
        let mut floor = netns::isolated(Nft::open)??;
        floor::load(&mut floor, services)?;
        let mut world = Self {
            services,
            tracker,
            desired,
            dataplane,
            fresh,
            floor,
        };
        // The chain for one endpoint more is made once and then stays.
        world.counts(0..1)?;
        Ok(world)
    }

    /// From event to commit.
    fn receive(&mut self, event: Event) -> Outcome<Duration> {
        let start = Instant::now();
        self.tracker.on(event);
        let Some(changes) = self.tracker.take() else {
            return Ok(start.elapsed());
        };
        let delta = self.desired.update(&self.tracker, changes);
        let scope = Scope::Delta(&delta.families[Family::V4]);
        program(&mut self.dataplane, &self.desired, scope)?;
        Ok(start.elapsed())
    }

    fn edition(&self, turn: u32, edition: u32) -> Event {
        let random = u64::from(turn + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let n = u32::try_from(random % u64::from(self.services)).expect("below services");
        put(Object::Slice(slice_with(n, edition, ENDPOINTS)))
    }

    fn addresses(&mut self, turns: Range<u32>) -> Outcome<Vec<Duration>> {
        turns
            .map(|turn| self.receive(self.edition(turn, 2 + 2 * turn)))
            .collect()
    }

    /// One endpoint more and the same one less.
    fn counts(&mut self, turns: Range<u32>) -> Outcome<Vec<Duration>> {
        let mut times = Vec::new();
        for turn in turns {
            // So that only the number changes from here on.
            self.receive(self.edition(turn, 0))?;
            times.push(self.receive(self.edition(turn, 1))?);
            times.push(self.receive(self.edition(turn, 0))?);
        }
        Ok(times)
    }
}

/// Listens as the program does: the kernel then describes every change, which has its price.
fn listen(mut watcher: Box<dyn Watcher>) {
    std::thread::spawn(move || while watcher.changed(Duration::from_hours(1)).is_ok() {});
}

fn decide(services: u32) -> (Tracker, Desired) {
    let mut tracker = Tracker::new(SystemTime::UNIX_EPOCH);
    let mut desired = Desired::new(Settings::default());
    for event in events_with(services, ENDPOINTS) {
        tracker.on(event);
    }
    let changes = tracker.take().expect("the first lists are complete");
    desired.update(&tracker, changes);
    (tracker, desired)
}

/// The number of steps.
pub fn program<T: Transport + Send>(
    dataplane: &mut Nftables<T>,
    desired: &Desired,
    scope: Scope<'_>,
) -> Outcome<usize> {
    let work = Work {
        desired,
        scope,
        local: &[],
    };
    Ok(dataplane.apply(&work)?.steps)
}

/// How long something takes, and how much of that a processor worked for it. The second is the
/// same whatever else the machine does: what the kernel does for us, it does in our thread.
pub fn stopped(work: impl FnOnce() -> Outcome<()>) -> Outcome<(Duration, Duration)> {
    let worked = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
    let (start, before) = (Instant::now(), worked()?);
    work()?;
    Ok((start.elapsed(), worked()?.saturating_sub(before)))
}

/// Both as spreads.
pub fn both(times: Vec<(Duration, Duration)>) -> (Spread, Spread) {
    let (elapsed, worked) = times.into_iter().unzip();
    (Spread::new(elapsed), Spread::new(worked))
}

/// The kernel frees a deleted table behind our back; without a pause that would fall on whoever
/// is measured next.
pub fn settle(objects: u32) {
    std::thread::sleep(Duration::from_micros(20) * objects);
}
