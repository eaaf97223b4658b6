//! Objects out of a document while it is read, so that a list never exists here as a whole.
//!
//! In: a document, in whatever syntax. Out: each object with what it says it is, the items of a list
//! before the list itself: its kind may be written behind them.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    DeserializeSeed, Error, IgnoredAny, IntoDeserializer as _, MapAccess, SeqAccess, Visitor,
};
use serde::{Deserialize as _, Deserializer};

use super::decode::{Head, Sort};
use crate::watch::api;

/// Takes the objects of a document.
pub(super) trait Receiver {
    /// One more object.
    fn take(&mut self, found: Found<'_>);
    /// The document is read again from its beginning.
    fn forget(&mut self);
}

/// An object in a document.
pub(super) struct Found<'a> {
    /// Indices into `items`, outermost first; none for the document itself.
    pub(super) at: &'a [usize],
    /// What it says it is.
    pub(super) head: Head,
    /// What the list that it is in has said so far that it is.
    pub(super) list: &'a Head,
    pub(super) object: api::Object,
}

/// Reads an object, and before it its items.
pub(super) struct Node<'a, R> {
    receiver: &'a mut R,
    at: Vec<usize>,
    list: Head,
    /// The heads of its items, where those of foreign kinds must not be read.
    heads: Vec<Head>,
}

impl<'a, R: Receiver> Node<'a, R> {
    /// The document itself. `heads` are those of its items, if foreign ones must not be read.
    pub(super) fn root(receiver: &'a mut R, heads: Vec<Head>) -> Self {
        Self {
            receiver,
            at: Vec::new(),
            list: Head::default(),
            heads,
        }
    }

    /// Instead of an object there is nothing: in a list that counts as an object that says nothing.
    fn nothing(self) {
        if !self.at.is_empty() {
            self.receiver.take(Found {
                at: &self.at,
                head: Head::default(),
                list: &self.list,
                object: api::Object::default(),
            });
        }
    }
}

impl<'de, R: Receiver> DeserializeSeed<'de> for Node<'_, R> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, R: Receiver> Visitor<'de> for Node<'_, R> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        self.nothing();
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.nothing();
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, map: A) -> Result<(), A::Error> {
        let mut said = Said::default();
        let fields = Fields {
            map,
            said: &mut said,
            node: &mut self,
        };
        let object = api::Object::deserialize(MapAccessDeserializer::new(fields))?;
        self.receiver.take(Found {
            at: &self.at,
            head: said.head(),
            list: &self.list,
            object,
        });
        Ok(())
    }
}

/// What was read of a head, and whether there were items.
#[derive(Default)]
struct Said {
    api_version: Option<String>,
    kind: Option<String>,
    items: Option<()>,
}

impl Said {
    fn head(&self) -> Head {
        Head {
            api_version: self.api_version.clone().unwrap_or_default(),
            kind: self.kind.clone().unwrap_or_default(),
        }
    }
}

/// The fields of an object without those that say what it is, and without its items.
struct Fields<'a, 'b, A, R> {
    map: A,
    said: &'a mut Said,
    node: &'a mut Node<'b, R>,
}

impl<'de, A: MapAccess<'de>, R: Receiver> MapAccess<'de> for Fields<'_, '_, A, R> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.map.next_key::<String>()? {
            match &*key {
                "apiVersion" => {
                    let text = self.map.next_value::<Option<String>>()?;
                    once(
                        &mut self.said.api_version,
                        text.unwrap_or_default(),
                        "apiVersion",
                    )?;
                }
                "kind" => {
                    let text = self.map.next_value::<Option<String>>()?;
                    once(&mut self.said.kind, text.unwrap_or_default(), "kind")?;
                }
                "items" => {
                    once(&mut self.said.items, (), "items")?;
                    self.map.next_value_seed(Items {
                        receiver: &mut *self.node.receiver,
                        at: &self.node.at,
                        list: self.said.head(),
                        heads: std::mem::take(&mut self.node.heads),
                    })?;
                }
                _ => return seed.deserialize(key.into_deserializer()).map(Some),
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

fn once<T, E: Error>(slot: &mut Option<T>, value: T, name: &'static str) -> Result<(), E> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::duplicate_field(name)),
    }
}

/// Reads the items of a list.
struct Items<'a, R> {
    receiver: &'a mut R,
    at: &'a [usize],
    /// What the list has said so far.
    list: Head,
    heads: Vec<Head>,
}

impl<'de, R: Receiver> DeserializeSeed<'de> for Items<'_, R> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, R: Receiver> Visitor<'de> for Items<'_, R> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the items of a list")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        for index in 0.. {
            let head = self.heads.get(index).map(Head::sort);
            let item = if matches!(head, Some(Ok(Sort::Foreign))) {
                items.next_element::<IgnoredAny>()?.map(drop)
            } else {
                let at = self.at.iter().copied().chain([index]).collect();
                items.next_element_seed(Node {
                    receiver: &mut *self.receiver,
                    at,
                    list: self.list.clone(),
                    heads: Vec::new(),
                })?
            };
            if item.is_none() {
                break;
            }
        }
        Ok(())
    }
}
