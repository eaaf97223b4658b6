//! Netlink messages and attributes as bytes.
//!
//! [`Writer`] appends messages to one buffer and remembers when something did not fit.
//! [`messages`] and [`attributes`] read: every length is checked, no bytes can make them panic.
//!
//! What an attribute means is not known here.

use std::fmt;

#[cfg(test)]
pub(crate) mod tests;

/// Bytes in a message header.
pub const HEADER: usize = 16;

/// An attribute's length is 16 bits, its own header of four bytes included.
pub const LONGEST_ATTRIBUTE: usize = u16::MAX as usize;

/// A request, as opposed to an answer.
pub const NLM_F_REQUEST: u16 = 0x1;
/// Set in all parts of an answer of several messages.
pub const NLM_F_MULTI: u16 = 0x2;
/// Wants an acknowledgement.
pub const NLM_F_ACK: u16 = 0x4;
/// In a change: echo the resulting notification to the sender (`NLM_F_ECHO`).
pub const NLM_F_ECHO: u16 = 0x8;
/// In a dump: the kernel's state changed meanwhile.
pub const NLM_F_DUMP_INTR: u16 = 0x10;
/// In a request: everything, not one thing.
pub const NLM_F_DUMP: u16 = 0x300;
/// In a new-request: fail when it exists.
pub const NLM_F_EXCL: u16 = 0x200;
/// In a new-request: make it when it does not exist.
pub const NLM_F_CREATE: u16 = 0x400;
/// In a new-request: put it at the end.
pub const NLM_F_APPEND: u16 = 0x800;
/// In an error: the request is not repeated in it.
pub const NLM_F_CAPPED: u16 = 0x100;
/// In an error: attributes follow that explain it.
pub const NLM_F_ACK_TLVS: u16 = 0x200;

/// An error, or with code 0 an acknowledgement.
pub const NLMSG_ERROR: u16 = 2;
/// The end of a dump.
pub const NLMSG_DONE: u16 = 3;

const NESTED: u16 = 0x8000;
const KIND_MASK: u16 = 0x3fff;

/// Bytes that are no netlink message, or not the one expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed netlink {0}")]
pub struct Malformed(pub &'static str);

/// Rounds up to the next multiple of four.
pub const fn align(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// Appends messages to a buffer.
///
/// An attribute that would be longer than [`LONGEST_ATTRIBUTE`] is left incomplete and noted:
/// look at [`Writer::overflowed`] before sending.
#[derive(Clone, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    overflowed: bool,
}

impl Writer {
    /// An empty buffer.
    pub const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            overflowed: false,
        }
    }

    /// What was written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes written so far.
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether an attribute did not fit. What was written then must not be sent.
    pub const fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Starts a message; everything up to [`Writer::end`] belongs to it. Returns its offset.
    pub fn begin(&mut self, kind: u16, flags: u16, sequence: u32) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&sequence.to_ne_bytes());
        // The port: the kernel knows whom it answers.
        self.bytes.extend_from_slice(&[0; 4]);
        start
    }

    /// Ends the message that began at `start`.
    pub fn end(&mut self, start: usize) {
        match u32::try_from(self.bytes.len() - start) {
            Ok(len) => self.bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes()),
            Err(_) => self.overflowed = true,
        }
    }

    /// Sets or clears flags of the message that began at `start`.
    pub fn set_flags(&mut self, start: usize, flags: u16, on: bool) {
        let at = start + 6;
        let now = u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]);
        let then = if on { now | flags } else { now & !flags };
        self.bytes[at..at + 2].copy_from_slice(&then.to_ne_bytes());
    }

    /// Appends bytes that are no attribute: a protocol's own header, whose length is a multiple of
    /// four.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Removes everything from `at` on and returns it.
    pub fn split_off(&mut self, at: usize) -> Vec<u8> {
        self.bytes.split_off(at)
    }

    /// An attribute of plain bytes.
    pub fn attr(&mut self, kind: u16, payload: &[u8]) {
        self.attr_in_two(kind, payload, &[]);
    }

    /// A string; the kernel wants its end marked.
    pub fn text(&mut self, kind: u16, text: &str) {
        self.attr_in_two(kind, text.as_bytes(), &[0]);
    }

    /// One byte.
    pub fn u8(&mut self, kind: u16, value: u8) {
        self.attr(kind, &[value]);
    }

    /// 16 bits in network order.
    pub fn u16_be(&mut self, kind: u16, value: u16) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// 32 bits in network order.
    pub fn u32_be(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// 32 bits in this machine's order.
    pub fn u32_ne(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_ne_bytes());
    }

    /// 64 bits in network order.
    pub fn u64_be(&mut self, kind: u16, value: u64) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// An attribute made of attributes.
    pub fn nest(&mut self, kind: u16, content: impl FnOnce(&mut Self)) {
        let start = self.begin_nest(kind);
        content(self);
        self.end_nest(start);
    }

    /// Starts an attribute made of attributes; everything up to [`Writer::end_nest`] belongs to
    /// it. Returns its offset.
    pub fn begin_nest(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        start
    }

    /// Ends the attribute that began at `start`.
    pub fn end_nest(&mut self, start: usize) {
        match u16::try_from(self.bytes.len() - start) {
            Ok(len) => self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes()),
            Err(_) => self.overflowed = true,
        }
    }

    fn attr_in_two(&mut self, kind: u16, first: &[u8], second: &[u8]) {
        let Ok(len) = u16::try_from(first.len() + second.len() + 4) else {
            self.overflowed = true;
            return;
        };
        self.bytes.extend_from_slice(&len.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(first);
        self.bytes.extend_from_slice(second);
        self.bytes.resize(align(self.bytes.len()), 0);
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("len", &self.len())
            .field("overflowed", &self.overflowed)
            .finish_non_exhaustive()
    }
}

/// One message as it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Which message; its meaning depends on the socket's protocol.
    pub kind: u16,
    /// `NLM_F_…`
    pub flags: u16,
    /// The number of the request that it answers.
    pub sequence: u32,
    /// Whose request it was: the port of a socket, 0 for the kernel itself.
    pub port: u32,
    /// What follows the header.
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The attributes behind a protocol's own header of `header` bytes.
    ///
    /// # Errors
    /// The message is shorter than that.
    pub fn attributes(&self, header: usize) -> Result<Attributes<'a>, Malformed> {
        self.body
            .get(header..)
            .map(attributes)
            .ok_or(Malformed("message: too short"))
    }
}

/// The messages in a datagram. Ends behind the first malformed one.
pub const fn messages(bytes: &[u8]) -> Messages<'_> {
    Messages { rest: bytes }
}

/// See [`messages`].
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.rest);
        let Some((header, _)) = bytes.split_first_chunk::<HEADER>() else {
            return Some(Err(Malformed("message: truncated header")));
        };
        let [a, b, c, d, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3] = *header;
        let len = u32::from_ne_bytes([a, b, c, d]) as usize;
        let Some(body) = bytes.get(HEADER..len) else {
            return Some(Err(Malformed("message: wrong length")));
        };
        self.rest = bytes.get(align(len)..).unwrap_or_default();
        Some(Ok(Message {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            port: u32::from_ne_bytes([p0, p1, p2, p3]),
            body,
        }))
    }
}

/// One attribute as it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Which attribute; its meaning depends on where it stands.
    pub kind: u16,
    /// What follows its header.
    pub payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// One byte.
    ///
    /// # Errors
    /// It has another length; so for all numbers below.
    pub fn u8(&self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    /// 16 bits in network order.
    ///
    /// # Errors
    /// It has another length.
    pub fn u16_be(&self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    /// 32 bits in network order.
    ///
    /// # Errors
    /// It has another length.
    pub fn u32_be(&self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// 32 bits in this machine's order.
    ///
    /// # Errors
    /// It has another length.
    pub fn u32_ne(&self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    /// 64 bits in network order.
    ///
    /// # Errors
    /// It has another length.
    pub fn u64_be(&self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// Exactly so many bytes.
    ///
    /// # Errors
    /// It has another length.
    pub fn array<const N: usize>(&self) -> Result<[u8; N], Malformed> {
        self.payload
            .try_into()
            .map_err(|_| Malformed("attribute: wrong length"))
    }

    /// A string up to its end mark. What is no UTF-8 is replaced: external names may be anything.
    pub fn text(&self) -> std::borrow::Cow<'a, str> {
        let end = self.payload.iter().position(|byte| *byte == 0);
        String::from_utf8_lossy(&self.payload[..end.unwrap_or(self.payload.len())])
    }

    /// The attributes that it is made of.
    pub const fn nested(&self) -> Attributes<'a> {
        attributes(self.payload)
    }
}

/// A sequence of attributes. Ends behind the first malformed one.
pub const fn attributes(bytes: &[u8]) -> Attributes<'_> {
    Attributes { rest: bytes }
}

/// See [`attributes`].
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.rest);
        let Some((&[a, b, c, d], _)) = bytes.split_first_chunk::<4>() else {
            return Some(Err(Malformed("attribute: truncated header")));
        };
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let Some(payload) = bytes.get(4..len) else {
            return Some(Err(Malformed("attribute: wrong length")));
        };
        self.rest = bytes.get(align(len)..).unwrap_or_default();
        Some(Ok(Attribute {
            kind: u16::from_ne_bytes([c, d]) & KIND_MASK,
            payload,
        }))
    }
}
