//! One document becomes API objects, or is found to be of a kind we do not know.
//!
//! The items of a list are handed over one by one while it is read (`stream.rs`).
//!
//! Kinds we do not watch are none of our business, even when their fields happen to have our
//! names and other types: a document that does not decode is looked at again for its kind alone.

use ferrule_core::issue::Kind;
use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed};
use serde_saphyr::{MessageFormatter, UserMessageFormatter};

use super::document::Syntax;
use super::stream::{Node, Receiver};
use crate::watch::api;

/// What is wrong with a document.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// No YAML, or not the types the API defines.
    #[error("{}", yaml_message(.0))]
    Yaml(Box<serde_saphyr::Error>),
    /// No JSON, or not the types the API defines.
    #[error("{}", json_message(.0))]
    Json(serde_json::Error),
    /// It does not say what it is.
    #[error("no kind")]
    NoKind,
    /// Its kind alone does not say what it is.
    #[error("{0} without apiVersion")]
    NoApiVersion(String),
    /// It does not say who it is.
    #[error("{0} without metadata.name")]
    NoName(&'static str),
}

impl Fault {
    /// The line in the document, counted from 1, where that is known.
    pub(super) fn line(&self) -> Option<usize> {
        match self {
            Self::Yaml(error) => error
                .location()
                .and_then(|place| usize::try_from(place.line()).ok()),
            Self::Json(error) => Some(error.line()),
            Self::NoKind | Self::NoApiVersion(_) | Self::NoName(_) => None,
        }
        .filter(|line| *line > 0)
    }
}

/// The message without its position, which counts from the start of the document.
fn yaml_message(error: &serde_saphyr::Error) -> String {
    let mut error = error.without_snippet();
    while let serde_saphyr::Error::AliasError { error: inner, .. } = error {
        error = inner;
    }
    let message = match error {
        serde_saphyr::Error::Unexpected { expected, .. } => {
            format!("expected a {}", expected.trim_end_matches(" start")).into()
        }
        serde_saphyr::Error::InvalidScalar { ty: "i64", .. } => "expected an integer".into(),
        _ => UserMessageFormatter.format_message(error),
    };
    // Text of the file may be in it, and must not steer a terminal.
    message
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

fn json_message(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    message
        .strip_suffix(&position)
        .unwrap_or(&message)
        .to_owned()
}

/// What an `apiVersion` and `kind` stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// An object of a kind we watch.
    Object(Kind),
    /// A list. Its items may leave their kind to it if it is a list of one kind.
    List { item_kind: Option<Kind> },
    /// Something else.
    Foreign,
}

/// What an object says it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Head {
    pub(super) api_version: String,
    pub(super) kind: String,
}

impl Head {
    /// What that stands for.
    pub(super) fn sort(&self) -> Result<Sort, Fault> {
        sort(&self.api_version, &self.kind)
    }

    /// Whether it says nothing, as `kubectl get --raw` and the API server leave it out of the items
    /// of a `ServiceList`.
    pub(super) fn is_empty(&self) -> bool {
        self.api_version.is_empty() && self.kind.is_empty()
    }
}

fn sort(api_version: &str, kind: &str) -> Result<Sort, Fault> {
    if kind.is_empty() {
        return Err(Fault::NoKind);
    }
    let item = kind.strip_suffix("List");
    let word = item.unwrap_or(kind);
    let found = Kind::ALL.into_iter().find(|kind| kind.as_str() == word);
    if found.is_none() && item != Some("") {
        return Ok(Sort::Foreign);
    }
    if api_version.is_empty() {
        return Err(Fault::NoApiVersion(kind.to_owned()));
    }
    let versions: &[&str] = match found {
        None | Some(Kind::Service | Kind::Node) => &["v1"],
        Some(Kind::EndpointSlice) => &["discovery.k8s.io/v1"],
        Some(Kind::ServiceCidr) => &["networking.k8s.io/v1", "networking.k8s.io/v1beta1"],
    };
    Ok(match (versions.contains(&api_version), item, found) {
        (true, Some(_), item_kind) => Sort::List { item_kind },
        (true, None, Some(kind)) => Sort::Object(kind),
        _ => Sort::Foreign,
    })
}

/// Decodes a document and hands every object in it to `receiver`.
///
/// Nothing is, if it is empty, or cannot be decoded but is not ours anyway. What was handed over
/// before an error must not count.
pub(super) fn decode(
    text: &str,
    syntax: Syntax,
    receiver: &mut impl Receiver,
) -> Result<(), Fault> {
    let Err(fault) = seeded(text, syntax, Node::root(&mut *receiver, Vec::new())) else {
        return Ok(());
    };
    receiver.forget();
    let Ok(head) = parse::<Head>(text, syntax) else {
        return Err(fault);
    };
    match head.sort() {
        Ok(Sort::Foreign) => Ok(()),
        Ok(Sort::List { .. }) => {
            // A mixed list: leave its foreign items alone and see whether ours are well.
            let Ok(Heads { items }) = parse(text, syntax) else {
                return Err(fault);
            };
            seeded(text, syntax, Node::root(receiver, items))
        }
        _ => Err(fault),
    }
}

fn parse<T: DeserializeOwned>(text: &str, syntax: Syntax) -> Result<T, Fault> {
    seeded(text, syntax, std::marker::PhantomData)
}

fn seeded<'a, S: DeserializeSeed<'a>>(
    text: &'a str,
    syntax: Syntax,
    seed: S,
) -> Result<S::Value, Fault> {
    match syntax {
        Syntax::Yaml => serde_saphyr::with_deserializer_from_str_with_options(
            text,
            yaml_options(),
            |deserializer| seed.deserialize(deserializer),
        )
        .map_err(|error| Fault::Yaml(Box::new(error))),
        Syntax::Json => {
            let mut deserializer = serde_json::Deserializer::from_str(text);
            seed.deserialize(&mut deserializer).map_err(Fault::Json)
        }
    }
}

/// Big documents are welcome: 10,000 endpoints in one slice exceed the default limits. What a
/// document can cost is bounded by its size, except through aliases; those limits stay.
fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            // As deep as serde_json goes: every level takes a piece of the thread's stack.
            max_depth: 128,
            // One set of labels used by every item of a list is no attack.
            enforce_alias_anchor_ratio: false,
        },
        emit_comments: false,
        with_snippet: false,
    }
}

/// The heads of a list's items.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Heads {
    #[serde(deserialize_with = "api::list")]
    items: Vec<Head>,
}
