//! Writes a failing cluster as a story that can be put into `lab/stories`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use serde_json::Value;

use super::cluster::State;
use super::matrix::Difference;
use super::{draw, objects};
use crate::api;
use crate::plan;
use crate::probe::{Answer, Answers};

/// The text of the file. `reference` is the world that is right, unless parity.md says otherwise.
pub fn text(history: &[State], differences: &[Difference], reference: usize) -> Result<String> {
    let mut text = String::from("story: Say here what is true\ncovers: [NFT-001]\nsteps:\n");
    let mut before = BTreeMap::new();
    let mut items_before = Vec::new();
    for (number, state) in history.iter().enumerate() {
        let items = state.items()?;
        let now = objects(state)?;
        let gone: Vec<_> = before
            .keys()
            .filter(|path| !now.contains_key(*path))
            .collect();
        let mut applied = String::new();
        if number == 0 && hints(history) {
            zones(&mut applied)?;
        }
        for item in items.iter().filter(|item| !items_before.contains(*item)) {
            write_item(&mut applied, item)?;
        }
        if !applied.is_empty() {
            write!(text, "- apply:\n{applied}")?;
        }
        if !gone.is_empty() {
            let gone: Vec<_> = gone
                .iter()
                .filter_map(|path| word(&before[*path]))
                .collect();
            writeln!(text, "- delete: [{}]", gone.join(", "))?;
        }
        before = now;
        items_before = items;
    }
    writeln!(text, "- packets:")?;
    for difference in differences {
        write_difference(&mut text, difference, reference)?;
    }
    Ok(text)
}

fn word(object: &Value) -> Option<String> {
    let kind = object["kind"].as_str()?;
    let name = object["metadata"]["name"].as_str()?;
    api::path(object).is_ok().then(|| format!("{kind}/{name}"))
}

fn hints(history: &[State]) -> bool {
    let services = history.iter().flat_map(|state| &state.services);
    let mut endpoints = services.flat_map(super::cluster::Service::endpoints);
    endpoints.any(|endpoint| endpoint.zone.is_some())
}

fn zones(text: &mut String) -> Result<()> {
    for (node, zone) in plan::nodes().zip(draw::ZONES) {
        writeln!(text, "  - node: {}", node.name)?;
        writeln!(
            text,
            "    labels: {{ topology.kubernetes.io/zone: {zone} }}"
        )?;
    }
    Ok(())
}

/// Its fields one below the other, what is in them in one line.
fn write_item(text: &mut String, item: &Value) -> Result<()> {
    let Value::Object(fields) = item else {
        return Ok(());
    };
    // What it is about comes first.
    let first = ["service", "kind"];
    let (head, rest): (Vec<_>, Vec<_>) = fields
        .iter()
        .partition(|(name, _)| first.contains(&name.as_str()));
    let mut mark = "-";
    for (name, value) in head.into_iter().chain(rest) {
        writeln!(text, "  {mark} {name}: {}", flow(value))?;
        mark = " ";
    }
    Ok(())
}

/// A value in one line of YAML.
fn flow(value: &Value) -> String {
    match value {
        Value::Array(all) => {
            let all: Vec<_> = all.iter().map(flow).collect();
            format!("[{}]", all.join(", "))
        }
        Value::Object(fields) => {
            let fields: Vec<_> = fields
                .iter()
                .map(|(name, value)| format!("{name}: {}", flow(value)))
                .collect();
            format!("{{ {} }}", fields.join(", "))
        }
        Value::String(text) if is_plain(text) => text.clone(),
        other => other.to_string(),
    }
}

fn is_plain(text: &str) -> bool {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-./=@> ".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c.is_ascii_digit())
        && text.chars().all(safe)
        && text.parse::<f64>().is_err()
        && !text.ends_with(' ')
}

fn write_difference(text: &mut String, difference: &Difference, reference: usize) -> Result<()> {
    // One comment may have several lines.
    let shown = difference.shown.join("; ").replace('\n', "\n  #");
    let Some(cell) = difference.cell else {
        writeln!(text, "  # {}: {shown}", difference.what)?;
        return Ok(());
    };
    writeln!(text, "  # seen: {shown}")?;
    let outcome = outcome(&difference.answers[reference], cell.sender);
    let choice = if cell.sticky && outcome.contains("from") {
        "one of "
    } else {
        ""
    };
    writeln!(text, "  - {cell} = {choice}{outcome}")?;
    Ok(())
}

/// Answers as the outcome of a line.
fn outcome(answers: &Answers, sender: &str) -> String {
    let mut pods: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut others = Vec::new();
    for answer in answers {
        match answer {
            Answer::Pod { name, port, from } => {
                let from = if from == sender { "client" } else { from };
                pods.entry(from).or_default().push(format!("{name}:{port}"));
            }
            other => others.push(other.to_string()),
        }
    }
    let groups = pods
        .into_iter()
        .map(|(from, pods)| format!("{} from {from}", pods.join(" ")));
    groups.chain(others).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differ::matrix;
    use crate::story::Story;

    #[test]
    fn what_is_told_can_be_read_as_a_story() {
        for seed in 0..200 {
            let history = draw::history(seed);
            let pod = |name: &str, from: &str| Answer::Pod {
                name: name.to_owned(),
                port: 8080,
                from: from.to_owned(),
            };
            let cells = matrix::cells(seed, &history);
            let differences: Vec<_> = cells
                .iter()
                .map(|cell| {
                    let answers = Answers::from([pod("a1", "node1"), pod("b1", cell.sender)]);
                    matrix::difference(cell, vec![Answers::from([Answer::Refused]), answers])
                })
                .collect();
            let text = text(&history, &differences, 1).unwrap();
            let story = Story::parse("test", &text).unwrap_or_else(|e| panic!("{e:#}\n{text}"));
            assert!(!story.steps.is_empty());
        }
    }
}
