//! How much is wanted, and from which source files more.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};

use crate::config::v1alpha1::VModuleItem;

/// The verbosity of the whole program and of some of its files. May change at any time.
pub(super) struct Levels {
    verbosity: AtomicU32,
    /// Whether there are patterns, so that the usual case takes no lock.
    has_patterns: AtomicBool,
    patterns: RwLock<Vec<VModuleItem>>,
}

impl Levels {
    /// Only what is always wanted.
    pub(super) const fn new() -> Self {
        Self {
            verbosity: AtomicU32::new(0),
            has_patterns: AtomicBool::new(false),
            patterns: RwLock::new(Vec::new()),
        }
    }

    pub(super) fn verbosity(&self) -> u32 {
        self.verbosity.load(Relaxed)
    }

    pub(super) fn set_verbosity(&self, verbosity: u32) {
        self.verbosity.store(verbosity, Relaxed);
    }

    pub(super) fn set_patterns(&self, patterns: &[VModuleItem]) {
        let mut current = self
            .patterns
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        patterns.clone_into(&mut current);
        self.has_patterns.store(!patterns.is_empty(), Relaxed);
    }

    /// Whether lines of this verbosity are wanted from this source file. The first pattern that
    /// matches the file counts.
    pub(super) fn wants(&self, verbosity: u32, file: &str) -> bool {
        if verbosity <= self.verbosity() {
            return true;
        }
        if !self.has_patterns.load(Relaxed) {
            return false;
        }
        let name = file.rsplit('/').next().unwrap_or(file);
        let name: Vec<char> = name.trim_end_matches(".rs").chars().collect();
        let patterns = self.patterns.read().unwrap_or_else(PoisonError::into_inner);
        patterns
            .iter()
            .find(|item| {
                let pattern: Vec<char> = item.file_pattern.chars().collect();
                matches(&pattern, &name)
            })
            .is_some_and(|item| verbosity <= item.verbosity)
    }
}

/// Whether a name has the shape of a pattern: `*` is anything, `?` one character, `[a-z]` and
/// `[^a-z]` one of or none of some, `\` takes the next one literally.
fn matches(pattern: &[char], name: &[char]) -> bool {
    match pattern {
        [] => name.is_empty(),
        ['*', rest @ ..] => (0..=name.len()).any(|skipped| matches(rest, &name[skipped..])),
        ['?', rest @ ..] => !name.is_empty() && matches(rest, &name[1..]),
        ['[', rest @ ..] => match (class(rest), name) {
            (Some((contains, rest)), [first, name @ ..]) => contains(*first) && matches(rest, name),
            _ => false,
        },
        ['\\', literal, rest @ ..] | [literal, rest @ ..] => {
            name.first() == Some(literal) && matches(rest, &name[1..])
        }
    }
}

/// The characters of a class up to its bracket, and what follows. `None` if it never ends.
fn class(pattern: &[char]) -> Option<(impl Fn(char) -> bool, &[char])> {
    let (negated, pattern) = match pattern {
        ['^', rest @ ..] => (true, rest),
        _ => (false, pattern),
    };
    let end = 1 + pattern.iter().skip(1).position(|c| *c == ']')?;
    let (mut body, rest) = (&pattern[..end], &pattern[end + 1..]);
    let mut ranges = Vec::new();
    while let [first, after @ ..] = body {
        (ranges, body) = match after {
            ['-', last, after @ ..] => ([ranges, vec![*first..=*last]].concat(), after),
            _ => ([ranges, vec![*first..=*first]].concat(), after),
        };
    }
    let contains = move |c: char| ranges.iter().any(|range| range.contains(&c)) != negated;
    Some((contains, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched(pattern: &str, name: &str) -> bool {
        let characters = |text: &str| text.chars().collect::<Vec<_>>();
        matches(&characters(pattern), &characters(name))
    }

    #[test]
    fn patterns_are_globs() {
        for (pattern, name) in [
            ("sync", "sync"),
            ("s*", "sync"),
            ("*", ""),
            ("*n?", "sync"),
            ("s[x-z]nc", "sync"),
            ("s[^a]nc", "sync"),
            ("a\\*", "a*"),
            ("[]]", "]"),
        ] {
            assert!(matched(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("sync", "syncs"),
            ("s?", "sync"),
            ("s[a-x]nc", "sync"),
            ("s[^y]nc", "sync"),
            ("[", "["),
            ("", "a"),
        ] {
            assert!(!matched(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn the_first_pattern_that_matches_counts() {
        let levels = Levels::new();
        levels.set_verbosity(1);
        let item = |pattern: &str, verbosity| VModuleItem {
            file_pattern: pattern.to_owned(),
            verbosity,
        };
        levels.set_patterns(&[item("sync", 3), item("s*", 5)]);
        let wants = |verbosity, file| levels.wants(verbosity, file);
        assert!(wants(1, "crates/x/src/main.rs") && !wants(2, "crates/x/src/main.rs"));
        assert!(wants(3, "src/sync.rs") && !wants(4, "src/sync.rs"));
        assert!(wants(5, "src/sync/steps.rs") && !wants(6, "src/sync/steps.rs"));
        levels.set_patterns(&[]);
        assert!(!wants(2, "src/sync.rs"));
    }
}
