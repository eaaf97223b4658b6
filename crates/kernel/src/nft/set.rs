//! Sets, maps, and what their keys and data are made of.
//!
//! The kernel only compares bytes; what the bytes mean is written into the set for those who list
//! it. Flags are exactly those that `nft` sets for the same declaration, because adding a set that
//! exists with other flags is an error, and other programs add ours.

use std::num::NonZeroU32;
use std::time::Duration;

use super::uapi::{set, user};
use super::value::{Comment, Name};
use crate::wire::{Attribute, Attributes, Malformed, Writer};

mod typeof_data;

/// One field of a key or of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// An IPv4 address.
    Ipv4Addr,
    /// An IPv6 address.
    Ipv6Addr,
    /// The number of a protocol.
    Protocol,
    /// A port.
    Port,
    /// A packet's mark.
    Mark,
    /// The name of an interface.
    Interface,
    /// A number of 32 bits that was drawn; listed as `numgen random mod 65536`.
    Number,
    /// Something that we never ask for: its number in `nft`, and its bytes if known.
    Other(u32, u32),
}

impl Field {
    /// An address of this family.
    pub const fn address(family: crate::Family) -> Self {
        match family {
            crate::Family::V4 => Self::Ipv4Addr,
            crate::Family::V6 => Self::Ipv6Addr,
        }
    }

    /// Bytes, without padding.
    pub const fn len(self) -> u32 {
        match self {
            Self::Ipv4Addr | Self::Mark | Self::Number => 4,
            Self::Ipv6Addr | Self::Interface => 16,
            Self::Protocol => 1,
            Self::Port => 2,
            Self::Other(_, len) => len,
        }
    }

    /// Whether it has no bytes, which only a field unknown to us can be.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The type's number in `nft`.
    const fn number(self) -> u32 {
        match self {
            Self::Number => 4,
            Self::Ipv4Addr => 7,
            Self::Ipv6Addr => 8,
            Self::Protocol => 12,
            Self::Port => 13,
            Self::Mark => 19,
            Self::Interface => 41,
            Self::Other(number, _) => number,
        }
    }

    const fn from_number(number: u32) -> Self {
        match number {
            4 => Self::Number,
            7 => Self::Ipv4Addr,
            8 => Self::Ipv6Addr,
            12 => Self::Protocol,
            13 => Self::Port,
            19 => Self::Mark,
            41 => Self::Interface,
            other => Self::Other(other, 0),
        }
    }

    /// In which order `nft` is to read a value of this one field.
    const fn byte_order(self) -> u32 {
        match self {
            Self::Mark | Self::Interface | Self::Number => HOST_ORDER,
            _ => NETWORK_ORDER,
        }
    }
}

const MIXED_ORDER: u32 = 0;
const HOST_ORDER: u32 = 1;
const NETWORK_ORDER: u32 = 2;

/// What a key maps to: map data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MapData {
    /// Nothing: it is a set.
    #[default]
    None,
    /// A verdict.
    Verdict,
    /// A value.
    Value(Vec<Field>),
}

/// The timeout of elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timeout {
    /// Until they are removed.
    #[default]
    None,
    /// Each as long as it says, or until it is removed.
    PerElement,
    /// So long, unless they say otherwise.
    Default(Duration),
}

/// A set or a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: Name,
    /// What its keys are made of.
    pub key: Vec<Field>,
    /// What a key maps to: map data.
    pub data: MapData,
    /// Whether elements are ranges.
    pub interval: bool,
    /// Whether rules may add elements.
    pub dynamic: bool,
    /// Whether it belongs to a rule and has no name of its own. We never make such.
    pub anonymous: bool,
    /// The timeout of elements.
    pub timeout: Timeout,
    /// How many elements it may have. A set that rules add to has 65535 if nothing is said.
    pub size: Option<NonZeroU32>,
    /// The comment.
    pub comment: Option<Comment>,
}

impl Set {
    /// A plain set.
    pub fn new(name: impl Into<Name>, key: impl Into<Vec<Field>>) -> Self {
        Self {
            name: name.into(),
            key: key.into(),
            ..Self::default()
        }
    }

    /// A map to values.
    pub fn map(
        name: impl Into<Name>,
        key: impl Into<Vec<Field>>,
        data: impl Into<Vec<Field>>,
    ) -> Self {
        Self {
            data: MapData::Value(data.into()),
            ..Self::new(name, key)
        }
    }

    /// A map to verdicts.
    pub fn verdicts(name: impl Into<Name>, key: impl Into<Vec<Field>>) -> Self {
        Self {
            data: MapData::Verdict,
            ..Self::new(name, key)
        }
    }

    /// The same with a comment.
    #[must_use]
    pub fn comment(mut self, comment: &str) -> Self {
        self.comment = Some(comment.into());
        self
    }

    fn flags(&self) -> u32 {
        let flag = |flag, on| if on { flag } else { 0 };
        flag(set::F_INTERVAL, self.interval)
            | flag(set::F_MAP, self.data != MapData::None)
            | flag(set::F_TIMEOUT, self.timeout != Timeout::None)
            | flag(set::F_EVAL, self.dynamic)
            | flag(set::F_CONCAT, self.is_described_by_field())
    }

    /// Ranges of several fields are compared field by field; everything else as a whole.
    fn is_described_by_field(&self) -> bool {
        self.interval && self.key.len() > 1
    }

    /// `id` tells the sets of one batch apart.
    pub(super) fn write(&self, writer: &mut Writer, table: &str, id: u32) {
        writer.text(set::TABLE, table);
        writer.text(set::NAME, &self.name);
        writer.u32_be(set::FLAGS, self.flags());
        writer.u32_be(set::KEY_TYPE, type_number(&self.key));
        writer.u32_be(set::KEY_LEN, length(&self.key));
        match &self.data {
            MapData::None => {}
            MapData::Verdict => {
                writer.u32_be(set::DATA_TYPE, set::TYPE_VERDICT);
                writer.u32_be(set::DATA_LEN, 0);
            }
            MapData::Value(fields) => {
                writer.u32_be(set::DATA_TYPE, type_number(fields));
                writer.u32_be(set::DATA_LEN, length(fields));
            }
        }
        writer.u32_be(set::ID, id);
        if let Timeout::Default(time) = self.timeout {
            let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            writer.u64_be(set::TIMEOUT, millis);
        }
        self.write_description(writer);
        writer.attr(set::USERDATA, &self.user_data());
    }

    fn write_description(&self, writer: &mut Writer) {
        if self.size.is_none() && !self.is_described_by_field() {
            return;
        }
        writer.nest(set::DESC, |writer| {
            if let Some(size) = self.size {
                writer.u32_be(set::DESC_SIZE, size.get());
            }
            if self.is_described_by_field() {
                writer.nest(set::DESC_CONCAT, |writer| {
                    for field in &self.key {
                        writer.nest(super::uapi::LIST_ELEM, |writer| {
                            writer.u32_be(set::FIELD_LEN, field.len());
                        });
                    }
                });
            }
        });
    }

    fn user_data(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let order = |kind, fields: &[Field]| {
            let [a, b, c, d] = byte_order(fields).to_ne_bytes();
            [kind, 4, a, b, c, d]
        };
        bytes.extend(order(user::SET_KEY_BYTE_ORDER, &self.key));
        if let MapData::Value(fields) = &self.data {
            bytes.extend(order(user::SET_DATA_BYTE_ORDER, fields));
            // `nft` shows the one as an expression only if it can show the other so too.
            if typeof_data::is_needed(&self.key) || typeof_data::is_needed(fields) {
                bytes.extend(typeof_data::describe(user::SET_KEY_TYPEOF, &self.key));
                bytes.extend(typeof_data::describe(user::SET_DATA_TYPEOF, fields));
            }
        } else if typeof_data::is_needed(&self.key) {
            bytes.extend(typeof_data::describe(user::SET_KEY_TYPEOF, &self.key));
        }
        // The types come first: a listing without comment is poorer, one without types is wrong.
        let room = user::LONGEST.saturating_sub(bytes.len());
        if let Some(comment) = self.comment.as_ref().filter(|_| room > 3) {
            bytes.extend(comment.user_data(user::SET_COMMENT, room));
        }
        bytes
    }

    /// The set, its table and its handle.
    pub(super) fn read(attrs: Attributes<'_>) -> Result<(Self, Name, u64), Malformed> {
        let mut read = Self::default();
        let (mut table, mut handle) = (Name::default(), 0);
        let (mut flags, mut millis) = (0, 0);
        let (mut key, mut data) = ((0, 0), (0, 0));
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                set::TABLE => table = attr.text().into(),
                set::NAME => read.name = attr.text().into(),
                set::FLAGS => flags = attr.u32_be()?,
                set::KEY_TYPE => key.0 = attr.u32_be()?,
                set::KEY_LEN => key.1 = attr.u32_be()?,
                set::DATA_TYPE => data.0 = attr.u32_be()?,
                set::DATA_LEN => data.1 = attr.u32_be()?,
                set::TIMEOUT => millis = attr.u64_be()?,
                set::DESC => read.size = read_size(&attr)?,
                set::HANDLE => handle = attr.u64_be()?,
                set::USERDATA => read.comment = Comment::read(attr.payload, user::SET_COMMENT),
                _ => {}
            }
        }
        read.key = fields(key.0, key.1);
        read.data = match data.0 {
            _ if flags & set::F_MAP == 0 => MapData::None,
            set::TYPE_VERDICT => MapData::Verdict,
            number => MapData::Value(fields(number, data.1)),
        };
        read.interval = flags & set::F_INTERVAL != 0;
        read.dynamic = flags & set::F_EVAL != 0;
        read.anonymous = flags & set::F_ANONYMOUS != 0;
        read.timeout = match millis {
            _ if flags & set::F_TIMEOUT == 0 => Timeout::None,
            0 => Timeout::PerElement,
            millis => Timeout::Default(Duration::from_millis(millis)),
        };
        Ok((read, table, handle))
    }
}

fn read_size(desc: &Attribute<'_>) -> Result<Option<NonZeroU32>, Malformed> {
    for attr in desc.nested() {
        let attr = attr?;
        if attr.kind == set::DESC_SIZE {
            return attr.u32_be().map(NonZeroU32::new);
        }
    }
    Ok(None)
}

/// Bits per field in the number of a type of several fields.
const TYPE_BITS: u32 = 6;

fn type_number(fields: &[Field]) -> u32 {
    fields.iter().fold(0, |number: u32, field| {
        number.unbounded_shl(TYPE_BITS) | field.number()
    })
}

/// The inverse of [`type_number`]; `len` helps where a field's length is not known.
fn fields(number: u32, len: u32) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut rest = number;
    while rest != 0 {
        fields.push(Field::from_number(rest & ((1 << TYPE_BITS) - 1)));
        rest >>= TYPE_BITS;
    }
    fields.reverse();
    // A number of another length is none of ours. One unknown field gets what the others leave.
    if fields == [Field::Number] && len != 4 {
        return vec![Field::Other(Field::Number.number(), len)];
    }
    let known = length(&fields);
    if let [Field::Other(_, field_len)] = fields.as_mut_slice() {
        *field_len = len;
    } else if let Some(Field::Other(_, field_len)) =
        fields.iter_mut().find(|field| field.is_empty())
    {
        *field_len = len.saturating_sub(known);
    }
    fields
}

fn length(fields: &[Field]) -> u32 {
    match fields {
        [field] => field.len(),
        _ => fields.iter().map(|f| f.len().next_multiple_of(4)).sum(),
    }
}

fn byte_order(fields: &[Field]) -> u32 {
    match fields {
        [field] => field.byte_order(),
        _ => MIXED_ORDER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_several_fields_are_numbered_as_nft_does() {
        let key = [Field::Ipv4Addr, Field::Protocol, Field::Port, Field::Number];
        assert_eq!(type_number(&key), 0x1c_c344);
        assert_eq!(length(&key), 16);
        assert_eq!(fields(0x1c_c344, 16), key);
        assert_eq!(fields(41, 16), [Field::Interface]);
    }

    #[test]
    fn unknown_types_keep_their_number_and_length() {
        assert_eq!(fields(9, 6), [Field::Other(9, 6)]);
        assert_eq!(fields(4, 1), [Field::Other(4, 1)]);
        let mixed = fields(7 << 6 | 9, 12);
        assert_eq!(mixed, [Field::Ipv4Addr, Field::Other(9, 8)]);
        assert_eq!(type_number(&mixed), 7 << 6 | 9);
        assert_eq!(fields(0, 0), []);
        assert!(!fields(u32::MAX, u32::MAX).is_empty());
    }
}
