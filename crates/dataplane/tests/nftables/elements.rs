//! What stands in the sets of the table.

use ferrule_core::facts::Settings;
use ferrule_core::model::Family;
use ferrule_kernel::nft::Value;
use ferrule_testbed::net;

use crate::support::*;

#[test]
fn nft_014_only_endpoints_on_this_node_can_reach_themselves() {
    both(|family| {
        let a = |y| address(family, 1, y);
        let mut scene = Scene::new(family);
        let pods = [(a(1), true), (a(2), false), (a(3), true)];
        scene
            .service(service(family, "plain", 1))
            .slice(slice(family, "plain", &pods));
        scene.whole();
        let keys = |scene: &Scene| {
            let held = &scene.snapshot().elements["hairpin-connections"];
            let mut keys: Vec<_> = held.iter().map(|element| element.key).collect();
            keys.sort_unstable();
            keys
        };
        let key = |y| Value::from(a(y)).address(a(y)).protocol(6).port(8080);
        assert_eq!(keys(&scene), [key(1), key(3)]);
        scene.slice(slice(family, "plain", &pods[..2])).step();
        assert_eq!(keys(&scene), [key(1)]);
    });
}

#[test]
fn nft_018_every_cluster_ip_is_known_with_or_without_endpoints() {
    both(|family| {
        let mut scene = Scene::new(family);
        scene
            .service(service(family, "none", 1))
            .service(service(family, "some", 2).over(&PROTOCOLS))
            .slice(slice(family, "some", &[(address(family, 1, 1), true)]));
        scene.whole();
        let held = scene.snapshot().elements["cluster-ips"].clone();
        let mut keys: Vec<_> = held.iter().map(|element| element.key).collect();
        keys.sort_unstable();
        let wanted = [1, 2].map(|number| address(family, 96, number).into());
        assert_eq!(keys, wanted);
        // Of several ports the last one takes the address away.
        scene.service(service(family, "some", 2)).step();
        assert_eq!(scene.snapshot().elements["cluster-ips"].len(), 2);
        scene.no_service("some").no_service("none").step();
        assert!(scene.snapshot().elements["cluster-ips"].is_empty());
    });
}

#[test]
fn nft_021_service_networks_of_the_other_family_mean_nothing() {
    both(|family| {
        let mut scene = Scene::with(family, Settings::default());
        let other = match family {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        };
        scene.service_cidr("kubernetes", &[&net(other, 96, 8)]);
        scene.whole();
        assert!(scene.snapshot().elements["ferrule-service-cidrs"].is_empty());
    });
}
