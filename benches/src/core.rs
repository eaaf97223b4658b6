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
    let mut firsts = Vec::new();
    for &services in sizes {
        let cold = Spread::new((0..colds).map(|_| cold(services)).collect());
        let (mut world, _) = cold_world(services);
        let address = Spread::new(changed(&mut world, services, changes, |i| 2 + 2 * i));
        let count = Spread::new(changed(&mut world, services, changes, |i| i));
        println!(
            "| {services} | {cold} | {} | {address} | {} | {count} | {} |",
            human(cold.median() / services),
            human(address.percentile(99)),
            human(count.percentile(99)),
        );
        firsts.push(address.median());
    }
    if let [first, .., last] = firsts[..] {
        println!(
            "\nOne address replaced: {:.2}× from {} to {} Services (medians, same run).",
            last.as_secs_f64() / first.as_secs_f64(),
            sizes[0],
            sizes[sizes.len() - 1],
        );
    }
    memory(10_000);
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

/// Times `count` changes, each from event to delta.
fn changed(
    (tracker, desired): &mut World,
    services: u32,
    count: u32,
    edition: impl Fn(u32) -> u32,
) -> Vec<Duration> {
    let mut random = 1_u64;
    (0..count)
        .map(|i| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let n = u32::try_from((random >> 33) % u64::from(services)).expect("below services");
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
