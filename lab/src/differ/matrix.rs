//! Who asks what, and whether all worlds answered the same.
//!
//! In: the states of a cluster so far. Out: the cells to ask, addresses that were given up among
//! them; and, once asked, what differs between worlds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::cluster::{Door, Frontend, Service, State};
use super::dice::Dice;
use crate::plan::{self, Family};
use crate::probe::{self, Answer, Answers, Protocol};

/// A host that asks, and whom it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    pub sender: &'static str,
    pub to: SocketAddr,
    pub protocol: Protocol,
    /// Clients stay with their endpoint here, so chance decides once.
    pub sticky: bool,
    /// A pod asks a node that is not its own.
    pub detour: bool,
    /// Nothing about it changed since the state before, so it is only looked at again.
    pub brief: bool,
}

impl Cell {
    /// What stays the same from state to state.
    pub fn key(&self) -> CellKey {
        (self.sender, self.to, self.protocol)
    }
}

/// Who asks whom.
pub type CellKey = (&'static str, SocketAddr, Protocol);

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "",
            Protocol::Udp => " udp",
        };
        write!(f, "{} -> {}{protocol}", self.sender, self.to)
    }
}

/// Everything to ask in the last of these states.
pub fn cells(seed: u64, history: &[State]) -> Vec<Cell> {
    let mut frontends: BTreeMap<(SocketAddr, Protocol), Door> = BTreeMap::new();
    for state in history {
        for service in &state.services {
            for port in &service.ports {
                for frontend in service.frontends(port) {
                    frontends.insert((frontend.to, frontend.protocol), frontend.door);
                }
            }
        }
    }
    frontends.extend(nobodys(history));
    let state = &history[history.len() - 1];
    let mut cells = BTreeSet::new();
    for ((to, protocol), door) in frontends {
        let owners = state.owners(to, protocol);
        // Some modes answer there too, and then it is that node port.
        let behind = state.owners(first_address(to), protocol);
        let sticky = behind.iter().any(|(service, _)| service.affinity.is_some());
        let brief = match history {
            [.., before, _] => before.owners(to, protocol) == owners,
            _ => false,
        };
        for sender in senders(seed, to, protocol, door) {
            cells.insert(Cell {
                sender,
                to,
                protocol,
                sticky,
                detour: is_detour(sender, door),
                brief,
            });
        }
    }
    cells.into_iter().collect()
}

fn is_detour(sender: &str, door: Door) -> bool {
    let host = plan::find(sender).map(|host| host.kind);
    matches!((host, door), (Some(plan::Kind::Pod(own)), Door::NodePort(other)) if own != other)
}

/// Ports and addresses that are not in use: a cluster IP's other ports, a cluster IP that nobody
/// has, a node port on a node's second address.
fn nobodys(history: &[State]) -> Vec<((SocketAddr, Protocol), Door)> {
    let nobody = IpAddr::from(Ipv4Addr::new(10, 96, 7, 250));
    let mut all = vec![((SocketAddr::new(nobody, 80), Protocol::Tcp), Door::Cluster)];
    let services = history.iter().flat_map(|state| &state.services);
    for service in services.take(1) {
        let other = SocketAddr::new(service.ips[0], 9);
        all.push(((other, service.ports[0].protocol), Door::Cluster));
        if service.has_node_ports()
            && let Some(second) = plan::resolve("node1b", Family::of(service.ips[0]))
        {
            let port = &service.ports[0];
            let to = SocketAddr::new(second, port.on_nodes);
            all.push(((to, port.protocol), Door::NodePort(1)));
        }
    }
    all
}

/// The same port on the node's first address, if this is its second.
fn first_address(to: SocketAddr) -> SocketAddr {
    let family = Family::of(to.ip());
    if plan::resolve("node1b", family) != Some(to.ip()) {
        return to;
    }
    let first = plan::find("node1").map_or(to.ip(), |node| node.address(family));
    SocketAddr::new(first, to.port())
}

/// One or two pods, sometimes a node, and outside clients; which ones is a matter of the seed and
/// the address, so that they stay the same while the cluster changes or is cut down.
fn senders(seed: u64, to: SocketAddr, protocol: Protocol, door: Door) -> Vec<&'static str> {
    let text = format!("{to} {protocol:?}");
    let mixed = text.bytes().fold(seed, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut dice = Dice::new(mixed);
    let pods = [["a1", "a2", "a3", "a4"], ["b1", "b2", "b3", "b4"]];
    let pods = dice.shuffled(&pods);
    let nodes = dice.shuffled(&["node1", "node2"]);
    let outside = dice.shuffled(&["outside1", "outside2"]);
    let pods = pods.iter().take(dice.weighted(&[(1, 1), (1, 2)]));
    let mut senders: Vec<_> = pods.filter_map(|own| dice.pick(own).copied()).collect();
    senders.extend(
        nodes
            .into_iter()
            .take(dice.weighted(&[(5, 0), (4, 1), (1, 2)])),
    );
    let outsiders = match door {
        // A cluster IP is not meant for them, but the rules answer all the same.
        Door::Cluster => dice.weighted(&[(4, 0), (1, 1)]),
        Door::External | Door::Balancer => dice.weighted(&[(1, 1), (1, 2)]),
        Door::NodePort(_) => dice.weighted(&[(1, 0), (2, 1)]),
    };
    senders.extend(outside.into_iter().take(outsiders));
    senders
}

/// Whether two worlds may show these two.
pub fn same(cell: &Cell, one: &Answers, other: &Answers) -> bool {
    if one == other {
        return true;
    }
    // Where each world has chosen an endpoint for this client, not which one it is.
    cell.sticky
        && one.len() == 1
        && other.len() == 1
        && one.iter().zip(other).all(|both| match both {
            (
                Answer::Pod { name, from, .. },
                Answer::Pod {
                    name: other_name,
                    from: other_from,
                    ..
                },
            ) => {
                // A pod that asks itself sees another client than others do.
                let itself = name == cell.sender || other_name == cell.sender;
                itself || from == other_from
            }
            // A pod that asks another node's node port and is given an endpoint on its own node
            // gets the answer straight from there, and does not know it: policy Local does not
            // masquerade pods.
            (Answer::Pod { .. }, Answer::Timeout) | (Answer::Timeout, Answer::Pod { .. }) => {
                cell.detour
            }
            _ => false,
        })
}

/// A difference, for a reader.
#[derive(Clone, Debug)]
pub struct Difference {
    /// What was asked.
    pub what: String,
    /// The cell, unless it was about something else than packets.
    pub cell: Option<Cell>,
    /// What each world showed.
    pub shown: Vec<String>,
    /// The answers of each world.
    pub answers: Vec<Answers>,
}

/// The cells in which worlds differ.
pub fn differing(cells: &[Cell], answers: &[Vec<Answers>]) -> Vec<usize> {
    let differs = |&number: &usize| {
        let first = &answers[0][number];
        let mut others = answers[1..].iter();
        others.any(|world| !same(&cells[number], first, &world[number]))
    };
    (0..cells.len()).filter(differs).collect()
}

/// A cell in which worlds differ.
pub fn difference(cell: &Cell, answers: Vec<Answers>) -> Difference {
    Difference {
        what: cell.to_string(),
        cell: Some(*cell),
        shown: answers.iter().map(probe::show).collect(),
        answers,
    }
}

/// Health ports of Services, now and before.
pub fn health_ports(history: &[State]) -> Vec<u16> {
    let services = history.iter().flat_map(|state| &state.services);
    let ports = services.filter(|service| service.has_health());
    let ports: BTreeSet<_> = ports.map(|service| service.health_port).collect();
    ports.into_iter().collect()
}

/// The node at which a question meets the rules.
pub fn entry(sender: &str, frontend: Frontend) -> u8 {
    if let Door::NodePort(node) = frontend.door {
        return node;
    }
    let host = plan::find(sender);
    match host.map(|host| host.kind) {
        Some(plan::Kind::Pod(node) | plan::Kind::Outside(node)) => node,
        _ => host.map_or(0, plan::Host::number),
    }
}

/// Whether every endpoint of a Service may be chosen from everywhere, as far as policies and hints
/// go.
pub fn is_even(service: &Service) -> bool {
    let hinted = service
        .endpoints()
        .any(|endpoint| endpoint.zone.is_some() || endpoint.for_node.is_some());
    let bound = service.internal_local || (service.external_local && service.is_open());
    !bound && !hinted
}
