//! Service ports as virtual servers, entries and addresses.

use super::*;

/// The entries of one set.
fn entries(rendered: &Rendered, set: Set) -> Vec<String> {
    let items = rendered.items.iter();
    items
        .filter_map(|item| match item {
            Item::Entry(of, entry) if *of == set => Some(entry.to_string()),
            _ => None,
        })
        .collect()
}

fn addresses(rendered: &Rendered) -> Vec<String> {
    let items = rendered.items.iter();
    items
        .filter_map(|item| match item {
            Item::Address(ip) => Some(ip.to_string()),
            _ => None,
        })
        .collect()
}

fn server(rendered: &Rendered, address: &str, port: u16) -> Service {
    let mut all = rendered.servers.iter();
    let found = all.find(|(of, ..)| *of == key(address, port));
    found.expect("there is one").2.clone()
}

#[test]
fn ipvs_012_a_cluster_ip_is_a_virtual_server_an_entry_and_an_address() {
    let mut cluster = cluster();
    cluster.service(service("a")).slice(endpoints("a", &[1, 2]));
    cluster.step();
    let rendered = rendered(&cluster, "a");
    assert_eq!(rendered.servers.len(), 1);
    let server = server(&rendered, "10.96.0.1", 80);
    assert_eq!(&*server.scheduler, "rr");
    assert_eq!((server.flags, server.timeout), (0, 0));
    assert_eq!(*server.destinations, [pod(1), pod(2)]);
    assert_eq!(*server.leaving, []);
    assert_eq!(entries(&rendered, Set::ClusterIp), ["10.96.0.1,tcp:80"]);
    assert_eq!(entries(&rendered, Set::Addresses), ["10.96.0.1"]);
    assert_eq!(addresses(&rendered), ["10.96.0.1"]);
    let hairpins = entries(&rendered, Set::LoopBack);
    let pods = ["10.1.0.1,tcp:8080,10.1.0.1", "10.1.0.2,tcp:8080,10.1.0.2"];
    assert_eq!(hairpins, pods);
}

#[test]
fn ipvs_016_session_affinity_is_persistence_for_as_long() {
    let mut cluster = cluster();
    cluster.service(service("a").affinity(600));
    cluster.step();
    let server = server(&rendered(&cluster, "a"), "10.96.0.1", 80);
    assert_eq!((server.flags, server.timeout), (0x1, 600));
}

#[test]
fn ipvs_017_with_maglev_the_source_port_counts() {
    let mut cluster = cluster();
    let mut object = service("a");
    object.scheduler = Some("mh".into());
    cluster.service(object);
    cluster.step();
    let asked = server(&rendered(&cluster, "a"), "10.96.0.1", 80);
    assert_eq!((&*asked.scheduler, asked.flags), ("mh", 0x10));
    // A kernel without it.
    let context = render::Context {
        missing: BTreeSet::from(["mh".into()]),
        ..context(&cluster)
    };
    let rendered = render::exposure(&cluster.exposure("a"), &context);
    let other = server(&rendered, "10.96.0.1", 80);
    assert_eq!((&*other.scheduler, other.flags), ("rr", 0));
}

#[test]
fn ipvs_022_an_address_that_an_interface_has_is_not_added_again() {
    let mut cluster = cluster();
    let own = service("a").external_ips(&["192.0.2.1", "198.18.0.1"]);
    cluster.service(own).slice(endpoints("a", &[1]));
    cluster.step();
    let rendered = rendered(&cluster, "a");
    assert_eq!(addresses(&rendered), ["10.96.0.1", "198.18.0.1"]);
    let external = ["192.0.2.1,tcp:80", "198.18.0.1,tcp:80"];
    assert_eq!(entries(&rendered, Set::ExternalIp), external);
    assert_eq!(rendered.servers.len(), 3);
}

#[test]
fn ipvs_044_ipvs_045_node_ports_answer_on_addresses_of_interfaces_but_not_on_localhost() {
    let mut cluster = cluster();
    cluster
        .service(service("a").node_port(30001))
        .slice(endpoints("a", &[1]));
    cluster.step();
    let rendered = rendered(&cluster, "a");
    let mut node_ports: Vec<String> = rendered
        .servers
        .iter()
        .filter(|(_, kind, _)| *kind == FrontendKind::NodePort)
        .map(|(key, ..)| key.to_string())
        .collect();
    node_ports.sort();
    assert_eq!(
        node_ports,
        ["10.1.0.254:30001/TCP", "192.0.2.1:30001/TCP"],
        "and not on 10.96.0.1, though it is an address of this machine"
    );
    assert_eq!(entries(&rendered, Set::NodePortTcp), ["30001"]);
    assert_eq!(entries(&rendered, Set::NodePortTcpLocal), [] as [&str; 0]);
    assert_eq!(addresses(&rendered), ["10.96.0.1"]);
}

#[test]
fn ipvs_047_node_ports_of_sctp_are_entries_with_addresses() {
    let mut cluster = cluster();
    let sctp = service("a").node_port(30001).over(&[Protocol::Sctp]);
    let endpoints = endpoints("a", &[1]).over(&[Protocol::Sctp]);
    cluster.service(sctp.external_local()).slice(endpoints);
    cluster.step();
    let all = cluster.desired.exposures(FAMILY);
    let rendered = render::exposure(all[0], &context(&cluster));
    let both = ["10.1.0.254,sctp:30001", "192.0.2.1,sctp:30001"];
    assert_eq!(entries(&rendered, Set::NodePortSctp), both);
    assert_eq!(entries(&rendered, Set::NodePortSctpLocal), both);
    assert!(rendered.servers.iter().all(|(key, ..)| key.protocol == 132));
}

#[test]
fn ipvs_050_ipvs_051_source_ranges_are_entries_and_keep_the_node_out_unless_it_is_in_one() {
    let mut cluster = cluster();
    let ranges = ["203.0.113.0/24", "203.0.114.7/32", "192.0.2.0/28"];
    let outside = balanced("a", "198.51.100.10").source_ranges(&ranges[..2]);
    cluster
        .node(ferrule_testbed::cluster::node("z"))
        .service(&outside)
        .slice(endpoints("a", &[1]));
    cluster.step();
    let first = rendered(&cluster, "a");
    let vip = "198.51.100.10,tcp:80";
    assert_eq!(entries(&first, Set::Firewalled), [vip]);
    let allowed = [
        format!("{vip},203.0.113.0/24"),
        format!("{vip},203.0.114.7"),
    ];
    assert_eq!(entries(&first, Set::SourceCidr), allowed);
    assert_eq!(entries(&first, Set::SourceIp), [] as [&str; 0]);
    let barred = Barred {
        ip: ip("198.51.100.10"),
        protocol: Protocol::Tcp,
        port: ferrule_testbed::cluster::port(80),
    };
    assert!(first.items.contains(&Item::Barred(barred)));

    cluster.service(balanced("a", "198.51.100.10").source_ranges(&ranges));
    cluster.step();
    let second = rendered(&cluster, "a");
    let itself = format!("{vip},198.51.100.10");
    assert_eq!(entries(&second, Set::SourceIp), [itself]);
    assert!(!second.items.contains(&Item::Barred(barred)));

    cluster.service(balanced("a", "198.51.100.10").source_ranges(&["0.0.0.0/0"]));
    cluster.step();
    let open = rendered(&cluster, "a");
    assert_eq!(entries(&open, Set::Firewalled), [] as [&str; 0]);
}

#[test]
fn ipvs_053_a_health_check_port_is_an_entry() {
    let mut cluster = cluster();
    let mut checked = balanced("a", "198.51.100.10").external_local();
    checked.health_check_field = Some(ferrule_testbed::cluster::port(31000));
    cluster.service(checked);
    cluster.step();
    assert_eq!(
        entries(&rendered(&cluster, "a"), Set::HealthCheck),
        ["31000"]
    );
}

#[test]
fn ipvs_055_an_internal_policy_of_local_leads_to_local_endpoints_or_to_none() {
    let mut cluster = cluster();
    let remote = ep("10.2.0.9");
    let local = ep("10.1.0.1").local();
    // Also reachable from outside: kube-proxy would lead to the remote endpoint then.
    cluster
        .service(service("a").internal_local().node_port(30001))
        .slice(slice("a-1", "a", &[remote.clone(), local]));
    cluster.step();
    let with = rendered(&cluster, "a");
    assert_eq!(*server(&with, "10.96.0.1", 80).destinations, [pod(1)]);
    assert_eq!(entries(&with, Set::NoEndpoint), [] as [&str; 0]);

    cluster.slice(slice("a-1", "a", &[remote]));
    cluster.step();
    let without = rendered(&cluster, "a");
    assert_eq!(*server(&without, "10.96.0.1", 80).destinations, []);
    assert_eq!(entries(&without, Set::NoEndpoint), ["10.96.0.1,tcp:80"]);
    let node_port = server(&without, "192.0.2.1", 30001);
    assert_eq!(node_port.destinations.len(), 1);
}

#[test]
fn ipvs_056_without_local_endpoints_clients_outside_are_kept_out_and_those_inside_are_not() {
    let mut cluster = cluster();
    let exposed = balanced("a", "198.51.100.10")
        .external_local()
        .node_port(30001);
    cluster
        .service(exposed)
        .slice(slice("a-1", "a", &[ep("10.2.0.9")]));
    cluster.step();
    let without = rendered(&cluster, "a");
    let kept_out = [
        "10.1.0.254,tcp:30001",
        "192.0.2.1,tcp:30001",
        "198.51.100.10,tcp:80",
    ];
    assert_eq!(entries(&without, Set::NoLocalEndpoint), kept_out);
    let destinations = server(&without, "198.51.100.10", 80).destinations;
    assert_eq!(*destinations, [([10, 2, 0, 9], 8080).into()]);

    let both = [ep("10.2.0.9"), ep("10.1.0.1").local()];
    cluster.slice(slice("a-1", "a", &both));
    cluster.step();
    let with = rendered(&cluster, "a");
    assert_eq!(entries(&with, Set::NoLocalEndpoint), [] as [&str; 0]);
    let server = server(&with, "198.51.100.10", 80);
    assert_eq!(*server.destinations, [pod(1)]);
    // A connection of a client inside may go on.
    assert_eq!(*server.leaving, [([10, 2, 0, 9], 8080).into()]);
}

#[test]
fn endpoints_that_must_not_receive_are_known_and_hairpins_of_all_are_there() {
    let mut cluster = cluster();
    let pods = [
        ep("10.1.0.1").local(),
        ep("10.1.0.2").local().drain(),
        ep("10.1.0.3").local().unready(),
        ep("10.2.0.4").dead(),
    ];
    cluster
        .service(service("a"))
        .slice(slice("a-1", "a", &pods));
    cluster.step();
    let rendered = rendered(&cluster, "a");
    let server = server(&rendered, "10.96.0.1", 80);
    assert_eq!(*server.destinations, [pod(1)]);
    let leaving = [pod(2), pod(3), ([10, 2, 0, 4], 8080).into()];
    assert_eq!(*server.leaving, leaving);
    assert_eq!(entries(&rendered, Set::LoopBack).len(), 3);
}

#[test]
fn of_an_external_ip_and_a_node_port_on_one_socket_the_external_ip_answers() {
    let mut cluster = cluster();
    let external = service("b").at("10.96.0.2").port("http", 30001);
    cluster
        .service(service("a").node_port(30001))
        .slice(endpoints("a", &[1]))
        .service(external.external_ips(&["192.0.2.1"]))
        .slice(endpoints("b", &[2]));
    cluster.step();
    let mut wanted = wanted(&cluster);
    let contested = key("192.0.2.1", 30001);
    let answers = |wanted: &Wanted| wanted.server(&contested).unwrap().destinations.to_vec();
    assert_eq!(answers(&wanted), [pod(2)]);
    assert_eq!(wanted.owner(&contested), Some(&http("b")));
    // It goes, and the other one takes over without the virtual server going.
    cluster.no_service("b");
    let steps = change(&mut cluster, &mut wanted, &[]).steps;
    assert_eq!(answers(&wanted), [pod(1)]);
    assert!(steps.contains(&Step::AddDestination(contested, pod(1))));
    assert!(!steps.contains(&Step::DeleteServer(contested)));
}
