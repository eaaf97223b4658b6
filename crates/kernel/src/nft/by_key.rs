//! Reads the elements of a very large set by their keys, where it is known which they should be.
//!
//! In: elements that are expected. Out: all elements that are there; nothing if there are others than
//! these too, or if many of these are not. Then only a dump tells.
//!
//! For every piece of a dump the kernel begins at the first element again, so its time grows with the
//! square of their number: 0.3 s for 100,000 elements, and 25 times as much for 500,000. Asking for a key takes
//! under 3 µs, however many there are. Whether there are others shows in the kernel's count of elements,
//! which it tells since Linux 6.16.

use std::collections::BTreeMap;

use super::batch::NFGEN;
use super::element::Element;
use super::uapi::{LIST_ELEM, elem, msg, set as set_attr};
use super::value::Name;
use super::{Nft, Object, header};
use crate::Family;
use crate::exchange::RequestError;
use crate::socket::Transport;
use crate::wire::{Malformed, Writer};

/// A smaller set is dumped sooner.
pub(super) const LARGE: usize = 150_000;

/// Keys per request. All answers must fit into the socket's buffer, where each takes up to 8 KiB.
const KEYS: usize = 256;

/// Each key that is missing is one more request.
const MOST_MISSING: usize = 1024;

impl<T: Transport> Nft<T> {
    /// How many elements each set of a table has; none where the kernel does not tell.
    pub(super) fn counts(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<BTreeMap<Name, usize>, RequestError> {
        let counts = self.exchange.dump_all(
            msg::GETSET,
            |writer| {
                header(writer, family.number());
                writer.text(set_attr::TABLE, table);
            },
            |message, all| {
                let (mut name, mut count) = (None, None);
                for attr in message.attributes(NFGEN)? {
                    let attr = attr?;
                    match attr.kind {
                        set_attr::NAME => name = Some(Name::from(attr.text())),
                        set_attr::COUNT => count = usize::try_from(attr.u32_be()?).ok(),
                        _ => {}
                    }
                }
                all.extend(name.zip(count));
                Ok(())
            },
        )?;
        Ok(counts.into_iter().collect())
    }

    /// All `count` elements of a set, if they have no other keys than the expected ones.
    pub(super) fn elements_by_key(
        &mut self,
        family: Family,
        (table, set): (&str, &str),
        expected: &[Element],
        count: usize,
    ) -> Result<Option<Vec<Element>>, RequestError> {
        // It counts like any other, or not at all, and stands for all keys.
        let every_key = Element {
            catch_all: true,
            ..Element::default()
        };
        let mut found = Vec::new();
        match self.answers(family, (table, set), &[every_key], &mut found) {
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
            Ok(()) => return Ok(None),
        }
        found.reserve(count.min(expected.len()));
        let mut missing = 0;
        let mut rest = expected;
        while !rest.is_empty() {
            let asked = &rest[..rest.len().min(KEYS)];
            let before = found.len();
            let result = self.answers(family, (table, set), asked, &mut found);
            let answered = found.len() - before;
            let alike = asked.iter().zip(&found[before..]);
            if alike
                .into_iter()
                .any(|(asked, found)| asked.key != found.key)
            {
                return Err(Malformed("reply: another element").into());
            }
            rest = match result {
                Ok(()) if answered == asked.len() => &rest[answered..],
                Ok(()) => return Err(Malformed("reply: too few elements").into()),
                // The kernel stops at the first one that is not there.
                Err(error) if error.is_not_found() && missing < MOST_MISSING => {
                    missing += 1;
                    rest.get(answered + 1..).unwrap_or_default()
                }
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => return Err(error),
            };
        }
        Ok((found.len() == count).then_some(found))
    }

    /// Adds the elements with these keys to `found`, up to the first that is not there.
    fn answers(
        &mut self,
        family: Family,
        (table, set): (&str, &str),
        keys: &[Element],
        found: &mut Vec<Element>,
    ) -> Result<(), RequestError> {
        self.exchange.several(
            msg::GETSETELEM,
            |writer| {
                header(writer, family.number());
                writer.text(elem::LIST_TABLE, table);
                writer.text(elem::LIST_SET, set);
                let list = writer.begin_nest(elem::LIST_ELEMENTS);
                for element in keys {
                    write_key(element, writer);
                }
                writer.end_nest(list);
            },
            &mut |message| {
                if let Object::Elements(list) = Object::read(message)? {
                    found.extend(list.elements);
                }
                Ok(())
            },
        )
    }
}

fn write_key(element: &Element, writer: &mut Writer) {
    let start = writer.begin_nest(LIST_ELEM);
    if element.catch_all {
        writer.u32_be(elem::FLAGS, elem::F_CATCHALL);
    } else {
        element.key.write(writer, elem::KEY);
    }
    writer.end_nest(start);
}
