//! Whether the proxy keeps up, and whether load balancers should use this node.
//!
//! In: when each family was programmed, since when a change waits, and what the Node says. Out:
//! `/healthz` (send traffic here?), `/livez` (is it stuck?) and `/readyz` (has it begun?).
//!
//! Sync writes, the server reads; judging is [`State::judge`], which takes the time as argument.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrule_core::model::{Family, PerFamily};
use http::StatusCode;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;

use crate::clock::{Clock, Time, rfc3339};
use crate::http::{Handler, JSON, Request, Response, handler};
use crate::metrics::Metrics;

#[cfg(test)]
mod tests;

/// What Go prints for a time that never was.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// What the Node object says about traffic to this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// No Node object was seen, or it is gone. Not eligible, as in kube-proxy: a wrong node name
    /// shows here first.
    #[default]
    Unknown,
    /// Load balancers may send here.
    Eligible,
    /// Being deleted, or marked for it by the cluster autoscaler.
    Leaving,
}

/// The health of the proxy, shared between sync, which writes it, and the servers.
#[derive(Debug)]
pub struct ProxyHealth {
    state: Mutex<State>,
    metrics: Arc<Metrics>,
    zone: TimeZone,
}

/// What is known.
#[derive(Debug)]
struct State {
    /// A change may wait this long.
    timeout: Duration,
    node: NodeState,
    families: PerFamily<Progress>,
}

/// How far one family is.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// This family is served at all.
    served: bool,
    /// The rules of this family were written at least once.
    programmed: bool,
    updated: Option<Timestamp>,
    /// Since when a change waits.
    pending: Option<Instant>,
}

impl Progress {
    fn caught_up(&mut self, now: Time) {
        self.updated = Some(now.wall);
        self.pending = None;
    }
}

/// What follows from it at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    healthy: bool,
    eligible: bool,
    ready: bool,
    /// The families that reported, with the time and whether they keep up.
    families: Vec<(Family, Timestamp, bool)>,
}

impl ProxyHealth {
    /// Nothing was programmed and no Node was seen. Times are printed in `zone`.
    pub fn new(
        families: &[Family],
        sync_period: Duration,
        zone: TimeZone,
        metrics: Arc<Metrics>,
    ) -> Self {
        let state = State {
            timeout: sync_period * 2,
            node: NodeState::Unknown,
            families: PerFamily::from_fn(|family| Progress {
                served: families.contains(&family),
                ..Progress::default()
            }),
        };
        Self {
            state: Mutex::new(state),
            metrics,
            zone,
        }
    }

    /// The family's sync loop began: nothing waits.
    pub fn started(&self, family: Family, now: Time) {
        self.lock().families[family].caught_up(now);
    }

    /// The family was programmed: nothing waits.
    pub fn updated(&self, family: Family, now: Time) {
        let progress = &mut self.lock().families[family];
        progress.caught_up(now);
        progress.programmed = true;
    }

    /// The family has a change to program. Only the oldest one counts.
    pub fn queued(&self, family: Family, now: Time) {
        self.lock().families[family]
            .pending
            .get_or_insert(now.steady);
    }

    /// The Node object changed.
    pub fn set_node(&self, node: NodeState) {
        self.lock().node = node;
    }

    /// The configured period changed.
    pub fn set_sync_period(&self, sync_period: Duration) {
        self.lock().timeout = sync_period * 2;
    }

    /// Whether every family keeps up. Says nothing about the node.
    pub fn is_healthy(&self, now: Time) -> bool {
        self.lock().judge(now.steady).healthy
    }

    /// Answers the requests of the health server.
    pub fn handler(self: &Arc<Self>, clock: Clock) -> Handler {
        let health = self.clone();
        handler(move |request| health.answer(request, &clock))
    }

    fn answer(&self, request: &Request, clock: &Clock) -> Response {
        match request.path.as_str() {
            "/healthz" => {
                let (status, response) = self.healthz(true, clock);
                self.metrics.healthz_answered(status);
                response
            }
            "/livez" => {
                let (status, response) = self.healthz(false, clock);
                self.metrics.livez_answered(status);
                response
            }
            "/readyz" => self.readyz(clock()),
            _ => Response::not_found(),
        }
    }

    /// `/healthz`, or `/livez` when the node does not matter.
    fn healthz(&self, node_matters: bool, clock: &Clock) -> (StatusCode, Response) {
        let now = clock();
        let verdict = self.lock().judge(now.steady);
        let good = verdict.healthy && (verdict.eligible || !node_matters);
        let last_updated = if good {
            // Taken anew, not copied: kube-proxy's is a little later than `currentTime` too.
            self.print(clock().wall)
        } else {
            let newest = verdict
                .families
                .iter()
                .map(|(_, updated, _)| *updated)
                .max();
            newest.map_or_else(|| NEVER.to_owned(), |newest| self.print(newest))
        };
        let status = verdict.families.iter().map(|(family, updated, healthy)| {
            let status = FamilyHealth {
                last_updated: self.print(*updated),
                healthy: *healthy,
            };
            (family.as_str(), status)
        });
        json(
            good,
            &Health {
                last_updated,
                current_time: self.print(now.wall),
                node_eligible: node_matters.then_some(verdict.eligible),
                healthy: verdict.healthy,
                status: status.collect(),
            },
        )
    }

    /// Ours: kube-proxy cannot say that it has not begun.
    fn readyz(&self, now: Time) -> Response {
        let (ready, families) = {
            let state = self.lock();
            (state.judge(now.steady).ready, state.families)
        };
        let status = Family::ALL
            .into_iter()
            .filter(|family| families[*family].served)
            .map(|family| (family.as_str(), families[family].programmed));
        let body = Readiness {
            current_time: self.print(now.wall),
            ready,
            programmed: status.collect(),
        };
        json(ready, &body).1
    }

    fn print(&self, time: Timestamp) -> String {
        rfc3339(time, &self.zone)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every write is a plain assignment, so what a panic left behind is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What holds at `now`.
    fn judge(&self, now: Instant) -> Verdict {
        let all = || {
            Family::ALL
                .into_iter()
                .map(|family| (family, self.families[family]))
        };
        let families: Vec<_> = all()
            .filter_map(|(family, progress)| {
                let waited = progress
                    .pending
                    .map(|since| now.saturating_duration_since(since));
                let healthy = waited.is_none_or(|waited| waited < self.timeout);
                Some((family, progress.updated?, healthy))
            })
            .collect();
        Verdict {
            healthy: families.iter().all(|(_, _, healthy)| *healthy),
            eligible: self.node == NodeState::Eligible,
            ready: all().all(|(_, progress)| progress.programmed || !progress.served),
            families,
        }
    }
}

/// The body of `/healthz` and `/livez`; the order of the fields is kube-proxy's.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Health {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'static str, FamilyHealth>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyHealth {
    last_updated: String,
    healthy: bool,
}

/// The body of `/readyz`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Readiness {
    current_time: String,
    ready: bool,
    programmed: BTreeMap<&'static str, bool>,
}

fn json(good: bool, body: &impl Serialize) -> (StatusCode, Response) {
    let status = if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = serde_json::to_string(body).expect("strings and booleans are always JSON");
    (status, Response::new(status, JSON, body).nosniff())
}
