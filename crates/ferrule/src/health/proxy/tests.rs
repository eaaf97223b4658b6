//! The health server over real sockets, with the clock in the test's hand.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::http::testing::{Client, Runtime, ask, body, loopback, status};
use crate::http::{Network, Server};

/// The health server of a proxy for both families, syncing every thirty seconds.
struct Bench {
    health: Arc<ProxyHealth>,
    metrics: Arc<Metrics>,
    start: Time,
    /// Nanoseconds since the start. Every look at the clock takes one microsecond.
    elapsed: Arc<AtomicU64>,
    server: Server,
    _runtime: Runtime,
}

impl Bench {
    fn new() -> Self {
        let metrics = Arc::new(Metrics::new(crate::modes::find("nftables").unwrap()));
        let period = Duration::from_secs(30);
        let health = ProxyHealth::new(&Family::ALL, period, TimeZone::UTC, metrics.clone());
        let health = Arc::new(health);
        let start = Time {
            steady: Time::now().steady,
            wall: "2025-01-02T03:04:00Z".parse().unwrap(),
        };
        let elapsed = Arc::new(AtomicU64::new(0));
        let clock: Clock = {
            let elapsed = elapsed.clone();
            Arc::new(move || after(start, elapsed.fetch_add(1_000, Ordering::Relaxed)))
        };
        let runtime = Runtime::start();
        let handler = health.handler(clock);
        let server = Server::open(&runtime.handle, Network::Tcp, loopback(), handler).unwrap();
        Self {
            health,
            metrics,
            start,
            elapsed,
            server,
            _runtime: runtime,
        }
    }

    /// Both families began and were programmed at the start; the node may be used.
    fn running() -> Self {
        let bench = Self::new();
        bench.health.set_node(NodeState::Eligible);
        for family in Family::ALL {
            bench.health.started(family, bench.start);
            bench.health.updated(family, bench.start);
        }
        bench
    }

    fn address(&self) -> SocketAddr {
        self.server.address()
    }

    fn at(&self, seconds: u64) -> Time {
        after(self.start, seconds * 1_000_000_000)
    }

    /// The answer to GET when this many seconds have passed.
    fn get(&self, path: &str, seconds: u64) -> String {
        self.elapsed
            .store(seconds * 1_000_000_000, Ordering::Relaxed);
        ask(self.address(), &format!("GET {path}"))
    }

    fn status(&self, path: &str, seconds: u64) -> String {
        status(&self.get(path, seconds)).to_owned()
    }
}

fn after(start: Time, nanoseconds: u64) -> Time {
    let passed = Duration::from_nanos(nanoseconds);
    Time {
        steady: start.steady + passed,
        wall: start.wall + passed,
    }
}

#[test]
fn core_056_healthy_from_the_start_before_the_first_sync() {
    let bench = Bench::new();
    bench.health.set_node(NodeState::Eligible);
    let answer = bench.get("/healthz", 1);
    assert_eq!(status(&answer), "200");
    assert_eq!(
        body(&answer),
        r#"{"lastUpdated":"2025-01-02T03:04:01.000001Z","currentTime":"2025-01-02T03:04:01Z","nodeEligible":true,"healthy":true}"#
    );
    bench.health.queued(Family::V4, bench.at(0));
    assert_eq!(
        bench.status("/healthz", 1000),
        "200",
        "no loop began, so none is stuck"
    );
}

#[test]
fn core_057_a_change_that_waits_two_periods_makes_it_unhealthy_until_it_is_in() {
    let bench = Bench::running();
    bench.health.queued(Family::V4, bench.at(10));
    for path in ["/healthz", "/livez"] {
        assert_eq!(bench.status(path, 69), "200", "{path}");
        assert_eq!(bench.status(path, 70), "503", "{path}");
    }
    bench.health.updated(Family::V4, bench.at(80));
    for path in ["/healthz", "/livez"] {
        assert_eq!(bench.status(path, 1000), "200", "{path}");
    }
    bench.health.queued(Family::V4, bench.at(2000));
    bench.health.set_sync_period(Duration::from_secs(2));
    assert_eq!(bench.status("/livez", 2003), "200");
    assert_eq!(bench.status("/livez", 2004), "503");
}

#[test]
fn core_058_a_later_change_does_not_push_the_deadline_back() {
    let bench = Bench::running();
    bench.health.queued(Family::V6, bench.at(10));
    bench.health.queued(Family::V6, bench.at(60));
    assert_eq!(bench.status("/livez", 69), "200");
    assert_eq!(bench.status("/livez", 70), "503");
}

#[test]
fn core_059_a_node_that_leaves_is_alive_but_not_eligible() {
    let bench = Bench::running();
    bench.health.set_node(NodeState::Leaving);
    let answer = bench.get("/healthz", 5);
    assert_eq!(status(&answer), "503");
    assert_eq!(
        body(&answer),
        r#"{"lastUpdated":"2025-01-02T03:04:00Z","currentTime":"2025-01-02T03:04:05Z","nodeEligible":false,"healthy":true,"status":{"IPv4":{"lastUpdated":"2025-01-02T03:04:00Z","healthy":true},"IPv6":{"lastUpdated":"2025-01-02T03:04:00Z","healthy":true}}}"#
    );
    let answer = bench.get("/livez", 5);
    assert_eq!(status(&answer), "200");
    assert!(!answer.contains("nodeEligible"), "{answer}");
    bench.health.set_node(NodeState::Eligible);
    assert_eq!(bench.status("/healthz", 6), "200");
}

#[test]
fn core_060_an_unknown_node_is_not_eligible() {
    let bench = Bench::new();
    let answer = bench.get("/healthz", 0);
    assert_eq!(status(&answer), "503");
    assert_eq!(
        body(&answer),
        r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2025-01-02T03:04:00Z","nodeEligible":false,"healthy":true}"#
    );
    assert_eq!(bench.status("/livez", 0), "200");
}

#[test]
fn core_061_one_stuck_family_is_named_and_makes_the_whole_unhealthy() {
    let bench = Bench::running();
    bench.health.updated(Family::V6, bench.at(40));
    bench.health.queued(Family::V4, bench.at(10));
    let answer = bench.get("/healthz", 90);
    assert_eq!(status(&answer), "503");
    assert_eq!(
        body(&answer),
        r#"{"lastUpdated":"2025-01-02T03:04:40Z","currentTime":"2025-01-02T03:05:30Z","nodeEligible":true,"healthy":false,"status":{"IPv4":{"lastUpdated":"2025-01-02T03:04:00Z","healthy":false},"IPv6":{"lastUpdated":"2025-01-02T03:04:40Z","healthy":true}}}"#
    );
}

#[test]
fn core_062_a_good_answer_says_now_and_a_bad_one_when_it_last_worked() {
    let bench = Bench::running();
    bench.health.updated(Family::V4, bench.at(3));
    bench.health.updated(Family::V6, bench.at(2));
    let good = bench.get("/livez", 20);
    assert!(
        body(&good).starts_with(r#"{"lastUpdated":"2025-01-02T03:04:20.000001Z""#),
        "{good}"
    );
    bench.health.queued(Family::V6, bench.at(20));
    let bad = bench.get("/livez", 80);
    assert!(
        body(&bad).starts_with(r#"{"lastUpdated":"2025-01-02T03:04:03Z""#),
        "{bad}"
    );
}

#[test]
fn core_063_every_byte_of_an_answer() {
    let bench = Bench::running();
    let status = r#""status":{"IPv4":{"lastUpdated":"2025-01-02T03:04:00Z","healthy":true},"IPv6":{"lastUpdated":"2025-01-02T03:04:00Z","healthy":true}}}"#;
    let times =
        r#"{"lastUpdated":"2025-01-02T03:04:07.000001Z","currentTime":"2025-01-02T03:04:07Z","#;
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
                X-Content-Type-Options: nosniff\r\nDate: now\r\n";
    let healthz = format!(r#"{times}"nodeEligible":true,"healthy":true,{status}"#);
    let livez = format!(r#"{times}"healthy":true,{status}"#);
    for (path, body) in [("/healthz", &healthz), ("/livez?why", &livez)] {
        let head = format!("{head}Content-Length: {}\r\n\r\n", body.len());
        assert_eq!(bench.get(path, 7), format!("{head}{body}"));
        let mut client = Client::connect(bench.address());
        bench.elapsed.store(7_000_000_000, Ordering::Relaxed);
        assert_eq!(
            client.ask_with(&format!("POST {path}"), "", "x=y"),
            format!("{head}{body}"),
            "any method is served"
        );
        bench.elapsed.store(7_000_000_000, Ordering::Relaxed);
        assert_eq!(client.ask(&format!("HEAD {path}")), head);
    }
    for path in ["/", "/healthz/", "/Healthz", "/metrics"] {
        assert_eq!(
            bench.get(path, 7),
            "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain; charset=utf-8\r\n\
             X-Content-Type-Options: nosniff\r\nDate: now\r\nContent-Length: 19\r\n\r\n\
             404 page not found\n"
        );
    }
}

#[test]
fn core_077_answers_are_counted_by_status() {
    let bench = Bench::running();
    bench.get("/healthz", 1);
    bench.get("/healthz", 1);
    bench.health.set_node(NodeState::Leaving);
    bench.get("/healthz", 1);
    bench.get("/livez", 1);
    bench.get("/readyz", 1);
    let shown = bench.metrics.render();
    let samples: Vec<_> = shown
        .lines()
        .filter(|line| line.starts_with("kubeproxy_proxy_"))
        .collect();
    assert_eq!(
        samples,
        [
            r#"kubeproxy_proxy_healthz_total{code="200"} 2"#,
            r#"kubeproxy_proxy_healthz_total{code="503"} 1"#,
            r#"kubeproxy_proxy_livez_total{code="200"} 1"#,
        ]
    );
}

#[test]
fn ready_when_every_family_was_programmed_once() {
    let bench = Bench::new();
    for family in Family::ALL {
        bench.health.started(family, bench.at(0));
    }
    bench.health.updated(Family::V4, bench.at(1));
    let answer = bench.get("/readyz", 2);
    assert_eq!(status(&answer), "503");
    assert_eq!(
        body(&answer),
        r#"{"currentTime":"2025-01-02T03:04:02Z","ready":false,"programmed":{"IPv4":true,"IPv6":false}}"#
    );
    bench.health.updated(Family::V6, bench.at(3));
    bench.health.queued(Family::V6, bench.at(4));
    let answer = bench.get("/readyz", 500);
    assert_eq!(status(&answer), "200", "ready once is ready for good");
    assert_eq!(
        body(&answer),
        r#"{"currentTime":"2025-01-02T03:12:20Z","ready":true,"programmed":{"IPv4":true,"IPv6":true}}"#
    );
}

#[test]
fn a_family_that_is_not_served_is_not_waited_for() {
    let metrics = Arc::new(Metrics::new(crate::modes::find("nftables").unwrap()));
    let period = Duration::from_secs(30);
    let health = ProxyHealth::new(&[Family::V4], period, TimeZone::UTC, metrics);
    let now = Time::now();
    assert!(!health.lock().judge(now.steady).ready);
    health.updated(Family::V4, now);
    assert!(health.lock().judge(now.steady).ready);
}

#[test]
fn a_clock_that_was_set_back_does_not_make_it_unhealthy() {
    let bench = Bench::running();
    bench.health.queued(Family::V4, bench.at(100));
    let now = Time {
        steady: bench.at(101).steady,
        wall: bench.start.wall - Duration::from_hours(24),
    };
    assert!(bench.health.is_healthy(now));
}
