//! What `ferrule desired`, `ferrule render` and `ferrule verify` share: settings and a view of the cluster.
//!
//! In: a folder of manifests, and settings from flags or a configuration file. Out: the desired
//! state. Problems in the input are reported on standard error, so that standard output stays
//! the answer.

use std::collections::BTreeSet;
use std::fs;
use std::time::SystemTime;

use anyhow::{Context as _, anyhow};
use ferrule_core::desired::Desired;
use ferrule_core::facts::Settings;
use ferrule_core::issue::{Issue, Severity};
use ferrule_core::model::Family;
use ferrule_core::track::{Event, Tracker};

use crate::cli::ClusterArgs;
use crate::config::Config;
use crate::config::gates::Gates;
use crate::config::v1alpha1::decode;
use crate::config::validate::validate;
use crate::modes::Mode;
use crate::print_error;

/// What is known of the cluster.
pub struct ClusterView<'a> {
    arguments: &'a ClusterArgs,
    tracker: Tracker,
    /// What follows from it.
    pub desired: Desired,
    reported: BTreeSet<String>,
}

impl<'a> ClusterView<'a> {
    /// Of an empty cluster.
    pub fn new(arguments: &'a ClusterArgs, settings: Settings) -> Self {
        Self {
            arguments,
            // No trigger times are measured here, so the tracker needs no clock.
            tracker: Tracker::new(SystemTime::UNIX_EPOCH),
            desired: Desired::new(settings),
            reported: BTreeSet::new(),
        }
    }

    /// Takes in what became different, and decides anew.
    pub fn take_in(&mut self, events: Vec<Event>) {
        for event in events {
            self.tracker.on(event);
        }
        if let Some(changes) = self.tracker.take() {
            self.desired.update(&self.tracker, changes);
        }
        self.report();
    }

    /// Reports what was left out, once.
    fn report(&mut self) {
        let mut lines = BTreeSet::new();
        if self.tracker.node().is_none() {
            let node = &self.arguments.node;
            lines.insert(format!(
                "note: there is no Node {node}: its zone and address are unknown"
            ));
        }
        let met = self.desired.issues();
        let issues = self.tracker.issues().chain(&met);
        lines.extend(issues.map(|issue: &Issue| match issue.severity {
            Severity::Note => format!("note: {issue}"),
            Severity::Warning => format!("warning: {issue}"),
        }));
        for line in lines.difference(&self.reported) {
            print_error(line);
        }
        self.reported = lines;
    }
}

/// The families asked for.
pub fn families(arguments: &ClusterArgs) -> Vec<Family> {
    match arguments.family {
        Some(family) => vec![Family::from(family)],
        None => Family::ALL.to_vec(),
    }
}

/// The configuration that file and flags describe. Flags override the file here:
/// these verbs are for trying things out.
pub fn config(arguments: &ClusterArgs, mode: Option<&Mode>) -> anyhow::Result<(Config, Gates)> {
    let settings = &arguments.settings;
    let mut config = match &settings.config {
        None => Config::default(),
        Some(path) => {
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let decoded = decode(&text).with_context(|| path.display().to_string())?;
            if let Some(odd) = decoded.oddities {
                print_error(&format!("warning: {}: {}", path.display(), odd.message));
            }
            Config::from(decoded.configuration)
        }
    };
    if let Some(mode) = mode {
        mode.name.clone_into(&mut config.mode);
    }
    config.masquerade_all |= settings.masquerade_all;
    if !settings.cluster_cidr.is_empty() {
        let cidrs = settings.cluster_cidr.iter();
        config.cluster_cidrs = cidrs.map(ToString::to_string).collect();
    }
    if !settings.nodeport_addresses.is_empty() {
        config.node_port_addresses = Some(settings.nodeport_addresses.clone());
    }
    config.set_platform_defaults();
    let (gates, _) = Gates::apply(&config.feature_gates)
        .map_err(|errors| anyhow!("feature gates: {}", listed(&errors)))?;
    validate(&config, &gates).map_err(|violations| anyhow!("{violations}"))?;
    Ok((config, gates))
}

fn listed(errors: &[impl ToString]) -> String {
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    texts.join(", ")
}
