//! The page of the node in a browser: what it shows, by keyboard, with very many Services, and pictures of it.
//!
//! Needs `chromium`, which `cargo xtask test` sees to where it may install.

#![expect(clippy::disallowed_methods, reason = "these tests run programs")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod browser;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use browser::{Browser, LONG};
use ferrule_testbed::{in_namespace, leave_out, variable};
use serde_json::{Value, json};

/// The page has what it asked for.
const READY: &str =
    "document.documentElement.dataset.state === 'ready' && document.querySelector('#rows .row')";

struct Proxy {
    child: Child,
    address: String,
    folder: tempfile::TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Proxy {
    /// Starts with these objects, or with the examples.
    fn start(objects: Option<&Value>, programs: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let manifests = objects.map_or_else(
            || root.join("examples"),
            |objects| {
                let path = folder.path().join("cluster.json");
                fs::write(&path, objects.to_string()).unwrap();
                path
            },
        );
        let free = || {
            TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
        };
        let address = free().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferrule"));
        command
            .args(["proxy", "--proxy-mode=nftables", "--ui", "--admin-socket="])
            .args([
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0",
            ])
            .args([
                "--conntrack-tcp-timeout-close-wait=0",
                "--hostname-override=node-a",
            ])
            .arg(format!("--metrics-bind-address={address}"))
            .arg(format!("--healthz-bind-address={}", free()))
            .arg("--manifests")
            .arg(manifests);
        if !programs {
            command.arg("--dry-run");
        }
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let child = command.stderr(log).stdout(Stdio::null()).spawn().unwrap();
        let proxy = Self {
            child,
            address,
            folder,
        };
        let begun = Instant::now();
        while TcpStream::connect(&proxy.address).is_err() {
            let log = fs::read_to_string(proxy.folder.path().join("log")).unwrap();
            assert!(begun.elapsed() < LONG, "nobody listens: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        proxy
    }

    fn url(&self, place: &str) -> String {
        format!("http://{}/ui{place}", self.address)
    }

    fn manifest(&self) -> PathBuf {
        self.folder.path().join("cluster.json")
    }
}

/// Runs a test with a browser, in a network of its own.
fn with_browser(test: impl FnOnce(Browser) + Send) {
    if !browser::is_installed() {
        leave_out("`chromium` is missing (Debian package chromium)");
        return;
    }
    in_namespace(|| test(Browser::start(1280, 860)));
}

fn service(number: u32) -> Value {
    let ip = format!(
        "10.{}.{}.{}",
        96 + (number >> 16),
        number >> 8 & 255,
        number & 255
    );
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("web-{number:05}"), "namespace": "shop"},
        "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"name": "http", "port": 80}]}})
}

fn slice(number: u32, pods: u32) -> Value {
    let name = format!("web-{number:05}");
    let pod = |pod: u32| json!({"addresses": [format!("10.1.{}.{}", number & 255, pod + 1)], "nodeName": "node-b"});
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
        "endpoints": (0..pods).map(pod).collect::<Vec<_>>()})
}

fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

#[test]
fn the_page_shows_services_and_explains_them_by_keyboard() {
    with_browser(|mut browser| {
        let proxy = Proxy::start(None, true);
        browser.open(&proxy.url(""), READY);
        assert_eq!(browser.text("#title"), "node-a");
        browser.until("document.querySelector('#cards').textContent.includes('programmed')");
        // Search, down to the second of those that are found, and have it explained.
        browser.press("/");
        browser.write("shop");
        browser.until("document.querySelector('#count').textContent.includes(' of ')");
        browser.press("Enter");
        browser.press("ArrowDown");
        let chosen = browser.text("#rows [aria-selected=true] span");
        assert!(chosen.starts_with("shop/"), "{chosen}");
        assert_eq!(
            browser.get("document.querySelector('#rows [aria-selected=true]').id"),
            "row-1"
        );
        browser.press("Enter");
        browser.until("!document.querySelector('#explain').hidden && document.querySelector('#lines p.first')");
        assert_eq!(
            browser.get("document.querySelector('#target').value"),
            chosen.as_str()
        );
        let first = browser.text("#lines p.first");
        assert!(first.contains(&chosen), "{first}");
        browser.press("Escape");
        browser.until("document.activeElement.id === 'list'");
        // Tabs by arrows.
        browser.get("document.querySelector('#tab-services').focus()");
        browser.press("ArrowRight");
        browser.press("ArrowRight");
        browser.until("!document.querySelector('#syncs').hidden");
        assert_eq!(browser.get("document.activeElement.id"), "tab-syncs");
        browser.until("document.querySelectorAll('#chart rect').length >= 1");
        let audits = browser.text("#audits");
        assert!(
            audits.contains("IPv4") && audits.contains("the first one"),
            "{audits}"
        );
        // An address that nobody has, from a client.
        let place = "#explain?target=192.0.2.99:80&from=10.0.0.1";
        browser.open(
            &proxy.url(place),
            "document.querySelector('#lines p.first')",
        );
        assert!(browser.text("#lines").contains("192.0.2.99"));
        // One that makes no sense.
        let place = "#explain?target=nonsense";
        browser.open(&proxy.url(place), "document.querySelector('#lines p.bad')");
        assert!(browser.text("#lines").contains("not a Service"));
    });
}

#[test]
fn changes_drift_and_issues_appear_while_the_page_is_open() {
    with_browser(|mut browser| {
        let proxy = Proxy::start(Some(&list(&[service(1), slice(1, 2)])), true);
        browser.open(&proxy.url(""), READY);
        browser.until("document.querySelector('#rows').textContent.includes('2 of 2')");
        // What tenants write is text, whatever it looks like.
        let evil = "<img src=x onerror=window.broken=1>";
        let mut bad = service(1);
        bad["spec"]["type"] = "LoadBalancer".into();
        bad["spec"]["loadBalancerSourceRanges"] = json!([evil]);
        let objects = list(&[bad, slice(1, 1), service(2)]);
        fs::write(proxy.manifest(), objects.to_string()).unwrap();
        browser.until("document.querySelector('#rows').textContent.includes('1 of 1')");
        browser.until("document.querySelector('#rows .bad').textContent === 'refused'");
        browser.until("document.querySelector('#problems').textContent.includes('onerror')");
        assert_eq!(browser.get("document.images.length"), 0);
        assert_eq!(browser.get("window.broken === undefined"), true);
        assert!(browser.text("#problems").contains(evil));
        // Another program takes the rules away.
        ferrule_testbed::run("nft", &["delete", "table", "ip", "kube-proxy"]);
        browser.until(
            "document.querySelector('#history').textContent.includes('undid external changes')",
        );
        browser.until("document.querySelector('#cards').textContent.includes('1 repair')");
    });
}

#[test]
fn ten_thousand_services_are_a_few_rows_at_a_time() {
    with_browser(|mut browser| {
        let numbers = 0..10_000;
        let objects = numbers.flat_map(|number| [service(number), slice(number, 1)]);
        let objects: Vec<Value> = objects.collect();
        let proxy = Proxy::start(Some(&list(&objects)), false);
        browser.open(&proxy.url(""), READY);
        assert_eq!(browser.text("#count"), "10000 Service ports");
        let rows = "document.querySelectorAll('#rows .row').length";
        assert!(browser.get(rows).as_u64().unwrap() < 60);
        browser.get("document.querySelector('#list').focus()");
        browser.press("End");
        browser.until("document.querySelector('#rows').textContent.includes('web-09999')");
        assert!(browser.get(rows).as_u64().unwrap() < 60);
        browser.press("/");
        browser.write("web-0777");
        browser
            .until("document.querySelector('#count').textContent === '10 of 10000 Service ports'");
        assert_eq!(browser.text("#rows .row span"), "shop/web-07770:http");
    });
}

/// A small shop with the troubles of a large one.
fn shop() -> Value {
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node-a", "labels": {"topology.kubernetes.io/zone": "west"}},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.11"}]}});
    let mut items = vec![node];
    let services = [
        ("kube-system/dns", "dns", 53, 2, 0),
        ("mail/imap", "imap", 993, 2, 0),
        ("mail/smtp", "smtp", 25, 1, 0),
        ("media/thumbnails", "http", 80, 4, 1),
        ("media/upload", "http", 80, 3, 0),
        ("metrics/grafana", "http", 80, 1, 0),
        ("metrics/prometheus", "web", 9090, 1, 0),
        ("shop/cart", "http", 80, 3, 0),
        ("shop/catalog", "http", 80, 5, 1),
        ("shop/checkout", "https", 443, 0, 2),
        ("shop/payments", "https", 443, 2, 0),
        ("shop/search", "http", 80, 2, 0),
    ];
    for (number, (service, port, listens, ready, unready)) in (10_u8..).zip(services) {
        let (namespace, name) = service.split_once('/').unwrap();
        let ip = format!("10.96.0.{number}");
        let mut spec = json!({"clusterIP": ip, "clusterIPs": [ip],
            "ports": [{"name": port, "port": listens}]});
        match name {
            "checkout" | "payments" | "smtp" => {
                spec["type"] = "LoadBalancer".into();
                spec["ports"][0]["nodePort"] = (30_000 + u32::from(number)).into();
            }
            "grafana" | "upload" => spec["externalIPs"] = json!(["192.0.2.80"]),
            _ => {}
        }
        if name == "payments" {
            spec["externalTrafficPolicy"] = "Local".into();
        }
        if name == "smtp" {
            spec["loadBalancerSourceRanges"] = json!(["203.0.113.0/33"]);
        }
        let status = match name {
            "checkout" | "payments" | "smtp" => {
                json!({"loadBalancer": {"ingress": [{"ip": format!("192.0.2.{number}")}]}})
            }
            _ => json!({}),
        };
        items.push(json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": namespace}, "spec": spec, "status": status}));
        let pod = |pod: u8| {
            json!({"addresses": [format!("10.1.{number}.{}", pod + 1)], "nodeName": "node-b",
                "conditions": {"ready": pod < ready}})
        };
        items.push(
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": format!("{name}-x7k2p"), "namespace": namespace,
                "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "ports": [{"name": port, "port": 8443}],
            "endpoints": (0..ready + unready).map(pod).collect::<Vec<_>>()}),
        );
    }
    list(&items)
}

/// Looks at the page as people see it. `UPDATE_EXPECT=1` renews the picture of the documents.
#[test]
fn pictures_are_light_or_dark_as_the_user_prefers() {
    with_browser(|mut browser| {
        let proxy = Proxy::start(Some(&shop()), true);
        let mut pictures = Vec::new();
        for scheme in ["light", "dark"] {
            browser.prefer(scheme);
            browser.open(&proxy.url(""), READY);
            browser.until("document.querySelector('#cards').textContent.includes('programmed')");
            let back = browser.get("getComputedStyle(document.body).backgroundColor");
            pictures.push((scheme, back, browser.picture()));
        }
        let [(_, light, picture), (_, dark, other)] = &pictures[..] else {
            panic!("two pictures");
        };
        assert_ne!(light, dark);
        for picture in [picture, other] {
            assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10_000);
        }
        browser.prefer("light");
        let place = "#explain?target=shop/checkout:https";
        browser.open(
            &proxy.url(place),
            "document.querySelector('#lines p.first')",
        );
        assert!(browser.text("#lines p.first").contains("none is ready"));
        let explained = browser.picture();
        if variable("UPDATE_EXPECT") {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
            fs::write(root.join("node-page.png"), picture).unwrap();
            fs::write(root.join("node-page-explain.png"), explained).unwrap();
        }
    });
}
