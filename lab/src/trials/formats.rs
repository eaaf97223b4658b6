//! Random objects in the API server's own encodings: what is read of them is the same.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Stage;
use crate::barrier::ADDRESSES;
use crate::plan;
use crate::{differ, os};

/// Random clusters, by the seeds of `differ`.
const SEEDS: std::ops::Range<u64> = 1..9;
/// Rules may follow a moment later where a controller has the last word.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Rules drawn from protobuf and rules drawn from JSON are the same rules.
pub fn formats(stage: &mut Stage<'_>) -> Result<()> {
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": differ::NAMESPACE },
    });
    stage.lab.control.api.apply(&namespace)?;
    for seed in SEEDS {
        let compared = compare(stage, seed);
        for kind in ["Service", "EndpointSlice"] {
            let api = &stage.lab.control.api;
            api.delete_all(kind, differ::NAMESPACE)?;
        }
        compared.with_context(|| format!("the cluster with seed {seed}"))?;
    }
    Ok(())
}

fn compare(stage: &mut Stage<'_>, seed: u64) -> Result<()> {
    let empty = rules(stage)?;
    for object in differ::cluster_of(seed)? {
        stage.lab.control.api.apply(&object)?;
    }
    let json = json!({ "clientConnection": { "contentType": "application/json" } });
    stage.start(&json)?;
    stage.settle()?;
    let from_json = rules(stage)?;
    ensure!(from_json != empty, "the cluster has no rules at all");
    // Started anew with nothing of the other one's, so that nothing is right already.
    stage.world().stop_proxies()?;
    for node in plan::nodes() {
        let place = stage.lab.worlds[stage.ferrule].place(node.name)?;
        place.run(|| os::output(os::command("nft").args(["flush", "ruleset"])))??;
    }
    stage.start(&Value::Null)?;
    let mut from_protobuf = Vec::new();
    let same = os::poll(TIMEOUT, || {
        stage.settle().ok()?;
        from_protobuf = rules(stage).ok()?;
        (from_protobuf == from_json).then_some(())
    });
    let only = |some: &[String], others: &[String]| {
        let lines = some.iter().filter(|line| !others.contains(line));
        lines.take(10).cloned().collect::<Vec<_>>().join("\n")
    };
    ensure!(
        same.is_some(),
        "only from protobuf:\n{}\nonly from JSON:\n{}",
        only(&from_protobuf, &from_json),
        only(&from_json, &from_protobuf)
    );
    Ok(())
}

/// The rules of all nodes, as pieces in an order of their own: sets are listed in any order. Without
/// the Service that the lab itself moves about.
fn rules(stage: &Stage<'_>) -> Result<Vec<String>> {
    let mut pieces = Vec::new();
    for node in plan::nodes() {
        let place = stage.lab.worlds[stage.ferrule].place(node.name)?;
        let list = || os::output(os::command("nft").args(["--stateless", "list", "ruleset"]));
        let text = place.run(list)??;
        let lines = text.split([',', '\n']).map(|line| {
            let line = line.trim();
            let line = line.strip_prefix("elements = { ").unwrap_or(line);
            line.strip_suffix(" }").unwrap_or(line)
        });
        let is_own = |line: &&str| line.split(' ').any(|word| ADDRESSES.contains(&word));
        let lines = lines.filter(|line| !is_own(line));
        pieces.extend(lines.map(|line| format!("{}: {line}", node.name)));
    }
    pieces.sort_unstable();
    Ok(pieces)
}
