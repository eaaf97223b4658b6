//! A lane: one node on which one program runs, a client, and a pod that is every endpoint.
//!
//! Both pods hang on the node by links of their own. Until a Service is programmed, the node
//! says at once that its address is unreachable, so a client that tries again and again learns of
//! the first moment at which it works. Lanes are made anew for every start from nothing and
//! taken away afterwards.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use super::{Contender, usage};
use crate::netns::{self, Netns};
use crate::process::Process;
use crate::world::configuration;
use crate::{cage, os, plan};

/// Where the pod answers.
pub const PORT: u16 = 8080;
/// The node's name; the control plane knows it.
pub const NODE: &str = "node1";
/// What a lost packet costs; those that arrive take microseconds.
pub const TRY: Duration = Duration::from_millis(200);

/// A lane without a program.
pub struct Lane {
    pub node: Netns,
    pub client: Netns,
    server: Netns,
    answering: Option<JoinHandle<()>>,
    closing: Arc<AtomicBool>,
    folder: PathBuf,
}

impl Lane {
    /// Lays it. `number` tells lanes apart; it is used again after 200 of them.
    pub fn lay(number: u32, folder: &Path) -> Result<Self> {
        let make = |role: &str| Netns::make(&format!("lane{number}.{role}"));
        let (node, client, server) = (make("node")?, make("client")?, make("server")?);
        connect_node(&node, number)?;
        plug(&node, &client, "client", Ipv4Addr::new(10, 244, 1, 1))?;
        plug(&node, &server, "server", Ipv4Addr::new(10, 244, 1, 2))?;
        // One pod is all endpoints: 10.128.0.0 to 10.223.255.255.
        for net in ["10.128.0.0/10", "10.192.0.0/11"] {
            server.ip(&format!("route add local {net} dev lo\n"))?;
            node.ip(&format!(
                "route add {net} via 10.244.1.2 dev server onlink\n"
            ))?;
        }
        let closing = Arc::new(AtomicBool::new(false));
        let listener = server.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)))??;
        let ending = Arc::clone(&closing);
        let answering = std::thread::spawn(move || answer(&listener, &ending));
        Ok(Self {
            node,
            client,
            server,
            answering: Some(answering),
            closing,
            folder: folder.to_owned(),
        })
    }

    /// Starts a program on the node.
    pub fn start(&self, contender: &Contender, mode: &str) -> Result<Process> {
        let file = self.folder.join(format!("{}.json", contender.name));
        let config = configuration(mode, &self.folder, &settings());
        std::fs::write(&file, serde_json::to_vec_pretty(&config)?)?;
        let mut command = os::command(&contender.program);
        if contender.is_ferrule {
            command.arg("proxy");
        }
        command
            .arg(format!("--config={}", file.display()))
            .arg(format!("--hostname-override={NODE}"));
        self.node.run(|| {
            // A /run of its own, for the lock of iptables.
            unshare(CloneFlags::CLONE_NEWNS)?;
            cage::own("/run", Some("tmpfs"), MsFlags::empty())?;
            Process::start(&contender.name, &mut command, &self.folder)
        })?
    }

    /// Bytes that came to the node from the API server, whatever they were wrapped in.
    pub fn received(&self) -> Result<f64> {
        let text = self
            .node
            .run(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??;
        usage::received(&text, "mgmt").context("the node has no such interface")
    }

    /// Takes everything away.
    pub fn clear(mut self) -> Result<()> {
        self.closing.store(true, Ordering::Relaxed);
        let _woken = self.server.run(|| reach(Ipv4Addr::LOCALHOST, PORT, TRY))?;
        if let Some(thread) = self.answering.take() {
            let _ended = thread.join();
        }
        // Whatever else was started in it is gone, so the networks go too.
        [&self.node, &self.client, &self.server]
            .into_iter()
            .try_for_each(Netns::remove)
    }
}

/// What differs from the lab's settings: what users have who configure nothing.
fn settings() -> Value {
    let periods = json!({ "minSyncPeriod": "1s", "syncPeriod": "30s" });
    json!({ "iptables": periods, "nftables": periods, "logging": { "verbosity": 0 } })
}

/// Which endpoint answers at an address, if any does within this time.
pub fn reach(ip: Ipv4Addr, port: u16, within: Duration) -> Option<Ipv4Addr> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((ip, port)), within).ok()?;
    stream.set_read_timeout(Some(within)).ok()?;
    let mut octets = [0; 4];
    stream.read_exact(&mut octets).ok()?;
    Some(Ipv4Addr::from_octets(octets))
}

/// Sends every client the address it came from, and hangs up.
fn answer(listener: &TcpListener, closing: &AtomicBool) {
    while !closing.load(Ordering::Relaxed) {
        if let Ok((mut stream, _)) = listener.accept()
            && let Ok(SocketAddr::V4(here)) = stream.local_addr()
        {
            // A client that only wanted to connect is gone already.
            let _unread = stream.write_all(&here.ip().octets());
        }
    }
}

fn connect_node(node: &Netns, number: u32) -> Result<()> {
    node.run(|| {
        netns::sysctl("ipv4/ip_forward", "1")?;
        netns::sysctl("ipv6/conf/all/forwarding", "1")?;
        // Every try of a client is answered at once, not one in a second.
        netns::sysctl("ipv4/icmp_ratelimit", "0")
    })??;
    let link = format!("lane{number}");
    netns::ip_here(&format!(
        "link add {link} type veth peer name mgmt netns {}\nlink set {link} master mgmt up\n",
        node.name()
    ))?;
    let at = plan::find(NODE).expect("the plan has a node of this name");
    node.ip(&format!(
        "addr add 172.31.{}.1/16 dev mgmt\nlink set mgmt up\n\
         link add eth0 type bridge\naddr add {}/24 dev eth0\naddr add {}/64 dev eth0 nodad\n\
         link set eth0 up\nroute add unreachable 10.96.0.0/16\n",
        number % 200 + 1,
        at.v4,
        at.v6
    ))
}

fn plug(node: &Netns, pod: &Netns, name: &str, ip: Ipv4Addr) -> Result<()> {
    let (gateway, _) = plan::gateway(1);
    netns::ip_here(&format!(
        "link add eth0 netns {} type veth peer name {name} netns {}\n",
        pod.name(),
        node.name()
    ))?;
    node.ip(&format!(
        "addr add {gateway}/32 dev {name}\nlink set {name} up\nroute add {ip}/32 dev {name}\n"
    ))?;
    pod.ip(&format!(
        "addr add {ip}/32 dev eth0\nlink set eth0 up\nroute add {gateway}/32 dev eth0\n\
         route add default via {gateway}\n"
    ))
}
