//! The node and the networks around it.
//!
//! The network namespace of this process is the node. Every pod, and the client outside, is at the
//! other end of a cable of its own, with one address and the node as its gateway: as on a real node,
//! whatever passes between two of them passes through the node's rules.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use nix::mount::{MsFlags, mount};

/// The node's own address, which is in the manifests too.
pub const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);
/// A client that is neither in the cluster nor on the node.
pub const OUTSIDE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
/// Networks of the pods.
pub const CLUSTER_CIDR: &str = "10.244.0.0/16";

/// The node.
pub struct Stage {
    /// The number of this process on the machine.
    pid: String,
    /// Whether it is root only here.
    borrowed_root: bool,
}

impl Stage {
    /// Makes a node out of the empty namespaces that this process was started in.
    pub fn build() -> Result<Self> {
        // What is mounted on /proc still counts as the machine does.
        let pid = fs::read_link("/proc/self")?.display().to_string();
        ensure!(
            std::process::id() == 1,
            "start this by `cargo xtask demo`: it needs namespaces of its own"
        );
        let nothing = None::<&str>;
        mount(
            Some("proc"),
            "/proc",
            Some("proc"),
            MsFlags::empty(),
            nothing,
        )
        .context("cannot mount /proc")?;
        // The names of networks are kept below /run.
        mount(
            Some("demo"),
            "/run",
            Some("tmpfs"),
            MsFlags::empty(),
            nothing,
        )
        .context("cannot mount /run")?;
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot let packets pass")?;
        ip("link set lo up")?;
        ip(&format!("address add {NODE}/32 dev lo"))?;
        connect("outside", OUTSIDE)?;
        // Where a real node has its router; addresses of Services have no route of their own.
        ip(&format!("route add default dev outside src {NODE}"))?;
        // Who is root on the machine is every user there.
        let borrowed_root = !fs::read_to_string("/proc/self/uid_map")?.contains("4294967295");
        Ok(Self { pid, borrowed_root })
    }

    /// The command by which people on the machine get here.
    pub fn way_in(&self) -> String {
        let user = if self.borrowed_root {
            "--user --preserve-credentials "
        } else {
            ""
        };
        format!("nsenter --target {} {user}--net --mount --pid", self.pid)
    }
}

/// A new network at the end of a cable to the node.
pub fn connect(name: &str, address: Ipv4Addr) -> Result<()> {
    ip(&format!("netns add {name}"))?;
    ip(&format!(
        "link add {name} type veth peer name eth0 netns {name}"
    ))?;
    ip(&format!("address add {NODE}/32 dev {name}"))?;
    ip(&format!("link set {name} up"))?;
    ip(&format!("route add {address}/32 dev {name} src {NODE}"))?;
    for inside in [
        "link set lo up".to_owned(),
        format!("address add {address}/32 dev eth0"),
        "link set eth0 up".to_owned(),
        format!("route add {NODE}/32 dev eth0"),
        format!("route add default via {NODE}"),
    ] {
        ip(&format!("-n {name} {inside}"))?;
    }
    Ok(())
}

/// Removes a network and its cable.
pub fn disconnect(name: &str) -> Result<()> {
    ip(&format!("link delete {name}"))?;
    ip(&format!("netns delete {name}"))
}

/// The file that stands for a network.
pub fn network(name: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(name)
}

fn ip(line: &str) -> Result<()> {
    let output = Command::new("ip")
        .args(line.split_whitespace())
        .output()
        .context("cannot start ip")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("ip {line}: {}", said.trim());
    }
    Ok(())
}
