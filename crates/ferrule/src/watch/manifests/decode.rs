//! One document becomes an API object, or is found to be of a kind we do not know.
//!
//! Kinds we do not watch are none of our business, even when their fields happen to have our
//! names and other types: a document that does not decode is looked at again for its kind alone.

use std::fmt;

use ferrule_core::issue::Kind;
use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::{MessageFormatter, UserMessageFormatter};

use super::document::Syntax;
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

/// Sorts an object by what it says it is.
pub(super) fn sort(api_version: &str, kind: &str) -> Result<Sort, Fault> {
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

/// Decodes a document. `None` when it is empty or cannot be decoded but is not ours anyway.
pub(super) fn decode(text: &str, syntax: Syntax) -> Result<Option<api::Object>, Fault> {
    let fault = match parse::<Option<api::Object>>(text, syntax) {
        Ok(object) => return Ok(object),
        Err(fault) => fault,
    };
    let Ok(head) = parse::<Head>(text, syntax) else {
        return Err(fault);
    };
    match sort(&head.api_version, &head.kind) {
        Ok(Sort::Foreign) => Ok(None),
        Ok(Sort::List { .. }) => {
            // A mixed list: leave its foreign items alone and see whether ours are well.
            let Ok(Heads { items }) = parse(text, syntax) else {
                return Err(fault);
            };
            seeded(text, syntax, Sifted { head, items }).map(Some)
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

/// What an object says it is, and nothing else of it.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Head {
    api_version: String,
    kind: String,
}

/// The heads of a list's items.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Heads {
    #[serde(deserialize_with = "api::list")]
    items: Vec<Head>,
}

/// Decodes a list without looking into its foreign items.
struct Sifted {
    head: Head,
    items: Vec<Head>,
}

impl<'de> DeserializeSeed<'de> for Sifted {
    type Value = api::Object;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<api::Object, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Sifted {
    type Value = api::Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<api::Object, A::Error> {
        let mut object = self.head.into_object();
        let mut heads = Some(self.items);
        while let Some(field) = map.next_key::<String>()? {
            match heads.take_if(|_| field == "items") {
                Some(heads) => object.items = map.next_value_seed(SiftedItems(heads))?,
                None => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(object)
    }
}

struct SiftedItems(Vec<Head>);

impl<'de> DeserializeSeed<'de> for SiftedItems {
    type Value = Vec<api::Object>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for SiftedItems {
    type Value = Vec<api::Object>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the items of a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut objects = Vec::with_capacity(self.0.len());
        for head in self.0 {
            let object = if matches!(sort(&head.api_version, &head.kind), Ok(Sort::Foreign)) {
                // Its head stays, so that the items after it keep their numbers.
                items
                    .next_element::<IgnoredAny>()?
                    .map(|_| head.into_object())
            } else {
                items
                    .next_element::<Option<api::Object>>()?
                    .map(Option::unwrap_or_default)
            };
            objects.extend(object);
        }
        Ok(objects)
    }
}

impl Head {
    fn into_object(self) -> api::Object {
        let Self { api_version, kind } = self;
        api::Object {
            api_version,
            kind,
            ..api::Object::default()
        }
    }
}
