//! Rules of the house that no compiler checks: headers, sizes, core's dependencies, left-overs.
//!
//! Words that must appear nowhere are put together from parts here, so that this file may be
//! searched like any other.

use std::path::{Path, PathBuf};

use ferrule_tests::{files, read, sources};

/// Longer than this, a file has more than one subject.
const MOST_LINES: usize = 800;

/// Only this crate talks to Linux by raw memory.
const MAY_BE_UNSAFE: &str = "crates/kernel";

#[test]
fn every_source_begins_with_a_header() {
    assert_none(
        sources()
            .into_iter()
            .filter(|file| !read(file).starts_with("//! ")),
        "no header",
    );
}

#[test]
fn no_source_is_too_long() {
    let long = sources()
        .into_iter()
        .filter(|file| read(file).lines().count() > MOST_LINES);
    assert_none(long, "more than 800 lines");
}

#[test]
fn core_depends_on_next_to_nothing() {
    let manifest = read("crates/core/Cargo.toml");
    assert_eq!(dependencies(&manifest), ["ipnet"]);
    for (section, lines) in sections(&manifest) {
        // What tests of other crates use; it brings nothing with it.
        let only_testing = section == "features" && lines == ["testing = []"];
        let known = only_testing
            || ["package", "dependencies", "dev-dependencies", "lints"].contains(&section);
        assert!(known, "[{section}] could bring dependencies in unseen");
    }
}

#[test]
fn nothing_is_left_undone_or_switched_off() {
    for word in [["#[ig", "nore"], ["to", "do!("], ["unimple", "mented!("]] {
        let word = word.concat();
        assert_none(
            sources()
                .into_iter()
                .filter(|file| read(file).contains(&word)),
            &word,
        );
    }
}

#[test]
fn raw_memory_stays_in_its_crate() {
    let keyword = ["un", "safe"].concat();
    let elsewhere = sources()
        .into_iter()
        .filter(|file| !file.starts_with(MAY_BE_UNSAFE));
    let uses = elsewhere.filter(|file| {
        // Followed by a blank or a bracket it is the keyword; followed by `_` it is a lint's name.
        let text = read(file);
        [" {", " fn", " impl", " trait", " extern", "("]
            .iter()
            .any(|follows| text.contains(&format!("{keyword}{follows}")))
    });
    assert_none(uses, &keyword);
}

#[test]
fn no_file_knows_the_machine_it_was_written_on() {
    let roots = ["root", "work", "home", "Users"].map(|folder| format!("/{folder}/"));
    // Anything unreadable as text is a capture or an image.
    let found = files().into_iter().filter(|file| {
        std::fs::read_to_string(ferrule_tests::root().join(file))
            .is_ok_and(|text| roots.iter().any(|root| names_path(&text, root)))
    });
    assert_none(found, "a path of one machine");
}

/// Whether a path beginning with `root` occurs; `root` in the middle of another path or of an
/// address on the web is something else.
fn names_path(text: &str, root: &str) -> bool {
    text.match_indices(root).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-/~$})".contains(c))
    })
}

/// The names in `[dependencies]`, sorted.
fn dependencies(manifest: &str) -> Vec<&str> {
    let mut names: Vec<_> = sections(manifest)
        .into_iter()
        .filter(|(section, _)| *section == "dependencies")
        .flat_map(|(_, lines)| lines)
        .filter_map(|line| line.split(['.', '=', ' ']).next())
        .collect();
    names.sort_unstable();
    names
}

/// The headings of a manifest, each with its lines; blank lines and remarks left out.
fn sections(manifest: &str) -> Vec<(&str, Vec<&str>)> {
    let mut sections: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            sections.push((name, Vec::new()));
        } else if !line.is_empty()
            && !line.starts_with('#')
            && let Some((_, lines)) = sections.last_mut()
        {
            lines.push(line);
        }
    }
    sections
}

fn assert_none(offenders: impl Iterator<Item = PathBuf>, what: &str) {
    let offenders: Vec<_> = offenders.collect();
    assert!(
        offenders.is_empty(),
        "{what}: {}",
        offenders
            .iter()
            .map(|file| Path::display(file).to_string())
            .collect::<Vec<_>>()
            .join(", ")
    );
}

#[test]
fn manifests_are_read_by_section() {
    let manifest = "[package]\nname = \"x\"\n\n# why\n[dependencies]\nb.workspace = true\n\
                    a = { path = \"a\" }\n[dev-dependencies]\nc = \"1\"\n";
    assert_eq!(dependencies(manifest), ["a", "b"]);
}

#[test]
fn paths_of_a_machine_are_told_from_other_paths() {
    let root = ["/ro", "ot/"].concat();
    assert!(names_path(&format!("see {root}x"), &root));
    assert!(names_path(&format!("\"{root}x\""), &root));
    assert!(!names_path(&format!("https://example.org{root}x"), &root));
    assert!(!names_path(&format!("chroot{root}x"), &root));
}
