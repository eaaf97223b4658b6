//! Clients that stay with their endpoint: on every address, over every protocol.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ferrule_core::model::{Family, Service};
use ferrule_kernel::nft::{Snapshot, Value};
use ferrule_testbed::{Answer, Ask, Lab, Place, Protocol};

use crate::matrix::*;
use crate::support::*;

fn sticky(family: Family, seconds: u32) -> Service {
    with_affinity(full(family, "all", 1), seconds)
}

fn scene(lab: &Lab, seconds: u32, endpoints: &[u8]) -> Scene {
    let mut scene = Scene::at(lab, by_pod_net(lab));
    let family = scene.family;
    scene
        .service(sticky(family, seconds))
        .slice(pods(lab, "all", endpoints));
    scene.whole();
    scene
}

fn served_by(ask: Ask, place: &Place) -> u8 {
    match ask.put(place) {
        Answer::Served { by, .. } => by,
        other => panic!("{ask:?}: {other:?}"),
    }
}

/// Who serves a client of this address and protocol, on every kind of address.
fn server(lab: &Lab, protocol: Protocol, client: IpAddr) -> u8 {
    let mut servers = BTreeSet::new();
    for kind in KINDS {
        let ask = ask(lab, protocol, kind, 1).from(client);
        servers.extend((0..3).map(|_| served_by(ask, &lab.out)));
    }
    assert_eq!(servers.len(), 1, "{protocol:?}: {servers:?}");
    servers.pop_first().unwrap()
}

fn servers(lab: &Lab) -> Vec<u8> {
    let clients = [1, 2].map(|y| ferrule_testbed::address(lab.family, 3, y));
    let each = |client| Protocol::ALL.map(|protocol| server(lab, protocol, client));
    clients.into_iter().flat_map(each).collect()
}

/// Who stays with this pod, and how long they were to stay and still do.
fn clients(snapshot: &Snapshot, protocol: &str, pod: IpAddr) -> Option<Vec<Stay>> {
    let pod = pod.to_string().replace(':', ".");
    let name = format!("ferrule-affinity-demo.all.{protocol}.{protocol}-{pod}.8080");
    let elements = snapshot.elements.get(&*name)?;
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
    Lab::both(|lab| {
        let scene = scene(lab, 600, &[1, 2]);
        let by = server(lab, Protocol::Udp, lab.out_ip());
        let snapshot = scene.snapshot();
        let pods = [lab.here_ip(), lab.far_ip()];
        for (number, pod) in (1..).zip(pods) {
            let held = clients(&snapshot, "udp", pod).unwrap();
            let held: Vec<_> = held.iter().map(|s| (s.client, s.asked.as_secs())).collect();
            let remembered = [(Value::from(lab.out_ip()), 600)];
            assert_eq!(held, if by == number { &remembered[..] } else { &[] });
            assert_eq!(clients(&snapshot, "tcp", pod), Some(Vec::new()));
        }
    });
}

#[test]
fn nft_045_clients_stay_when_endpoints_come_and_others_go() {
    Lab::both(|lab| {
        let mut scene = scene(lab, 600, &[1]);
        assert_eq!(servers(lab), [1; 6]);
        scene.slice(pods(lab, "all", &[1, 2])).step();
        assert_eq!(servers(lab), [1; 6]);
        scene.restart();
        assert_eq!(scene.whole(), 0);
        assert_eq!(servers(lab), [1; 6]);
        scene.slice(pods(lab, "all", &[1])).step();
        assert_eq!(servers(lab), [1; 6]);
    });
}

#[test]
fn nft_046_clients_of_an_endpoint_that_went_are_forgotten() {
    Lab::both(|lab| {
        let mut scene = scene(lab, 600, &[1]);
        assert_eq!(servers(lab), [1; 6]);
        scene.slice(pods(lab, "all", &[2])).step();
        assert_eq!(clients(&scene.snapshot(), "tcp", lab.here_ip()), None);
        assert_eq!(servers(lab), [2; 6]);
        // It comes back, and nobody remembers.
        scene.slice(pods(lab, "all", &[1, 2])).step();
        let back = clients(&scene.snapshot(), "tcp", lab.here_ip());
        assert_eq!(back, Some(Vec::new()));
        assert_eq!(servers(lab), [2; 6]);
    });
}

#[test]
fn nft_047_without_affinity_nobody_stays_and_nothing_is_left() {
    Lab::both(|lab| {
        let mut scene = scene(lab, 600, &[1, 2]);
        servers(lab);
        let family = scene.family;
        scene.service(full(family, "all", 1)).step();
        let sets = scene.snapshot().sets;
        let mut names = sets.iter().map(|held| &held.object.name);
        assert!(names.all(|name| !name.starts_with("ferrule-affinity-")));
        let ask = ask(lab, Protocol::Udp, Kind::ClusterIp, 1);
        let both: BTreeSet<_> = (0..60).map(|_| served_by(ask, &lab.out)).collect();
        assert_eq!(both.len(), 2);
        // The chains go with the next change.
        scene.service(service(family, "other", 9)).step();
        let chains = scene.snapshot().chains;
        let mut names = chains.iter().map(|held| &held.object.name);
        assert!(names.all(|name| !name.starts_with("stay-")));
    });
}

#[test]
fn nft_048_another_time_counts_from_the_next_connection_on() {
    Lab::both(|lab| {
        let mut scene = scene(lab, 600, &[1]);
        let stay = |scene: &Scene| {
            let mut held = clients(&scene.snapshot(), "tcp", lab.here_ip()).unwrap();
            assert_eq!(held.len(), 1);
            held.remove(0)
        };
        let ask = ask(lab, Protocol::Tcp, Kind::ClusterIp, 1);
        served_by(ask, &lab.out);
        assert_eq!(stay(&scene).asked.as_secs(), 600);
        let family = scene.family;
        scene.service(sticky(family, 9000)).step();
        assert!(
            stay(&scene).left.as_secs() <= 600,
            "the client is not forgotten"
        );
        served_by(ask, &lab.out);
        assert!(stay(&scene).left.as_secs() > 600);
        // Those who come from now on have the new time altogether.
        served_by(
            ask.from(ferrule_testbed::address(lab.family, 3, 2)),
            &lab.out,
        );
        let held = clients(&scene.snapshot(), "tcp", lab.here_ip()).unwrap();
        assert!(held.iter().any(|stay| stay.asked.as_secs() == 9000));
    });
}

#[test]
fn affinity_is_that_of_a_service_port_and_of_a_client() {
    Lab::both(|lab| {
        let _scene = scene(lab, 600, &[1, 2]);
        // Each of these draws once. That all six, tried anew in ten clusters, were the same is out
        // of the question; in one cluster it happens, so only what was drawn must stay.
        let drawn = servers(lab);
        assert_eq!(servers(lab), drawn);
        let pod = ask(lab, Protocol::Tcp, Kind::ClusterIp, 1);
        let first = served_by(pod, &lab.pod);
        assert_eq!(served_by(pod, &lab.pod), first);
    });
}

#[test]
fn clients_in_the_cluster_and_outside_stay_within_what_they_may_use() {
    Lab::both(|lab| {
        let mut scene = Scene::at(lab, by_pod_net(lab));
        let family = scene.family;
        scene
            .service(local(sticky(family, 600)))
            .slice(pods(lab, "all", &[1, 2]));
        scene.whole();
        for protocol in Protocol::ALL {
            for kind in EXTERNAL {
                let ask = ask(lab, protocol, kind, 1);
                let seen = lab.out_ip();
                assert_eq!(ask.put(&lab.out), Answer::Served { by: 1, seen });
                let first = served_by(ask, &lab.pod);
                assert_eq!(served_by(ask, &lab.pod), first);
            }
            let inside = ask(lab, protocol, Kind::ClusterIp, 1);
            assert_eq!(served_by(inside, &lab.pod), 1);
        }
    });
}
