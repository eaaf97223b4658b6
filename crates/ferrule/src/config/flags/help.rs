//! The text of `--help` and of the usage beside an error.

use super::table::{Flags, TABLE};
use super::value::Value;
use super::{PROGRAM, Spec};
use crate::config::gates::unfinished;
use crate::config::go::quote;

/// Lines are no longer than this, except where a word is.
const WIDTH: usize = 120;

/// Everything `--help` says.
pub fn help() -> String {
    let about = "Makes every Kubernetes Service address work on this node.\n\n\
        Watches Services and EndpointSlices and keeps the kernel's packet rules in step with \
        them. ferrule takes kube-proxy's place: it reads the same flags and the same file. With \
        --config the file decides, and most other flags are ignored.";
    let paragraphs: Vec<_> = about.split("\n\n").map(|text| wrap(text, 0)).collect();
    format!("{}\n\n{}", paragraphs.join("\n\n"), usage())
}

/// How to call the program, and every flag.
pub fn usage() -> String {
    let (own, common): (Vec<_>, Vec<_>) = shown().into_iter().partition(|spec| spec.own);
    format!(
        "Usage:\n  {PROGRAM} [flags]\n\nFlags:\n{}\nFlags kube-proxy does not have:\n{}",
        block(&common),
        block(&own)
    )
}

/// Flags that are not deprecated, by name.
fn shown() -> Vec<&'static Spec> {
    let mut specs: Vec<_> = TABLE
        .iter()
        .filter(|spec| spec.deprecated.is_none())
        .collect();
    specs.sort_unstable_by_key(|spec| spec.name);
    specs
}

fn block(specs: &[&Spec]) -> String {
    let defaults = Flags::default();
    let rows: Vec<_> = specs
        .iter()
        .map(|spec| {
            (
                left(spec, spec.value(&defaults)),
                right(spec, spec.value(&defaults)),
            )
        })
        .collect();
    let column = rows.iter().map(|(left, _)| left.len()).max().unwrap_or(0) + 3;
    let lines: Vec<_> = rows
        .iter()
        .map(|(left, right)| format!("{left:column$}{}\n", wrap(right, column)))
        .collect();
    lines.concat()
}

/// `  -v, --v Level`
fn left(spec: &Spec, value: &dyn Value) -> String {
    let short = match spec.short {
        Some(letter) => format!("-{letter}, "),
        None => "    ".to_owned(),
    };
    let word = match (value.word(), value.bare()) {
        ("", _) => String::new(),
        (word, Some(bare)) => format!(" {word}[={bare}]"),
        (word, None) => format!(" {word}"),
    };
    format!("  {short}--{}{word}", spec.name)
}

/// What it means, and its default unless that is nothing.
fn right(spec: &Spec, value: &dyn Value) -> String {
    let mut text = spec.help.to_owned();
    if spec.name == "feature-gates" {
        let gates = unfinished().map(|(name, stage, default)| {
            let stage = stage.label();
            format!("\n{name}=true|false ({stage} - default={default})")
        });
        text.extend(gates);
    }
    let default = value.text();
    match value.word() {
        _ if ["", "false", "0", "0s", "[]"].contains(&default.as_str()) => text,
        "string" => format!("{text} (default {})", quote(&default)),
        _ => format!("{text} (default {default})"),
    }
}

/// Breaks lines between words; lines after the first begin at `indent`.
fn wrap(text: &str, indent: usize) -> String {
    let mut out = String::new();
    for (at, line) in text.lines().enumerate() {
        let mut column = WIDTH;
        for (nth, word) in line.split(' ').enumerate() {
            let starts_line = nth == 0 || column + 1 + word.len() > WIDTH;
            if starts_line && (at, nth) != (0, 0) {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent));
            }
            if starts_line {
                column = indent;
            } else {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += word.len();
        }
    }
    out
}
