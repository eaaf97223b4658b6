//! Clients that stay with their endpoint: on every address, over every protocol.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use ferrule_core::model::Service;
use ferrule_kernel::nft::{Snapshot, Value};
use ferrule_testbed::Side::Out;
use ferrule_testbed::cluster::Objects;
use ferrule_testbed::{Answer, Ask, EXTERNAL, KINDS, Kind, Place, Protocol, address, local};

use crate::modes::{IPVS, Knobs, NFTABLES, USERSPACE};
use crate::scene::{Scene, service};
use crate::table::{Served, Source};
use crate::world::{World, everywhere, everywhere_but, only_like};

fn sticky(world: &World, seconds: u32) -> Service {
    world.full("all", 1).affinity(seconds)
}

fn scene(world: &World, seconds: u32, endpoints: &[u8]) -> Scene {
    let mut scene = world.scene(world.by_pod_net());
    scene
        .service(sticky(world, seconds))
        .slice(world.pods("all", endpoints));
    scene.whole();
    scene
}

fn served_by(ask: Ask, place: &Place) -> u8 {
    match ask.put(place) {
        Answer::Served { by, .. } => by,
        other => panic!("{ask:?}: {other:?}"),
    }
}

/// Who serves a client of this address and protocol, on every kind of address. In mode ipvs each
/// address remembers its own clients (row NFT-043), so only one of them is asked.
fn server(world: &World, protocol: Protocol, client: IpAddr) -> u8 {
    let mut servers = BTreeSet::new();
    let kinds = if world.mode.like == IPVS {
        &KINDS[..1]
    } else {
        &KINDS
    };
    for kind in kinds {
        let ask = world.ask(protocol, *kind, 1).from(client);
        servers.extend((0..3).map(|_| served_by(ask, &world.out)));
    }
    assert_eq!(servers.len(), 1, "{protocol:?}: {servers:?}");
    servers.pop_first().unwrap()
}

fn servers(world: &World) -> Vec<u8> {
    let clients = [1, 2].map(|y| address(world.family, 3, y));
    let protocols = world.protocols().iter();
    let each = |client| {
        protocols
            .clone()
            .map(move |protocol| server(world, *protocol, client))
    };
    clients.into_iter().flat_map(each).collect()
}

/// Every client is served by this pod.
fn assert_all(world: &World, by: u8) {
    let servers = servers(world);
    assert!(servers.iter().all(|server| *server == by), "{servers:?}");
}

/// Who stays with this pod in mode nftables, and how long they were to stay and still do.
fn clients(table: &Snapshot, protocol: &str, pod: IpAddr) -> Option<Vec<Stay>> {
    let pod = pod.to_string().replace(':', ".");
    let name = format!("ferrule-affinity-demo.all.{protocol}.{protocol}-{pod}.8080");
    let elements = table.elements.get(&*name)?;
    let stays = elements.iter().map(|element| Stay {
        client: element.key,
        asked: element.timeout.unwrap(),
        left: element.expires.unwrap(),
    });
    Some(stays.collect())
}

#[derive(Debug, PartialEq, Eq)]
struct Stay {
    client: Value,
    asked: Duration,
    left: Duration,
}

#[test]
fn nft_043_the_client_is_remembered_with_its_endpoint_on_every_address() {
    everywhere(|world| {
        let scene = scene(world, 600, &[1, 2]);
        let by = server(world, Protocol::Udp, world.out_ip());
        let Some(table) = scene.table() else { return };
        for (number, pod) in [(1, world.here_ip()), (2, world.far_ip())] {
            let held = clients(&table, "udp", pod).unwrap();
            let held: Vec<_> = held.iter().map(|s| (s.client, s.asked.as_secs())).collect();
            let remembered = [(Value::from(world.out_ip()), 600)];
            assert_eq!(held, if by == number { &remembered[..] } else { &[] });
            assert_eq!(clients(&table, "tcp", pod), Some(Vec::new()));
        }
    });
}

#[test]
fn nft_045_clients_stay_when_endpoints_come_and_others_go() {
    let because = "the process remembers clients, and a restart forgets them";
    everywhere_but(USERSPACE, because, |world| {
        let mut scene = scene(world, 600, &[1]);
        assert_all(world, 1);
        scene.slice(world.pods("all", &[1, 2])).step();
        assert_all(world, 1);
        scene.restart();
        assert_eq!(scene.whole(), 0);
        assert_all(world, 1);
        scene.slice(world.pods("all", &[1])).step();
        assert_all(world, 1);
    });
}

#[test]
fn nft_046_clients_of_an_endpoint_that_went_are_forgotten() {
    everywhere(|world| {
        // In mode nftables; elsewhere only packets tell.
        let remembered = |scene: &Scene| {
            let table = scene.table()?;
            Some(clients(&table, "tcp", world.here_ip()))
        };
        let mut scene = scene(world, 600, &[1]);
        assert_all(world, 1);
        scene.slice(world.pods("all", &[2])).step();
        assert_eq!(remembered(&scene).flatten(), None);
        assert_all(world, 2);
        // It comes back, and nobody remembers.
        scene.slice(world.pods("all", &[1, 2])).step();
        if let Some(back) = remembered(&scene) {
            assert_eq!(back, Some(Vec::new()));
        }
        assert_all(world, 2);
    });
}

#[test]
fn nft_047_without_affinity_nobody_stays_and_nothing_is_left() {
    everywhere(|world| {
        let mut scene = scene(world, 600, &[1, 2]);
        servers(world);
        scene.service(world.full("all", 1)).step();
        if let Some(table) = scene.table() {
            let mut names = table.sets.iter().map(|held| &held.object.name);
            assert!(names.all(|name| !name.starts_with("ferrule-affinity-")));
        }
        let ask = world.ask(Protocol::Udp, Kind::ClusterIp, 1);
        let both: BTreeSet<_> = (0..60).map(|_| served_by(ask, &world.out)).collect();
        assert_eq!(both.len(), 2);
        // The chains go with the next change.
        scene.service(service(world.family, "other", 9)).step();
        if let Some(table) = scene.table() {
            let mut names = table.chains.iter().map(|held| &held.object.name);
            assert!(names.all(|name| !name.starts_with("stay-")));
        }
    });
}

#[test]
fn nft_048_another_time_counts_from_the_next_connection_on() {
    let because = "the kernel tells the time of a client only where a set keeps it";
    only_like(NFTABLES, because, |world| {
        let mut scene = scene(world, 600, &[1]);
        let held = |scene: &Scene| {
            let table = scene.table().unwrap();
            clients(&table, "tcp", world.here_ip()).unwrap()
        };
        let stay = |scene: &Scene| {
            let mut held = held(scene);
            assert_eq!(held.len(), 1);
            held.remove(0)
        };
        let ask = world.ask(Protocol::Tcp, Kind::ClusterIp, 1);
        served_by(ask, &world.out);
        assert_eq!(stay(&scene).asked.as_secs(), 600);
        scene.service(sticky(world, 9000)).step();
        let left = stay(&scene).left.as_secs();
        assert!(left <= 600, "the client is not forgotten");
        served_by(ask, &world.out);
        assert!(stay(&scene).left.as_secs() > 600);
        // Those who come from now on have the new time altogether.
        served_by(ask.from(address(world.family, 3, 2)), &world.out);
        assert!(held(&scene).iter().any(|stay| stay.asked.as_secs() == 9000));
    });
}

#[test]
fn affinity_is_that_of_a_service_port_and_of_a_client() {
    everywhere(|world| {
        let _scene = scene(world, 600, &[1, 2]);
        // Each of these draws once. That all six, tried anew in ten clusters, were the same is out
        // of the question; in one cluster it happens, so only what was drawn must stay.
        let drawn = servers(world);
        assert_eq!(servers(world), drawn);
        let pod = world.ask(Protocol::Tcp, Kind::ClusterIp, 1);
        let first = served_by(pod, &world.pod);
        assert_eq!(served_by(pod, &world.pod), first);
    });
}

#[test]
fn clients_in_the_cluster_and_outside_stay_within_what_they_may_use() {
    everywhere(|world| {
        let mut scene = world.scene(world.by_pod_net());
        scene
            .service(local(sticky(world, 600)))
            .slice(world.pods("all", &[1, 2]));
        scene.whole();
        world.expect(1, &[(&[Out], &EXTERNAL, Served(&[1], Source::Client))]);
        for ask in world.asks(&EXTERNAL, 1) {
            let first = served_by(ask, &world.pod);
            assert_eq!(served_by(ask, &world.pod), first);
        }
        for inside in world.asks(&[Kind::ClusterIp], 1) {
            assert_eq!(served_by(inside, &world.pod), 1);
        }
    });
}

/// Pods with affinity that remember so few clients, and clients that were not heard of yet.
fn forgetful(world: &World, size: u32, endpoints: &[u8], clients: u8) -> (Scene, Vec<IpAddr>) {
    let mut scene = world.scene(world.by_pod_net());
    scene.turn(Knobs {
        affinity_size: NonZeroU32::new(size).unwrap(),
        ..Knobs::default()
    });
    scene
        .service(sticky(world, 600))
        .slice(world.pods("all", endpoints));
    scene.step();
    let clients = (10..10 + clients).map(|y| address(world.family, 3, y));
    let clients: Vec<IpAddr> = clients.collect();
    let bits = if world.out_ip().is_ipv4() { 32 } else { 128 };
    // Only those who name them use them.
    let line = |ip| format!("address add {ip}/{bits} dev eth0 nodad preferred_lft 0\n");
    world.out.ip(&clients.iter().map(line).collect::<String>());
    (scene, clients)
}

fn server_of(world: &World, client: IpAddr) -> u8 {
    let ask = world.ask(Protocol::Udp, Kind::ClusterIp, 1);
    served_by(ask.from(client), &world.out)
}

/// That they are all led to one of two pods by chance is out of the question.
fn assert_balanced(world: &World, clients: &[IpAddr]) {
    let by = clients.iter().map(|client| server_of(world, *client));
    let first = by.filter(|by| *by == 1).count();
    let all = clients.len();
    assert!(
        (all / 10..=all - all / 10).contains(&first),
        "{first} of {all} went to the first pod"
    );
}

const LIMITED: &str = "only there the number of clients is limited";

#[test]
fn new_clients_are_balanced_and_known_ones_stay_when_no_more_can_be_remembered() {
    only_like(NFTABLES, LIMITED, |world| {
        let (scene, all) = forgetful(world, 4, &[1, 2], 80);
        let (early, late) = all.split_at(40);
        for client in early {
            server_of(world, *client);
        }
        let table = scene.table().unwrap();
        for (number, pod) in [(1, world.here_ip()), (2, world.far_ip())] {
            let held = clients(&table, "udp", pod).unwrap();
            let known: Vec<_> = held.iter().map(|stay| stay.client).collect();
            assert_eq!(known.len(), 4, "it is full");
            let stay = early.iter().filter(|ip| known.contains(&Value::from(**ip)));
            for client in stay {
                for _ in 0..3 {
                    assert_eq!(server_of(world, *client), number);
                }
            }
        }
        assert_balanced(world, late);
    });
}

#[test]
fn a_pod_with_room_for_clients_is_not_led_all_of_them() {
    only_like(NFTABLES, LIMITED, |world| {
        let (mut scene, all) = forgetful(world, 20, &[1], 60);
        let (early, late) = all.split_at(20);
        assert!(early.iter().all(|client| server_of(world, *client) == 1));
        // Another pod comes, and remembers nobody yet.
        scene.slice(world.pods("all", &[1, 2])).step();
        assert_balanced(world, late);
        assert!(early.iter().all(|client| server_of(world, *client) == 1));
    });
}
