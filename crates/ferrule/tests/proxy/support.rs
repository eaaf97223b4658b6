//! The program as a node runs it, and who asks it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

pub use ferrule_testbed::{in_namespace, leave_out, run};

/// Far longer than anything takes, also in a guest on a busy machine; only a failing test waits so
/// long.
pub const LONG: Duration = Duration::from_secs(90);

/// Settings of the whole machine are not ours to change in a test.
pub const UNTOUCHED: [&str; 3] = [
    "--conntrack-max-per-core=0",
    "--conntrack-tcp-timeout-established=0",
    "--conntrack-tcp-timeout-close-wait=0",
];

pub fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

pub fn ferrule() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ferrule"))
}

pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// Waits until something holds.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The answer to a GET, if anybody answers.
pub fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(LONG)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

pub fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("")
}

pub fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

/// A running proxy; ended when dropped.
pub struct Proxy {
    pub child: Child,
    pub health: SocketAddr,
    pub metrics: SocketAddr,
    pub log: PathBuf,
    _folder: tempfile::TempDir,
}

impl Proxy {
    /// Starts with the example manifests and these arguments more.
    pub fn start(extra: &[&str]) -> Self {
        let health = free_address();
        let metrics = free_address();
        let addresses = [
            format!("--healthz-bind-address={health}"),
            format!("--metrics-bind-address={metrics}"),
        ];
        let mut command = ferrule();
        command
            .arg("proxy")
            .args(addresses)
            .arg("--hostname-override=node-a")
            .args(extra);
        Self::spawn_dry(command, health, metrics)
    }

    /// Starts with these manifests and programs the kernel, of a network that only the calling
    /// thread and its children are in.
    pub fn with_rules(manifests: &Path, extra: &[&str]) -> Self {
        Self::with_rules_and(manifests, extra, &[])
    }

    /// The same with variables of the environment.
    pub fn with_rules_and(manifests: &Path, extra: &[&str], variables: &[(&str, &Path)]) -> Self {
        let health = free_address();
        let metrics = free_address();
        let addresses = [
            format!("--healthz-bind-address={health}"),
            format!("--metrics-bind-address={metrics}"),
        ];
        let mut command = ferrule();
        command
            .envs(variables.iter().copied())
            .arg("proxy")
            .args(addresses)
            .args(UNTOUCHED)
            .arg("--hostname-override=node-a")
            .args(["--nodeport-addresses=192.0.2.0/24", "--manifests"])
            .arg(manifests)
            .args(extra);
        Self::spawn(command, health, metrics)
    }

    /// Starts with a configuration file.
    pub fn with_config(file: &Path, health: SocketAddr, metrics: SocketAddr) -> Self {
        let mut command = ferrule();
        command
            .arg("proxy")
            .arg("--hostname-override=node-a")
            .arg("--config")
            .arg(file);
        Self::spawn_dry(command, health, metrics)
    }

    /// Starts this command with the example manifests; nothing is written to the kernel.
    pub fn spawn_dry(mut command: Command, health: SocketAddr, metrics: SocketAddr) -> Self {
        command.args(["--dry-run", "--manifests"]).arg(examples());
        Self::spawn(command, health, metrics)
    }

    /// Starts this command.
    pub fn spawn(mut command: Command, health: SocketAddr, metrics: SocketAddr) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let child = command
            // A file of the whole machine.
            .arg("--admin-socket=")
            .stderr(fs::File::create(&log).unwrap())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            health,
            metrics,
            log,
            _folder: folder,
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for an answer with this status.
    pub fn wait_for(&self, address: SocketAddr, path: &str, wanted: &str) -> String {
        until(&format!("{path} answers {wanted}\n{}", self.log()), || {
            get(address, path).filter(|answer| status(answer) == wanted)
        })
    }

    pub fn ready(&self) -> &Self {
        self.wait_for(self.health, "/readyz", "200");
        self
    }

    pub fn metric(&self, line: &str) -> Option<String> {
        let answer = get(self.metrics, "/metrics")?;
        body(&answer)
            .lines()
            .find(|text| text.starts_with(line))
            .map(ToOwned::to_owned)
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    pub fn wait(&mut self) -> ExitStatus {
        let what = format!("the program ends\n{}", self.log());
        until(&what, || self.child.try_wait().unwrap())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What it said to the end tells most.
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            _ = writeln!(std::io::stderr(), "{log}");
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

pub fn fails(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output: Output = ferrule().arg("proxy").args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

pub const NFTABLES: &str = "--proxy-mode=nftables";
pub const IPTABLES: &str = "--proxy-mode=iptables";

/// Steps written so far in both families.
pub fn steps(proxy: &Proxy) -> u64 {
    ["IPv4", "IPv6"]
        .iter()
        .map(|family| {
            let line = format!("ferrule_sync_steps_total{{ip_family=\"{family}\"}} ");
            let line = until("steps are counted", || proxy.metric(&line));
            line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
        })
        .sum()
}

pub fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, file).unwrap();
}

/// All tables, in the order of their names.
pub fn ruleset() -> String {
    let listed = run("nft", &["-s", "list", "ruleset"]);
    let mut tables: Vec<&str> = listed.split_inclusive("\n}\n").collect();
    tables.sort_unstable();
    tables.concat()
}
