//! One Service port that the kernel refuses harms only itself, and costs the others little.

use ferrule_core::model::Family;
use ferrule_dataplane::{Applied, ApplyError};

use crate::flaky::{Faults, Flaky};
use crate::state::everything;
use crate::steps::numbered;
use crate::support::*;
use crate::twin::Twin;

/// Names of the Service ports that are left out.
fn refused(applied: &Applied) -> Vec<String> {
    let refused = applied.refused.iter();
    refused.map(|refusal| refusal.key.to_string()).collect()
}

/// Everything is in the kernel.
fn scene(family: Family, faults: &Faults) -> Scene<Flaky> {
    let mut scene = Scene::flaky(family, faults);
    everything(&mut scene);
    scene.whole();
    scene
}

/// Addresses at which something answers.
fn answering(scene: &Scene<Flaky>) -> usize {
    scene.snapshot().elements["service-ips"].len()
}

#[test]
fn a_refused_service_port_holds_up_nobody_and_is_programmed_once_it_is_accepted() {
    both(|family| {
        let faults = Faults::default();
        let mut scene = scene(family, &faults);
        let a = |x, y| address(family, x, y);
        let before = answering(&scene);
        faults.poison([a(96, 66)]);
        scene
            .service(service(family, "bad", 66).node_port(30066))
            .slice(slice(family, "bad", &[(a(1, 1), false)]))
            .service(service(family, "good", 67))
            .slice(slice(family, "good", &[(a(1, 1), false)]));
        let error = scene.try_step().unwrap_err();
        assert!(matches!(error, ApplyError::Refused { .. }), "{error:?}");
        let applied = scene.try_whole().unwrap();
        assert_eq!(refused(&applied), ["demo/bad:http"]);
        let message = &applied.refused[0].message;
        assert!(
            message.starts_with("the kernel refused add elements of "),
            "{message}"
        );
        assert!(
            message.ends_with("Invalid argument (os error 22)"),
            "{message}"
        );
        assert_eq!(answering(&scene), before + 1);
        // Changes of others go on, and those of its own harm nobody.
        scene
            .service(service(family, "next", 68))
            .slice(slice(family, "next", &[(a(1, 1), false)]))
            .slice(slice(family, "bad", &[(a(1, 2), false)]));
        let applied = scene.try_step().unwrap();
        assert_eq!(refused(&applied), ["demo/bad:http"]);
        assert_eq!(answering(&scene), before + 2);
        // It is tried again with any change.
        faults.poison([]);
        scene.no_service("next");
        let applied = scene.try_step().unwrap();
        assert_eq!(refused(&applied), [""; 0]);
        Twin::new(&scene).assert_like(&scene);
    });
}

#[test]
fn a_refused_service_port_keeps_what_it_had_until_it_goes() {
    both(|family| {
        let faults = Faults::default();
        let mut scene = scene(family, &faults);
        let a = |x, y| address(family, x, y);
        let before = scene.snapshot();
        faults.poison([a(1, 77)]);
        scene.slice(slice(family, "plain", &[(a(1, 77), false)]));
        scene.try_step().unwrap_err();
        let applied = scene.try_whole().unwrap();
        assert_eq!(refused(&applied), ["demo/plain:http"]);
        assert_eq!(scene.snapshot().elements, before.elements);
        // Also when everything is read again, and when everything is gone.
        assert_eq!(refused(&scene.try_whole().unwrap()), ["demo/plain:http"]);
        run("nft", &["flush", "ruleset"]);
        assert_eq!(refused(&scene.try_whole().unwrap()), ["demo/plain:http"]);
        assert_eq!(scene.snapshot().elements, before.elements);
        scene.no_service("plain");
        assert_eq!(refused(&scene.try_step().unwrap()), [""; 0]);
        Twin::new(&scene).assert_like(&scene);
    });
}

#[test]
fn what_a_refused_service_port_had_gives_way_to_its_heir() {
    both(|family| {
        let faults = Faults::default();
        let mut scene = scene(family, &faults);
        faults.poison([address(family, 96, 66)]);
        let pods = [(address(family, 1, 9), false)];
        scene
            .service(service(family, "plain", 66))
            .service(service(family, "heir", 1))
            .slice(slice(family, "heir", &pods));
        scene.try_step().unwrap_err();
        let applied = scene.try_whole().unwrap();
        assert_eq!(refused(&applied), ["demo/plain:http"]);
        // The same without the one that is refused.
        scene.no_service("plain").step();
        Twin::new(&scene).assert_like(&scene);
    });
}

#[test]
fn a_sticky_service_port_is_found_by_its_chains() {
    both(|family| {
        let faults = Faults::default();
        let mut scene = Scene::flaky(family, &faults);
        everything(&mut scene);
        // Named by rules of its chains only.
        faults.poison([address(family, 1, 4)]);
        assert_eq!(refused(&scene.try_whole().unwrap()), ["demo/lb:http"]);
        scene.no_service("lb").step();
        Twin::new(&scene).assert_like(&scene);
    });
}

#[test]
fn a_kernel_that_refuses_most_is_at_fault_itself() {
    both(|family| {
        let faults = Faults::default();
        let mut scene = Scene::flaky(family, &faults);
        let numbers = 1..=100;
        for number in numbers.clone() {
            let (service, slice) = numbered(family, number);
            scene.service(service).slice(slice);
        }
        faults
            .poison(numbers.map(|number| numbered(family, number).0.cluster_ips[family].unwrap()));
        scene.try_whole().unwrap_err();
        assert!(scene.try_snapshot().is_none());
        assert!(faults.take_sent().len() <= 8);
    });
}

const ALL: u16 = 4000;

/// Thousands of Services, some refused: what that costs beyond one transaction.
#[test]
fn isolating_costs_few_transactions_however_many_services_there_are() {
    in_namespace(|| {
        let family = Family::V4;
        let faults = Faults::default();
        let mut scene = Scene::flaky(family, &faults);
        for number in 1..=ALL {
            let (service, slice) = numbered(family, number);
            scene.service(service).slice(slice);
        }
        let ip = |number| numbered(family, number).0.cluster_ips[family].unwrap();
        for (count, from_nothing) in [(1, true), (40, true), (1, false), (40, false)] {
            let bad: Vec<_> = (1..=count).map(|number| ip(number * 90)).collect();
            faults.poison(bad);
            if from_nothing {
                ferrule_dataplane::Dataplane::remove(&mut scene.dataplane).unwrap();
            } else {
                // They are added to the others.
                for number in 1..=count {
                    let (service, _) = numbered(family, number * 90);
                    scene.no_service(service.key.name());
                }
                scene.whole();
                for number in 1..=count {
                    let (service, _) = numbered(family, number * 90);
                    scene.service(service);
                }
            }
            faults.take_sent();
            let applied = scene.try_whole().unwrap();
            assert_eq!(applied.refused.len(), usize::from(count));
            let sent = faults.take_sent();
            assert!(sent.len() <= 4, "{count}: {sent:?}");
            let left = usize::from(ALL - count);
            assert_eq!(answering(&scene), left);
        }
    });
}
