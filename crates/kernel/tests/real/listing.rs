//! What people see when they list our rules with `nft`.

use ferrule_kernel::Family;
use ferrule_kernel::nft::Nft;

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
