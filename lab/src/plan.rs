//! Who lives in a world and under which addresses; the same in every world.
//!
//! Two nodes on one wire, four pods on each, two clients outside the cluster. The outside clients
//! send everything that is not a node's address to "their" node, so traffic to an external address
//! arrives there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() {
            Self::V4
        } else {
            Self::V6
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Node,
    /// A pod on the node with this number.
    Pod(u8),
    /// A client outside the cluster whose packets go to the node with this number.
    Outside(u8),
    /// The switch between the others. It answers for the lab itself, and swallows what has no
    /// other way to go.
    Wire,
}

/// One network namespace of a world.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    pub name: &'static str,
    pub kind: Kind,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Host {
    pub fn address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }

    /// The number in a node's name.
    pub fn number(&self) -> u8 {
        self.v4.octets()[3]
    }
}

const fn host(name: &'static str, kind: Kind, v4: [u8; 4], v6: [u16; 8]) -> Host {
    Host {
        name,
        kind,
        v4: Ipv4Addr::new(v4[0], v4[1], v4[2], v4[3]),
        v6: Ipv6Addr::from_segments(v6),
    }
}

const fn pod(name: &'static str, node: u8, number: u8) -> Host {
    let v6 = [0xfd00, 0x10, 0x244, node as u16, 0, 0, 0, number as u16];
    host(name, Kind::Pod(node), [10, 244, node, number], v6)
}

const fn node(name: &'static str, number: u8) -> Host {
    let v6 = [0xfd00, 0x172, 0x18, 0, 0, 0, 0, number as u16];
    host(name, Kind::Node, [172, 18, 0, number], v6)
}

/// Everyone, the wire first: the others are plugged into it.
pub const HOSTS: &[Host] = &[
    host(
        "wire",
        Kind::Wire,
        [172, 18, 0, 254],
        [0xfd00, 0x172, 0x18, 0, 0, 0, 0, 0xfe],
    ),
    node("node1", 1),
    node("node2", 2),
    // Documentation networks, so that source ranges in stories read like those of real Services.
    host(
        "outside1",
        Kind::Outside(1),
        [203, 0, 113, 1],
        [0x2001, 0xdb8, 1, 0, 0, 0, 0, 1],
    ),
    host(
        "outside2",
        Kind::Outside(2),
        [198, 51, 100, 2],
        [0x2001, 0xdb8, 2, 0, 0, 0, 0, 2],
    ),
    pod("a1", 1, 1),
    pod("a2", 1, 2),
    pod("a3", 1, 3),
    pod("a4", 1, 4),
    pod("b1", 2, 1),
    pod("b2", 2, 2),
    pod("b3", 2, 3),
    pod("b4", 2, 4),
];

/// What every pod is reached under; `clusterCIDR` of the proxies.
pub const CLUSTER_CIDRS: &str = "10.244.0.0/16,fd00:10:244::/48";
/// Where cluster IPs come from.
pub const SERVICE_CIDRS: &str = "10.96.0.0/16,fd00:10:96::/112";

/// Ports on which every pod answers, over TCP and UDP.
pub const POD_PORTS: [u16; 4] = [8080, 8081, 8443, 5353];

pub fn nodes() -> impl Iterator<Item = &'static Host> {
    HOSTS.iter().filter(|host| host.kind == Kind::Node)
}

pub fn pods() -> impl Iterator<Item = &'static Host> {
    HOSTS
        .iter()
        .filter(|host| matches!(host.kind, Kind::Pod(_)))
}

pub fn find(name: &str) -> Option<&'static Host> {
    HOSTS.iter().find(|host| host.name == name)
}

/// A node's second address, beside the one its Node object names: 172.19.0.N.
pub fn second(node: &Host) -> (Ipv4Addr, Ipv6Addr) {
    let number = node.number();
    (
        Ipv4Addr::new(172, 19, 0, number),
        Ipv6Addr::new(0xfd00, 0x172, 0x19, 0, 0, 0, 0, number.into()),
    )
}

/// The node's end of the link to each of its pods: the pods' gateway.
pub fn gateway(node: u8) -> (Ipv4Addr, Ipv6Addr) {
    (
        Ipv4Addr::new(10, 244, node, 254),
        Ipv6Addr::new(0xfd00, 0x10, 0x244, node.into(), 0, 0, 0, 0xfe),
    )
}

/// The address a name in a story stands for: a host, or a node's second address as `node1b`.
pub fn resolve(name: &str, family: Family) -> Option<IpAddr> {
    if let Some(host) = find(name) {
        return Some(host.address(family));
    }
    let node = find(name.strip_suffix('b')?).filter(|host| host.kind == Kind::Node)?;
    let (v4, v6) = second(node);
    Some(match family {
        Family::V4 => v4.into(),
        Family::V6 => v6.into(),
    })
}

/// Whose address this is. A node stands for its own address and for the gateway it is to its
/// pods: which of the two masquerading takes depends only on where the packet leaves.
pub fn name_of(address: IpAddr) -> String {
    let of_node = |node: &&Host| {
        let (v4, v6) = gateway(node.number());
        address == v4 || address == v6
    };
    let second_of = |node: &&Host| {
        let (v4, v6) = second(node);
        address == v4 || address == v6
    };
    if let Some(host) = HOSTS.iter().find(|h| address == h.v4 || address == h.v6) {
        host.name.to_owned()
    } else if let Some(node) = nodes().find(of_node) {
        node.name.to_owned()
    } else if let Some(node) = nodes().find(second_of) {
        format!("{}b", node.name)
    } else {
        address.to_string()
    }
}

/// The nodes on the way from a sender to an address. Who relays is one of them: the first, or the
/// one whose address it is.
pub fn nodes_on_the_way(sender: &str, to: IpAddr) -> Vec<String> {
    let of_number = |number: u8| nodes().find(move |node| node.number() == number);
    let first = find(sender).and_then(|host| match host.kind {
        Kind::Node => Some(host),
        Kind::Pod(node) | Kind::Outside(node) => of_number(node),
        Kind::Wire => None,
    });
    let target = nodes().find(|node| {
        let (v4, v6) = second(node);
        [node.v4.into(), node.v6.into(), v4.into(), v6.into()].contains(&to)
    });
    let outside = find(sender).is_some_and(|host| matches!(host.kind, Kind::Outside(_)));
    let first = first.filter(|_| !(outside && target.is_some()));
    let on_the_way = first.into_iter().chain(target);
    on_the_way.map(|node| node.name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_leads_back_to_its_name() {
        for host in HOSTS {
            for family in Family::BOTH {
                let address = resolve(host.name, family).unwrap();
                assert_eq!(name_of(address), host.name);
            }
        }
        assert_eq!(name_of(resolve("node2b", Family::V6).unwrap()), "node2b");
        assert_eq!(name_of(Ipv4Addr::new(10, 244, 1, 254).into()), "node1");
        assert_eq!(name_of(Ipv4Addr::new(9, 9, 9, 9).into()), "9.9.9.9");
        assert_eq!(resolve("a1b", Family::V4), None);
    }

    #[test]
    fn who_relays_is_the_first_node_or_the_one_that_is_meant() {
        let ways = |sender: &str, to: &str| nodes_on_the_way(sender, to.parse().unwrap());
        assert_eq!(ways("a1", "10.96.0.1"), ["node1"]);
        assert_eq!(ways("a1", "172.18.0.2"), ["node1", "node2"]);
        assert_eq!(ways("outside1", "172.19.0.2"), ["node2"]);
        assert_eq!(ways("outside2", "2001:db8:5::5"), ["node2"]);
        assert_eq!(ways("node2", "127.0.0.1"), ["node2"]);
    }
}
