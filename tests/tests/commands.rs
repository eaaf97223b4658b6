//! Commands that documents show: each is tried by some test, or there is a reason why not.

use ferrule_tests::{console, files, read};

/// Programs that other tests run or ask: `proxy/commands.rs` of package ferrule, and xtask's own.
const TRIED: &[&[&str]] = &[
    &["cargo", "run", "-p", "ferrule", "--"],
    &["cargo", "xtask"],
    &["ferrule"],
    &["target/release/ferrule"],
];

/// Programs that no test runs, and why.
const NOT_TRIED: &[(&[&str], &str)] = &[
    (
        &["cargo", "build"],
        "building is what every test begins with",
    ),
    (
        &["kubectl"],
        "asks the reader's own cluster; `cargo xtask deploy-check` applies the manifests",
    ),
    (&["curl"], "tried with the proxy that it asks"),
    (&["nft"], "looks at the reader's own node"),
    (&["printf"], "feeds nft"),
    (&["grep"], "searches what the command before it prints"),
    (&["journalctl"], "reads the node's journal"),
    (&["cat"], "reads the node's /proc"),
];

#[test]
fn every_command_is_tried_or_there_is_a_reason() {
    let mut unknown = Vec::new();
    let mut count = 0;
    for page in files() {
        if page.extension().is_none_or(|kind| kind != "md") {
            continue;
        }
        for words in console::commands(&read(&page)) {
            count += 1;
            let begins = |prefix: &&[&str]| {
                words.len() >= prefix.len() && words.iter().zip(*prefix).all(|(a, b)| a == b)
            };
            let reasons = NOT_TRIED.iter().map(|(prefix, _)| prefix);
            if !TRIED.iter().chain(reasons).any(begins) {
                unknown.push(format!("{}: {}", page.display(), words.join(" ")));
            }
        }
    }
    assert!(count > 40, "only {count} commands are found");
    assert!(
        unknown.is_empty(),
        "nobody tries these commands; run them in a test, or say above why not:\n{}",
        unknown.join("\n")
    );
}
