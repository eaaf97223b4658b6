//! What follows the first syncs: guarding, removing other modes' rules, checking settings, telling
//! systemd.

use std::sync::Arc;

use ferrule_core::model::{Family, Node};
use ferrule_dataplane::Watcher;

use super::checks::Checks;
use super::guard::Guard;
use super::succession::Succession;
use super::sweep::Sweep;
use crate::metrics::Metrics;
use crate::modes::Part;
use crate::sync::Lifecycle;
use crate::systemd;

/// Acts on milestones.
pub struct Startup {
    /// Watches over what is programmed.
    pub guard: Guard,
    /// The families that are programmed.
    pub families: Vec<Family>,
    /// Removes other modes' rules; none with `--dry-run`.
    pub sweep: Option<Sweep>,
    /// Settings that cannot be right.
    pub checks: Checks,
    /// Shows packet counters once rules feed them.
    pub metrics: Arc<Metrics>,
    /// Takes over from a predecessor.
    pub succession: Option<Succession>,
    /// `NOTIFY_SOCKET`
    pub systemd: Option<String>,
}

impl Lifecycle for Startup {
    fn node(&mut self, node: &Node) {
        self.checks.check(node);
    }

    fn programmed(&mut self, family: Family, watchers: Vec<Box<dyn Watcher>>) {
        self.guard.start(family, watchers);
        if let Some(sweep) = &self.sweep {
            self.metrics.show_packets();
            sweep.part(Part::Family(family));
        }
    }

    fn ready(&mut self) {
        self.checks.check_without_node();
        if let Some(socket) = &self.systemd
            && let Err(error) = systemd::notify(socket, "READY=1")
        {
            tracing::warn!(socket, err = %error, "Failed to notify systemd of readiness");
        }
    }

    fn complete(&mut self) {
        if let Some(sweep) = &self.sweep {
            // Families that this machine cannot program have nothing that could be kept up to date.
            let unserved = Family::ALL.into_iter();
            let unserved = unserved.filter(|family| !self.families.contains(family));
            unserved.for_each(|family| sweep.part(Part::Family(family)));
            // Another mode may have in one piece what it needs for both families.
            sweep.part(Part::Node);
        }
        if let Some(succession) = self.succession.take() {
            succession.begin();
        }
    }
}
