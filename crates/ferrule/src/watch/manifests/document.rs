//! Splits the text of a file into documents.
//!
//! We split YAML ourselves, at the lines that YAML reserves for it: so there is a number and a
//! line to report, one decoded document in memory at a time, and a document of a foreign kind
//! that we cannot read does not end the file.

use std::ffi::OsStr;
use std::path::Path;

use serde::de::IgnoredAny;

use super::decode::Fault;

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    Yaml,
    Json,
}

impl Syntax {
    /// JSON by name; everything else is YAML, which includes JSON.
    pub(super) fn of(file: &Path) -> Self {
        match file.extension().and_then(OsStr::to_str) {
            Some("json") => Self::Json,
            _ => Self::Yaml,
        }
    }
}

/// One document of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Document<'a> {
    /// Counted from 1, empty ones included.
    pub(super) number: usize,
    /// The line of the file on which `text` begins, counted from 1.
    pub(super) line: usize,
    /// The document, with its `---` if it has one.
    pub(super) text: &'a str,
}

impl Document<'_> {
    /// The line of the file on which something is said.
    pub(super) fn first_line(&self) -> usize {
        let silent = |line: &&str| {
            let line = line.strip_prefix("---").unwrap_or(line).trim_start();
            line.is_empty() || line.starts_with('#')
        };
        let lines = self.text.lines().count();
        let skipped = self.text.lines().take_while(silent).count();
        if skipped < lines {
            self.line + skipped
        } else {
            self.line
        }
    }
}

/// A document, or where there should be one and what is wrong with it.
pub(super) type Split<'a> = Result<Document<'a>, (Document<'a>, Fault)>;

/// The documents of a file, in order. After an error there are no more.
pub(super) fn split(text: &str, syntax: Syntax) -> Box<dyn Iterator<Item = Split<'_>> + '_> {
    match syntax {
        Syntax::Yaml => Box::new(YamlDocuments::new(text).map(Ok)),
        Syntax::Json => Box::new(json_documents(text)),
    }
}

struct YamlDocuments<'a> {
    rest: &'a str,
    line: usize,
    number: usize,
}

impl<'a> YamlDocuments<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            line: 1,
            number: 0,
        }
    }

    /// Takes the next line, with its line break.
    fn take_line(&mut self) {
        let end = self.rest.find('\n').map_or(self.rest.len(), |at| at + 1);
        self.rest = &self.rest[end..];
        self.line += 1;
    }
}

impl<'a> Iterator for YamlDocuments<'a> {
    type Item = Document<'a>;

    fn next(&mut self) -> Option<Document<'a>> {
        // Between documents there may be blank lines, comments, directives and end marks.
        while !self.rest.is_empty() && !is_mark(self.rest, "---") {
            let blank = self
                .rest
                .lines()
                .next()
                .is_none_or(|line| line.trim().is_empty());
            if !blank && !self.rest.starts_with(['#', '%']) && !is_mark(self.rest, "...") {
                break;
            }
            self.take_line();
        }
        if self.rest.is_empty() {
            return None;
        }
        let (start, line) = (self.rest, self.line);
        self.take_line();
        while !self.rest.is_empty() && !is_mark(self.rest, "---") && !is_mark(self.rest, "...") {
            self.take_line();
        }
        self.number += 1;
        let text = &start[..start.len() - self.rest.len()];
        Some(Document {
            number: self.number,
            line,
            text,
        })
    }
}

/// Whether `text` begins with this mark, alone or followed by white space.
fn is_mark(text: &str, mark: &str) -> bool {
    text.strip_prefix(mark)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\n', '\r']))
}

/// The values that follow each other in a JSON file.
fn json_documents(text: &str) -> impl Iterator<Item = Split<'_>> + '_ {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let mut next = Document {
        number: 0,
        line: 1,
        text: "",
    };
    let mut start = 0;
    std::iter::from_fn(move || {
        // A stream ends by itself after its first error.
        let value = values.next()?;
        next.number += 1;
        if let Err(error) = value {
            // Its position is already that in the file.
            return Some(Err((Document { line: 1, ..next }, Fault::Json(error))));
        }
        let document = Document {
            text: &text[start..values.byte_offset()],
            ..next
        };
        next.line += document.text.matches('\n').count();
        start = values.byte_offset();
        Some(Ok(document))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yaml(text: &str) -> Vec<(usize, usize, &str)> {
        YamlDocuments::new(text)
            .map(|d| (d.number, d.line, d.text))
            .collect()
    }

    #[test]
    fn yaml_splits_at_marks_in_the_first_column_only() {
        let text = "a: |\n  ---\n  x\n---\nb: 1\n--- # note\nc: ---\n---d: 2\n";
        assert_eq!(
            yaml(text),
            [
                (1, 1, "a: |\n  ---\n  x\n"),
                (2, 4, "---\nb: 1\n"),
                (3, 6, "--- # note\nc: ---\n---d: 2\n"),
            ]
        );
    }

    #[test]
    fn what_comes_before_the_first_mark_is_no_document_unless_it_says_something() {
        assert_eq!(yaml(""), []);
        assert_eq!(yaml("\n# only a comment\n"), []);
        assert_eq!(yaml("# head\n%YAML 1.2\n---\na: 1"), [(1, 3, "---\na: 1")]);
    }

    #[test]
    fn empty_documents_are_counted() {
        assert_eq!(
            yaml("---\n---\n\n---\na: 1\n"),
            [(1, 1, "---\n"), (2, 2, "---\n\n"), (3, 4, "---\na: 1\n")]
        );
    }

    #[test]
    fn an_end_mark_ends_a_document_and_a_bare_one_may_follow() {
        assert_eq!(
            yaml("a: 1\n...\n# between\n...\nb: 2\r\n...\r\n---\r\nc: 3"),
            [(1, 1, "a: 1\n"), (2, 5, "b: 2\r\n"), (3, 7, "---\r\nc: 3")]
        );
    }

    #[test]
    fn json_values_follow_each_other_and_keep_their_lines() {
        let text = "{\"a\":\n1}\n\n{\"b\": 2} [3]\n";
        let found: Vec<_> = json_documents(text)
            .map(|split| split.map(|d| (d.number, d.line, d.text.trim())).unwrap())
            .collect();
        assert_eq!(
            found,
            [(1, 1, "{\"a\":\n1}"), (2, 2, "{\"b\": 2}"), (3, 4, "[3]")]
        );
    }

    #[test]
    fn broken_json_names_its_document_and_ends_the_file() {
        let found: Vec<_> = json_documents("{}\n{\n\"a\" 1}\n{}").collect();
        assert_eq!(found.len(), 2);
        let (document, fault) = found[1].as_ref().unwrap_err();
        assert_eq!((document.number, fault.line()), (2, Some(3)));
    }

    #[test]
    fn a_document_speaks_first_after_its_comments() {
        let line = |text| {
            Document {
                number: 1,
                line: 10,
                text,
            }
            .first_line()
        };
        assert_eq!(line("--- # why\n\n# because\na: 1\n"), 13);
        assert_eq!(line("--- {a: 1}\n"), 10);
        assert_eq!(line("---\n"), 10);
    }
}
