//! The proxies that are measured: processes of one thread each, on the first processor.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ferrule_core::desired::Pool;
use ferrule_core::model::{Family, PortKey, Protocol, ServiceKey};
use ferrule_dataplane::userspace::relay::{Backends, Class, Key, Listen, Options, Relay, Route};

use super::Outcome;

/// Which proxy.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// Ours.
    Relay,
    /// This program.
    Haproxy(String),
    /// This program, with its module for streams.
    Nginx(String),
}

/// What is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Relay => "relay",
            Self::Haproxy(_) => "HAProxy",
            Self::Nginx(_) => "nginx",
        })
    }
}

/// A proxy that runs.
pub(super) struct Proxy {
    process: Child,
    pub(super) address: SocketAddr,
    file: Option<PathBuf>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
        if let Some(file) = &self.file {
            _ = std::fs::remove_file(file);
        }
    }
}

/// Runs a program on the first processor.
fn pinned(program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", "0", program]);
    command
}

impl Proxy {
    pub(super) fn start(kind: &Kind, transport: Transport, endpoint: SocketAddr) -> Outcome<Self> {
        match kind {
            Kind::Relay => Self::relay(transport, endpoint),
            Kind::Haproxy(program) => Self::haproxy(program, endpoint),
            Kind::Nginx(program) => Self::nginx(program, endpoint),
        }
    }

    fn relay(transport: Transport, endpoint: SocketAddr) -> Outcome<Self> {
        let itself = std::env::current_exe()?;
        let mut process = pinned(&itself.to_string_lossy())
            .args(["relay", "serve", transport.as_str(), &endpoint.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, line.trim().parse()?));
        Ok(Self {
            process,
            address,
            file: None,
        })
    }

    fn haproxy(program: &str, endpoint: SocketAddr) -> Outcome<Self> {
        // Freed again, so that haproxy gets it: nobody else is in this network.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let name = format!("ferrule-bench-{}-{}.cfg", std::process::id(), free.port());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, configuration(free, endpoint))?;
        let process = pinned(program)
            .args(["-db", "-f"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let proxy = Self {
            process,
            address: free,
            file: Some(file),
        };
        for _ in 0..500 {
            if TcpStream::connect(free).is_ok() {
                return Ok(proxy);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err("haproxy does not listen".into())
    }

    fn nginx(program: &str, endpoint: SocketAddr) -> Outcome<Self> {
        let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let name = format!("ferrule-bench-{}-{}.conf", std::process::id(), free.port());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, nginx_configuration(free, endpoint))?;
        let process = pinned(program)
            .arg("-c")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let proxy = Self {
            process,
            address: free,
            file: Some(file),
        };
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        client.set_read_timeout(Some(Duration::from_millis(10)))?;
        for _ in 0..500 {
            // Until it listens, sending or receiving fails.
            _ = client.send_to(b"?", free);
            if client.recv(&mut [0; 64]).is_ok() {
                return Ok(proxy);
            }
        }
        Err("nginx does not answer".into())
    }

    /// The processor time it has used.
    pub(super) fn work(&self) -> Outcome<Duration> {
        let mut nanoseconds = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let times = std::fs::read_to_string(task?.path().join("schedstat"))?;
            let first = times.split(' ').next().unwrap_or_default();
            nanoseconds += first.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// Its memory in bytes.
    pub(super) fn resident(&self) -> Outcome<usize> {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.process.id()))?;
        let pages = statm.split(' ').nth(1).unwrap_or_default();
        Ok(pages.parse::<usize>()? * 4096)
    }
}

/// TCP only, one thread, streams by `splice` where it thinks fit, no log.
fn configuration(listen: SocketAddr, endpoint: SocketAddr) -> String {
    format!(
        "global
    nbthread 1
    maxconn 20000
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    option splice-auto
listen bench
    bind {listen}
    server endpoint {endpoint}
"
    )
}

/// UDP only, one process that does all, no log.
fn nginx_configuration(listen: SocketAddr, endpoint: SocketAddr) -> String {
    format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off;
master_process off;
pid /dev/null;
error_log /dev/null crit;
events {{
    worker_connections 20000;
}}
stream {{
    server {{
        listen {listen} udp;
        proxy_pass {endpoint};
        proxy_timeout 60s;
    }}
}}
"
    )
}

/// Is the relay that is measured: prints its port and serves until killed.
///
/// # Errors
/// What could not be opened.
pub fn serve(transport: &str, endpoint: &str) -> Outcome<()> {
    let protocol = match transport {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        other => return Err(format!("{other} is neither tcp nor udp").into()),
    };
    let options = Options {
        workers: 1,
        direct: true,
        // What the kernel allows and not more matters here; sharing is another subject.
        descriptors: Some(1 << 20),
        ..Options::default()
    };
    ferrule_kernel::inet::limits::raise_descriptors()?;
    let relay = Relay::start(options, Arc::new(|_| {}))?;
    let key = Key {
        port: PortKey {
            service: ServiceKey::new("bench", "relay"),
            name: "".into(),
            protocol,
        },
        family: Family::V4,
    };
    let listen = Listen::at(Ipv4Addr::LOCALHOST.into());
    let port = relay.open(&key, Class::Internal, listen)?;
    relay.set(
        &key,
        Backends {
            cluster: vec![endpoint.parse()?],
            internal: Route::all(Pool::Cluster),
            ..Backends::default()
        },
    );
    println!("{port}");
    loop {
        std::thread::park();
    }
}
