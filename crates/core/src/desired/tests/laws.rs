//! Laws that hold for every sequence of events.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;

use super::super::claims::Standing;
use super::super::explain::{Explained, Known, News};
use super::*;
use crate::facts::{NodePortAddresses, Settings};
use crate::issue::ObjectKey;
use crate::model::{Node, Service, Slice, SliceEndpoint};
use crate::track::{Event, Object};

/// One step of a cluster's life.
#[derive(Clone, Debug)]
enum Deed {
    Service(Service),
    NoService(ServiceKey),
    Slice(Slice),
    NoSlice(crate::model::SliceKey),
    Node(Node),
    Cidr(&'static str, &'static [&'static str]),
    NoCidr(&'static str),
    /// An update.
    Update,
}

const SERVICES: [&str; 4] = ["ns/a", "ns/b", "ns/c", "other/a"];
const SLICES: [&str; 5] = ["ns/1", "ns/2", "ns/3", "ns/4", "other/1"];
const ZONES: [&str; 3] = ["a", "b", "c"];

fn services() -> impl Strategy<Value = Service> {
    let ips = || {
        prop::collection::vec(
            select(&["198.51.100.1", "198.51.100.2", "10.96.0.1", "fd00::1"][..]),
            0..3,
        )
    };
    let shape = (select(&SERVICES[..]), 0..3_i64, 0..3_u8, any::<[bool; 6]>());
    let ports = prop::collection::vec((0..3_usize, any::<bool>()), 1..3);
    (shape, ips(), ips(), ports).prop_map(
        |((key, created, kind, bits), external, balancer, ports)| {
            let [dual, internal, outside, sticky, ranged, check] = bits;
            let mut service = service(key)
                .external_ips(&external)
                .load_balancer(&balancer);
            service.created = created;
            service.kind = [
                ServiceType::ClusterIp,
                ServiceType::NodePort,
                ServiceType::LoadBalancer,
            ][usize::from(kind)];
            // Few addresses, so that Services contest them.
            let own = SERVICES.iter().position(|name| *name == key).unwrap() % 3;
            service = service.cluster_ip(&format!("10.96.0.{own}"));
            if dual {
                service = service.cluster_ip(&format!("fd00::{own}"));
            }
            if internal {
                service = service.internal_local();
            }
            if outside {
                service = service.external_local();
            }
            if ranged {
                service = service.source_ranges(&["192.0.2.0/24", "fd00::/64"]);
            }
            service.affinity_seconds = sticky.then_some(crate::model::DEFAULT_AFFINITY_SECONDS);
            service.health_check_field = check.then(|| port(32000));
            let mut list: Vec<_> = ports
                .into_iter()
                .map(|(which, node_port)| {
                    let (name, protocol, number) = [
                        ("http", Protocol::Tcp, 80),
                        ("dns", Protocol::Udp, 53),
                        ("dns", Protocol::Tcp, 53),
                    ][which];
                    let mut port_of = service_port(name, protocol, number);
                    port_of.node_port =
                        node_port.then(|| port(30000 + i64::try_from(which).unwrap()));
                    port_of
                })
                .collect();
            list.sort_by_key(|port| (port.name.clone(), port.protocol));
            list.dedup_by_key(|port| (port.name.clone(), port.protocol));
            service.ports = list.into();
            service
        },
    )
}

fn endpoints() -> impl Strategy<Value = SliceEndpoint> {
    let zones = prop::option::of(prop::sample::subsequence(&ZONES[..], 1..=2));
    (
        0..6_u8,
        any::<[bool; 4]>(),
        prop::option::weighted(0.3, any::<bool>()),
        zones,
    )
        .prop_map(
            |(last, [local, ready, serving, terminating], node_hint, zones)| {
                let mut endpoint = ep(&format!("10.1.0.{last}"));
                (endpoint.local, endpoint.ready) = (local, ready);
                (endpoint.serving, endpoint.terminating) = (serving, terminating);
                endpoint.node_hint = node_hint;
                match zones {
                    Some(zones) => endpoint.zones(&zones),
                    None => endpoint,
                }
            },
        )
}

fn slices() -> impl Strategy<Value = Slice> {
    let identity = (select(&SLICES[..]), select(&SERVICES[..]), any::<bool>());
    (identity, prop::collection::vec(endpoints(), 0..5)).prop_map(
        |((key, owner, both), endpoints)| {
            let mut slice = slice(key, owner, &endpoints);
            let mut ports = vec![slice_port("http", Protocol::Tcp, 8080)];
            if both {
                ports.push(slice_port("dns", Protocol::Udp, 5353));
            }
            slice.ports = ports.into();
            slice
        },
    )
}

fn deeds() -> impl Strategy<Value = Deed> {
    let nodes = (
        prop::option::of(select(&ZONES[..])),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(zone, address, cidr)| Node {
            name: "here".into(),
            zone: zone.map(Into::into),
            addresses: address.then(|| ip("192.0.2.1")).into_iter().collect(),
            pod_cidrs: cidr
                .then(|| "10.1.0.0/24".parse().unwrap())
                .into_iter()
                .collect(),
            leaving: false,
        });
    prop_oneof![
        6 => services().prop_map(Deed::Service),
        2 => select(&SERVICES[..]).prop_map(|key| Deed::NoService(service_key(key))),
        8 => slices().prop_map(Deed::Slice),
        2 => select(&SLICES[..]).prop_map(|key| Deed::NoSlice(slice_key(key))),
        1 => nodes.prop_map(Deed::Node),
        1 => select(&["x", "y"][..]).prop_map(|name| Deed::Cidr(name, &["10.96.0.0/16", "fd00::/112"])),
        1 => select(&["x", "y"][..]).prop_map(Deed::NoCidr),
        4 => Just(Deed::Update),
    ]
}

fn settings() -> Settings {
    Settings {
        detect_local: DetectLocal::NodeCidr,
        node_port_addresses: NodePortAddresses::parse(&["primary"]).unwrap(),
        ..Settings::default()
    }
}

fn event(deed: &Deed) -> Option<Event> {
    Some(match deed.clone() {
        Deed::Service(service) => put(Object::Service(service)),
        Deed::NoService(key) => gone(ObjectKey::Service(key)),
        Deed::Slice(slice) => put(Object::Slice(slice)),
        Deed::NoSlice(key) => gone(ObjectKey::Slice(key)),
        Deed::Node(node) => put(Object::Node(node)),
        Deed::Cidr(name, cidrs) => put(Object::ServiceCidr(crate::model::ServiceCidr {
            name: name.into(),
            cidrs: cidrs.iter().map(|net| net.parse().unwrap()).collect(),
        })),
        Deed::NoCidr(name) => gone(ObjectKey::ServiceCidr(name.into())),
        Deed::Update => return None,
    })
}

/// Everything that is visible of a desired state.
fn visible(scene: &Cluster) -> String {
    let families = Family::ALL.map(|family| {
        let health: Vec<_> = SERVICES
            .map(|key| scene.desired.health_check(family, &service_key(key)))
            .into();
        (
            scene
                .desired
                .exposures(family)
                .into_iter()
                .cloned()
                .collect::<Vec<_>>(),
            health,
            scene.desired.totals(family),
            scene.desired.facts(family).clone(),
        )
    });
    format!("{families:#?}\n{:#?}", scene.desired.issues())
}

/// A new program that sees only the final objects, in an order of its own.
fn from_scratch(deeds: &[Deed], backwards: bool) -> Cluster {
    let mut last: BTreeMap<ObjectKey, Event> = BTreeMap::new();
    for event in deeds.iter().filter_map(event) {
        match &event {
            Event::Put { object, .. } => {
                last.insert(object.key(), event);
            }
            Event::Gone { key, .. } => {
                last.remove(key);
            }
            Event::Undecodable { .. } | Event::Listing(_) | Event::Listed(_) => {}
        }
    }
    let mut scene = Cluster::with(settings());
    let mut events: Vec<_> = last.into_values().collect();
    if backwards {
        events.reverse();
    }
    for event in events {
        scene.tracker.on(event);
    }
    scene.step();
    scene
}

/// Plays the deeds, checking every delta against the states before and after it.
fn play(deeds: &[Deed]) -> Cluster {
    let mut scene = Cluster::with(settings());
    let mut mirror: PerFamily<BTreeMap<PortKey, Arc<Exposure>>> = PerFamily::default();
    for deed in deeds.iter().chain([&Deed::Update]) {
        if let Some(event) = event(deed) {
            scene.tracker.on(event);
            assert_eq!(
                scene.tracker.pending_counts(),
                scene.tracker.count_pending()
            );
            continue;
        }
        let delta = scene.step();
        for family in Family::ALL {
            let mirror = &mut mirror[family];
            for (key, change) in &delta.families[family].changes {
                assert_ne!(
                    change.before, change.after,
                    "{key} is in the delta but the same"
                );
                assert_eq!(
                    mirror.get(key),
                    change.before.as_ref(),
                    "{key} was another before"
                );
                match &change.after {
                    Some(after) => mirror.insert(key.clone(), after.clone()),
                    None => mirror.remove(key),
                };
            }
            let all = scene.desired.exposures(family);
            assert!(
                mirror.values().eq(all.iter().copied()),
                "the deltas lead elsewhere"
            );
            one_holder_per_address(&all);
            let counted = scene.desired.families[family].standings();
            assert_eq!(*counted, standings(&all), "counted wrongly");
        }
    }
    scene
}

fn one_holder_per_address(exposures: &[&Arc<Exposure>]) {
    let mut holders: BTreeMap<Address, Vec<bool>> = BTreeMap::new();
    for exposure in exposures {
        for frontend in &exposure.frontends {
            holders
                .entry(exposure.address(frontend))
                .or_default()
                .push(!frontend.shadowed);
        }
    }
    for (address, held) in holders {
        assert_eq!(held.iter().filter(|held| **held).count(), 1, "{address:?}");
    }
}

/// How many addresses each Service lost to others, and holds while others wait: counted afresh.
fn standings(exposures: &[&Arc<Exposure>]) -> BTreeMap<ServiceKey, Standing> {
    let mut claimants: BTreeMap<Address, BTreeMap<&PortKey, bool>> = BTreeMap::new();
    for exposure in exposures {
        for frontend in &exposure.frontends {
            let ports = claimants.entry(exposure.address(frontend)).or_default();
            *ports.entry(&exposure.key).or_default() |= !frontend.shadowed;
        }
    }
    let mut standings: BTreeMap<ServiceKey, Standing> = BTreeMap::new();
    for ports in claimants.values().filter(|ports| ports.len() > 1) {
        for (port, holds) in ports {
            let standing = standings.entry(port.service.clone()).or_default();
            standing.held += usize::from(*holds);
            standing.lost += usize::from(!holds);
        }
    }
    standings
}

/// Plays the deeds beside a copy that learns only the news of each update.
fn explained(deeds: &[Deed]) -> (Cluster, Known) {
    let mut scene = Cluster::with(settings());
    let mut known = Known::new(settings());
    for deed in deeds.iter().chain([&Deed::Update]) {
        if let Some(event) = event(deed) {
            scene.tracker.on(event);
        } else if let Some(changes) = scene.take() {
            known.learn(News::of(&scene.tracker, &changes));
            scene.desired.update(&scene.tracker, changes);
        }
    }
    (scene, known)
}

/// The explanation has the exposure that is desired, and verdicts that are its pools.
fn explains(explained: &Explained, desired: &Exposure) {
    assert_eq!(explained.exposure, *desired);
    for (pool, used) in [(Pool::Cluster, 0), (Pool::Local, 1)] {
        let verdicts = explained.endpoints.iter().map(|e| (e, e.verdict(pool)));
        let chosen: Vec<_> = verdicts
            .filter(|(_, verdict)| verdict.is_chosen())
            .map(|(endpoint, _)| (endpoint.ip, endpoint.port))
            .collect();
        let pooled: Vec<_> = desired.pool(pool).map(|e| (e.ip, e.port)).collect();
        assert_eq!(chosen, pooled, "pool {used}");
    }
    let refused = desired.frontends.iter().any(|f| f.action == Action::Reject);
    assert_eq!(explained.lack.is_some(), refused, "why it refuses");
    for (frontend, claimants) in desired.frontends.iter().zip(&explained.claimants) {
        let first = &claimants[0];
        let holds = first.key == desired.key && first.kind == frontend.kind;
        assert_eq!(holds, !frontend.shadowed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn incremental_equals_from_scratch(deeds in prop::collection::vec(deeds(), 0..60)) {
        let lived = play(&deeds);
        prop_assert_eq!(visible(&lived), visible(&from_scratch(&deeds, false)));
    }

    #[test]
    fn explanations_are_of_what_is_desired(deeds in prop::collection::vec(deeds(), 0..60)) {
        let (scene, known) = explained(&deeds);
        let drawn = known.desired();
        for family in Family::ALL {
            prop_assert_eq!(drawn.exposures(family), scene.desired.exposures(family));
            let mut count = 0;
            for key in SERVICES.map(service_key) {
                let health = scene.desired.health_check(family, &key);
                for explained in known.explain(&key, family) {
                    let desired = scene.desired.exposure(family, &explained.exposure.key);
                    explains(&explained, desired.expect("it is desired"));
                    prop_assert_eq!(explained.health, health);
                    count += 1;
                }
            }
            prop_assert_eq!(count, scene.desired.exposures(family).len());
            prop_assert_eq!(known.facts(family), scene.desired.facts(family));
        }
    }

    #[test]
    fn the_order_of_arrival_does_not_matter(deeds in prop::collection::vec(deeds(), 0..40)) {
        prop_assert_eq!(
            visible(&from_scratch(&deeds, false)),
            visible(&from_scratch(&deeds, true))
        );
    }

    #[test]
    fn interleaved_arrival_does_not_matter(
        deeds in prop::collection::vec(deeds(), 0..30),
        seed in any::<u64>(),
    ) {
        // Events of different objects may overtake each other; those of one object may not.
        let mut lanes: BTreeMap<ObjectKey, std::collections::VecDeque<Event>> = BTreeMap::new();
        for event in deeds.iter().filter_map(event) {
            let key = match &event {
                Event::Put { object, .. } => object.key(),
                Event::Gone { key, .. } | Event::Undecodable { key, .. } => key.clone(),
                Event::Listing(_) | Event::Listed(_) => continue,
            };
            lanes.entry(key).or_default().push_back(event);
        }
        let mut scene = Cluster::with(settings());
        let mut seed = seed;
        while !lanes.is_empty() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = usize::try_from(seed >> 33).unwrap() % lanes.len();
            let key = lanes.keys().nth(at).unwrap().clone();
            let lane = lanes.get_mut(&key).unwrap();
            scene.tracker.on(lane.pop_front().unwrap());
            if lane.is_empty() {
                lanes.remove(&key);
            }
            if seed.is_multiple_of(5) {
                scene.step();
            }
        }
        scene.step();
        prop_assert_eq!(visible(&scene), visible(&from_scratch(&deeds, false)));
    }

    #[test]
    fn change_and_change_back_yields_no_delta(
        base in prop::collection::vec(deeds(), 0..30),
        detour in prop::collection::vec(deeds(), 1..20),
    ) {
        let mut scene = play(&base);
        let detour: Vec<_> = detour.into_iter().filter(|d| !matches!(d, Deed::Update | Deed::Node(_))).collect();
        for event in detour.iter().filter_map(event) {
            scene.tracker.on(event);
        }
        // Back to the final objects of the base.
        let mut last: BTreeMap<ObjectKey, Event> = BTreeMap::new();
        for event in detour.iter().filter_map(event).map(|event| match event {
            Event::Put { object, .. } => gone(object.key()),
            other => other,
        }).chain(base.iter().filter_map(event)) {
            let key = match &event {
                Event::Put { object, .. } => object.key(),
                Event::Gone { key, .. } | Event::Undecodable { key, .. } => key.clone(),
                Event::Listing(_) | Event::Listed(_) => continue,
            };
            last.insert(key, event);
        }
        let before = visible(&scene);
        for event in last.into_values() {
            scene.tracker.on(event);
        }
        prop_assert_eq!(scene.tracker.pending_counts(), (0, 0), "struck out");
        prop_assert!(scene.step().is_empty());
        prop_assert_eq!(before, visible(&scene));
    }

    #[test]
    fn replaying_the_lists_changes_nothing(deeds in prop::collection::vec(deeds(), 0..40)) {
        let mut scene = play(&deeds);
        let mut last: BTreeMap<ObjectKey, Event> = BTreeMap::new();
        for event in deeds.iter().filter_map(event) {
            match &event {
                Event::Put { object, .. } => { last.insert(object.key(), event); }
                Event::Gone { key, .. } => { last.remove(key); }
                Event::Undecodable { .. } | Event::Listing(_) | Event::Listed(_) => {}
            }
        }
        for kind in crate::issue::Kind::ALL {
            scene.tracker.on(Event::Listing(kind));
            for (key, event) in &last {
                if key.kind() == kind {
                    scene.tracker.on(event.clone());
                }
            }
            scene.tracker.on(Event::Listed(kind));
        }
        prop_assert!(!scene.tracker.has_pending());
    }

    #[test]
    fn absorbed_deltas_lead_to_the_same_place(deeds in prop::collection::vec(deeds(), 0..40)) {
        let mut scene = Cluster::with(settings());
        let mut kept: PerFamily<FamilyDelta> = PerFamily::default();
        for deed in deeds.iter().chain([&Deed::Update]) {
            if let Some(event) = event(deed) {
                scene.tracker.on(event);
            } else {
                let delta = scene.step().families;
                kept.v4.absorb(delta.v4);
                kept.v6.absorb(delta.v6);
            }
        }
        for family in Family::ALL {
            let changed: Vec<_> = kept[family].changed().map(|(_, e)| e.clone()).collect();
            let all: Vec<_> = scene.desired.exposures(family).into_iter().cloned().collect();
            prop_assert_eq!(changed, all);
            prop_assert_eq!(kept[family].removed().count(), 0);
        }
    }
}
