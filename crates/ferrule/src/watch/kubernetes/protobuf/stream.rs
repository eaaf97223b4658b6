//! The body of an answer in protobuf, cut into its events or its objects while it arrives.
//!
//! The same as `frames.rs` does for JSON: a list never exists here as a whole.

use bytes::{Bytes, BytesMut};

use super::{Damage, Head, MAGIC, head};
use crate::watch::kubernetes::failure::Failure;
use crate::watch::kubernetes::frames::{MOST_BYTES, garbled};

/// No beginning of a field is longer: two numbers of ten bytes each.
const MOST_HEAD: usize = 20;

/// Pieces in, whole frames of a watch out. Before each stands its length in four bytes.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: BytesMut,
}

impl Frames {
    pub fn feed(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next frame; empty ones are passed over.
    pub fn pop(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let Some((prefix, rest)) = self.buffer.split_first_chunk::<4>() else {
                return Ok(None);
            };
            let length = u32::from_be_bytes(*prefix);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > MOST_BYTES {
                return Err(garbled("an event has no end"));
            }
            if rest.len() < length {
                return Ok(None);
            }
            let frame = self.buffer.split_to(4 + length).split_off(4);
            if length > 0 {
                return Ok(Some(frame.freeze()));
            }
        }
    }

    /// Whether part of a frame is left over.
    pub fn is_inside(&self) -> bool {
        !self.buffer.is_empty()
    }
}

/// Where in a list we are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Magic,
    /// In the `Unknown` around the list.
    Outside,
    /// In the list, of which so many bytes are left.
    Inside(u64),
}

/// Pieces of a list in, each of its objects out.
#[derive(Debug, Default)]
pub struct Items {
    place: Place,
    /// The list was there.
    seen: bool,
    buffer: BytesMut,
    metadata: Vec<u8>,
}

/// The field of the list in an `Unknown`.
const RAW: u32 = 2;
/// The fields of a list.
const METADATA: u32 = 1;
const ITEMS: u32 = 2;

impl Items {
    /// Takes a piece in and hands every object that is now complete to `each`.
    pub fn feed(
        &mut self,
        piece: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.buffer.extend_from_slice(piece);
        while self.step(&mut each)? {}
        Ok(())
    }

    /// Takes the next whole field from the buffer. Returns whether there was one.
    fn step(
        &mut self,
        each: &mut impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        if self.place == Place::Magic {
            let Some((magic, _)) = self.buffer.split_at_checked(MAGIC.len()) else {
                return Ok(false);
            };
            if magic != MAGIC {
                return Err(garbled("a list in protobuf begins with other bytes"));
            }
            _ = self.buffer.split_to(MAGIC.len());
            self.place = Place::Outside;
        }
        let left = match self.place {
            Place::Inside(0) => {
                self.place = Place::Outside;
                return Ok(true);
            }
            Place::Inside(left) => left,
            Place::Magic | Place::Outside => u64::MAX,
        };
        let Some((head, begin)) = self.head()? else {
            return Ok(false);
        };
        if self.place == Place::Outside && head.number == RAW && !head.is_number() {
            if std::mem::replace(&mut self.seen, true) {
                return Err(garbled("an answer with two lists"));
            }
            _ = self.buffer.split_to(begin);
            self.place = Place::Inside(head.length);
            return Ok(true);
        }
        let length = usize::try_from(head.length).unwrap_or(usize::MAX);
        if length > MOST_BYTES {
            return Err(garbled("an object has no end"));
        }
        let size = begin + length;
        let left = left.checked_sub(size as u64);
        let left = left.ok_or_else(|| garbled("an object ends behind its list"))?;
        if self.buffer.len() < size {
            return Ok(false);
        }
        let field = self.buffer.split_to(size);
        if self.place != Place::Outside {
            self.place = Place::Inside(left);
            match head.number {
                METADATA => self.metadata = field[begin..].to_vec(),
                ITEMS => each(&field[begin..])?,
                _ => {}
            }
        }
        Ok(true)
    }

    /// The beginning of the next field, and how long that is, once it is there.
    fn head(&self) -> Result<Option<(Head, usize)>, Failure> {
        let mut rest = &self.buffer[..];
        match head(&mut rest) {
            Ok(head) => Ok(Some((head, self.buffer.len() - rest.len()))),
            Err(Damage::Short) if self.buffer.len() < MOST_HEAD => Ok(None),
            Err(damage) => Err(Failure::Garbled {
                what: "a list cannot be decoded",
                source: Some(damage.into()),
            }),
        }
    }

    /// `metadata` of the list, once that is complete.
    pub fn finish(self) -> Result<Vec<u8>, Failure> {
        let complete = matches!(self.place, Place::Outside | Place::Inside(0));
        if self.seen && complete && self.buffer.is_empty() {
            Ok(self.metadata)
        } else {
            Err(Failure::Incomplete)
        }
    }
}

impl Head {
    const fn is_number(&self) -> bool {
        self.value.is_some() || self.is_fixed
    }
}
