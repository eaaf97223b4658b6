//! Nodes that a story changes, and how they become again what they were.

use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::{Value, json};

use crate::api::{self, Api};
use crate::control::Control;

/// What was changed so far.
#[derive(Default)]
pub struct Nodes {
    /// By path.
    changed: BTreeSet<String>,
    labels: BTreeSet<(String, String)>,
    leaving: BTreeSet<String>,
}

impl Nodes {
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }

    /// Writes labels and addresses, and what keeps a Node that will be deleted.
    pub fn change(&mut self, node: &Value, api: &Api) -> Result<()> {
        let path = api::path(node)?;
        let mut metadata = json!({ "labels": node["metadata"]["labels"] });
        if let Some(finalizers) = node["metadata"].get("finalizers") {
            metadata["finalizers"] = finalizers.clone();
            self.leaving.insert(path.clone());
        }
        api.merge(&path, &json!({ "metadata": metadata }))?;
        if let Some(status) = node.get("status") {
            api.merge(&format!("{path}/status"), &json!({ "status": status }))?;
        }
        let labels = node["metadata"]["labels"].as_object();
        let names = labels.into_iter().flat_map(|labels| labels.keys());
        self.labels
            .extend(names.map(|label| (path.clone(), label.clone())));
        self.changed.insert(path);
        Ok(())
    }

    /// Makes everything as it was. Taints are taken away by the barrier that follows.
    pub fn restore(&self, control: &Control) -> Result<()> {
        let api = &control.api;
        for (path, label) in &self.labels {
            api.merge(path, &json!({ "metadata": { "labels": { label: null } } }))?;
        }
        for path in &self.leaving {
            api.merge(path, &json!({ "metadata": { "finalizers": null } }))?;
        }
        if self.is_empty() {
            return Ok(());
        }
        control.register_nodes()
    }
}

/// What comes after the barrier, because the barrier asks Nodes to be there and works with taints
/// of its own.
pub fn finish(node: &Value, api: &Api) -> Result<()> {
    if node["metadata"].get("finalizers").is_some() {
        return api.delete(node);
    }
    let taints = &node["spec"]["taints"];
    if *taints == json!([]) {
        return Ok(());
    }
    let change = json!({ "spec": { "taints": taints } });
    api.merge(&api::path(node)?, &change).map(|_| ())
}
