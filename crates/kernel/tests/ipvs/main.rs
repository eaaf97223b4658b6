//! IPVS on the real kernel, each test in a network namespace of its own.
//!
//! Few machines have IPVS in their kernel: `cargo xtask uml` runs these tests in User Mode Linux,
//! and `.config/nextest.toml` leaves them out elsewhere. Also needs `ipvsadm`.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is all tests; the exceptions of clippy.toml do not reach their helpers"
)]

use std::net::IpAddr;

use ferrule_kernel::exchange::RequestError;
use ferrule_kernel::ipvs::{
    Change, Counted, Destination, Info, Ipvs, Listed, Reason, Server, ServerKey, Stats, Timeouts,
};
use ferrule_kernel::route::Route;
use ferrule_testbed::{in_namespace, run, with_ipvs};

mod captures;
mod packets;
#[path = "../real/tap.rs"]
mod tap;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

fn key(address: &str, protocol: u8, port: u16) -> ServerKey {
    ServerKey {
        protocol,
        address: address.parse().unwrap(),
        port,
    }
}

fn server(key: ServerKey) -> Server {
    Server {
        key,
        scheduler: "rr".to_owned(),
        flags: 0,
        timeout: 0,
    }
}

fn destination(address: &str, port: u16) -> Destination {
    Destination {
        address: address.parse().unwrap(),
        port,
        weight: 1,
    }
}

/// Makes changes, all of which succeed.
fn commit(ipvs: &mut Ipvs, changes: &[Change]) {
    let refused = ipvs.commit(changes).unwrap();
    assert!(refused.is_empty(), "{refused:?}");
}

/// What the changes at fault are, and why.
fn faults(ipvs: &mut Ipvs, changes: &[Change]) -> Vec<(usize, Reason)> {
    let refused = ipvs.commit(changes).unwrap();
    refused.iter().map(|r| (r.index, r.reason)).collect()
}

/// The servers that have an address, in order.
fn servers(ipvs: &mut Ipvs) -> Vec<Server> {
    let listed = ipvs.servers().unwrap();
    let mut servers: Vec<_> = listed
        .into_iter()
        .filter_map(|listed| match listed {
            Listed::Server(server) => Some(server),
            Listed::Mark { .. } => None,
        })
        .collect();
    servers.sort_by_key(|server| server.key);
    servers
}

fn destinations(ipvs: &mut Ipvs, key: &ServerKey) -> Vec<Destination> {
    let listed = ipvs.destinations(key).unwrap();
    let mut all: Vec<_> = listed.iter().map(|listed| listed.destination).collect();
    all.sort_unstable();
    all
}

#[test]
fn ipvs_012_servers_and_destinations_are_listed_as_they_were_written() {
    with_ipvs(|ipvs| {
        let wanted = vec![
            Server {
                flags: Server::PERSISTENT,
                timeout: 600,
                ..server(key("10.96.0.1", TCP, 80))
            },
            Server {
                scheduler: "mh".to_owned(),
                flags: Server::SCHEDULER_2,
                ..server(key("fd00:96::1", TCP, 443))
            },
            server(key("10.96.0.1", UDP, 53)),
            server(key("fd00:96::1", SCTP, 99)),
        ];
        let all = |key: &ServerKey| match key.address {
            IpAddr::V4(_) => vec![destination("10.1.0.1", 80), destination("10.1.0.2", 8080)],
            IpAddr::V6(_) => vec![destination("fd00::1", 80), destination("fd00::2", 8080)],
        };
        let mut changes = Vec::new();
        for server in &wanted {
            changes.push(Change::AddServer(server.clone()));
            let each = all(&server.key).into_iter();
            changes.extend(each.map(|d| Change::AddDestination(server.key, d)));
        }
        commit(ipvs, &changes);
        let mut sorted = wanted.clone();
        sorted.sort_by_key(|server| server.key);
        assert_eq!(servers(ipvs), sorted);
        for server in &wanted {
            assert_eq!(destinations(ipvs, &server.key), all(&server.key));
            let listed = ipvs.destinations(&server.key).unwrap();
            let ours = |c: &Counted| c.method == Counted::MASQUERADE;
            assert!(listed.iter().all(ours));
        }
        let printed = run("ipvsadm", &["-Sn"]);
        for line in [
            "-A -t 10.96.0.1:80 -s rr -p 600",
            "-a -t 10.96.0.1:80 -r 10.1.0.2:8080 -m -w 1",
            "-A -u 10.96.0.1:53 -s rr",
            "-A -t [fd00:96::1]:443 -s mh -b mh-port",
            "-a -t [fd00:96::1]:443 -r [fd00::1]:80 -m -w 1",
            "--sctp-service [fd00:96::1]:99",
        ] {
            assert!(printed.contains(line), "{line} in\n{printed}");
        }
        // Another namespace has its own.
        in_namespace(|| assert_eq!(Ipvs::load().unwrap().unwrap().servers().unwrap(), []));
        ipvs.flush().unwrap();
        assert_eq!(ipvs.servers().unwrap(), []);
    });
}

#[test]
fn ipvs_018_servers_and_destinations_are_changed_in_place() {
    with_ipvs(|ipvs| {
        let key = key("10.96.0.1", TCP, 80);
        let one = destination("10.1.0.1", 80);
        let sticky = Server {
            scheduler: "wlc".to_owned(),
            flags: Server::PERSISTENT,
            timeout: 10_800,
            ..server(key)
        };
        commit(
            ipvs,
            &[
                Change::AddServer(server(key)),
                Change::AddDestination(key, one),
                Change::SetServer(sticky.clone()),
            ],
        );
        assert_eq!(servers(ipvs), [sticky]);
        for weight in [0, 1, 70_000] {
            let changed = Destination { weight, ..one };
            commit(ipvs, &[Change::SetDestination(key, changed)]);
            assert_eq!(destinations(ipvs, &key), [changed]);
        }
        commit(ipvs, &[Change::SetServer(server(key))]);
        assert_eq!(servers(ipvs), [server(key)]);
        commit(ipvs, &[Change::DeleteDestination(key, one)]);
        assert_eq!(destinations(ipvs, &key), []);
        commit(ipvs, &[Change::DeleteServer(key)]);
        assert_eq!(servers(ipvs), []);
        assert_eq!(destinations(ipvs, &key), [], "a server that is not there");
    });
}

#[test]
fn ipvs_020_each_change_succeeds_or_fails_on_its_own_and_says_what_is_wrong() {
    with_ipvs(|ipvs| {
        let here = key("10.96.0.1", TCP, 80);
        let gone = key("10.96.0.2", TCP, 80);
        let one = destination("10.1.0.1", 80);
        let two = destination("10.1.0.2", 80);
        let unknown = |key| Server {
            scheduler: "nosuch".to_owned(),
            ..server(key)
        };
        let negative = Destination {
            weight: u32::MAX,
            ..two
        };
        let changes = [
            Change::AddServer(server(here)),
            Change::AddServer(server(here)),
            Change::AddServer(unknown(gone)),
            Change::SetServer(unknown(here)),
            Change::SetServer(server(gone)),
            Change::DeleteServer(gone),
            Change::AddDestination(here, one),
            Change::AddDestination(here, one),
            Change::AddDestination(gone, one),
            Change::SetDestination(here, two),
            Change::SetDestination(gone, one),
            Change::DeleteDestination(here, two),
            Change::DeleteDestination(gone, one),
            Change::AddDestination(here, negative),
            Change::AddDestination(here, destination("fd00::1", 80)),
            Change::AddDestination(here, two),
        ];
        assert_eq!(
            faults(ipvs, &changes),
            [
                (1, Reason::Exists),
                (2, Reason::NoScheduler),
                (3, Reason::NoScheduler),
                (4, Reason::NoServer),
                (5, Reason::NoServer),
                (7, Reason::Exists),
                (8, Reason::NoServer),
                (9, Reason::NoDestination),
                (10, Reason::NoServer),
                (11, Reason::NoDestination),
                (12, Reason::NoServer),
                (13, Reason::Other),
                (14, Reason::Other),
            ]
        );
        assert_eq!(servers(ipvs), [server(here)]);
        assert_eq!(destinations(ipvs, &here), [one, two]);
    });
}

#[test]
fn changes_by_the_thousand_are_made_in_order() {
    with_ipvs(|ipvs| {
        let keys: Vec<_> = (0..2000_u16)
            .map(|n| key("10.96.0.1", TCP, 1000 + n))
            .collect();
        let [one, two] = ["10.1.0.1", "10.1.0.2"].map(|address| destination(address, 80));
        let each = keys.iter().flat_map(|key| {
            [
                Change::AddServer(server(*key)),
                Change::AddDestination(*key, one),
                Change::AddDestination(*key, two),
                Change::DeleteDestination(*key, one),
            ]
        });
        commit(ipvs, &each.collect::<Vec<_>>());
        let expected: Vec<_> = keys.iter().copied().map(server).collect();
        assert_eq!(servers(ipvs), expected);
        for key in [keys[0], keys[1999]] {
            assert_eq!(destinations(ipvs, &key), [two]);
        }
        assert_eq!(ipvs.server_stats().unwrap().len(), keys.len());
    });
}

#[test]
fn ipvs_069_services_by_firewall_mark_are_told_from_others() {
    with_ipvs(|ipvs| {
        run("ipvsadm", &["-A", "-f", "5", "-s", "rr"]);
        run("ipvsadm", &["-A", "-f", "7", "-6", "-s", "rr"]);
        let ours = server(key("10.96.0.1", TCP, 80));
        commit(ipvs, &[Change::AddServer(ours.clone())]);
        let mut listed = ipvs.servers().unwrap();
        listed.sort_by_key(|listed| match listed {
            Listed::Mark { mark, .. } => *mark,
            Listed::Server(_) => u32::MAX,
        });
        let mark = |family, mark| Listed::Mark { family, mark };
        assert_eq!(
            listed,
            [
                mark(ferrule_kernel::Family::V4, 5),
                mark(ferrule_kernel::Family::V6, 7),
                Listed::Server(ours.clone())
            ]
        );
        let stats = ipvs.server_stats().unwrap();
        assert_eq!(stats, [(ours.key, Stats::default())]);
    });
}

#[test]
fn ipvs_009_only_timeouts_that_are_given_change() {
    with_ipvs(|ipvs| {
        let defaults = Timeouts {
            tcp: 900,
            tcp_fin: 120,
            udp: 300,
        };
        assert_eq!(ipvs.timeouts().unwrap(), defaults);
        let only_tcp = Timeouts {
            tcp: 100,
            ..Timeouts::default()
        };
        ipvs.set_timeouts(&only_tcp).unwrap();
        let tcp = 100;
        assert_eq!(ipvs.timeouts().unwrap(), Timeouts { tcp, ..defaults });
        let too_long = Timeouts {
            udp: u32::MAX,
            ..Timeouts::default()
        };
        let error = ipvs.set_timeouts(&too_long).unwrap_err();
        assert!(matches!(error, RequestError::Refused { .. }), "{error:?}");
        let Info {
            version,
            table_size,
        } = ipvs.info().unwrap();
        assert_eq!(version, 0x1_02_01);
        assert!(table_size.is_power_of_two(), "{table_size}");
    });
}

#[test]
fn ipvs_021_a_dummy_interface_holds_addresses_while_it_is_down() {
    in_namespace(|| {
        let mut route = Route::open().unwrap();
        assert!(route.create_dummy("kube-ipvs0").unwrap());
        assert!(!route.create_dummy("kube-ipvs0").unwrap());
        let links = route.links().unwrap();
        let link = links.iter().find(|link| link.name == "kube-ipvs0").unwrap();
        assert_eq!(link.kind.as_deref(), Some("dummy"));
        let addresses = ["10.96.0.1", "fd00:96::1"].map(|text| text.parse().unwrap());
        assert!(
            route
                .add_addresses(link.index, &addresses)
                .unwrap()
                .is_empty()
        );
        let printed = run("ip", &["address", "show", "kube-ipvs0"]);
        for part in [
            "state DOWN",
            "inet 10.96.0.1/32 scope global kube-ipvs0",
            "inet6 fd00:96::1/128 scope global",
        ] {
            assert!(printed.contains(part), "{part} in\n{printed}");
        }
        for part in ["qlen", "tentative"] {
            assert!(!printed.contains(part), "{part} in\n{printed}");
        }
        // They are this machine's: that is what they are for.
        for address in addresses {
            let route = run("ip", &["route", "get", &address.to_string()]);
            assert!(route.starts_with("local "), "{route}");
        }
        assert!(
            route
                .delete_addresses(link.index, &addresses)
                .unwrap()
                .is_empty()
        );
        let index = link.index;
        assert!(route.addresses().unwrap().iter().all(|a| a.link != index));
    });
}
