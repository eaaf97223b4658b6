//! Settings that cannot be right on this machine and this Node, reported before anybody wonders.
//!
//! In: the configuration, what the kernel supports, what the Node says. Out: complaints; a fatal
//! one means that traffic would silently go wrong.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use ferrule_core::facts::{DetectLocal, node_ips};
use ferrule_core::model::{Family, Node, parse_cidr};
use ipnet::IpNet;
use tokio::sync::mpsc;

use crate::config::Config;

/// One thing that cannot be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// What.
    pub text: String,
    /// Whether to end the program over it.
    pub fatal: bool,
}

/// Checks the settings in force, whenever the Node is another.
pub struct Checks {
    config: Arc<RwLock<Config>>,
    supported: Vec<Family>,
    /// Ends the program.
    fatal: mpsc::Sender<anyhow::Error>,
    /// What was logged, so that each is logged once; `None` before the first check.
    complained: Option<Vec<Complaint>>,
}

impl Checks {
    /// Nothing is checked yet.
    pub const fn new(
        config: Arc<RwLock<Config>>,
        supported: Vec<Family>,
        fatal: mpsc::Sender<anyhow::Error>,
    ) -> Self {
        Self {
            config,
            supported,
            fatal,
            complained: None,
        }
    }

    /// Checks whether the settings can be right on this Node.
    pub fn check(&mut self, node: &Node) {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        let complaints = complaints(&config, &self.supported, node);
        drop(config);
        let known = self.complained.take().unwrap_or_default();
        for complaint in complaints.iter().filter(|one| !known.contains(one)) {
            if complaint.fatal {
                // When it is full, the program is ending already.
                _ = self.fatal.try_send(anyhow::anyhow!(complaint.text.clone()));
            } else {
                let err = &complaint.text;
                tracing::error!(
                    err,
                    "Kube-proxy configuration may be incomplete or incorrect"
                );
            }
        }
        self.complained = Some(complaints);
    }

    /// Where there is no Node to compare with, much shows without one.
    pub fn check_without_node(&mut self) {
        if self.complained.is_none() {
            self.check(&Node::default());
        }
    }
}

/// Everything that cannot be right.
pub fn complaints(config: &Config, supported: &[Family], node: &Node) -> Vec<Complaint> {
    let (primary, _) = node_ips(&node.addresses, config.bind_ip());
    let mut found = Vec::new();
    if !supported.contains(&primary) {
        let text = format!("no support for primary IP family {:?}", primary.as_str());
        found.push(Complaint { text, fatal: true });
    }
    found.extend(open_node_ports(config, primary));
    let dual_stack = supported.len() > 1;
    let mode = config.detect_local();
    let cluster: Vec<IpNet> = nets(&config.cluster_cidrs);
    if wrong(&cluster, primary) {
        found.push(Complaint {
            text: incorrect(&format!(
                "cluster CIDRs contain only IPs of family other than {primary}"
            )),
            fatal: matches!(mode, DetectLocal::ClusterCidr(_)) && !dual_stack,
        });
    }
    if wrong(&node.pod_cidrs, primary) {
        found.push(Complaint {
            text: incorrect(&format!(
                "node.spec.podCIDRs contain only IPs of family other than {primary}"
            )),
            fatal: mode == DetectLocal::NodeCidr,
        });
    }
    if !dual_stack {
        found.extend(single_stack(config, primary));
    }
    found
}

/// NodePorts that answer on more addresses than somebody may have meant.
fn open_node_ports(config: &Config, primary: Family) -> Option<Complaint> {
    let entries = config.node_port_addresses.as_deref().unwrap_or_default();
    let words = ["primary", "localhost", "all"];
    let text = if entries.is_empty() {
        "nodePortAddresses is unset; NodePort connections will be accepted on all local IPs. \
         Consider using `--nodeport-addresses primary`"
            .to_owned()
    } else if entries.iter().any(|entry| words.contains(&entry.as_str())) {
        return None;
    } else {
        let listed = nets(entries);
        let has = |family| listed.iter().any(|net| Family::of_net(net) == family);
        let open = Family::ALL.into_iter().find(|family| !has(*family))?;
        // A cluster of one family has no use for the other.
        if open != primary
            && nets(&config.cluster_cidrs)
                .iter()
                .all(|net| Family::of_net(net) == primary)
        {
            return None;
        }
        format!(
            "nodePortAddresses has no {open} entry; NodePort connections will be accepted on all local {open} IPs"
        )
    };
    Some(Complaint { text, fatal: false })
}

/// What cannot work when the kernel has one family only.
fn single_stack(config: &Config, primary: Family) -> Vec<Complaint> {
    let mut texts = Vec::new();
    if wrong(&config.ipvs.excluded(), primary) {
        texts.push(format!(
            "ipvs.excludeCIDRs contain only IPs of family other than {primary}"
        ));
    }
    let addresses = [
        ("healthzBindAddress", config.healthz_address()),
        ("metricsBindAddress", config.metrics_address()),
    ];
    for (field, address) in addresses {
        let other = |ip: &IpAddr| !ip.is_unspecified() && Family::of(*ip) != primary;
        if let Some(ip) = address.map(|address| address.ip()).filter(other) {
            texts.push(format!("{field} {ip} is not of family {primary}"));
        }
    }
    let complaint = |text: String| Complaint {
        text: incorrect(&text),
        fatal: false,
    };
    texts.into_iter().map(complaint).collect()
}

fn incorrect(what: &str) -> String {
    format!("kube-proxy configuration is incorrect: {what}")
}

fn nets(texts: &[String]) -> Vec<IpNet> {
    texts.iter().filter_map(|text| parse_cidr(text)).collect()
}

/// There are some, and all are of the other family.
fn wrong(nets: &[IpNet], primary: Family) -> bool {
    !nets.is_empty() && nets.iter().all(|net| Family::of_net(net) != primary)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Family; 2] = Family::ALL;
    const V4: [Family; 1] = [Family::V4];

    fn node(address: &str, pods: &[&str]) -> Node {
        Node {
            addresses: [address.parse().unwrap()].into(),
            pod_cidrs: pods.iter().map(|net| net.parse().unwrap()).collect(),
            ..Node::default()
        }
    }

    fn config(change: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config {
            node_port_addresses: Some(vec!["primary".to_owned()]),
            ..Config::default()
        };
        change(&mut config);
        config
    }

    fn fatal(config: &Config, supported: &[Family], node: &Node) -> Vec<bool> {
        complaints(config, supported, node)
            .iter()
            .map(|complaint| complaint.fatal)
            .collect()
    }

    #[test]
    fn what_is_right_is_not_complained_about() {
        let config = config(|config| config.cluster_cidrs = vec!["10.0.0.0/8".to_owned()]);
        assert_eq!(
            complaints(&config, &BOTH, &node("192.0.2.1", &["10.0.1.0/24"])),
            []
        );
        assert_eq!(complaints(&config, &V4, &node("192.0.2.1", &[])), []);
    }

    #[test]
    fn core_042_a_primary_family_the_kernel_lacks_is_fatal() {
        let found = complaints(&config(|_| ()), &V4, &node("fd00::1", &[]));
        assert_eq!(found[0].text, "no support for primary IP family \"IPv6\"");
        assert!(found[0].fatal);
    }

    #[test]
    fn core_044_pod_networks_of_the_other_family_are_fatal_on_a_kernel_with_one() {
        let config = config(|config| config.cluster_cidrs = vec!["fd00::/48".to_owned()]);
        assert_eq!(fatal(&config, &V4, &node("192.0.2.1", &[])), [true]);
        assert_eq!(fatal(&config, &BOTH, &node("192.0.2.1", &[])), [false]);
        let bridge = Config {
            detect_local_mode: "BridgeInterface".to_owned(),
            ..config
        };
        assert_eq!(fatal(&bridge, &V4, &node("192.0.2.1", &[])), [false]);
    }

    #[test]
    fn core_045_the_nodes_networks_of_the_other_family_are_fatal_where_they_count() {
        let by_node = config(|config| config.detect_local_mode = "NodeCIDR".to_owned());
        assert_eq!(
            fatal(&by_node, &BOTH, &node("192.0.2.1", &["fd00::/64"])),
            [true]
        );
        assert_eq!(
            fatal(&config(|_| ()), &BOTH, &node("192.0.2.1", &["fd00::/64"])),
            [false]
        );
        let both = ["fd00::/64", "10.0.0.0/24"];
        assert!(fatal(&by_node, &BOTH, &node("192.0.2.1", &both)).is_empty());
    }

    #[test]
    fn node_ports_open_to_more_than_was_listed_are_told() {
        let text = |addresses: Option<&[&str]>, pods: &str| {
            let config = config(|config| {
                config.node_port_addresses =
                    addresses.map(|list| list.iter().map(|&entry| entry.to_owned()).collect());
                config.cluster_cidrs = pods.split(',').map(ToOwned::to_owned).collect();
            });
            let found = complaints(&config, &BOTH, &node("192.0.2.1", &[]));
            found
                .first()
                .map(|complaint| complaint.text.clone())
                .unwrap_or_default()
        };
        assert!(text(None, "10.0.0.0/8").contains("accepted on all local IPs"));
        assert!(text(Some(&["192.0.2.0/24"]), "10.0.0.0/8,fd00::/48").contains("no IPv6 entry"));
        assert!(text(Some(&["fd00::/64"]), "10.0.0.0/8").contains("no IPv4 entry"));
        assert_eq!(text(Some(&["192.0.2.0/24"]), "10.0.0.0/8"), "");
    }

    #[test]
    fn servers_of_the_other_family_are_told_on_a_kernel_with_one() {
        let config = config(|config| config.metrics_bind_address = "[fd00::1]:10249".to_owned());
        let found = complaints(&config, &V4, &node("192.0.2.1", &[]));
        assert!(
            found[0].text.contains("metricsBindAddress fd00::1"),
            "{found:?}"
        );
        assert_eq!(complaints(&config, &BOTH, &node("192.0.2.1", &[])), []);
    }
}
