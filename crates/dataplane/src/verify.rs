//! What in the kernel is not as it is desired, as values: for `ferrule verify`, which writes nothing.
//!
//! Each mode reads what is there and compares it with what it would write. A [`Discrepancy`] names the
//! object in the words of the tool with which administrators look at it. Here is what all modes share:
//! the types, and the comparison of two lists of lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// Something in the kernel that is not as it is desired.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Discrepancy {
    /// In which way.
    pub kind: Kind,
    /// The object in the words of the mode's tool: as it should be, or as it is if it should not be.
    pub object: String,
    /// What there is instead, if something is.
    pub found: Option<String>,
    /// The Service port that it belongs to, where that is known.
    pub service: Option<Arc<str>>,
}

/// In which way something is not as it is desired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It is not there.
    Missing,
    /// It is there and should not be.
    Unexpected,
    /// It is there and should be otherwise.
    Different,
}

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// All differences, sorted, each once.
    pub discrepancies: BTreeSet<Discrepancy>,
    /// What could not be compared, and what a reader should know.
    pub notes: BTreeSet<String>,
}

impl Kind {
    /// The word in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Unexpected => "unexpected",
            Self::Different => "different",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Discrepancy {
    /// Something that is not there.
    pub fn missing(object: impl Into<String>) -> Self {
        Self::new(Kind::Missing, object)
    }

    /// Something that should not be there.
    pub fn unexpected(object: impl Into<String>) -> Self {
        Self::new(Kind::Unexpected, object)
    }

    /// Something that should be otherwise.
    pub fn different(object: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            found: Some(found.into()),
            ..Self::new(Kind::Different, object)
        }
    }

    fn new(kind: Kind, object: impl Into<String>) -> Self {
        Self {
            kind,
            object: object.into(),
            found: None,
            service: None,
        }
    }

    /// The same of this Service port.
    #[must_use]
    pub fn of(mut self, service: Option<impl fmt::Display>) -> Self {
        self.service = service.map(|service| Arc::from(service.to_string()));
        self
    }
}

impl FromIterator<Discrepancy> for Report {
    fn from_iter<I: IntoIterator<Item = Discrepancy>>(all: I) -> Self {
        Self {
            discrepancies: all.into_iter().collect(),
            notes: BTreeSet::new(),
        }
    }
}

impl Report {
    /// Adds a difference.
    pub fn add(&mut self, discrepancy: Discrepancy) {
        self.discrepancies.insert(discrepancy);
    }

    /// Adds something that a reader should know.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.insert(note.into());
    }

    /// Adds all of another report.
    pub fn append(&mut self, mut other: Self) {
        self.discrepancies.append(&mut other.discrepancies);
        self.notes.append(&mut other.notes);
    }

    /// Keeps only differences that another look found too: what one alone found was a change on its
    /// way.
    #[must_use]
    pub fn confirmed_by(mut self, later: &Self) -> Self {
        self.discrepancies
            .retain(|one| later.discrepancies.contains(one));
        self
    }
}

/// How one list of lines differs from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineDifference<'a> {
    /// It is in the wanted list only; its place there.
    Missing(usize, &'a str),
    /// It is in the found list only; its place there.
    Unexpected(usize, &'a str),
    /// The lines are the same, in another order: the first that is found elsewhere, and the one that
    /// stands in its place.
    Moved(&'a str, &'a str),
}

/// How lines that are found differ from those that are wanted. Where all are there, their order
/// matters.
pub fn compare_lines<'a>(wanted: &'a [String], found: &'a [String]) -> Vec<LineDifference<'a>> {
    if wanted == found {
        return Vec::new();
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for line in found {
        *counts.entry(line).or_default() += 1;
    }
    let mut differences = Vec::new();
    for (at, line) in wanted.iter().enumerate() {
        match counts.get_mut(line.as_str()) {
            Some(count) if *count > 0 => *count -= 1,
            _ => differences.push(LineDifference::Missing(at, line)),
        }
    }
    // Of several alike the last ones are too many.
    for (at, line) in found.iter().enumerate().rev() {
        if let Some(count) = counts.get_mut(line.as_str())
            && *count > 0
        {
            *count -= 1;
            differences.push(LineDifference::Unexpected(at, line));
        }
    }
    // By place, not by words: of lines that are alike one may be missing and another not.
    let is_missing_at = |place: usize| {
        let mut all = differences.iter();
        all.any(|one| matches!(one, LineDifference::Missing(at, _) if *at == place))
    };
    let is_unexpected_at = |place: usize| {
        let mut all = differences.iter();
        all.any(|one| matches!(one, LineDifference::Unexpected(at, _) if *at == place))
    };
    let left = wanted
        .iter()
        .enumerate()
        .filter(|(at, _)| !is_missing_at(*at));
    let right = found
        .iter()
        .enumerate()
        .filter(|(at, _)| !is_unexpected_at(*at));
    let (left, right) = (left.map(|(_, line)| line), right.map(|(_, line)| line));
    let moved = left.zip(right).find(|(left, right)| left != right);
    let moved = moved.map(|(left, right)| LineDifference::Moved(left, right));
    differences.extend(moved);
    differences
}

/// The same as discrepancies. A line that stands where another one should is one difference, not two.
pub fn line_discrepancies(
    wanted: &[String],
    found: &[String],
    object: impl Fn(&str) -> String,
) -> Vec<Discrepancy> {
    let differences = compare_lines(wanted, found);
    let stranger_at = |place: usize| {
        differences.iter().find_map(|one| match one {
            LineDifference::Unexpected(at, line) if *at == place => Some(*line),
            _ => None,
        })
    };
    let is_missing_at = |place: usize| {
        let mut all = differences.iter();
        all.any(|one| matches!(one, LineDifference::Missing(at, _) if *at == place))
    };
    let each = differences
        .iter()
        .filter_map(|difference| match difference {
            LineDifference::Missing(at, line) => Some(match stranger_at(*at) {
                Some(instead) => Discrepancy::different(object(line), instead),
                None => Discrepancy::missing(object(line)),
            }),
            LineDifference::Unexpected(at, _) if is_missing_at(*at) => None,
            LineDifference::Unexpected(_, line) => Some(Discrepancy::unexpected(object(line))),
            LineDifference::Moved(line, instead) => Some(Discrepancy::different(
                object(line),
                format!("in its place: {instead}"),
            )),
        });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn compare(wanted: &str, found: &str) -> String {
        let (wanted, found) = (lines(wanted), lines(found));
        let differences = compare_lines(&wanted, &found).into_iter();
        let words = differences.map(|difference| match difference {
            LineDifference::Missing(at, line) => format!("-{at}{line}"),
            LineDifference::Unexpected(at, line) => format!("+{at}{line}"),
            LineDifference::Moved(line, instead) => format!("{line}<>{instead}"),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn lines_that_come_go_and_move_are_told_apart() {
        assert_eq!(compare("a b c", "a b c"), "");
        assert_eq!(compare("a b c", "a c"), "-1b");
        assert_eq!(compare("a b", "a x b"), "+1x");
        assert_eq!(compare("a b", "b a"), "a<>b");
        assert_eq!(compare("a a b", "a b b"), "-1a +2b");
        assert_eq!(compare("a b c", "c b x"), "-0a +2x b<>c");
        assert_eq!(compare("", "x"), "+0x");
    }

    #[test]
    fn a_difference_that_is_gone_at_the_second_look_is_none() {
        let mut first = Report::default();
        first.add(Discrepancy::missing("a"));
        first.add(Discrepancy::unexpected("b"));
        let mut second = Report::default();
        second.add(Discrepancy::missing("a"));
        second.add(Discrepancy::missing("c"));
        let confirmed = first.confirmed_by(&second);
        let objects: Vec<_> = confirmed.discrepancies.iter().map(|d| &*d.object).collect();
        assert_eq!(objects, ["a"]);
    }
}
