//! Asking the running proxy over its admin socket.

use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use crate::{ferrule, text};

/// Far longer than anything takes; only a failing test waits so long.
const LONG: Duration = Duration::from_mins(1);

struct Proxy {
    child: Child,
    folder: tempfile::TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

impl Proxy {
    /// Starts with the example manifests, its socket at `socket` below `folder`.
    fn start(folder: tempfile::TempDir, socket: &str) -> Self {
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let child = ferrule()
            .args(["proxy", "--proxy-mode=nftables", "--dry-run"])
            .args(["-v=1", "--hostname-override=node-a", "--manifests"])
            .arg(manifests)
            .arg(format!("--healthz-bind-address={}", free_address()))
            .arg(format!("--metrics-bind-address={}", free_address()))
            .arg(format!("--admin-socket={socket}"))
            .stderr(log)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    fn wait_for_log(&self, words: &str) {
        until(words, || self.log().contains(words).then_some(()));
    }
}

fn ask(socket: &Path, target: &str) -> Output {
    let mut command = ferrule();
    command.args(["explain", target, "--socket"]).arg(socket);
    command.output().unwrap()
}

/// Waits until the proxy knows its cluster.
fn answered(socket: &Path, target: &str) -> Output {
    until("the proxy answers", || {
        let output = ask(socket, target);
        (output.status.code() != Some(1)).then_some(output)
    })
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("run/proxy.sock");
    (folder, socket)
}

#[test]
fn the_running_proxy_answers_and_says_what_the_kernel_has() {
    let (folder, socket) = place();
    let proxy = Proxy::start(folder, &socket.display().to_string());
    let output = answered(&socket, "shop/idle");
    assert_eq!(output.status.code(), Some(4), "{}", proxy.log());
    let said = text(&output.stdout);
    assert!(
        said.lines().next().unwrap().contains("refuse connections"),
        "{said}"
    );
    let programmed = "The kernel has this (IPv4, mode nftables).";
    until(programmed, || {
        let said = text(&ask(&socket, "shop/catalog").stdout);
        said.contains(programmed).then_some(())
    });
    assert_eq!(ask(&socket, "10.96.0.10:80").status.code(), Some(0));
    assert_eq!(ask(&socket, "shop/nobody").status.code(), Some(3));
    let mut rounds = 0;
    while rounds < 20 {
        assert_eq!(ask(&socket, "kube-system/dns").status.code(), Some(0));
        rounds += 1;
    }
}

#[test]
fn the_socket_of_a_proxy_that_was_killed_is_replaced() {
    let (folder, socket) = place();
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    drop(UnixListener::bind(&socket).unwrap());
    let stale = ask(&socket, "shop/idle");
    assert_eq!(stale.status.code(), Some(1));
    assert!(text(&stale.stderr).contains("kubectl exec"));
    let _proxy = Proxy::start(folder, &socket.display().to_string());
    assert_eq!(answered(&socket, "shop/idle").status.code(), Some(4));
}

#[test]
fn a_file_in_the_way_stays_and_the_proxy_works_without_a_socket_until_it_is_gone() {
    let (folder, socket) = place();
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    fs::write(&socket, "precious").unwrap();
    let proxy = Proxy::start(folder, &socket.display().to_string());
    proxy.wait_for_log("Failed to open the admin socket");
    proxy.wait_for_log("is not a socket; it is left alone");
    assert_eq!(fs::read_to_string(&socket).unwrap(), "precious");
    let refused = ask(&socket, "shop/idle");
    assert_eq!(refused.status.code(), Some(1));
    fs::remove_file(&socket).unwrap();
    assert_eq!(answered(&socket, "shop/idle").status.code(), Some(4));
    assert_eq!(
        proxy
            .log()
            .matches("Failed to open the admin socket")
            .count(),
        1
    );
}

#[test]
fn two_proxies_with_one_socket_leave_it_to_the_first() {
    let (folder, socket) = place();
    let first = Proxy::start(folder, &socket.display().to_string());
    answered(&socket, "shop/idle");
    let second = Proxy::start(tempfile::tempdir().unwrap(), &socket.display().to_string());
    second.wait_for_log("another process listens on");
    drop(first);
    assert_eq!(answered(&socket, "shop/idle").status.code(), Some(4));
}

#[test]
fn an_absent_socket_is_one_sentence_with_what_to_do() {
    let (folder, socket) = place();
    let output = ask(&socket, "shop/idle");
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(
        error.contains("kubectl exec") && error.contains("--manifests"),
        "{error}"
    );
    // A blank flag switches it off.
    let proxy = Proxy::start(folder, "");
    proxy.wait_for_log("FLAG: --admin-socket=\"\"");
}
