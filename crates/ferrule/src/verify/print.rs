//! Prints what differs: a line for each, or JSON.
//!
//! Differences go to standard output; what a reader should know beside them, and how many there are,
//! to standard error.

use std::collections::BTreeSet;
use std::io::{self, Write};

use ferrule_core::model::Family;
use ferrule_dataplane::verify::{Discrepancy, Kind};
use serde::Serialize;

use super::{Failure, Found, all, flush};
use crate::cli::Output;
use crate::print_error;

/// How differences are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A line for each.
    Text,
    /// One object; while watching, one object for each on a line of its own.
    Json,
}

/// What was printed so far.
pub struct Sheet {
    form: Form,
    node: String,
    mode: &'static str,
    shown: BTreeSet<(Family, Discrepancy)>,
    noted: BTreeSet<String>,
}

/// One difference in JSON.
#[derive(Serialize)]
struct Row<'a> {
    /// `missing`, `unexpected`, `different`; `resolved` for one that is no more.
    kind: &'static str,
    family: &'static str,
    object: &'a str,
    found: Option<&'a str>,
    service: Option<&'a str>,
}

/// All of them in JSON.
#[derive(Serialize)]
struct All<'a> {
    node: &'a str,
    mode: &'static str,
    families: Vec<&'static str>,
    differences: Vec<Row<'a>>,
    notes: Vec<&'a str>,
}

const RESOLVED: &str = "resolved";

fn row((family, one): &(Family, Discrepancy), resolved: bool) -> Row<'_> {
    Row {
        kind: if resolved {
            RESOLVED
        } else {
            one.kind.as_str()
        },
        family: family.as_str(),
        object: &one.object,
        found: one.found.as_deref(),
        service: one.service.as_deref(),
    }
}

impl Sheet {
    /// Nothing yet.
    pub fn new(output: Output, node: &str, mode: &'static str) -> Self {
        Self {
            form: output.into(),
            node: node.to_owned(),
            mode,
            shown: BTreeSet::new(),
            noted: BTreeSet::new(),
        }
    }

    /// Everything that was found.
    pub fn print_all(&mut self, found: &Found) -> Result<(), Failure> {
        let differences = all(found);
        let mut out = io::BufWriter::new(io::stdout().lock());
        match self.form {
            Form::Text => {
                self.print_notes(found);
                for one in &differences {
                    writeln!(out, "{}", line(&row(one, false)))?;
                }
            }
            Form::Json => {
                let notes = found.values().flat_map(|report| &report.notes);
                let all = All {
                    node: &self.node,
                    mode: self.mode,
                    families: found.keys().map(|family| family.as_str()).collect(),
                    differences: differences.iter().map(|one| row(one, false)).collect(),
                    notes: notes.map(String::as_str).collect(),
                };
                serde_json::to_writer_pretty(&mut out, &all).map_err(io::Error::from)?;
                writeln!(out)?;
            }
        }
        flush(out)?;
        if self.form == Form::Text {
            print_error(&self.summary(found, differences.len()));
        }
        self.shown = differences;
        Ok(())
    }

    /// What became different since the last time.
    pub fn print_changes(&mut self, found: &Found) -> Result<(), Failure> {
        let differences = all(found);
        self.print_notes(found);
        let mut out = io::BufWriter::new(io::stdout().lock());
        let resolved = self
            .shown
            .difference(&differences)
            .map(|one| row(one, true));
        let new = differences
            .difference(&self.shown)
            .map(|one| row(one, false));
        for row in resolved.chain(new) {
            match self.form {
                Form::Text => writeln!(out, "{}", line(&row))?,
                Form::Json => {
                    serde_json::to_writer(&mut out, &row).map_err(io::Error::from)?;
                    writeln!(out)?;
                }
            }
        }
        flush(out)?;
        self.shown = differences;
        Ok(())
    }

    /// Each note once.
    fn print_notes(&mut self, found: &Found) {
        let notes = found.values().flat_map(|report| &report.notes);
        let notes: BTreeSet<String> = notes.cloned().collect();
        for note in notes.difference(&self.noted) {
            print_error(&format!("note: {note}"));
        }
        self.noted = notes;
    }

    fn summary(&self, found: &Found, count: usize) -> String {
        let families: Vec<_> = found.keys().map(|family| family.as_str()).collect();
        let families = families.join(" and ");
        let (mode, node) = (self.mode, &self.node);
        let count = match count {
            0 => "no difference".to_owned(),
            1 => "1 difference".to_owned(),
            count => format!("{count} differences"),
        };
        format!("{families} in mode {mode} on node {node}: {count}")
    }
}

/// The longest word before an object.
const WIDTH: usize = Kind::Unexpected.as_str().len() + 1;

fn line(row: &Row<'_>) -> String {
    let mut line = format!("{:<WIDTH$} {}", row.kind, row.object);
    if let Some(found) = row.found {
        line.push_str(" | found: ");
        line.push_str(found);
    }
    if let Some(service) = row.service {
        line.push_str(" | Service ");
        line.push_str(service);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_one_line_with_what_is_found_and_whose_it_is() {
        let one = Discrepancy::different("rule ip t c drop", "accept").of(Some("shop/web:http"));
        let both = [false, true].map(|resolved| {
            let one = (Family::V4, one.clone());
            line(&row(&one, resolved))
        });
        let rest = "rule ip t c drop | found: accept | Service shop/web:http";
        assert_eq!(both[0], format!("different   {rest}"));
        assert_eq!(both[1], format!("resolved    {rest}"));
    }
}
