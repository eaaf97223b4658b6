//! The same cluster that kube-proxy 1.36.4 was recorded with, and what it made of it.

use ferrule_core::facts::DetectLocal;
use ferrule_core::model::SliceEndpoint;
use ferrule_testbed::cluster::{node, port};

use super::*;

/// Virtual servers of kube-proxy: endpoint `.N` is 10.244.0.N. Those of NodePorts are there for
/// each address of the node; here for one of them.
const SERVERS: &str = "\
TCP 10.96.0.20:80 rr
TCP 10.96.0.21:80 rr .11:8080
TCP 10.96.0.22:80 rr .11:8080 .12:8080 .13:8080
TCP 10.96.0.23:80 rr .11:8080 .13:8080
TCP 10.96.0.24:80 rr .11:8080 .13:8080
TCP 10.96.0.25:80 rr .13:8080
TCP 10.96.0.26:80 rr .11:8080 .12:8080
TCP 10.96.0.27:80 rr .12:8080 .13:8080
TCP 10.96.0.28:80 rr .11:8080
TCP 10.96.0.30:80 rr -p 600 .11:8080 .12:8080
TCP 10.96.0.33:80 rr .11:8080
TCP 10.96.0.34:80 rr .12:8080
TCP 10.96.0.35:80 rr
TCP 10.96.0.36:80 rr .11:8080
TCP 10.96.0.37:80 rr .11:8080
TCP 172.31.0.1:30080 rr .11:8080 .13:8080
TCP 172.31.0.1:30081 rr .11:8080
TCP 172.31.0.1:30082 rr .13:8080
TCP 172.31.0.1:30086 rr .11:8080 .12:8080
TCP 172.31.0.1:30087 rr .12:8080
TCP 172.31.0.1:30088 rr .11:8080
TCP 172.31.0.1:30090 rr .11:8080
TCP 192.168.50.1:80 rr .11:8080
TCP 198.18.0.1:80 rr .11:8080
TCP 198.18.0.2:80 rr .11:8080
TCP 198.51.100.10:80 rr .11:8080 .12:8080
TCP 198.51.100.11:80 rr .12:8080
TCP 198.51.100.12:80 rr .11:8080
UDP 10.96.0.31:53 rr .11:5353 .12:5353
UDP 172.31.0.1:30053 rr .11:5353 .12:5353";

/// Entries of kube-proxy's sets.
const ENTRIES: [(Set, &str); 14] = [
    (
        Set::LoopBack,
        "10.244.0.11,tcp:8080,10.244.0.11 10.244.0.11,udp:5353,10.244.0.11 \
         10.244.0.12,tcp:8080,10.244.0.12 10.244.0.12,udp:5353,10.244.0.12 \
         10.244.0.19,tcp:8080,10.244.0.19",
    ),
    (Set::ExternalIp, "192.168.50.1,tcp:80 198.18.0.1,tcp:80"),
    (Set::ExternalIpLocal, "198.18.0.2,tcp:80"),
    (
        Set::LoadBalancer,
        "198.51.100.10,tcp:80 198.51.100.11,tcp:80 198.51.100.12,tcp:80",
    ),
    (Set::Firewalled, "198.51.100.10,tcp:80 198.51.100.12,tcp:80"),
    (Set::LoadBalancerLocal, "198.51.100.11,tcp:80"),
    (Set::SourceIp, "198.51.100.12,tcp:80,198.51.100.12"),
    (
        Set::SourceCidr,
        "198.51.100.10,tcp:80,192.168.50.0/28 198.51.100.10,tcp:80,203.0.113.7 \
         198.51.100.12,tcp:80,172.31.0.0/24",
    ),
    (
        Set::NodePortTcp,
        "30080 30081 30082 30086 30087 30088 30090",
    ),
    (Set::NodePortTcpLocal, "30081 30082 30087 30090"),
    (Set::NodePortUdp, "30053"),
    (Set::NodePortUdpLocal, ""),
    (Set::HealthCheck, "31000"),
    // Ours: clients outside must not reach the pod of another node, nobody that of 10.96.0.35.
    (Set::NoEndpoint, "10.96.0.35,tcp:80"),
];

fn at(number: u8) -> Object {
    service(&format!("s{number}")).at(IpAddr::from([10, 96, 0, number]))
}

fn pod_at(last: u8) -> SliceEndpoint {
    let pod = ep(IpAddr::from([10, 244, 0, last]));
    if last == 13 { pod } else { pod.local() }
}

fn pods(lasts: &[u8]) -> Vec<SliceEndpoint> {
    lasts.iter().map(|last| pod_at(*last)).collect()
}

fn recorded() -> Cluster {
    let mut cluster = Cluster::with(Settings {
        detect_local: DetectLocal::ClusterCidr(["10.244.0.0/16".parse().unwrap()].into()),
        ..settings()
    });
    cluster.node(node("z").at("172.31.0.1"));
    let mut checked = at(27).load_balancer(&["198.51.100.11"]).node_port(30087);
    checked.health_check_field = Some(port(31000));
    let mut three = pods(&[11, 12, 13]);
    three.push(pod_at(19).unready());
    let ending = || pod_at(12).drain();
    for (object, pods) in [
        (at(20), vec![]),
        (at(21), pods(&[11])),
        (at(22), three),
        (at(23).node_port(30080), pods(&[11, 13])),
        (at(24).node_port(30081).external_local(), pods(&[11, 13])),
        (at(25).node_port(30082).external_local(), pods(&[13])),
        (
            at(26)
                .load_balancer(&["198.51.100.10"])
                .node_port(30086)
                .source_ranges(&["192.168.50.0/28", "203.0.113.7/32"]),
            pods(&[11, 12]),
        ),
        (checked.external_local(), pods(&[12, 13])),
        (
            at(28)
                .load_balancer(&["198.51.100.12"])
                .node_port(30088)
                .source_ranges(&["172.31.0.0/24"]),
            pods(&[11]),
        ),
        (at(30).affinity(600), pods(&[11, 12])),
        (at(33), vec![pod_at(11), ending()]),
        (at(34), vec![ending()]),
        (at(35).internal_local(), pods(&[13])),
        (
            at(36).external_ips(&["198.18.0.1", "192.168.50.1"]),
            pods(&[11]),
        ),
        (
            at(37)
                .external_ips(&["198.18.0.2"])
                .node_port(30090)
                .external_local(),
            pods(&[11]),
        ),
    ] {
        cluster.serving(&object, 8080, &pods);
    }
    let dns = at(31).udp().port("http", 53).node_port(30053);
    cluster.serving(&dns, 5353, &pods(&[11, 12]));
    cluster.step();
    cluster
}

fn everything_of(cluster: &Cluster) -> Wanted {
    let facts = cluster.desired.facts(FAMILY);
    let local = ["10.244.0.1", "172.31.0.1", "192.168.50.1"].map(ip);
    let context = render::Context::new(FAMILY, "rr".into(), BTreeSet::new(), facts, &local);
    let all = cluster.desired.exposures(FAMILY).into_iter();
    Wanted::of(all.map(|exposure| (&exposure.key, render::exposure(exposure, &context))))
}

#[test]
fn ipvs_019_virtual_servers_are_those_of_kube_proxy() {
    let wanted = everything_of(&recorded());
    let is_node_port = |port: u16| port >= 30000;
    let mut lines: Vec<String> = wanted
        .servers()
        .filter(|(key, _)| !is_node_port(key.port) || key.address == ip("172.31.0.1"))
        .map(|(key, service)| {
            let socket = SocketAddr::new(key.address, key.port);
            let protocol = if key.protocol == 6 { "TCP" } else { "UDP" };
            let mut line = format!("{protocol} {socket} {}", service.scheduler);
            if service.timeout > 0 {
                line += " -p ";
                line += &service.timeout.to_string();
            }
            for destination in service.destinations.iter() {
                line += &destination.to_string().replace("10.244.0", " ");
            }
            line
        })
        .collect();
    lines.sort();
    assert_eq!(lines.join("\n"), SERVERS);
    let node_ports = wanted.servers().filter(|(key, _)| is_node_port(key.port));
    assert_eq!(node_ports.count(), 8 * 3);
}

#[test]
fn ipvs_027_entries_of_sets_are_those_of_kube_proxy() {
    let wanted = everything_of(&recorded());
    for (set, expected) in ENTRIES {
        let items = wanted.items().filter_map(|item| match item {
            Item::Entry(of, entry) if *of == set => Some(entry.to_string()),
            _ => None,
        });
        let mut entries: Vec<_> = items.collect();
        entries.sort();
        assert_eq!(entries.join(" "), expected, "{set:?}");
    }
}
