//! One program in one mode on a network of its own.
//!
//! ```text
//!  outside1   outside2        203.0.113.1, 198.51.100.2: default route to "their" node
//!      └──wire──┘             172.18.0.0/24; swallows what nobody else takes
//!   ┌────┘  └────┐
//! node1        node2          172.18.0.1 and .2; second addresses 172.19.0.1 and .2
//!  a1…a4        b1…b4         10.244.1.1…4 and 10.244.2.1…4, each on a link of its own
//! ```
//!
//! IPv6 is the same throughout. Each node also has a link to the control plane.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::netns::{self, Netns};
use crate::plan::{self, HOSTS, Host, Kind};
use crate::pod::Servers;
use crate::process::Process;
use crate::tools::Tools;
use crate::{barrier, cage, control, legacy, os};

/// Which program in which mode, such as `ferrule/nftables`. `iptables-legacy` is the mode iptables
/// with that flavour of it; `iptables` is whatever the machine has under that name.
/// `userspace-iptables` is the mode userspace with portals by iptables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorldKey {
    pub program: String,
    pub mode: String,
    pub legacy: bool,
    pub portals_by_iptables: bool,
}

impl FromStr for WorldKey {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (program, mode) = text.split_once('/').context("write it as program/mode")?;
        if !["ferrule", "kube-proxy"].contains(&program) {
            bail!("{program} is neither ferrule nor kube-proxy");
        }
        let legacy = mode == "iptables-legacy";
        let mode = if legacy { "iptables" } else { mode };
        let portals_by_iptables = mode == "userspace-iptables";
        let mode = if portals_by_iptables {
            "userspace"
        } else {
            mode
        };
        if !["nftables", "iptables", "ipvs", "userspace"].contains(&mode) {
            bail!("no world knows the mode {mode}");
        }
        if mode == "userspace" && program == "kube-proxy" {
            bail!("kube-proxy has no mode userspace any more");
        }
        Ok(Self {
            program: program.to_owned(),
            mode: mode.to_owned(),
            legacy,
            portals_by_iptables,
        })
    }
}

impl fmt::Display for WorldKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.program, self.variety())
    }
}

impl WorldKey {
    /// The mode, and the flavour where there are several.
    pub fn variety(&self) -> String {
        let flavour = match (self.legacy, self.portals_by_iptables) {
            (true, _) => "-legacy",
            (_, true) => "-iptables",
            _ => "",
        };
        format!("{}{flavour}", self.mode)
    }

    /// Whether a process stands between clients and pods, so that pods see its node.
    pub fn relays(&self) -> bool {
        self.mode == "userspace"
    }

    /// As part of a file name.
    fn slug(&self) -> String {
        self.to_string().replace('/', "-")
    }
}

/// Whose turn it is in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The program the world is named after.
    Own,
    /// The one it is compared with, in its place.
    Other,
}

/// A world, its pods answering, its proxies not yet running.
pub struct World {
    pub key: WorldKey,
    places: BTreeMap<&'static str, Netns>,
    pods: BTreeMap<&'static str, Servers>,
    proxies: BTreeMap<&'static str, Process>,
    /// Those that others took over from, and that end with their last connection.
    former: Vec<Process>,
    folder: PathBuf,
    /// Where its proxies look for programs, if not where everybody does.
    search_path: Option<OsString>,
    runtime: Handle,
    _sentinel: Servers,
}

impl World {
    /// Builds the network and starts the pods. `number` tells worlds apart on the link to the
    /// control plane.
    pub fn build(key: WorldKey, number: usize, folder: &Path, runtime: &Handle) -> Result<Self> {
        let mut places = BTreeMap::new();
        for host in HOSTS {
            let name = format!("{}.{}", key.slug(), host.name);
            places.insert(host.name, Netns::make(&name)?);
        }
        connect(&places, number)?;
        let sentinel = Servers::start("sentinel", &barrier::PORTS, &places["wire"], runtime)?;
        let search_path = key.legacy.then(|| legacy::search_path(folder));
        let mut world = Self {
            key,
            search_path: search_path.transpose()?,
            places,
            pods: BTreeMap::new(),
            proxies: BTreeMap::new(),
            former: Vec::new(),
            folder: folder.to_owned(),
            runtime: runtime.clone(),
            _sentinel: sentinel,
        };
        plan::pods().try_for_each(|pod| world.start_pod(pod.name))?;
        Ok(world)
    }

    /// A host's network.
    pub fn place(&self, name: &str) -> Result<&Netns> {
        let place = self.places.get(name);
        place.with_context(|| format!("there is no host {name}"))
    }

    /// Where programs of this world are looked for, if not where everybody looks.
    pub fn search_path(&self) -> Option<&OsStr> {
        self.search_path.as_deref()
    }

    /// Lets a pod answer. One that does already goes on.
    pub fn start_pod(&mut self, name: &str) -> Result<()> {
        let pod = plan::pods().find(|pod| pod.name == name);
        let pod = pod.with_context(|| format!("there is no pod {name}"))?;
        if !self.pods.contains_key(pod.name) {
            let place = &self.places[pod.name];
            let servers = Servers::start(pod.name, &plan::POD_PORTS, place, &self.runtime)?;
            self.pods.insert(pod.name, servers);
        }
        Ok(())
    }

    /// Closes a pod's sockets; connections to it end.
    pub fn stop_pod(&mut self, name: &str) {
        if let Some(servers) = self.pods.remove(name) {
            servers.stop();
        }
    }

    /// Starts the proxy of every node, with `settings` laid over the lab's configuration. Running
    /// ones are ended first.
    pub fn start_proxies(&mut self, tools: &Tools, who: Who, settings: &Value) -> Result<()> {
        self.stop_proxies()?;
        self.start_beside(tools, who, settings)
    }

    /// As [`World::start_proxies`], for a restart: where one process can take over from another,
    /// both run until the old one has no connection left.
    pub fn restart_proxies(&mut self, tools: &Tools, who: Who, settings: &Value) -> Result<()> {
        if !self.key.relays() {
            return self.start_proxies(tools, who, settings);
        }
        let former = std::mem::take(&mut self.proxies);
        self.former.extend(former.into_values());
        self.start_beside(tools, who, settings)
    }

    fn start_beside(&mut self, tools: &Tools, who: Who, settings: &Value) -> Result<()> {
        let WorldKey { program, mode, .. } = self.key.clone();
        let program = match (who, program.as_str()) {
            (Who::Own, own) => own,
            // There is no other one.
            (Who::Other, own) if self.key.relays() => own,
            (Who::Other, "ferrule") => "kube-proxy",
            (Who::Other, _) => "ferrule",
        };
        let _nobody = self.succeed(tools, program, &mode, settings)?;
        Ok(())
    }

    /// Starts a program in a mode on every node and returns those that ran before, which still do.
    pub fn succeed(
        &mut self,
        tools: &Tools,
        program: &str,
        mode: &str,
        settings: &Value,
    ) -> Result<Vec<Process>> {
        let mut before = Vec::new();
        for node in plan::nodes() {
            let process = self.start_proxy(node, tools.program(program), mode, settings)?;
            before.extend(self.proxies.insert(node.name, process));
        }
        Ok(before)
    }

    /// Asks the proxies to end; what they programmed stays.
    pub fn stop_proxies(&mut self) -> Result<()> {
        let proxies = std::mem::take(&mut self.proxies).into_values();
        let mut all = proxies.chain(std::mem::take(&mut self.former));
        all.try_for_each(|mut process| process.stop().map(drop))
    }

    fn start_proxy(
        &self,
        node: &Host,
        program: PathBuf,
        mode: &str,
        settings: &Value,
    ) -> Result<Process> {
        let place = self.place(node.name)?;
        // Not below /run, which the proxy will not see. Whoever runs follows its own file.
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let file = format!("{}.{name}-{mode}.json", place.name());
        let file = self.folder.join(file);
        let config = configuration(mode, &self.folder, settings);
        std::fs::write(&file, serde_json::to_vec_pretty(&config)?)?;

        let mut command = os::command(program);
        // Under the name of kube-proxy ferrule is one, and takes the same words.
        command.arg0("kube-proxy");
        command
            .arg(format!("--config={}", file.display()))
            .arg(format!("--hostname-override={}", node.name));
        if self.key.relays() {
            // Short, so that a restart by ending the process is not long.
            command.arg("--userspace-drain-timeout=0s");
            let socket = self.folder.join(format!("{}.sock", place.name()));
            command.arg(format!("--userspace-handover={}", socket.display()));
        }
        if self.key.portals_by_iptables {
            command.arg("--userspace-portals=iptables");
        }
        if let Some(path) = &self.search_path {
            command.env("PATH", path);
        }
        place.run(|| {
            // A /run of its own: the lock of iptables is a file there, and worlds must not wait
            // for each other.
            unshare(CloneFlags::CLONE_NEWNS)?;
            cage::own("/run", Some("tmpfs"), MsFlags::empty())?;
            Process::start(place.name(), &mut command, &self.folder)
        })?
    }

    /// Ends everybody in it and takes its networks away.
    pub fn remove(mut self) -> Result<()> {
        self.stop_proxies()?;
        for (_, servers) in std::mem::take(&mut self.pods) {
            servers.stop();
        }
        for node in plan::nodes() {
            // A namespace goes when the kernel finds the time; this name may be wanted before.
            self.place(node.name)?.ip("link del mgmt\n")?;
        }
        self.places.values().try_for_each(Netns::remove)
    }

    /// Sends a signal to every proxy.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let mut proxies = self.proxies.values();
        proxies.try_for_each(|proxy| proxy.signal(signal))
    }

    /// Fails when a proxy ended that should run.
    pub fn check(&mut self) -> Result<()> {
        self.proxies.values_mut().try_for_each(Process::check)
    }

    /// The last lines that a node's proxy logged, for an error.
    pub fn log_end(&self, node: &str) -> String {
        let proxy = self.proxies.get(node);
        proxy.map_or_else(|| "no proxy runs".to_owned(), Process::log_end)
    }

    /// Where the proxies write.
    pub fn logs(&self) -> Vec<&Path> {
        self.proxies.values().map(Process::log).collect()
    }
}

/// The configuration of every proxy, whichever program it is. Little, so that defaults are tested too.
pub fn configuration(mode: &str, folder: &Path, settings: &Value) -> Value {
    let periods = json!({ "minSyncPeriod": "10ms", "syncPeriod": "1s" });
    let mut config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "clientConnection": { "kubeconfig": control::kubeconfig(folder) },
        "clusterCIDR": plan::CLUSTER_CIDRS,
        "detectLocalMode": "ClusterCIDR",
        "iptables": periods,
        // Every sync of kube-proxy starts dozens of programs here.
        "ipvs": { "minSyncPeriod": "10ms", "syncPeriod": "30s" },
        "nftables": periods,
        // Limits of connection tracking belong to the whole machine.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "oomScoreAdj": 0,
        "logging": { "verbosity": 3 },
    });
    lay_over(&mut config, settings);
    config
}

/// Puts the fields of `over` into `base`, objects field by field.
fn lay_over(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (name, value) in over {
                lay_over(base.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (base, over) => *base = over.clone(),
    }
}

/// Plugs everyone in and gives out addresses and routes.
fn connect(places: &BTreeMap<&'static str, Netns>, number: usize) -> Result<()> {
    places["wire"].ip("link add br0 type bridge mcast_snooping 0\n\
         addr add 172.18.0.254/24 dev br0\naddr add fd00:172:18::fe/64 dev br0 nodad\n\
         link set br0 up\n")?;
    // It knows the way back to everyone, as a router would.
    for node in plan::nodes() {
        let number = node.number();
        places["wire"].ip(&format!(
            "route add 10.244.{number}.0/24 via {}\nroute add fd00:10:244:{number}::/64 via {}\n",
            node.v4, node.v6
        ))?;
    }
    for host in HOSTS {
        match host.kind {
            Kind::Wire => {}
            Kind::Node => connect_node(host, places, number)?,
            Kind::Outside(node) => connect_outside(host, node, places)?,
            Kind::Pod(node) => connect_pod(host, node, places)?,
        }
    }
    Ok(())
}

/// A link between a host's `eth0` and the wire.
fn plug(host: &Host, places: &BTreeMap<&'static str, Netns>) -> Result<()> {
    let (wire, place) = (&places["wire"], &places[host.name]);
    let name = host.name;
    netns::ip_here(&format!(
        "link add eth0 netns {} type veth peer name {name} netns {}\n",
        place.name(),
        wire.name()
    ))?;
    wire.ip(&format!("link set {name} master br0 up\n"))?;
    place.ip("link set eth0 up\n")
}

fn connect_node(node: &Host, places: &BTreeMap<&'static str, Netns>, number: usize) -> Result<()> {
    let place = &places[node.name];
    place.run(|| {
        netns::sysctl("ipv4/ip_forward", "1")?;
        netns::sysctl("ipv6/conf/all/forwarding", "1")
    })??;
    plug(node, places)?;
    let own = node.number();
    let other = 3 - own;
    // Deprecated, so that nothing leaves from the second IPv6 address of itself.
    let (second4, second6) = plan::second(node);
    place.ip(&format!(
        "addr add {}/24 dev eth0\naddr add {}/64 dev eth0 nodad\n\
         addr add {second4}/24 dev eth0\naddr add {second6}/64 dev eth0 nodad preferred_lft 0\n\
         route add 203.0.113.0/24 dev eth0\nroute add 198.51.100.0/24 dev eth0\n\
         route add 2001:db8:1::/64 dev eth0\nroute add 2001:db8:2::/64 dev eth0\n\
         route add default via 172.18.0.254\nroute add default via fd00:172:18::fe\n\
         route add 10.244.{other}.0/24 via 172.18.0.{other}\n\
         route add fd00:10:244:{other}::/64 via fd00:172:18::{other}\n",
        node.v4, node.v6
    ))?;
    // The link to the control plane is the only thing in which worlds differ.
    netns::ip_here(&format!(
        "link add m{number}n{own} type veth peer name mgmt netns {}\n\
         link set m{number}n{own} master mgmt up\n",
        place.name()
    ))?;
    place.ip(&format!(
        "addr add 172.31.{}.{own}/16 dev mgmt\nlink set mgmt up\n",
        number + 1
    ))
}

fn connect_outside(host: &Host, node: u8, places: &BTreeMap<&'static str, Netns>) -> Result<()> {
    plug(host, places)?;
    places[host.name].ip(&format!(
        "addr add {}/24 dev eth0\naddr add {}/64 dev eth0 nodad\n\
         route add 172.18.0.0/24 dev eth0\nroute add fd00:172:18::/64 dev eth0\n\
         route add 172.19.0.0/24 dev eth0\nroute add fd00:172:19::/64 dev eth0\n\
         route add default via 172.18.0.{node}\nroute add default via fd00:172:18::{node}\n",
        host.v4, host.v6
    ))
}

/// A link of the pod's own to its node, which routes: nothing is bridged, so a packet of a pod to
/// itself through a Service comes back over the same link.
fn connect_pod(pod: &Host, node: u8, places: &BTreeMap<&'static str, Netns>) -> Result<()> {
    let node_place = &places[format!("node{node}").as_str()];
    let place = &places[pod.name];
    let (name, v4, v6) = (pod.name, pod.v4, pod.v6);
    let (gateway4, gateway6) = plan::gateway(node);
    netns::ip_here(&format!(
        "link add eth0 netns {} type veth peer name {name} netns {}\n",
        place.name(),
        node_place.name()
    ))?;
    node_place.ip(&format!(
        "addr add {gateway4}/32 dev {name}\naddr add {gateway6}/128 dev {name} nodad\n\
         addr add fe80::1/64 dev {name} nodad\nlink set {name} up\n\
         route add {v4}/32 dev {name}\nroute add {v6}/128 dev {name}\n"
    ))?;
    place.ip(&format!(
        "addr add {v4}/32 dev eth0\naddr add {v6}/128 dev eth0 nodad\nlink set eth0 up\n\
         route add {gateway4}/32 dev eth0\nroute add default via {gateway4}\n\
         route add default via fe80::1 dev eth0\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_story_are_laid_over_field_by_field() {
        let settings =
            json!({ "nftables": { "masqueradeAll": true }, "nodePortAddresses": ["primary"] });
        let config = configuration("nftables", Path::new("x"), &settings);
        assert_eq!(config["nftables"]["minSyncPeriod"], "10ms");
        assert_eq!(config["nftables"]["masqueradeAll"], true);
        assert_eq!(config["nodePortAddresses"], json!(["primary"]));
    }

    #[test]
    fn a_world_is_named_by_program_and_mode() {
        let key: WorldKey = "kube-proxy/nftables".parse().unwrap();
        assert_eq!(key.to_string(), "kube-proxy/nftables");
        let legacy: WorldKey = "ferrule/iptables-legacy".parse().unwrap();
        assert_eq!(legacy.to_string(), "ferrule/iptables-legacy");
        assert_eq!((legacy.mode.as_str(), legacy.legacy), ("iptables", true));
        let portals: WorldKey = "ferrule/userspace-iptables".parse().unwrap();
        assert_eq!(portals.to_string(), "ferrule/userspace-iptables");
        assert!(portals.relays() && portals.mode == "userspace");
        assert!("kube-proxy/userspace".parse::<WorldKey>().is_err());
        assert!("nftables".parse::<WorldKey>().is_err());
        assert!("haproxy/nftables".parse::<WorldKey>().is_err());
    }
}
