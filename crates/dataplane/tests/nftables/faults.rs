//! Bad days: refusals, lost answers, others who meddle, names that are too long. Never a panic; the
//! last good state stays; the error says what it was; the next look at everything converges.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrule_core::model::{Family, ServiceKey, SliceKey};
use ferrule_dataplane::nftables::{Nftables, Options};
use ferrule_dataplane::{ApplyError, Dataplane};
use ferrule_kernel::nft::{Batch, Element, Nft, Table, Value};
use ferrule_kernel::recorder::{Answer, Recorder, Script};
use nix::errno::Errno;

use crate::flaky::{Fault, Faults, Flaky, refuse};
use crate::state::everything;
use crate::support::*;
use crate::twin::{Twin, assert_alike, elements};

/// Everything is in the kernel, and now something changes.
fn changing(family: Family, faults: &Faults) -> Scene<Flaky> {
    let mut scene = Scene::flaky(family, faults);
    everything(&mut scene);
    scene.whole();
    let a = |y| address(family, 1, y);
    scene
        .slice(slice(family, "plain", &[(a(1), false), (a(9), true)]))
        .service(service(family, "new", 9))
        .no_service("port");
    scene
}

fn text(error: &ApplyError) -> String {
    let source = std::error::Error::source(error).unwrap();
    format!("{error}: {source}")
}

#[test]
fn nft_065_a_refused_transaction_changes_nothing_and_the_next_look_converges() {
    both(|family| {
        for errno in [
            Errno::ENOENT,
            Errno::EEXIST,
            Errno::EBUSY,
            Errno::ENOMEM,
            Errno::EOPNOTSUPP,
        ] {
            let faults = Faults::default();
            let mut scene = changing(family, &faults);
            let before = scene.snapshot();
            faults.add(Fault::Batch(refuse(2, errno)));
            let error = scene.try_step().unwrap_err();
            assert!(matches!(error, ApplyError::Refused { .. }), "{error:?}");
            assert_eq!(scene.snapshot(), before);
            assert!(scene.whole() > 0);
            Twin::new(&scene).assert_like(&scene);
            scene.dataplane.remove().unwrap();
        }
    });
}

#[test]
fn a_transaction_that_could_not_be_sent_changes_nothing() {
    both(|family| {
        let faults = Faults::default();
        let mut scene = changing(family, &faults);
        let before = scene.snapshot();
        faults.add(Fault::Batch(Answer::Unsent(Errno::EMSGSIZE as i32)));
        let error = scene.try_step().unwrap_err();
        assert!(text(&error).starts_with("the kernel refused the whole transaction: "));
        faults.add(Fault::Batch(refuse(0, Errno::EPERM)));
        let error = scene.try_whole().unwrap_err();
        assert!(text(&error).contains("not permitted"), "{}", text(&error));
        assert_eq!(scene.snapshot(), before);
        assert!(scene.whole() > 0);
        Twin::new(&scene).assert_like(&scene);
    });
}

#[test]
fn lost_answers_leave_doubt_and_the_next_look_converges() {
    both(|family| {
        for (fault, made) in [
            (Fault::Unheard, true),
            (Fault::Batch(Answer::Overrun), false),
            (Fault::Batch(Answer::Silence), false),
        ] {
            let faults = Faults::default();
            let mut scene = changing(family, &faults);
            let before = scene.snapshot();
            faults.add(fault);
            let error = scene.try_step().unwrap_err();
            assert!(matches!(error, ApplyError::OutOfSync(_)), "{error:?}");
            assert_eq!(scene.snapshot() != before, made);
            let steps = scene.whole();
            assert!(made || steps > 0);
            Twin::new(&scene).assert_like(&scene);
            // Chains that nothing leads to go with the second look.
            scene.whole();
            assert_eq!(scene.whole(), 0);
            scene.dataplane.remove().unwrap();
        }
    });
}

#[test]
fn an_interrupted_dump_is_begun_again_and_given_up_in_the_end() {
    both(|family| {
        let faults = Faults::default();
        let mut scene = changing(family, &faults);
        let before = scene.snapshot();
        for _ in 0..3 {
            faults.add(Fault::Dump(Answer::Interrupt(Vec::new())));
        }
        scene.whole();
        assert!(faults.is_empty());
        Twin::new(&scene).assert_like(&scene);
        // Whoever interrupts forever must not keep us forever.
        scene.no_service("plain");
        let middle = scene.snapshot();
        assert_ne!(middle, before);
        for _ in 0..200 {
            faults.add(Fault::Dump(Answer::Interrupt(Vec::new())));
        }
        let error = scene.try_whole().unwrap_err();
        assert!(text(&error).contains("interrupted"), "{}", text(&error));
        assert!(!faults.is_empty());
        assert_eq!(scene.snapshot(), middle);
        faults.clear();
        scene.whole();
        Twin::new(&scene).assert_like(&scene);
    });
}

#[test]
fn nft_088_rules_that_somebody_changed_meanwhile_are_looked_at_again() {
    both(|family| {
        let faults = Faults::default();
        let mut scene = changing(family, &faults);
        for _ in 0..2 {
            faults.add(Fault::Meddle);
        }
        assert!(scene.whole() > 0);
        assert!(faults.is_empty(), "the kernel did refuse");
        Twin::new(&scene).assert_like(&scene);
        // Somebody who always does it is told of.
        scene.no_service("plain");
        let before = scene.snapshot();
        for _ in 0..10 {
            faults.add(Fault::Batch(refuse(0, Errno::ERESTART)));
        }
        let error = scene.try_whole().unwrap_err();
        assert!(text(&error).contains("external change to the ruleset"));
        assert!(!faults.is_empty());
        assert_eq!(scene.snapshot(), before);
        faults.clear();
        assert!(scene.whole() > 0);
        Twin::new(&scene).assert_like(&scene);
    });
}

#[test]
fn somebody_who_never_rests_elsewhere_does_not_keep_us() {
    both(|family| {
        let mut scene = crate::steps::many(family, 300);
        everything(&mut scene);
        let rested = AtomicBool::new(false);
        // Threads live in the network of the one that starts them.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut nft = open_here();
                let mut batch = Batch::new(ferrule_kernel::Family::V4, "somebody-else");
                batch.add_table(&Table::new("somebody-else"));
                batch.delete_table();
                while !rested.load(Ordering::Relaxed) {
                    nft.commit(&batch).unwrap();
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let results: Vec<_> = (0..10)
                .map(|number| {
                    scene.service(service(family, "other", 200 + number));
                    scene.restart();
                    scene.try_whole().map_err(|error| text(&error))
                })
                .collect();
            rested.store(true, Ordering::Relaxed);
            let failed: Vec<_> = results.into_iter().filter_map(Result::err).collect();
            assert!(failed.is_empty(), "{failed:?}");
        });
        Twin::new(&scene).assert_like(&scene);
    });
}

#[test]
fn nft_061_a_chain_that_is_still_busy_holds_nothing_up() {
    both(|family| {
        let faults = Faults::default();
        let mut scene = Scene::flaky(family, &faults);
        let pods = [(address(family, 1, 1), true)];
        let plain = service(family, "sticky", 1);
        scene
            .service(plain.clone().affinity(60))
            .slice(slice(family, "sticky", &pods));
        scene.whole();
        let chains = |scene: &Scene<Flaky>| {
            let chains = scene.snapshot().chains;
            let names = chains.iter().map(|held| &held.object.name);
            names.filter(|name| name.starts_with("stay-")).count()
        };
        scene.service(plain).step();
        // Its chain and that of its endpoint.
        assert_eq!(chains(&scene), 2, "they go with the next change");
        // As kernels before 6.2 do: a chain is busy, but the change is made.
        faults.add(Fault::RefuseLast(Errno::EBUSY));
        scene.service(service(family, "other", 2)).step();
        assert!(faults.is_empty());
        assert_eq!(chains(&scene), 2);
        assert_eq!(scene.snapshot().elements["cluster-ips"].len(), 2);
        scene.no_service("other").step();
        assert_eq!(chains(&scene), 0);
        Twin::new(&scene).assert_like(&scene);
        // The same for a look at everything.
        let mut batch = Batch::new(kernel(family), TABLE);
        batch.add_chain(&ferrule_kernel::nft::Chain::new("stay-old"));
        open_here().commit(&batch).unwrap();
        faults.add(Fault::RefuseLast(Errno::EBUSY));
        scene.whole();
        assert!(faults.is_empty());
        assert_eq!(chains(&scene), 1);
        scene.service(service(family, "other", 2)).step();
        assert_eq!(chains(&scene), 0);
    });
}

#[test]
fn nft_090_the_error_names_what_was_refused() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let plain = service(family, "plain", 1);
        let key = Value::from(address(family, 96, 1)).protocol(6).port(80);
        let mut batch = Batch::new(kernel(family), TABLE);
        batch.delete_elements("service-ips", [Element::new(key)]);
        open_here().commit(&batch).unwrap();
        let before = scene.snapshot();
        let error = scene.no_service("plain").try_step().unwrap_err();
        let ApplyError::Refused { step, source } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(step, "delete elements of service-ips (demo/plain:http)");
        assert_eq!(source.kind(), ErrorKind::NotFound);
        assert_eq!(scene.snapshot(), before);
        assert!(scene.whole() > 0);
        Twin::new(&scene).assert_like(&scene);
        // An element of ours that leads elsewhere.
        scene.service(plain);
        let mut batch = Batch::new(kernel(family), TABLE);
        let drop = ferrule_kernel::nft::Verdict::Drop;
        batch.add_elements("service-ips", [Element::verdict(key, drop)]);
        open_here().commit(&batch).unwrap();
        let error = scene.try_step().unwrap_err();
        let ApplyError::Refused { step, source } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(step, "add elements of service-ips (demo/plain:http)");
        assert_eq!(source.kind(), ErrorKind::AlreadyExists);
        scene.whole();
        Twin::new(&scene).assert_like(&scene);
    });
}

#[test]
fn nft_006_what_the_kernel_lacks_is_told_when_it_is_used() {
    both(|family| {
        let script = Script::default();
        let nft = Nft::new(Recorder::new(script.clone()));
        let mut scene = Scene::over(
            family,
            ferrule_core::facts::Settings::default(),
            Box::new(move || Nft::new(Recorder::new(script.clone()))),
            Box::new(open_here),
        );
        drop(nft);
        everything(&mut scene);
        let script = Script::default();
        let nft = Nft::new(Recorder::new(script.clone()));
        scene.dataplane = Nftables::new(family, Options::default(), nft);
        // Three questions, then the table with its chains.
        for _ in 0..3 {
            script.agree();
        }
        let chains = 17;
        script.answer(refuse(2 + chains, Errno::EOPNOTSUPP));
        let error = scene.try_whole().unwrap_err();
        assert_eq!(
            text(&error),
            "the kernel refused add set ferrule-endpoints: Operation not supported (os error 95)"
        );
        scene.whole();
    });
}

#[test]
fn nft_005_nothing_but_a_conversation_with_the_kernel_is_needed() {
    let script = Script::default();
    let recorder = script.clone();
    let mut scene = Scene::over(
        Family::V4,
        ferrule_core::facts::Settings::default(),
        Box::new(move || Nft::new(Recorder::new(recorder.clone()))),
        Box::new(open_here),
    );
    everything(&mut scene);
    assert!(scene.whole() > 50);
    assert_eq!(script.take_requests().len(), 4);
}

#[test]
fn nft_066_a_deleted_table_is_noticed_by_the_next_change_and_rebuilt() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let before = scene.snapshot();
        let table = match family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        run("nft", &["delete", "table", table, TABLE]);
        assert_eq!(scene.step(), 0, "nothing to do, nothing to see");
        scene.service(service(family, "new", 9));
        scene.try_step().unwrap_err();
        assert_eq!(scene.try_snapshot(), None);
        scene.no_service("new").whole();
        assert_alike(&scene.snapshot(), &before);
    });
}

#[test]
fn nft_089_an_external_flush_is_noticed_and_repaired() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let before = scene.snapshot();
        let mut listener = scene.dataplane.watch().pop().unwrap();
        run("nft", &["flush", "ruleset"]);
        assert!(listener.changed(Duration::from_secs(10)).unwrap().is_some());
        let moment = Duration::from_millis(50);
        while listener.changed(moment).unwrap().is_some() {}
        scene.whole();
        assert_alike(&scene.snapshot(), &before);
        assert_eq!(scene.whole(), 0);
        // What we do ourselves, and what others do elsewhere, is no news.
        run("nft", &["add", "table", "ip", "other"]);
        assert_eq!(listener.changed(moment).unwrap(), None);
        // Nor what happens in the other family's table of ours.
        let other = match family {
            Family::V4 => "ip6",
            Family::V6 => "ip",
        };
        run("nft", &["add", "table", other, TABLE]);
        assert_eq!(listener.changed(moment).unwrap(), None);
    });
}

#[test]
fn nft_064_what_others_put_into_our_sets_and_chains_is_removed() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let before = scene.snapshot();
        let (table, own) = match family {
            Family::V4 => ("ip", "10.77.0.1"),
            Family::V6 => ("ip6", "fd00::77"),
        };
        let text = format!(
            "add element {table} {TABLE} cluster-ips {{ {own} }}
             add element {table} {TABLE} service-ips {{ {own} . tcp . 80 : drop }}
             add element {table} {TABLE} no-endpoint-nodeports {{ udp . 77 : goto reject-chain }}
             add element {table} {TABLE} ferrule-service-cidrs {{ {own} }}
             add rule {table} {TABLE} services counter
             insert rule {table} {TABLE} nat-output accept
             add chain {table} {TABLE} pick-77
             add rule {table} {TABLE} pick-77 drop"
        );
        ferrule_testbed::feed("nft", &["-f", "-"], &text);
        scene.restart();
        assert!(scene.whole() > 5);
        assert_alike(&scene.snapshot(), &before);
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn one_chain_or_element_that_somebody_deletes_comes_back() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let before = scene.snapshot();
        let mut nft = open_here();
        for (set, list) in elements(&before) {
            for element in list {
                let mut batch = Batch::new(kernel(family), TABLE);
                if set.ends_with("-nets") || set.ends_with("-cidrs") {
                    batch.flush_set(&set);
                } else {
                    batch.delete_elements(&set, [&element]);
                }
                nft.commit(&batch).unwrap();
                assert!(scene.whole() > 0, "{set}");
                assert_alike(&scene.snapshot(), &before);
            }
        }
        for held in &before.chains {
            let name = &held.object.name;
            let mut batch = Batch::new(kernel(family), TABLE);
            batch.flush_chain(name);
            // One that nothing leads to can be deleted too.
            if held.object.base.is_some() {
                batch.delete_chain(name);
            }
            nft.commit(&batch).unwrap();
            assert!(scene.whole() > 0, "{name}");
            assert_alike(&scene.snapshot(), &before);
        }
    });
}

#[test]
fn a_table_that_somebody_owns_is_left_to_him_and_told_of() {
    both(|family| {
        let mut owner = open_here();
        let mut batch = Batch::new(kernel(family), TABLE);
        batch.add_table(&Table {
            flags: 2,
            ..Table::new(TABLE)
        });
        owner.commit(&batch).unwrap();
        let mut scene = Scene::new(family);
        everything(&mut scene);
        let error = scene.try_whole().unwrap_err();
        let text = text(&error);
        assert!(text.starts_with("the kernel refused delete table kube-proxy: "));
        assert!(text.contains("not permitted"), "{text}");
        // When he leaves, his table goes with him.
        drop(owner);
        assert!(scene.whole() > 50);
        Twin::new(&scene).assert_like(&scene);
    });
}

/// A Service with names of this length.
fn long(scene: &mut Scene, namespace: usize, name: usize, number: u8) {
    let family = scene.family;
    let (space, service_name) = ("n".repeat(namespace), "s".repeat(name));
    let mut service = service(family, "x", number).node_port(30000 + i64::from(number));
    service.key = ServiceKey::new(&space, &service_name);
    service.ports[0].name = "p".repeat(15).as_str().into();
    let mut pods = slice(family, "x", &[(address(family, 1, 1), true)]);
    pods.key = SliceKey::new(&space, &format!("{service_name}-1"));
    pods.service = service.key.clone();
    pods.ports[0].name = service.ports[0].name.clone();
    scene.service(service.affinity(60)).slice(pods);
}

#[test]
fn nft_010_names_too_long_for_the_kernel_are_cut_and_stay_different() {
    both(|family| {
        let mut scene = Scene::new(family);
        scene.whole();
        // The second differs from the first in the last letter only.
        long(&mut scene, 63, 253, 1);
        long(&mut scene, 63, 252, 2);
        long(&mut scene, 253, 253, 3);
        long(&mut scene, 63, 63, 4);
        scene.step();
        let snapshot = scene.snapshot();
        let chains = snapshot.chains.iter().map(|held| &held.object.name);
        let stay: Vec<_> = chains.filter(|name| name.starts_with("stay-")).collect();
        // One for each, one that masquerades for its NodePort, and one for its endpoint.
        assert_eq!(stay.len(), 12);
        assert!(stay.iter().all(|name| name.len() <= 255));
        Twin::new(&scene).assert_like(&scene);
        scene.restart();
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn nft_091_a_long_name_without_endpoints_has_its_remark_cut() {
    both(|family| {
        let mut scene = Scene::new(family);
        scene.whole();
        for (number, length) in (1..).zip([48, 49, 63, 253]) {
            let mut service = service(family, "x", number);
            service.key = ServiceKey::new(&"n".repeat(length), &"s".repeat(63));
            service.ports[0].name = "p".repeat(15).as_str().into();
            scene.service(service);
        }
        scene.step();
        let held = &scene.snapshot().elements["no-endpoint-services"];
        assert_eq!(held.len(), 4);
        for element in held {
            assert!(element.comment.as_ref().unwrap().as_str().len() <= 128);
        }
        // Others can still read it.
        let table = if family == Family::V4 { "ip" } else { "ip6" };
        let listed = run("nft", &["list", "table", table, TABLE]);
        assert!(listed.contains("goto reject-chain"));
        scene.restart();
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn nft_076_families_fail_and_recover_by_themselves() {
    ferrule_testbed::in_namespace(|| {
        let faults = Faults::default();
        let mut four = changing(Family::V4, &faults);
        let mut six = changing(Family::V6, &Faults::default());
        faults.add(Fault::Batch(refuse(1, Errno::ENOENT)));
        let before = four.snapshot();
        assert!(four.try_step().is_err());
        assert!(six.step() > 0);
        let after = four.snapshot();
        assert_eq!((after.chains, after.rules), (before.chains, before.rules));
        Twin::new(&six).assert_like(&six);
        assert!(four.whole() > 0);
        Twin::new(&four).assert_like(&four);
        Twin::new(&six).assert_like(&six);
    });
}
