//! Clients whose endpoint goes: those that use a port again, those that stay with an endpoint, and
//! flows of UDP and SCTP.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use ferrule_core::model::Family;
use ferrule_testbed::{Answer, Ask, Kind, Place, Protocol, connect_from};

use crate::support::*;

/// The port that a client uses again and again.
const FIXED: u16 = 33_333;

/// A Service with these endpoints.
fn scene(lab: &Lab, endpoints: &[u8]) -> Scene {
    let mut scene = Scene::new(lab);
    scene
        .service(lab.full("all", 1))
        .slice(lab.pods("all", endpoints));
    scene.whole();
    scene
}

/// The pod of this number shuts down; both are listed.
fn shuts_down(lab: &Lab, scene: &mut Scene, number: u8) {
    let ip = if number == 1 {
        lab.here_ip()
    } else {
        lab.far_ip()
    };
    let mut slice = lab.pods("all", &[1, 2]);
    for endpoint in &mut slice.endpoints {
        if endpoint.ip == ip {
            *endpoint = endpoint.clone().drain();
        }
    }
    scene.slice(slice).step();
}

/// Destinations of the cluster IP over this protocol, and their weights.
fn weights(lab: &Lab, scene: &Scene, protocol: u8) -> BTreeMap<IpAddr, u32> {
    let (address, port) = lab.target(Kind::ClusterIp, 1);
    let servers = scene.servers();
    let (_, (_, destinations)) = servers
        .iter()
        .find(|(key, _)| (key.address, key.port, key.protocol) == (address, port, protocol))
        .unwrap();
    let destinations = destinations.iter().map(|counted| counted.destination);
    destinations.map(|d| (d.address, d.weight)).collect()
}

/// Connects from the fixed port; the number of the pod that answers.
fn connect(place: &Place, from: IpAddr, to: SocketAddr) -> u8 {
    place.run(move || {
        let from = SocketAddr::new(from, FIXED);
        let mut stream = connect_from(from, to).unwrap();
        let mut number = [0];
        stream.read_exact(&mut number).unwrap();
        number[0] - b'0'
    })
}

/// Counts the first packets of connections on their way to the Service and on their way to pods.
const COUNTERS: [&str; 2] = [
    "PREROUTING -p tcp --syn --dport 80 -j ACCEPT",
    "POSTROUTING -p tcp --syn --dport 8080 -j ACCEPT",
];

fn iptables(scene: &Scene, end: &str, arguments: &str) -> String {
    let stem = match scene.family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    };
    let program: &'static str = format!("{stem}{end}").leak();
    scene.run(program, arguments)
}

fn count_first_packets(scene: &Scene) {
    for rule in COUNTERS {
        iptables(scene, "", &format!("-t mangle -A {rule}"));
    }
}

/// How many there were on either side: a packet that the node drops is missing on the second.
fn first_packets(scene: &Scene) -> Vec<u64> {
    let saved = iptables(scene, "-save", "-c -t mangle");
    let rules = saved.lines().filter(|line| line.contains("--tcp-flags"));
    let packets = rules.map(|line| line[1..].split_once(':').unwrap().0);
    packets.map(|count| count.parse().unwrap()).collect()
}

fn cluster_ip(lab: &Lab) -> SocketAddr {
    lab.target(Kind::ClusterIp, 1).into()
}

#[test]
fn ipvs_064_a_client_with_a_fixed_port_sees_neither_failure_nor_delay() {
    everywhere(|lab| {
        let mut scene = scene(lab, &[1, 2]);
        count_first_packets(&scene);
        let first = connect(&lab.pod, lab.pod_ip(), cluster_ip(lab));
        let other = 3 - first;
        shuts_down(lab, &mut scene, first);
        for _ in 0..5 {
            let by = connect(&lab.pod, lab.pod_ip(), cluster_ip(lab));
            assert_eq!(by, other, "the other one is shutting down");
        }
        // The one that served it last is gone altogether.
        scene.slice(lab.pods("all", &[first])).step();
        for _ in 0..5 {
            assert_eq!(connect(&lab.pod, lab.pod_ip(), cluster_ip(lab)), first);
        }
        // One that is dropped is sent again after a second.
        let counts = first_packets(&scene);
        assert!(counts[0] >= 11 && counts[0] == counts[1], "{counts:?}");
    });
}

#[test]
fn ipvs_065_a_client_with_a_fixed_port_is_spread_over_pods() {
    everywhere(|lab| {
        let _scene = scene(lab, &[1, 2]);
        let mut counts = [0; 2];
        for _ in 0..20 {
            let by = connect(&lab.pod, lab.pod_ip(), cluster_ip(lab));
            counts[usize::from(by) - 1] += 1;
        }
        assert!(counts.iter().all(|count| *count > 4), "{counts:?}");
    });
}

#[test]
fn ipvs_066_a_sticky_client_moves_when_its_pod_shuts_down() {
    everywhere(|lab| {
        let mut scene = scene(lab, &[1, 2]);
        scene.service(lab.full("all", 1).affinity(600)).step();
        for kind in [Kind::ClusterIp, Kind::LoadBalancerIp] {
            let ask = lab.ask(Protocol::Tcp, kind, 1);
            let by = |ask: Ask| match ask.put(&lab.pod) {
                Answer::Served { by, .. } => by,
                other => panic!("{other:?}"),
            };
            scene.slice(lab.pods("all", &[1, 2])).step();
            let first = by(ask);
            assert!((0..5).all(|_| by(ask) == first), "it stays");
            shuts_down(lab, &mut scene, first);
            assert!((0..5).all(|_| by(ask) == 3 - first), "it moves");
        }
    });
}

/// Sends a datagram over this socket; the number of the pod that answers.
fn tell(socket: &UdpSocket) -> u8 {
    // What was sent to an endpoint that is just going may be lost, as always with UDP.
    let begun = Instant::now();
    let mut errors = Vec::new();
    while begun.elapsed() < Duration::from_secs(20) {
        // An error about an earlier datagram.
        let sent = socket.send(b"?").map(drop);
        let mut answer = [0; 64];
        match sent.and_then(|()| socket.recv(&mut answer)) {
            Ok(_) => return answer[0] - b'0',
            // It comes at once: many of them are no time at all.
            Err(error) => errors.push(error.to_string()),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("nobody answers: {errors:?}");
}

fn flow(lab: &Lab) -> UdpSocket {
    let (from, to) = (lab.pod_ip(), cluster_ip(lab));
    let socket = lab.pod.run(move || {
        let socket = UdpSocket::bind((from, FIXED)).unwrap();
        socket.connect(to).unwrap();
        socket
    });
    let patience = Some(Duration::from_millis(500));
    socket.set_read_timeout(patience).unwrap();
    socket
}

#[test]
fn ipvs_061_destinations_of_udp_and_sctp_stay_for_a_moment_and_then_go() {
    everywhere(|lab| {
        let mut scene = scene(lab, &[1, 2]);
        // Whatever the first packets of a new network meet, it is not this flow's.
        lab.ask(Protocol::Udp, Kind::ClusterIp, 1)
            .until_served(&lab.pod);
        let socket = flow(lab);
        let first = tell(&socket);
        let sctp = lab.ask(Protocol::Sctp, Kind::ClusterIp, 1);
        // Both pods have something over SCTP.
        for _ in 0..2 {
            assert!(matches!(sctp.put(&lab.pod), Answer::Served { .. }));
        }
        // Before the wait begins, so that it is as long as it should be whatever this machine does meanwhile.
        let now = Instant::now();
        shuts_down(lab, &mut scene, first);
        for protocol in [17, 132] {
            let mut weights: Vec<_> = weights(lab, &scene, protocol).into_values().collect();
            weights.sort_unstable();
            assert_eq!(weights, [0, 1], "{protocol}");
        }
        assert_eq!(tell(&socket), first, "it may finish what it began");
        // Counted once, and then a minute later.
        assert!(scene.tick(now + Duration::from_secs(6)).is_some());
        assert!(scene.tick(now + Duration::from_mins(1)).is_none());
        for protocol in [17, 132] {
            let weights: Vec<_> = weights(lab, &scene, protocol).into_values().collect();
            assert_eq!(weights, [1], "{protocol}");
        }
        assert_eq!(tell(&socket), 3 - first);
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn ipvs_070_a_udp_flow_goes_on_with_another_pod() {
    everywhere(|lab| {
        let mut scene = scene(lab, &[1, 2]);
        let socket = flow(lab);
        let mut by = tell(&socket);
        for _ in 0..3 {
            let other = 3 - by;
            scene.slice(lab.pods("all", &[other])).step();
            assert_eq!(weights(lab, &scene, 17).len(), 1, "deleted at once");
            assert_eq!(tell(&socket), other);
            scene.slice(lab.pods("all", &[1, 2])).step();
            assert_eq!(tell(&socket), other, "it stays");
            by = other;
        }
    });
}

#[test]
fn ipvs_054_marked_traffic_passes_a_policy_of_drop() {
    everywhere(|lab| {
        let _scene = scene(lab, &[2]);
        let iptables = if lab.far_ip().is_ipv4() {
            "iptables"
        } else {
            "ip6tables"
        };
        lab.node
            .run(move || run(iptables, &["-P", "FORWARD", "DROP"]));
        let seen = lab.masqueraded(2);
        for kind in [Kind::ExternalIp, Kind::LoadBalancerIp, Kind::NodePort] {
            let answer = lab.ask(Protocol::Tcp, kind, 1).put(&lab.out);
            assert_eq!(answer, Answer::Served { by: 2, seen }, "{kind:?}");
        }
        let direct = Ask::new(Protocol::Tcp, lab.far_ip(), 8080);
        let answered = Ask::unanswered(&[(&lab.out, direct)]);
        assert!(answered.is_empty(), "the policy is in force: {answered:?}");
    });
}
