//! Tables.

use super::uapi::{table, user};
use super::value::{Comment, Name, write_comment};
use crate::wire::{Attributes, Malformed, Writer};

/// A table: everything else is in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: Name,
    /// [`Table::DORMANT`] and so on.
    pub flags: u32,
    /// The comment.
    pub comment: Option<Comment>,
}

impl Table {
    /// Its chains see no packets.
    pub const DORMANT: u32 = 0x1;
    /// Only the socket that made it may change it.
    pub const OWNER: u32 = 0x2;
    /// It stays when the socket that owns it is closed.
    pub const PERSIST: u32 = 0x4;

    /// A table without flags and comments.
    pub fn new(name: impl Into<Name>) -> Self {
        Self {
            name: name.into(),
            flags: 0,
            comment: None,
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.text(table::NAME, &self.name);
        writer.u32_be(table::FLAGS, self.flags);
        write_comment(writer, table::USERDATA, self.comment.as_ref());
    }

    pub(super) fn read(attrs: Attributes<'_>) -> Result<(Self, u64), Malformed> {
        let mut read = Self::new("");
        let mut handle = 0;
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                table::NAME => read.name = attr.text().into(),
                table::FLAGS => read.flags = attr.u32_be()?,
                table::HANDLE => handle = attr.u64_be()?,
                table::USERDATA => read.comment = Comment::read(attr.payload, user::COMMENT),
                _ => {}
            }
        }
        Ok((read, handle))
    }
}
