//! An API server and an etcd that die, forget, or fall silent.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::{Stage, TIMEOUT, named, web};
use crate::plan::Family;
use crate::story::short::Memory;
use crate::{control, os};

/// Writes that must have been made between two deaths.
const WRITES: usize = 8;

/// Kills both while a client writes all the time; what was written last must be programmed.
pub fn crash(stage: &mut Stage<'_>) -> Result<()> {
    stage.write(&["a1", "b1"])?;
    stage.settle()?;
    let (done, written) = (AtomicBool::new(false), AtomicUsize::new(0));
    let api = stage.lab.control.api.clone();
    let write = || {
        let mut memory = Memory::default();
        for round in ["a1", "b1", "a2", "b2", "a3"].into_iter().cycle() {
            if done.load(Ordering::Relaxed) {
                break;
            }
            let objects = web(&mut memory, &[round]).unwrap_or_default();
            // While nobody is there, nothing is written.
            if objects.iter().all(|object| api.apply(object).is_ok()) {
                written.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(write);
        let deaths = ["apiserver", "etcd", "apiserver"].iter();
        let result = deaths.clone().try_for_each(|part| {
            let before = written.load(Ordering::Relaxed);
            os::poll(TIMEOUT, || {
                (written.load(Ordering::Relaxed) >= before + WRITES).then_some(())
            })
            .context("nothing is written any more")?;
            stage.lab.control.restart(part)
        });
        done.store(true, Ordering::Relaxed);
        result
    })?;
    stage.write(&["a2", "b3"])?;
    stage.settle_patiently()?;
    stage.expect(&["a2", "b3"])
}

/// While ferrule sleeps, everything changes and the history of it is forgotten.
pub fn history_lost(stage: &mut Stage<'_>) -> Result<()> {
    let doomed = named(
        &mut stage.memory,
        "doomed",
        "10.96.8.2",
        "fd00:10:96::802",
        &["a1"],
    )?;
    for object in &doomed {
        stage.lab.control.api.apply(object)?;
    }
    stage.write(&["a1", "b1"])?;
    stage.settle()?;
    ensure!(
        stage.ask("doomed", "b4", Family::V4, 1)? == ["a1"],
        "the Service that will be deleted does not work to begin with"
    );
    let mark = stage.mark();
    stage.world().signal(Signal::SIGSTOP)?;
    let forgotten = forget(stage, &doomed);
    // Also after a failure: nobody can end it otherwise.
    stage.world().signal(Signal::SIGCONT)?;
    forgotten?;
    mark.until_said(&["Watch expired; listing again", "services"])?;
    mark.until_said(&["Watch expired; listing again", "endpointslices"])?;
    stage.settle_patiently()?;
    stage.expect(&["b2"])?;
    let left = stage.ask("doomed", "b4", Family::V4, 0)?;
    ensure!(
        left.iter().all(|answer| answer == "timeout"),
        "a Service that was deleted meanwhile still answers: {left:?}"
    );
    Ok(())
}

fn forget(stage: &mut Stage<'_>, doomed: &[serde_json::Value]) -> Result<()> {
    // Ends the connections, on which it would be notified even asleep.
    stage.lab.control.restart("apiserver")?;
    for object in doomed {
        stage.lab.control.api.delete(object)?;
    }
    stage.write(&["b2"])?;
    control::compact()?;
    // The server remembers what etcd forgot, until it ends.
    stage.lab.control.restart("apiserver")
}

/// Nothing passes between ferrule and the API server, which dies meanwhile without closing
/// the connection.
pub fn half_open(stage: &mut Stage<'_>) -> Result<()> {
    stage.write(&["a1"])?;
    stage.settle()?;
    let network = format!("172.31.{}.0/24", stage.ferrule + 1);
    nft(&format!(
        "table ip silence {{ chain in {{ type filter hook input priority 0; \
         ip saddr {network} drop; }}; chain out {{ type filter hook output priority 0; \
         ip daddr {network} drop; }}; }}"
    ))?;
    let changed = stage
        .lab
        .control
        .restart("apiserver")
        .and_then(|()| stage.write(&["b1"]));
    nft("delete table ip silence")?;
    changed?;
    stage.settle_patiently()?;
    stage.expect(&["b1"])
}

/// Rules in the lab's own network, where the API server is.
fn nft(rules: &str) -> Result<()> {
    // Only the lab's first process is sure to be in the lab's network.
    ensure!(std::process::id() == 1, "not inside the lab");
    os::output(os::command("nft").arg(rules)).map(|_| ())
}
