//! Elements of sets and maps.

use std::time::Duration;

use super::uapi::{LIST_ELEM, elem, user};
use super::value::{Comment, Data, Name, Value, Verdict, write_comment};
use crate::wire::{Attribute, Attributes, Malformed, Writer};

/// One element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Its key; of a range, the first one.
    pub key: Value,
    /// The last key of a range of several fields. Ranges of one field are marked by
    /// [`Element::ends_range`]; see [`ranges`](super::ranges).
    pub last: Option<Box<Value>>,
    /// Whether the range before it ends here, so that the key is no longer in it.
    pub ends_range: bool,
    /// Whether it stands for every key that is not there; then it has none.
    pub catch_all: bool,
    /// What the key leads to.
    pub data: Data,
    /// How long it stays, if other than the set says.
    pub timeout: Option<Duration>,
    /// How long it still stays.
    pub expires: Option<Duration>,
    /// The comment.
    pub comment: Option<Comment>,
}

impl Element {
    /// An element of a set.
    pub fn new(key: Value) -> Self {
        Self {
            key,
            ..Self::default()
        }
    }

    /// An element of a map to values.
    pub fn value(key: Value, value: Value) -> Self {
        Self {
            data: Data::Value(value),
            ..Self::new(key)
        }
    }

    /// An element of a map to verdicts.
    pub fn verdict(key: Value, verdict: Verdict) -> Self {
        Self {
            data: Data::Verdict(verdict),
            ..Self::new(key)
        }
    }

    /// The same with a comment.
    #[must_use]
    pub fn comment(mut self, comment: &str) -> Self {
        self.comment = Some(comment.into());
        self
    }

    /// Appends this element to a list of elements.
    pub(super) fn write(&self, writer: &mut Writer) {
        let start = writer.begin_nest(LIST_ELEM);
        if self.catch_all {
            writer.u32_be(elem::FLAGS, elem::F_CATCHALL);
        } else {
            if self.ends_range {
                writer.u32_be(elem::FLAGS, elem::F_INTERVAL_END);
            }
            self.key.write(writer, elem::KEY);
        }
        if let Some(last) = &self.last {
            last.write(writer, elem::KEY_END);
        }
        self.data.write(writer, elem::DATA);
        for (kind, time) in [
            (elem::TIMEOUT, self.timeout),
            (elem::EXPIRATION, self.expires),
        ] {
            if let Some(time) = time {
                let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                writer.u64_be(kind, millis);
            }
        }
        write_comment(writer, elem::USERDATA, self.comment.as_ref());
        writer.end_nest(start);
    }

    fn read(attr: &Attribute<'_>) -> Result<Self, Malformed> {
        let mut read = Self::default();
        let mut flags = 0;
        let time = |attr: &Attribute<'_>| attr.u64_be().map(Duration::from_millis).map(Some);
        for attr in attr.nested() {
            let attr = attr?;
            match attr.kind {
                elem::KEY => read.key = Value::read(&attr)?,
                elem::KEY_END => read.last = Some(Box::new(Value::read(&attr)?)),
                elem::DATA => read.data = Data::read(&attr)?,
                elem::FLAGS => flags = attr.u32_be()?,
                elem::TIMEOUT => read.timeout = time(&attr)?,
                elem::EXPIRATION => read.expires = time(&attr)?,
                elem::USERDATA => read.comment = Comment::read(attr.payload, user::COMMENT),
                _ => {}
            }
        }
        read.ends_range = flags & elem::F_INTERVAL_END != 0;
        read.catch_all = flags & elem::F_CATCHALL != 0;
        Ok(read)
    }
}

/// Some elements of one set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elements {
    /// The table that the set is in.
    pub table: Name,
    /// The set's name.
    pub set: Name,
    /// The elements.
    pub elements: Vec<Element>,
}

impl Elements {
    pub(super) fn read(attrs: Attributes<'_>) -> Result<Self, Malformed> {
        let mut read = Self::default();
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                elem::LIST_TABLE => read.table = attr.text().into(),
                elem::LIST_SET => read.set = attr.text().into(),
                elem::LIST_ELEMENTS => {
                    for attr in attr.nested() {
                        read.elements.push(Element::read(&attr?)?);
                    }
                }
                _ => {}
            }
        }
        Ok(read)
    }
}
