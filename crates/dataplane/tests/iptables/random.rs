//! Any sequence of changes leads where a fresh start leads.

use std::collections::BTreeMap;

use ferrule_core::model::{Family, Port, Service, TrafficPolicy};
use ferrule_kernel::xt::Flavour;
use proptest::prelude::*;

use crate::state::agrees_with_fresh;
use crate::support::*;

/// Something that happens to one of a few Services.
#[derive(Clone, Debug)]
pub enum Happening {
    Service {
        number: u8,
        /// Whose addresses it has; two may claim the same ones.
        address: u8,
        exposed: u8,
        local: bool,
        affinity: Option<u32>,
        guarded: bool,
        created: i64,
    },
    Endpoints {
        number: u8,
        pods: BTreeMap<u8, bool>,
    },
    Gone(u8),
}

pub fn happenings() -> impl Strategy<Value = Happening> {
    let number = || 0..4_u8;
    let pods = proptest::collection::btree_map(1..6_u8, any::<bool>(), 0..4);
    let affinity = proptest::option::weighted(0.3, 1..3_u32);
    let shape = (0..16_u8, any::<bool>(), affinity, any::<bool>(), 0..3_i64);
    prop_oneof![
        4 => (number(), number(), shape).prop_map(|(number, address, shape)| {
            let (exposed, local, affinity, guarded, created) = shape;
            Happening::Service { number, address, exposed, local, affinity, guarded, created }
        }),
        6 => (number(), pods).prop_map(|(number, pods)| Happening::Endpoints { number, pods }),
        1 => number().prop_map(Happening::Gone),
    ]
}

fn name(number: u8) -> String {
    format!("s{number}")
}

fn drawn(family: Family, happening: &Happening) -> Option<Service> {
    let Happening::Service {
        number,
        address: claimed,
        exposed,
        local,
        affinity,
        guarded,
        created,
    } = happening
    else {
        return None;
    };
    let mut new = service(&name(*number), address(family, 96, *claimed));
    new.created = *created;
    if *local {
        new.external_policy_field = TrafficPolicy::Local;
        new.internal_policy = TrafficPolicy::Local;
        new.health_check_field = Port::new(31000 + i64::from(*number));
    }
    if exposed & 1 != 0 {
        new = new.node_port(30000 + i64::from(*claimed));
    }
    if exposed & 2 != 0 {
        let ranges: &[&str] = match family {
            _ if !guarded => &[],
            Family::V4 => &["10.2.0.0/16", "192.0.2.0/24"],
            Family::V6 => &["fd00::2:0/112", "2001:db8::/32"],
        };
        new = new
            .load_balancer(&[address(family, 9, *claimed)])
            .source_ranges(ranges);
    }
    if exposed & 4 != 0 {
        // One of them may be another Service's load balancer address.
        new.external_ips = [address(family, 8, *claimed), address(family, 9, 1)].into();
    }
    if exposed & 8 != 0 {
        // Two ports of the same name; their health checks look the same.
        let mut udp = new.ports[0].clone();
        udp.protocol = ferrule_core::model::Protocol::Udp;
        udp.node_port = None;
        new.ports = [new.ports[0].clone(), udp].into();
    }
    if let Some(minutes) = affinity {
        new = new.affinity(minutes * 60);
    }
    Some(new)
}

pub fn happen(scene: &mut Scene, happening: &Happening) {
    let family = scene.family;
    match happening {
        Happening::Service { .. } => {
            scene.service(drawn(family, happening).unwrap());
        }
        Happening::Endpoints { number, pods } => {
            let pods: Vec<_> = pods
                .iter()
                .map(|(pod, local)| (address(family, 1, *pod), *local))
                .collect();
            let of = service(&name(*number), address(family, 96, 0));
            scene.slice(slice(&of, 8080, &pods));
        }
        Happening::Gone(number) => {
            scene.no_service(&name(*number));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_changes_leads_where_a_fresh_start_leads(
        steps in proptest::collection::vec(proptest::collection::vec(happenings(), 1..4), 1..8),
        six in any::<bool>(),
        way in 0..3_u8,
    ) {
        in_namespace(|| {
            let family = if six { Family::V6 } else { Family::V4 };
            let flavour = if way == 0 { Flavour::Legacy } else { Flavour::Nft };
            let mut scene = Scene::new(family, flavour);
            // The nft flavour by programs, and directly.
            scene.programs = way == 1;
            scene.restart();
            scene.whole();
            for happenings in &steps {
                for happening in happenings {
                    happen(&mut scene, happening);
                }
                scene.step();
                assert_eq!(scene.step(), 0);
                assert!(scene.is_intact());
                let found = scene.saved();
                // Nothing is left to do, as seen by one who knows nothing.
                scene.restart();
                assert_eq!(scene.whole(), 0, "{found}");
            }
            agrees_with_fresh(&mut scene);
        });
    }
}
