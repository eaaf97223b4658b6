//! Load balancer addresses that not everybody may use.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferrule_core::model::Service;
use ferrule_testbed::{Answer, Ask, Lab, Protocol, net};

use crate::matrix::*;
use crate::spy::Spy;
use crate::support::*;

/// The client's first address with nothing beside it.
fn client(lab: &Lab) -> String {
    let bits = if lab.out_ip().is_ipv4() { 32 } else { 128 };
    format!("{}/{bits}", lab.out_ip())
}

/// The client's other address.
fn stranger(lab: &Lab) -> IpAddr {
    ferrule_testbed::address(lab.family, 3, 2)
}

fn guarded(scene: &Scene, ranges: &[&str]) -> Service {
    let mut service = full(scene.family, "all", 1);
    service.source_ranges = ranges.iter().map(|net| net.parse().unwrap()).collect();
    service
}

fn scene(lab: &Lab, ranges: &[&str], endpoints: &[u8]) -> Scene {
    let mut scene = Scene::at(lab, by_pod_net(lab));
    let service = guarded(&scene, ranges);
    scene.service(service).slice(pods(lab, "all", endpoints));
    scene.whole();
    scene
}

fn asks(lab: &Lab, kinds: &[Kind]) -> Vec<Ask> {
    let each = |kind| Protocol::ALL.map(|protocol| ask(lab, protocol, kind, 1));
    kinds.iter().copied().flat_map(each).collect()
}

fn all_served(lab: &Lab, from: IpAddr, kinds: &[Kind]) {
    let seen = lab.masqueraded(1);
    for ask in asks(lab, kinds) {
        let answer = ask.from(from).put(&lab.out);
        assert_eq!(answer, Answer::Served { by: 1, seen }, "{ask:?}");
    }
}

fn all_dropped(lab: &Lab, from: IpAddr, kinds: &[Kind]) {
    let asks: Vec<_> = asks(lab, kinds).iter().map(|ask| ask.from(from)).collect();
    let heard = Ask::unheard(&asks, &lab.out);
    assert!(heard.is_empty(), "{heard:?}");
}

const VIP: [Kind; 1] = [Kind::LoadBalancerIp];
const OTHERS: [Kind; 3] = [Kind::ClusterIp, Kind::ExternalIp, Kind::NodePort];

#[test]
fn nft_034_ranges_guard_load_balancer_addresses_only_and_without_endpoints_too() {
    Lab::both(|lab| {
        let mut scene = scene(lab, &[&client(lab)], &[1]);
        all_served(lab, lab.out_ip(), &KINDS);
        all_dropped(lab, stranger(lab), &VIP);
        all_served(lab, stranger(lab), &OTHERS);
        // Without endpoints those who may are refused, the others still hear nothing.
        scene.slice(pods(lab, "all", &[])).step();
        for ask in asks(lab, &VIP) {
            assert_eq!(ask.from(lab.out_ip()).put(&lab.out), Answer::Refused);
        }
        all_dropped(lab, stranger(lab), &VIP);
        let open = guarded(&scene, &[]);
        scene.service(open).slice(pods(lab, "all", &[1])).step();
        all_served(lab, stranger(lab), &KINDS);
        let elements = scene.snapshot().elements;
        assert!(elements["firewall-ips"].is_empty());
        assert!(elements["ferrule-firewall-sources"].is_empty());
    });
}

#[test]
fn nft_035_the_address_itself_is_a_source_if_the_node_is_in_a_range() {
    Lab::both(|lab| {
        let (vip, _) = target(lab, Kind::LoadBalancerIp, 1);
        let bits = if vip.is_ipv4() { 32 } else { 128 };
        lab.node
            .ip(&format!("address add {vip}/{bits} dev lo nodad"));
        let mut scene = scene(lab, &[&net(lab.family, 3, 8)], &[1]);
        let asks: Vec<_> = asks(lab, &VIP).iter().map(|ask| ask.from(vip)).collect();
        let seen = lab.masqueraded(1);
        for ask in &asks {
            assert_eq!(ask.put(&lab.node), Answer::Served { by: 1, seen });
        }
        let without = guarded(&scene, &[&client(lab)]);
        scene.service(without).step();
        let heard = Ask::unheard(&asks, &lab.node);
        assert!(heard.is_empty(), "{heard:?}");
    });
}

#[test]
fn nft_036_a_range_of_everything_or_only_of_the_other_family_guards_nothing() {
    Lab::both(|lab| {
        let (all, other) = match lab.out_ip() {
            IpAddr::V4(_) => ("0.0.0.0/0", "2001:db8::/32"),
            IpAddr::V6(_) => ("::/0", "192.0.2.0/24"),
        };
        let mut scene = scene(lab, &[&client(lab)], &[1]);
        all_dropped(lab, stranger(lab), &VIP);
        for ranges in [&[&client(lab), all][..], &[other]] {
            let open = guarded(&scene, ranges);
            scene.service(open).step();
            all_served(lab, stranger(lab), &VIP);
            assert!(scene.snapshot().elements["firewall-ips"].is_empty());
        }
    });
}

#[test]
fn nft_037_ranges_may_overlap_touch_and_repeat() {
    Lab::both(|lab| {
        let nets = [
            net(lab.family, 4, 7),
            net(lab.family, 4, 8),
            net(lab.family, 5, 8),
        ];
        let nets: Vec<&str> = nets.iter().map(String::as_str).collect();
        let one = client(lab);
        let mut scene = scene(lab, &nets, &[1]);
        let held = |scene: &Scene| scene.snapshot().elements["ferrule-firewall-sources"].len();
        // Three protocols, and the three networks are one.
        assert_eq!(held(&scene), 3);
        all_dropped(lab, lab.out_ip(), &VIP);
        for ranges in [
            [&nets[..2], &[&one, &one]].concat(),
            vec![&one, nets[1]],
            vec![&one],
            [&nets[..], &[&one]].concat(),
        ] {
            let changed = guarded(&scene, &ranges);
            scene.service(changed).step();
            all_served(lab, lab.out_ip(), &VIP);
            all_dropped(lab, stranger(lab), &VIP);
        }
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn ranges_may_grow_shrink_and_move_in_one_step() {
    Lab::both(|lab| {
        let first = net(lab.family, 2, 7);
        let second = net(lab.family, 3, 8);
        let [before, behind] = [net(lab.family, 2, 8), net(lab.family, 4, 8)];
        let one = client(lab);
        let mut scene = scene(lab, &[&one], &[1]);
        // Each overlaps with the one before it, at its beginning, its end or in the middle, and
        // the client is in all of them.
        for ranges in [
            vec![&*second],
            vec![&first],
            vec![&second, &behind],
            vec![&before, &second],
            vec![&one],
            vec![&first],
            vec![&second],
            vec![&before, &second, &behind],
            vec![&one, &behind],
        ] {
            let changed = guarded(&scene, &ranges);
            scene.service(changed);
            assert!(scene.step() > 0);
            all_served(lab, lab.out_ip(), &VIP);
            if ranges.contains(&&*one) {
                all_dropped(lab, stranger(lab), &VIP);
            } else {
                all_served(lab, stranger(lab), &VIP);
            }
        }
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn nft_038_processes_on_the_node_are_bound_by_ranges() {
    Lab::both(|lab| {
        let mut scene = scene(lab, &[&client(lab)], &[1]);
        let asks = asks(lab, &VIP);
        let heard = Ask::unheard(&asks, &lab.node);
        assert!(heard.is_empty(), "{heard:?}");
        let open = guarded(&scene, &[&net(lab.family, 2, 8)]);
        scene.service(open).step();
        let seen = lab.masqueraded(1);
        let served = BTreeSet::from([Answer::Served { by: 1, seen }]);
        for ask in asks {
            assert_served(&lab.node, ask, &served);
        }
    });
}

#[test]
fn nft_039_an_address_that_the_load_balancer_keeps_is_none_of_ours() {
    Lab::both(|lab| {
        let mut scene = Scene::at(lab, by_pod_net(lab));
        // Those whose ipMode is Proxy are left out where objects are read.
        let mut service = guarded(&scene, &[&client(lab)]);
        let (vip, _) = target(lab, Kind::LoadBalancerIp, 1);
        service.load_balancer_ips = Box::default();
        scene.service(service).slice(pods(lab, "all", &[1]));
        scene.whole();
        let spy = Spy::on(lab, vip);
        let heard = Ask::unheard(&asks(lab, &VIP), &lab.out);
        assert!(heard.is_empty(), "{heard:?}");
        assert_eq!(spy.count(), 3, "packets pass untouched");
        assert!(scene.snapshot().elements["firewall-ips"].is_empty());
    });
}
