//! What is written directly is, byte for byte, what `iptables-nft-restore` would have written.

use ferrule_core::facts::{DetectLocal, NodePortAddresses, Settings};
use ferrule_core::model::{Family, Protocol};
use ferrule_kernel::nft::{BaseChain, Expr, Nft};
use ferrule_kernel::xt::Flavour;

use crate::state::everything;
use crate::support::*;

/// A chain: its table, its name, where packets enter it, and its rules.
type Chain = (String, String, Option<BaseChain>, Vec<Vec<Expr>>);

/// All chains of all tables of iptables, in no order that matters.
fn dump(family: Family) -> Vec<Chain> {
    let mut nft = Nft::open().unwrap();
    let family = kernel(family);
    let mut dump: Vec<Chain> = nft
        .all_chains(family)
        .unwrap()
        .into_iter()
        .map(|held| {
            let rules = nft.rules_of(family, &held.table, &held.object.name);
            let rules = rules.unwrap().into_iter();
            (
                held.table.to_string(),
                held.object.name.to_string(),
                held.object.base,
                rules.map(|held| held.object.expressions).collect(),
            )
        })
        .collect();
    dump.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    dump
}

/// Every kind of address, policy, protocol and affinity.
fn colourful(scene: &mut Scene) {
    everything(scene);
    let family = scene.family;
    let a = |x, y| address(family, x, y);
    for (number, protocol) in [(20, Protocol::Udp), (21, Protocol::Sctp)] {
        let mut new = service(protocol.lower(), a(96, number));
        new = new.node_port(30000 + i64::from(number));
        new.ports[0].protocol = protocol;
        scene.both(&new, 8080, &[(a(1, number), true), (a(1, 99), false)]);
        let mut none = service(&format!("no-{}", protocol.lower()), a(97, number));
        none = none.node_port(31000 + i64::from(number));
        none.ports[0].protocol = protocol;
        scene.service(&none);
    }
}

/// What both ways write for a cluster, and that neither finds anything to do after the other.
fn agree(family: Family, settings: &Settings) {
    let mut written = Vec::new();
    for directly in [false, true] {
        let settings = settings.clone();
        let mut found = None;
        in_namespace(|| {
            let mut scene = Scene::with(family, Flavour::Nft, settings);
            scene.programs = !directly;
            scene.restart();
            colourful(&mut scene);
            assert!(scene.whole() > 50);
            assert_eq!(scene.whole(), 0);
            let (dump, saved) = (dump(family), scene.saved());
            scene.programs = directly;
            scene.restart();
            found = Some((dump, saved, scene.whole()));
        });
        written.extend(found);
    }
    let [
        (by_programs, saved, steps),
        (directly, saved_directly, steps_directly),
    ] = &written[..]
    else {
        return;
    };
    for (one, other) in by_programs.iter().zip(directly) {
        assert_eq!((&one.0, &one.1, &one.2), (&other.0, &other.1, &other.2));
        for (one, other) in one.3.iter().flatten().zip(other.3.iter().flatten()) {
            assert_eq!(one, other);
        }
        assert_eq!(one.3, other.3);
    }
    assert_eq!(by_programs.len(), directly.len());
    assert_eq!(saved, saved_directly);
    assert_eq!((*steps, *steps_directly), (0, 0));
}

#[test]
fn every_rule_is_encoded_as_iptables_does() {
    for family in Family::ALL {
        let networks = ["10.1.0.0/16", "fd00::1:0/112"];
        agree(family, &settings(&networks));
        // Not whole bytes.
        agree(family, &settings(&["10.0.0.0/9", "fd00::/63"]));
        let few = NodePortAddresses::parse(&["127.0.0.0/8", "::1/128"]).unwrap();
        agree(
            family,
            &Settings {
                node_port_addresses: few,
                ..settings(&networks)
            },
        );
    }
}

#[test]
fn interfaces_are_encoded_as_iptables_does() {
    for family in Family::ALL {
        for detect in [
            DetectLocal::BridgeInterface("cbr0".into()),
            DetectLocal::InterfaceNamePrefix("veth".into()),
        ] {
            let chosen = Settings {
                detect_local: detect,
                ..Settings::default()
            };
            agree(family, &chosen);
        }
    }
}
