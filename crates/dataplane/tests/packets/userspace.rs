//! What only mode userspace has: proxy ports, held ports, and the chains of iptables that it had.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use ferrule_core::facts::Settings;
use ferrule_core::model::Family;
use ferrule_testbed::Side::{Out, Pod};
use ferrule_testbed::cluster::{Objects, node};
use ferrule_testbed::{
    Answer, Ask, EXTERNAL, KINDS, Kind, NODE_PORT, Place, Protocol, SIDES, local, run, try_feed,
    word,
};

use crate::modes::{USERSPACE, USERSPACE_BY_IPTABLES};
use crate::scene::Scene;
use crate::table::{Served, Source};
use crate::world::{World, only_by, only_like};

const WHY: &str = "no other mode has a proxy";

fn both(case: fn(&World)) {
    only_like(USERSPACE, WHY, case);
    only_by(USERSPACE_BY_IPTABLES, case);
}

fn scene(world: &World, endpoints: &[u8]) -> Scene {
    let mut scene = world.scene(world.by_pod_net());
    scene
        .node(node("here").at(world.node_ip()))
        .service(world.full("all", 1))
        .slice(world.pods("all", endpoints));
    scene.whole();
    scene
}

/// Does something on the node.
fn there<T: Send + 'static>(world: &World, work: impl FnOnce() -> T + Send + 'static) -> T {
    world.node.run(work)
}

/// Ports on which anybody listens, as `ss` lists them with these options.
fn listeners(world: &World, options: &'static str) -> BTreeSet<u16> {
    let listed = there(world, move || run("ss", &[options]));
    let lines = listed.lines();
    let locals = lines.filter_map(|line| line.split_whitespace().nth(4));
    locals
        .filter_map(|local| local.rsplit_once(':').map(|(_, port)| port))
        .filter_map(|port| port.parse().ok())
        .collect()
}

/// Ports on which the proxy listens.
fn listening(world: &World) -> BTreeSet<u16> {
    let mut ports = listeners(world, "-Hltnu");
    ports.retain(|port| *port > 32767);
    ports
}

/// Waits until it is so. A program that another thread is about to start has sockets of this process
/// for a moment after they were closed here.
fn until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it did not become so");
}

fn iptables(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

/// What `iptables-save` prints without counters and comments of its own.
fn saved(world: &World) -> Vec<String> {
    let program = format!("{}-save", iptables(world.family));
    let text = there(world, move || run(&program, &[]));
    let lines = text.lines().filter(|line| line.starts_with("-A "));
    lines.map(str::to_owned).collect()
}

fn served(by: u8, world: &World) -> Answer {
    Answer::Served {
        by,
        seen: world.masqueraded(by),
    }
}

#[test]
fn usp_016_usp_017_usp_020_every_side_is_served_with_rules_of_iptables_too() {
    only_by(USERSPACE_BY_IPTABLES, |world| {
        let _scene = scene(world, &[1, 2]);
        let both = Served(&[1, 2], Source::Node);
        let vips = &[Kind::ClusterIp, Kind::LoadBalancerIp, Kind::NodePort];
        world.expect(1, &[(&SIDES, vips, both)]);
        // Traffic from off the machine.
        world.expect(1, &[(&[Out], &[Kind::ExternalIp], both)]);
    });
}

#[test]
fn usp_018_node_ports_work_where_input_drops() {
    both(|world| {
        let program = iptables(world.family);
        there(world, move || {
            for rule in [
                &["-P", "INPUT", "DROP"][..],
                &[
                    "-A",
                    "INPUT",
                    "-m",
                    "conntrack",
                    "--ctstate",
                    "ESTABLISHED,RELATED",
                    "-j",
                    "ACCEPT",
                ],
                &["-A", "INPUT", "-p", "icmpv6", "-j", "ACCEPT"],
            ] {
                run(program, rule);
            }
        });
        let _scene = scene(world, &[1]);
        let seen = Served(&[1], Source::Node);
        world.expect(1, &[(&[Out], &[Kind::NodePort], seen)]);
        if world.mode.name == USERSPACE {
            // Other modes forward packets to cluster IPs, so their clients pass no INPUT either.
            world.expect(1, &[(&SIDES, &KINDS, seen)]);
        }
    });
}

#[test]
fn usp_021_a_node_port_is_held_until_its_service_goes() {
    both(|world| {
        let bind = |world: &World| {
            there(world, || {
                let any = |ip: &str| SocketAddr::new(ip.parse().unwrap(), NODE_PORT);
                let tcp = |ip| TcpListener::bind(any(ip)).is_ok();
                let udp = |ip| UdpSocket::bind(any(ip)).is_ok();
                (tcp("0.0.0.0"), udp("0.0.0.0"), tcp("::"), udp("::"))
            })
        };
        let mut scene = scene(world, &[1]);
        let free = match world.family {
            Family::V4 => (false, false, false, false),
            // A socket of both families wants the port of both.
            Family::V6 => (true, true, false, false),
        };
        assert_eq!(bind(world), free);
        scene.no_service("all").step();
        assert_eq!(bind(world), (true, true, true, true));
    });
}

#[test]
fn usp_022_an_external_ip_of_this_machine_is_held_there() {
    both(|world| {
        let (external, port) = world.target(Kind::ExternalIp, 1);
        let bits = if external.is_ipv4() { 32 } else { 128 };
        world
            .node
            .ip(&format!("address add {external}/{bits} dev lo nodad"));
        let _scene = scene(world, &[1]);
        let (second, at) = (world.second(), SocketAddr::new(external, port));
        there(world, move || {
            assert!(TcpListener::bind(at).is_err());
            assert!(TcpListener::bind((second, port)).is_ok());
        });
        assert_eq!(
            world
                .ask(Protocol::Tcp, Kind::ExternalIp, 1)
                .put(&world.out),
            served(1, world)
        );
    });
}

#[test]
fn a_node_port_that_another_process_has_is_left_to_it() {
    both(|world| {
        let any: IpAddr = match world.family {
            Family::V4 => [0; 4].into(),
            Family::V6 => [0; 16].into(),
        };
        let held = there(world, move || TcpListener::bind((any, NODE_PORT)).unwrap());
        let mut scene = world.scene(world.by_pod_net());
        scene
            .service(world.full("all", 1))
            .slice(world.pods("all", &[1]));
        let refused = scene.refused();
        let messages: Vec<_> = refused
            .iter()
            .filter(|text| text.contains("hold port"))
            .collect();
        assert_eq!(messages.len(), 1, "{refused:?}");
        assert_eq!(
            world.ask(Protocol::Tcp, Kind::ClusterIp, 1).put(&world.out),
            served(1, world)
        );
        // It is tried again with every change.
        drop(held);
        until(|| !listeners(world, "-Hltn").contains(&NODE_PORT));
        scene.slice(world.pods("all", &[1, 2])).step();
        world
            .ask(Protocol::Tcp, Kind::NodePort, 1)
            .until_served(&world.out);
    });
}

/// A connection to the cluster IP that a pod has greeted, and what it said.
fn connection(world: &World, place: &Place) -> (TcpStream, Vec<u8>) {
    let (ip, port) = world.target(Kind::ClusterIp, 1);
    place.run(move || {
        let mut stream = TcpStream::connect((ip, port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(8)))
            .unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        (stream, byte.to_vec())
    })
}

#[test]
fn usp_052_usp_053_what_changes_about_a_service_keeps_its_proxy_ports() {
    both(|world| {
        let mut scene = scene(world, &[1]);
        let before = listening(world);
        assert!(!before.is_empty());
        for service in [
            world.full("all", 1).affinity(60),
            world
                .full("all", 1)
                .load_balancer(&[world.target(Kind::LoadBalancerIp, 7).0]),
            local(world.full("all", 1)),
            world.full("all", 1),
        ] {
            scene.service(service).step();
            assert_eq!(listening(world), before);
        }
        // To nothing and back.
        for endpoints in [&[][..], &[1]] {
            scene.slice(world.pods("all", endpoints)).step();
            assert_eq!(listening(world), before);
        }
        world.expect(
            1,
            &[(&[Pod, Out], &[Kind::ClusterIp], Served(&[1], Source::Node))],
        );
    });
}

#[test]
fn usp_054_a_service_that_goes_leaves_no_rule_and_no_listener() {
    both(|world| {
        let mut scene = scene(world, &[1]);
        let (stream, greeting) = connection(world, &world.pod);
        assert_eq!(greeting, b"1");
        scene.no_service("all").step();
        until(|| listening(world).is_empty());
        assert!(saved(world).iter().all(|rule| !rule.contains("demo/all")));
        drop(stream);
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn usp_060_nobody_connects_to_a_proxy_port_itself() {
    both(|world| {
        let _scene = scene(world, &[1]);
        let ports = listening(world);
        assert!(!ports.is_empty());
        for port in ports {
            let ask = Ask::new(Protocol::Tcp, world.node_ip(), port);
            // One of the ports is of UDP; there nobody listens.
            assert_eq!(ask.put(&world.out), Answer::Reset, "{port}");
        }
    });
}

#[test]
fn usp_063_what_is_right_is_not_written_again() {
    both(|world| {
        let mut scene = scene(world, &[1]);
        assert_eq!(scene.whole(), 0);
        assert_eq!(scene.step(), 0);
    });
}

#[test]
fn usp_005_usp_006_five_jumps_are_there_and_come_back() {
    only_by(USERSPACE_BY_IPTABLES, |world| {
        let program = iptables(world.family);
        there(world, move || {
            run(
                program,
                &["-t", "nat", "-A", "PREROUTING", "-p", "tcp", "-j", "RETURN"],
            );
            run(
                program,
                &["-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-j", "RETURN"],
            );
        });
        let mut scene = scene(world, &[1]);
        let portals = "-m comment --comment \"handle ClusterIPs; NOTE: this must be before the NodePort rules\" -j KUBE-PORTALS-";
        let nodes = "-m addrtype --dst-type LOCAL -m comment --comment \"handle service NodePorts; NOTE: this must be the last rule in the chain\" -j KUBE-NODEPORT-";
        let accept = "-A INPUT -m comment --comment \"Ensure that non-local NodePort traffic can flow\" -j KUBE-NODEPORT-NON-LOCAL";
        let assert_jumps = || {
            let rules = saved(world);
            let of = |chain: &str| {
                let start = format!("-A {chain} ");
                let rules = rules.iter().filter(|rule| rule.starts_with(&start));
                rules.cloned().collect::<Vec<_>>()
            };
            for (chain, to) in [("PREROUTING", "CONTAINER"), ("OUTPUT", "HOST")] {
                assert_eq!(
                    of(chain),
                    [
                        format!("-A {chain} {portals}{to}"),
                        format!("-A {chain} -p tcp -j RETURN"),
                        format!("-A {chain} {nodes}{to}"),
                    ]
                );
            }
            assert_eq!(of("INPUT"), [accept]);
        };
        assert_jumps();
        there(world, move || {
            run(program, &["-t", "nat", "-D", "PREROUTING", "1"]);
            run(program, &["-t", "nat", "-D", "OUTPUT", "3"]);
            run(program, &["-F", "INPUT"]);
        });
        assert_eq!(scene.whole(), 3);
        assert_jumps();
    });
}

#[test]
fn usp_061_usp_070_a_restart_over_left_rules_takes_the_same_ports() {
    only_by(USERSPACE_BY_IPTABLES, |world| {
        let mut scene = scene(world, &[1]);
        let (ports, rules) = (listening(world), saved(world));
        scene.crash();
        until(|| listening(world).is_empty());
        assert_eq!(saved(world), rules, "they outlive the process");
        scene.restart();
        scene.whole();
        assert_eq!(listening(world), ports);
        assert_eq!(saved(world), rules);
        world.expect(
            1,
            &[(&[Out], &[Kind::NodePort], Served(&[1], Source::Node))],
        );
    });
}

#[test]
fn usp_068_usp_069_removal_leaves_nothing_and_is_silent_where_there_is_nothing() {
    both(|world| {
        let family = world.family;
        let remove = |world: &World| {
            there(world, move || {
                ferrule_dataplane::userspace::remove(family).unwrap()
            })
        };
        assert_eq!(remove(world), 0);
        let mut scene = scene(world, &[1]);
        scene.crash();
        remove(world);
        assert_eq!(remove(world), 0);
        let rules = saved(world);
        assert!(rules.is_empty(), "{rules:?}");
        let chains = there(world, move || {
            let nat = run(iptables(family), &["-t", "nat", "-S"]);
            nat + &run(iptables(family), &["-S"])
        });
        assert!(!chains.contains("KUBE-"), "{chains}");
        let table = ["list", "table", word(family), "ferrule-userspace"];
        assert!(
            !there(world, move || try_feed("nft", &table, ""))
                .status
                .success()
        );
    });
}

#[test]
fn portals_by_nftables_remove_chains_that_lead_to_an_earlier_process() {
    only_by(USERSPACE_BY_IPTABLES, |world| {
        let mut chains = scene(world, &[1]);
        chains.crash();
        assert!(
            saved(world)
                .iter()
                .any(|rule| rule.contains("KUBE-PORTALS-HOST"))
        );
        let mode = crate::modes::modes()
            .into_iter()
            .find(|mode| mode.like == USERSPACE)
            .unwrap();
        let place = Some(world.node.clone());
        let mut scene = Scene::new(mode, world.family, place, Settings::default());
        scene
            .service(world.full("all", 1))
            .slice(world.pods("all", &[1]));
        scene.whole();
        assert!(
            saved(world)
                .iter()
                .all(|rule| !rule.contains("KUBE-PORTALS-"))
        );
        world.expect(1, &[(&[Out], &EXTERNAL, Served(&[1], Source::Node))]);
    });
}

#[test]
fn usp_051_flows_of_a_udp_service_that_goes_or_changes_its_port_are_removed() {
    both(|world| {
        let mut scene = scene(world, &[1]);
        let (to, port) = world.target(Kind::ClusterIp, 1);
        // One client that never stops sending from the same port.
        let socket = world.out.run(move || {
            let any: IpAddr = if to.is_ipv4() {
                [0; 4].into()
            } else {
                [0; 16].into()
            };
            let socket = UdpSocket::bind((any, 0)).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_millis(500)))
                .unwrap();
            socket
        });
        let ask = || {
            socket.send_to(b"?", (to, port)).unwrap();
            socket.recv(&mut [0; 64]).is_ok()
        };
        assert!(ask());
        scene.no_service("all").step();
        assert!(!ask());
        // It comes back, most likely on another port.
        scene
            .service(world.full("all", 1))
            .slice(world.pods("all", &[1]))
            .step();
        assert!((0..10).any(|_| ask()), "the flow leads to the new port");
    });
}

#[test]
fn half_open_connections_end_in_order() {
    only_like(USERSPACE, WHY, |world| {
        let _scene = scene(world, &[1]);
        let (mut stream, _) = connection(world, &world.node);
        let mut rest = Vec::new();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream.flush().unwrap();
        // The pod says its line and ends; that arrives whatever we have ended ourselves.
        stream.read_to_end(&mut rest).unwrap();
        assert!(
            String::from_utf8(rest)
                .unwrap()
                .contains(&world.masqueraded(1).to_string())
        );
    });
}
