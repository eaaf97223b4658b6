//! The health checks of the metrics server as metrics: Kubernetes' "service level indicators".
//!
//! They live apart from the others because a client may reset them.

use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGaugeVec};

use super::{Registry, Shelf, names};

/// Results of health checks.
#[derive(Debug)]
pub(super) struct Slis {
    registry: Registry,
    last: IntGaugeVec,
    total: IntCounterVec,
}

impl Slis {
    pub(super) fn new() -> Self {
        let shelf = Shelf {
            // They are the same in every mode.
            groups: &[],
            registry: Registry::new(),
        };
        Self {
            last: shelf.gauges(&names::HEALTHCHECK),
            total: shelf.counters(&names::HEALTHCHECKS),
            registry: shelf.registry,
        }
    }

    pub(super) fn observe(&self, name: &str, passed: bool) {
        const TYPE: &str = "healthz";
        let status = if passed { "success" } else { "error" };
        self.last
            .with_label_values(&[name, TYPE])
            .set(i64::from(passed));
        self.total.with_label_values(&[name, status, TYPE]).inc();
    }

    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        self.registry.gather()
    }

    pub(super) fn reset(&self) {
        self.last.reset();
        self.total.reset();
    }
}
