//! A node that runs pods: a network and mounts of its own, containerd, a kubelet and a proxy.
//!
//! ```text
//! 172.31.0.1    172.31.0.11   172.31.0.12   172.31.0.13     fd00:172:31::1, ::11, ::12, ::13
//! API server       node1         node2         node3        in zone1, zone2, zone3
//!     └──────────────┴───mgmt──────┴─────────────┘
//!               10.244.1.0/24 10.244.2.0/24 10.244.3.0/24   fd00:10:244:1::/64 …
//! ```
//!
//! What a node writes below `/etc`, `/var`, `/opt` and `/usr/libexec` is in memory. Containers, images
//! and volumes lie in a folder, which must be on a real file system, and go with the run.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use super::{config, packages};
use crate::netns::{self, Netns};
use crate::process::Process;
use crate::tools::{Cluster, Tools};
use crate::{cage, control, os, world};

/// How many nodes there are, each in a zone of its own: fewer, and tests are skipped.
pub const COUNT: u8 = 3;
/// Where a node's own files are while its mounts are made.
const OVERLAYS: &str = "/run/overlays";
/// Folders whose changes are the node's own.
const OWN: [&str; 4] = ["/etc", "/var", "/opt", "/usr/libexec"];
/// Folders on the machine's disk.
const STATE: [&str; 2] = ["/var/lib/containerd", "/var/lib/kubelet"];
const SOCKET: &str = "/run/containerd/containerd.sock";
/// containerd opens its socket in a second; a busy machine needs more.
const TIMEOUT: Duration = Duration::from_mins(2);

/// A node. Its programs end with it.
pub struct Node {
    pub name: String,
    number: u8,
    folder: PathBuf,
    /// Has the network and the mounts as long as it runs.
    holder: Process,
    programs: Vec<Process>,
}

impl Node {
    /// Makes the network and the mounts.
    pub fn build(number: u8, folder: &Path) -> Result<Self> {
        let name = format!("node{number}");
        let place = Netns::make(&name)?;
        let folder = folder.join(&name);
        std::fs::create_dir_all(&folder)?;
        connect(number, &place)?;
        let mut hold = os::command(std::env::current_exe()?);
        hold.arg("hold-node").arg(&name).arg(&folder);
        let mut holder = place.run(|| Process::start("mounts", &mut hold, &folder))??;
        let ready = os::poll(TIMEOUT, || {
            if let Err(error) = holder.check() {
                return Some(Err(error));
            }
            folder.join("ready").exists().then_some(Ok(()))
        });
        ready.with_context(|| format!("{name} does not make its mounts"))??;
        let programs = Vec::new();
        Ok(Self {
            name,
            number,
            folder,
            holder,
            programs,
        })
    }

    /// What the API server knows of it before the kubelet does: where pods live, and the zone.
    pub fn object(&self) -> Value {
        let number = self.number;
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "labels": {
                    "kubernetes.io/hostname": self.name,
                    "topology.kubernetes.io/region": "lab",
                    "topology.kubernetes.io/zone": format!("zone{number}"),
                },
            },
            "spec": { "podCIDR": pods4(number), "podCIDRs": [pods4(number), pods6(number)] },
        })
    }

    /// The token and the group with which its kubelet is let in.
    pub fn guest(number: u8) -> (&'static str, &'static str) {
        const NAMES: [&str; COUNT as usize] = [
            "system:node:node1",
            "system:node:node2",
            "system:node:node3",
        ];
        (NAMES[usize::from(number) - 1], "system:nodes")
    }

    /// A program on this node.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = os::command("nsenter");
        // Not `ip netns exec`, which covers /sys and with it the control groups.
        command
            .arg(format!("--target={}", self.holder.id()))
            .args(["--mount", "--uts", "--net", "--"])
            .arg(program.as_ref());
        command
    }

    fn start(&mut self, name: &str, command: &mut Command) -> Result<()> {
        self.programs
            .push(Process::start(name, command, &self.folder)?);
        Ok(())
    }

    /// Starts what runs containers, and gives it the images.
    pub fn start_containerd(&mut self, cluster: &Cluster, images: &Path) -> Result<()> {
        let packages = packages::node()?;
        let file = self.folder.join("containerd.toml");
        std::fs::write(&file, config::containerd(SOCKET, &packages))?;
        // Its shim and `runc` are looked up.
        let path = std::env::var_os("PATH").context("PATH is not set")?;
        let first = [cluster.containerd.clone(), packages.join("usr/sbin")];
        let path = std::env::join_paths(first.into_iter().chain(std::env::split_paths(&path)))?;
        let mut containerd = self.command(cluster.containerd.join("containerd"));
        containerd.arg("--config").arg(file).env("PATH", path);
        self.start("containerd", &mut containerd)?;
        let ready = os::poll(TIMEOUT, || {
            if let Err(error) = self.check() {
                return Some(Err(error));
            }
            let version = os::output(self.ctr(cluster).arg("version"));
            version.is_ok().then_some(Ok(()))
        });
        ready.with_context(|| format!("containerd of {} is not ready", self.name))??;
        let mut import = self.ctr(cluster);
        os::output(import.args(["images", "import"]).arg(images))?;
        Ok(())
    }

    fn ctr(&self, cluster: &Cluster) -> Command {
        let mut command = self.command(cluster.containerd.join("ctr"));
        command.args(["--address", SOCKET, "--namespace", "k8s.io"]);
        command
    }

    /// Starts the kubelet, which registers the node.
    pub fn start_kubelet(&mut self, cluster: &Cluster, groups: &Groups) -> Result<()> {
        let kubeconfig = self.kubeconfig("kubelet", Self::guest(self.number).0)?;
        let file = self.folder.join("kubelet.json");
        let root = groups.of(&self.name)?;
        std::fs::write(&file, config::kubelet(SOCKET, &root).to_string())?;
        let mut kubelet = self.command(cluster.kubernetes.join("kubelet"));
        let (v4, v6) = (self.v4(), self.v6());
        kubelet
            .arg(format!("--config={}", file.display()))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--hostname-override={}", self.name))
            .arg(format!("--node-ip={v4},{v6}"));
        self.start("kubelet", &mut kubelet)
    }

    /// Starts the proxy, on a node that has had none.
    pub fn start_proxy(&mut self, tools: &Tools, program: &str, mode: &str) -> Result<()> {
        let kubeconfig = self.kubeconfig("proxy", PROXY.0)?;
        let rules = os::output(self.command("nft").args(["list", "ruleset"]))?;
        for trace in ["KUBE-SERVICES", "kube-proxy", "ferrule"] {
            ensure!(!rules.contains(trace), "{} has {trace} already", self.name);
        }
        let settings = config::proxy(&kubeconfig);
        let config = world::configuration(mode, &self.folder, &settings);
        let file = self.folder.join("proxy.json");
        std::fs::write(&file, config.to_string())?;
        let mut proxy = self.command(tools.program(program));
        // Alone, ferrule shows its verbs; kube-proxy has none.
        proxy.args((program == "ferrule").then_some("proxy"));
        proxy
            .arg(format!("--config={}", file.display()))
            .arg(format!("--hostname-override={}", self.name));
        self.start("proxy", &mut proxy)
    }

    /// Lets somebody in who is known by a token.
    fn kubeconfig(&self, name: &str, token: &str) -> Result<PathBuf> {
        let file = self.folder.join(format!("{name}.kubeconfig"));
        let anyone = json!({ "insecure-skip-tls-verify": true });
        control::write_kubeconfig(&file, &anyone, &json!({ "token": token }))?;
        Ok(file)
    }

    /// Fails when a program ended that should run.
    pub fn check(&mut self) -> Result<()> {
        self.programs.iter_mut().try_for_each(Process::check)
    }

    pub fn v4(&self) -> Ipv4Addr {
        address4(self.number)
    }

    fn v6(&self) -> Ipv6Addr {
        address6(self.number)
    }

    /// A page of its proxy, as seen from itself.
    pub fn page(&self, path: &str) -> Result<String> {
        let url = format!("http://127.0.0.1:10249/{path}");
        os::output(self.command("curl").args(["--silent", "--fail", &url]))
    }
}

/// The token and the group with which proxies are let in. The API server gives this user the role
/// that kube-proxy has in every cluster.
pub const PROXY: (&str, &str) = ("system:kube-proxy", "system:authenticated");

fn address4(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 31, 0, 10 + number)
}

fn address6(number: u8) -> Ipv6Addr {
    // Read as in the figure above.
    Ipv6Addr::new(0xfd00, 0x172, 0x31, 0, 0, 0, 0, 0x10 + u16::from(number))
}

fn pods4(number: u8) -> String {
    format!("10.244.{number}.0/24")
}

fn pods6(number: u8) -> String {
    format!("fd00:10:244:{number}::/64")
}

/// A link to the control plane, and the ways to pods of all nodes.
fn connect(number: u8, place: &Netns) -> Result<()> {
    place.run(|| {
        netns::sysctl("ipv4/ip_forward", "1")?;
        netns::sysctl("ipv6/conf/all/forwarding", "1")
    })??;
    netns::ip_here(&format!(
        "link add eth{number} type veth peer name eth0 netns {}\n\
         link set eth{number} master mgmt up\n",
        place.name()
    ))?;
    let (v4, v6) = (address4(number), address6(number));
    netns::ip_here(&format!(
        "route add {} via {v4}\nroute add {} via {v6}\n",
        pods4(number),
        pods6(number)
    ))?;
    let mut lines = format!(
        "addr add {v4}/16 dev eth0\naddr add {v6}/64 dev eth0 nodad\nlink set eth0 up\n\
         route add default via 172.31.0.1\nroute add default via fd00:172:31::1\n"
    );
    for other in (1..=COUNT).filter(|other| *other != number) {
        let gateways: [(String, IpAddr); 2] = [
            (pods4(other), address4(other).into()),
            (pods6(other), address6(other).into()),
        ];
        for (pods, gateway) in gateways {
            writeln!(lines, "route add {pods} via {gateway}")?;
        }
    }
    place.ip(&lines)
}

/// The process that has a node's mounts: makes them, says so by a file, and stays.
///
/// It is started in the node's network.
pub fn hold(name: &str, folder: &Path) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)
        .context("cannot make mount and host name namespaces")?;
    std::fs::write("/proc/sys/kernel/hostname", name)?;
    cage::own("/run", Some("tmpfs"), MsFlags::empty())?;
    for target in OWN {
        let own = Path::new(OVERLAYS).join(target.trim_start_matches('/').replace('/', "-"));
        let (upper, work) = (own.join("upper"), own.join("work"));
        for folder in [Path::new(target), &upper, &work] {
            std::fs::create_dir_all(folder)?;
        }
        let options = format!(
            "lowerdir={target},upperdir={},workdir={}",
            upper.display(),
            work.display()
        );
        mount(
            Some("overlay"),
            target,
            Some("overlay"),
            MsFlags::empty(),
            Some(options.as_str()),
        )
        .with_context(|| format!("cannot lay an overlay over {target}"))?;
    }
    for target in STATE {
        let source = folder.join(Path::new(target).file_name().unwrap_or_default());
        std::fs::create_dir_all(&source)?;
        std::fs::create_dir_all(target)?;
        bind(&source, Path::new(target))?;
    }
    let networks = Path::new("/etc/cni/net.d");
    std::fs::create_dir_all(networks)?;
    let number = name.trim_start_matches("node").parse()?;
    let list = config::network(&pods4(number), &pods6(number));
    std::fs::write(networks.join("10-lab.conflist"), list.to_string())?;
    // Pods get the cluster's name server; there is none outside.
    std::fs::write("/etc/resolv.conf", "")?;
    // Volumes that the kubelet mounts must be seen by containers.
    cage::own("/", None, MsFlags::MS_REC | MsFlags::MS_SHARED)?;
    std::fs::write(folder.join("ready"), "")?;
    loop {
        std::thread::park();
    }
}

fn bind(source: &Path, target: &Path) -> Result<()> {
    mount(
        Some(source),
        target,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .with_context(|| {
        format!(
            "cannot mount {} over {}",
            source.display(),
            target.display()
        )
    })
}

/// Removes what the nodes of a run had on disk. Logs stay.
pub fn remove_state(folder: &Path) -> Result<()> {
    for number in 1..=COUNT {
        for state in STATE {
            let name = Path::new(state).file_name().unwrap_or_default();
            let state = folder.join(format!("node{number}")).join(name);
            if state.is_dir() {
                std::fs::remove_dir_all(&state)
                    .with_context(|| format!("cannot remove {}", state.display()))?;
            }
        }
    }
    Ok(())
}

/// Settings of the whole machine that a kubelet would change, and what it wants there.
const SETTINGS: [(&str, &str); 6] = [
    ("kernel/keys/root_maxbytes", "25000000"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
];

/// Shows kubelets the settings they want, so that they change none.
pub fn cover_settings() -> Result<()> {
    let folder = Path::new("/run/settings");
    std::fs::create_dir_all(folder)?;
    for (name, value) in SETTINGS {
        let file = folder.join(name.replace('/', "."));
        std::fs::write(&file, format!("{value}\n"))?;
        bind(&file, &Path::new("/proc/sys").join(name))?;
    }
    Ok(())
}

/// Control groups of the nodes. They are the machine's, so they outlive the cage and must be removed.
pub struct Groups {
    name: String,
}

/// Where the hierarchies are mounted.
const HIERARCHIES: &str = "/sys/fs/cgroup";

impl Groups {
    /// Those of a run with this name.
    pub fn new(name: &str) -> Self {
        Self {
            name: format!("ferrule-{name}"),
        }
    }

    /// Makes the group of a node, in each hierarchy there is, and returns its path in them.
    fn of(&self, node: &str) -> Result<String> {
        for hierarchy in hierarchies()? {
            let group = hierarchy.join(&self.name);
            for folder in [&group, &group.join(node)] {
                std::fs::create_dir_all(folder)?;
                for setting in ["cpuset.cpus", "cpuset.mems"] {
                    let above = folder.parent().unwrap_or(folder).join(setting);
                    let Ok(value) = std::fs::read_to_string(above) else {
                        continue;
                    };
                    // A new group has none, and nothing can run in it.
                    OpenOptions::new()
                        .write(true)
                        .open(folder.join(setting))
                        .and_then(|mut file| {
                            std::io::Write::write_all(&mut file, value.trim().as_bytes())
                        })
                        .with_context(|| folder.join(setting).display().to_string())?;
                }
            }
        }
        Ok(format!("/{}/{node}", self.name))
    }

    /// Removes the groups of a run that has ended.
    pub fn remove(&self) -> Result<()> {
        for hierarchy in hierarchies()? {
            let group = hierarchy.join(&self.name);
            if group.is_dir() {
                // The last processes may still be on their way out.
                let gone = os::poll(TIMEOUT, || remove_group(&group).is_ok().then_some(()));
                gone.with_context(|| format!("{} cannot be removed", group.display()))?;
            }
        }
        Ok(())
    }
}

fn remove_group(group: &Path) -> Result<()> {
    for entry in std::fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_group(&entry.path())?;
        }
    }
    Ok(std::fs::remove_dir(group)?)
}

fn hierarchies() -> Result<Vec<PathBuf>> {
    let root = Path::new(HIERARCHIES);
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root.to_owned()]);
    }
    let mut all = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let path = entry?.path();
        // Some have two names.
        if path.is_dir() && !path.is_symlink() {
            all.push(path);
        }
    }
    all.sort_unstable();
    Ok(all)
}
