//! Source ranges in the kernel: each Service port's in a chain of its own, with a set if they are many.

use std::net::IpAddr;
use std::time::Duration;

use ferrule_core::model::{Family, Service};
use ferrule_kernel::nft::{Batch, Element, Event, Object, Snapshot, Value, Watch, ranges};
use ferrule_testbed::{feed, word};
use ipnet::IpNet;
use proptest::prelude::*;

use crate::state::everything;
use crate::support::*;
use crate::twin::Twin;

const SET: &str = "ferrule-sources-demo.lb.http.tcp";

fn guarded(family: Family, ranges: &[&str]) -> Service {
    service(family, "lb", 4)
        .load_balancer(&[address(family, 9, 4)])
        .source_ranges(ranges)
}

/// So many networks that do not touch.
fn many(family: Family, count: u16) -> Vec<String> {
    let each = |n: u16| match family {
        Family::V4 => format!("20.{}.{}.0/25", n >> 8, n & 0xff),
        Family::V6 => format!("2001:db8:{n:x}::/64"),
    };
    (0..count).map(each).collect()
}

fn words(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

fn held(snapshot: &Snapshot) -> &[Element] {
    &snapshot.elements[SET]
}

#[test]
fn one_range_of_many_is_written_alone() {
    both(|family| {
        let ranges = many(family, 500);
        let ranges = words(&ranges);
        let mut scene = Scene::new(family);
        scene.service(guarded(family, &ranges[..499]));
        scene.whole();
        assert_eq!(held(&scene.snapshot()).len(), 1 + 2 * 499);
        let mut watch = Watch::open().unwrap();
        let mut touched = || {
            let mut touched = 0;
            loop {
                let events = watch.next(Duration::from_millis(30)).unwrap();
                if events.is_empty() {
                    return touched;
                }
                for event in events {
                    match event {
                        Event::Change(change) => match change.object {
                            Object::Generation(_) => {}
                            Object::Elements(list) => {
                                assert_eq!(&*list.set, SET);
                                touched += list.elements.len();
                            }
                            other => panic!("{other:?}"),
                        },
                        Event::Missed => panic!("something was missed"),
                    }
                }
            }
        };
        // One more, one less, one in the place of another.
        for (list, elements) in [(&ranges[..], 2), (&ranges[1..], 3), (&ranges[..499], 5)] {
            scene.service(guarded(family, list));
            assert!(scene.step() <= 2);
            let touched = touched();
            // Where the first range begins there may be one more: the end of the space before it.
            assert!((2..=elements).contains(&touched), "{touched}");
        }
        Twin::new(&scene).assert_like(&scene);
    });
}

#[test]
fn ranges_that_somebody_else_changed_are_repaired() {
    both(|family| {
        let mut scene = Scene::new(family);
        let ranges = many(family, 50);
        scene.service(guarded(family, &words(&ranges)));
        scene.whole();
        let before = scene.snapshot();
        let [first, .., last] = &ranges::ranges(held(&before))[..] else {
            panic!("not many ranges")
        };
        let begins = |value: Value| Element::new(value);
        // Far behind all of them.
        let (from, to) = match family {
            Family::V4 => ("240.0.0.0", "240.1.0.0"),
            Family::V6 => ("fe00::", "fe01::"),
        };
        let [from, to] = [from, to].map(|ip| Value::from(ip.parse::<IpAddr>().unwrap()));
        let another = [
            begins(from),
            Element {
                ends_range: true,
                ..begins(to)
            },
        ];
        let (add, delete) = (Batch::add_elements::<Vec<Element>>, Batch::delete_elements);
        let changes: [&dyn Fn(&mut Batch); 5] = [
            &|batch| _ = batch.flush_set(SET),
            // Half a range: from here on everything is allowed, or nothing.
            &|batch| _ = delete(batch, SET, vec![begins(first.0)]),
            &|batch| _ = delete(batch, SET, vec![begins(last.0)]),
            // A range that is none.
            &|batch| _ = add(batch, SET, another.to_vec()),
            // Said otherwise.
            &|batch| {
                let with_comment = begins(first.0).comment("mine");
                delete(batch, SET, vec![begins(first.0)]);
                add(batch, SET, vec![with_comment]);
            },
        ];
        for change in changes {
            let mut batch = Batch::new(kernel(family), TABLE);
            change(&mut batch);
            open_here().commit(&batch).unwrap();
            assert_ne!(scene.snapshot().elements, before.elements);
            assert!(scene.whole() > 0);
            assert_eq!(scene.snapshot().elements, before.elements);
            assert_eq!(scene.whole(), 0);
        }
        // A set of this name with something else in it is none of ours, and nor is the table.
        let word = word(family);
        let text = format!(
            "add set {word} {TABLE} ferrule-sources-x {{ type inet_service ; flags interval ; }}"
        );
        feed("nft", &["-f", "-"], &text);
        assert!(scene.whole() > 50);
        Twin::new(&scene).assert_like(&scene);
    });
}

/// Turns the table into what an earlier version made of the same Services.
fn turn_back(family: Family, snapshot: &Snapshot) {
    let (x, address_type) = match family {
        Family::V4 => ("ip", "ipv4_addr"),
        Family::V6 => ("ip6", "ipv6_addr"),
    };
    let table = format!("{} {TABLE}", word(family));
    let vip = address(family, 9, 4);
    let ranges = match family {
        Family::V4 => ["192.0.2.0/24", "198.51.100.0/24"],
        Family::V6 => ["2001:db8::/48", "2001:db8:1::/64"],
    };
    let mut text = format!(
        r#"add set {table} ferrule-firewall-sources {{ type {address_type} . inet_proto . inet_service . {address_type} ; flags interval ; comment "sources allowed by LoadBalancerSourceRanges" ; }}
add chain {table} ferrule-firewall
add rule {table} ferrule-firewall {x} daddr . meta l4proto . th dport . {x} saddr != @ferrule-firewall-sources drop
add element {table} ferrule-firewall-sources {{ {vip} . tcp . 80 . {} , {vip} . tcp . 80 . {} }}
delete element {table} firewall-ips {{ {vip} . tcp . 80 }}
add element {table} firewall-ips {{ {vip} . tcp . 80 comment "demo/lb:http" : goto ferrule-firewall }}
flush chain {table} sources-demo.lb.http.tcp
delete chain {table} sources-demo.lb.http.tcp
flush chain {table} stay-demo.lb.http.tcp
"#,
        ranges[0], ranges[1]
    );
    // Clients stayed without a chain per endpoint.
    let chains = snapshot.chains.iter().map(|held| &held.object.name);
    for chain in chains.filter(|name| name.starts_with("stay-") && name.ends_with(".8080")) {
        let name = chain.trim_start_matches("stay-");
        for line in [
            format!("flush chain {table} {chain}\n"),
            format!("delete chain {table} {chain}\n"),
            format!(
                "add rule {table} stay-demo.lb.http.tcp {x} saddr @ferrule-affinity-{name} drop\n"
            ),
        ] {
            text += &line;
        }
    }
    feed("nft", &["-f", "-"], &text);
}

#[test]
fn a_table_of_the_layout_before_is_brought_up_to_date_in_place() {
    both(|family| {
        let mut scene = Scene::new(family);
        everything(&mut scene);
        scene.whole();
        turn_back(family, &scene.snapshot());
        let clients = |snapshot: &Snapshot| {
            let sets = snapshot.sets.iter().map(|held| &held.object.name);
            let set = sets.filter(|name| name.starts_with("ferrule-affinity-"));
            let set = set.min().unwrap().clone();
            (snapshot.elements[&set].len(), set)
        };
        let (_, set) = clients(&scene.snapshot());
        let text = format!(
            "add element {} {TABLE} {set} {{ {} timeout 1h }}",
            word(family),
            address(family, 3, 1)
        );
        feed("nft", &["-f", "-"], &text);
        let before = scene.snapshot();
        scene.restart();
        assert!(scene.whole() > 0);
        let after = scene.snapshot();
        // One transaction in the same table: there is a firewall at every moment.
        assert_eq!(after.table.handle, before.table.handle);
        assert_eq!(after.generation, before.generation + 1);
        assert_eq!(clients(&after), (1, set), "who is remembered stays");
        let former = |snapshot: &Snapshot, name: &str| {
            let sets = snapshot.sets.iter().map(|held| &held.object.name);
            let chains = snapshot.chains.iter().map(|held| &held.object.name);
            sets.chain(chains).any(|found| **found == *name)
        };
        assert!(!former(&after, "ferrule-firewall-sources"));
        // The chain goes with the next change, as every chain that something led to.
        scene.service(service(family, "another", 9)).step();
        assert!(!former(&scene.snapshot(), "ferrule-firewall"));
        scene.restart();
        assert_eq!(scene.whole(), 0);
        // Without Services that have ranges there was such a set, too.
        for name in ["plain", "none", "port", "lb", "local", "remote", "another"] {
            scene.no_service(name);
        }
        scene.whole();
        scene.whole();
        Twin::new(&scene).assert_like(&scene);
    });
}

/// Networks of a small world, so that they meet: also the very first and the very last addresses.
fn nets(six: bool) -> impl Strategy<Value = Vec<IpNet>> {
    let beginnings = prop_oneof![Just(0_u8), Just(10), Just(127), Just(255)];
    let net = (beginnings, 0..16_u8, 1..=8_u8).prop_map(move |(high, low, bits)| {
        if six {
            let ip = u128::from(high) << 120 | u128::from(low) << 4;
            let len = if bits < 5 { bits } else { 119 + bits };
            IpNet::new_assert(std::net::Ipv6Addr::from_bits(ip).into(), len).trunc()
        } else {
            let ip = u32::from(high) << 24 | u32::from(low) << 2;
            let len = if bits < 5 { bits } else { 24 + bits };
            IpNet::new_assert(std::net::Ipv4Addr::from_bits(ip).into(), len).trunc()
        }
    });
    proptest::collection::vec(net, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn any_ranges_become_any_others(
        (six, lists) in any::<bool>().prop_flat_map(|six| {
            (Just(six), proptest::collection::vec(nets(six), 2..20))
        }),
    ) {
        in_namespace(|| {
            let family = if six { Family::V6 } else { Family::V4 };
            let mut scene = Scene::new(family);
            let node_ip = address(family, 2, 1);
            scene.node(node("here").at(node_ip));
            scene.whole();
            for (turn, nets) in lists.iter().enumerate() {
                let mut service = guarded(family, &[]);
                service.source_ranges = nets.as_slice().into();
                scene.service(service);
                scene.step();
                // The address itself is allowed where the node is.
                let with_node = nets.iter().any(|net| net.contains(&node_ip));
                let own = with_node.then(|| IpNet::from(address(family, 9, 4)));
                let wanted = ranges::elements(nets.iter().chain(&own).map(|net| {
                    (Value::from(net.network()), Value::from(net.broadcast()))
                }));
                let snapshot = scene.snapshot();
                if nets.len() + usize::from(with_node) > 16 {
                    assert_eq!(held(&snapshot), wanted);
                } else {
                    assert_eq!(snapshot.elements.get(SET), None);
                }
                // Sometimes it was not there when they changed.
                if turn % 3 == 2 {
                    scene.restart();
                    assert_eq!(scene.whole(), 0);
                }
            }
            let mut service = guarded(family, &[]);
            service.source_ranges = lists[0].as_slice().into();
            scene.service(service);
            scene.restart();
            scene.whole();
            Twin::new(&scene).assert_like(&scene);
        });
    }
}
