//! From kube-proxy to ferrule, from mode to mode, and back, while requests go on.
//!
//! In: a lab; the trial builds a world of its own in it. Out: an error that names the first requests
//! that failed, or what a program that is gone left behind.

mod traces;
mod traffic;

use std::fmt;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{NAMESPACE, Stage, TIMEOUT};
use crate::os;
use crate::plan;
use crate::process::Process;
use crate::story::short::Memory;
use crate::world::{World, WorldKey};
use traffic::Traffic;

/// A program in a mode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    program: &'static str,
    mode: &'static str,
}

const fn turn(program: &'static str, mode: &'static str) -> Turn {
    Turn { program, mode }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.program, self.mode)
    }
}

impl Turn {
    /// Rules that lead to the process are of no use without it.
    fn relays(self) -> bool {
        self.mode == "userspace"
    }
}

const KUBE_NFTABLES: Turn = turn("kube-proxy", "nftables");
const KUBE_IPTABLES: Turn = turn("kube-proxy", "iptables");
const NFTABLES: Turn = turn("ferrule", "nftables");
const IPTABLES: Turn = turn("ferrule", "iptables");
const USERSPACE: Turn = turn("ferrule", "userspace");

/// From everywhere to everywhere, except from ferrule to another mode of kube-proxy: that one removes
/// the rules of the other mode before it writes its own, so requests fail in between. Who goes back
/// that way changes ferrule's mode first.
const WAY: [Turn; 19] = [
    KUBE_NFTABLES,
    USERSPACE,
    KUBE_IPTABLES,
    USERSPACE,
    KUBE_NFTABLES,
    IPTABLES,
    KUBE_IPTABLES,
    IPTABLES,
    KUBE_IPTABLES,
    NFTABLES,
    KUBE_NFTABLES,
    NFTABLES,
    USERSPACE,
    IPTABLES,
    USERSPACE,
    NFTABLES,
    IPTABLES,
    NFTABLES,
    KUBE_NFTABLES,
];

/// All pairs, with requests all the time.
pub fn migration(stage: &mut Stage<'_>) -> Result<()> {
    for object in services()? {
        stage.lab.control.api.apply(&object)?;
    }
    with_world(stage, |stage, world| {
        start(stage, world, WAY[0])?;
        stage.lab.settle_in(world)?;
        let traffic = Traffic::start(&stage.lab.worlds[world])?;
        let result = WAY.windows(2).try_for_each(|pair| {
            let (from, to) = (pair[0], pair[1]);
            let step = format!("{from} -> {to}");
            traffic.begin(&step, from.relays());
            migrate(stage, world, from, to)
                .and_then(|()| traces::until_only(&stage.lab.worlds[world], to.mode))
                .and_then(|()| traffic.check())
                .context(step)
        });
        let (sent, repeated) = traffic.stop();
        result?;
        println!(
            "         {sent} requests, 0 failed; {repeated} datagrams sent once more when a relay ended"
        );
        Ok(())
    })
}

/// What each mode of ferrule leaves, and what is there after `--cleanup`.
pub fn cleanup(stage: &mut Stage<'_>) -> Result<()> {
    for object in services()? {
        stage.lab.control.api.apply(&object)?;
    }
    with_world(stage, |stage, world| {
        traces::be_a_kubelet(&stage.lab.worlds[world])?;
        for turn in [NFTABLES, IPTABLES, USERSPACE] {
            let before = traces::Snapshot::take(&stage.lab.worlds[world])?;
            start(stage, world, turn)?;
            stage.lab.settle_in(world)?;
            let during = traces::Snapshot::take(&stage.lab.worlds[world])?;
            ensure!(
                !during.differences(&before).is_empty(),
                "{turn} wrote nothing"
            );
            stage.lab.worlds[world].stop_proxies()?;
            let program = stage.lab.tools.program("ferrule");
            for node in plan::nodes() {
                let clean = || {
                    let mut command = os::command(&program);
                    os::output(command.args(["proxy", "--cleanup"]))
                };
                stage.lab.worlds[world].place(node.name)?.run(clean)??;
            }
            let after = traces::Snapshot::take(&stage.lab.worlds[world])?;
            let left = after.differences(&before);
            ensure!(
                left.is_empty(),
                "{turn} left behind after --cleanup:\n{left}"
            );
        }
        Ok(())
    })
}

/// Lends the lab a world of which nobody else knows.
fn with_world(
    stage: &mut Stage<'_>,
    work: impl FnOnce(&mut Stage<'_>, usize) -> Result<()>,
) -> Result<()> {
    let key = WorldKey {
        program: "ferrule".to_owned(),
        mode: "migration".to_owned(),
        legacy: false,
        portals_by_iptables: false,
    };
    let number = stage.lab.worlds.len();
    let (_, runtime) = stage.lab.control.api.client();
    let world = World::build(key, number, &stage.folder, &runtime)?;
    stage.lab.worlds.push(world);
    let result = work(stage, number);
    let world = stage.lab.worlds.pop();
    let removed = world.context("the world was lent")?.remove();
    result.and(removed)
}

fn start(stage: &mut Stage<'_>, world: usize, turn: Turn) -> Result<Vec<Process>> {
    let tools = stage.lab.tools.clone();
    stage.lab.worlds[world].succeed(&tools, turn.program, turn.mode, &Value::Null)
}

/// Where rules stay without a process, that goes first; otherwise the next one comes first.
fn migrate(stage: &mut Stage<'_>, world: usize, from: Turn, to: Turn) -> Result<()> {
    if from.relays() {
        let before = start(stage, world, to)?;
        traces::until_programmed(&stage.lab.worlds[world], to.mode)?;
        end(before)?;
        return stage.lab.settle_in(world);
    }
    let mut open = traffic::Open::new(&stage.lab.worlds[world])?;
    stage.lab.worlds[world].stop_proxies()?;
    start(stage, world, to)?;
    stage.lab.settle_in(world)?;
    open.check()
}

fn end(processes: Vec<Process>) -> Result<()> {
    for mut process in processes {
        process.stop()?;
    }
    Ok(())
}

/// What is asked for: one Service with every kind of address.
fn services() -> Result<Vec<Value>> {
    let service = json!({
        "service": "moved",
        "ips": [traffic::CLUSTER_IPS[0], traffic::CLUSTER_IPS[1]],
        "ports": [format!("80->8080 @{}", traffic::NODE_PORT), "53->5353/udp"],
        "endpoints": ["a1", "b1"],
        "spec": { "type": "LoadBalancer" },
        "ingress": [traffic::LOAD_BALANCER],
    });
    Memory::default().objects(&service, NAMESPACE)
}

/// Waits until something is so on every node, and says how it is instead.
fn on_every_node(
    world: &World,
    what: &str,
    wrong: impl Fn() -> Result<Option<String>> + Sync,
) -> Result<()> {
    for node in plan::nodes() {
        let mut last = String::new();
        let right = || match wrong() {
            Ok(None) => Some(Ok(())),
            Ok(Some(text)) => {
                last = text;
                None
            }
            Err(error) => Some(Err(error)),
        };
        match world.place(node.name)?.run(|| os::poll(TIMEOUT, right))? {
            Some(result) => result?,
            None => bail!("{}: {what}: {last}", node.name),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_pair_that_loses_nothing_is_on_the_way() {
        let pairs: BTreeSet<_> = WAY.windows(2).map(|pair| (pair[0], pair[1])).collect();
        let all = [KUBE_NFTABLES, KUBE_IPTABLES, NFTABLES, IPTABLES, USERSPACE];
        for from in all {
            for to in all {
                let ours = from.program == "ferrule" || to.program == "ferrule";
                let back = to.program == "kube-proxy";
                let other_mode = back && !from.relays() && from.mode != to.mode;
                let wanted = ours && from != to && !other_mode;
                assert_eq!(pairs.contains(&(from, to)), wanted, "{from} -> {to}");
            }
        }
    }
}
