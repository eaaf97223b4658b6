//! What changes cost, and that nothing else is touched.

use ferrule_dataplane::Dataplane as _;
use std::time::{Duration, SystemTime};

use ferrule_core::facts::Settings;
use ferrule_core::issue::Kind;
use ferrule_core::model::{Family, Service, Slice, TrafficPolicy};
use ferrule_core::track::{self, Tracker};
use ferrule_dataplane::nftables::Nftables;
use ferrule_kernel::nft::{Event, Nft, Object, Watch};

use crate::state::everything;
use crate::support::*;
use crate::twin::assert_alike;

/// A Service of any number, with two endpoints.
pub fn numbered(family: Family, number: u16) -> (Service, Slice) {
    let name = format!("s{number}");
    let mut service = service(family, &name, 1);
    service.cluster_ips[family] = Some(match family {
        Family::V4 => std::net::Ipv4Addr::from_bits(0x0a60_0000 + u32::from(number)).into(),
        Family::V6 => std::net::Ipv6Addr::from_bits((0xfd60 << 112) + u128::from(number)).into(),
    });
    let pods = [
        (address(family, 1, 1), true),
        (address(family, 1, 2), false),
    ];
    (service, slice(family, &name, &pods))
}

pub fn many(family: Family, count: u16) -> Scene {
    let mut scene = Scene::new(family);
    for number in 1..=count {
        let (service, slice) = numbered(family, number);
        scene.service(service).slice(slice);
    }
    scene.whole();
    scene
}

/// Everything that is heard of our table until nothing more is.
fn heard(watch: &mut Watch) -> Vec<(bool, Object)> {
    let mut all = Vec::new();
    loop {
        let events = watch.next(Duration::from_millis(30)).unwrap();
        if events.is_empty() {
            return all;
        }
        for event in events {
            let Event::Change(change) = event else {
                panic!("something was missed")
            };
            if !matches!(change.object, Object::Generation(_)) {
                all.push((change.gone, change.object));
            }
        }
    }
}

#[test]
fn nft_053_services_that_did_not_change_are_not_written() {
    both(|family| {
        let mut scene = many(family, 100);
        let mut watch = Watch::open().unwrap();
        let pods = [
            (address(family, 1, 1), true),
            (address(family, 1, 3), false),
        ];
        scene.slice(slice(family, "s7", &pods)).step();
        // One endpoint is replaced by another.
        for (_, object) in heard(&mut watch) {
            let Object::Elements(list) = object else {
                panic!("{object:?}")
            };
            assert_eq!(&*list.set, "ferrule-endpoints");
            assert_eq!(list.elements.len(), 1);
        }
    });
}

#[test]
fn nft_054_no_change_is_no_transaction() {
    both(|family| {
        let mut scene = many(family, 10);
        let before = scene.snapshot().generation;
        assert_eq!(scene.step(), 0);
        assert_eq!(scene.whole(), 0);
        assert_eq!(scene.snapshot().generation, before);
    });
}

#[test]
fn nft_055_a_service_costs_four_lists_of_elements() {
    both(|family| {
        let mut scene = many(family, 10);
        let name = "new";
        let (mut service, mut slice) = numbered(family, 99);
        service.key = ferrule_core::model::ServiceKey::new("demo", name);
        slice.service = service.key.clone();
        slice.key = ferrule_core::model::SliceKey::new("demo", "new-1");
        let other = address(family, 1, 9);
        slice.endpoints[0].ip = other;
        // Two endpoints, the local one as its own client, its address twice.
        scene.service(service).slice(slice);
        assert_eq!(scene.step(), 4);
        scene.no_service(name);
        assert_eq!(scene.step(), 4);
    });
}

#[test]
fn nft_056_what_leads_elsewhere_is_replaced_in_one_transaction() {
    both(|family| {
        let mut scene = many(family, 10);
        let before = scene.snapshot().generation;
        let mut watch = Watch::open().unwrap();
        scene.no_slice("s7-1");
        scene.step();
        assert_eq!(scene.snapshot().generation, before + 1);
        let served = heard(&mut watch).into_iter().filter(
            |(_, object)| matches!(object, Object::Elements(list) if &*list.set == "service-ips"),
        );
        assert_eq!(served.count(), 1);
        // More endpoints than there are slots are another verdict.
        let pods = [1, 2, 3, 4, 5].map(|y| (address(family, 1, y), true));
        scene.slice(slice(family, "s8", &pods)).step();
        assert_eq!(scene.snapshot().generation, before + 2);
        let served = heard(&mut watch).into_iter().filter_map(|(gone, object)| {
            let Object::Elements(list) = object else {
                return None;
            };
            (&*list.set == "service-ips").then_some(gone)
        });
        assert_eq!(served.collect::<Vec<_>>(), [true, false]);
    });
}

#[test]
fn nft_057_the_remark_of_an_element_names_who_holds_it() {
    both(|family| {
        let mut scene = Scene::new(family);
        let (mut older, mut newer) = (service(family, "a", 1), service(family, "b", 1));
        (older.created, newer.created) = (1, 2);
        scene.service(older).service(newer);
        scene.whole();
        let comment = |scene: &Scene| {
            let held = scene.snapshot().elements["no-endpoint-services"].clone();
            assert_eq!(held.len(), 1);
            held[0].comment.as_ref().unwrap().as_str().to_owned()
        };
        assert_eq!(comment(&scene), "demo/a:http");
        scene.no_service("a").step();
        assert_eq!(comment(&scene), "demo/b:http");
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn nft_058_what_is_left_over_goes_in_the_same_transaction() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let before = scene.snapshot().generation;
        for name in ["plain", "none", "port", "lb", "local", "remote"] {
            scene.no_service(name);
        }
        scene.restart();
        scene.whole();
        let after = scene.snapshot();
        assert_eq!(after.generation, before + 1);
        for (set, list) in &after.elements {
            assert!(
                list.is_empty() || &**set == "ferrule-service-cidrs",
                "{set}"
            );
        }
    });
}

/// Those of Service ports, not of endpoints, and whether they have rules.
fn stay_chains(scene: &Scene) -> Vec<(String, bool)> {
    let snapshot = scene.snapshot();
    let chains = snapshot.chains.iter().map(|held| &held.object.name);
    let chains = chains.filter(|name| name.starts_with("stay-") && name.ends_with(".tcp"));
    chains
        .map(|name| {
            let mut rules = snapshot.rules.iter();
            (
                name.to_string(),
                rules.any(|held| held.object.chain == *name),
            )
        })
        .collect()
}

#[test]
fn nft_059_a_chain_that_nothing_leads_to_is_emptied_and_goes_with_the_next_change() {
    both(|family| {
        let mut scene = many(family, 3);
        let (service, _) = numbered(family, 2);
        scene.service(service.clone().affinity(60)).step();
        let name = "stay-demo.s2.http.tcp".to_owned();
        assert_eq!(stay_chains(&scene), [(name.clone(), true)]);
        scene.service(service).step();
        assert_eq!(stay_chains(&scene), [(name, false)]);
        scene.no_service("s3").step();
        assert_eq!(stay_chains(&scene), []);
    });
}

#[test]
fn nft_060_a_chain_that_is_needed_again_is_never_missing() {
    both(|family| {
        let mut scene = many(family, 3);
        let (service, _) = numbered(family, 2);
        let name = "stay-demo.s2.http.tcp".to_owned();
        for _ in 0..3 {
            scene.service(service.clone().affinity(60)).step();
            assert_eq!(stay_chains(&scene), [(name.clone(), true)]);
            scene.service(service.clone()).step();
            assert_eq!(stay_chains(&scene), [(name.clone(), false)]);
        }
        // Also when somebody else changed in between.
        scene.no_service("s3").step();
        assert_eq!(stay_chains(&scene), []);
        scene.service(service.affinity(60)).step();
        assert_eq!(stay_chains(&scene), [(name, true)]);
    });
}

#[test]
fn nft_062_sets_of_clients_go_in_the_same_transaction() {
    both(|family| {
        let mut scene = many(family, 3);
        let (service, _) = numbered(family, 2);
        scene.service(service.affinity(60)).step();
        let sets = |scene: &Scene| {
            let sets = scene.snapshot().sets;
            let names = sets.iter().map(|held| &held.object.name);
            names
                .filter(|name| name.starts_with("ferrule-affinity-"))
                .count()
        };
        assert_eq!(sets(&scene), 2);
        scene
            .slice(slice(family, "s2", &[(address(family, 1, 2), false)]))
            .step();
        assert_eq!(sets(&scene), 1);
        scene.no_service("s2").step();
        assert_eq!(sets(&scene), 0);
    });
}

#[test]
fn nft_063_a_restart_over_a_correct_table_writes_nothing() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let before = scene.snapshot();
        for _ in 0..3 {
            scene.restart();
            assert_eq!(scene.whole(), 0);
        }
        assert_eq!(scene.snapshot(), before);
    });
}

/// Reads every set by key where it can.
fn all_are_large() -> Nft {
    let mut nft = open_here();
    nft.set_large(1);
    nft
}

#[test]
fn a_restart_over_very_large_sets_finds_every_difference() {
    both(|family| {
        let open = || Box::new(all_are_large);
        let mut scene = Scene::over(family, Settings::default(), open(), Box::new(open_here));
        everything(&mut scene);
        scene.whole();
        scene.restart();
        assert_eq!(scene.whole(), 0);
        // While nobody programs: one comes, one goes, one gets another endpoint, one more, one less.
        let pods = |pods: &[u8]| -> Vec<_> {
            let pod = |&pod: &u8| (address(family, 1, pod), false);
            pods.iter().map(pod).collect()
        };
        for (before, after) in [
            (&[1, 2][..], &[1, 3][..]),
            (&[1, 2], &[1, 2, 3]),
            (&[1, 2, 3], &[1]),
            (&[1], &[]),
            (&[], &[4]),
        ] {
            scene.service(service(family, "moving", 200));
            scene.slice(slice(family, "moving", &pods(before))).whole();
            scene.restart();
            scene.slice(slice(family, "moving", &pods(after)));
            assert!(scene.whole() > 0, "{before:?} {after:?}");
            scene.dataplane = Nftables::new(family, scene.options, open_here());
            assert_eq!(scene.whole(), 0, "{before:?} {after:?}");
        }
    });
}

#[test]
fn nft_067_the_first_change_after_a_start_looks_at_everything() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let before = scene.snapshot();
        run("nft", &["flush", "ruleset"]);
        scene.restart();
        assert!(scene.step() > 50);
        assert_alike(&scene.snapshot(), &before);
    });
}

#[test]
fn nft_068_a_look_at_everything_touches_only_what_differs() {
    both(|family| {
        let mut scene = many(family, 100);
        let (service, slice) = numbered(family, 101);
        scene.no_service("s7").service(service).slice(slice);
        let mut watch = Watch::open().unwrap();
        scene.whole();
        let mut touched = 0;
        for (_, object) in heard(&mut watch) {
            let Object::Elements(list) = object else {
                panic!("{object:?}")
            };
            touched += list.elements.len();
        }
        // Two endpoints, two addresses; gone and come.
        assert_eq!(touched, 8);
    });
}

#[test]
fn nft_086_one_endpoint_costs_the_same_in_a_large_table() {
    both(|family| {
        let cost = |scene: &mut Scene| {
            let mut costs = Vec::new();
            for pods in [&[1][..], &[1, 2, 3], &[1, 3], &[4, 5]] {
                let pods: Vec<_> = pods
                    .iter()
                    .map(|y| (address(family, 1, *y), false))
                    .collect();
                costs.push(scene.slice(slice(family, "s7", &pods)).step());
            }
            costs
        };
        let small = cost(&mut many(family, 10));
        in_namespace(move || assert_eq!(cost(&mut many(family, 3000)), small));
    });
}

#[test]
fn nft_087_a_large_table_is_one_transaction_of_few_lists() {
    both(|family| {
        let steps = |count| {
            let mut scene = many(family, count);
            assert_eq!(
                scene.snapshot().generation,
                2,
                "the first one was its only one"
            );
            scene.restart();
            assert_eq!(scene.whole(), 0);
            scene.dataplane.remove().unwrap();
            let steps = scene.whole();
            assert_eq!(scene.snapshot().generation, 4, "again only one");
            let elements = scene.snapshot().elements.into_values();
            (steps, elements.map(|list| list.len()).sum::<usize>())
        };
        let (few, _) = steps(10);
        in_namespace(move || {
            let (many, elements) = steps(5000);
            // Lists are told in pieces of 256, so that they are never all in memory.
            assert!(many <= few + elements / 256, "{many} steps, {few} for few");
        });
    });
}

#[test]
fn nft_092_a_slice_that_says_the_same_again_changes_nothing() {
    both(|family| {
        let mut scene = many(family, 3);
        let before = scene.snapshot();
        let (service, slice) = numbered(family, 2);
        scene.service(service).slice(slice);
        assert_eq!(scene.step(), 0);
        assert_eq!(scene.snapshot(), before);
    });
}

#[test]
fn nft_051_addresses_are_compared_as_they_are_and_not_as_they_are_written() {
    both(|family| {
        let mut scene = Scene::new(family);
        // Some programs write these otherwise than others.
        let odd: [std::net::IpAddr; 2] = match family {
            Family::V4 => ["0.0.0.1", "255.255.255.255"],
            Family::V6 => ["::10.96.0.1", "::ffff:0:1"],
        }
        .map(|text| text.parse().unwrap());
        for (number, ip) in (1..).zip(odd) {
            let mut service = service(family, &format!("s{number}"), 1);
            service.cluster_ips[family] = Some(ip);
            scene.service(service);
        }
        scene.whole();
        scene.restart();
        assert_eq!(scene.whole(), 0);
        assert_eq!(scene.snapshot().elements["cluster-ips"].len(), 2);
    });
}

#[test]
fn nft_052_before_the_first_lists_are_complete_there_is_nothing_to_write() {
    let mut tracker = Tracker::new(SystemTime::UNIX_EPOCH);
    tracker.on(track::Event::Listing(Kind::Service));
    tracker.on(track::Event::Put {
        object: track::Object::Service(numbered(Family::V4, 1).0),
        issues: Vec::new(),
        trigger: None,
    });
    tracker.on(track::Event::Listed(Kind::Service));
    assert_eq!(tracker.take(), None);
    for kind in Kind::ALL {
        tracker.on(track::Event::Listing(kind));
        tracker.on(track::Event::Listed(kind));
    }
    assert!(tracker.take().is_some());
}

#[test]
fn nft_071_service_ports_that_drop_for_want_of_local_endpoints_are_counted() {
    both(|family| {
        let mut scene = Scene::new(family);
        let far = [(address(family, 1, 1), false)];
        for number in 1..=4 {
            let name = format!("s{number}");
            let mut service = service(family, &name, number).node_port(30000 + i64::from(number));
            if number & 1 != 0 {
                service.internal_policy = TrafficPolicy::Local;
            }
            if number & 2 != 0 {
                service.external_policy_field = TrafficPolicy::Local;
            }
            scene.service(service).slice(slice(family, &name, &far));
        }
        scene.whole();
        let totals = scene.cluster.desired.totals(family);
        assert_eq!((totals.no_local_internal, totals.no_local_external), (2, 2));
        // They are those that drop.
        let elements = scene.snapshot().elements;
        assert_eq!(elements["no-endpoint-services"].len(), 2);
        assert_eq!(elements["no-endpoint-nodeports"].len(), 2);
    });
}
