//! Sets as the kernel lists them, in one or several parts.

use super::{DATA, ENTRIES, FAMILY, LIST, MAX_ELEMENTS, NAME, REVISION, TYPE_NAME};
use crate::Family;
use crate::ipset::{Entry, HEADER, Type};
use crate::wire::{Attribute, Malformed, Message};

const REFERENCES: u16 = 25;
const COUNT: u16 = 24;

/// What a set consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its type; `None` for one that is not known here.
    pub kind: Option<Type>,
    /// The family of its addresses; `None` if it has none.
    pub family: Option<Family>,
    /// The revision of its type.
    pub revision: u8,
    /// How many entries it may have; 0 if it has another kind of limit.
    pub max_entries: u32,
    /// How many it has. Before Linux 4.9 this is 0.
    pub entries: u32,
    /// How many rules and sets use it.
    pub references: u32,
}

/// A set and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// What it consists of.
    pub header: Header,
    /// Its entries in order; none if the type is not known here.
    pub entries: Vec<Entry>,
}

/// Reads one part. Only the first part of a set says what it consists of.
pub(super) fn read(message: &Message<'_>, sets: &mut Vec<Listing>) -> Result<(), Malformed> {
    if message.kind != LIST {
        return Ok(());
    }
    let mut header = Header {
        name: String::new(),
        kind: None,
        family: None,
        revision: 0,
        max_entries: 0,
        entries: 0,
        references: 0,
    };
    let mut list = None;
    for attr in message.attributes(HEADER.len())? {
        let attr = attr?;
        match attr.kind {
            NAME => header.name = attr.text().into_owned(),
            TYPE_NAME => header.kind = Type::from_name(&attr.text()),
            REVISION => header.revision = attr.u8()?,
            FAMILY => header.family = Family::from_number(attr.u8()?),
            DATA => read_data(&attr, &mut header)?,
            ENTRIES => list = Some(attr),
            _ => {}
        }
    }
    let known = sets
        .last()
        .is_some_and(|last| last.header.name == header.name);
    if !known {
        let entries = Vec::new();
        sets.push(Listing { header, entries });
    }
    let (Some(set), Some(list)) = (sets.last_mut(), list) else {
        return Ok(());
    };
    let Some(kind) = set.header.kind else {
        return Ok(());
    };
    for attr in list.nested() {
        let attr = attr?;
        if attr.kind == DATA {
            set.entries.push(Entry::read(kind, &attr)?);
        }
    }
    Ok(())
}

fn read_data(data: &Attribute<'_>, header: &mut Header) -> Result<(), Malformed> {
    for attr in data.nested() {
        let attr = attr?;
        match attr.kind {
            MAX_ELEMENTS => header.max_entries = attr.u32_be()?,
            COUNT => header.entries = attr.u32_be()?,
            REFERENCES => header.references = attr.u32_be()?,
            _ => {}
        }
    }
    Ok(())
}
