//! Any sequence of changes leads where a fresh start leads.

use ferrule_core::model::{Family, ServiceKey, TrafficPolicy};
use proptest::prelude::*;

use crate::state::agrees_with_fresh;
use crate::support::*;

/// Something that happens to one of a few Services.
#[derive(Clone, Debug)]
pub enum Happening {
    Service {
        number: u8,
        /// Whose cluster IP it has; two may claim the same one.
        address: u8,
        exposed: u8,
        local: bool,
        affinity: Option<u32>,
        guarded: bool,
    },
    Endpoints {
        number: u8,
        pods: Vec<(u8, bool)>,
    },
    Gone(u8),
    Cidr(u8),
}

pub fn happenings() -> impl Strategy<Value = Happening> {
    let number = || 0..3_u8;
    let pods = proptest::collection::btree_map(1..6_u8, any::<bool>(), 0..5);
    prop_oneof![
        4 => (number(), 0..3_u8, 0..4_u8, any::<bool>(), proptest::option::weighted(0.3, 1..3_u32), any::<bool>())
            .prop_map(|(number, address, exposed, local, affinity, guarded)| Happening::Service {
                number, address, exposed, local, affinity, guarded
            }),
        6 => (number(), pods).prop_map(|(number, pods)| Happening::Endpoints {
            number,
            pods: pods.into_iter().collect(),
        }),
        1 => number().prop_map(Happening::Gone),
        1 => (0..3_u8).prop_map(Happening::Cidr),
    ]
}

fn name(number: u8) -> String {
    format!("s{number}")
}

pub fn happen(scene: &mut Scene, happening: &Happening) {
    let family = scene.family;
    match happening {
        Happening::Service {
            number,
            address: claimed,
            exposed,
            local,
            affinity,
            guarded,
        } => {
            let mut new = service(family, &name(*number), *claimed);
            new.key = ServiceKey::new("demo", &name(*number));
            if *local {
                new.external_policy_field = TrafficPolicy::Local;
                new.internal_policy = TrafficPolicy::Local;
            }
            if exposed & 1 != 0 {
                new = with_node_port(new, 30000 + i64::from(*claimed));
            }
            if exposed & 2 != 0 {
                let ranges: &[&str] = match family {
                    _ if !guarded => &[],
                    Family::V4 => &["10.2.0.0/16", "10.2.3.0/24", "192.0.2.0/24"],
                    Family::V6 => &["fd00::2:0/112", "2001:db8::/32"],
                };
                new = with_load_balancer(new, address(family, 9, *claimed), ranges);
            }
            if let Some(minutes) = affinity {
                new = with_affinity(new, minutes * 60);
            }
            scene.service(new);
        }
        Happening::Endpoints { number, pods } => {
            let pods: Vec<_> = pods
                .iter()
                .map(|(pod, local)| (address(family, 1, *pod), *local))
                .collect();
            scene.slice(slice(family, &name(*number), &pods));
        }
        Happening::Gone(number) => {
            scene.no_service(&name(*number));
        }
        Happening::Cidr(number) => {
            let net = match family {
                Family::V4 => format!("10.{}.0.0/16", 96 + number),
                Family::V6 => format!("fd00::{}:0/112", 60 + number),
            };
            scene.service_cidr(&net);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_changes_leads_where_a_fresh_start_leads(
        steps in proptest::collection::vec(proptest::collection::vec(happenings(), 1..4), 1..12),
        six in any::<bool>(),
    ) {
        in_namespace(|| {
            let mut scene = Scene::new(if six { Family::V6 } else { Family::V4 });
            scene.whole();
            for happenings in &steps {
                for happening in happenings {
                    happen(&mut scene, happening);
                }
                scene.step();
            }
            agrees_with_fresh(&mut scene);
            scene.restart();
            assert_eq!(scene.whole(), 0);
        });
    }
}
