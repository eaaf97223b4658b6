//! Other processes at our table: what is noticed, and what becomes of it.

use std::time::Duration;

use ferrule_core::model::Family;
use ferrule_dataplane::nftables::Nftables;
use ferrule_dataplane::{Dataplane as _, ExternalChange, Watcher, Writers};
use ferrule_kernel::nft::{Batch, Element, Value};
use ferrule_testbed::{feed, word};

use crate::flaky::{Fault, Faults};
use crate::state::everything;
use crate::support::*;
use crate::twin::{Twin, assert_alike};

const MOMENT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(10);

fn listener(scene: &mut Scene) -> Box<dyn Watcher> {
    scene.dataplane.watch().pop().unwrap()
}

#[test]
fn a_change_before_anybody_listened_is_noticed_by_the_first_listener() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let rule = ["add", "rule", word(family), TABLE, "services", "counter"];
        run("nft", &rule);
        let mut listener = listener(&mut scene);
        let change = listener.changed(Duration::ZERO).unwrap();
        assert_eq!(change, Some(ExternalChange::default()));
        assert!(scene.whole() > 0);
        assert_eq!(listener.changed(MOMENT).unwrap(), None, "once");
    });
}

#[test]
fn what_the_other_family_wrote_before_anybody_listened_is_no_external_change() {
    ferrule_testbed::in_namespace(|| {
        let writers = Writers::default();
        let open = |family| {
            let mut scene = Scene::new(family);
            let dataplane = Nftables::open(family, scene.options).unwrap();
            scene.dataplane = dataplane.beside(&writers);
            everything(&mut scene);
            scene
        };
        let (mut four, mut six) = (open(Family::V4), open(Family::V6));
        four.whole();
        six.whole();
        for scene in [&mut four, &mut six] {
            let mut listener = listener(scene);
            assert_eq!(listener.changed(MOMENT).unwrap(), None);
        }
    });
}

#[test]
fn a_listener_names_the_process() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let mut listener = listener(&mut scene);
        run("nft", &["flush", "chain", word(family), TABLE, "services"]);
        let mut process = None;
        while process.is_none() {
            let change = listener.changed(LONG).unwrap();
            process = change.expect("a change").process;
        }
        assert_eq!(process.unwrap().name, "nft");
        // Who changes something else is nobody's business.
        run("nft", &["add", "table", "ip", "other"]);
        for _ in 0..3 {
            assert_eq!(listener.changed(MOMENT).unwrap(), None);
        }
    });
}

#[test]
fn an_element_for_every_key_is_seen_and_removed() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let before = scene.snapshot();
        let check = |scene: &mut Scene, steps: usize, add: &dyn Fn()| {
            let mut listener = listener(scene);
            add();
            assert!(listener.changed(LONG).unwrap().is_some());
            assert_eq!(scene.whole(), steps);
            assert_alike(&scene.snapshot(), &before);
            assert_eq!(scene.whole(), 0);
        };
        let own = match family {
            Family::V4 => "10.0.0.1 . 80",
            Family::V6 => "fd00::1 . 80",
        };
        for element in [
            "service-ips { * : drop }",
            "service-nodeports { * : goto reject-chain }",
            "no-endpoint-services { * : drop }",
            &format!("ferrule-endpoints {{ * : {own} }}"),
            "cluster-ips { * }",
        ] {
            let text = format!("add element {} {TABLE} {element}\n", word(family));
            check(&mut scene, 1, &|| {
                feed("nft", &["-f", "-"], &text);
            });
        }
        // `nft` 1.0.6 ends itself over these.
        for (set, steps) in [
            ("ferrule-service-cidrs", 2),
            ("ferrule-firewall-sources", 1),
        ] {
            let every = Element {
                catch_all: true,
                ..Element::default()
            };
            let mut batch = Batch::new(kernel(family), TABLE);
            batch.add_elements(set, [every]);
            check(&mut scene, steps, &|| {
                open_here().commit(&batch).unwrap();
            });
        }
    });
}

/// Clients that stay with an endpoint, in one set.
fn clients(scene: &Scene) -> Vec<Element> {
    let elements = scene.snapshot().elements;
    let mut sets = elements.into_iter();
    let sticky = |name: &str| name.starts_with("ferrule-affinity-");
    sets.find(|(name, list)| sticky(name) && !list.is_empty())
        .map_or_else(Vec::new, |(_, list)| list)
}

#[test]
fn chains_and_sets_of_others_are_removed_from_our_table_and_affinity_stays() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        let before = scene.snapshot();
        let sets = before.sets.iter().map(|held| &held.object);
        let sticky = sets
            .clone()
            .find(|set| set.name.starts_with("ferrule-affinity-"));
        let sticky = sticky.unwrap().name.clone();
        let mut client = Element::new(Value::from(address(family, 5, 5)));
        client.timeout = Some(Duration::from_mins(10));
        let mut batch = Batch::new(kernel(family), TABLE);
        batch.add_elements(&sticky, [client]);
        open_here().commit(&batch).unwrap();
        let (t, a) = match family {
            Family::V4 => ("ip", "ipv4_addr"),
            Family::V6 => ("ip6", "ipv6_addr"),
        };
        let text = format!(
            "add chain {t} {TABLE} theirs {{ type filter hook input priority 3 ; policy accept ; }}
             add chain {t} {TABLE} service-X-demo/all/tcp/tcp
             add chain {t} {TABLE} endpoint-X
             add rule {t} {TABLE} endpoint-X tcp dport {{ 1, 2 }} drop
             add rule {t} {TABLE} service-X-demo/all/tcp/tcp numgen random mod 1 vmap {{ 0 : goto endpoint-X }}
             add map {t} {TABLE} their-map {{ type {a} : verdict ; }}
             add element {t} {TABLE} their-map {{ {} : goto endpoint-X }}
             add set {t} {TABLE} their-set {{ type {a} ; }}
             add rule {t} {TABLE} theirs {t} saddr @their-set drop
             add rule {t} {TABLE} services {t} daddr vmap @their-map
             add rule {t} {TABLE} services tcp dport 99 jump {{ counter ; drop ; }}
             add element {t} {TABLE} service-nodeports {{ tcp . 99 : goto service-X-demo/all/tcp/tcp }}\n",
            address(family, 7, 7)
        );
        feed("nft", &["-f", "-"], &text);
        assert!(scene.whole() > 5);
        let after = scene.snapshot();
        assert_eq!(after.table, before.table, "it is the same table");
        assert_eq!(clients(&scene).len(), 1);
        let names = |name: &str| name.contains("their") || name.starts_with("__");
        assert!(after.sets.iter().all(|held| !names(&held.object.name)));
        // What something led to is empty, and goes with the next change.
        scene.service(service(family, "new", 9)).step();
        scene.no_service("new").step();
        let strip = |mut all: ferrule_kernel::nft::Snapshot| {
            all.elements
                .retain(|name, _| !name.starts_with("ferrule-affinity-"));
            all
        };
        assert_alike(&strip(scene.snapshot()), &strip(before));
        let chains = scene
            .snapshot()
            .chains
            .into_iter()
            .map(|held| held.object.name);
        let left: Vec<_> = chains
            .filter(|name| names(name) || name.contains('X'))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(scene.whole(), 0);
    });
}

#[test]
fn of_two_that_start_at_once_the_second_reads_what_the_first_wrote() {
    both(|family| {
        let faults = Faults::default();
        let mut scene = Scene::flaky(family, &faults);
        everything(&mut scene);
        // The first one writes between our reading and our writing.
        faults.add(Fault::Load(scene.text()));
        assert_eq!(scene.whole(), 0);
        assert!(faults.is_empty());
        Twin::new(&scene).assert_like(&scene);
    });
}
