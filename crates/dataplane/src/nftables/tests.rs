//! Drawings and the steps between them, without a kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use ferrule_core::desired::{
    Action, Algorithm, Endpoint, Exposure, Frontend, FrontendKind, Masquerade, Pool,
};
use ferrule_core::facts::Detector;
use ferrule_core::model::{Port, PortKey, Protocol, ServiceKey, TrafficPolicy};
use ferrule_kernel::Family;
use ferrule_kernel::nft::{Element, Field, MapData, Set, Value, Verdict};

use super::diff::{Redrawn, RenderContext, Step};
use super::names::{self, Container, Draw, MatchKey, Pick};
use super::ruleset::{Drawing, Ruleset};
use super::{program, render};

const CONTEXT: RenderContext = RenderContext {
    family: Family::V4,
    mark: 0x4000,
    affinity_size: NonZeroU32::MIN,
};

fn port(number: i64) -> Port {
    Port::new(number).unwrap()
}

fn endpoint(last: u8, cluster: bool, local: bool) -> Endpoint {
    Endpoint {
        ip: IpAddr::from([10, 1, 0, last]),
        port: port(8080),
        weight: 1,
        local,
        in_cluster_pool: cluster,
        in_local_pool: local,
    }
}

fn frontend(kind: FrontendKind, last: u8) -> Frontend {
    Frontend {
        kind,
        ip: Some(IpAddr::from([10, 96, 0, last])),
        port: port(80),
        action: Action::Balance(Pool::Cluster),
        inside: None,
        masquerade: Masquerade::Never,
        shadowed: false,
    }
}

fn exposure(name: &str, frontends: &[Frontend], endpoints: &[Endpoint]) -> Exposure {
    Exposure {
        key: PortKey {
            service: ServiceKey::new("demo", name),
            name: "http".into(),
            protocol: Protocol::Tcp,
        },
        frontends: frontends.into(),
        endpoints: endpoints.into(),
        answering: Box::default(),
        idle: Box::default(),
        algorithm: Algorithm::Random,
        scheduler: None,
        proxy_header: false,
        affinity_seconds: None,
        source_ranges: Box::default(),
        source_ranges_include_node: false,
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        health_check_port: None,
    }
}

fn draw(exposure: &Exposure) -> Drawing {
    render::exposure(exposure, CONTEXT)
}

fn of(drawing: &Drawing, container: Container) -> Vec<&Element> {
    let elements = drawing.elements.iter();
    elements
        .filter(|(found, _)| *found == container)
        .map(|(_, element)| element)
        .collect()
}

/// The steps from one drawing of a Service to another, in a table with nothing else in it.
fn between(old: &[&Drawing], new: &[&Drawing]) -> Vec<Step> {
    let mut installed = Ruleset::default();
    let mut redrawn = Redrawn::default();
    for drawing in old {
        installed.add((*drawing).clone());
        redrawn.add(Some((*drawing).clone()), None);
    }
    for drawing in new {
        redrawn.add(None, Some((*drawing).clone()));
    }
    redrawn.steps(&installed.common.shares, &installed.common.picks, CONTEXT)
}

#[test]
fn both_pools_of_a_frontend_are_runs_of_its_slots() {
    let mut external = frontend(FrontendKind::ExternalIp, 1);
    external.action = Action::Balance(Pool::Local);
    external.inside = Some(Action::Balance(Pool::Cluster));
    let endpoints = [
        endpoint(1, true, false),
        endpoint(2, true, true),
        endpoint(3, false, true),
    ];
    let drawing = draw(&exposure("a", &[external], &endpoints));
    let slots: Vec<_> = of(&drawing, Container::Endpoints)
        .iter()
        .map(|element| element.data.clone())
        .collect();
    let slot = |last| {
        let value = Value::from(IpAddr::from([10, 1, 0, last])).port(8080);
        Element::value(value, value).data
    };
    assert_eq!(slots, [slot(3), slot(2), slot(1)]);
    let picks: Vec<_> = drawing.picks.iter().map(Pick::name).collect();
    assert_eq!(
        picks,
        ["pick-2".into(), "pick-up-to-4-from-1".into()] as [Arc<str>; 2]
    );
    let goto = |name: &str| Element::verdict(Value::new(), Verdict::Goto(name.into())).data;
    assert_eq!(of(&drawing, Container::Outside)[0].data, goto("pick-2"));
    assert_eq!(
        of(&drawing, Container::Inside)[0].data,
        goto("pick-up-to-4-from-1")
    );
    assert_eq!(
        of(&drawing, Container::ServiceIps)[0].data,
        goto(names::EXTERNAL_LOCAL)
    );
}

#[test]
fn addresses_that_another_service_holds_are_left_out() {
    let mut shadowed = frontend(FrontendKind::ClusterIp, 1);
    shadowed.shadowed = true;
    let drawing = draw(&exposure("a", &[shadowed], &[endpoint(1, true, false)]));
    assert_eq!(drawing, Drawing::default());
}

#[test]
fn what_did_not_change_needs_no_steps() {
    let cluster_ip = frontend(FrontendKind::ClusterIp, 1);
    let drawing = draw(&exposure("a", &[cluster_ip], &[endpoint(1, true, true)]));
    assert_eq!(between(&[&drawing], &[&drawing]), []);
}

#[test]
fn what_two_services_share_goes_with_the_last_of_them() {
    let pods = [endpoint(1, true, true)];
    let a = draw(&exposure(
        "a",
        &[frontend(FrontendKind::ClusterIp, 1)],
        &pods,
    ));
    let b = draw(&exposure(
        "b",
        &[frontend(FrontendKind::ClusterIp, 2)],
        &pods,
    ));
    let hairpin = |steps: &[Step]| {
        let mut steps = steps.iter();
        steps.any(|step| matches!(step, Step::Delete(Container::Hairpin, _)))
    };
    assert!(!hairpin(&between(&[&a, &b], &[&b])));
    assert!(hairpin(&between(&[&a, &b], &[])));
    assert!(!hairpin(&between(&[&a], &[&b])), "handed over");
}

#[test]
fn an_address_that_changes_hands_is_replaced_in_place() {
    let cluster_ip = frontend(FrontendKind::ClusterIp, 1);
    let a = draw(&exposure("a", &[cluster_ip], &[endpoint(1, true, false)]));
    let b = draw(&exposure("b", &[cluster_ip], &[endpoint(2, true, false)]));
    let steps = between(&[&a], &[&b]);
    let done: Vec<_> = steps
        .iter()
        .map(|step| match step {
            Step::Delete(container, elements) => ("delete", *container, elements.len()),
            Step::Add(container, elements) => ("add", *container, elements.len()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        done,
        [
            ("delete", Container::Endpoints, 1),
            ("add", Container::Endpoints, 1),
            ("delete", Container::ServiceIps, 1),
            ("add", Container::ServiceIps, 1),
        ]
    );
}

#[test]
fn who_is_led_to_comes_first_and_goes_last() {
    let cluster_ip = frontend(FrontendKind::ClusterIp, 1);
    let drawing = draw(&exposure("a", &[cluster_ip], &[endpoint(1, true, false)]));
    let place = |steps: &[Step], wanted: Container| {
        steps.iter().position(|step| {
            matches!(step, Step::Add(container, _) | Step::Delete(container, _) if *container == wanted)
        })
    };
    let coming = between(&[], &[&drawing]);
    assert!(matches!(coming[0], Step::AddChain(_)));
    assert!(place(&coming, Container::Endpoints) < place(&coming, Container::ServiceIps));
    let going = between(&[&drawing], &[]);
    assert!(place(&going, Container::ServiceIps) < place(&going, Container::Endpoints));
}

#[test]
fn names_of_kube_proxy_mean_what_they_mean_there() {
    let address = Field::Ipv4Addr;
    let frontend = vec![address, Field::Protocol, Field::Port];
    let node_port = vec![Field::Protocol, Field::Port];
    for container in Container::ALL {
        let set = container.set(Family::V4);
        assert!(!set.name.contains('/'));
        if set.name.starts_with("ferrule-") {
            continue;
        }
        let (key, data) = match &*set.name {
            "cluster-ips" => (vec![address], MapData::None),
            "hairpin-connections" => (
                vec![address, address, Field::Protocol, Field::Port],
                MapData::None,
            ),
            "service-nodeports" | "no-endpoint-nodeports" => (node_port.clone(), MapData::Verdict),
            _ => (frontend.clone(), MapData::Verdict),
        };
        let theirs = Set {
            data,
            comment: set.comment.clone(),
            ..Set::new(set.name.clone(), key)
        };
        assert_eq!(set, theirs);
    }
    let unique: BTreeSet<_> = Container::ALL.iter().map(|c| c.name()).collect();
    assert_eq!(unique.len(), Container::ALL.len());
}

fn guarded(ranges: &[&str]) -> Exposure {
    let mut exposure = exposure("a", &[frontend(FrontendKind::LoadBalancerIp, 1)], &[]);
    exposure.source_ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
    exposure
}

#[test]
fn one_range_costs_one_range() {
    let all: Vec<String> = (0..200).map(|i| format!("192.0.{i}.0/25")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let before = draw(&guarded(&all[..199]));
    let after = draw(&guarded(&all));
    let [Step::AddOwn(set, elements)] = &between(&[&before], &[&after])[..] else {
        panic!("something else changed")
    };
    assert_eq!(&**set, "ferrule-sources-demo.a.http.tcp");
    assert_eq!(elements.len(), 2, "where it begins and where it ends");
    let [Step::DeleteOwn(_, elements)] = &between(&[&after], &[&before])[..] else {
        panic!("something else changed")
    };
    assert_eq!(elements.len(), 2);
    // What fills a gap makes one range of three.
    let after = draw(&guarded(&[&all[..199], &["192.0.7.128/25"]].concat()));
    let [Step::DeleteOwn(_, gone), Step::AddOwn(_, come)] = &between(&[&before], &[&after])[..]
    else {
        panic!("something else changed")
    };
    assert_eq!((gone.len(), come.len()), (4, 2));
}

#[test]
fn few_ranges_are_rules_and_many_are_a_set() {
    let all: Vec<String> = (0..40).map(|i| format!("192.0.{i}.0/25")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let chain = names::sources_chain("demo.a.http.tcp");
    for count in [1, 16, 17, 40] {
        let drawing = draw(&guarded(&all[..count]));
        let (rules, sets) = if count <= 16 { (count + 1, 0) } else { (1, 1) };
        assert_eq!(drawing.chains[&chain].len(), rules);
        assert_eq!(drawing.sets.len(), sets);
    }
    // What overlaps, touches or repeats is one.
    let drawing = draw(&guarded(&[
        "10.0.0.0/9",
        "10.128.0.0/9",
        "10.1.0.0/16",
        "10.0.0.0/9",
    ]));
    assert_eq!(drawing.chains[&chain].len(), 2);
    // From one to the other the set is there before the rule and goes after it.
    let (few, many) = (draw(&guarded(&all[..16])), draw(&guarded(&all)));
    let steps = between(&[&few], &[&many]);
    assert!(matches!(
        steps[..],
        [
            Step::AddOwnSet(_),
            Step::AddOwn(..),
            Step::FlushChain(_),
            Step::AddRule(_),
        ]
    ));
    let steps = between(&[&many], &[&few]);
    assert!(matches!(steps[0], Step::FlushChain(_)));
    assert!(matches!(steps[steps.len() - 1], Step::DeleteOwnSet(_)));
}

#[test]
fn a_first_full_and_a_last_range_are_told_apart() {
    let lists: [&[&str]; 6] = [
        &["10.0.0.0/8"],
        &["0.0.0.0/8"],
        &["255.0.0.0/8"],
        &["0.0.0.0/1", "128.0.0.0/1"],
        &["0.0.0.0/8", "255.255.255.255/32"],
        &["10.0.0.0/8", "192.0.2.0/24"],
    ];
    for old in lists {
        for new in lists {
            // So often that they are many.
            let many = |ranges: &[&str]| draw(&guarded(&ranges.repeat(20)));
            let [before, after] = [old, new].map(many);
            let name = after.sets.keys().next().unwrap();
            let mut held = before.sets[name].elements();
            for step in between(&[&before], &[&after]) {
                match step {
                    Step::DeleteOwn(_, gone) => {
                        assert!(gone.iter().all(|element| held.contains(element)));
                        held.retain(|element| !gone.contains(element));
                    }
                    Step::AddOwn(_, come) => {
                        assert!(come.iter().all(|element| !held.contains(element)));
                        held.extend(come);
                    }
                    other => panic!("{other:?}"),
                }
            }
            held.sort_by_key(|element| (element.key, element.ends_range));
            assert_eq!(held, after.sets[name].elements(), "{old:?} to {new:?}");
        }
    }
}

#[test]
fn an_interface_that_cannot_be_has_no_pods() {
    let detector = Detector::Interface("a-name-too-long-for-linux".into());
    assert_eq!(program::from_pod(Family::V4, &detector, true), None);
    assert_eq!(
        program::from_pod(Family::V4, &detector, false),
        Some(Vec::new())
    );
    let all = Detector::InterfacePrefix("".into());
    assert_eq!(program::from_pod(Family::V4, &all, false), None);
}

#[test]
fn chains_are_named_after_what_they_choose_from() {
    let pick = Pick {
        match_key: MatchKey::NodePort,
        first: 2,
        draw: Draw::Exactly(3.try_into().unwrap()),
        masquerade: true,
    };
    assert_eq!(&*pick.name(), "nodeport-pick-3-from-2-masquerade");
    assert!(Pick::is_name(&pick.name()));
    let up_to = |count: u32| Pick {
        match_key: MatchKey::Address,
        first: 0,
        draw: Draw::up_to(count.try_into().unwrap()),
        masquerade: false,
    };
    let names = [1, 4, 5, 8, 9, 1000].map(|count| up_to(count).name());
    let slots = [4, 4, 8, 8, 16, 1024].map(|slots| Arc::from(format!("pick-up-to-{slots}")));
    assert_eq!(names, slots);
    assert!(Pick::is_name(&names[0]));
    // More than any power of two that fits.
    assert_eq!(&*up_to(u32::MAX).name(), "pick-4294967295");
    let key = exposure("web", &[], &[]).key;
    let label = names::label(&key);
    let set = names::affinity_set(&label, &endpoint(1, true, true), NonZeroU32::MIN);
    assert_eq!(
        &*set.name,
        "ferrule-affinity-demo.web.http.tcp-10.1.0.1.8080"
    );
    assert!(names::is_affinity_set(&set, Family::V4));
    assert!(!names::is_affinity_set(&set, Family::V6));
}
