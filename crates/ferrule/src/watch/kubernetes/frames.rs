//! The body of an answer in JSON, cut into its events or its objects while it arrives.
//!
//! In: bytes in pieces of any size. Out: [`Lines`] of a watch, or the [`Items`] of a list, one by
//! one. A list of all Services of a large cluster is many megabytes; it never exists here as a
//! whole.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use kube::client::Body;
use tokio::time::timeout;

use super::failure::Failure;

/// No object is longer: storage refuses to keep anything near this size.
pub const MOST_BYTES: usize = 32 << 20;

/// The next piece of a body, `None` at its end.
pub async fn next(body: &mut Body, limit: Duration) -> Result<Option<Bytes>, Failure> {
    loop {
        let Ok(frame) = timeout(limit, body.frame()).await else {
            return Err(Failure::Silent(limit));
        };
        let Some(frame) = frame else {
            return Ok(None);
        };
        // Trailers say nothing to us.
        if let Ok(data) = frame.map_err(Failure::broken)?.into_data() {
            return Ok(Some(data));
        }
    }
}

/// Pieces in, whole lines out.
#[derive(Debug, Default)]
pub struct Lines {
    buffer: BytesMut,
    /// So much of the buffer holds no line end.
    searched: usize,
}

impl Lines {
    pub fn feed(&mut self, piece: &[u8]) -> Result<(), Failure> {
        if self.buffer.len() + piece.len() > MOST_BYTES {
            return Err(garbled("an event has no end"));
        }
        self.buffer.extend_from_slice(piece);
        Ok(())
    }

    /// The next line without its end; blank ones are passed over.
    pub fn pop(&mut self) -> Option<Bytes> {
        loop {
            let fresh = &self.buffer[self.searched..];
            let Some(at) = fresh.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                return None;
            };
            let line = self.buffer.split_to(self.searched + at + 1).freeze();
            self.searched = 0;
            if !line.trim_ascii().is_empty() {
                return Some(line);
            }
        }
    }

    /// Whether part of a line is left over.
    pub fn is_inside(&self) -> bool {
        !self.buffer.trim_ascii().is_empty()
    }
}

/// Whether a backslash keeps the next character of a string from meaning anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    Off,
    On,
}

/// Pieces of a list in, the text of each object in `items` out.
///
/// Only strings and brackets are understood; whether the rest is right is seen when the objects
/// are decoded.
#[derive(Debug, Default)]
pub struct Items {
    depth: usize,
    string: Option<Escape>,
    /// Within the array we look for.
    inside: bool,
    /// The last string directly in the list, and whether it names what follows.
    word: Vec<u8>,
    is_key: bool,
    /// The object being read.
    item: Vec<u8>,
    /// The list without its objects.
    rest: Vec<u8>,
}

impl Items {
    /// Takes a piece in and hands every object that is now complete to `each`.
    pub fn feed(
        &mut self,
        piece: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        // Where the bytes begin that are not put away yet.
        let mut from = 0;
        for (at, &byte) in piece.iter().enumerate() {
            if let Some(escape) = self.string {
                self.continue_string(escape, byte);
                continue;
            }
            match byte {
                b'"' => {
                    self.string = Some(Escape::Off);
                    self.word.clear();
                }
                b':' if self.depth == 1 => self.is_key = true,
                b',' if self.depth == 1 => self.is_key = false,
                b'{' | b'[' => {
                    if self.inside && self.depth == 2 {
                        // Between objects there are only commas.
                        from = at;
                    }
                    self.depth += 1;
                    if byte == b'[' && self.depth == 2 && self.is_key && self.word == b"items" {
                        self.inside = true;
                        self.rest.extend_from_slice(&piece[from..=at]);
                    }
                }
                b'}' | b']' => {
                    let Some(depth) = self.depth.checked_sub(1) else {
                        return Err(garbled("brackets do not match"));
                    };
                    self.depth = depth;
                    if self.inside && depth == 2 {
                        self.item.extend_from_slice(&piece[from..=at]);
                        each(&self.item)?;
                        self.item.clear();
                    } else if self.inside && depth == 1 {
                        self.inside = false;
                        from = at;
                    }
                }
                _ => {}
            }
        }
        if !self.inside {
            self.rest.extend_from_slice(&piece[from..]);
        } else if self.depth > 2 {
            self.item.extend_from_slice(&piece[from..]);
        }
        if self.item.len() > MOST_BYTES || self.rest.len() > MOST_BYTES {
            return Err(garbled("an object has no end"));
        }
        Ok(())
    }

    fn continue_string(&mut self, escape: Escape, byte: u8) {
        self.string = match (escape, byte) {
            (Escape::Off, b'"') => None,
            (Escape::Off, b'\\') => Some(Escape::On),
            _ => Some(Escape::Off),
        };
        if self.depth == 1 && self.string.is_some() {
            self.word.push(byte);
        }
    }

    /// What is around the objects, once the list is complete.
    pub fn finish(self) -> Result<Vec<u8>, Failure> {
        if self.depth == 0 && self.string.is_none() && !self.rest.is_empty() {
            Ok(self.rest)
        } else {
            Err(Failure::Incomplete)
        }
    }
}

/// The answer is not what it should be.
pub fn garbled(what: &'static str) -> Failure {
    Failure::Garbled { what, source: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cuts a text into pieces of every size and expects the same result from each.
    fn in_pieces<T: PartialEq + std::fmt::Debug>(text: &str, read: impl Fn(&[&[u8]]) -> T) -> T {
        let whole = read(&[text.as_bytes()]);
        for size in 1..text.len() {
            let pieces: Vec<_> = text.as_bytes().chunks(size).collect();
            assert_eq!(read(&pieces), whole, "in pieces of {size}");
        }
        whole
    }

    fn items(text: &str) -> (Vec<String>, Option<String>) {
        in_pieces(text, |pieces| {
            let mut items = Items::default();
            let mut found = Vec::new();
            for piece in pieces {
                let fed = items.feed(piece, |item| {
                    found.push(String::from_utf8(item.to_vec()).unwrap());
                    Ok(())
                });
                if fed.is_err() {
                    return (found, None);
                }
            }
            let rest = items.finish().ok();
            (found, rest.map(|rest| String::from_utf8(rest).unwrap()))
        })
    }

    #[test]
    fn objects_of_a_list_come_one_by_one() {
        let (found, rest) = items(
            r#"{"kind":"L","metadata":{"continue":"x"},"items":[{"a":[1,{"b":"]}"}]} , {"c":"\""},{}],"z":[{"items":[{}]}]}"#,
        );
        assert_eq!(found, [r#"{"a":[1,{"b":"]}"}]}"#, r#"{"c":"\""}"#, "{}"]);
        assert_eq!(
            rest.unwrap(),
            r#"{"kind":"L","metadata":{"continue":"x"},"items":[],"z":[{"items":[{}]}]}"#
        );
    }

    #[test]
    fn only_the_lists_own_items_count() {
        let (found, rest) = items(
            r#"{"kind":"items","x":["items",{"items":[{"a":1}]}],"metadata":{"items":[{}]},"items":null}"#,
        );
        assert_eq!(found, [""; 0]);
        assert!(rest.unwrap().ends_with(r#""items":null}"#));
        let (found, rest) = items("{ \"items\" : [ ] ,\n\"metadata\" : { } }\n");
        assert_eq!(found, [""; 0]);
        assert!(serde_json::from_str::<serde_json::Value>(&rest.unwrap()).is_ok());
    }

    #[test]
    fn a_list_that_breaks_off_is_noticed() {
        let whole = r#"{"items":[{"a":"}"},{"b":2}],"metadata":{"resourceVersion":"7"}}"#;
        for end in 0..whole.len() {
            assert_eq!(items(&whole[..end]).1, None, "{}", &whole[..end]);
        }
        assert!(items(whole).1.is_some());
        assert_eq!(items("]").1, None);
    }

    #[test]
    fn lines_come_whole_whatever_the_pieces() {
        let read = |pieces: &[&[u8]]| {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for piece in pieces {
                lines.feed(piece).unwrap();
                while let Some(line) = lines.pop() {
                    found.push(String::from_utf8(line.trim_ascii().to_vec()).unwrap());
                }
            }
            (found, lines.is_inside())
        };
        let (found, inside) = in_pieces("{\"a\":1}\n\r\n{\"b\":2}\r\n{\"c\":", read);
        assert_eq!(found, ["{\"a\":1}", "{\"b\":2}"]);
        assert!(inside);
        assert!(!in_pieces("{}\n\n", read).1);
    }

    #[test]
    fn what_never_ends_is_given_up() {
        let piece = vec![b'a'; 1 << 20];
        let mut lines = Lines::default();
        let fed = (0..40).try_for_each(|_| lines.feed(&piece));
        assert!(matches!(fed, Err(Failure::Garbled { .. })));
        let mut items = Items::default();
        items.feed(br#"{"items":[{""#, |_| Ok(())).unwrap();
        let fed = (0..40).try_for_each(|_| items.feed(&piece, |_| Ok(())));
        assert!(matches!(fed, Err(Failure::Garbled { .. })));
    }
}
