//! Packets that never leave the machine: a process on the node asks, and pods that use the node's
//! own network answer.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use ferrule_core::facts::{DetectLocal, NodePortAddresses, Settings};
use ferrule_core::model::Family;
use ferrule_testbed::cluster::Objects;
use ferrule_testbed::{address, in_namespace, run};

use crate::modes::{IPVS, Knobs, Mode, NFTABLES, USERSPACE, modes};
use crate::scene::{Scene, service, slice};
use crate::world::{in_threads, is_there};

/// A machine with the addresses of a node and of two pods, and routes to Services.
struct Machine {
    mode: Mode,
    family: Family,
    listeners: Vec<TcpListener>,
}

/// Runs a case in every mode and both families, each in a network of its own.
///
/// Mode userspace is left out: a client there is connected before the pod is, and these cases look for
/// it in the pod's queue at once.
fn everywhere(case: fn(&Machine)) {
    everywhere_but(USERSPACE, case);
}

/// The same without mode ipvs: there a process of the node has the Service's own address, and every
/// virtual server begins with the same endpoint and remembers its own clients.
fn everywhere_but_in_ipvs(case: fn(&Machine)) {
    everywhere_but(IPVS, case);
}

fn everywhere_but(unlike: &str, case: fn(&Machine)) {
    let modes = modes().into_iter();
    let modes = modes.filter(|mode| mode.like != USERSPACE && mode.like != unlike);
    in_threads(modes.collect(), move |mode, family| {
        in_namespace(move || {
            if is_there(mode, mode.open(family, Knobs::default()).map(drop)) {
                case(&Machine::new(mode, family));
            }
        });
    });
}

impl Machine {
    fn new(mode: Mode, family: Family) -> Self {
        let bits = if family == Family::V4 { "/32" } else { "/128" };
        let pods = [pod(family, 1), pod(family, 2)];
        for address in [node(family), pods[0], pods[1]] {
            let text = format!("{address}{bits}");
            run("ip", &["address", "add", &text, "dev", "lo", "nodad"]);
        }
        let ends = ["link", "add", "out", "type", "veth", "peer", "name", "in"];
        run("ip", &ends);
        for end in ["out", "in"] {
            run("ip", &["link", "set", end, "up"]);
        }
        let source = node(family).to_string();
        for net in services(family) {
            run("ip", &["route", "add", net, "dev", "out", "src", &source]);
        }
        let listeners = pods.map(|pod| {
            let listener = TcpListener::bind((pod, 8080)).unwrap();
            listener.set_nonblocking(true).unwrap();
            listener
        });
        Self {
            mode,
            family,
            listeners: listeners.into(),
        }
    }

    /// A cluster of which the node knows nothing.
    fn scene(&self, settings: Settings) -> Scene {
        Scene::new(self.mode, self.family, None, settings)
    }

    /// Connects, and tells which pod it was and who the pod thinks it talks to.
    fn connect(&self, to: IpAddr, port: u16) -> Result<(usize, IpAddr), ErrorKind> {
        self.connect_within(Duration::from_secs(8), to, port)
    }

    /// The same for one that is expected to hear nothing.
    fn knock(&self, to: IpAddr, port: u16) -> Result<(usize, IpAddr), ErrorKind> {
        self.connect_within(Duration::from_millis(300), to, port)
    }

    fn connect_within(
        &self,
        patience: Duration,
        to: IpAddr,
        port: u16,
    ) -> Result<(usize, IpAddr), ErrorKind> {
        let mut stream = attempt(to, port, patience)?;
        let accepted = self
            .listeners
            .iter()
            .enumerate()
            .find_map(|(pod, listener)| Some((pod, listener.accept().ok()?)));
        let (pod, (mut other, peer)) = accepted.expect("a pod accepted the connection");
        // Replies find their way back too.
        other.set_nonblocking(false).unwrap();
        other.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        Ok((pod, peer.ip()))
    }

    /// How often each pod was reached by many connections.
    fn spread(&self, to: IpAddr, port: u16) -> [usize; 2] {
        let mut counts = [0; 2];
        for _ in 0..100 {
            counts[self.connect(to, port).unwrap().0] += 1;
        }
        counts
    }

    fn pods(&self) -> [(IpAddr, bool); 2] {
        [(pod(self.family, 1), true), (pod(self.family, 2), false)]
    }
}

fn attempt(to: IpAddr, port: u16, patience: Duration) -> Result<TcpStream, ErrorKind> {
    let to = SocketAddr::new(to, port);
    TcpStream::connect_timeout(&to, patience).map_err(|error| error.kind())
}

/// Whether a connection is refused. The answer to the first packet of IPv6 comes while the socket
/// is still busy sending it, and goes unheard; that to the second one a second later does not.
fn refused(to: IpAddr, port: u16) {
    let result = attempt(to, port, Duration::from_secs(5));
    assert_eq!(
        result.unwrap_err(),
        ErrorKind::ConnectionRefused,
        "{to} {port}"
    );
}

fn node(family: Family) -> IpAddr {
    address(family, 2, 1)
}

fn this_node(family: Family) -> ferrule_core::model::Node {
    ferrule_testbed::cluster::node("here").at(node(family))
}

fn pod(family: Family, number: u8) -> IpAddr {
    address(family, 1, number)
}

fn services(family: Family) -> [&'static str; 3] {
    match family {
        Family::V4 => ["10.96.0.0/16", "10.9.0.0/16", "10.8.0.0/16"],
        Family::V6 => ["fd00::60:0/112", "fd00::9:0/112", "fd00::8:0/112"],
    }
}

fn evenly(counts: [usize; 2]) {
    assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
}

#[test]
fn connections_to_a_cluster_ip_are_balanced_or_refused() {
    everywhere(|machine| {
        let family = machine.family;
        let mut scene = machine.scene(Settings::default());
        scene
            .service_cidr("kubernetes", &services(family)[..1])
            .service(service(family, "plain", 1))
            .service(service(family, "none", 2))
            .slice(slice(family, "plain", &machine.pods()));
        scene.whole();
        let cluster_ip = address(family, 96, 1);
        evenly(machine.spread(cluster_ip, 80));
        refused(address(family, 96, 2), 80);
        // Mode iptables has no rule for ports that a cluster IP does not have.
        if scene.is_like(NFTABLES) || scene.is_like(IPVS) {
            refused(cluster_ip, 81);
        } else {
            assert_eq!(machine.knock(cluster_ip, 81), Err(ErrorKind::TimedOut));
        }
        assert_eq!(
            machine.knock(address(family, 96, 99), 80),
            Err(ErrorKind::TimedOut),
            "no such Service"
        );
        // One endpoint less, then none, then both again.
        scene
            .slice(slice(family, "plain", &machine.pods()[..1]))
            .step();
        assert_eq!(machine.spread(cluster_ip, 80), [100, 0]);
        scene.no_slice("plain-1").step();
        refused(cluster_ip, 80);
        scene.slice(slice(family, "plain", &machine.pods())).step();
        evenly(machine.spread(cluster_ip, 80));
    });
}

#[test]
fn connections_to_external_addresses_are_balanced() {
    everywhere(|machine| {
        let family = machine.family;
        let mut scene = machine.scene(Settings::default());
        let exposed = service(family, "all", 1)
            .load_balancer(&[address(family, 9, 1)])
            .node_port(30001)
            .external_ips(&[address(family, 8, 1)]);
        scene
            .service(exposed)
            .service(service(family, "none", 2).node_port(30002))
            .slice(slice(family, "all", &machine.pods()));
        scene.whole();
        evenly(machine.spread(address(family, 96, 1), 80));
        evenly(machine.spread(address(family, 9, 1), 80));
        evenly(machine.spread(address(family, 8, 1), 80));
        evenly(machine.spread(node(family), 30001));
        refused(node(family), 30002);
    });
}

#[test]
fn the_local_policy_does_not_bind_clients_on_the_node() {
    everywhere(|machine| {
        let family = machine.family;
        let mut scene = machine.scene(Settings::default());
        let local = service(family, "all", 1)
            .load_balancer(&[address(family, 9, 1)])
            .node_port(30001)
            .external_local()
            .internal_local();
        scene
            .service(local)
            .slice(slice(family, "all", &machine.pods()));
        scene.whole();
        assert_eq!(machine.spread(address(family, 96, 1), 80), [100, 0]);
        let in_ipvs = scene.is_like(IPVS);
        for (to, port) in [(address(family, 9, 1), 80), (node(family), 30001)] {
            let counts = machine.spread(to, port);
            if in_ipvs {
                // All clients share the destinations of an address.
                assert_eq!(counts, [100, 0]);
            } else {
                evenly(counts);
            }
        }
        // Without a pod here the cluster IP drops, and in mode ipvs refuses the node itself.
        scene
            .slice(slice(family, "all", &machine.pods()[1..]))
            .step();
        assert_eq!(
            machine.knock(address(family, 96, 1), 80),
            Err(if in_ipvs {
                ErrorKind::ConnectionRefused
            } else {
                ErrorKind::TimedOut
            })
        );
        assert_eq!(machine.spread(node(family), 30001), [0, 100]);
    });
}

#[test]
fn sources_outside_the_ranges_are_dropped() {
    everywhere(|machine| {
        let family = machine.family;
        let mut scene = machine.scene(Settings::default());
        let vip = address(family, 9, 1);
        let ranges: [&[&str]; 3] = match family {
            Family::V4 => [&["192.0.2.0/24"], &["192.0.2.0/24", "10.2.0.0/24"], &[]],
            Family::V6 => [&["2001:db8::/32"], &["2001:db8::/32", "fd00::2:0/112"], &[]],
        };
        let guarded = service(family, "lb", 1).load_balancer(&[vip]);
        if scene.is_like(IPVS) {
            // There the ranges count for the node if its own address is in one.
            scene.node(this_node(family));
        }
        scene
            .service(guarded.clone().source_ranges(ranges[0]))
            .slice(slice(family, "lb", &machine.pods()));
        scene.whole();
        assert_eq!(machine.knock(vip, 80), Err(ErrorKind::TimedOut));
        evenly(machine.spread(address(family, 96, 1), 80));
        for allowed in &ranges[1..] {
            scene.service(guarded.clone().source_ranges(allowed));
            assert!(scene.step() > 0);
            evenly(machine.spread(vip, 80));
        }
    });
}

#[test]
fn clients_outside_the_pod_network_are_masqueraded() {
    everywhere_but_in_ipvs(|machine| {
        let family = machine.family;
        let net = |text: &str| Settings {
            detect_local: DetectLocal::ClusterCidr([text.parse().unwrap()].into()),
            ..Settings::default()
        };
        // The client is the node. It is outside of the first network and inside of the second;
        // loopback's first address is what a masqueraded client has.
        let (outside, inside) = match family {
            Family::V4 => ("10.1.0.0/16", "10.2.0.0/16"),
            Family::V6 => ("fd00::1:0/112", "fd00::2:0/112"),
        };
        for (pods, masqueraded) in [(outside, true), (inside, false)] {
            let mut scene = machine.scene(net(pods));
            scene.service(service(family, "plain", 1)).slice(slice(
                family,
                "plain",
                &machine.pods()[1..],
            ));
            scene.whole();
            let (_, client) = machine.connect(address(family, 96, 1), 80).unwrap();
            assert_eq!(client != node(family), masqueraded, "{client}");
        }
    });
}

#[test]
fn clients_stay_with_their_endpoint_on_every_address() {
    everywhere_but_in_ipvs(|machine| {
        let family = machine.family;
        let mut scene = machine.scene(Settings::default());
        let (vip, cluster_ip) = (address(family, 9, 1), address(family, 96, 1));
        let sticky = service(family, "sticky", 1)
            .load_balancer(&[vip])
            .node_port(30001);
        scene
            .service(sticky.clone().affinity(60))
            .slice(slice(family, "sticky", &machine.pods()));
        scene.whole();
        let always = |machine: &Machine, pod: usize| {
            for _ in 0..10 {
                for (address, port) in [(cluster_ip, 80), (vip, 80), (node(family), 30001)] {
                    assert_eq!(machine.connect(address, port).unwrap().0, pod);
                }
            }
        };
        let (first, _) = machine.connect(cluster_ip, 80).unwrap();
        always(machine, first);
        // A longer time and a fresh start change nothing for the client.
        scene.service(sticky.clone().affinity(120)).step();
        always(machine, first);
        scene.restart();
        assert_eq!(scene.whole(), 0);
        always(machine, first);
        // Its endpoint goes: it moves, and stays there when the endpoint comes back.
        let other = 1 - first;
        let rest = [machine.pods()[other]];
        scene.slice(slice(family, "sticky", &rest)).step();
        always(machine, other);
        scene.slice(slice(family, "sticky", &machine.pods())).step();
        always(machine, other);
        // Without affinity nobody stays, and no chains or sets are left after the next look.
        scene.service(sticky).step();
        evenly(machine.spread(cluster_ip, 80));
        scene.whole();
        assert_eq!(scene.whole(), 0);
        let Some(table) = scene.table() else { return };
        let mut chains = table.chains.iter().map(|held| &held.object.name);
        assert!(chains.all(|name| !name.starts_with("stay-")));
        let mut sets = table.sets.iter().map(|held| &held.object.name);
        assert!(sets.all(|name| !name.starts_with("ferrule-affinity-")));
    });
}

#[test]
fn new_clients_are_spread_even_if_they_stay() {
    everywhere_but_in_ipvs(|machine| {
        let family = machine.family;
        let mut scene = machine.scene(Settings::default());
        // One client has sixty Services, and draws once for each.
        for number in 1..=60 {
            let name = format!("sticky-{number}");
            scene
                .service(service(family, &name, number).affinity(60))
                .slice(slice(family, &name, &machine.pods()));
            // A few at a time: ordinary users may not send the kernel large transactions.
            if number % 10 == 0 {
                scene.step();
            }
        }
        let mut counts = [0; 2];
        for number in 1..=60 {
            let cluster_ip = address(family, 96, number);
            counts[machine.connect(cluster_ip, 80).unwrap().0] += 1;
        }
        assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
    });
}

#[test]
fn node_ports_answer_only_where_they_are_wanted() {
    everywhere(|machine| {
        let family = machine.family;
        let (with, without) = match family {
            Family::V4 => ("10.2.0.0/24", "10.3.0.0/24"),
            Family::V6 => ("fd00::2:0/112", "fd00::3:0/112"),
        };
        for (net, answers) in [(with, true), (without, false)] {
            let settings = Settings {
                node_port_addresses: NodePortAddresses::parse(&[net]).unwrap(),
                ..Settings::default()
            };
            let mut scene = machine.scene(settings);
            scene
                .service(service(family, "port", 1).node_port(30001))
                .slice(slice(family, "port", &machine.pods()));
            scene.whole();
            let answer = machine.connect(node(family), 30001);
            assert_eq!(answer.is_ok(), answers, "{net}");
            // Those are addresses of pods on this node, not of the node.
            let pod = pod(family, 1);
            assert_eq!(
                machine.connect(pod, 30001),
                Err(ErrorKind::ConnectionRefused)
            );
        }
    });
}
