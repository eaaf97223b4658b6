//! Lists as streams, and in one piece.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Stage;
use crate::control::Variant;
use crate::plan;

/// Streams where both sides can, lists where one of them cannot; the outcome is the same.
pub fn lists(stage: &mut Stage<'_>) -> Result<()> {
    stage.write(&["a1", "b1"])?;
    let before = lists_of_slices(stage)?;
    stage.start(&Value::Null)?;
    stage.settle()?;
    stage.expect(&["a1", "b1"])?;
    let streamed = lists_of_slices(stage)?;
    ensure!(
        streamed == before,
        "a stream was possible, and a list was asked for"
    );

    stage.start(&json!({ "featureGates": { "WatchListClient": false } }))?;
    stage.settle()?;
    stage.expect(&["a1", "b1"])?;
    let listed = lists_of_slices(stage)?;
    let nodes = plan::nodes().count();
    ensure!(
        listed == streamed + nodes,
        "with the gate off {} lists were asked for, and not {nodes}",
        listed - streamed
    );

    stage.lab.control.become_variant(Variant {
        flags: vec!["--feature-gates=WatchList=false".to_owned()],
        ..Variant::default()
    })?;
    let mark = stage.mark();
    stage.start(&Value::Null)?;
    mark.until_said(&["does not stream lists", "endpointslices"])?;
    stage.write(&["b2"])?;
    stage.settle_patiently()?;
    stage.expect(&["b2"])
}

/// How often the API server was asked for a list of EndpointSlices.
fn lists_of_slices(stage: &Stage<'_>) -> Result<usize> {
    let page = stage.lab.control.api.page("/metrics")?;
    let asked = page.lines().filter(|line| {
        line.starts_with("apiserver_request_total{")
            && line.contains("resource=\"endpointslices\"")
            && line.contains("verb=\"LIST\"")
            && line.contains("code=\"200\"")
    });
    let counts = asked.map(|line| {
        let count = line
            .rsplit(' ')
            .next()
            .and_then(|word| word.parse::<f64>().ok());
        count.with_context(|| format!("{line:?} is no number"))
    });
    let total: f64 = counts.collect::<Result<Vec<_>>>()?.iter().sum();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small count"
    )]
    Ok(total as usize)
}
