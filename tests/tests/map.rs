//! The map in ARCHITECTURE.md and the tree, compared both ways.
//!
//! The rule: a line without indentation names a folder. Below it, every `name.rs` on an indented
//! line is a file: two blanks mean the folder's `src`, four a file in the folder of the module above,
//! and so on. Files in one folder may share a line. A folder is described file by file or not at
//! all; entry points, tests and what only tests use may be left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ferrule_tests::{read, root, sources};

/// The document with the map.
const DOCUMENT: &str = "ARCHITECTURE.md";

/// Entry points, and what only tests use.
const OPTIONAL: [&str; 4] = ["main.rs", "lib.rs", "testing.rs", "test_log.rs"];

/// Where descriptions begin, without indentation.
const COLUMN: usize = 17;

#[test]
fn every_file_in_the_map_exists() {
    let stale: Vec<_> = map()
        .into_iter()
        .filter(|entry| !root().join(&entry.path).exists())
        .map(|entry| {
            let path = entry.path.display();
            format!(
                "line {}: {path} does not exist; rename or delete it",
                entry.line
            )
        })
        .collect();
    assert!(stale.is_empty(), "{DOCUMENT}:\n{}", stale.join("\n"));
}

#[test]
fn every_file_of_a_described_folder_is_in_the_map() {
    let map = map();
    let missing: Vec<_> = sources()
        .into_iter()
        .filter(|file| is_missing(file, &map))
        .map(|file| advice(&file, &read(&file)))
        .collect();
    assert!(missing.is_empty(), "{DOCUMENT}:\n{}", missing.join("\n"));
}

#[test]
fn every_crate_is_in_the_map() {
    let map = map();
    let named: BTreeSet<_> = map.iter().map(|entry| entry.path.as_path()).collect();
    let manifests = ferrule_tests::files();
    let missing: Vec<_> = manifests
        .iter()
        .filter(|file| file.file_name().is_some_and(|name| name == "Cargo.toml"))
        .filter_map(|file| file.parent())
        .filter(|folder| !folder.as_os_str().is_empty() && !named.contains(folder))
        .map(|folder| format!("add the line \"{}/\" and what is in it", folder.display()))
        .collect();
    assert!(missing.is_empty(), "{DOCUMENT}:\n{}", missing.join("\n"));
}

/// One name in the map.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// Relative to the root.
    path: PathBuf,
    /// The number of its line.
    line: usize,
}

/// The map of this repository.
fn map() -> Vec<Entry> {
    parse(&read(DOCUMENT))
}

/// The names in the first block of text below the heading `## Map`.
fn parse(document: &str) -> Vec<Entry> {
    let lines = (1..).zip(document.lines());
    let block = lines
        .skip_while(|(_, line)| *line != "## Map")
        .skip_while(|(_, line)| *line != "```text")
        .skip(1)
        .take_while(|(_, line)| *line != "```");
    let mut entries = Vec::new();
    // The folder that a line of this depth is in.
    let mut folders: BTreeMap<usize, PathBuf> = BTreeMap::new();
    for (number, line) in block {
        let depth = (line.len() - line.trim_start().len()) / 2;
        if depth == 0 {
            let Some(folder) = line.split_whitespace().next() else {
                continue;
            };
            let path = PathBuf::from(folder.trim_end_matches('/'));
            folders = BTreeMap::from([(1, path.join("src"))]);
            entries.push(Entry { path, line: number });
            continue;
        }
        let folder = folders.get(&depth).cloned().unwrap_or_default();
        assert!(
            folder != PathBuf::new(),
            "{DOCUMENT} line {number}: more than two blanks deeper than the line above"
        );
        for name in names(line) {
            let path = folder.join(name);
            folders.insert(depth + 1, path.with_extension(""));
            entries.push(Entry { path, line: number });
        }
    }
    entries
}

/// The names of files in a line.
fn names(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| c.is_whitespace() || ",;:".contains(c))
        .filter(|word| {
            word.strip_suffix(".rs")
                .is_some_and(|stem| !stem.is_empty())
        })
}

/// Whether neighbours of a file are in the map and it is not.
fn is_missing(file: &Path, map: &[Entry]) -> bool {
    let name = file.file_name().unwrap_or_default();
    let is_test = |part: &std::ffi::OsStr| part == "tests" || part == "tests.rs";
    !file.iter().any(is_test)
        && OPTIONAL.iter().all(|optional| name != *optional)
        && map.iter().all(|entry| entry.path != file)
        && map.iter().any(|entry| {
            entry.path.extension().is_some_and(|kind| kind == "rs")
                && entry.path.parent() == file.parent()
        })
}

/// The line to add for a file, with the beginning of its header as description.
fn advice(file: &Path, text: &str) -> String {
    let depth = file.iter().skip_while(|part| *part != "src").count() - 1;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let header = text.lines().next().unwrap_or_default();
    let header = header.trim_start_matches("//! ").trim_end_matches('.');
    let indented = format!("{}{name}", " ".repeat(2 * depth));
    let width = COLUMN + 2 * depth;
    let above = file.parent().unwrap_or(file).display();
    format!(
        "{} is missing; among the lines of {above} add:\n{indented:width$}{header}",
        file.display()
    )
}

#[test]
fn indentation_says_in_which_folder_a_file_is() {
    let text = "## Map\n\n```text\na/b/      x\n  one.rs   y\n    two.rs   z; three.rs w\n      four.rs\n\
                demo/     d\n```\n";
    let found: Vec<_> = parse(text)
        .into_iter()
        .map(|entry| (entry.path.display().to_string(), entry.line))
        .collect();
    let expected = [
        ("a/b", 4),
        ("a/b/src/one.rs", 5),
        ("a/b/src/one/two.rs", 6),
        ("a/b/src/one/three.rs", 6),
        ("a/b/src/one/three/four.rs", 7),
        ("demo", 8),
    ];
    assert_eq!(found, expected.map(|(path, line)| (path.to_owned(), line)));
}

#[test]
fn a_file_is_missing_only_where_its_neighbours_are_named() {
    let map = parse("## Map\n```text\na/  x\n  one.rs  y\n```\n");
    for (file, missing) in [
        ("a/src/two.rs", true),
        ("a/src/one.rs", false),
        ("a/src/main.rs", false),
        ("a/src/tests.rs", false),
        ("a/src/two/tests/three.rs", false),
        ("a/src/one/two.rs", false),
        ("b/src/one.rs", false),
    ] {
        assert_eq!(is_missing(Path::new(file), &map), missing, "{file}");
    }
}

#[test]
fn the_advice_is_the_line_to_add() {
    let file = Path::new("crates/x/src/proxy/modes.rs");
    assert_eq!(
        advice(file, "//! One row per mode.\n//!\n"),
        "crates/x/src/proxy/modes.rs is missing; among the lines of crates/x/src/proxy add:\n    \
         modes.rs         One row per mode"
    );
}
