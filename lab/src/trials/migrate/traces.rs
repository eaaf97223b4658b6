//! What is in a node's kernel: before, during and after a program.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

use super::on_every_node;
use super::traffic::CLUSTER_IPS;
use crate::os;
use crate::plan;
use crate::world::World;

/// Settings whose values change by themselves, or are counted.
const MOVING: &[&str] = &["nf_conntrack_count", "dst_cookie", "flush", "stat"];
/// kube-proxy sets it in mode iptables and leaves it, and so does ferrule: whether somebody else
/// relies on it cannot be known.
const KEPT: &str = "ipv4/conf/all/route_localnet";

/// What the kubelet makes on a node, whichever proxy runs there; proxies must leave it.
const KUBELET: &str = "*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
";
/// Further, for IPv4 only.
const KUBELET_4: &str = "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \
\"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
";
/// Its chains.
const KUBELETS: [&str; 3] = ["KUBE-FIREWALL", "KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];
/// Lets through what portals lead to this machine, where there are rules of iptables.
const USERSPACE: &str = "KUBE-NODEPORT-NON-LOCAL";

/// Makes on every node what the kubelet would.
pub fn be_a_kubelet(world: &World) -> Result<()> {
    for node in plan::nodes() {
        let write = || -> Result<()> {
            for (program, further) in [("iptables", KUBELET_4), ("ip6tables", "")] {
                let text = format!("{KUBELET}{further}COMMIT\n");
                os::feed(
                    os::command(format!("{program}-restore")).arg("--noflush"),
                    &text,
                )?;
            }
            Ok(())
        };
        world.place(node.name)?.run(write)??;
    }
    Ok(())
}

/// Waits until a mode's rules name the Service's addresses on every node.
pub fn until_programmed(world: &World, mode: &str) -> Result<()> {
    on_every_node(world, "is not programmed", || {
        let [v4, v6] = match mode {
            "nftables" => {
                ["ip", "ip6"].map(|family| nft(&format!("list table {family} kube-proxy")))
            }
            _ => ["iptables-save", "ip6tables-save"].map(print),
        };
        let has = v4.contains(CLUSTER_IPS[0]) && v6.contains(CLUSTER_IPS[1]);
        Ok((!has).then(|| format!("{v4}{v6}")))
    })
}

/// Waits until only this mode's rules are left on every node.
pub fn until_only(world: &World, mode: &str) -> Result<()> {
    on_every_node(world, "rules of another mode are left", || {
        let tables = nft("list tables");
        let mut left = String::new();
        for line in tables.lines() {
            let others = (line.ends_with(" kube-proxy") && mode != "nftables")
                || (line.contains("ferrule-") && mode != "userspace");
            if others {
                writeln!(left, "{line}")?;
            }
        }
        if mode != "iptables" {
            let saved = print("iptables-save") + &print("ip6tables-save");
            let own = (mode == "userspace").then_some(&USERSPACE);
            let allowed: Vec<_> = KUBELETS.iter().chain(own).collect();
            let is_allowed = |line: &&str| allowed.iter().any(|chain| line.contains(**chain));
            let lines = saved.lines().filter(|line| line.contains("KUBE-"));
            for line in lines.filter(|line| !is_allowed(line)) {
                writeln!(left, "{line}")?;
            }
        }
        Ok((!left.is_empty()).then_some(left))
    })
}

/// Everything that a proxy could leave behind, by node and by what it is.
pub struct Snapshot(BTreeMap<String, String>);

impl Snapshot {
    pub fn take(world: &World) -> Result<Self> {
        let mut parts = BTreeMap::new();
        for node in plan::nodes() {
            let (name, look) = (node.name, || {
                let mut parts = vec![
                    ("nft list ruleset", without_empty(&nft("-s list ruleset"))),
                    ("ipset list", print("ipset list")),
                    ("links and addresses", print("ip -o address")),
                    ("sysctls", sysctls(Path::new("/proc/sys/net"))),
                ];
                for program in ["iptables", "ip6tables"] {
                    for flavour in ["nft", "legacy"] {
                        let line = format!("{program}-{flavour}-save");
                        parts.push((
                            if flavour == "nft" {
                                "iptables-nft"
                            } else {
                                "iptables-legacy"
                            },
                            print(&line),
                        ));
                    }
                }
                parts
            });
            for (what, text) in world.place(name)?.run(look)? {
                let entry: &mut String = parts.entry(format!("{name}: {what}")).or_default();
                entry.push_str(&text);
            }
        }
        Ok(Self(parts))
    }

    /// Lines that are only in one of the two.
    pub fn differences(&self, before: &Self) -> String {
        let mut lines = Vec::new();
        for (what, now) in &self.0 {
            let then = before.0.get(what).map_or("", String::as_str);
            for (sign, here, there) in [("-", then, now.as_str()), ("+", now, then)] {
                let there: Vec<_> = there.lines().collect();
                let only = here.lines().filter(|line| !there.contains(line));
                lines.extend(only.map(|line| format!("{what}: {sign}{line}")));
            }
        }
        lines.join("\n")
    }
}

/// A ruleset without base chains in which there is nothing and that accept everything. iptables makes
/// them when it first looks at a table, and nobody can tell whose they are.
fn without_empty(ruleset: &str) -> String {
    let lines: Vec<_> = ruleset.lines().filter(|line| !line.is_empty()).collect();
    let mut kept = Vec::new();
    let mut rest = &lines[..];
    while let [first, others @ ..] = rest {
        rest = match others {
            [kind, end, after @ ..]
                if first.starts_with("\tchain ")
                    && kind.trim_start().starts_with("type ")
                    && kind.ends_with("policy accept;")
                    && *end == "\t}" =>
            {
                after
            }
            _ => {
                kept.push(*first);
                others
            }
        };
    }
    kept.join("\n")
}

fn nft(arguments: &str) -> String {
    print(&format!("nft {arguments}"))
}

/// What a program prints, without comments. One that fails has nothing to show: there is no such table.
fn print(line: &str) -> String {
    let mut words = line.split(' ');
    let mut command = os::command(words.next().unwrap_or_default());
    let output = os::output(command.args(words)).unwrap_or_default();
    let lines = output.lines().filter(|line| !line.starts_with('#'));
    let lines: Vec<_> = lines.chain([""]).collect();
    lines.join("\n")
}

/// Every setting below a folder that can be read, with its value.
fn sysctls(folder: &Path) -> String {
    let mut lines = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(value) = std::fs::read_to_string(&path) {
                let name = path
                    .strip_prefix(folder)
                    .unwrap_or(&path)
                    .display()
                    .to_string();
                if name != KEPT && !MOVING.iter().any(|word| name.contains(word)) {
                    lines.push(format!("{name} = {}\n", value.trim()));
                }
            }
        }
    }
    lines.sort_unstable();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chains_that_change_nothing_are_left_out() {
        let empty =
            "\tchain INPUT {\n\t\ttype filter hook input priority filter; policy accept;\n\t}\n";
        let full = empty.replace("\t}\n", "\t\tcounter\n\t}\n");
        let strict = empty.replace("accept;", "drop;");
        let ruleset = format!("table ip filter {{\n{empty}{full}{strict}}}\n");
        let kept = format!("table ip filter {{\n{full}{strict}}}");
        assert_eq!(without_empty(&ruleset), kept);
    }
}
