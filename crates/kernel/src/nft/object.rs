//! Any object of nftables, as the kernel describes it in dumps and notifications.

use super::batch::NFGEN;
use super::chain::{Chain, Rule};
use super::element::Elements;
use super::set::Set;
use super::table::Table;
use super::uapi::{generation, msg};
use super::value::Name;
use crate::wire::{Attributes, Malformed, Message};

/// Something with the handle by which the kernel knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held<T> {
    /// The kernel's number for it, unique in its table.
    pub handle: u64,
    /// The table that it is in; of a table, itself.
    pub table: Name,
    /// What it is.
    pub object: T,
}

/// The state of all rules, counted by changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generation {
    /// Its number: one more with every transaction of anybody.
    pub id: u32,
    /// The process whose transaction made it, as the first PID namespace numbers it.
    pub process: Option<u32>,
    /// The name of that process.
    pub process_name: Option<String>,
}

/// An object of nftables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A table.
    Table(Held<Table>),
    /// A chain.
    Chain(Held<Chain>),
    /// A rule.
    Rule(Held<Rule>),
    /// A set or map.
    Set(Held<Set>),
    /// Elements of a set.
    Elements(Elements),
    /// A new state of all rules.
    Generation(Generation),
    /// Something that we never ask for, by the kind of its message.
    Other(u16),
}

impl Object {
    /// Reads the object that a message is about, be it new or gone.
    ///
    /// # Errors
    /// The message is not as long as it should be, or lacks something essential.
    pub fn read(message: &Message<'_>) -> Result<Self, Malformed> {
        let attrs = message.attributes(NFGEN)?;
        Ok(match message.kind {
            msg::NEWTABLE | msg::DELTABLE => {
                let (object, handle) = Table::read(attrs)?;
                Self::Table(Held {
                    handle,
                    table: object.name.clone(),
                    object,
                })
            }
            msg::NEWCHAIN | msg::DELCHAIN => Self::Chain(held(Chain::read(attrs)?)),
            msg::NEWRULE | msg::DELRULE => Self::Rule(held(Rule::read(attrs)?)),
            msg::NEWSET | msg::DELSET => Self::Set(held(Set::read(attrs)?)),
            msg::NEWSETELEM | msg::DELSETELEM => Self::Elements(Elements::read(attrs)?),
            msg::NEWGEN => Self::Generation(Generation::read(attrs)?),
            other => Self::Other(other),
        })
    }

    /// The table that it is about.
    pub fn table(&self) -> Option<&Name> {
        match self {
            Self::Table(held) => Some(&held.table),
            Self::Chain(held) => Some(&held.table),
            Self::Rule(held) => Some(&held.table),
            Self::Set(held) => Some(&held.table),
            Self::Elements(elements) => Some(&elements.table),
            Self::Generation(_) | Self::Other(_) => None,
        }
    }
}

fn held<T>((object, table, handle): (T, Name, u64)) -> Held<T> {
    Held {
        handle,
        table,
        object,
    }
}

impl Generation {
    pub(super) fn read(attrs: Attributes<'_>) -> Result<Self, Malformed> {
        let mut read = Self::default();
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                generation::ID => read.id = attr.u32_be()?,
                generation::PROC_PID => read.process = Some(attr.u32_be()?),
                generation::PROC_NAME => read.process_name = Some(attr.text().into_owned()),
                _ => {}
            }
        }
        Ok(read)
    }
}

/// What a request does, in a few words.
pub(super) fn describe(message: &Message<'_>) -> String {
    let verb = match message.kind {
        msg::NEWTABLE | msg::NEWCHAIN | msg::NEWRULE | msg::NEWSET | msg::NEWSETELEM => "add",
        _ => "delete",
    };
    match Object::read(message) {
        Ok(Object::Table(held)) => format!("{verb} table {}", held.table),
        Ok(Object::Chain(held)) => format!("{verb} chain {}", held.object.name),
        Ok(Object::Rule(held)) if verb == "add" => format!("add rule to {}", held.object.chain),
        Ok(Object::Rule(held)) if held.handle == 0 => format!("flush chain {}", held.object.chain),
        Ok(Object::Rule(held)) => {
            format!("delete rule {} of {}", held.handle, held.object.chain)
        }
        Ok(Object::Set(held)) => format!("{verb} set {}", held.object.name),
        Ok(Object::Elements(list)) if list.elements.is_empty() => {
            format!("flush set {}", list.set)
        }
        Ok(Object::Elements(list)) => format!("{verb} elements of {}", list.set),
        Ok(Object::Generation(_) | Object::Other(_)) | Err(_) => "something else".to_owned(),
    }
}
