//! Draws clusters by chance, and how they change.
//!
//! In: a seed. Out: a few states of one cluster, one after the other. Everything drawn is something
//! the API server accepts, and something kube-proxy answers the same way every time: two Services
//! never name the same address and port, because there the order of its visits decides, which
//! ferrule does otherwise on purpose (docs/decisions/0001-contested-addresses.md).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::cluster::{Condition, Endpoint, Group, Ingress, Kind, Port, Service, State};
use super::dice::Dice;
use crate::plan::{self, Family, POD_PORTS};
use crate::probe::Protocol;

/// The zones of the two nodes, and one where nobody is.
pub const ZONES: [&str; 2] = ["west", "east"];
const HINTS: [&str; 3] = ["west", "east", "north"];
/// First of the node ports; health checks count down from the top of the range.
const NODE_PORTS: u16 = 31000;
const HEALTH_PORTS: u16 = 32700;
const NUMBERS: [u16; 6] = [80, 443, 53, 8080, 5353, 9000];
const PODS: [&str; 8] = ["a1", "a2", "a3", "a4", "b1", "b2", "b3", "b4"];
const RANGES: [&str; 12] = [
    "203.0.113.0/24",
    "203.0.113.1/32",
    "198.51.100.0/24",
    "10.244.1.0/24",
    "10.244.0.0/16",
    "172.18.0.0/24",
    "0.0.0.0/0",
    "2001:db8:1::/64",
    "2001:db8:2::2/128",
    "fd00:10:244:1::/64",
    "fd00:172:18::/64",
    "::/0",
];

/// The states of one cluster.
pub fn history(seed: u64) -> Vec<State> {
    let mut artist = Artist {
        dice: Dice::new(seed),
        services: 0,
        node_ports: 0,
    };
    let mut state = State::default();
    for _ in 0..artist.dice.weighted(&[(3, 1), (5, 2), (4, 3)]) {
        let service = artist.service();
        state.services.push(service);
    }
    agree(&mut state);
    let mut history = vec![state];
    for _ in 0..artist.dice.weighted(&[(2, 1), (5, 2), (2, 3)]) {
        let mut next = history[history.len() - 1].clone();
        for _ in 0..=artist.dice.below(3) {
            artist.change(&mut next);
        }
        agree(&mut next);
        history.push(next);
    }
    history
}

/// Takes policies away: what mode ipvs does with them differs on purpose
/// (docs/decisions/0008-one-server-per-address.md), and stories tell it.
pub fn without_policies(history: &mut [State]) {
    let services = history.iter_mut().flat_map(|state| &mut state.services);
    for service in services {
        service.internal_local = false;
        service.external_local = false;
    }
}

struct Artist {
    dice: Dice,
    /// How many were drawn so far: names and addresses are never given twice.
    services: u8,
    node_ports: u16,
}

impl Artist {
    fn service(&mut self) -> Service {
        let number = self.services;
        self.services += 1;
        let kind = self.kind();
        let mut service = Service {
            name: format!("s{number}"),
            ips: self.cluster_ips(number),
            kind,
            ports: Vec::new(),
            affinity: None,
            internal_local: self.dice.percent(20),
            external_local: self.dice.percent(40),
            external_ips: Vec::new(),
            ingress: Vec::new(),
            ranges: Vec::new(),
            health_port: HEALTH_PORTS - u16::from(number),
            node_ports: !self.dice.percent(15),
            groups: Vec::new(),
        };
        for _ in 0..self.dice.weighted(&[(6, 1), (3, 2), (1, 3)]) {
            self.add_port(&mut service);
        }
        service.affinity = self.affinity();
        service.external_ips = self.external_ips();
        service.ingress = self.ingress(&service);
        service.ranges = self.ranges();
        service.groups = self.groups();
        service
    }

    fn kind(&mut self) -> Kind {
        let kinds = [
            (3, Kind::ClusterIp),
            (3, Kind::NodePort),
            (4, Kind::LoadBalancer),
        ];
        self.dice.weighted(&kinds)
    }

    fn cluster_ips(&mut self, number: u8) -> Vec<IpAddr> {
        let v4 = IpAddr::from(Ipv4Addr::new(10, 96, 7, 10 + number));
        let last = 0x0700 + u16::from(number);
        let v6 = IpAddr::from(Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, last));
        match self.dice.below(10) {
            0..=1 => vec![v4],
            2 => vec![v6],
            3..=4 => vec![v6, v4],
            _ => vec![v4, v6],
        }
    }

    fn add_port(&mut self, service: &mut Service) {
        let protocols = [(6, Protocol::Tcp), (4, Protocol::Udp)];
        let protocol = self.dice.weighted(&protocols);
        let numbers = self.dice.shuffled(&NUMBERS);
        let free = |number: &&u16| {
            let mut ports = service.ports.iter();
            !ports.any(|port| port.number == **number && port.protocol == protocol)
        };
        let Some(&number) = numbers.iter().find(free) else {
            return;
        };
        let target = *self.dice.pick(&POD_PORTS).unwrap_or(&POD_PORTS[0]);
        service.ports.push(Port {
            number,
            target,
            protocol,
            on_nodes: self.node_port(),
        });
    }

    fn node_port(&mut self) -> u16 {
        self.node_ports += 1;
        NODE_PORTS + self.node_ports
    }

    fn affinity(&mut self) -> Option<u32> {
        let seconds = self.dice.weighted(&[(1, 600), (1, 10800)]);
        self.dice.percent(20).then_some(seconds)
    }

    /// Addresses for outside clients; the pool is small, so that they move between Services.
    fn outside_ip(&mut self) -> IpAddr {
        let last = 61 + u8::try_from(self.dice.below(6)).unwrap_or(0);
        if self.dice.percent(55) {
            Ipv4Addr::new(192, 0, 2, last).into()
        } else {
            Ipv6Addr::new(0x2001, 0xdb8, 5, 0, 0, 0, 0, last.into()).into()
        }
    }

    fn external_ips(&mut self) -> Vec<IpAddr> {
        if !self.dice.percent(30) {
            return Vec::new();
        }
        let mut ips = BTreeSet::new();
        for _ in 0..=self.dice.below(3) {
            ips.insert(self.outside_ip());
        }
        // People do this on machines without a load balancer.
        if self.dice.percent(10) {
            let nodes: Vec<_> = plan::nodes().collect();
            if let Some(node) = self.dice.pick(&nodes) {
                let families = Family::BOTH;
                let family = self.dice.pick(&families).copied().unwrap_or(Family::V4);
                ips.insert(node.address(family));
            }
        }
        let ips: Vec<_> = ips.into_iter().collect();
        self.dice.shuffled(&ips)
    }

    fn ingress(&mut self, service: &Service) -> Vec<Ingress> {
        let mut ips = BTreeSet::new();
        for _ in 0..self.dice.weighted(&[(1, 0), (3, 1), (4, 2), (1, 3)]) {
            ips.insert(self.outside_ip());
        }
        // The same address may be both of one Service's.
        if self.dice.percent(8) {
            ips.extend(service.external_ips.first());
        }
        ips.into_iter()
            .map(|ip| Ingress {
                ip,
                proxied: self.dice.percent(10),
            })
            .collect()
    }

    fn ranges(&mut self) -> Vec<&'static str> {
        if !self.dice.percent(45) {
            return Vec::new();
        }
        let count = self.dice.weighted(&[(3, 1), (4, 2), (2, 4)]);
        self.dice.shuffled(&RANGES)[..count].to_vec()
    }

    fn groups(&mut self) -> Vec<Group> {
        let count = self.dice.weighted(&[(7, 1_u8), (2, 2), (1, 3)]);
        let style = Style::draw(&mut self.dice);
        let mut pods = self.dice.shuffled(&PODS);
        let mut groups = Vec::new();
        for number in 1..=count {
            let sizes = [(2, 0), (4, 1), (5, 2), (3, 3), (1, 4)];
            let size = self.dice.weighted(&sizes).min(pods.len());
            let mut endpoints: Vec<_> = pods.split_off(pods.len() - size);
            // An endpoint on its way from one slice to another is in both for a while.
            if number > 1 && self.dice.percent(15) {
                let before: &Group = &groups[groups.len() - 1];
                endpoints.extend(before.endpoints.first().map(|endpoint| endpoint.pod));
            }
            let endpoints = endpoints.into_iter();
            groups.push(Group {
                number,
                target: (number > 1 && self.dice.percent(25)).then_some(POD_PORTS[1]),
                endpoints: endpoints.map(|pod| self.endpoint(pod, style)).collect(),
            });
        }
        groups
    }

    fn endpoint(&mut self, pod: &'static str, style: Style) -> Endpoint {
        let mut endpoint = Endpoint::plain(pod);
        let dice = &mut self.dice;
        if dice.percent(style.unwell) {
            let conditions = [
                (2, Condition::Unready),
                (4, Condition::Terminating),
                (1, Condition::Gone),
            ];
            endpoint.condition = dice.weighted(&conditions);
        }
        if dice.percent(style.zones) {
            endpoint.zone = dice.pick(&HINTS).copied();
        }
        if dice.percent(style.nodes) {
            endpoint.for_node = dice.pick(&["node1", "node2"]).copied();
        }
        if dice.percent(3) {
            // On a node without a proxy. To name the wrong one of ours would only break routing.
            endpoint.on = Some("elsewhere");
        }
        if dice.percent(3) {
            endpoint.only = dice.pick(&Family::BOTH).copied();
        }
        endpoint
    }

    /// One small change.
    fn change(&mut self, state: &mut State) {
        if state.services.is_empty() || (state.services.len() < 4 && self.dice.percent(8)) {
            let service = self.service();
            state.services.push(service);
            return;
        }
        let at = self.dice.below(state.services.len());
        if self.dice.percent(6) {
            state.services.remove(at);
            return;
        }
        self.change_service(&mut state.services[at]);
    }

    fn change_service(&mut self, service: &mut Service) {
        match self.dice.below(20) {
            0..=6 => self.change_endpoints(service),
            7..=8 => service.groups = self.groups(),
            9 => service.affinity = self.affinity().xor(service.affinity),
            10 => service.internal_local = !service.internal_local,
            11..=12 => service.external_local = !service.external_local,
            13 => service.external_ips = self.external_ips(),
            14 => service.ingress = self.ingress(service),
            15 => service.ranges = self.ranges(),
            16 => service.kind = self.kind(),
            _ => self.change_ports(service),
        }
    }

    fn change_endpoints(&mut self, service: &mut Service) {
        if service.groups.is_empty() {
            service.groups = self.groups();
            return;
        }
        let style = Style::draw(&mut self.dice);
        let at = self.dice.below(service.groups.len());
        let used: BTreeSet<_> = service.endpoints().map(|endpoint| endpoint.pod).collect();
        let group = &mut service.groups[at];
        let which = self.dice.below(group.endpoints.len());
        match self.dice.below(4) {
            0 if !group.endpoints.is_empty() => _ = group.endpoints.remove(which),
            1 if !group.endpoints.is_empty() => {
                let pod = group.endpoints[which].pod;
                let unwell = Style {
                    unwell: 60,
                    ..style
                };
                group.endpoints[which] = self.endpoint(pod, unwell);
            }
            _ => {
                let pods = self.dice.shuffled(&PODS);
                if let Some(pod) = pods.into_iter().find(|pod| !used.contains(pod)) {
                    let endpoint = self.endpoint(pod, style);
                    group.endpoints.push(endpoint);
                }
            }
        }
    }

    fn change_ports(&mut self, service: &mut Service) {
        let which = self.dice.below(service.ports.len());
        match self.dice.below(5) {
            0 if service.ports.len() > 1 => _ = service.ports.remove(which),
            1 => service.ports[which].on_nodes = self.node_port(),
            2 => {
                let target = self.dice.pick(&POD_PORTS).copied();
                service.ports[which].target = target.unwrap_or(POD_PORTS[0]);
            }
            3 => service.node_ports = !service.node_ports,
            _ => self.add_port(service),
        }
    }
}

/// What the endpoints of one Service have in common, as chances in a hundred.
#[derive(Clone, Copy)]
struct Style {
    unwell: usize,
    zones: usize,
    nodes: usize,
}

impl Style {
    fn draw(dice: &mut Dice) -> Self {
        let (zones, nodes) = dice.weighted(&[(7, (0, 0)), (2, (92, 0)), (1, (92, 92))]);
        Self {
            unwell: dice.weighted(&[(6, 5), (2, 40), (1, 95)]),
            zones,
            nodes,
        }
    }
}

/// Takes away what kube-proxy decides by chance.
fn agree(state: &mut State) {
    settle_disputes(state);
    for service in &mut state.services {
        settle_twins(service);
        // A pod that is said to be elsewhere is not masqueraded when it meets itself, and does not
        // answer then; where clients stay with their endpoint, chance decides whether it does.
        if service.affinity.is_some() {
            let endpoints = service.groups.iter_mut().flat_map(|g| &mut g.endpoints);
            endpoints.for_each(|endpoint| endpoint.on = None);
        }
    }
}

/// Makes the entries of an endpoint that is in two slices equal, but for one of them shutting down:
/// of other pairs kube-proxy takes the one it meets first, in random order (CORE-089).
fn settle_twins(service: &mut Service) {
    let mut seen: Vec<Endpoint> = Vec::new();
    for group in &mut service.groups {
        for endpoint in &mut group.endpoints {
            let Some(first) = seen.iter().find(|first| first.pod == endpoint.pod) else {
                seen.push(endpoint.clone());
                continue;
            };
            let leaving = matches!(endpoint.condition, Condition::Terminating | Condition::Gone);
            let condition = if leaving && first.condition == Condition::Ready {
                endpoint.condition
            } else {
                first.condition
            };
            *endpoint = Endpoint {
                condition,
                ..first.clone()
            };
        }
    }
}

/// Takes away addresses until no address and port is named by two Services.
fn settle_disputes(state: &mut State) {
    let mut taken = BTreeSet::new();
    for service in &mut state.services {
        let free = |ip: IpAddr, taken: &BTreeSet<(IpAddr, u16, Protocol)>, ports: &[Port]| {
            let mut ports = ports.iter();
            !ports.any(|port| taken.contains(&(ip, port.number, port.protocol)))
        };
        let ports = service.ports.clone();
        service.external_ips.retain(|ip| free(*ip, &taken, &ports));
        service
            .ingress
            .retain(|ingress| free(ingress.ip, &taken, &ports));
        for port in &ports {
            let ips = service.external_ips.iter().copied();
            let ips = ips.chain(service.ingress.iter().map(|ingress| ingress.ip));
            taken.extend(ips.map(|ip| (ip, port.number, port.protocol)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::short::Memory;

    #[test]
    fn a_seed_draws_the_same_every_time() {
        assert_eq!(history(3), history(3));
        assert_ne!(history(3), history(4));
    }

    #[test]
    fn everything_drawn_can_be_written() {
        for seed in 0..300 {
            for state in history(seed) {
                for item in state.items().unwrap() {
                    Memory::default().objects(&item, "test").unwrap();
                }
            }
        }
    }

    #[test]
    fn no_address_is_named_by_two_services() {
        for seed in 0..300 {
            for state in history(seed) {
                for service in &state.services {
                    for port in &service.ports {
                        for frontend in service.frontends(port) {
                            let owners = state.owners(frontend.to, frontend.protocol);
                            assert_eq!(owners.len(), 1, "{seed}: {frontend:?}");
                        }
                    }
                }
            }
        }
    }
}
