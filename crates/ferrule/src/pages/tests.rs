//! The metrics server over real sockets.

use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::http::testing::{Client, Runtime, ask, body, loopback, status};
use crate::http::{Network, Server};

/// A running metrics server.
struct Bench {
    client: Client,
    _server: Server,
    _runtime: Runtime,
}

impl Bench {
    fn new(complete: impl FnOnce(Pages) -> Pages) -> Self {
        let metrics = Arc::new(Metrics::new(crate::modes::find("nftables").unwrap()));
        let configz = || r#"{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration"}}"#;
        let pages = Pages::new(metrics, Box::new(move || configz().to_owned()));
        let handler = complete(pages).handler();
        let runtime = Runtime::start();
        let server = Server::open(&runtime.handle, Network::Tcp, loopback(), handler).unwrap();
        Self {
            client: Client::connect(server.address()),
            _server: server,
            _runtime: runtime,
        }
    }

    fn get(&mut self, path: &str) -> String {
        self.client.ask(&format!("GET {path}"))
    }

    fn get_as(&mut self, path: &str, accept: &str) -> String {
        let accept = format!("Accept: {accept}\r\n");
        self.client.ask_with(&format!("GET {path}"), &accept, "")
    }

    /// The answer's headers between the status line and the date.
    fn headers(&mut self, path: &str) -> String {
        let answer = self.get(path);
        let (_, rest) = answer.split_once("\r\n").unwrap();
        rest.split_once("Date: now").unwrap().0.to_owned()
    }
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{headers}Date: now\r\nContent-Length: {length}\r\n\r\n{body}")
}

const PLAIN: &str = "Content-Type: text/plain; charset=utf-8\r\n";
const PLAIN_NOSNIFF: &str =
    "Content-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n";

fn with_flagz(pages: Pages) -> Pages {
    let flags = [("v", "2"), ("config", "/etc/x & y"), ("help", "false")];
    pages.with_flagz(flags.map(|(k, v)| (k.to_owned(), v.to_owned())).into())
}

fn with_statusz(pages: Pages) -> Pages {
    let versions = Versions {
        toolchain: "rustc 1.95.0".to_owned(),
        binary: "1.36".to_owned(),
        emulation: "1.36".to_owned(),
    };
    let started = Time {
        steady: Time::now().steady,
        wall: "2026-11-15T09:19:13.25Z".parse().unwrap(),
    };
    let clock: Clock = Arc::new(move || Time {
        steady: started.steady + Duration::from_millis(66_900),
        ..started
    });
    pages.with_statusz(versions, started, TimeZone::UTC, clock)
}

#[test]
fn core_072_the_pages_that_are_always_there() {
    let mut bench = Bench::new(|pages| pages);
    let ok = |headers: &str, body: &str| answer("200 OK", headers, body);
    assert_eq!(bench.get("/healthz"), ok(PLAIN_NOSNIFF, "ok"));
    assert_eq!(bench.get("/healthz/ping"), ok(PLAIN, "ok"));
    assert_eq!(bench.get("/proxyMode"), ok(PLAIN_NOSNIFF, "nftables"));
    assert_eq!(
        bench.get("/configz"),
        ok(
            "Content-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n",
            r#"{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration"}}"#
        )
    );
    for (query, report) in [
        ("verbose", "[+]ping ok\n"),
        ("verbose&exclude=ping", "[+]ping excluded: ok\n"),
        (
            "verbose=1&exclude=foo",
            "[+]ping ok\nwarn: some health checks cannot be excluded: no matches for \"foo\"\n",
        ),
    ] {
        assert_eq!(
            bench.get(&format!("/healthz?{query}")),
            ok(PLAIN_NOSNIFF, &format!("{report}healthz check passed\n")),
        );
    }
    assert_eq!(bench.get("/healthz?exclude=ping"), ok(PLAIN_NOSNIFF, "ok"));
    assert_eq!(
        bench.client.ask("HEAD /proxyMode"),
        ok(PLAIN_NOSNIFF, "nftables").trim_end_matches("nftables")
    );
}

#[test]
fn core_072_metrics_are_labelled_and_say_when_the_process_began() {
    let mut bench = Bench::new(|pages| pages);
    let headers = bench.headers("/metrics");
    let (label, start) = headers
        .trim_end()
        .split_once("\r\nProcess-Start-Time-Unix: ")
        .unwrap();
    assert_eq!(
        label,
        "Content-Type: text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
    );
    let start: i64 = start.parse().unwrap();
    let now = Time::now().wall.as_second();
    assert!((0..86_400).contains(&(now - start)), "{start} of {now}");
    let shown = bench.get("/metrics");
    assert!(body(&shown).contains("\nkubeproxy_sync_proxy_rules_service_changes_total 0\n"));
    assert!(body(&shown).contains(&format!("\nprocess_start_time_seconds {start}")));
}

#[test]
fn core_072_slis_follow_healthz_and_can_be_reset() {
    let mut bench = Bench::new(|pages| pages);
    bench.get("/healthz");
    bench.get("/healthz?verbose");
    bench.get("/healthz?exclude=ping");
    bench.get("/healthz/ping");
    assert!(
        bench
            .headers("/metrics/slis")
            .contains("\r\nProcess-Start-Time-Unix: ")
    );
    let samples = |bench: &mut Bench| {
        let shown = bench.get("/metrics/slis");
        let lines = body(&shown).lines().filter(|line| !line.starts_with('#'));
        let (start, others): (Vec<_>, Vec<_>) =
            lines.partition(|line| line.starts_with("process_start_time_seconds "));
        assert_eq!(start.len(), 1);
        others.join("\n")
    };
    assert_eq!(
        samples(&mut bench),
        "kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1\n\
         kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 2"
    );
    assert_eq!(
        bench.client.ask("DELETE /metrics/slis"),
        answer("200 OK", PLAIN, "metrics reset\n")
    );
    assert_eq!(samples(&mut bench), "");
}

#[test]
fn core_072_paths_are_exact() {
    let mut bench = Bench::new(|pages| pages);
    let not_found = answer("404 Not Found", PLAIN_NOSNIFF, "404 page not found\n");
    for path in [
        "/",
        "/healthz/",
        "/metrics/",
        "/metrics/slis/",
        "/proxyMode/",
        "/configz/",
        "/livez",
        "/readyz",
        "/version",
    ] {
        assert_eq!(bench.get(path), not_found, "{path}");
    }
}

#[test]
fn core_073_profiling_paths_exist_only_when_asked_for() {
    let mut bench = Bench::new(|pages| pages);
    for path in [
        "/debug/pprof",
        "/debug/pprof/",
        "/debug/flags",
        "/debug/flags/v",
    ] {
        assert_eq!(status(&bench.get(path)), "404", "{path}");
    }
    let mut bench = Bench::new(|pages| pages.with_debug(Box::new(|_| {})));
    assert_eq!(
        bench.get("/debug/pprof"),
        answer(
            "302 Found",
            "Content-Type: text/html; charset=utf-8\r\nLocation: /debug/pprof/\r\n",
            "<a href=\"/debug/pprof/\">Found</a>.\n\n"
        )
    );
    let html = "Content-Type: text/html; charset=utf-8\r\n";
    let nosniff = "X-Content-Type-Options: nosniff\r\n";
    assert_eq!(bench.headers("/debug/pprof/"), format!("{html}{nosniff}"));
    for path in ["/debug/flags", "/debug/flags/", "/debug/flags/other"] {
        assert_eq!(bench.headers(path), html, "{path}");
    }
    for name in ["cmdline", "memory", "status", "threads"] {
        assert!(
            bench
                .get("/debug/pprof/")
                .contains(&format!("href=\"{name}\""))
        );
        assert_eq!(status(&bench.get(&format!("/debug/pprof/{name}"))), "200");
    }
    let heap = bench.get("/debug/pprof/heap");
    assert_eq!(status(&heap), "404");
    assert!(heap.contains("not a Go program"), "says why: {heap}");
    assert_eq!(status(&bench.get("/debug")), "404");
    assert_eq!(status(&bench.get("/debug/pprofs")), "404");
}

#[test]
fn core_073_verbosity_is_put() {
    let set = Arc::new(Mutex::new(Vec::new()));
    let keep = set.clone();
    let mut bench = Bench::new(|pages| {
        pages.with_debug(Box::new(move |level| keep.lock().unwrap().push(level)))
    });
    let bare = "Content-Type: text/plain\r\nX-Content-Type-Options: nosniff\r\n";
    let mut put = |value| bench.client.ask_with("PUT /debug/flags/v", "", value);
    assert_eq!(
        put("4"),
        answer(
            "200 OK",
            bare,
            "successfully set klog.logging.verbosity to 4\n"
        )
    );
    let invalid = |value| format!("strconv.ParseUint: parsing \"{value}\": invalid syntax\n");
    assert_eq!(put("abc"), answer("400 Bad Request", bare, &invalid("abc")));
    assert_eq!(put(""), answer("400 Bad Request", bare, &invalid("")));
    assert_eq!(
        bench.get("/debug/flags/v"),
        answer("406 Not Acceptable", bare, "unsupported http method\n")
    );
    assert_eq!(*set.lock().unwrap(), [4]);
}

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no \
                       formatting compatibility guarantees and is for debugging purposes only.\n";

#[test]
fn core_074_flagz_is_text_for_people_and_an_object_for_who_asks_for_it() {
    let mut bench = Bench::new(with_flagz);
    let text = bench.get("/flagz");
    assert_eq!(status(&text), "200");
    assert_eq!(bench.headers("/flagz"), PLAIN);
    let lines = body(&text).strip_prefix(&format!("\nkube-proxy flagz\n{WARNING}"));
    let separators = [":", ": ", "=", " "];
    let expected = separators.map(|s| format!("config{s}/etc/x & y\nhelp{s}false\nv{s}2\n"));
    assert!(expected.iter().any(|text| lines == Some(text)), "{text}");
    for accept in ["text/plain", "*/*", " ", "text/html, text/plain;q=0.5"] {
        assert_eq!(bench.get_as("/flagz", accept), text, "{accept}");
    }
    let json = r#"{
  "kind": "Flagz",
  "apiVersion": "config.k8s.io/v1beta1",
  "metadata": {
    "name": "kube-proxy"
  },
  "flags": {
    "config": "/etc/x & y",
    "help": "false",
    "v": "2"
  }
}"#;
    let content_type = "Content-Type: application/json;g=config.k8s.io;v=v1beta1;as=Flagz\r\n";
    assert_eq!(
        bench.get_as(
            "/flagz",
            "application/json;v=v1beta1;g=config.k8s.io;as=Flagz"
        ),
        answer("200 OK", content_type, json)
    );
}

#[test]
fn core_074_statusz_is_text_for_people_and_an_object_for_who_asks_for_it() {
    let mut bench = Bench::new(|pages| with_statusz(with_flagz(pages)));
    let text = bench.get("/statusz");
    assert_eq!(bench.headers("/statusz"), PLAIN);
    let lines = body(&text).strip_prefix(&format!("\nkube-proxy statusz\n{WARNING}\n"));
    let expected = [":", ": ", "=", " "].map(|s| {
        format!(
            "Started{s} Sun Nov 15 09:19:13 UTC 2026\nUp{s} 0 hr 01 min 06 sec\n\
             Go version{s} rustc 1.95.0\nBinary version{s} 1.36\nEmulation version{s} 1.36\n\
             Paths{s} /configz /flagz /healthz /metrics /proxyMode\n"
        )
    });
    assert!(expected.iter().any(|text| lines == Some(text)), "{text}");
    let json = |version| {
        format!(
            r#"{{
  "kind": "Statusz",
  "apiVersion": "config.k8s.io/{version}",
  "metadata": {{
    "name": "kube-proxy"
  }},
  "startTime": "2026-11-15T09:19:13Z",
  "uptimeSeconds": 66,
  "goVersion": "rustc 1.95.0",
  "binaryVersion": "1.36",
  "emulationVersion": "1.36",
  "paths": [
    "/configz",
    "/flagz",
    "/healthz",
    "/metrics",
    "/proxyMode"
  ]
}}"#
        )
    };
    assert_eq!(
        bench.get_as(
            "/statusz",
            "application/json;v=v1beta1;g=config.k8s.io;as=Statusz"
        ),
        answer(
            "200 OK",
            "Content-Type: application/json;g=config.k8s.io;v=v1beta1;as=Statusz\r\n",
            &json("v1beta1")
        )
    );
    assert_eq!(
        bench.get_as(
            "/statusz",
            "application/json;as=Statusz;g=config.k8s.io;v=v1alpha1"
        ),
        answer(
            "200 OK",
            "Content-Type: application/json;g=config.k8s.io;v=v1alpha1;as=Statusz\r\n\
             Warning: 299 - \"This version of the statusz endpoint is deprecated. \
             Please use a newer version.\"\r\n",
            &json("v1alpha1")
        )
    );
    let yaml = bench.get_as(
        "/statusz",
        "application/yaml;v=v1beta1;g=config.k8s.io;as=Statusz",
    );
    assert!(
        yaml.contains("Content-Type: application/yaml;g=config.k8s.io;v=v1beta1;as=Statusz\r\n")
    );
    let object: serde_json::Value = serde_saphyr::from_str(body(&yaml)).unwrap();
    let same: serde_json::Value = serde_json::from_str(&json("v1beta1")).unwrap();
    assert_eq!(object, same);
}

#[test]
fn core_074_what_is_not_offered_is_406_and_without_the_gate_404() {
    let mut bench = Bench::new(|pages| with_statusz(with_flagz(pages)));
    let refusal = r#"{
  "kind": "Status",
  "apiVersion": "v1",
  "metadata": {},
  "status": "Failure",
  "message": "only the following media types are accepted: application/json, application/yaml, text/plain",
  "reason": "NotAcceptable",
  "code": 406
}"#;
    let refusal = answer(
        "406 Not Acceptable",
        "Content-Type: application/json\r\n",
        refusal,
    );
    for accept in [
        "application/json",
        "application/yaml",
        "text/html",
        "application/json;v=v1beta1;g=config.k8s.io;as=Other",
        "application/json;v=v2;g=config.k8s.io;as=Flagz",
        "application/json;v=v1beta1;as=Flagz",
        "text/plain;q=0",
    ] {
        assert_eq!(bench.get_as("/flagz", accept), refusal, "{accept}");
        assert_eq!(bench.get_as("/statusz", accept), refusal, "{accept}");
    }
    let mut bench = Bench::new(with_statusz);
    assert_eq!(status(&bench.get("/flagz")), "404");
    assert!(!bench.get("/statusz").contains("/flagz"));
    let mut bench = Bench::new(with_flagz);
    assert_eq!(status(&bench.get("/statusz")), "404");
}

#[test]
fn many_scrapers_are_served() {
    let metrics = Arc::new(Metrics::new(crate::modes::find("iptables").unwrap()));
    let pages = Pages::new(metrics, Box::new(String::new));
    let runtime = Runtime::start();
    let handler = pages.handler();
    let server = Server::open(&runtime.handle, Network::Tcp, loopback(), handler).unwrap();
    let address = server.address();
    let scrapers: Vec<_> = (0..16)
        .map(|_| std::thread::spawn(move || ask(address, "GET /metrics")))
        .collect();
    for scraper in scrapers {
        assert_eq!(status(&scraper.join().unwrap()), "200");
    }
}
