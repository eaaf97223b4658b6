//! `ferrule verify` as people and scripts run it, beside a proxy that programs the real kernel in a
//! network of its own.

#![expect(clippy::disallowed_methods, reason = "these tests run programs")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ferrule_testbed::{in_namespace, run};
use serde_json::Value;

/// Far longer than anything takes; only a failing test waits so long.
const LONG: Duration = Duration::from_mins(1);

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn verify(mode: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrule"));
    command
        .args([
            "verify",
            "--node=node-a",
            "--nodeport-addresses=192.0.2.0/24",
        ])
        .arg(format!("--proxy-mode={mode}"))
        .arg("--manifests")
        .arg(examples());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn assert_code(output: &Output, code: i32) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}\n{err}");
}

/// A proxy that programs the examples; killed when dropped, which leaves its rules.
struct Proxy(Child);

impl Proxy {
    fn start(mode: &str) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_ferrule"))
            .args(["proxy", "--hostname-override=node-a"])
            .args(["--nodeport-addresses=192.0.2.0/24"])
            .args(["--healthz-bind-address=", "--admin-socket="])
            .args([
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0",
                "--conntrack-tcp-timeout-close-wait=0",
            ])
            .arg(format!("--proxy-mode={mode}"))
            .arg("--manifests")
            .arg(examples())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Starts, and programs everything.
    fn programmed(mode: &str) -> Self {
        let proxy = Self::start(mode);
        let begun = Instant::now();
        loop {
            let output = verify(mode).output().unwrap();
            if output.status.success() {
                return proxy;
            }
            let out = text(&output.stdout);
            assert!(begun.elapsed() < LONG, "{mode}: {out}");
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn what_a_proxy_programs_is_right_and_damage_is_one_line_each() {
    in_namespace(|| {
        // Killed, so that nothing is repaired behind our back.
        drop(Proxy::programmed("nftables"));
        let output = verify("nftables").output().unwrap();
        assert_code(&output, 0);
        assert_eq!(text(&output.stdout), "");
        let summary = "IPv4 and IPv6 in mode nftables on node node-a: no difference";
        assert!(text(&output.stderr).contains(summary));

        let delete = "delete element ip kube-proxy service-ips { 10.96.0.53 . udp . 53 }";
        run("nft", &delete.split(' ').collect::<Vec<_>>());
        run("nft", &["add", "chain", "ip6", "kube-proxy", "somebody"]);
        let output = verify("nftables").output().unwrap();
        assert_code(&output, 1);
        let out = text(&output.stdout);
        let lines: Vec<_> = out.lines().collect();
        assert_eq!(lines.len(), 2, "{out}");
        let missing = "missing     element ip kube-proxy service-ips { 10.96.0.53 . udp . 53 ";
        assert!(lines[0].starts_with(missing), "{out}");
        assert!(lines[0].contains(" | Service "), "{out}");
        assert_eq!(lines[1], "unexpected  chain ip6 kube-proxy somebody");
        assert!(text(&output.stderr).contains(": 2 differences"));

        let output = verify("nftables").args(["-o", "json"]).output().unwrap();
        assert_code(&output, 1);
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["mode"], "nftables");
        assert_eq!(answer["families"], serde_json::json!(["IPv4", "IPv6"]));
        let differences = answer["differences"].as_array().unwrap();
        let kinds: Vec<_> = differences.iter().map(|one| &one["kind"]).collect();
        assert_eq!(kinds, ["missing", "unexpected"]);
        assert_eq!(differences[1]["object"], "chain ip6 kube-proxy somebody");

        let only = verify("nftables").arg("--family=ipv6").output().unwrap();
        assert_code(&only, 1);
        assert_eq!(text(&only.stdout).lines().count(), 1);
    });
}

#[test]
fn rules_of_iptables_are_compared_in_its_own_words() {
    in_namespace(|| {
        drop(Proxy::programmed("iptables"));
        run("iptables", &["-t", "nat", "-F", "KUBE-POSTROUTING"]);
        let output = verify("iptables").output().unwrap();
        assert_code(&output, 1);
        let out = text(&output.stdout);
        assert_eq!(out.lines().count(), 3, "{out}");
        let start = "missing     iptables -t nat -A KUBE-POSTROUTING ";
        assert!(out.lines().all(|line| line.starts_with(start)), "{out}");
        // None of it is there for another mode.
        let output = verify("nftables").output().unwrap();
        assert_code(&output, 1);
        let out = text(&output.stdout);
        let tables = "missing     table ip kube-proxy\nmissing     table ip6 kube-proxy\n";
        assert_eq!(out, tables);
    });
}

#[test]
fn portals_are_compared_while_the_process_that_owns_them_runs() {
    in_namespace(|| {
        let proxy = Proxy::programmed("userspace");
        let output = verify("userspace").output().unwrap();
        assert_code(&output, 0);
        assert!(text(&output.stderr).contains("must be asked of the running process"));
        drop(proxy);
        let output = verify("userspace").output().unwrap();
        assert_code(&output, 1);
        assert!(text(&output.stdout).contains("missing     table ip ferrule-userspace\n"));
    });
}

#[test]
fn watching_prints_what_changes_and_nothing_else() {
    in_namespace(|| {
        drop(Proxy::programmed("nftables"));
        let element = "element ip kube-proxy cluster-ips { 10.96.9.9 }";
        let nft = |verb: &str| {
            let words = [verb].into_iter().chain(element.split(' '));
            run("nft", &words.collect::<Vec<_>>());
        };
        let mut child = verify("nftables")
            .args(["--watch", "--every=1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        // The first comparison is over when its summary is printed.
        let mut summary = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        while !summary.contains("no difference") {
            assert_ne!(stderr.read_line(&mut summary).unwrap(), 0, "{summary}");
        }
        nft("add");
        let mut lines = BufReader::new(stdout).lines();
        let line = lines.next().unwrap().unwrap();
        assert_eq!(line, format!("unexpected  {element}"));
        nft("delete");
        let line = lines.next().unwrap().unwrap();
        assert_eq!(line, format!("resolved    {element}"));
        child.kill().unwrap();
        child.wait().unwrap();
    });
}

#[test]
fn what_cannot_be_compared_is_one_sentence_and_a_code_of_its_own() {
    in_namespace(|| {
        let sentence = |output: &Output| {
            let err = text(&output.stderr);
            let errors = err.lines().filter(|line| line.starts_with("Error: "));
            let errors: Vec<_> = errors.map(str::to_owned).collect();
            assert_eq!(errors.len(), 1, "{err}");
            errors.into_iter().next().unwrap()
        };
        let ferrule = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ferrule"));
            command.args(["verify", "--node=node-a", "--proxy-mode=nftables"]);
            command
        };
        let output = ferrule().arg("--manifests=/nonexistent").output().unwrap();
        assert_code(&output, 2);
        assert!(sentence(&output).contains("/nonexistent"));

        let output = ferrule().arg("--kubeconfig=/nonexistent").output().unwrap();
        assert_code(&output, 2);
        assert!(sentence(&output).contains("/nonexistent"));

        // Nobody listens there.
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("config");
        let config = "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
             contexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {}}]\n\
             clusters: [{name: a, cluster: {server: \"http://127.0.0.1:1\"}}]\n";
        fs::write(&kubeconfig, config).unwrap();
        let output = ferrule()
            .arg("--timeout=1")
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .output()
            .unwrap();
        assert_code(&output, 4);
        assert!(sentence(&output).contains("127.0.0.1:1"));

        let output = ferrule().arg("--nonsense").output().unwrap();
        assert_code(&output, 2);

        // Somebody without rights. An ordinary user's namespace knows no other user, so it is root.
        for mode in ["nftables", "iptables", "userspace"] {
            let output = Command::new("setpriv")
                .args(["--bounding-set=-all", "--inh-caps=-all"])
                .arg(env!("CARGO_BIN_EXE_ferrule"))
                .args(["verify", "--node=node-a", "--proxy-mode", mode])
                .arg("--manifests")
                .arg(examples().join("nodes.yaml"))
                .output()
                .unwrap();
            assert_code(&output, 3);
            let error = sentence(&output);
            assert!(error.contains("no permission"), "{mode}: {error}");
        }
    });
}
