//! Health ports on real sockets, driven from a plain thread as sync does.

use std::net::TcpListener;
use std::time::Duration;

use jiff::tz::TimeZone;

use super::*;
use crate::clock::Time;
use crate::http::testing::{Client, Runtime, ask, eventually, free_port, refuses, status};
use crate::metrics::Metrics;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Ports on the loopback address alone, and a proxy that is healthy.
struct Bench {
    health: ServiceHealth,
    proxy: Arc<ProxyHealth>,
    runtime: Runtime,
}

impl Bench {
    fn new() -> Self {
        let metrics = Arc::new(Metrics::new(crate::modes::find("nftables").unwrap()));
        let period = Duration::from_secs(30);
        let proxy = ProxyHealth::new(&Family::ALL, period, TimeZone::UTC, metrics);
        let proxy = Arc::new(proxy);
        let runtime = Runtime::start();
        let mut bench = Self {
            health: service_health(&runtime, Family::V4, Some(proxy.clone())),
            proxy,
            runtime,
        };
        assert_eq!(bench.listen_on(&[LOCAL]), []);
        bench
    }

    fn listen_on(&mut self, local: &[IpAddr]) -> Vec<Refusal> {
        let loopback = NodePorts::Within(Box::new(["127.0.0.0/8".parse().unwrap()]));
        self.health.listen_on(&loopback, local);
        self.health.apply(BTreeMap::new())
    }

    fn apply(&mut self, name: &str, check: Option<(u16, usize)>) -> Vec<Refusal> {
        self.health.apply(changes(name, check))
    }
}

fn service_health(
    runtime: &Runtime,
    family: Family,
    proxy: Option<Arc<ProxyHealth>>,
) -> ServiceHealth {
    ServiceHealth::new(
        runtime.handle.clone(),
        family,
        "node-1".into(),
        proxy,
        Arc::new(Time::now),
    )
}

fn changes(name: &str, check: Option<(u16, usize)>) -> BTreeMap<ServiceKey, Option<HealthCheck>> {
    let check = check.map(|(port, local_ready)| HealthCheck {
        port: Port::new(port.into()).unwrap(),
        local_ready,
    });
    BTreeMap::from([(ServiceKey::new("default", name), check)])
}

fn status_at(ip: IpAddr, port: u16) -> String {
    status(&ask((ip, port).into(), "GET /")).to_owned()
}

#[test]
fn core_066_every_byte_of_a_services_answer() {
    let mut bench = Bench::new();
    let port = free_port("127.0.0.1");
    assert_eq!(bench.apply("lb1", Some((port, 3))), []);
    let good = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
                X-Content-Type-Options: nosniff\r\nX-Load-Balancing-Endpoint-Weight: 3\r\n\
                Date: now\r\nContent-Length: 114\r\n\r\n\
                {\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"lb1\"\n\t},\n\
                \t\"localEndpoints\": 3,\n\t\"serviceProxyHealthy\": true\n}";
    let mut client = Client::connect((LOCAL, port).into());
    for line in [
        "GET /",
        "GET /any/path?and=query",
        "POST /",
        "DELETE /healthz",
    ] {
        assert_eq!(client.ask(line), good, "{line}");
    }
    assert_eq!(
        client.ask("HEAD /") + good.split_once("\r\n\r\n").unwrap().1,
        good
    );
}

#[test]
fn core_068_no_endpoint_here_or_a_proxy_that_is_stuck_is_503() {
    let mut bench = Bench::new();
    let port = free_port("127.0.0.1");
    bench.apply("lb1", Some((port, 0)));
    let mut client = Client::connect((LOCAL, port).into());
    let answer = client.ask("GET /");
    assert_eq!(status(&answer), "503");
    assert!(answer.contains("X-Load-Balancing-Endpoint-Weight: 0\r\n"));
    assert!(answer.contains("\"localEndpoints\": 0,\n\t\"serviceProxyHealthy\": true\n"));

    bench.apply("lb1", Some((port, 2)));
    assert_eq!(status(&client.ask("GET /")), "200");

    let long_ago = Time {
        steady: Time::now()
            .steady
            .checked_sub(Duration::from_mins(1))
            .unwrap(),
        ..Time::now()
    };
    bench.proxy.started(Family::V6, long_ago);
    bench.proxy.queued(Family::V6, long_ago);
    let answer = client.ask("GET /");
    assert_eq!(status(&answer), "503");
    assert!(answer.contains("X-Load-Balancing-Endpoint-Weight: 2\r\n"));
    assert!(answer.contains("\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": false\n"));

    bench.proxy.updated(Family::V6, Time::now());
    assert_eq!(status(&client.ask("GET /")), "200");
}

#[test]
fn without_a_health_server_the_proxy_counts_as_healthy() {
    let runtime = Runtime::start();
    let mut health = service_health(&runtime, Family::V4, None);
    let port = free_port("0.0.0.0");
    assert_eq!(health.apply(changes("lb1", Some((port, 1)))), []);
    assert_eq!(status_at(LOCAL, port), "200");
}

#[test]
fn core_069_a_moved_port_closes_the_old_one_and_what_stays_keeps_its_connections() {
    let mut bench = Bench::new();
    let (old, new, kept) = (
        free_port("127.0.0.1"),
        free_port("127.0.0.1"),
        free_port("127.0.0.1"),
    );
    bench.apply("moves", Some((old, 1)));
    bench.apply("stays", Some((kept, 1)));
    let mut on_old = Client::connect((LOCAL, old).into());
    let mut on_kept = Client::connect((LOCAL, kept).into());
    assert_eq!(status(&on_old.ask("GET /")), "200");
    assert_eq!(status(&on_kept.ask("GET /")), "200");

    assert_eq!(bench.apply("moves", Some((new, 0))), []);
    assert!(refuses((LOCAL, old).into()));
    assert!(on_old.is_closed(), "live connections are cut");
    assert_eq!(status_at(LOCAL, new), "503", "the count is the new one");

    bench.apply("stays", Some((kept, 5)));
    let answer = on_kept.ask("GET /");
    assert!(answer.contains("X-Load-Balancing-Endpoint-Weight: 5\r\n"));

    bench.apply("moves", None);
    assert!(refuses((LOCAL, new).into()));
    assert_eq!(status(&on_kept.ask("GET /")), "200");
}

#[test]
fn a_port_may_pass_from_one_service_to_another_in_one_call() {
    let mut bench = Bench::new();
    let port = free_port("127.0.0.1");
    bench.apply("z-old", Some((port, 1)));
    let mut swap = changes("a-new", Some((port, 4)));
    swap.extend(changes("z-old", None));
    assert_eq!(bench.health.apply(swap), []);
    assert!(ask((LOCAL, port).into(), "GET /").contains("\"name\": \"a-new\""));
}

#[test]
fn core_070_a_port_in_use_is_reported_and_tried_again() {
    let mut bench = Bench::new();
    let taken = TcpListener::bind((LOCAL, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let refusal = Refusal {
        service: ServiceKey::new("default", "lb1"),
        note: format!(
            "node node-1 failed to start healthcheck \"default/lb1\" on port {port}: \
             listen tcp4 127.0.0.1:{port}: bind: address already in use"
        ),
    };
    let refusals = [refusal];
    assert_eq!(bench.apply("lb1", Some((port, 1))), refusals);
    assert_eq!(bench.health.apply(BTreeMap::new()), refusals);
    assert_eq!(
        (EVENT_REASON, EVENT_ACTION),
        ("FailedToStartServiceHealthcheck", "Listen")
    );
    drop(taken);
    assert_eq!(bench.health.apply(BTreeMap::new()), []);
    assert_eq!(status_at(LOCAL, port), "200");
}

#[test]
fn a_refused_service_that_goes_is_not_tried_again() {
    let mut bench = Bench::new();
    let taken = TcpListener::bind((LOCAL, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    assert_eq!(bench.apply("lb1", Some((port, 1))).len(), 1);
    assert_eq!(bench.apply("lb1", None), []);
    drop(taken);
    assert_eq!(bench.health.apply(BTreeMap::new()), []);
    assert!(refuses((LOCAL, port).into()));
}

#[test]
fn all_addresses_of_a_service_open_or_none() {
    let mut bench = Bench::new();
    let taken = TcpListener::bind((OTHER, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    bench.listen_on(&[LOCAL, OTHER]);
    assert_eq!(bench.apply("lb1", Some((port, 1))).len(), 1);
    eventually("what was opened is closed", || {
        refuses((LOCAL, port).into())
    });
}

#[test]
fn core_071_ports_listen_where_node_ports_do() {
    let runtime = Runtime::start();
    let mut health = service_health(&runtime, Family::V4, None);
    let only_other = NodePorts::Within(Box::new(["127.0.0.2/32".parse().unwrap()]));
    health.listen_on(&only_other, &[LOCAL, OTHER, "::1".parse().unwrap()]);
    let port = free_port("127.0.0.2");
    assert_eq!(health.apply(changes("lb1", Some((port, 1)))), []);
    assert_eq!(status_at(OTHER, port), "200");
    assert!(refuses((LOCAL, port).into()));

    // Every address, and of this family alone: the same port of IPv6 is free.
    let port = free_port("0.0.0.0");
    let (mut v4, mut v6) = (
        service_health(&runtime, Family::V4, None),
        service_health(&runtime, Family::V6, None),
    );
    assert_eq!(v6.apply(changes("lb1", Some((port, 6)))), []);
    assert!(refuses((LOCAL, port).into()));
    assert_eq!(v4.apply(changes("lb1", Some((port, 4)))), []);
    for (ip, weight) in [(LOCAL, 4), (Ipv6Addr::LOCALHOST.into(), 6)] {
        let answer = ask((ip, port).into(), "GET /");
        assert!(
            answer.contains(&format!("Weight: {weight}\r\n")),
            "{answer}"
        );
    }
}

#[test]
fn new_addresses_are_taken_up_and_others_left_alone() {
    let mut bench = Bench::new();
    let port = free_port("127.0.0.1");
    bench.apply("lb1", Some((port, 1)));
    let mut client = Client::connect((LOCAL, port).into());
    assert_eq!(status(&client.ask("GET /")), "200");

    assert_eq!(bench.listen_on(&[OTHER, LOCAL]), []);
    assert_eq!(status_at(OTHER, port), "200");
    assert_eq!(status(&client.ask("GET /")), "200", "still connected");

    assert_eq!(bench.listen_on(&[OTHER]), []);
    assert!(client.is_closed());
    assert!(refuses((LOCAL, port).into()));
    assert_eq!(status_at(OTHER, port), "200");

    assert_eq!(bench.listen_on(&[]), []);
    assert!(refuses((OTHER, port).into()));
    assert_eq!(bench.listen_on(&[LOCAL]), [], "none at first is no loss");
    assert_eq!(status_at(LOCAL, port), "200");
}

#[test]
fn a_new_address_that_is_refused_leaves_the_others_serving() {
    let mut bench = Bench::new();
    let taken = TcpListener::bind((OTHER, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    assert_eq!(bench.apply("lb1", Some((port, 1))), []);
    assert_eq!(bench.listen_on(&[LOCAL, OTHER]).len(), 1);
    assert_eq!(status_at(LOCAL, port), "200");
    drop(taken);
    assert_eq!(bench.health.apply(BTreeMap::new()), []);
    assert_eq!(status_at(OTHER, port), "200");
}

#[test]
fn single_addresses_give_way_to_the_wildcard_and_come_back() {
    let mut bench = Bench::new();
    let port = free_port("0.0.0.0");
    bench.apply("lb1", Some((port, 1)));
    assert!(refuses((OTHER, port).into()));
    bench.health.listen_on(&NodePorts::All, &[LOCAL]);
    assert_eq!(bench.health.apply(BTreeMap::new()), []);
    assert_eq!(status_at(OTHER, port), "200");
    assert_eq!(bench.listen_on(&[LOCAL]), []);
    assert!(refuses((OTHER, port).into()));
    assert_eq!(status_at(LOCAL, port), "200");
    let nowhere = NodePorts::Within(Box::default());
    bench.health.listen_on(&nowhere, &[LOCAL]);
    assert_eq!(bench.health.apply(BTreeMap::new()), []);
    assert!(refuses((LOCAL, port).into()), "no address is chosen");
}

#[test]
fn addresses_that_need_an_interface_are_left_out() {
    let runtime = Runtime::start();
    let mut health = service_health(&runtime, Family::V6, None);
    let all_but_all = NodePorts::Within(Box::new([
        "::/1".parse().unwrap(),
        "8000::/1".parse().unwrap(),
    ]));
    let local = ["fe80::1".parse().unwrap(), Ipv6Addr::LOCALHOST.into()];
    health.listen_on(&all_but_all, &local);
    let port = free_port("::1");
    assert_eq!(health.apply(changes("lb1", Some((port, 1)))), []);
    assert_eq!(status_at(Ipv6Addr::LOCALHOST.into(), port), "200");
}

#[test]
fn dropping_it_closes_every_port() {
    let mut bench = Bench::new();
    let port = free_port("127.0.0.1");
    bench.apply("lb1", Some((port, 1)));
    assert_eq!(status_at(LOCAL, port), "200");
    let Bench {
        health, runtime, ..
    } = bench;
    drop(health);
    assert!(refuses((LOCAL, port).into()));
    drop(runtime);
}

#[test]
fn whatever_a_name_holds_the_body_is_json() {
    let odd = ServiceKey::new("n\"s", "a\\b\n");
    let parsed: serde_json::Value = serde_json::from_str(&super::body(&odd, 1, true)).unwrap();
    assert_eq!(parsed["service"]["namespace"], "n\"s");
    assert_eq!(parsed["service"]["name"], "a\\b\n");
}
