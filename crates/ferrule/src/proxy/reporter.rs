//! Tells the world what sync does: health, metrics, logs, events, systemd.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use ferrule_core::desired::HealthCheck;
use ferrule_core::facts::{Facts, NodePorts};
use ferrule_core::issue::{Issue, Severity};
use ferrule_core::model::{Family, Node, PortKey, ServiceKey};
use ferrule_dataplane::Refusal;
use ferrule_dataplane::host::Host;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::checks::{self, Complaint};
use crate::clock::{Clock, Time};
use crate::config::Config;
use crate::health::proxy::{NodeState, ProxyHealth};
use crate::health::services::{self, ServiceHealth};
use crate::logging::info_v;
use crate::metrics::{Metrics, SyncKind};
use crate::sync::{Cleared, Observer, Synced};
use crate::systemd;
use crate::watch::kubernetes::{self, Recorder, Regarding, Report};

/// Everybody who wants to know.
pub struct Reporter {
    pub health: Option<Arc<ProxyHealth>>,
    pub metrics: Arc<Metrics>,
    pub service_health: Vec<ServiceHealth>,
    pub recorder: Option<Recorder>,
    pub host: Host,
    /// `NOTIFY_SOCKET`, until systemd was told.
    pub systemd: Option<String>,
    /// What to do once every family was programmed.
    pub when_programmed: Option<Box<dyn FnOnce() + Send>>,
    /// Families that were not programmed yet.
    pub unprogrammed: BTreeSet<Family>,
    /// The configuration in force, for settings that cannot be right.
    pub config: Arc<RwLock<Config>>,
    pub supported: Vec<Family>,
    /// Service ports that are not programmed, so that each is told once.
    pub left_out: BTreeSet<(Family, PortKey)>,
    /// Settings were looked at.
    pub checked: bool,
    /// Complaints that were logged, so that each is logged once.
    pub complained: Vec<Complaint>,
    /// Ends the program.
    pub fatal: mpsc::Sender<anyhow::Error>,
    /// Issues that were logged, so that each is logged once.
    pub told: BTreeSet<Issue>,
}

impl Reporter {
    /// The health ports of these families, all closed.
    pub fn service_health(
        runtime: &Handle,
        families: &[Family],
        node_name: &Arc<str>,
        health: Option<&Arc<ProxyHealth>>,
        clock: &Clock,
    ) -> Vec<ServiceHealth> {
        let open = |family: &Family| {
            let (runtime, node_name) = (runtime.clone(), node_name.clone());
            ServiceHealth::new(runtime, *family, node_name, health.cloned(), clock.clone())
        };
        families.iter().map(open).collect()
    }

    fn refused(&self, refusals: Vec<services::Refusal>) {
        for refusal in refusals {
            if let Some(recorder) = &self.recorder {
                recorder.record(&Report {
                    regarding: Regarding::Service {
                        namespace: refusal.service.namespace().to_owned(),
                        name: refusal.service.name().to_owned(),
                    },
                    severity: kubernetes::Severity::Warning,
                    reason: services::EVENT_REASON,
                    action: services::EVENT_ACTION,
                    note: refusal.note,
                });
            }
        }
    }

    /// Looks whether the settings can be right on this Node.
    fn check(&mut self, node: &Node) {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        let complaints = checks::complaints(&config, &self.supported, node);
        drop(config);
        for complaint in &complaints {
            if self.complained.contains(complaint) {
                continue;
            }
            if complaint.fatal {
                // When it is full, we are ending already.
                _ = self.fatal.try_send(anyhow::anyhow!(complaint.text.clone()));
            } else {
                let err = &complaint.text;
                tracing::error!(
                    err,
                    "Kube-proxy configuration may be incomplete or incorrect"
                );
            }
        }
        self.complained = complaints;
        self.checked = true;
    }

    /// Every family was programmed once.
    fn is_ready(&mut self) {
        if !self.checked {
            // There is no Node to compare with, but much shows without one.
            self.check(&Node::default());
        }
        let Some(socket) = self.systemd.take() else {
            return;
        };
        if let Err(error) = systemd::notify(&socket, "READY=1") {
            tracing::warn!(socket, err = %error, "Cannot tell systemd that we are ready");
        }
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
            ..
        } = *synced;
        let kind = if synced.whole {
            SyncKind::Full
        } else {
            SyncKind::Partial
        };
        let success = synced.result.is_ok().then_some(now.wall);
        self.metrics.observe_sync(family, kind, took, success);
        self.metrics.set_desired(family, &totals);
        for rules in synced.rules {
            let (owned, written) = (rules.owned, rules.written);
            self.metrics
                .set_iptables_rules(family, rules.table, owned, written);
        }
        let applied = match synced.result {
            Ok(applied) => applied,
            Err(error) => {
                self.metrics.sync_failed(family, kind);
                let err = whole(error);
                tracing::error!(ipFamily = %family, err, "Failed to program the kernel; the last good state stays and it is tried again");
                return;
            }
        };
        info_v!(2, ipFamily = %family, whole = synced.whole, steps = applied.steps, elapsed = ?took, "SyncProxyRules complete");
        for trigger in synced.triggers {
            let latency = SystemTime::from(now.wall).duration_since(*trigger);
            self.metrics
                .network_programming(family, latency.unwrap_or(Duration::ZERO));
        }
        self.metrics.set_no_local_endpoints(family, &totals);
        self.metrics.count_steps(family, applied.steps);
        let last = self.unprogrammed.remove(&family) && self.unprogrammed.is_empty();
        // Whoever hears that we are ready may rely on rules being guarded.
        if let Some(next) = self.when_programmed.take_if(|_| last) {
            next();
        }
        if let Some(health) = &self.health {
            health.updated(family, now);
        }
        if last {
            self.is_ready();
        }
    }

    fn left_out(&mut self, family: Family, refusals: &[Refusal]) {
        let now: BTreeSet<(Family, PortKey)> = refusals
            .iter()
            .map(|refusal| (family, refusal.key.clone()))
            .collect();
        for Refusal { key, message } in refusals {
            if self.left_out.contains(&(family, key.clone())) {
                continue;
            }
            tracing::error!(ipFamily = %family, servicePortName = %key, err = message, "The kernel refuses this Service port; all others are programmed");
            if let Some(recorder) = &self.recorder {
                recorder.record(&Report {
                    regarding: Regarding::Service {
                        namespace: key.service.namespace().to_owned(),
                        name: key.service.name().to_owned(),
                    },
                    severity: kubernetes::Severity::Warning,
                    reason: "FailedToProgram",
                    action: services::EVENT_ACTION,
                    note: format!("{key}: {message}"),
                });
            }
        }
        self.left_out.retain(|(other, _)| *other != family);
        self.left_out.extend(now);
    }

    fn cleared(&mut self, cleared: &Cleared) {
        let Cleared { family, took, .. } = *cleared;
        match &cleared.result {
            Ok(deleted) => {
                self.metrics
                    .observe_conntrack(family, took, *deleted as u64);
                info_v!(4, ipFamily = %family, entries = deleted, elapsed = ?took, "Looked for stale UDP flows");
            }
            Err(error) => {
                let err = whole(error);
                tracing::error!(ipFamily = %family, err, "Cannot remove stale UDP flows; it is tried again with the next change");
            }
        }
    }

    fn health_checks(
        &mut self,
        family: Family,
        changes: &BTreeMap<ServiceKey, Option<HealthCheck>>,
        facts: &Facts,
    ) {
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
        let local = match facts.node_ports {
            NodePorts::All => None,
            NodePorts::Within(_) | NodePorts::Nowhere => self.host.addresses().ok(),
        };
        ports.listen_on(&facts.node_ports, local.as_deref());
        let refusals = ports.apply(changes.clone());
        self.refused(refusals);
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
        self.check(node);
    }

    fn heard(&mut self, services: usize, slices: usize) {
        self.metrics.received(services, slices);
    }

    fn pending(&mut self, services: usize, slices: usize) {
        self.metrics.set_pending(services, slices);
    }

    fn issues(&mut self, issues: &[&Issue]) {
        self.metrics.set_issues(issues.iter().copied());
        let now: BTreeSet<Issue> = issues.iter().copied().cloned().collect();
        for issue in now.difference(&self.told) {
            let (object, field, problem) = (&issue.object, &issue.field, &issue.message);
            match issue.severity {
                Severity::Warning => {
                    tracing::warn!(%object, field, problem, "Left out part of an object");
                }
                Severity::Note => {
                    info_v!(2, %object, field, problem, "Noted about an object");
                }
            }
        }
        self.told = now;
    }
}

/// An error with all its causes.
pub fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
