//! Starts a program and measures until everything works: from nothing, and over what it left.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::arrivals;
use super::lane::{Lane, reach};
use super::load::cluster_ip;
use super::usage::{self, Sampler, Syncs};
use super::{Contender, Figures};
use crate::os;
use crate::process::Process;

/// Quadratic programs take their time.
const TIMEOUT: Duration = Duration::from_mins(20);
/// How often a program is asked whether it is done. When it was it says itself, to the microsecond.
const ASKING: Duration = Duration::from_millis(200);
/// How long a client waits before it tries again. The node's answer that an address is unreachable
/// comes while the connecting socket is in use, where the kernel only notes it, so that a try that
/// fails takes all of this time.
const LOOK: Duration = Duration::from_millis(5);
/// How many Services, all over the cluster, must answer.
const SAMPLES: u32 = 16;

/// From nothing until every Service answers. The program keeps running.
pub fn cold(
    lane: &Lane,
    contender: &Contender,
    mode: &str,
    services: u32,
    rest: Duration,
    server: u32,
) -> Result<(Process, Figures)> {
    let (bytes, server_cpu) = (lane.received()?, usage::cpu(server)?);
    let (wall, begun) = (os::wall(), os::now());
    let mut process = lane.start(contender, mode)?;
    let sampler = Sampler::start(process.id());
    let reachable = all_reachable(lane, services, begun)?;
    process.check()?;
    let reachable = reachable.context("Services never answered")?;
    let syncs = first_sync(lane, &mut process)?;
    let cpu = usage::cpu(process.id())?;
    let done = syncs.ended_after(wall);
    // Programming begins when everything is known.
    let known = (done - syncs.seconds).max(0.0);
    std::thread::sleep(rest);
    let (bytes, server_cpu) = (lane.received()? - bytes, usage::cpu(server)? - server_cpu);
    let seen = sampler.end();
    let figures = Figures::from([
        ("reachable", reachable.as_secs_f64()),
        ("programmed", done),
        ("sync", syncs.seconds / syncs.count),
        ("known", known),
        ("known rss", seen.at(begun + Duration::from_secs_f64(known))),
        ("cpu", cpu),
        ("bytes", bytes / f64::from(1 << 20)),
        ("server cpu", server_cpu),
        ("peak", usage::memory(process.id(), "VmHWM")?),
        ("tree", seen.tree),
        ("steady", usage::memory(process.id(), "VmRSS")?),
    ]);
    Ok((process, figures))
}

/// Starts a program over what its predecessor left and wants unchanged.
pub fn restart(lane: &Lane, contender: &Contender, mode: &str) -> Result<(Process, Figures)> {
    let wall = os::wall();
    let mut process = lane.start(contender, mode)?;
    let syncs = first_sync(lane, &mut process)?;
    let cpu = usage::cpu(process.id())?;
    let figures = Figures::from([
        ("restart", syncs.ended_after(wall)),
        ("restart sync", syncs.seconds / syncs.count),
        ("restart cpu", cpu),
    ]);
    Ok((process, figures))
}

/// The same once more, counting what is written to the kernel. Listening makes the kernel slower,
/// so nothing else is measured meanwhile.
pub fn counted(lane: &Lane, contender: &Contender, mode: &str) -> Result<(Process, Figures)> {
    let ear = lane.node.run(arrivals::listen)??;
    let done = AtomicBool::new(false);
    let (process, writes) = std::thread::scope(|scope| {
        let counting = scope.spawn(|| {
            let mut room = vec![0; 1 << 16];
            let mut writes = 0;
            loop {
                let ended = done.load(Ordering::Relaxed);
                match arrivals::next(&ear, &mut room)? {
                    Some(message) => writes += arrivals::objects(message),
                    None if ended => return anyhow::Ok(writes),
                    None => {}
                }
            }
        });
        let started = restart(lane, contender, mode);
        done.store(true, Ordering::Relaxed);
        let writes = counting.join();
        let writes = writes.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        anyhow::Ok((started?.0, writes?))
    })?;
    let figures = Figures::from([("restart writes", f64::from(writes))]);
    Ok((process, figures))
}

/// When the last of some Services all over the cluster answered for the first time, counted from
/// `begun`.
fn all_reachable(lane: &Lane, services: u32, begun: Instant) -> Result<Option<Duration>> {
    let last = u64::from(services - 1);
    let sample = |n: u32| {
        let at = last * u64::from(n) / u64::from(SAMPLES - 1);
        cluster_ip(u32::try_from(at).expect("at most the last Service"))
    };
    lane.client.run(|| {
        for n in 0..SAMPLES {
            while reach(sample(n), 80, LOOK).is_none() {
                if begun.elapsed() > TIMEOUT {
                    return None;
                }
            }
        }
        Some(begun.elapsed())
    })
}

/// What a program says of its first sync.
fn first_sync(lane: &Lane, process: &mut Process) -> Result<Syncs> {
    let begun = os::now();
    while begun.elapsed() < TIMEOUT {
        process.check()?;
        if let Some(syncs) = usage::syncs(lane)? {
            return Ok(syncs);
        }
        std::thread::sleep(ASKING);
    }
    anyhow::bail!("the program never synced")
}
