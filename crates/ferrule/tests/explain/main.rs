//! `ferrule explain` as people run it: broken clusters, one story each, and the running proxy.
//!
//! A story names what is asked, the exit code, and what the first three lines must say.

#![expect(clippy::disallowed_methods, reason = "these tests run the program")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod live;
mod proxy;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Switches external IPs off.
const CONFIG: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nfeatureGates: {AllowServiceExternalIPs: false}\n";

fn ferrule() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ferrule"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// One question of a story.
#[derive(Default)]
struct Ask {
    arguments: String,
    exit: i32,
    says: Vec<String>,
}

struct Story {
    asks: Vec<Ask>,
    cluster: String,
}

fn stories() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/explain/stories");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

fn parse(text: &str) -> Story {
    let (head, cluster) = text.split_once("-- cluster.yaml --\n").unwrap();
    let mut asks: Vec<Ask> = Vec::new();
    for line in head.lines().filter(|line| !line.starts_with('#')) {
        let (verb, rest) = line.split_once(' ').unwrap();
        match verb {
            "ask" => asks.push(Ask {
                arguments: rest.to_owned(),
                ..Ask::default()
            }),
            "exit" => asks.last_mut().unwrap().exit = rest.parse().unwrap(),
            "says" => asks.last_mut().unwrap().says.push(rest.to_owned()),
            other => panic!("{other} is no verb of a story"),
        }
    }
    Story {
        asks,
        cluster: cluster.to_owned(),
    }
}

fn explain(folder: &Path, arguments: &str) -> Output {
    let config = folder.join("config.conf");
    let words = arguments.split(' ').map(|word| match word {
        "CONFIG" => config.display().to_string(),
        word => word.to_owned(),
    });
    ferrule()
        .args(["explain", "--node", "node-a", "--manifests"])
        .arg(folder.join("cluster.yaml"))
        .args(words)
        .output()
        .unwrap()
}

#[test]
fn each_story_has_its_cause_in_the_first_three_lines() {
    let files = stories();
    assert!(files.len() >= 25, "{}", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let story = parse(&fs::read_to_string(&file).unwrap());
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cluster.yaml"), &story.cluster).unwrap();
        fs::write(folder.path().join("config.conf"), CONFIG).unwrap();
        assert!(!story.asks.is_empty(), "{name}");
        for ask in story.asks {
            let output = explain(folder.path(), &ask.arguments);
            let said = text(&output.stdout);
            let first: Vec<&str> = said.lines().take(3).collect();
            let first = first.join("\n");
            let missing: Vec<_> = ask.says.iter().filter(|s| !first.contains(*s)).collect();
            if output.status.code() != Some(ask.exit) || !missing.is_empty() {
                wrong.push(format!(
                    "{name}: {}\nexit {:?}, missing {missing:#?}\n{said}{}",
                    ask.arguments,
                    output.status.code(),
                    text(&output.stderr)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

fn asked(name: &str, arguments: &str) -> String {
    let file = stories()
        .into_iter()
        .find(|file| file.file_stem().unwrap() == name)
        .unwrap();
    let story = parse(&fs::read_to_string(file).unwrap());
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("cluster.yaml"), &story.cluster).unwrap();
    text(&explain(folder.path(), arguments).stdout)
}

#[test]
fn an_answer_goes_on_with_endpoints_source_address_and_health_check() {
    let said = asked("health-check", "198.51.100.1:80");
    let expected = [
        "  10.1.0.1:8080, on this node: chosen",
        "  10.1.1.1:8080: from this node not chosen: on another node, and the policy is Local; from the whole cluster chosen",
        "Through the LoadBalancerIP clients keep their source address (externalTrafficPolicy is Local), except processes on this node.",
        "A load balancer's health check on port 32100 gets 200, 1 local endpoint, while the proxy is healthy.",
    ];
    for line in expected {
        assert!(said.lines().any(|l| l == line), "{line}\n\n{said}");
    }
    let said = asked("external-local", "198.51.100.1:80");
    assert!(
        said.contains("port 32100 gets 503, 0 local endpoints"),
        "{said}"
    );
    assert!(
        said.trim_end()
            .ends_with("or set spec.externalTrafficPolicy to Cluster."),
        "{said}"
    );
    let said = asked("bad-source-range", "198.51.100.1:80");
    assert!(
        said.contains("\"not-a-network\" is not a network"),
        "{said}"
    );
}

#[test]
fn json_has_the_same_in_fields() {
    let said = asked("one-unready", "shop/web -o json");
    let answer: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(answer["version"], "v1");
    assert_eq!(answer["target"], "shop/web");
    assert_eq!(answer["state"], "works");
    let port = &answer["ports"][0];
    assert_eq!(port["portName"], "http");
    assert_eq!(port["frontends"][0]["fate"], "balanced");
    assert_eq!(port["endpoints"][0]["chosen"], true);
    assert_eq!(port["endpoints"][1]["chosen"], false);
    assert_eq!(port["kernel"], serde_json::Value::Null);
}

#[test]
fn wrong_usage_and_broken_input_are_one_error_each() {
    let run = |arguments: &[&str]| {
        let output = ferrule().arg("explain").args(arguments).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (code, error) = run(&["nonsense"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("not a Service (namespace/name"), "{error}");
    let (code, error) = run(&["a/b", "--from", "nowhere"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("not an IP address"), "{error}");
    let (code, error) = run(&["10.0.0.1:80", "--from", "fd00::1"]);
    assert_eq!(code, Some(1));
    assert_eq!(
        error,
        "Error: the client fd00::1 is IPv6, and 10.0.0.1 is IPv4\n"
    );
    let (code, error) = run(&["a/b", "--manifests", "x"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("--node"), "{error}");
    let (code, error) = run(&["a/b", "--manifests", "nowhere.yaml", "--node", "n"]);
    assert_eq!(code, Some(1));
    assert!(
        error.starts_with("Error: nowhere.yaml: cannot be read"),
        "{error}"
    );
}

#[test]
fn a_probe_names_the_endpoints_that_do_not_accept() {
    let open = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = open.local_addr().unwrap().port();
    // The next port of the loopback network that nobody listens on.
    let closed = {
        let closed = TcpListener::bind("127.0.0.2:0").unwrap();
        closed.local_addr().unwrap().port()
    };
    let cluster = |ports: &[(&str, u16)]| {
        let slices = ports.iter().enumerate().map(|(number, (ip, port))| format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: web-{number}, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}\naddressType: IPv4\nports: [{{name: http, port: {port}}}]\nendpoints: [{{addresses: [{ip}]}}]\n"
        ));
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\nspec: {{clusterIP: 10.96.0.10, ports: [{{name: http, port: 80}}]}}\n{}",
            slices.collect::<String>()
        )
    };
    let probe = |cluster: String| {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cluster.yaml"), cluster).unwrap();
        let output = explain(folder.path(), "shop/web --probe");
        (output.status.code(), text(&output.stdout))
    };
    let (code, said) = probe(cluster(&[("127.0.0.1", port), ("127.0.0.2", closed)]));
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("Probe: 1 of 2 chosen TCP endpoints accept"),
        "{said}"
    );
    assert!(
        said.contains(&format!("  127.0.0.2:{closed} refuses")),
        "{said}"
    );
    let (code, said) = probe(cluster(&[("127.0.0.2", closed)]));
    assert_eq!(code, Some(4), "{said}");
    drop(open);
}
