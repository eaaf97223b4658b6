//! The repository as its own tests see it: files, lines, and the names of all tests.
//!
//! In: the checkout this package lies in. Out: paths relative to its root, and text. Nothing is
//! judged here; each file in `tests/` looks at one matter.

pub mod console;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders that git does not keep.
const NOT_KEPT: [&str; 2] = [".git", "target"];

/// The root of the checkout.
///
/// # Panics
/// Never: the package lies one level below the root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ lies in the root")
}

/// The text of a file, named relative to the root.
///
/// # Panics
/// When it cannot be read; a test then shows which file it was.
pub fn read(file: impl AsRef<Path>) -> String {
    let file = file.as_ref();
    fs::read_to_string(root().join(file))
        .unwrap_or_else(|error| unreadable(file, &error.to_string()))
}

/// All files of the repository, sorted, relative to the root.
pub fn files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(root(), &mut found);
    found.sort_unstable();
    found
}

/// All Rust sources, sorted, relative to the root.
pub fn sources() -> Vec<PathBuf> {
    files()
        .into_iter()
        .filter(|file| file.extension().is_some_and(|kind| kind == "rs"))
        .collect()
}

/// Names of all functions in the sources that carry a `#[test]`.
pub fn test_names() -> BTreeSet<String> {
    sources()
        .into_iter()
        .flat_map(|file| tests_in(&read(file)))
        .collect()
}

/// The name after `fn` when the line begins a function.
pub fn function_name(line: &str) -> Option<&str> {
    let after = line
        .trim_start()
        .trim_start_matches("pub ")
        .strip_prefix("fn ")?;
    let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
    matches!(after.as_bytes()[end], b'(' | b'<').then(|| &after[..end])
}

fn tests_in(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut marked = false;
    for line in text.lines() {
        if line.trim() == "#[test]" {
            marked = true;
        } else if let Some(name) = function_name(line)
            && std::mem::take(&mut marked)
        {
            names.push(name.to_owned());
        }
    }
    names
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    for entry in entries.unwrap_or_else(|error| unreadable(folder, &error.to_string())) {
        let path = entry.path();
        if NOT_KEPT.iter().any(|name| entry.file_name() == *name) || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            collect(&path, found);
        } else {
            found.push(path.strip_prefix(root()).unwrap_or(&path).to_owned());
        }
    }
}

#[expect(
    clippy::panic,
    reason = "only tests call this; a panic is how they fail"
)]
fn unreadable(path: &Path, error: &str) -> ! {
    panic!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_the_function_after_its_mark() {
        let text =
            "#[test]\n#[cfg(unix)]\nfn one() {\nfn two() {\n    #[test]\n    fn three(a in b()) {";
        assert_eq!(tests_in(text), ["one", "three"]);
    }

    #[test]
    fn a_function_has_a_name_and_arguments() {
        assert_eq!(function_name("    pub fn build<'a>("), Some("build"));
        assert_eq!(function_name("fn core_079_x() {"), Some("core_079_x"));
        assert_eq!(function_name("// fn old"), None);
    }
}
