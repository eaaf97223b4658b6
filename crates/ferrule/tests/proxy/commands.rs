//! The commands with `ferrule` in README and docs, run as they are shown.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::*;

#[path = "../../../../tests/src/console.rs"]
mod console;

/// What a reader puts in: the placeholder, and a value that fits the example manifests.
const PLACEHOLDERS: &[(&str, &str)] = &[
    ("$(hostname)", "node-a"),
    ("/path/of/config.conf", "deploy/base/config.conf"),
    ("cluster.yaml", "examples/"),
    ("DIR", "examples/"),
    ("NODE", "node-a"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The arguments of every command that runs ferrule, with its page.
fn shown() -> Vec<(String, Vec<String>)> {
    let folder = std::fs::read_dir(root().join("docs")).unwrap();
    let pages = folder.map(|page| page.unwrap().path());
    let mut shown = Vec::new();
    for page in pages
        .chain([root().join("README.md")])
        .filter(|page| page.is_file())
    {
        for words in console::commands(&std::fs::read_to_string(&page).unwrap()) {
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            let (["cargo", "run", "-p", "ferrule", "--", rest @ ..]
            | ["ferrule" | "target/release/ferrule", rest @ ..]) = &words[..]
            else {
                continue;
            };
            let fill = |word: &&str| {
                let known = PLACEHOLDERS
                    .iter()
                    .find(|(placeholder, _)| placeholder == word);
                known.map_or(*word, |(_, value)| value).to_owned()
            };
            shown.push((page.display().to_string(), rest.iter().map(fill).collect()));
        }
    }
    shown.sort();
    shown
}

fn program(arguments: &[String]) -> Command {
    let mut command = ferrule();
    command.args(arguments).current_dir(root());
    command
}

#[test]
fn commands_that_show_something_do() {
    let shown = shown();
    let shown = shown
        .iter()
        .filter(|(_, arguments)| arguments[0] != "proxy");
    let mut count = 0;
    for (page, arguments) in shown {
        let output = program(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        // 4: what is asked about cannot work, and that is what is shown.
        let answers = match output.status.code() {
            Some(4) => arguments[0] == "explain",
            code => code == Some(0),
        };
        assert!(answers, "{page}: {arguments:?}: {error}");
        assert!(
            !output.stdout.is_empty(),
            "{page}: {arguments:?} shows nothing"
        );
        count += 1;
    }
    assert!(count >= 5, "only {count} commands are found");
}

#[test]
fn commands_that_go_on_get_ready() {
    let shown = shown();
    let shown = shown
        .iter()
        .filter(|(_, arguments)| arguments[0] == "proxy");
    let mut count = 0;
    for (page, arguments) in shown {
        // Ports are those that the documents name.
        in_namespace(|| {
            let (health, metrics) = ("127.0.0.1:10256", "127.0.0.1:10249");
            let (health, metrics) = (health.parse().unwrap(), metrics.parse().unwrap());
            // The machine's own folder for sockets is not for tests.
            let mut command = program(arguments);
            command.arg("--admin-socket=");
            let proxy = Proxy::spawn(command, health, metrics);
            proxy.ready();
            let numbers = get(metrics, "/metrics").unwrap();
            assert!(
                numbers.contains("ferrule_"),
                "{page}: {arguments:?}: {numbers}"
            );
        });
        count += 1;
    }
    assert!(count >= 2, "only {count} commands are found");
}
