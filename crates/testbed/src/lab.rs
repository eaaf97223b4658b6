//! A small cluster: a node, pods beside and far from it, and a client outside.
//!
//! ```text
//!   pod ── veth-pod ─┐                ┌─ out ── out (a client outside)
//!                    ├─ node (router) ┤
//!  here ── veth-here ┘                └─ far ── far (a pod of another node)
//! ```
//!
//! Pods answer on port 8080 over TCP, UDP and SCTP, `here` as number 1 and `far` as number 2; `pod`
//! only asks. What the node has no better way for goes into the void, as on a machine with a
//! default route.

use std::fmt::Write;
use std::net::IpAddr;

use ferrule_core::model::Family;

use crate::ask::{Answer, Ask, Protocol};
use crate::place::Place;
use crate::{or_say_so, serve};

/// Networks, by the second part of their addresses. The pod network is 16 to 31, its part on this
/// node 16 to 19.
const HERE: u8 = 16;
const POD: u8 = 17;
const FAR: u8 = 20;
const OUT: u8 = 3;
const NODE: u8 = 2;

/// The node's end of each cable.
const GATEWAY: u8 = 254;

/// An address of the family: 10.x.0.y or `fd00::x:y`.
pub fn address(family: Family, x: u8, y: u8) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, x, 0, y]),
        Family::V6 => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, x.into(), y.into()]),
    }
}

/// The network of all [`address`]es whose second part agrees with `x` in its first `bits` of eight.
pub fn net(family: Family, x: u8, bits: u8) -> String {
    match family {
        Family::V4 => format!("10.{x}.0.0/{}", 8 + bits),
        Family::V6 => format!("fd00::{x:x}:0/{}", 104 + bits),
    }
}

/// Node, pods and client.
#[derive(Debug)]
pub struct Lab {
    /// The family of all addresses.
    pub family: Family,
    /// The node.
    pub node: Place,
    /// A pod on the node that answers as number 1.
    pub here: Place,
    /// A pod on another node that answers as number 2.
    pub far: Place,
    /// A pod on the node that only asks.
    pub pod: Place,
    /// A client outside the cluster.
    pub out: Place,
}

impl Lab {
    /// Lays the cables and starts the pods; `None` if there is no right to do so.
    pub fn open(family: Family) -> Option<Self> {
        let mut places = Vec::new();
        for _ in 0..5 {
            places.push(or_say_so(Place::new())?);
        }
        let [node, here, far, pod, out] = places.try_into().unwrap();
        let lab = Self {
            family,
            node,
            here,
            far,
            pod,
            out,
        };
        lab.prepare_node();
        lab.join(&lab.here, "veth-here", HERE, &[1]);
        lab.join(&lab.pod, "veth-pod", POD, &[1]);
        lab.join(&lab.far, "far", FAR, &[1]);
        lab.join(&lab.out, "out", OUT, &[1, 2]);
        serve::start(&lab.here, 1, family);
        serve::start(&lab.far, 2, family);
        lab.settle();
        Some(lab)
    }

    /// Waits until packets pass: a cable that is up still loses them for a moment.
    fn settle(&self) {
        for place in [&self.node, &self.here, &self.far, &self.pod, &self.out] {
            for pod in [self.here_ip(), self.far_ip()] {
                Ask::new(Protocol::Udp, pod, serve::PORT).until_served(place);
            }
        }
    }

    /// The same test in both families.
    pub fn both(test: fn(&Self)) {
        std::thread::scope(|scope| {
            for family in [Family::V4, Family::V6] {
                scope.spawn(move || Self::open(family).iter().for_each(test));
            }
        });
    }

    fn prepare_node(&self) {
        self.node.set(&[
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            // Every refusal is received, not six and then one per second.
            ("ipv4/icmp_ratelimit", "0"),
            ("ipv6/icmp/ratelimit", "0"),
        ]);
        // Before Linux 6.13 these are not the namespace's own, and the limit is the machine's.
        self.node.set_if_there(&[
            ("ipv4/icmp_msgs_per_sec", "1000000"),
            ("ipv4/icmp_msgs_burst", "1000000"),
        ]);
        let bits = if self.family == Family::V4 { 32 } else { 128 };
        self.node.ip(&format!(
            "link set lo up
             link add void type veth peer name void-far
             link set void-far up
             link set void arp off up
             address add {second}/{bits} dev lo nodad",
            second = self.second(),
        ));
        // An address of IPv6 is there a moment after it was added.
        let route = format!("route add default dev void src {}", self.second());
        self.node.ip_in_the_end(&route);
    }

    fn join(&self, place: &Place, link: &str, x: u8, numbers: &[u8]) {
        let bits = if self.family == Family::V4 { 24 } else { 112 };
        let gateway = address(self.family, x, GATEWAY);
        self.node.ip(&format!(
            "link add {link} type veth peer name eth0 netns {number}
             address add {gateway}/{bits} dev {link} nodad
             link set {link} up",
            number = place.number(),
        ));
        let first = address(self.family, x, numbers[0]);
        let mut lines = String::from("link set lo up\nlink set eth0 up\n");
        for number in numbers {
            let own = address(self.family, x, *number);
            // Only the first is used by those who do not say.
            let seldom = if own == first { "" } else { "preferred_lft 0" };
            writeln!(lines, "address add {own}/{bits} dev eth0 nodad {seldom}").unwrap();
        }
        place.ip(&lines);
        place.ip_in_the_end(&format!("route add default via {gateway} src {first}"));
    }

    /// The pod on this node that answers.
    pub fn here_ip(&self) -> IpAddr {
        address(self.family, HERE, 1)
    }

    /// The pod on another node.
    pub fn far_ip(&self) -> IpAddr {
        address(self.family, FAR, 1)
    }

    /// The pod on this node that only asks.
    pub fn pod_ip(&self) -> IpAddr {
        address(self.family, POD, 1)
    }

    /// The client outside; it has the address after this one too.
    pub fn out_ip(&self) -> IpAddr {
        address(self.family, OUT, 1)
    }

    /// The node's own address, on the side of the client.
    pub fn node_ip(&self) -> IpAddr {
        address(self.family, OUT, GATEWAY)
    }

    /// Another address of the node. It is the source of what goes into the void.
    pub fn second(&self) -> IpAddr {
        address(self.family, NODE, 1)
    }

    /// What the pod of this number sees of a client whose address was replaced by the node's.
    pub fn masqueraded(&self, pod: u8) -> IpAddr {
        address(self.family, if pod == 1 { HERE } else { FAR }, GATEWAY)
    }

    /// The network of all pods.
    pub fn pod_net(&self) -> String {
        net(self.family, 16, 4)
    }

    /// The network of the pods of this node.
    pub fn node_net(&self) -> String {
        net(self.family, 16, 6)
    }

    /// All different answers to a question that is put a number of times.
    pub fn answers(&self, place: &Place, ask: Ask, times: usize) -> Vec<Answer> {
        let mut seen: Vec<_> = (0..times).map(|_| ask.put(place)).collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    }
}
