//! Drawings and the steps between them, without a kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ferrule_core::desired::{
    Action, Algorithm, Endpoint, Exposure, Frontend, FrontendKind, Masquerade, Pool,
};
use ferrule_core::facts::Detector;
use ferrule_core::model::{Port, PortKey, Protocol, ServiceKey, TrafficPolicy};
use ferrule_kernel::Family;
use ferrule_kernel::nft::{Element, Field, MapData, Set, Value, Verdict};

use super::diff::{Redrawn, RenderContext, Step};
use super::names::{self, Container, MatchKey, Pick};
use super::ruleset::{Drawing, Ruleset};
use super::{program, render};

const CONTEXT: RenderContext = RenderContext {
    family: Family::V4,
    mark: 0x4000,
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
        udp_backends: Box::default(),
        idle: Box::default(),
        algorithm: Algorithm::Random,
        scheduler: None,
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
        ["pick-2".into(), "pick-2-from-1".into()] as [Arc<str>; 2]
    );
    let goto = |name: &str| Element::verdict(Value::new(), Verdict::Goto(name.into())).data;
    assert_eq!(of(&drawing, Container::Outside)[0].data, goto("pick-2"));
    assert_eq!(
        of(&drawing, Container::Inside)[0].data,
        goto("pick-2-from-1")
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
        count: 3.try_into().unwrap(),
        masquerade: true,
    };
    assert_eq!(&*pick.name(), "nodeport-pick-3-from-2-masquerade");
    assert!(Pick::is_name(&pick.name()));
    let key = exposure("web", &[], &[]).key;
    let set = names::affinity_set(&names::label(&key), &endpoint(1, true, true));
    assert_eq!(
        &*set.name,
        "ferrule-affinity-demo.web.http.tcp-10.1.0.1.8080"
    );
    assert!(names::is_affinity_set(&set, Family::V4));
    assert!(!names::is_affinity_set(&set, Family::V6));
}
