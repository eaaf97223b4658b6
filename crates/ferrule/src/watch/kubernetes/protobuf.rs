//! Kubernetes' protobuf: bytes of an answer become the same values that JSON becomes.
//!
//! In: messages as API servers write them, each behind four magic bytes and within an `Unknown`
//! that names its kind. Out: the fields that we use; all others are passed over. Field numbers are
//! part of the public API and never change.
//!
//! Nothing is copied before its length is known to be there, and messages are read only as deep as
//! our own types are, so damaged bytes give an error or a value and cost no more than their size.

mod objects;
mod stream;
#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;

pub use self::objects::{Message, list_metadata, metadata, names, refusal};
pub use self::stream::{Frames, Items};

/// The media type.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// What every message of its own begins with.
const MAGIC: &[u8] = b"k8s\0";

/// No list within an object has more entries. The API server allows 1,000 endpoints in a slice, and
/// an entry takes far more memory here than the two bytes of an empty one.
const MOST_ENTRIES: usize = 1 << 17;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("a field ends behind the message")]
    Short,
    #[error("a number has more than 64 bits")]
    Number,
    #[error("field {0} has another type than expected")]
    Type(u32),
    #[error("a field has wire type {0}")]
    WireType(u8),
    #[error("field {0} has too many entries")]
    Entries(u32),
    #[error("the magic bytes are missing")]
    Magic,
    #[error("a field is missing")]
    Missing,
}

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    pub number: u32,
    value: Value<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Eight or four bytes; no field that we use.
    Fixed,
}

impl<'a> Field<'a> {
    const EMPTY: Self = Self {
        number: 0,
        value: Value::Bytes(b""),
    };

    /// A message within, or text.
    pub fn bytes(self) -> Result<&'a [u8], Damage> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(Damage::Type(self.number)),
        }
    }

    /// Text. What is no UTF-8 becomes what it also becomes in JSON.
    pub fn text(self) -> Result<String, Damage> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    pub fn bool(self) -> Result<bool, Damage> {
        Ok(self.number()? != 0)
    }

    /// An `int32`.
    pub fn int(self) -> Result<i64, Damage> {
        // The rest is the sign again.
        let low = self.number()? & u64::from(u32::MAX);
        let low = u32::try_from(low).unwrap_or_default();
        Ok(i64::from(low.cast_signed()))
    }

    /// An `int64`.
    pub fn long(self) -> Result<i64, Damage> {
        Ok(self.number()?.cast_signed())
    }

    fn number(self) -> Result<u64, Damage> {
        match self.value {
            Value::Number(number) => Ok(number),
            _ => Err(Damage::Type(self.number)),
        }
    }
}

/// The fields of a message, one after the other. Ends behind the first damage.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub const fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = field(&mut self.rest);
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// What a field begins with.
#[derive(Clone, Copy, Debug)]
struct Head {
    number: u32,
    /// How many bytes of payload follow.
    length: u64,
    value: Option<u64>,
    is_fixed: bool,
}

/// Takes the beginning of a field from the front of `bytes`, which are changed even by a damage.
fn head(bytes: &mut &[u8]) -> Result<Head, Damage> {
    let tag = varint(bytes)?;
    let number = u32::try_from(tag >> 3).map_err(|_| Damage::Number)?;
    let head = |length, value, is_fixed| Head {
        number,
        length,
        value,
        is_fixed,
    };
    match tag & 7 {
        0 => Ok(head(0, Some(varint(bytes)?), false)),
        1 => Ok(head(8, None, true)),
        2 => Ok(head(varint(bytes)?, None, false)),
        5 => Ok(head(4, None, true)),
        // Groups, which Kubernetes has none of, and what does not exist.
        other => Err(Damage::WireType(u8::try_from(other).unwrap_or(u8::MAX))),
    }
}

fn field<'a>(bytes: &mut &'a [u8]) -> Result<Field<'a>, Damage> {
    let head = head(bytes)?;
    let length = usize::try_from(head.length).map_err(|_| Damage::Short)?;
    let (payload, rest) = bytes.split_at_checked(length).ok_or(Damage::Short)?;
    *bytes = rest;
    let value = match head.value {
        Some(number) => Value::Number(number),
        None if head.is_fixed => Value::Fixed,
        None => Value::Bytes(payload),
    };
    Ok(Field {
        number: head.number,
        value,
    })
}

/// Seven bits per byte, the lowest first; the last byte is below 128.
fn varint(bytes: &mut &[u8]) -> Result<u64, Damage> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(Damage::Short)?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        let shifted = bits << shift;
        if shifted >> shift != bits {
            return Err(Damage::Number);
        }
        number |= shifted;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(Damage::Number)
}

/// The object in a message of its own.
pub fn open(message: &[u8]) -> Result<&[u8], Damage> {
    let unknown = message.strip_prefix(MAGIC).ok_or(Damage::Magic)?;
    last(unknown, 2)
}

/// Whether this is a message of its own, whatever it holds.
pub fn is_message(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// One event of a watch: its type, and the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchEvent<'a> {
    pub kind: &'a [u8],
    pub object: &'a [u8],
}

impl<'a> WatchEvent<'a> {
    /// Reads one frame of a watch.
    pub fn read(frame: &'a [u8]) -> Result<Self, Damage> {
        let extension = last(frame, 2)?;
        Ok(Self {
            kind: last(frame, 1)?,
            object: open(last(extension, 1)?)?,
        })
    }
}

/// The value of a field that is there; of several the last.
fn last(message: &[u8], number: u32) -> Result<&[u8], Damage> {
    let mut found = None;
    for field in Fields::of(message) {
        let field = field?;
        if field.number == number {
            found = Some(field.bytes()?);
        }
    }
    found.ok_or(Damage::Missing)
}
