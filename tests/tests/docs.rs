//! Documents and what they point at: links lead somewhere, and quoted log lines are in the sources.

use std::path::{Path, PathBuf};

use ferrule_tests::{files, read, root, sources};

#[test]
fn every_relative_link_leads_to_a_file() {
    let mut broken = Vec::new();
    for page in pages() {
        for target in links(&read(&page)) {
            let file = target.split('#').next().unwrap_or_default();
            let folder = root().join(&page).parent().map(Path::to_owned);
            if !file.is_empty() && !folder.is_some_and(|folder| folder.join(file).exists()) {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn log_lines_that_operators_grep_for_exist() {
    let page = read("docs/operations.md");
    let quoted = messages(&page);
    assert!(quoted.len() > 5, "the table of log lines is not found");
    let code: Vec<String> = sources()
        .into_iter()
        .filter(|file| file.starts_with("crates") && file.iter().any(|part| part == "src"))
        .map(read)
        .collect();
    let unknown: Vec<_> = quoted
        .into_iter()
        .filter(|message| !code.iter().any(|text| text.contains(message)))
        .collect();
    assert!(
        unknown.is_empty(),
        "docs/operations.md quotes log lines that no source has; quote them as they are now: \
         {unknown:#?}"
    );
}

/// All documents.
fn pages() -> impl Iterator<Item = PathBuf> {
    let is_page = |file: &PathBuf| file.extension().is_some_and(|kind| kind == "md");
    files().into_iter().filter(is_page)
}

/// The targets of links within this repository.
fn links(text: &str) -> Vec<&str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
        .filter(|target| !target.contains("://"))
        .collect()
}

/// The messages in the first column of the table below `## Logs`, with their quotes.
fn messages(page: &str) -> Vec<&str> {
    page.lines()
        .skip_while(|line| *line != "## Logs")
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn links_and_messages_are_found() {
    let text =
        "see [a](b.md#c) and [d](https://e)\n## Logs\n| `\"X\"`, `\"Y\"` | `z` |\n## End\n| `n` |";
    assert_eq!(links(text), ["b.md#c"]);
    assert_eq!(messages(text), ["\"X\"", "\"Y\""]);
}
