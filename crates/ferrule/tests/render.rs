//! `ferrule render` as people and scripts run it; the real kernel is asked in a network of its own.

#![expect(clippy::disallowed_methods, reason = "these tests run programs")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use ferrule_testbed::{in_namespace, run};

/// Far longer than anything takes; only a failing test waits so long.
const LONG: Duration = Duration::from_secs(30);

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn render(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ferrule"))
        .args(["render", "--node", "node-a", "--manifests"])
        .arg(here("../../examples"))
        .args(arguments)
        .output()
        .expect("the program starts")
}

fn stdout(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_examples_are_drawn_as_expected() {
    let golden = here("tests/golden/examples-node-a.nft");
    let text = stdout(&render(&[
        "--mode=nftables",
        "--cluster-cidr=10.244.0.0/16",
    ]));
    if std::env::var("UPDATE_EXPECT").is_ok() {
        fs::write(&golden, &text).unwrap();
    }
    let expected = fs::read_to_string(&golden).unwrap_or_default();
    assert!(
        expected == text,
        "UPDATE_EXPECT=1 renews it. It would be:\n{text}"
    );
}

#[test]
fn the_file_decides_and_flags_beat_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                mode: nftables\nclusterCIDR: 10.9.0.0/16\nnodePortAddresses: [10.0.0.0/8]\n\
                nftables: {masqueradeBit: 20}\n";
    fs::write(&file, text).unwrap();
    let config = format!("--config={}", file.display());
    let text = stdout(&render(&[&config, "--family=ipv4"]));
    for part in ["!= 10.9.0.0/16 ", "10.0.0.0/8,", "0x00100000"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("ip6"));
    let flags = ["--cluster-cidr=10.7.0.0/16", "--nodeport-addresses=all"];
    let text = stdout(&render(&[&[&config[..]], &flags[..]].concat()));
    assert!(text.contains("!= 10.7.0.0/16 ") && !text.contains("10.0.0.0/8"));
    assert!(text.contains("ip6"));
    let all = stdout(&render(&[&config, "--masquerade-all"]));
    assert!(all.contains("masquerade all clusterIP traffic"));
}

#[test]
fn modes_that_are_missing_are_told_with_those_there_are() {
    assert!(stderr(&render(&[])).contains("--mode"));
    assert!(stderr(&render(&["--mode=ebpf"])).contains("ebpf"));
}

#[test]
fn in_mode_ipvs_the_words_are_those_of_its_tools() {
    let text = stdout(&render(&["--mode=ipvs", "--family=ipv4"]));
    for words in [
        "# ipvsadm --restore",
        "-A -t ",
        " -m -w 1",
        "create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 1048576",
        "add KUBE-CLUSTER-IP ",
        "*nat",
        "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT",
        "COMMIT",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn in_mode_iptables_the_words_are_those_of_iptables_restore() {
    let text = stdout(&render(&["--mode=iptables", "--family=ipv4"]));
    for words in [
        "*nat",
        ":KUBE-SERVICES - [0:0]",
        "-A KUBE-SERVICES",
        "COMMIT",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[test]
fn the_proxy_has_nothing_to_add_to_what_is_rendered() {
    in_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rules.nft");
        fs::write(&file, stdout(&render(&["--mode=nftables"]))).unwrap();
        run("nft", &["-f", file.to_str().unwrap()]);
        // Whatever is written again gets a new handle.
        let list = || run("nft", &["--handle", "list", "ruleset"]);
        let before = list();
        let mut proxy = Command::new(env!("CARGO_BIN_EXE_ferrule"));
        proxy
            .args(["proxy", "--proxy-mode=nftables", "--manifests"])
            .arg(here("../../examples"))
            .args(["--hostname-override=node-a", "--conntrack-max-per-core=0"])
            .args(["--conntrack-tcp-timeout-established=0"])
            .args(["--conntrack-tcp-timeout-close-wait=0"])
            // A file of the whole machine.
            .arg("--admin-socket=");
        let _running = Running(proxy.spawn().unwrap());
        until_ready();
        assert_eq!(list(), before);
    });
}

fn until_ready() {
    let begun = Instant::now();
    while !is_ready().unwrap_or(false) {
        assert!(begun.elapsed() < LONG, "never ready");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_ready() -> io::Result<bool> {
    use std::io::{Read as _, Write as _};
    let mut stream = TcpStream::connect("127.0.0.1:10256")?;
    stream.set_read_timeout(Some(LONG))?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.1 200"))
}
