//! From the text of a file to its fields.
//!
//! Unknown and repeated fields are forgiven and reported; values of a wrong type are not. The
//! messages begin as kube-proxy's do, and say in which line and column to look.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer as _, Visitor};
use serde::{Deserialize, Deserializer, forward_to_deserialize_any};

use super::document::{Entry, Node, Place, Syntax, Value, parse};
use super::{API_VERSION, KIND, KubeProxyConfiguration};
use crate::config::go::quote;

/// A file that could be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// Its content, with defaults.
    pub configuration: KubeProxyConfiguration,
    /// What a strict reader would have refused.
    pub oddities: Option<Oddities>,
}

/// What a strict reader would have refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oddities {
    /// In kube-proxy's words.
    pub message: String,
    /// Where in the file each of them stands.
    pub places: String,
}

/// A file that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to decode: {0}")]
pub struct DecodeError(String);

/// Reads a file and fills in the defaults.
///
/// # Errors
/// No YAML or JSON, not our kind, or a value of a wrong type.
pub fn decode(text: &str) -> Result<Decoded, DecodeError> {
    let (root, syntax) = parse(text).map_err(DecodeError)?;
    check_kind(&root, text).map_err(DecodeError)?;
    let strange = RefCell::new(Strange::default());
    let reader = Reader {
        node: &root,
        owner: KIND,
        path: "",
        key: root.place,
        strange: &strange,
    };
    let mut configuration = KubeProxyConfiguration::deserialize(reader)
        .map_err(|fault| DecodeError(fault.to_string()))?;
    configuration.set_defaults();
    Ok(Decoded {
        configuration,
        oddities: strange.into_inner().into_oddities(syntax),
    })
}

/// A file says what it is before anything else in it is believed.
fn check_kind(root: &Node, text: &str) -> Result<(), String> {
    let entries = match &root.value {
        Value::Map(entries) => entries.as_slice(),
        Value::Null => &[],
        other => {
            return Err(format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {} into an \
                 object ({})",
                other.kind(),
                root.place
            ));
        }
    };
    let word = |key: &str| match last(entries, key).map(|entry| &entry.node) {
        Some(Node {
            value: Value::Text(text),
            ..
        }) => Ok(text.as_str()),
        None => Ok(""),
        Some(node) if matches!(node.value, Value::Null) => Ok(""),
        Some(node) => Err(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go \
             struct field .{key} of type string ({})",
            node.value.kind(),
            node.place
        )),
    };
    match (word("kind")?, word("apiVersion")?) {
        ("", _) => Err(format!("Object 'Kind' is missing in '{text}'")),
        (_, "") => Err(format!("Object 'apiVersion' is missing in '{text}'")),
        (KIND, API_VERSION) => Ok(()),
        (kind, version) => Err(format!(
            "no kind {} is registered for version {} in scheme \
             \"pkg/proxy/apis/config/scheme/scheme.go:29\"",
            quote(kind),
            quote(version)
        )),
    }
}

fn last<'a>(entries: &'a [Entry], key: &str) -> Option<&'a Entry> {
    entries.iter().rfind(|entry| entry.key == key)
}

/// Fields a strict reader refuses, gathered while the file is read.
#[derive(Default)]
struct Strange {
    unknown: BTreeMap<String, Place>,
    repeated: Vec<(Place, String, String)>,
}

impl Strange {
    fn into_oddities(mut self, syntax: Syntax) -> Option<Oddities> {
        self.repeated.sort_unstable();
        let mut messages = Vec::new();
        if !self.repeated.is_empty() && syntax == Syntax::Yaml {
            let lines = self.repeated.iter().map(|(place, key, _)| {
                format!(
                    "\n  line {}: key {} already set in map",
                    place.line,
                    quote(key)
                )
            });
            messages.push(format!(
                "yaml: unmarshal errors:{}",
                lines.collect::<String>()
            ));
        } else {
            let repeated = self.repeated.iter();
            messages
                .extend(repeated.map(|(_, _, path)| format!("duplicate field {}", quote(path))));
        }
        let unknown = self.unknown.keys();
        messages.extend(unknown.map(|path| format!("unknown field {}", quote(path))));
        let repeated = self.repeated.iter().map(|(place, _, path)| (path, place));
        let mut places: Vec<_> = repeated.chain(&self.unknown).collect();
        places.sort_unstable_by_key(|(_, place)| **place);
        let places: Vec<_> = places
            .iter()
            .map(|(path, place)| format!("{path}: {place}"))
            .collect();
        (!messages.is_empty()).then(|| Oddities {
            message: format!("strict decoding error: {}", messages.join(", ")),
            places: places.join("; "),
        })
    }
}

/// One value of the file, on its way into a field.
#[derive(Clone, Copy)]
struct Reader<'a> {
    node: &'a Node,
    /// The type whose field it is.
    owner: &'static str,
    /// The dotted name of the field.
    path: &'a str,
    /// Where that name stands.
    key: Place,
    strange: &'a RefCell<Strange>,
}

impl Reader<'_> {
    /// The value is not of the type the field has.
    fn mismatch(&self, wanted: &str) -> Fault {
        let number = match self.node.value {
            Value::Integer(number) if wanted != "string" => format!(" {number}"),
            Value::Float(number) if wanted != "string" => format!(" {number}"),
            _ => String::new(),
        };
        Fault {
            message: format!(
                "json: cannot unmarshal {}{number} into Go struct field {}.{} of type {wanted}",
                self.node.value.kind(),
                self.owner,
                self.path
            ),
            place: Some(self.node.place),
        }
    }

    /// A whole number; a null is zero, as everywhere in Go.
    fn integer<T: TryFrom<i128> + Default>(&self, wanted: &str) -> Result<T, Fault> {
        let number = match self.node.value {
            Value::Null => return Ok(T::default()),
            Value::Integer(number) => Some(number),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a whole number below 2^63 becomes exactly that integer"
            )]
            Value::Float(number) if number.fract() == 0.0 && number.abs() < 9.2e18 => {
                Some(number as i128)
            }
            _ => None,
        };
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| self.mismatch(wanted))
    }
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let outcome = match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Text(text) => visitor.visit_str(text),
            Value::Integer(number) => match i64::try_from(*number) {
                Ok(number) => visitor.visit_i64(number),
                Err(_) => return Err(self.mismatch("int64")),
            },
            Value::Float(number) => visitor.visit_f64(*number),
            _ => return Err(self.mismatch("string")),
        };
        outcome.map_err(|fault: Fault| fault.in_field(&self))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.node.value {
            Value::Null => visitor.visit_bool(false),
            Value::Bool(value) => visitor.visit_bool(value),
            _ => Err(self.mismatch("bool")),
        }
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_i32(self.integer("int32")?)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_u32(self.integer("uint32")?)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "the field has 32 bits; what does not fit is refused"
    )]
    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let number = match self.node.value {
            Value::Null => 0.0,
            Value::Integer(number) => number as f32,
            Value::Float(number) => number as f32,
            _ => return Err(self.mismatch("float32")),
        };
        if number.is_finite() {
            visitor.visit_f32(number)
        } else {
            Err(self.mismatch("float32"))
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.value {
            Value::Null => visitor.visit_str(""),
            Value::Text(text) => visitor.visit_str(text),
            _ => Err(self.mismatch("string")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.value {
            Value::Null => visitor.visit_seq(Items {
                reader: self,
                items: [].iter(),
            }),
            Value::List(items) => visitor.visit_seq(Items {
                reader: self,
                items: items.iter(),
            }),
            _ if self.path == "logging.vmodule" => Err(self.mismatch("v1.VModuleConfiguration")),
            _ => Err(self.mismatch("[]string")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.value {
            Value::Null => visitor.visit_map(Fields::new(self, &[], false)),
            Value::Map(entries) => visitor.visit_map(Fields::new(self, entries, false)),
            _ => Err(self.mismatch("map[string]bool")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let inside = Self {
            owner: name,
            ..self
        };
        match &self.node.value {
            Value::Null => visitor.visit_map(Fields::new(inside, &[], true)),
            Value::Map(entries) => visitor.visit_map(Fields::new(inside, entries, true)),
            _ => Err(self.mismatch(name)),
        }
    }

    /// Nobody wants this value: its field is unknown.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let mut strange = self.strange.borrow_mut();
        strange.unknown.insert(self.path.to_owned(), self.key);
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i8 i16 i64 i128 u8 u16 u64 u128 f64 char bytes byte_buf unit unit_struct newtype_struct
        tuple tuple_struct enum identifier
    }
}

/// The entries of a map, one after the other; of repeated ones the last.
struct Fields<'a> {
    reader: Reader<'a>,
    entries: Vec<&'a Entry>,
    current: Option<&'a Entry>,
    /// Whether the keys are names of fields, which are part of the path.
    named: bool,
}

impl<'a> Fields<'a> {
    fn new(reader: Reader<'a>, entries: &'a [Entry], named: bool) -> Self {
        let mut kept: Vec<&Entry> = Vec::with_capacity(entries.len());
        for entry in entries {
            if let Some(earlier) = kept.iter().position(|kept| kept.key == entry.key) {
                kept.remove(earlier);
                let path = join(reader.path, &entry.key);
                let mut strange = reader.strange.borrow_mut();
                strange
                    .repeated
                    .push((entry.place, entry.key.clone(), path));
            }
            kept.push(entry);
        }
        kept.reverse();
        Self {
            reader,
            entries: kept,
            current: None,
            named,
        }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

impl<'de> de::MapAccess<'de> for Fields<'_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        self.current = self.entries.pop();
        let key = |entry: &Entry| -> Result<K::Value, Fault> {
            let key: StrDeserializer<'_, Fault> = entry.key.as_str().into_deserializer();
            seed.deserialize(key)
        };
        self.current.map(key).transpose()
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let entry = self
            .current
            .take()
            .ok_or_else(|| de::Error::custom("a value was asked for before its key"))?;
        let path = if self.named {
            join(self.reader.path, &entry.key)
        } else {
            self.reader.path.to_owned()
        };
        let reader = Reader {
            node: &entry.node,
            path: &path,
            key: entry.place,
            ..self.reader
        };
        seed.deserialize(reader)
            .map_err(|fault| fault.in_field(&reader))
    }
}

struct Items<'a> {
    reader: Reader<'a>,
    items: std::slice::Iter<'a, Node>,
}

impl<'de> de::SeqAccess<'de> for Items<'_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        let reader = self.reader;
        let read = |node| seed.deserialize(Reader { node, ..reader });
        self.items.next().map(read).transpose()
    }
}

/// A value that does not fit its field.
#[derive(Debug)]
struct Fault {
    message: String,
    /// Where to look; unknown until the field that was read is known.
    place: Option<Place>,
}

impl Fault {
    /// Adds the field, unless an inner one is known already.
    fn in_field(self, reader: &Reader<'_>) -> Self {
        match self.place {
            Some(_) => self,
            None => Self {
                message: format!("{} in field {}", self.message, reader.path),
                place: Some(reader.node.place),
            },
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.place {
            Some(place) => write!(f, " ({place})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self {
            message: message.to_string(),
            place: None,
        }
    }
}
