//! What `verify` finds in IPVS, its sets, its addresses and its rules, and what it does not.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ferrule_core::model::{Family, Service, TrafficPolicy};
use ferrule_dataplane::verify::Kind::{self, Different, Missing, Unexpected};
use ferrule_dataplane::verify::Report;
use ferrule_kernel::ipvs::{Counted, Destination, Server, ServerKey};
use ferrule_testbed::address;
use proptest::strategy::{Strategy, ValueTree as _};
use proptest::test_runner::TestRunner;

use crate::state::everything;
use crate::support::*;

type Servers = BTreeMap<ServerKey, (Server, Vec<Counted>)>;

/// The virtual server of a cluster IP with two destinations.
fn one_with_two(family: Family, servers: &Servers) -> (&ServerKey, &[Counted]) {
    let key = ServerKey {
        protocol: 6,
        address: address(family, 96, 1),
        port: 80,
    };
    let (key, (_, destinations)) = servers.get_key_value(&key).unwrap();
    assert_eq!(destinations.len(), 2);
    (key, destinations)
}

fn assert_right(scene: &mut Scene, when: &str) {
    assert_eq!(scene.verify(), Report::default(), "{when}");
}

#[test]
fn every_kind_of_damage_is_found_and_named() {
    everywhere(|lab| {
        let mut scene = Scene::new(lab);
        everything(lab, &mut scene);
        scene.whole();
        assert_right(&mut scene, "before");
        let servers = scene.servers();
        let (key, _) = one_with_two(lab.family, &servers);
        let (set, table, prefix) = match lab.family {
            Family::V4 => ("KUBE-CLUSTER-IP", "iptables", 32),
            Family::V6 => ("KUBE-6-CLUSTER-IP", "ip6tables", 128),
        };
        let entry = format!("{},tcp:{}", key.address, key.port);
        let stranger = match lab.family {
            Family::V4 => "198.51.100.99",
            Family::V6 => "2001:db8:99::1",
        };
        let damages: Vec<(&'static str, String, Kind, String)> = vec![
            (
                "ipset",
                format!("del {set} {entry}"),
                Missing,
                format!("ipset add {set} {entry}"),
            ),
            (
                "ipset",
                format!("add {set} {stranger},tcp:1"),
                Unexpected,
                format!("ipset add {set} {stranger},tcp:1"),
            ),
            (
                "ip",
                format!("addr del {}/{prefix} dev kube-ipvs0", key.address),
                Missing,
                format!("ip addr add {}/{prefix} dev kube-ipvs0", key.address),
            ),
            (
                "ip",
                format!("addr add {stranger}/{prefix} dev kube-ipvs0"),
                Unexpected,
                format!("ip addr add {stranger}/{prefix} dev kube-ipvs0"),
            ),
            (
                "ip",
                "link del kube-ipvs0".to_owned(),
                Missing,
                "ip link add kube-ipvs0 type dummy".to_owned(),
            ),
            (
                table,
                "-t nat -F KUBE-SERVICES".to_owned(),
                Missing,
                format!("{table} -t nat -A KUBE-SERVICES "),
            ),
            (
                table,
                "-t nat -D PREROUTING 1".to_owned(),
                Missing,
                format!("{table} -t nat -A PREROUTING "),
            ),
            (
                table,
                "-t nat -N KUBE-SVC-AAAAAAAAAAAAAAAA".to_owned(),
                Unexpected,
                format!("{table} -t nat -N KUBE-SVC-AAAAAAAAAAAAAAAA"),
            ),
        ];
        for (program, arguments, kind, object) in damages {
            scene.run(program, &arguments);
            let report = scene.verify();
            let mut all = report.discrepancies.iter();
            let found = all.any(|one| one.kind == kind && one.object.starts_with(&object));
            assert!(
                found,
                "{program} {arguments}: {object} is not in {report:#?}"
            );
            scene.whole();
            assert_right(&mut scene, &arguments);
        }
    });
}

#[test]
fn damage_to_virtual_servers_is_found_and_named() {
    everywhere(|lab| {
        let mut scene = Scene::new(lab);
        everything(lab, &mut scene);
        scene.whole();
        let servers = scene.servers();
        let (key, destinations) = one_with_two(lab.family, &servers);
        let server = SocketAddr::new(key.address, key.port);
        let first = destinations[0].destination;
        let to = SocketAddr::new(first.address, first.port);
        // There may be no ipvsadm, so the kernel is asked directly.
        let damages: Vec<(Change, Kind, String)> = vec![
            (
                Change::DeleteDestination(*key, first),
                Missing,
                format!("ipvsadm -a -t {server} -r {to} -m -w 1"),
            ),
            (
                Change::SetDestination(*key, with_weight(first, 0)),
                Different,
                format!("ipvsadm -a -t {server} -r {to} -m -w 1"),
            ),
            (
                Change::AddDestination(*key, elsewhere(first)),
                Unexpected,
                format!("ipvsadm -a -t {server} -r "),
            ),
            (
                Change::DeleteServer(*key),
                Missing,
                format!("ipvsadm -A -t {server} -s rr"),
            ),
            (
                Change::AddServer(another(&servers[key].0)),
                Unexpected,
                "ipvsadm -A -t ".to_owned(),
            ),
            (
                Change::SetServer(with_timeout(&servers[key].0)),
                Different,
                format!("ipvsadm -A -t {server} -s rr"),
            ),
        ];
        for (change, kind, object) in damages {
            let text = format!("{change:?}");
            scene.change(change);
            let report = scene.verify();
            let mut all = report.discrepancies.iter();
            let found = all.any(|one| one.kind == kind && one.object.starts_with(&object));
            assert!(found, "{text}: {object} is not in {report:#?}");
            scene.whole();
            assert_right(&mut scene, &text);
        }
    });
}

fn with_weight(destination: Destination, weight: u32) -> Destination {
    Destination {
        weight,
        ..destination
    }
}

fn elsewhere(destination: Destination) -> Destination {
    Destination {
        port: destination.port + 1,
        ..destination
    }
}

fn another(server: &Server) -> Server {
    let mut another = server.clone();
    another.key.port += 1000;
    another
}

fn with_timeout(server: &Server) -> Server {
    Server {
        flags: server.flags | Server::PERSISTENT,
        timeout: 77,
        ..server.clone()
    }
}

/// Something that happens to one of a few Services.
#[derive(Clone, Debug)]
enum Happening {
    Service {
        number: u8,
        exposed: u8,
        local: bool,
        affinity: Option<u32>,
    },
    Endpoints(u8, Vec<u8>),
    Gone(u8),
}

fn happenings() -> impl Strategy<Value = Happening> {
    use proptest::prelude::*;
    let number = || 1..4_u8;
    let shape = (
        0..4_u8,
        any::<bool>(),
        proptest::option::weighted(0.3, 1..3_u32),
    );
    let pods = proptest::collection::btree_set(1..3_u8, 0..3);
    prop_oneof![
        4 => (number(), shape).prop_map(|(number, (exposed, local, affinity))| {
            Happening::Service { number, exposed, local, affinity }
        }),
        6 => (number(), pods).prop_map(|(number, pods)| {
            Happening::Endpoints(number, pods.into_iter().collect())
        }),
        1 => number().prop_map(Happening::Gone),
    ]
}

fn happen(lab: &Lab, scene: &mut Scene, happening: &Happening) {
    let name = |number: &u8| format!("s{number}");
    match happening {
        Happening::Service {
            number,
            exposed,
            local,
            affinity,
        } => {
            let mut service: Service = lab.full(&name(number), *number);
            if *local {
                service.external_policy_field = TrafficPolicy::Local;
                service.internal_policy = TrafficPolicy::Local;
            }
            if exposed & 1 == 0 {
                service.load_balancer_ips = [].into();
            }
            if exposed & 2 == 0 {
                service.external_ips = [].into();
            }
            if let Some(minutes) = affinity {
                service = service.affinity(minutes * 60);
            }
            scene.service(service);
        }
        Happening::Endpoints(number, pods) => {
            scene.slice(lab.pods(&name(number), pods));
        }
        Happening::Gone(number) => {
            scene.no_service(&name(number));
        }
    }
}

#[test]
fn nothing_is_found_after_five_hundred_random_changes_of_each_family() {
    everywhere(|lab| {
        let mut scene = Scene::new(lab);
        scene.whole();
        let mut runner = TestRunner::deterministic();
        let all = happenings();
        for number in 1..=500 {
            let happening = all.new_tree(&mut runner).unwrap().current();
            happen(lab, &mut scene, &happening);
            scene.step();
            if number % 50 == 0 {
                assert_right(&mut scene, &format!("after change {number}"));
            }
        }
    });
}
