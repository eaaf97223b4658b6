//! What configuration and Node together mean.

use super::*;
use crate::testing::ip;

fn node(addresses: &[&str], pod_cidrs: &[&str]) -> Node {
    Node {
        name: "here".into(),
        zone: None,
        addresses: addresses.iter().map(|text| ip(text)).collect(),
        pod_cidrs: pod_cidrs.iter().map(|net| net.parse().unwrap()).collect(),
        leaving: false,
    }
}

fn node_ports(entries: &[&str], addresses: &[&str]) -> PerFamily<NodePorts> {
    let settings = Settings {
        node_port_addresses: NodePortAddresses::parse(entries).unwrap(),
        ..Settings::default()
    };
    let facts = Facts::build(&settings, Some(&node(addresses, &[])), &[]);
    PerFamily {
        v4: facts.v4.node_ports,
        v6: facts.v6.node_ports,
    }
}

fn within(nets: &[&str]) -> NodePorts {
    NodePorts::Within(nets.iter().map(|net| net.parse().unwrap()).collect())
}

#[test]
fn core_035_internal_addresses_come_first_and_one_per_family_counts() {
    // Conversion sorts internal before external; here the first of each family is taken.
    let addresses = [ip("10.0.0.1"), ip("10.0.0.2"), ip("fd00::1"), ip("fd00::2")];
    let (primary, ips) = node_ips(&addresses, None);
    assert_eq!(primary, Family::V4);
    assert_eq!((ips.v4, ips.v6), (ip("10.0.0.1"), ip("fd00::1")));
}

#[test]
fn core_036_node_ips_and_primary_family_follow_addresses_and_bind_address() {
    let table: [(&[&str], &str, Family, &str, &str); 8] = [
        (&[], "10.0.0.1", Family::V4, "10.0.0.1", "::1"),
        (&[], "fd00:4321::2", Family::V6, "127.0.0.1", "fd00:4321::2"),
        (&[], "0.0.0.0", Family::V4, "127.0.0.1", "::1"),
        (&["192.168.1.1"], "::", Family::V4, "192.168.1.1", "::1"),
        (
            &["fd00:1234::1"],
            "0.0.0.0",
            Family::V6,
            "127.0.0.1",
            "fd00:1234::1",
        ),
        (
            &["90.90.90.90", "2001:db8::2"],
            "::",
            Family::V4,
            "90.90.90.90",
            "2001:db8::2",
        ),
        (
            &["2001:db8::2", "90.90.90.90"],
            "80.80.80.80",
            Family::V4,
            "80.80.80.80",
            "2001:db8::2",
        ),
        (
            &["90.90.90.90", "2001:db8::2"],
            "::1",
            Family::V6,
            "90.90.90.90",
            "::1",
        ),
    ];
    for (addresses, bind, primary, v4, v6) in table {
        let addresses: Vec<IpAddr> = addresses.iter().map(|text| ip(text)).collect();
        let answer = node_ips(&addresses, Some(ip(bind)));
        assert_eq!(
            answer,
            (
                primary,
                PerFamily {
                    v4: ip(v4),
                    v6: ip(v6)
                }
            ),
            "{bind}"
        );
    }
}

#[test]
fn core_113_a_family_without_entries_serves_all_addresses_and_a_zero_prefix_dominates() {
    let both = ["10.0.0.1", "fd00::1"];
    assert_eq!(
        node_ports(&[], &both),
        PerFamily {
            v4: NodePorts::All,
            v6: NodePorts::All
        }
    );
    assert_eq!(
        node_ports(&["10.0.0.0/8"], &both),
        PerFamily {
            v4: within(&["10.0.0.0/8"]),
            v6: NodePorts::All
        }
    );
    assert_eq!(
        node_ports(&["10.0.0.0/8", "fd00::/64", "0.0.0.0/0"], &both),
        PerFamily {
            v4: NodePorts::All,
            v6: within(&["fd00::/64"])
        }
    );
    let local = [
        ip("10.1.1.1"),
        ip("127.0.0.1"),
        ip("10.1.1.1"),
        ip("192.0.2.1"),
        ip("::1"),
    ];
    assert_eq!(
        within(&["10.0.0.0/8"]).among(&local, Family::V4),
        [ip("10.1.1.1")]
    );
    assert_eq!(
        NodePorts::All.among(&local, Family::V4),
        [ip("10.1.1.1"), ip("127.0.0.1"), ip("192.0.2.1")]
    );
}

#[test]
fn core_114_primary_is_the_nodes_own_address_or_nothing() {
    assert_eq!(
        node_ports(&["primary"], &["10.0.0.1", "fd00::1"]),
        PerFamily {
            v4: within(&["10.0.0.1/32"]),
            v6: within(&["fd00::1/128"])
        }
    );
    // kube-proxy would open every IPv6 address here.
    assert_eq!(
        node_ports(&["primary"], &["10.0.0.1"]),
        PerFamily {
            v4: within(&["10.0.0.1/32"]),
            v6: NodePorts::Nowhere
        }
    );
    assert_eq!(
        NodePorts::Nowhere.among(&[ip("::1")], Family::V6),
        [] as [IpAddr; 0]
    );
}

#[test]
fn keywords_mix_with_networks() {
    assert_eq!(
        node_ports(&["primary", "localhost", "192.0.2.0/24"], &["10.0.0.1"]),
        PerFamily {
            v4: within(&["10.0.0.1/32", "127.0.0.0/8", "192.0.2.0/24"]),
            v6: within(&["::1/128"]),
        }
    );
    assert_eq!(node_ports(&["primary", "all"], &[]).v6, NodePorts::All);
    assert_eq!(
        NodePortAddresses::parse(&["10.0.0.0/8", "nonsense"]),
        Err("nonsense".to_owned())
    );
}

#[test]
fn core_115_loopback_is_meant_by_networks_that_touch_it() {
    let v4 = |entry: &str| {
        node_ports(&[entry], &["10.0.0.1"])
            .v4
            .contains_ipv4_loopback(Family::V4)
    };
    assert!(v4("0.0.0.0/0"));
    assert!(v4("127.0.0.0/8"));
    assert!(v4("127.0.0.1/32"));
    assert!(v4("localhost"));
    assert!(!v4("10.0.0.0/8"));
    assert!(!v4("primary"));
    for entry in ["::/0", "::1/128"] {
        let v6 = node_ports(&[entry], &[]).v6;
        assert!(!v6.contains_ipv4_loopback(Family::V6), "{entry}");
    }
}

#[test]
fn core_116_local_traffic_is_recognised_by_network_or_interface() {
    let node = node(&["10.0.0.1"], &["10.244.1.0/24", "fd00:10:244:1::/64"]);
    let detectors = |mode: DetectLocal| {
        let settings = Settings {
            detect_local: mode,
            ..Settings::default()
        };
        let facts = Facts::build(&settings, Some(&node), &[]);
        (facts.v4.detector, facts.v6.detector)
    };
    let source = |net: &str| Some(Detector::Source(net.parse().unwrap()));
    let cidrs = |nets: &[&str]| {
        DetectLocal::ClusterCidr(nets.iter().map(|net| parse_cidr(net).unwrap()).collect())
    };

    let (v4, v6) = detectors(cidrs(&["10.244.7.9/16", "10.0.0.0/8"]));
    assert_eq!(
        v4,
        source("10.244.0.0/16"),
        "the first of the family, masked"
    );
    assert_eq!(v6, None, "no network of the family: cannot tell");

    let (v4, v6) = detectors(DetectLocal::NodeCidr);
    assert_eq!(v4, source("10.244.1.0/24"));
    assert_eq!(v6, source("fd00:10:244:1::/64"));

    let (v4, v6) = detectors(DetectLocal::BridgeInterface("cni0".into()));
    assert_eq!(v4, Some(Detector::Interface("cni0".into())));
    assert_eq!(v4, v6);

    let (v4, v6) = detectors(DetectLocal::InterfaceNamePrefix("veth".into()));
    assert_eq!(v4, Some(Detector::InterfacePrefix("veth".into())));
    assert_eq!(v4, v6);
}
