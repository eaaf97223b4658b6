//! What people see when they list our rules with `nft`.

use ferrule_kernel::Family;
use ferrule_kernel::nft::{Comment, Nft, text};

use crate::sample::sample;
use crate::support::{expect, in_namespace, run};

fn listing(family: Family, golden: &'static str) {
    in_namespace(move || {
        let mut nft = Nft::open().unwrap();
        nft.commit(&sample(family).batch()).unwrap();
        let listed = run("nft", &["list", "ruleset"]);
        expect(golden, &without_times(&listed));
        // What is listed can be loaded again, and then looks the same.
        let file = std::env::temp_dir().join(format!("{golden}-{}", std::process::id()));
        std::fs::write(&file, format!("flush ruleset\n{listed}")).unwrap();
        run("nft", &["-f", file.to_str().unwrap()]);
        std::fs::remove_file(&file).unwrap();
        expect(golden, &without_times(&run("nft", &["list", "ruleset"])));
    });
}

/// Leaves out how long elements still have to stay.
fn without_times(listing: &str) -> String {
    let mut parts = listing.split(" expires ");
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        text.push_str(part.trim_start_matches(|c: char| c.is_ascii_alphanumeric()));
    }
    text
}

#[test]
fn a_table_of_ipv4_lists_readably_and_loads_again() {
    listing(Family::V4, "listing-v4.nft");
}

#[test]
fn a_table_of_ipv6_lists_readably_and_loads_again() {
    listing(Family::V6, "listing-v6.nft");
}

#[test]
fn our_words_are_those_of_nft() {
    for family in [Family::V4, Family::V6] {
        in_namespace(move || {
            let table = sample(family);
            Nft::open().unwrap().commit(&table.batch()).unwrap();
            let listed = without_times(&run("nft", &["list", "ruleset"]));
            let has = |line: &str| {
                let found = listed.lines().any(|found| found.trim() == line);
                assert!(found, "{line}\nis not a line of\n{listed}");
            };
            for rule in &table.rules {
                has(&text::rule(rule, family).unwrap());
            }
            for chain in &table.chains {
                text::chain(chain)
                    .unwrap()
                    .iter()
                    .for_each(|line| has(line));
            }
            for set in &table.sets {
                has(&text::set(set).unwrap()[0]);
                let elements = table.elements.iter().filter(|(name, _)| *name == set.name);
                let elements = elements.flat_map(|(_, elements)| elements);
                for element in text::elements(set, elements).unwrap() {
                    assert!(listed.contains(&element), "{element} is not in\n{listed}");
                }
            }
        });
    }
}

#[test]
fn sets_of_ours_may_be_declared_again_by_others() {
    in_namespace(|| {
        let mut nft = Nft::open().unwrap();
        nft.commit(&sample(Family::V4).batch()).unwrap();
        // As kube-proxy declares them: other flags or types would be an error for it, for ever.
        for declaration in [
            "set ip kube-proxy cluster-ips { type ipv4_addr ; }",
            "set ip kube-proxy hairpin-connections { type ipv4_addr . ipv4_addr . inet_proto . inet_service ; }",
            "map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict ; }",
            "map ip kube-proxy service-nodeports { type inet_proto . inet_service : verdict ; }",
            "set ip kube-proxy affinity-one { type ipv4_addr ; flags dynamic,timeout ; timeout 600s ; }",
        ] {
            run("nft", &["add", declaration]);
        }
    });
}

#[test]
fn a_long_remark_leaves_room_for_the_types() {
    in_namespace(|| {
        let mut nft = Nft::open().unwrap();
        let mut table = sample(Family::V6);
        let long = "x".repeat(200);
        for set in &mut table.sets {
            set.comment = Some(Comment::new(&long));
        }
        nft.commit(&table.batch()).unwrap();
        let listed = run("nft", &["list", "map", "ip6", "kube-proxy", "endpoints"]);
        assert!(
            listed.contains("typeof ip6 daddr . meta l4proto . th dport . numgen"),
            "{listed}"
        );
        assert!(listed.contains("comment \"xxxxxxxx"), "{listed}");
        let listed = run("nft", &["list", "set", "ip6", "kube-proxy", "cluster-ips"]);
        assert!(
            listed.contains(&format!("comment \"{}\"", "x".repeat(128))),
            "{listed}"
        );
    });
}
