//! Reports what sync does: health, metrics, logs, events. It decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ferrule_core::desired::{Change, HealthCheck};
use ferrule_core::facts::{Facts, Settings};
use ferrule_core::issue::{Issue, ObjectKey, Severity};
use ferrule_core::model::{Family, Node, PortKey, ServiceKey};
use ferrule_core::track::{Changes, Tracker};
use ferrule_dataplane::{Applied, ApplyError, Refusal, error_chain};

use super::events::EventLimit;
use crate::admin::Publisher;
use crate::clock::Time;
use crate::health::proxy::{NodeState, ProxyHealth};
use crate::health::services::{self, ServiceHealth};
use crate::logging::info_v;
use crate::metrics::{Metrics, SyncKind};
use crate::sync::{Cleared, Contest, Observer, Repair, Synced};
use crate::watch::kubernetes::{self, Recorder, Regarding, Report};

#[cfg(test)]
mod tests;

/// The reason of an event about a Service port that the kernel refuses.
const REFUSED: &str = "FailedToProgram";
const PROGRAM: &str = "Program";

/// The reason of an event about a part of a Service that has no effect, and what we were doing.
const IGNORED: &str = "PartlyIgnored";
const DECIDE: &str = "Decide";

/// The reason of an event about another process that keeps changing our rules, and what we do.
const CONTESTED: &str = "RulesContested";
const REPAIR: &str = "RepairRules";

/// Everybody who is interested.
pub struct Reporter {
    metrics: Arc<Metrics>,
    health: Option<Arc<ProxyHealth>>,
    service_health: Vec<ServiceHealth>,
    recorder: Option<Recorder>,
    /// The Node that we run on.
    node_name: String,
    /// Service ports that are not programmed, so that each is reported once.
    refused: BTreeSet<(Family, PortKey)>,
    /// Issues that were logged, so that each is logged once.
    issues: BTreeSet<Issue>,
    /// Events about Services that were sent.
    limit: EventLimit,
    /// Whoever answers on the admin socket.
    admin: Option<Publisher>,
}

impl Reporter {
    /// Reports to these; `health` is `None` when the health server is switched off, `recorder`
    /// without an API server.
    pub fn new(
        metrics: Arc<Metrics>,
        health: Option<Arc<ProxyHealth>>,
        service_health: Vec<ServiceHealth>,
        recorder: Option<Recorder>,
        node_name: String,
    ) -> Self {
        Self {
            metrics,
            health,
            service_health,
            recorder,
            node_name,
            refused: BTreeSet::new(),
            issues: BTreeSet::new(),
            limit: EventLimit::default(),
            admin: None,
        }
    }

    /// Reports to the admin socket too.
    pub fn with_admin(self, admin: Option<Publisher>) -> Self {
        Self { admin, ..self }
    }

    /// Puts a warning on a Service.
    fn warn(&self, service: &ServiceKey, reason: &'static str, action: &'static str, note: String) {
        self.record(&Report {
            regarding: regarding(service),
            severity: kubernetes::Severity::Warning,
            reason,
            action,
            note,
            shared: false,
        });
    }

    /// Puts a warning about an object on its Service, if it is one, and if there were not too many.
    fn warn_of(&mut self, issue: &Issue) {
        let ObjectKey::Service(service) = &issue.object else {
            return;
        };
        let note = format!("{}: {}", issue.field, issue.message);
        let now = Time::now().steady;
        if self.recorder.is_some() && self.limit.admits(service, IGNORED, &note, now) {
            self.record(&Report {
                regarding: regarding(service),
                severity: kubernetes::Severity::Warning,
                reason: IGNORED,
                action: DECIDE,
                note,
                // The object is the same everywhere.
                shared: true,
            });
        }
    }

    fn record(&self, report: &Report) {
        if let Some(recorder) = &self.recorder {
            recorder.record(report);
        }
    }

    /// What a success consisted of.
    fn applied(&mut self, family: Family, applied: &Applied) {
        for rules in &applied.rules {
            let (owned, written) = (rules.owned, rules.written);
            self.metrics
                .set_iptables_rules(family, rules.table, owned, written);
        }
        self.metrics.count_steps(family, applied.steps);
        if applied.kept > 0 {
            self.metrics.cleanup_failed(family);
        }
        self.refused(family, &applied.refused);
    }

    fn refused(&mut self, family: Family, refusals: &[Refusal]) {
        for Refusal { key, message } in refusals {
            if self.refused.contains(&(family, key.clone())) {
                continue;
            }
            tracing::error!(ipFamily = %family, servicePortName = %key, err = message, "Kernel refused the rules of a Service port; all other Service ports are programmed");
            let note = format!("{key}: {message}");
            let now = Time::now().steady;
            if self.limit.admits(&key.service, REFUSED, &note, now) {
                self.warn(&key.service, REFUSED, PROGRAM, note);
            }
        }
        self.refused.retain(|(other, _)| *other != family);
        let now = refusals.iter().map(|refusal| (family, refusal.key.clone()));
        self.refused.extend(now);
    }
}

fn regarding(service: &ServiceKey) -> Regarding {
    Regarding::Service {
        namespace: service.namespace().to_owned(),
        name: service.name().to_owned(),
    }
}

impl Observer for Reporter {
    fn started(&mut self, family: Family) {
        let now = Time::now();
        if let Some(health) = &self.health {
            health.started(family, now);
        }
        self.metrics.set_last_queued(family, now.wall);
    }

    fn queued(&mut self, family: Family) {
        let now = Time::now();
        if let Some(health) = &self.health {
            health.queued(family, now);
        }
        self.metrics.set_last_queued(family, now.wall);
    }

    fn begun(&mut self, family: Family) {
        if let Some(health) = &self.health {
            health.queued(family, Time::now());
        }
    }

    fn synced(&mut self, synced: &Synced<'_>) {
        let now = Time::now();
        let Synced {
            family,
            took,
            totals,
            full,
            ..
        } = *synced;
        let kind = if full {
            SyncKind::Full
        } else {
            SyncKind::Partial
        };
        let success = synced.result.is_ok().then_some(now.wall);
        self.metrics.observe_sync(family, kind, took, success);
        self.metrics.set_desired(family, &totals);
        if let Some(admin) = &self.admin {
            admin.ended(synced, now.wall);
        }
        let applied = match synced.result {
            Ok(applied) => applied,
            Err(error) => {
                self.metrics.sync_failed(family, kind);
                if let Some(admin) = &self.admin {
                    admin.failed(family, error);
                }
                let err = error_chain(error);
                tracing::error!(ipFamily = %family, err, "Failed to sync rules; keeping the last good state, will retry");
                return;
            }
        };
        info_v!(2, ipFamily = %family, full, steps = applied.steps, elapsed = ?took, "SyncProxyRules complete");
        for trigger in synced.triggers {
            let latency = SystemTime::from(now.wall).duration_since(*trigger);
            self.metrics
                .network_programming(family, latency.unwrap_or(Duration::ZERO));
        }
        self.metrics.set_no_local_endpoints(family, &totals);
        self.applied(family, applied);
        if let Some(admin) = &self.admin {
            admin.programmed(family, &applied.refused);
        }
        if let Some(health) = &self.health {
            health.updated(family, now);
        }
    }

    fn repaired(&mut self, family: Family, repair: &Repair) {
        if let Some(admin) = &self.admin {
            admin.repaired(family, repair);
        }
        let steps = repair.steps;
        let found = repair.process.as_ref();
        let (process, pid) = found.map(|p| (p.name.as_str(), p.id)).unzip();
        match repair.contest {
            Contest::None => {
                tracing::info!(ipFamily = %family, process, pid, steps, "Repaired external changes to our rules");
            }
            Contest::Begins(wait) => {
                tracing::warn!(ipFamily = %family, process, pid, steps, retry_in = ?wait, "Another process keeps changing our rules; repairing them at growing intervals");
                let who = found.map_or_else(
                    || "another process".to_owned(),
                    |found| format!("process {found}"),
                );
                let note = format!(
                    "{family}: {who} keeps changing the rules of this proxy; they are repaired at \
                     growing intervals. Only one service proxy may run on a node"
                );
                self.record(&Report {
                    regarding: Regarding::Node(self.node_name.clone()),
                    severity: kubernetes::Severity::Warning,
                    reason: CONTESTED,
                    action: REPAIR,
                    note,
                    shared: false,
                });
            }
            Contest::Lasts(wait) => {
                info_v!(2, ipFamily = %family, process, pid, steps, retry_in = ?wait, "Repaired external changes to our rules again");
            }
        }
    }

    fn cleared(&mut self, cleared: &Cleared) {
        let Cleared { family, took, .. } = *cleared;
        match &cleared.result {
            Ok(deleted) => {
                self.metrics
                    .observe_conntrack(family, took, *deleted as u64);
                info_v!(4, ipFamily = %family, entries = deleted, elapsed = ?took, "Deleted stale UDP conntrack entries");
            }
            Err(error) => {
                let err = error_chain(error);
                tracing::error!(ipFamily = %family, err, "Failed to delete stale UDP conntrack entries; will retry with the next change");
            }
        }
    }

    fn removed(&mut self, family: Family, result: Result<&Applied, &ApplyError>) {
        match result {
            Ok(applied) => {
                tracing::info!(ipFamily = %family, steps = applied.steps, "Removed our rules before exit");
            }
            Err(error) => {
                let err = error_chain(error);
                tracing::error!(ipFamily = %family, err, "Failed to remove our rules before exit");
            }
        }
    }

    fn health_checks(
        &mut self,
        family: Family,
        changes: &BTreeMap<ServiceKey, Option<HealthCheck>>,
        facts: &Facts,
        local: &[IpAddr],
    ) {
        if let Some(admin) = &mut self.admin {
            admin.addresses(local);
        }
        let Some(ports) = self
            .service_health
            .iter_mut()
            .find(|ports| ports.family() == family)
        else {
            return;
        };
        if ports.is_idle() && changes.is_empty() {
            return;
        }
        ports.listen_on(&facts.node_ports, local);
        let refusals = ports.apply(changes.clone());
        if let Some(admin) = &self.admin {
            let failed = refusals.iter().cloned();
            admin.health(family, failed.map(|r| (r.service, r.note)).collect());
        }
        for refusal in refusals {
            let (reason, action) = (services::EVENT_REASON, services::EVENT_ACTION);
            self.warn(&refusal.service, reason, action, refusal.note);
        }
    }

    fn node(&mut self, node: &Node) {
        let state = if node.leaving {
            NodeState::Leaving
        } else {
            NodeState::Eligible
        };
        if let Some(health) = &self.health {
            health.set_node(state);
        }
    }

    fn received(&mut self, services: usize, slices: usize) {
        self.metrics.received(services, slices);
    }

    fn pending(&mut self, services: usize, slices: usize) {
        self.metrics.set_pending(services, slices);
    }

    fn taken(&mut self, tracker: &Tracker, changes: &Changes) {
        if let Some(admin) = &self.admin {
            admin.news(tracker, changes);
        }
    }

    fn decided(&mut self, family: Family, changes: &BTreeMap<PortKey, Change>) {
        if let Some(admin) = &self.admin {
            admin.changed(family, changes);
        }
    }

    fn reconfigured(&mut self, settings: &Settings) {
        if let Some(admin) = &self.admin {
            admin.settings(settings);
        }
    }

    fn issues(&mut self, issues: &[&Issue]) {
        self.metrics.set_issues(issues.iter().copied());
        if let Some(admin) = &self.admin {
            admin.issues(issues);
        }
        let now: BTreeSet<Issue> = issues.iter().copied().cloned().collect();
        let before = std::mem::take(&mut self.issues);
        for issue in now.difference(&before) {
            let (object, field, problem) = (&issue.object, &issue.field, &issue.message);
            match issue.severity {
                Severity::Warning => {
                    tracing::warn!(%object, field, problem, "Ignored part of an object");
                    self.warn_of(issue);
                }
                Severity::Note => {
                    info_v!(2, %object, field, problem, "Object has a questionable field");
                }
            }
        }
        self.issues = now;
    }
}
