//! The real program on the manifests of a large cluster: how long until it is ready, and how much
//! memory it took at most.
//!
//! The program lies beside this one, where `cargo build --release` puts it. It runs in a network of
//! its own and is ended afterwards.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ferrule_kernel::netns;

use crate::nftables::ENDPOINTS;

const SERVICES: u32 = 10_000;
const RUNS: usize = 3;
/// Only a program that never gets ready is waited for so long.
const LONG: Duration = Duration::from_mins(2);

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Prints a line per run.
pub fn run() -> Outcome<()> {
    let program = std::env::current_exe()?.with_file_name("ferrule");
    let file = std::env::temp_dir().join(format!("ferrule-bench-{}.yaml", std::process::id()));
    std::fs::write(&file, manifests()?)?;
    println!(
        "The program at {SERVICES} Services × {ENDPOINTS} from one YAML file, mode nftables:\n"
    );
    println!("| ready after | most memory | memory then |");
    println!("|---:|---:|---:|");
    let result = (0..RUNS).try_for_each(|_| {
        let (took, most, then) = netns::isolated(|| start(&program, &file))??;
        println!("| {took:.2?} | {most} | {then} |");
        Ok(())
    });
    std::fs::remove_file(&file)?;
    result
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn start(program: &Path, manifests: &Path) -> Outcome<(Duration, String, String)> {
    let up = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status()?;
    if !up.success() {
        return Err("ip link set lo up: failed".into());
    }
    let begun = Instant::now();
    let mut running = Running(
        Command::new(program)
            .args([
                "proxy",
                "--proxy-mode=nftables",
                "--hostname-override=node-a",
            ])
            .args(["--conntrack-max-per-core=0", "--manifests"])
            .arg(manifests)
            .args(["--conntrack-tcp-timeout-established=0"])
            .args(["--conntrack-tcp-timeout-close-wait=0"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?,
    );
    while !is_ready() {
        if running.0.try_wait()?.is_some() || begun.elapsed() > LONG {
            return Err("the program did not get ready".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = begun.elapsed();
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.0.id()))?;
    Ok((took, field(&status, "VmHWM")?, field(&status, "VmRSS")?))
}

/// One field, in MiB.
fn field(status: &str, name: &str) -> Outcome<String> {
    let line = status.lines().find(|line| line.starts_with(name));
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    let kibibytes: u32 = word.ok_or("no memory in /proc")?.parse()?;
    Ok(format!("{:.1} MiB", f64::from(kibibytes) / 1024.0))
}

fn is_ready() -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect("127.0.0.1:10256")?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// Services of one port with [`ENDPOINTS`] endpoints each.
fn manifests() -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    for n in 0..SERVICES {
        let (b, c) = (n / 250 % 250, n % 250);
        writeln!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: service-{n}, namespace: \
             team-{team}}}\nspec:\n  clusterIP: 10.96.{b}.{c}\n  clusterIPs: [10.96.{b}.{c}]\n  \
             ipFamilies: [IPv4]\n  ports:\n    - {{name: http, port: 80}}\n---\n\
             apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: \
             service-{n}-x7k2p\n  namespace: team-{team}\n  labels: \
             {{kubernetes.io/service-name: service-{n}}}\naddressType: IPv4\nports:\n  - \
             {{name: http, port: 8080}}\nendpoints:",
            team = n % 97
        )?;
        for endpoint in 0..ENDPOINTS {
            writeln!(
                text,
                "  - {{addresses: [10.{}.{b}.{c}], nodeName: node-{}}}",
                128 + endpoint,
                n % 50
            )?;
        }
    }
    Ok(text)
}
