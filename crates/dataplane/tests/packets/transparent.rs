//! Mode userspace in which pods of this node see their clients' own addresses.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_testbed::Side::{Node, Out, Pod};
use ferrule_testbed::cluster::{Objects, ep};
use ferrule_testbed::{
    Answer, EXTERNAL, KINDS, Kind, Place, Protocol, address, connect_from, run, start_pod,
};

use crate::modes::USERSPACE_TRANSPARENT;
use crate::scene::Scene;
use crate::table::assert_answers;
use crate::world::{World, only_by};

fn scene(world: &World, endpoints: &[u8]) -> Scene {
    let mut scene = world.scene(world.by_pod_net());
    for number in [1, 2] {
        let name = format!("svc{number}");
        scene
            .service(world.full(&name, number))
            .slice(world.pods(&name, endpoints));
    }
    scene.whole();
    scene
}

/// What `ip` prints about rules and routes of the node, but for what it reads from the cache.
fn routing(world: &World) -> String {
    let family = match world.family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    };
    world.node.run(move || {
        run("ip", &[family, "rule"]) + &run("ip", &[family, "route", "show", "table", "all"])
    })
}

/// A client outside with this port. It resets its connection in the end.
fn client(world: &World, port: u16, to: (IpAddr, u16)) -> TcpStream {
    let (from, to) = (SocketAddr::new(world.out_ip(), port), SocketAddr::from(to));
    let stream = world.out.run(move || connect_from(from, to).unwrap());
    let timeout = Some(Duration::from_secs(8));
    stream.set_read_timeout(timeout).unwrap();
    stream
}

/// What a pod says first: its number and whom it sees.
fn greeting(stream: &mut TcpStream) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while byte != *b"\n" {
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

fn served(by: u8, seen: IpAddr) -> Answer {
    Answer::Served { by, seen }
}

fn assert_seen(world: &World, place: &Place, kinds: &[Kind], seen: &[Answer]) {
    for kind in kinds {
        let ask = world.ask(Protocol::Tcp, *kind, 1);
        assert_answers(place, ask, &seen.iter().copied().collect());
    }
}

#[test]
fn usp_071_pods_of_this_node_see_their_clients_and_others_see_the_node() {
    only_by(USERSPACE_TRANSPARENT, |world| {
        let _scene = scene(world, &[1, 2]);
        let far = served(2, world.masqueraded(2));
        for (side, kinds) in [(Pod, &KINDS[..]), (Out, &EXTERNAL)] {
            let seen = [served(1, world.own(side)), far];
            assert_seen(world, world.side(side), kinds, &seen);
        }
        // The node's own clients have one of its addresses anyway.
        let seen = [served(1, world.masqueraded(1)), far];
        assert_seen(world, world.side(Node), &KINDS, &seen);
        // Datagrams have the node's.
        let ask = world.ask(Protocol::Udp, Kind::ClusterIp, 1);
        assert_answers(&world.out, ask, &seen.into());
    });
}

#[test]
fn usp_071_a_pod_that_reaches_itself_sees_the_node() {
    only_by(USERSPACE_TRANSPARENT, |world| {
        let _scene = scene(world, &[1]);
        assert_seen(
            world,
            &world.here,
            &KINDS,
            &[served(1, world.masqueraded(1))],
        );
    });
}

#[test]
fn usp_071_clients_beside_the_endpoint_are_answered_through_the_node() {
    only_by(USERSPACE_TRANSPARENT, |world| {
        let mut scene = world.scene(world.by_pod_net());
        // An endpoint beside the client outside, which would answer it directly.
        let beside = address(world.family, 3, 2);
        start_pod(&world.out, 3, world.family);
        let service = world.full("svc1", 1);
        let endpoint = ep(&beside.to_string()).local();
        scene.serving(&service, 8080, &[endpoint]);
        scene.whole();
        let node = world.node_ip();
        assert_seen(world, &world.out, &EXTERNAL, &[served(3, node)]);
        assert_seen(world, &world.pod, &EXTERNAL, &[served(3, world.pod_ip())]);
    });
}

#[test]
fn usp_071_a_client_has_its_own_port_and_another_one_only_if_that_is_taken() {
    only_by(USERSPACE_TRANSPARENT, |world| {
        let _scene = scene(world, &[1]);
        let targets = [1, 2].map(|number| world.target(Kind::ClusterIp, number));
        let mut streams = targets.map(|to| client(world, 2345, to));
        for stream in &mut streams {
            assert_eq!(greeting(stream), format!("1 {}", world.out_ip()));
        }
        // Brackets keep the end of an address of IPv6 from being read as a port.
        let pod = SocketAddr::new(world.here_ip(), 8080).to_string();
        let seen = world.node.run(move || run("ss", &["-Htn", "dst", &pod]));
        let own = SocketAddr::new(world.out_ip(), 2345).to_string();
        assert_eq!(seen.matches(&own).count(), 1, "{seen}");
        let any = own.trim_end_matches("2345");
        assert_eq!(seen.matches(any).count(), 2, "{seen}");
    });
}

#[test]
fn usp_071_bytes_ends_and_resets_pass_as_they_do_with_the_nodes_address() {
    only_by(USERSPACE_TRANSPARENT, |world| {
        let _scene = scene(world, &[1]);
        let to = world.target(Kind::LoadBalancerIp, 1);
        let mut stream = client(world, 0, to);
        greeting(&mut stream);
        let sent: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut writer = stream.try_clone().unwrap();
        let received = std::thread::scope(|scope| {
            scope.spawn(|| {
                writer.write_all(&sent).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received
        });
        assert!(received == sent, "{} bytes", received.len());
        // The pod has no connection of a client that reset its own.
        drop(stream);
        drop(client(world, 0, to));
        let mut left = String::new();
        for _ in 0..1000 {
            let list = || run("ss", &["-Htn", "state", "established"]);
            left = world.here.run(list);
            if left.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{left}");
    });
}

#[test]
fn usp_071_rules_that_bring_answers_come_back_and_leave_with_the_mode() {
    only_by(USERSPACE_TRANSPARENT, |world| {
        let before = routing(world);
        let mut here = scene(world, &[1]);
        let with = routing(world);
        assert!(with.contains("fwmark 0x1050 lookup 4176"), "{with}");
        assert_eq!(here.whole(), 0);
        let family = world.family;
        world.node.run(move || {
            let family = if family == Family::V4 { "-4" } else { "-6" };
            run("ip", &[family, "rule", "del", "fwmark", "0x1050"]);
            run("ip", &[family, "route", "flush", "table", "4176"]);
        });
        assert_eq!(routing(world), before);
        assert_eq!(here.whole(), 2);
        assert_eq!(routing(world), with);
        assert_seen(world, &world.out, &EXTERNAL, &[served(1, world.out_ip())]);
        here.end();
        assert_eq!(routing(world), before);
        // One that crashes leaves them to whoever cleans up.
        let mut again = scene(world, &[1]);
        again.crash();
        assert_eq!(routing(world), with);
        let remove = move || ferrule_dataplane::userspace::remove(family).unwrap();
        assert!(world.node.run(remove) > 0);
        assert_eq!(routing(world), before);
        assert_eq!(world.node.run(remove), 0);
    });
}
