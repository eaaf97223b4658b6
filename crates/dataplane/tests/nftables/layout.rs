//! What people and other programs find in the table: names, types, places, words.

use ferrule_dataplane::Dataplane as _;
use std::path::Path;

use ferrule_core::facts::{DetectLocal, Settings};
use ferrule_core::model::Family;
use ferrule_dataplane::nftables::Options;
use ferrule_kernel::nft::{ChainKind, Hook, Value};

use crate::state::everything;
use crate::support::*;
use crate::twin::assert_alike;

const fn words(family: Family) -> (&'static str, &'static str) {
    match family {
        Family::V4 => ("ip", "ipv4_addr"),
        Family::V6 => ("ip6", "ipv6_addr"),
    }
}

fn listed(family: Family) -> String {
    run("nft", &["list", "table", words(family).0, TABLE])
}

/// What stands between the braces after `head`, line by line.
/// The lines of a chain or set in a listing.
pub fn block(listing: &str, head: &str) -> Vec<String> {
    let start = listing.find(&format!("\t{head} {{\n"));
    let start = start.unwrap_or_else(|| panic!("no {head} in\n{listing}"));
    let lines = listing[start..].lines().skip(1);
    let lines = lines.take_while(|line| *line != "\t}");
    lines.map(|line| line.trim().to_owned()).collect()
}

fn filled(family: Family) -> Scene {
    let mut scene = Scene::new(family);
    everything(&mut scene);
    scene.whole();
    scene
}

#[test]
fn nft_001_each_family_has_its_table() {
    both(|family| {
        let _scene = filled(family);
        let tables = run("nft", &["list", "tables"]);
        assert_eq!(tables, format!("table {} kube-proxy\n", words(family).0));
        assert!(listed(family).contains("\tcomment \"rules for kube-proxy\"\n"));
    });
}

#[test]
fn nft_002_packets_enter_where_they_enter_in_kube_proxy() {
    both(|family| {
        let scene = filled(family);
        let chains = scene.snapshot().chains;
        let bases = chains.iter().filter_map(|held| {
            let base = held.object.base.clone()?;
            let filter = base.kind == ChainKind::Filter;
            Some((
                held.object.name.to_string(),
                filter,
                base.hook,
                base.priority,
            ))
        });
        let expected = [
            ("filter-prerouting-pre-dnat", true, Hook::Prerouting, -110),
            ("filter-output-pre-dnat", true, Hook::Output, -110),
            ("filter-input", true, Hook::Input, 0),
            ("filter-forward", true, Hook::Forward, 0),
            ("filter-output", true, Hook::Output, 0),
            ("nat-prerouting", false, Hook::Prerouting, -100),
            ("nat-output", false, Hook::Output, -100),
            ("nat-postrouting", false, Hook::Postrouting, 100),
        ];
        let expected = expected.map(|(name, kind, hook, at)| (name.to_owned(), kind, hook, at));
        assert_eq!(bases.collect::<Vec<_>>(), expected);
    });
}

#[test]
fn nft_003_jumps_stand_once_and_in_order() {
    both(|family| {
        let _scene = filled(family);
        let text = listed(family);
        for (chain, jumps) in [
            ("filter-prerouting-pre-dnat", &["firewall-check"][..]),
            ("filter-output-pre-dnat", &["firewall-check"]),
            (
                "filter-input",
                &["nodeport-endpoints-check", "service-endpoints-check"],
            ),
            (
                "filter-forward",
                &["service-endpoints-check", "cluster-ips-check"],
            ),
            (
                "filter-output",
                &["service-endpoints-check", "cluster-ips-check"],
            ),
        ] {
            let jumps: Vec<_> = jumps
                .iter()
                .map(|to| format!("ct state new jump {to}"))
                .collect();
            assert_eq!(block(&text, &format!("chain {chain}"))[1..], jumps);
        }
        for (chain, jump) in [
            ("nat-prerouting", "jump services"),
            ("nat-output", "jump services"),
            ("nat-postrouting", "jump masquerading"),
        ] {
            assert_eq!(block(&text, &format!("chain {chain}"))[1..], [jump]);
        }
    });
}

#[test]
fn nft_004_names_of_kube_proxy_have_its_types_and_remarks() {
    both(|family| {
        let _scene = filled(family);
        let (_, address) = words(family);
        let text = listed(family);
        let frontend = format!("{address} . inet_proto . inet_service");
        let node_port = "inet_proto . inet_service".to_owned();
        for (head, key, comment) in [
            ("set cluster-ips", address, "Active ClusterIPs"),
            (
                "set hairpin-connections",
                &format!("{address} . {frontend}"),
                "service hairpin connections",
            ),
            (
                "map service-ips",
                &format!("{frontend} : verdict"),
                "ClusterIP, ExternalIP and LoadBalancer IP traffic",
            ),
            (
                "map service-nodeports",
                &format!("{node_port} : verdict"),
                "NodePort traffic",
            ),
            (
                "map no-endpoint-services",
                &format!("{frontend} : verdict"),
                "vmap to drop or reject packets to services with no endpoints",
            ),
            (
                "map no-endpoint-nodeports",
                &format!("{node_port} : verdict"),
                "vmap to drop or reject packets to service nodeports with no endpoints",
            ),
            (
                "map firewall-ips",
                &format!("{frontend} : verdict"),
                "destinations that are subject to LoadBalancerSourceRanges",
            ),
        ] {
            let lines = block(&text, head);
            assert_eq!(lines[0], format!("type {key}"), "{head}");
            assert_eq!(lines[1], format!("comment \"{comment}\""), "{head}");
        }
    });
}

#[test]
fn nft_007_remarks_are_written_with_the_objects_themselves() {
    both(|family| {
        let scene = filled(family);
        let snapshot = scene.snapshot();
        assert!(snapshot.table.object.comment.is_some());
        for held in &snapshot.sets {
            let own = ["ferrule-affinity-", "ferrule-sources-"];
            let is_own = own.iter().any(|start| held.object.name.starts_with(start));
            assert_eq!(held.object.comment.is_some(), !is_own);
        }
        let reject = "helper for @no-endpoint-services / @no-endpoint-nodeports";
        let lines = block(&listed(family), "chain reject-chain");
        assert_eq!(lines[0], format!("comment \"{reject}\""));
    });
}

#[test]
fn nft_008_a_chain_at_another_place_is_put_right() {
    both(|family| {
        let mut scene = filled(family);
        let before = scene.snapshot();
        let (word, _) = words(family);
        let text = format!(
            "delete chain {word} {TABLE} nat-postrouting
             add chain {word} {TABLE} nat-postrouting {{ type nat hook postrouting priority 90 ; }}
             add rule {word} {TABLE} nat-postrouting jump masquerading"
        );
        ferrule_testbed::feed("nft", &["-f", "-"], &text);
        assert!(scene.whole() > 0);
        assert_alike(&scene.snapshot(), &before);
    });
}

#[test]
fn nft_009_chains_of_a_service_port_are_named_after_it() {
    both(|family| {
        let mut scene = Scene::new(family);
        let pods = [(address(family, 1, 1), true)];
        let mut unnamed = service(family, "web", 1);
        unnamed.ports[0].name = "".into();
        let mut slice = slice(family, "web", &pods);
        slice.ports[0].name = "".into();
        scene.service(unnamed.affinity(60)).slice(slice);
        scene.whole();
        let text = listed(family);
        block(&text, "chain stay-demo.web..tcp");
        let pod = match family {
            Family::V4 => "10.1.0.1",
            Family::V6 => "fd00..1.1",
        };
        block(&text, &format!("chain stay-demo.web..tcp-{pod}.8080"));
        block(
            &text,
            &format!("set ferrule-affinity-demo.web..tcp-{pod}.8080"),
        );
        let mut guarded = service(family, "door", 2).load_balancer(&[address(family, 9, 2)]);
        guarded.ports[0].name = "".into();
        let nets: Vec<_> = (1..=20)
            .map(|x| ferrule_testbed::net(family, 2 * x, 8))
            .collect();
        let nets: Vec<_> = nets.iter().map(String::as_str).collect();
        let guarded = guarded.source_ranges(&nets);
        scene.service(guarded).step();
        let text = listed(family);
        let set = "ferrule-sources-demo.door..tcp";
        block(&text, &format!("set {set}"));
        let x = words(family).0;
        assert_eq!(
            block(&text, "chain sources-demo.door..tcp"),
            [format!("{x} saddr != @{set} drop")]
        );
    });
}

#[test]
fn nft_011_marks_are_listed_with_eight_digits() {
    both(|family| {
        let mut scene = Scene::with(
            family,
            Settings {
                detect_local: DetectLocal::InterfaceNamePrefix("veth".into()),
                ..Settings::default()
            },
        );
        everything(&mut scene);
        for (bit, text) in [(14, "0x00004000"), (0, "0x00000001"), (30, "0x40000000")] {
            scene.options(Options {
                mark: 1 << bit,
                ..Options::default()
            });
            scene.step();
            let listed = listed(family);
            assert_eq!(
                block(&listed, "chain masquerading")[0],
                format!(
                    "meta mark & {text} != 0x00000000 meta mark set meta mark ^ {text} \
                     masquerade fully-random"
                )
            );
            let x = words(family).0;
            assert_eq!(
                block(&listed, "chain services")[0],
                format!(
                    "{x} daddr @cluster-ips iifname != \"veth*\" meta mark set meta mark | {text} \
                     comment \"masquerade clusterIP traffic from outside cluster\""
                )
            );
        }
    });
}

#[test]
fn nft_013_the_hairpin_rule_asks_for_translation_and_all_four_fields() {
    both(|family| {
        let _scene = filled(family);
        let (x, _) = words(family);
        assert_eq!(
            block(&listed(family), "chain masquerading")[1],
            format!(
                "ct status dnat {x} saddr . {x} daddr . meta l4proto . th dport \
                 @hairpin-connections masquerade fully-random"
            )
        );
    });
}

#[test]
fn nft_040_endpoints_have_the_slots_from_0_on_in_their_order() {
    both(|family| {
        let mut scene = Scene::new(family);
        let a = |y| address(family, 1, y);
        // The order is that of text.
        let pods = [(a(9), false), (a(2), false), (a(16), false)];
        scene
            .service(service(family, "web", 1))
            .slice(slice(family, "web", &pods));
        scene.whole();
        let held = scene.snapshot().elements["ferrule-endpoints"].clone();
        let slots: Vec<_> = held.iter().map(|element| element.data.clone()).collect();
        let value = |y| {
            let value = Value::from(a(y)).port(8080);
            ferrule_kernel::nft::Data::Value(value)
        };
        assert_eq!(slots, [16, 2, 9].map(value));
        let key = Value::from(address(family, 96, 1)).protocol(6).port(80);
        let keys: Vec<_> = held.iter().map(|element| element.key).collect();
        assert_eq!(keys, [0, 1, 2].map(|slot| key.number(slot)));
        let x = words(family).0;
        let rule = |modulus| {
            let slot = format!("numgen random mod {modulus}");
            format!(
                "dnat {x} to {x} daddr . meta l4proto . th dport . {slot} map @ferrule-endpoints"
            )
        };
        // A slot that is drawn may be empty; of the lower half none is, and the first one never.
        let mut rules = vec![rule(4); 10];
        rules.extend([rule(2), rule(1)]);
        assert_eq!(block(&listed(family), "chain pick-up-to-4"), rules);
    });
}

#[test]
fn nft_041_services_without_affinity_have_no_chains_and_sets_of_their_own() {
    both(|family| {
        let mut scene = Scene::new(family);
        scene.whole();
        let count = |scene: &Scene| {
            let snapshot = scene.snapshot();
            (snapshot.chains.len(), snapshot.sets.len())
        };
        let (chains, sets) = count(&scene);
        let pods = [(address(family, 1, 1), true), (address(family, 1, 2), true)];
        for number in 1..50 {
            let name = format!("s{number}");
            scene
                .service(service(family, &name, number).node_port(30000 + i64::from(number)))
                .slice(slice(family, &name, &pods));
        }
        scene.step();
        // One that chooses among few, and one that does so for NodePorts.
        assert_eq!(count(&scene), (chains + 2, sets));
    });
}

#[test]
fn nft_042_clients_are_looked_for_before_an_endpoint_is_drawn() {
    both(|family| {
        let _scene = filled(family);
        let x = words(family).0;
        let rules = block(&listed(family), "chain stay-demo.lb.http.tcp");
        // Three pods: each is looked for, then one is drawn.
        assert_eq!(rules.len(), 6);
        for rule in &rules[..3] {
            let known = format!("{x} saddr @ferrule-affinity-demo.lb.http.tcp-");
            assert!(rule.starts_with(&known), "{rule}");
            assert!(rule.contains(" goto stay-demo.lb.http.tcp-"), "{rule}");
        }
        for (rule, draw) in rules[3..].iter().zip([
            "numgen random mod 3 0 goto stay-demo.lb.http.tcp-",
            "numgen random mod 2 0 goto stay-demo.lb.http.tcp-",
            "goto stay-demo.lb.http.tcp-",
        ]) {
            assert!(rule.starts_with(draw), "{rule}");
        }
        // Remembering is a rule by itself: where it fails the next one still leads there.
        let pod = match family {
            Family::V4 => "10.1.0.3",
            Family::V6 => "fd00..1.3",
        };
        let chain = format!("chain stay-demo.lb.http.tcp-{pod}.8080");
        let rules = block(&listed(family), &chain);
        assert_eq!(rules.len(), 2);
        assert!(
            rules[0].starts_with("update @ferrule-affinity-demo.lb"),
            "{rules:?}"
        );
        assert!(rules[1].starts_with("meta l4proto tcp dnat "), "{rules:?}");
    });
}

#[test]
fn nft_044_sets_of_clients_are_filled_by_packets_for_the_time_of_the_service() {
    both(|family| {
        let _scene = filled(family);
        let text = listed(family);
        let (x, address) = words(family);
        let pod = match family {
            Family::V4 => "10.1.0.3",
            Family::V6 => "fd00..1.3",
        };
        let lines = block(
            &text,
            &format!("set ferrule-affinity-demo.lb.http.tcp-{pod}.8080"),
        );
        assert_eq!(lines[0], format!("type {address}"));
        assert!(
            lines.contains(&"flags dynamic,timeout".to_owned()),
            "{lines:?}"
        );
        assert!(text.contains(&format!("{{ {x} saddr timeout 10m }}")));
    });
}

#[test]
fn nft_050_ipv6_is_written_in_its_own_words() {
    ferrule_testbed::in_namespace(|| {
        let _scene = filled(Family::V6);
        let text = listed(Family::V6);
        let rules = text.lines().map(str::trim);
        for rule in rules.filter(|line| line.contains("addr ") && !line.starts_with("type ")) {
            assert!(
                !rule.contains("ip saddr") && !rule.contains("ip daddr"),
                "{rule}"
            );
        }
        assert!(text.contains("[fd00::1:3]:8080") || text.contains("fd00::1:3"));
        assert!(
            text.contains("fd00::1:1 . 8080"),
            "bare addresses in maps\n{text}"
        );
    });
}

#[test]
fn nft_074_removing_the_table_leaves_nothing_and_may_be_repeated() {
    ferrule_testbed::in_namespace(|| {
        for family in Family::ALL {
            let mut scene = filled(family);
            scene.dataplane.remove().unwrap();
            assert_eq!(scene.try_snapshot(), None);
            scene.dataplane.remove().unwrap();
            assert!(scene.whole() > 50, "what is removed can be written again");
            scene.dataplane.remove().unwrap();
        }
        assert_eq!(run("nft", &["list", "ruleset"]), "");
    });
}

#[test]
fn nft_093_the_whole_table_reads_so() {
    both(|family| {
        let _scene = filled(family);
        let file = match family {
            Family::V4 => "listing-ip.txt",
            Family::V6 => "listing-ip6.txt",
        };
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nftables");
        ferrule_testbed::expect(&folder.join(file), &listed(family));
    });
}
