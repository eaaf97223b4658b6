//! Load balancer addresses that not everybody may use.

use std::net::IpAddr;

use ferrule_core::model::Service;
use ferrule_testbed::Side::{Node, Out};
use ferrule_testbed::cluster::Objects;
use ferrule_testbed::{Answer, KINDS, Kind, address, net};

use crate::modes::IPTABLES;
use crate::scene::Scene;
use crate::spy::Spy;
use crate::table::{Dropped, Served, Source, assert_unanswered};
use crate::world::{World, everywhere};

/// The client's first address with nothing beside it.
fn client(world: &World) -> String {
    let bits = if world.out_ip().is_ipv4() { 32 } else { 128 };
    format!("{}/{bits}", world.out_ip())
}

/// The client's other address.
fn stranger(world: &World) -> IpAddr {
    address(world.family, 3, 2)
}

fn guarded(world: &World, ranges: &[&str]) -> Service {
    world.full("all", 1).source_ranges(ranges)
}

fn scene(world: &World, ranges: &[&str], endpoints: &[u8]) -> Scene {
    let mut scene = world.scene(world.by_pod_net());
    scene
        .service(guarded(world, ranges))
        .slice(world.pods("all", endpoints));
    scene.whole();
    scene
}

fn all_served(world: &World, from: IpAddr, kinds: &[Kind]) {
    let seen = world.masqueraded(1);
    for ask in world.asks(kinds, 1) {
        let answer = ask.from(from).put(&world.out);
        assert_eq!(answer, Answer::Served { by: 1, seen }, "{ask:?}");
    }
}

fn all_dropped(world: &World, from: IpAddr, kinds: &[Kind]) {
    let asks = world.asks(kinds, 1).into_iter();
    let asks: Vec<_> = asks.map(|ask| (&world.out, ask.from(from))).collect();
    assert_unanswered(&asks);
}

const VIP: [Kind; 1] = [Kind::LoadBalancerIp];
const OTHERS: [Kind; 3] = [Kind::ClusterIp, Kind::ExternalIp, Kind::NodePort];

#[test]
fn nft_034_ranges_guard_load_balancer_addresses_only_and_without_endpoints_too() {
    everywhere(|world| {
        let mut scene = scene(world, &[&client(world)], &[1]);
        all_served(world, world.out_ip(), &KINDS);
        all_dropped(world, stranger(world), &VIP);
        all_served(world, stranger(world), &OTHERS);
        // Without endpoints those who may are refused, the others still hear nothing. In mode
        // iptables, as in kube-proxy, there is no firewall then and everybody is refused.
        scene.slice(world.pods("all", &[])).step();
        for ask in world.asks(&VIP, 1) {
            let answer = ask.from(world.out_ip()).put(&world.out);
            assert_eq!(answer, Answer::Refused, "{ask:?}");
        }
        if scene.is_like(IPTABLES) {
            let asks = world.asks(&VIP, 1).into_iter();
            let asks: Vec<_> = asks.map(|ask| ask.from(stranger(world))).collect();
            world.expect_refused(&[Out], &asks);
        } else {
            all_dropped(world, stranger(world), &VIP);
        }
        scene
            .service(guarded(world, &[]))
            .slice(world.pods("all", &[1]))
            .step();
        all_served(world, stranger(world), &KINDS);
        assert_unguarded(&scene);
        if let Some(table) = scene.table() {
            let mut chains = table.rules.iter().map(|held| &held.object.chain);
            assert!(chains.all(|name| !name.starts_with("sources-")));
        }
    });
}

/// No address is guarded any more, in mode nftables.
fn assert_unguarded(scene: &Scene) {
    if let Some(table) = scene.table() {
        assert!(table.elements["firewall-ips"].is_empty());
    }
}

#[test]
fn nft_035_the_address_itself_is_a_source_if_the_node_is_in_a_range() {
    everywhere(|world| {
        let (vip, _) = world.target(Kind::LoadBalancerIp, 1);
        let bits = if vip.is_ipv4() { 32 } else { 128 };
        let line = format!("address add {vip}/{bits} dev lo nodad");
        world.node.ip(&line);
        let mut scene = scene(world, &[&net(world.family, 3, 8)], &[1]);
        let asks = world.asks(&VIP, 1).into_iter();
        let asks: Vec<_> = asks.map(|ask| (&world.node, ask.from(vip))).collect();
        let seen = world.masqueraded(1);
        for (node, ask) in &asks {
            assert_eq!(ask.put(node), Answer::Served { by: 1, seen }, "{ask:?}");
        }
        scene.service(guarded(world, &[&client(world)])).step();
        assert_unanswered(&asks);
    });
}

#[test]
fn nft_036_a_range_of_everything_or_only_of_the_other_family_guards_nothing() {
    everywhere(|world| {
        let (all, other) = match world.out_ip() {
            IpAddr::V4(_) => ("0.0.0.0/0", "2001:db8::/32"),
            IpAddr::V6(_) => ("::/0", "192.0.2.0/24"),
        };
        let mut scene = scene(world, &[&client(world)], &[1]);
        all_dropped(world, stranger(world), &VIP);
        for ranges in [&[&client(world), all][..], &[other]] {
            scene.service(guarded(world, ranges)).step();
            all_served(world, stranger(world), &VIP);
            assert_unguarded(&scene);
        }
    });
}

#[test]
fn nft_037_ranges_may_overlap_touch_and_repeat() {
    everywhere(|world| {
        let nets = [(4, 7), (4, 8), (5, 8)].map(|(x, bits)| net(world.family, x, bits));
        let nets: Vec<&str> = nets.iter().map(String::as_str).collect();
        let one = client(world);
        let mut scene = scene(world, &nets, &[1]);
        if let Some(table) = scene.table() {
            // The three networks are one; all others are dropped.
            let rules = table.rules.iter().map(|held| &held.object.chain);
            let rules = rules.filter(|chain| chain.starts_with("sources-demo.all.tcp"));
            assert_eq!(rules.count(), 2);
        }
        all_dropped(world, world.out_ip(), &VIP);
        for ranges in [
            [&nets[..2], &[&one, &one]].concat(),
            vec![&one, nets[1]],
            vec![&one],
            [&nets[..], &[&one]].concat(),
        ] {
            scene.service(guarded(world, &ranges)).step();
            all_served(world, world.out_ip(), &VIP);
            all_dropped(world, stranger(world), &VIP);
        }
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn ranges_may_grow_shrink_and_move_in_one_step() {
    everywhere(|world| {
        let first = net(world.family, 2, 7);
        let second = net(world.family, 3, 8);
        let [before, behind] = [net(world.family, 2, 8), net(world.family, 4, 8)];
        let one = client(world);
        let mut scene = scene(world, &[&one], &[1]);
        let far: Vec<_> = (20..60).map(|x| net(world.family, 2 * x, 8)).collect();
        let far: Vec<_> = far.iter().map(String::as_str).collect();
        // Each overlaps with the one before it, at its beginning, its end or in the middle, and
        // the client is in all of them.
        for ranges in [
            vec![&*second],
            vec![&first],
            vec![&second, &behind],
            vec![&before, &second],
            vec![&one],
            // So many that they are in a set.
            [&far[..], &[&*one, &*behind][..]].concat(),
            [&far[1..], &[&*first][..]].concat(),
            [&far[1..], &[&*before, &*one][..]].concat(),
            vec![&first],
            vec![&second],
            vec![&before, &second, &behind],
            vec![&one, &behind],
        ] {
            scene.service(guarded(world, &ranges));
            assert!(scene.step() > 0);
            all_served(world, world.out_ip(), &VIP);
            if ranges.contains(&&*one) {
                all_dropped(world, stranger(world), &VIP);
            } else {
                all_served(world, stranger(world), &VIP);
            }
        }
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn nft_038_processes_on_the_node_are_bound_by_ranges() {
    everywhere(|world| {
        let mut scene = scene(world, &[&client(world)], &[1]);
        world.expect(1, &[(&[Node], &VIP, Dropped)]);
        let node = net(world.family, 2, 8);
        scene.service(guarded(world, &[&node])).step();
        world.expect(1, &[(&[Node], &VIP, Served(&[1], Source::Node))]);
    });
}

#[test]
fn nft_039_an_address_that_the_load_balancer_keeps_is_none_of_ours() {
    everywhere(|world| {
        let mut scene = world.scene(world.by_pod_net());
        // Those whose ipMode is Proxy are left out where objects are read.
        let mut service = guarded(world, &[&client(world)]);
        service.load_balancer_ips = Box::default();
        let (vip, _) = world.target(Kind::LoadBalancerIp, 1);
        scene.service(service).slice(world.pods("all", &[1]));
        scene.whole();
        let spy = Spy::on(world, vip);
        world.expect(1, &[(&[Out], &VIP, Dropped)]);
        assert_eq!(spy.count(), 3, "packets pass untouched");
        assert_unguarded(&scene);
    });
}
