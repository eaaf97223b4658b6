//! Any sequence of changes leads where a fresh start leads, step by step; also when one request in
//! a few fails, and when the program is killed at any point.

use ferrule_core::facts::{DetectLocal, NodePortAddresses, Settings};
use ferrule_core::model::{Family, ServicePort, TrafficPolicy};
use ferrule_dataplane::nftables::Options;
use ferrule_kernel::recorder::Answer;
use ferrule_kernel::socket::Transport;
use nix::errno::Errno;
use proptest::prelude::*;

use crate::flaky::{Fault, Faults, refuse};
use crate::support::*;
use crate::twin::Twin;

/// Something that happens to one of a few Services, or around them.
#[derive(Clone, Debug)]
pub enum Happening {
    Service {
        number: u8,
        drawn: Drawn,
    },
    Endpoints {
        number: u8,
        pods: Vec<(u8, bool, State)>,
    },
    Gone(u8),
    NoEndpoints(u8),
    Cidr(Option<u8>),
    Node(u8),
    Settings(u8),
    Options(u8),
}

/// What a Service is like.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// Whose cluster IP it has; two may claim the same one.
    address: u8,
    /// Bits: NodePort, load balancer, external IP.
    exposed: u8,
    /// Whose other addresses it has.
    others: u8,
    inside_local: bool,
    outside_local: bool,
    affinity: Option<u32>,
    /// Which of a few lists of ranges.
    ranges: u8,
    /// Which protocols.
    ports: u8,
    created: i64,
}

/// How a pod is doing.
#[derive(Clone, Copy, Debug)]
pub enum State {
    Ready,
    Draining,
    Failing,
}

pub fn happenings() -> impl Strategy<Value = Happening> {
    let number = || 0..3_u8;
    let state =
        prop_oneof![4 => Just(State::Ready), 1 => Just(State::Draining), 1 => Just(State::Failing)];
    let pods = proptest::collection::btree_map(1..6_u8, (any::<bool>(), state), 0..5);
    let pods = pods.prop_map(|pods| {
        let pods = pods.into_iter();
        pods.map(|(pod, (local, state))| (pod, local, state))
            .collect()
    });
    prop_oneof![
        5 => (number(), drawn()).prop_map(|(number, drawn)| Happening::Service { number, drawn }),
        6 => (number(), pods).prop_map(|(number, pods)| Happening::Endpoints { number, pods }),
        1 => number().prop_map(Happening::Gone),
        1 => number().prop_map(Happening::NoEndpoints),
        1 => proptest::option::of(0..3_u8).prop_map(Happening::Cidr),
        1 => (1..3_u8).prop_map(Happening::Node),
        1 => (0..7_u8).prop_map(Happening::Settings),
        1 => (0..3_u8).prop_map(Happening::Options),
    ]
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let affinity = proptest::option::weighted(0.3, 1..3_u32);
    let small = (0..3_u8, 0..8_u8, 0..3_u8, 0..6_u8, 0..4_u8);
    let policies = (any::<bool>(), any::<bool>());
    (small, policies, affinity, 0..3_i64).prop_map(
        |((address, exposed, others, ranges, ports), policies, affinity, created)| Drawn {
            address,
            exposed,
            others,
            inside_local: policies.0,
            outside_local: policies.1,
            affinity,
            ranges,
            ports,
            created,
        },
    )
}

fn name(number: u8) -> String {
    format!("s{number}")
}

/// Lists of ranges that overlap, touch, repeat, include the node or belong to the other family.
fn ranges(family: Family, which: u8) -> &'static [&'static str] {
    match (family, which) {
        (_, 0) => &[],
        (Family::V4, 1) => &["10.2.0.0/16", "10.2.3.0/24", "192.0.2.0/24"],
        (Family::V4, 2) => &["192.0.2.0/25", "192.0.2.128/25"],
        (Family::V4, 3) => &["192.0.2.64/26", "10.2.0.1/32", "2001:db8::/32"],
        (Family::V4, 4) => &["0.0.0.0/1", "255.255.255.255/32"],
        (Family::V4, _) => &["192.0.2.0/24", "0.0.0.0/0"],
        (Family::V6, 1) => &["fd00::2:0/112", "fd00::2:3:0/112", "2001:db8::/32"],
        (Family::V6, 2) => &["2001:db8::/33", "2001:db8:8000::/33"],
        (Family::V6, 3) => &["2001:db8:4000::/34", "fd00::2:1/128", "192.0.2.0/24"],
        (Family::V6, 4) => &["::/1", "ffff:ffff::/32"],
        (Family::V6, _) => &["2001:db8::/32", "::/0"],
    }
}

fn build(family: Family, number: u8, drawn: &Drawn) -> ferrule_core::model::Service {
    let mut new = service(family, &name(number), drawn.address);
    new.created = drawn.created;
    if drawn.exposed & 1 != 0 {
        new = new.node_port(30000 + i64::from(drawn.others));
    }
    if drawn.exposed & 2 != 0 {
        let vip = address(family, 9, drawn.others);
        new = new
            .load_balancer(&[vip])
            .source_ranges(ranges(family, drawn.ranges));
    }
    if drawn.exposed & 4 != 0 {
        // Sometimes one that is a load balancer's, or a cluster IP, elsewhere.
        let ips = [(8, drawn.others), (9, 0), (96, 2)];
        let ips = ips.map(|(x, y)| address(family, x, y));
        new.external_ips = ips[..usize::from(1 + drawn.others % 3)].into();
    }
    let policy = |local| {
        if local {
            TrafficPolicy::Local
        } else {
            TrafficPolicy::Cluster
        }
    };
    new.internal_policy = policy(drawn.inside_local);
    new.external_policy_field = policy(drawn.outside_local);
    let all = new.clone().over(&PROTOCOLS).ports;
    let extra = ServicePort {
        port: ferrule_core::model::Port::new(81).unwrap(),
        node_port: None,
        ..all[0].clone()
    };
    let extra = ServicePort {
        name: "http".into(),
        ..extra
    };
    new.ports = match drawn.ports {
        0 => new.ports,
        1 => all[1..].into(),
        2 => all,
        _ => [all[0].clone(), extra].into(),
    };
    match drawn.affinity {
        Some(minutes) => new.affinity(minutes * 60),
        None => new,
    }
}

fn settings(family: Family, which: u8) -> Settings {
    let nets = |family| match family {
        Family::V4 => "10.1.0.0/16",
        Family::V6 => "fd00::1:0/112",
    };
    let detect_local = match which {
        0 => DetectLocal::ClusterCidr(Box::default()),
        1 | 4 => DetectLocal::ClusterCidr([nets(family).parse().unwrap()].into()),
        2 => DetectLocal::NodeCidr,
        3 => DetectLocal::BridgeInterface("cbr0".into()),
        5 => DetectLocal::BridgeInterface("a-name-too-long-for-linux".into()),
        _ => DetectLocal::InterfaceNamePrefix("veth".into()),
    };
    let node_ports: &[&str] = match which {
        0 | 3 => &[],
        1 => &["primary"],
        2 => &["10.2.0.0/24", "10.2.0.0/16", "fd00::2:0/112"],
        4 => &["localhost", "primary"],
        5 => &["10.0.0.0/8"],
        _ => &["all"],
    };
    Settings {
        detect_local,
        node_port_addresses: NodePortAddresses::parse(node_ports).unwrap(),
        allow_external_ips: which != 6,
        masquerade_all: which == 4,
        ..Settings::default()
    }
}

pub fn happen<T: Transport + Send>(scene: &mut Scene<T>, happening: &Happening) {
    let family = scene.family;
    match happening {
        Happening::Service { number, drawn } => {
            scene.service(build(family, *number, drawn));
        }
        Happening::Endpoints { number, pods } => {
            let list: Vec<_> = pods
                .iter()
                .map(|(pod, local, _)| (address(family, 1, *pod), *local))
                .collect();
            let mut slice = slice(family, &name(*number), &list);
            let all = slice.clone().over(&PROTOCOLS).ports;
            slice.ports = slice.ports.iter().chain(&all).cloned().collect();
            for (endpoint, (.., state)) in slice.endpoints.iter_mut().zip(pods) {
                endpoint.ready = matches!(state, State::Ready);
                endpoint.serving = !matches!(state, State::Failing);
                endpoint.terminating = matches!(state, State::Draining);
            }
            scene.slice(slice);
        }
        Happening::Gone(number) => {
            scene.no_service(&name(*number));
        }
        Happening::NoEndpoints(number) => {
            scene.no_slice(&format!("{}-1", name(*number)));
        }
        Happening::Cidr(Some(number)) => {
            let net = match family {
                Family::V4 => format!("10.{}.0.0/16", 96 + number),
                Family::V6 => format!("fd00::{}:0/112", 60 + number),
            };
            scene.service_cidr("kubernetes", &[&net]);
        }
        Happening::Cidr(None) => {
            scene.no_service_cidr("kubernetes");
        }
        Happening::Node(number) => {
            let pods = ferrule_testbed::net(family, 1, 8);
            scene.node(node("here").at(address(family, 2, *number)).pods(&[&pods]));
        }
        Happening::Settings(which) => {
            scene.settings(settings(family, *which));
        }
        Happening::Options(which) => {
            scene.options(Options {
                mark: 1 << (which + 13),
                ..Options::default()
            });
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Vec<Happening>>> {
    proptest::collection::vec(proptest::collection::vec(happenings(), 1..4), 1..12)
}

fn families() -> impl Strategy<Value = Family> {
    prop_oneof![Just(Family::V4), Just(Family::V6)]
}

/// What goes wrong in one step, if something does.
fn faults() -> impl Strategy<Value = Option<Fault>> {
    let errno = prop_oneof![
        Just(Errno::ENOENT),
        Just(Errno::EEXIST),
        Just(Errno::EBUSY),
        Just(Errno::ENOMEM),
        Just(Errno::ERESTART),
    ];
    let fault = prop_oneof![
        3 => (0..4_usize, errno).prop_map(|(message, errno)| Fault::Batch(refuse(message, errno))),
        1 => Just(Fault::RefuseLast(Errno::EBUSY)),
        1 => Just(Fault::Batch(Answer::Overrun)),
        1 => Just(Fault::Batch(Answer::Silence)),
        1 => Just(Fault::Batch(Answer::Unsent(Errno::ENOBUFS as i32))),
        2 => Just(Fault::Unheard),
        1 => Just(Fault::Meddle),
        1 => Just(Fault::Dump(Answer::Interrupt(Vec::new()))),
        1 => Just(Fault::Dump(Answer::Overrun)),
    ];
    proptest::option::weighted(0.4, fault)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_changes_leads_where_a_fresh_start_leads(
        steps in steps(),
        family in families(),
    ) {
        in_namespace(|| {
            let mut scene = Scene::new(family);
            scene.whole();
            let mut twin = Twin::new(&scene);
            for happenings in &steps {
                for happening in happenings {
                    happen(&mut scene, happening);
                }
                scene.step();
                twin.assert_like(&scene);
            }
            // The first look writes nothing, the next one removes chains that nothing leads to.
            scene.restart();
            assert_eq!(scene.whole(), 0);
            twin.assert_like(&scene);
            scene.whole();
            twin.assert_like(&scene);
            assert_eq!(scene.whole(), 0);
        });
    }

    #[test]
    fn whatever_fails_and_whenever_it_is_killed_it_gets_there_in_the_end(
        steps in proptest::collection::vec(
            (proptest::collection::vec(happenings(), 1..4), faults(), any::<bool>()), 1..12),
        family in families(),
    ) {
        in_namespace(|| {
            let planned = Faults::default();
            let mut scene = Scene::flaky(family, &planned);
            scene.whole();
            let mut twin = Twin::new(&scene);
            for (happenings, fault, killed) in &steps {
                for happening in happenings {
                    happen(&mut scene, happening);
                }
                let before = scene.snapshot();
                fault.clone().into_iter().for_each(|fault| planned.add(fault));
                let outcome = scene.try_step();
                let failed = outcome.is_err();
                // Where everything is compared, whose rules are refused is left out at once.
                let left_out = outcome.is_ok_and(|applied| !applied.refused.is_empty());
                planned.clear();
                if failed && !matches!(fault, Some(Fault::Unheard)) {
                    // Others may have meddled, but not here.
                    let after = scene.snapshot();
                    assert_eq!(after.elements, before.elements);
                    assert_eq!((after.chains, after.rules), (before.chains, before.rules));
                }
                if *killed {
                    scene.restart();
                }
                if failed || left_out || *killed {
                    scene.whole();
                }
                twin.assert_like(&scene);
            }
        });
    }
}
