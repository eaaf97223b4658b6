//! The text of a file as a tree that remembers where everything stood.
//!
//! Only the first YAML document counts. A text that begins with a brace is JSON and must be
//! nothing but JSON. Repeated keys are all kept: which one wins is decided by the reader.

use std::fmt;

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::{DuplicateKeyPolicy, MessageFormatter as _, Spanned, UserMessageFormatter};

/// A line and a column, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: u64,
    /// The column.
    pub column: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// A value and where it stood.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
}

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

impl Value {
    /// The word for its type in messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Integer(_) | Self::Float(_) => "number",
            Self::Text(_) => "string",
            Self::List(_) => "array",
            Self::Map(_) => "object",
        }
    }
}

/// A key, where it stood, and its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) place: Place,
    pub(super) node: Node,
}

/// Which notation a file is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    Yaml,
    Json,
}

/// Reads a text. The error is a message with its position.
pub(super) fn parse(text: &str) -> Result<(Node, Syntax), String> {
    let syntax = if text.trim_start().starts_with('{') {
        Syntax::Json
    } else {
        Syntax::Yaml
    };
    if syntax == Syntax::Json {
        serde_json::from_str::<de::IgnoredAny>(text)
            .map_err(|error| format!("couldn't get version/kind; json parse error: {error}"))?;
    }
    let mut first = None;
    let outcome =
        serde_saphyr::with_deserializer_from_str_with_options(text, options(), |deserializer| {
            first = Some(Node::deserialize(deserializer)?);
            Ok(())
        });
    match (first, outcome) {
        // Whatever follows the first document is none of ours, even when it is broken.
        (Some(node), _) => Ok((node, syntax)),
        (None, Ok(())) => Err("yaml: no document".to_owned()),
        (None, Err(error)) => Err(yaml_message(&error)),
    }
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        // Every level takes a piece of the thread's stack, and there is no such field.
        budget: serde_saphyr::budget! { max_depth: 64 },
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        emit_comments: false,
        with_snippet: false,
    }
}

fn yaml_message(error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet();
    let message: String = UserMessageFormatter
        .format_message(error)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    match error.location() {
        Some(place) if place.line() > 0 => {
            format!(
                "yaml: line {}: {message} (column {})",
                place.line(),
                place.column()
            )
        }
        _ => format!("yaml: {message}"),
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self {
            place: Place {
                line: spanned.referenced.line(),
                column: spanned.referenced.column(),
            },
            value: spanned.value,
        })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = items.next_element()? {
            list.push(node);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(Node { place, value }) = map.next_key()? {
            let key = match value {
                Value::Text(text) => text,
                Value::Bool(value) => value.to_string(),
                Value::Integer(value) => value.to_string(),
                Value::Float(value) => value.to_string(),
                other => {
                    let kind = other.kind();
                    return Err(de::Error::custom(format!("a key cannot be of type {kind}")));
                }
            };
            let node = map.next_value()?;
            entries.push(Entry { key, place, node });
        }
        Ok(Value::Map(entries))
    }
}
