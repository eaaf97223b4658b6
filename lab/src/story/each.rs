//! Entries of a list that stand for many.
//!
//! ```yaml
//! - { each: 1..50, service: web-#, ips: [10.96.20.#], ports: [80] }
//! - { each: 1..50, line: "a1 -> web-#:80 = b1" }
//! ```
//!
//! In: a story as YAML has it. Out: the same with every such entry written out. It works wherever
//! there is a list: objects, lines, steps.

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};

/// Writes out every entry with `each`, at any depth.
pub fn expand(value: Value) -> Result<Value> {
    Ok(match value {
        Value::Array(entries) => {
            let mut all = Vec::new();
            for entry in entries {
                for copy in copies(entry)? {
                    all.push(expand(copy)?);
                }
            }
            Value::Array(all)
        }
        Value::Object(fields) => {
            let fields: Result<Map<_, _>> = fields
                .into_iter()
                .map(|(name, value)| Ok((name, expand(value)?)))
                .collect();
            Value::Object(fields?)
        }
        other => other,
    })
}

/// One entry for every number, or the entry itself.
fn copies(mut entry: Value) -> Result<Vec<Value>> {
    let range = entry
        .as_object_mut()
        .and_then(|fields| fields.remove("each"));
    let Some(range) = range else {
        return Ok(vec![entry]);
    };
    let strange = || format!("`each: {range}` is not a range such as 1..50");
    let (first, last) = range
        .as_str()
        .and_then(|text| text.split_once(".."))
        .with_context(strange)?;
    let first: u32 = first.parse().with_context(strange)?;
    let last: u32 = last.parse().with_context(strange)?;
    ensure!(first <= last, strange());
    Ok((first..=last).map(|number| with(&entry, number)).collect())
}

/// The number in place of every `#`, in keys too. A `#` alone is a number, not a text.
fn with(value: &Value, number: u32) -> Value {
    match value {
        Value::String(text) if text == "#" => number.into(),
        Value::String(text) => text.replace('#', &number.to_string()).into(),
        Value::Array(entries) => entries.iter().map(|entry| with(entry, number)).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.replace('#', &number.to_string()), with(value, number)))
            .collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_entry_with_each_is_written_out() {
        let story = json!({ "apply": [
            "before",
            { "each": "9..11", "service": "web-#", "ips": ["10.96.20.#"], "x#": "#" },
        ]});
        let service = |number: u8| {
            let ip = format!("10.96.20.{number}");
            json!({ "service": format!("web-{number}"), "ips": [ip], format!("x{number}"): number })
        };
        assert_eq!(
            expand(story).unwrap(),
            json!({ "apply": ["before", service(9), service(10), service(11)] })
        );
        assert!(expand(json!([{ "each": "3..1" }])).is_err());
        assert!(expand(json!([{ "each": 7 }])).is_err());
    }
}
