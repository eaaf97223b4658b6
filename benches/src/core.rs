//! Objects → desired: the whole cluster at once, and one changed slice.

use std::hint::black_box;
use std::time::{Duration, Instant, SystemTime};

use ferrule_core::desired::Desired;
use ferrule_core::facts::Settings;
use ferrule_core::track::{Object, Tracker};

use crate::ALLOCATOR;
use crate::cluster::{ENDPOINTS, events, put, slice};
use crate::spread::{Spread, human};

/// Prints the tables.
pub fn run(sizes: &[u32], colds: usize, changes: u32) {
    println!("Objects → desired, {ENDPOINTS} endpoints per Service; median (least–most).");
    println!("Cold: {colds} runs. One slice: {changes} changes of Services picked at random.\n");
    println!(
        "| Services | cold | per Service | one address replaced | p99 | one endpoint more or less | p99 |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    let colds: Vec<Spread> = sizes
        .iter()
        .map(|&n| Spread::new((0..colds).map(|_| cold(n)).collect()))
        .collect();
    let (addresses, counts) = one_slice(sizes, changes);
    for (((services, cold), address), count) in
        sizes.iter().zip(&colds).zip(&addresses).zip(&counts)
    {
        println!(
            "| {services} | {cold} | {} | {address} | {} | {count} | {} |",
            human(cold.median() / *services),
            human(address.percentile(99)),
            human(count.percentile(99)),
        );
    }
    if let ([first, .., last], [least, .., most]) = (&addresses[..], sizes) {
        println!(
            "\nOne address replaced: {:.2}× from {least} to {most} Services (medians, same run).",
            last.median().as_secs_f64() / first.median().as_secs_f64(),
        );
    }
    memory(10_000);
    crate::contest::run(&[40, 80, 120, 200]);
}

/// Changes of one slice in clusters of all sizes, taken in turns so that whatever else the machine
/// does falls on all of them alike.
fn one_slice(sizes: &[u32], changes: u32) -> (Vec<Spread>, Vec<Spread>) {
    const ROUNDS: u32 = 20;
    let mut worlds: Vec<World> = sizes
        .iter()
        .map(|&services| cold_world(services).0)
        .collect();
    let mut addresses = vec![Vec::new(); sizes.len()];
    let mut counts = vec![Vec::new(); sizes.len()];
    for round in 0..ROUNDS {
        for (at, (world, &services)) in worlds.iter_mut().zip(sizes).enumerate() {
            let turns = round * (changes / ROUNDS)..(round + 1) * (changes / ROUNDS);
            addresses[at].extend(changed(world, services, turns.clone(), |i| 2 + 2 * i));
            // Other Services than a moment ago, whose memory is still warm.
            let others = turns.start + changes..turns.end + changes;
            counts[at].extend(changed(world, services, others, |i| i));
        }
    }
    let spreads = |all: Vec<Vec<Duration>>| all.into_iter().map(Spread::new).collect();
    (spreads(addresses), spreads(counts))
}

type World = (Tracker, Desired);

fn cold_world(services: u32) -> (World, Duration) {
    let events: Vec<_> = events(services).collect();
    let start = Instant::now();
    let mut tracker = Tracker::new(SystemTime::UNIX_EPOCH);
    let mut desired = Desired::new(Settings::default());
    for event in events {
        tracker.on(event);
    }
    let changes = tracker.take().expect("the first lists are complete");
    black_box(desired.update(&tracker, changes));
    let took = start.elapsed();
    ((tracker, desired), took)
}

fn cold(services: u32) -> Duration {
    cold_world(services).1
}

/// Times changes, each from event to delta, of Services picked by the number of the turn.
fn changed(
    (tracker, desired): &mut World,
    services: u32,
    turns: std::ops::Range<u32>,
    edition: impl Fn(u32) -> u32,
) -> Vec<Duration> {
    turns
        .map(|i| {
            let random = u64::from(i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
            let n = u32::try_from(random % u64::from(services)).expect("below services");
            let event = put(Object::Slice(slice(n, edition(i))));
            let start = Instant::now();
            tracker.on(event);
            let Some(changes) = tracker.take() else {
                return start.elapsed();
            };
            black_box(desired.update(tracker, changes));
            start.elapsed()
        })
        .collect()
}

/// Prints what a cluster occupies, counted in the allocator.
fn memory(services: u32) {
    let start = ALLOCATOR.current_usage();
    let mut tracker = Tracker::new(SystemTime::UNIX_EPOCH);
    for event in events(services) {
        tracker.on(event);
    }
    let changes = tracker.take().expect("the first lists are complete");
    let mut desired = Desired::new(Settings::default());
    drop(desired.update(&tracker, changes));
    let total = ALLOCATOR.current_usage() - start;
    let bytes = |part: usize, whole: u32| part / whole as usize;
    let desired_alone = {
        drop(desired);
        total - (ALLOCATOR.current_usage() - start)
    };
    let endpoints = services * ENDPOINTS;
    println!(
        "\nMemory at {services} Services × {ENDPOINTS}: {:.1} MiB \
         (tracker {:.1}, desired {:.1}), {} bytes per endpoint, {} bytes per Service port \
         (bytes asked of the allocator).",
        mebibytes(total),
        mebibytes(total - desired_alone),
        mebibytes(desired_alone),
        bytes(total, endpoints),
        bytes(total, services),
    );
    drop(tracker);
}

#[expect(
    clippy::cast_precision_loss,
    reason = "for one decimal it is exact enough"
)]
fn mebibytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
