//! `ferrule support-bundle` as people run it: what is in it, what is not, and where it cannot be made.

#![expect(clippy::disallowed_methods, reason = "these tests run the program")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ferrule_testbed::{in_namespace, run};

/// Far longer than anything takes; only a failing test waits so long.
const LONG: Duration = Duration::from_secs(90);

/// What must not be in any file.
const SECRET: &str = "hunter2";

struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn free() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// A cluster and a kubeconfig whose owners were careless.
fn careless(folder: &Path) -> (String, String) {
    let (cluster, kubeconfig) = (folder.join("cluster.yaml"), folder.join("kubeconfig"));
    fs::write(
        &cluster,
        format!(
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  namespace: shop\n  annotations:\n    \
             ferrule.dev/ipvs-scheduler: \"{SECRET} {SECRET}\"\n    ferrule.dev/proxy-protocol: {SECRET}\n    \
             example.com/password: {SECRET}\n\
             spec:\n  clusterIP: 10.96.0.10\n  ports: [{{name: http, port: 80}}]\n---\n\
             apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web-1\n  namespace: shop\n  \
             labels: {{kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{{name: http, port: 8080}}]\n\
             endpoints: [{{addresses: [10.1.0.1]}}]\n"
        ),
    )
    .unwrap();
    fs::write(
        &kubeconfig,
        format!(
            "apiVersion: v1\nkind: Config\nusers: [{{name: me, user: {{token: {SECRET}, password: {SECRET}}}}}]\n"
        ),
    )
    .unwrap();
    (
        cluster.display().to_string(),
        kubeconfig.display().to_string(),
    )
}

fn start(folder: &Path, socket: &Path) -> Proxy {
    let (cluster, kubeconfig) = careless(folder);
    let log = fs::File::create(folder.join("log")).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_ferrule"))
        .args([
            "proxy",
            "--proxy-mode=nftables",
            "--hostname-override=node-a",
            "-v=4",
        ])
        .args([
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
        ])
        .args(["--conntrack-tcp-timeout-close-wait=0"])
        .arg(format!("--manifests={cluster}"))
        .arg(format!("--kubeconfig={kubeconfig}"))
        .arg(format!("--master=https://joe:{SECRET}@192.0.2.1:6443"))
        .arg(format!("--admin-socket={}", socket.display()))
        .arg(format!("--healthz-bind-address={}", free()))
        .arg(format!("--metrics-bind-address={}", free()))
        .stderr(log)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Proxy(child)
}

fn bundle(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ferrule"))
        .arg("support-bundle")
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Unpacks the only bundle in a folder; the folder that it has.
fn unpacked(folder: &Path) -> std::path::PathBuf {
    let find = |end: &str| {
        let mut all = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let is_bundle = |path: &Path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("ferrule-support-") && name.ends_with(end)
        };
        all.find(|path| is_bundle(path)).unwrap()
    };
    let tar = find(".tar");
    let bytes = fs::read(&tar).unwrap();
    let leaks = bytes
        .windows(SECRET.len())
        .any(|window| window == SECRET.as_bytes());
    run(
        "tar",
        &["-xf", tar.to_str().unwrap(), "-C", folder.to_str().unwrap()],
    );
    fs::remove_file(tar).unwrap();
    let unpacked = find("Z");
    if leaks {
        let found = run("grep", &["-rn", SECRET, unpacked.to_str().unwrap()]);
        assert!(!leaks, "{found}");
    }
    unpacked
}

#[test]
fn a_bundle_has_what_the_proxy_and_the_kernel_say_and_no_secrets() {
    in_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let (folder, socket) = (folder.path(), folder.path().join("proxy.sock"));
        run(
            "iptables-nft",
            &[
                "-A",
                "INPUT",
                "-m",
                "comment",
                "--comment",
                &format!("token={SECRET}"),
            ],
        );
        let _proxy = start(folder, &socket);
        let begun = Instant::now();
        let is_programmed = || {
            let explain = Command::new(env!("CARGO_BIN_EXE_ferrule"))
                .args(["explain", "shop/web", "--socket"])
                .arg(&socket)
                .output();
            text(&explain.unwrap().stdout).contains("The kernel has this (IPv4")
        };
        while !is_programmed() {
            let log = fs::read_to_string(folder.join("log")).unwrap();
            assert!(begun.elapsed() < LONG, "{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let log = fs::read_to_string(folder.join("log")).unwrap();
        assert!(log.contains(SECRET), "it is planted: {log}");
        let before = run("nft", &["list", "ruleset"]);
        let output = bundle(folder, &["--socket", socket.to_str().unwrap()]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(
            run("nft", &["list", "ruleset"]),
            before,
            "nothing is written"
        );
        let place = unpacked(folder);
        let read = |file: &str| fs::read_to_string(place.join(file)).unwrap();
        for (file, words) in [
            ("README.txt", "proxy/"),
            ("proxy/config.json", "\"mode\": \"nftables\""),
            ("proxy/flags.txt", "--admin-socket="),
            ("proxy/flags.txt", "@192.0.2.1:6443"),
            ("proxy/node.json", "\"syncs\""),
            ("proxy/node.json", "metadata.annotations"),
            ("proxy/desired.json", "10.1.0.1:8080"),
            ("proxy/services.json", "shop/web"),
            ("proxy/metrics.txt", "kubeproxy_sync_proxy_rules"),
            ("proxy/log.txt", "Ignored part of an object"),
            ("kernel/abilities.txt", "nftables for IPv4: supported"),
            ("kernel/nftables-ip.txt", "10.96.0.10"),
            ("kernel/iptables-ip.txt", "token="),
            ("kernel/conntrack.txt", "nf_conntrack_max: "),
            ("kernel/addresses.txt", "127.0.0.1"),
        ] {
            assert!(
                read(file).contains(words),
                "{file}: {words}\n{}",
                read(file)
            );
        }
    });
}

#[test]
fn without_a_proxy_the_kernel_is_in_it_and_the_error_is_told() {
    in_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let output = bundle(folder, &["--socket", "/nowhere/proxy.sock"]);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("ferrule support-bundle"), "{said}");
        assert_eq!(said.lines().count(), 2, "{said}");
        let place = unpacked(folder);
        let about = fs::read_to_string(place.join("README.txt")).unwrap();
        assert!(
            about.contains("no proxy answers at /nowhere/proxy.sock"),
            "{about}"
        );
        assert!(place.join("kernel/abilities.txt").exists());
        assert!(!place.join("proxy").exists());
    });
}

#[test]
fn a_file_that_is_there_is_never_overwritten_and_standard_output_works() {
    in_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::write(folder.join("x.tar"), "precious").unwrap();
        let output = bundle(folder, &["-o", "x.tar"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).starts_with("Error: cannot create x.tar"));
        assert_eq!(
            fs::read_to_string(folder.join("x.tar")).unwrap(),
            "precious"
        );
        let output = bundle(folder, &["-o", "new/x.tar"]);
        assert_eq!(output.status.code(), Some(1));
        let output = bundle(folder, &["-o", "-", "--socket", "/nowhere"]);
        assert!(output.status.success());
        assert!(output.stdout.len().is_multiple_of(512));
        assert_eq!(&output.stdout[257..262], b"ustar");
    });
}
