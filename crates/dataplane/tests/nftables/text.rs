//! What is shown as text is what is programmed.

use std::io::Write;

use ferrule_core::facts::{DetectLocal, NodePortAddresses, Settings};
use ferrule_core::model::{Family, ServiceKey};
use proptest::prelude::*;

use crate::random::{happen, happenings};
use crate::state::everything;
use crate::support::*;

/// Loads the text of a scene with `nft`, and expects that nothing is left to write.
fn loads_as_programmed(scene: &mut Scene) {
    let text = scene.text();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    run("nft", &["--check", "-f", path]);
    run("nft", &["-f", path]);
    scene.restart();
    assert_eq!(scene.whole(), 0, "{text}");
    // Loading it over itself replaces it.
    run("nft", &["-f", path]);
    scene.restart();
    assert_eq!(scene.whole(), 0, "{text}");
}

#[test]
fn one_of_each_loads_as_it_is_programmed() {
    both(|family| {
        let mut scene = Scene::new(family);
        loads_as_programmed(&mut scene);
        everything(&mut scene);
        loads_as_programmed(&mut scene);
    });
}

#[test]
fn every_way_to_know_pods_and_node_ports_loads() {
    let settings = |detect_local, node_ports: &[&str]| Settings {
        detect_local,
        node_port_addresses: NodePortAddresses::parse(node_ports).unwrap(),
        ..Settings::default()
    };
    let nets = |nets: &[&str]| {
        DetectLocal::ClusterCidr(nets.iter().map(|net| net.parse().unwrap()).collect())
    };
    for settings in [
        settings(nets(&["10.1.0.0/16", "fd00::1:0/112"]), &[]),
        settings(nets(&["10.0.0.0/9", "fd00::/49"]), &["primary"]),
        settings(nets(&["0.0.0.0/0", "::/0"]), &["localhost"]),
        settings(
            nets(&["10.1.0.1/32", "fd00::1/128"]),
            &["10.2.0.0/15", "fd00::/7"],
        ),
        settings(DetectLocal::BridgeInterface("cni0".into()), &["all"]),
        settings(DetectLocal::BridgeInterface("odd*".into()), &[]),
        settings(DetectLocal::InterfaceNamePrefix("veth".into()), &[]),
        settings(DetectLocal::InterfaceNamePrefix("".into()), &[]),
    ] {
        for family in Family::ALL {
            let settings = settings.clone();
            in_namespace(move || {
                let mut scene = Scene::with(family, settings);
                everything(&mut scene);
                loads_as_programmed(&mut scene);
            });
        }
    }
}

#[test]
fn other_marks_and_masquerading_everything_load() {
    both(|family| {
        let settings = Settings {
            masquerade_all: true,
            ..Settings::default()
        };
        let mut scene = Scene::with(family, settings);
        scene.options.mark = 1 << 31;
        everything(&mut scene);
        assert!(scene.text().contains("0x80000000"));
        loads_as_programmed(&mut scene);
    });
}

#[test]
fn the_longest_names_and_hundreds_of_endpoints_load() {
    both(|family| {
        let mut scene = Scene::new(family);
        let long = "n".repeat(63);
        let mut sticky = service(family, &long, 1).affinity(86_400);
        sticky.key = ServiceKey::new(&long, &long);
        sticky.ports[0].name = "p".repeat(15).as_str().into();
        let mut pods = slice(family, &long, &[(address(family, 1, 1), true)]);
        pods.service = sticky.key.clone();
        pods.ports[0].name = sticky.ports[0].name.clone();
        let many: Vec<_> = (0..300_u16)
            .map(|n| {
                let [high, low] = n.to_be_bytes();
                (address(family, 100 + high, low), false)
            })
            .collect();
        scene
            .service(sticky)
            .slice(pods)
            .service(service(family, "wide", 2))
            .slice(slice(family, "wide", &many));
        let text = scene.text();
        let place = |slot: &str| text.find(&format!(" . tcp . 80 . {slot} : ")).unwrap();
        assert!(place("9") < place("10") && place("2") < place("256"));
        assert!(text.contains(", # demo/wide:http\n"));
        loads_as_programmed(&mut scene);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    #[test]
    fn any_cluster_loads_as_it_is_programmed(
        steps in proptest::collection::vec(happenings(), 0..20),
        six in any::<bool>(),
    ) {
        in_namespace(|| {
            let mut scene = Scene::new(if six { Family::V6 } else { Family::V4 });
            for happening in &steps {
                happen(&mut scene, happening);
            }
            loads_as_programmed(&mut scene);
        });
    }
}
