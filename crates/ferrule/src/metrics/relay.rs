//! What the relay of mode userspace has done, per Service port: read at every scrape, never stored.
//!
//! A Service port is listed once it has had a client. At most [`MOST`] are, those first that were
//! opened first; how many are left out is a metric too. The numbers of a Service that is deleted go
//! with it.

use std::collections::BTreeMap;

use ferrule_core::model::Protocol;
use ferrule_dataplane::userspace::relay::{Descriptors, Key, Stats};
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};

use super::names::{self, Declared, Kind};
use super::process::family;

/// Service ports that are listed. Each has up to forty series.
const MOST: usize = 1_000;

/// What the relay says at a scrape.
#[derive(Clone, Debug, Default)]
pub struct RelayStats {
    /// What every open Service port has done.
    pub ports: BTreeMap<Key, Stats>,
    /// Descriptors of clients and endpoints.
    pub descriptors: Descriptors,
}

/// For which Service ports a metric means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    All,
    Tcp,
    Udp,
}

impl Of {
    fn includes(self, protocol: Protocol) -> bool {
        match self {
            Self::All => true,
            Self::Tcp => protocol == Protocol::Tcp,
            Self::Udp => protocol == Protocol::Udp,
        }
    }
}

/// The values of one metric: each with the value of its last label, if it has one of its own.
type Values = Vec<(Option<&'static str>, f64)>;

/// A metric, for whom it is, and where its values are.
type Row = (&'static Declared, Of, fn(&Stats) -> Values);

/// Metrics of one number or several per Service port.
const NUMBERS: [Row; 15] = [
    (&names::RELAY_CONNECTIONS, Of::Tcp, |stats| {
        one(stats.lanes.values().map(|lane| lane.accepted).sum())
    }),
    (&names::RELAY_DENIED, Of::Tcp, |stats| {
        one(stats.lanes.values().map(|lane| lane.denied).sum())
    }),
    (&names::RELAY_OPEN, Of::Tcp, |stats| one(long(stats.open))),
    (&names::RELAY_TRANSPARENT, Of::Tcp, |stats| {
        one(stats.transparent)
    }),
    (&names::RELAY_EXPIRED, Of::Tcp, |stats| one(stats.expired)),
    (&names::RELAY_ASSOCIATED, Of::Udp, |stats| {
        one(stats.associated)
    }),
    (&names::RELAY_ASSOCIATIONS, Of::Udp, |stats| {
        one(long(stats.associations))
    }),
    (&names::RELAY_EVICTED, Of::Udp, |stats| one(stats.evicted)),
    (&names::RELAY_DROPPED, Of::Udp, |stats| {
        one(stats.dropped_datagrams)
    }),
    (&names::RELAY_BYTES, Of::All, |stats| {
        vec![
            (Some("to_endpoints"), float(stats.bytes_to_endpoints)),
            (Some("to_clients"), float(stats.bytes_to_clients)),
        ]
    }),
    (&names::RELAY_RETRIES, Of::All, |stats| one(stats.retries)),
    (&names::RELAY_FAILURES, Of::All, |stats| {
        let failures = stats.failures.iter();
        failures
            .map(|(cause, count)| (Some(cause.as_str()), float(*count)))
            .collect()
    }),
    (&names::RELAY_UNSERVED, Of::All, |stats| {
        vec![
            (Some("no_endpoint"), float(stats.no_endpoint)),
            (Some("all_failed"), float(stats.given_up)),
        ]
    }),
    (&names::RELAY_PAUSES, Of::Tcp, |stats| one(stats.pauses)),
    (&names::RELAY_EJECTED, Of::All, |stats| {
        one(long(stats.ejected))
    }),
];

fn one(number: u64) -> Values {
    vec![(None, float(number))]
}

fn long(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the exposition knows no other numbers"
)]
fn float(number: u64) -> f64 {
    number as f64
}

/// Everything, as families.
pub(super) fn families(stats: &RelayStats) -> Vec<MetricFamily> {
    let mut used: Vec<_> = stats
        .ports
        .iter()
        .filter(|(_, stats)| stats.has_been_used())
        .collect();
    used.sort_by_key(|(_, stats)| stats.number);
    let unlisted = used.len().saturating_sub(MOST);
    used.truncate(MOST);
    used.sort_by_key(|(key, _)| *key);
    let Descriptors { used: open, most } = stats.descriptors;
    let mut families = vec![
        family(&names::RELAY_UNLISTED, float(long(unlisted))),
        family(&names::RELAY_DESCRIPTORS, float(long(open))),
        family(&names::RELAY_MAX_DESCRIPTORS, float(long(most))),
    ];
    for (declared, of, values) in NUMBERS {
        let its = used
            .iter()
            .filter(|(key, _)| of.includes(key.port.protocol));
        let metrics = its.flat_map(|(key, stats)| {
            let values = values(stats).into_iter();
            values.map(|(last, value)| number(declared, key, last, value))
        });
        families.extend(named(declared, metrics.collect()));
    }
    let connected = used.iter().filter(|(_, stats)| stats.connect.count() > 0);
    let connected = connected.map(|(key, stats)| histogram(key, &stats.connect));
    families.extend(named(&names::RELAY_CONNECT, connected.collect()));
    families
}

/// A family, if there is anything in it.
fn named(declared: &Declared, metrics: Vec<Metric>) -> Option<MetricFamily> {
    if metrics.is_empty() {
        return None;
    }
    let mut family = MetricFamily::default();
    family.set_name(declared.name.to_owned());
    family.set_help(declared.help.to_owned());
    family.set_field_type(match declared.kind {
        Kind::Counter => MetricType::COUNTER,
        Kind::Gauge => MetricType::GAUGE,
        Kind::Histogram(_) => MetricType::HISTOGRAM,
    });
    family.set_metric(metrics);
    Some(family)
}

fn number(declared: &Declared, key: &Key, last: Option<&str>, value: f64) -> Metric {
    let mut metric = Metric::from_label(labels(key));
    if let (Some(last), Some(name)) = (last, declared.labels.last()) {
        let mut labels = metric.take_label();
        labels.push(label(name, last));
        metric.set_label(labels);
    }
    if declared.kind == Kind::Counter {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    metric
}

fn histogram(key: &Key, times: &ferrule_dataplane::userspace::relay::Histogram) -> Metric {
    let mut so_far = 0;
    let buckets = times.buckets.iter().map(|(bound, count)| {
        so_far += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound.as_secs_f64());
        bucket.set_cumulative_count(so_far);
        bucket
    });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(times.count());
    histogram.set_sample_sum(times.sum.as_secs_f64());
    let mut metric = Metric::from_label(labels(key));
    metric.set_histogram(histogram);
    metric
}

fn labels(key: &Key) -> Vec<LabelPair> {
    let port = &key.port;
    let values = [
        key.family.as_str(),
        port.service.namespace(),
        port.service.name(),
        &port.name,
        port.protocol.as_str(),
    ];
    let labels = names::SERVICE_PORT.iter().zip(values);
    labels.map(|(name, value)| label(name, value)).collect()
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ferrule_core::model::{Family, PortKey, ServiceKey};
    use ferrule_dataplane::userspace::relay::{Class, Failure, Histogram, LaneStats};

    use super::*;
    use crate::metrics::Metrics;

    fn key(service: &str, protocol: Protocol) -> Key {
        Key {
            port: PortKey {
                service: ServiceKey::new("shop", service),
                name: "web".into(),
                protocol,
            },
            family: Family::V4,
        }
    }

    fn used(number: u64) -> Stats {
        let lane = |accepted, denied| LaneStats { accepted, denied };
        Stats {
            number,
            lanes: [(Class::Internal, lane(3, 0)), (Class::External, lane(4, 1))].into(),
            open: 2,
            bytes_to_clients: 1 << 40,
            failures: [(Failure::Refused, 5), (Failure::TimedOut, 0)].into(),
            given_up: 1,
            connect: Histogram {
                buckets: vec![
                    (Duration::from_micros(250), 4),
                    (Duration::from_millis(1), 2),
                ],
                longer: 1,
                sum: Duration::from_millis(1500),
            },
            ..Stats::default()
        }
    }

    fn shown(ports: BTreeMap<Key, Stats>) -> String {
        let metrics = Metrics::new(crate::modes::find("userspace").unwrap());
        metrics.show_relay(move || RelayStats {
            ports: ports.clone(),
            descriptors: Descriptors { used: 4, most: 99 },
        });
        metrics.render()
    }

    #[test]
    fn a_service_port_with_clients_has_series_and_one_without_has_none() {
        let idle = Stats::default();
        let text = shown(
            [
                (key("a", Protocol::Tcp), used(1)),
                (key("b", Protocol::Tcp), idle),
            ]
            .into(),
        );
        let series = |name: &str, more: &str| {
            let labels = "ip_family=\"IPv4\",namespace=\"shop\",port=\"web\",protocol=\"TCP\"";
            let line = text.lines().find(|line| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with('{'))
                    && line.contains("service=\"a\"")
                    && labels.split(',').all(|label| line.contains(label))
                    && line.contains(more)
            });
            line.map(|line| line.rsplit_once(' ').unwrap().1.to_owned())
        };
        let value = |name: &str, more: &str| series(name, more).unwrap_or_default();
        assert_eq!(value("ferrule_relay_connections_total", ""), "7");
        assert_eq!(value("ferrule_relay_denied_connections_total", ""), "1");
        assert_eq!(value("ferrule_relay_open_connections", ""), "2");
        assert_eq!(
            value("ferrule_relay_bytes_total", "direction=\"to_clients\""),
            "1099511627776"
        );
        assert_eq!(
            value("ferrule_relay_failures_total", "cause=\"refused\""),
            "5"
        );
        assert_eq!(
            value(
                "ferrule_relay_unserved_clients_total",
                "cause=\"all_failed\""
            ),
            "1"
        );
        let bucket = "ferrule_relay_connect_duration_seconds_bucket";
        assert_eq!(value(bucket, "le=\"0.001\""), "6");
        assert_eq!(value(bucket, "le=\"+Inf\""), "7");
        assert_eq!(
            value("ferrule_relay_connect_duration_seconds_sum", ""),
            "1.5"
        );
        // It is about datagrams.
        assert_eq!(series("ferrule_relay_dropped_datagrams_total", ""), None);
        assert!(!text.contains("service=\"b\""), "{text}");
        assert!(text.contains("\nferrule_relay_descriptors 4\n"), "{text}");
        assert!(text.contains("\nferrule_relay_max_descriptors 99\n"));
    }

    #[test]
    fn the_first_thousand_are_listed_and_the_others_counted() {
        let ports = (0..MOST + 7).map(|at| {
            // Later ones come first by name.
            let name = format!("s{:05}", 10_000 - at);
            (key(&name, Protocol::Tcp), used(at as u64))
        });
        let text = shown(ports.collect());
        let listed = text
            .lines()
            .filter(|line| line.starts_with("ferrule_relay_open_connections{"));
        assert_eq!(listed.count(), MOST);
        assert!(text.contains("service=\"s10000\"") && !text.contains("service=\"s08994\""));
        assert!(text.contains("\nferrule_relay_unlisted_service_ports 7\n"));
    }
}
