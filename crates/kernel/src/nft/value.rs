//! What registers, keys and data hold; names and comments.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::uapi::{data, user};
use crate::wire::{Attribute, Malformed, Writer, align};

/// The name of a table, chain or set. Cheap to copy: thousands of elements name the same chain.
pub type Name = Arc<str>;

/// Longest value that the kernel knows.
const LONGEST: usize = 64;

/// Bytes as the kernel compares them: one field, or several with each padded to four bytes.
///
/// Fields are appended in order. Addresses, protocols and ports are in network order; numbers and
/// marks in this machine's order.
#[derive(Clone, Copy)]
pub struct Value {
    len: u8,
    bytes: [u8; LONGEST],
}

impl Value {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self {
            len: 0,
            bytes: [0; LONGEST],
        }
    }

    /// Followed by an address.
    #[must_use]
    pub fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => self.field(&v4.octets()),
            IpAddr::V6(v6) => self.field(&v6.octets()),
        }
    }

    /// Followed by the number of a protocol such as TCP.
    #[must_use]
    pub fn protocol(self, protocol: u8) -> Self {
        self.field(&[protocol])
    }

    /// Followed by a port.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        self.field(&port.to_be_bytes())
    }

    /// Followed by a number that was counted or drawn, or a mark.
    #[must_use]
    pub fn number(self, number: u32) -> Self {
        self.field(&number.to_ne_bytes())
    }

    /// Followed by the name of an interface.
    ///
    /// # Panics
    /// Names of interfaces have at most 15 bytes.
    #[must_use]
    pub fn interface(self, name: &str) -> Self {
        let mut padded = [0; 16];
        assert!(name.len() < padded.len(), "{name} is no interface's name");
        padded[..name.len()].copy_from_slice(name.as_bytes());
        self.field(&padded)
    }

    /// Followed by a field of plain bytes.
    ///
    /// # Panics
    /// The kernel knows no value longer than 64 bytes.
    #[must_use]
    pub fn field(mut self, field: &[u8]) -> Self {
        // A single field is not padded; each of several is, the last one too.
        let several = self.len > 0;
        let start = align(usize::from(self.len));
        let end = start + field.len();
        self.bytes[start..end].copy_from_slice(field);
        let len = if several { align(end) } else { end };
        self.len = u8::try_from(len).expect("at most 64");
        self
    }

    /// Exactly these bytes.
    ///
    /// # Errors
    /// They are too many.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut value = Self::new();
        value
            .bytes
            .get_mut(..bytes.len())
            .ok_or(Malformed("value: too long"))?
            .copy_from_slice(bytes);
        value.len = u8::try_from(bytes.len()).map_err(|_| Malformed("value: too long"))?;
        Ok(value)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub(super) fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..usize::from(self.len)]
    }

    pub(super) fn write(&self, writer: &mut Writer, kind: u16) {
        writer.nest(kind, |writer| writer.attr(data::VALUE, self.as_bytes()));
    }

    /// Reads what [`Value::write`] wrote.
    pub(super) fn read(attr: &Attribute<'_>) -> Result<Self, Malformed> {
        for attr in attr.nested() {
            let attr = attr?;
            if attr.kind == data::VALUE {
                return Self::from_bytes(attr.payload);
            }
        }
        Err(Malformed("value: missing"))
    }
}

impl Default for Value {
    fn default() -> Self {
        Self::new()
    }
}

impl From<IpAddr> for Value {
    fn from(address: IpAddr) -> Self {
        Self::new().address(address)
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl std::hash::Hash for Value {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, word) in self.as_bytes().chunks(4).enumerate() {
            f.write_str(if index == 0 { "" } else { " " })?;
            word.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        Ok(())
    }
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Passes this hook.
    Accept,
    /// Is thrown away.
    Drop,
    /// Goes on with the next expression.
    Continue,
    /// Goes on with the next rule.
    Break,
    /// Goes back to where the chain was jumped to from.
    Return,
    /// Goes through another chain and comes back.
    Jump(Name),
    /// Goes through another chain and does not come back.
    Goto(Name),
    /// Something that we never ask for.
    Other(u32),
}

const DROP: u32 = 0;
const ACCEPT: u32 = 1;
const CONTINUE: u32 = u32::MAX;
const BREAK: u32 = CONTINUE - 1;
const JUMP: u32 = CONTINUE - 2;
const GOTO: u32 = CONTINUE - 3;
const RETURN: u32 = CONTINUE - 4;

impl Verdict {
    pub(super) fn write(&self, writer: &mut Writer, kind: u16) {
        let (code, chain) = match self {
            Self::Accept => (ACCEPT, None),
            Self::Drop => (DROP, None),
            Self::Continue => (CONTINUE, None),
            Self::Break => (BREAK, None),
            Self::Return => (RETURN, None),
            Self::Jump(chain) => (JUMP, Some(chain)),
            Self::Goto(chain) => (GOTO, Some(chain)),
            Self::Other(code) => (*code, None),
        };
        writer.nest(kind, |writer| {
            writer.nest(data::VERDICT, |writer| {
                writer.u32_be(data::VERDICT_CODE, code);
                if let Some(chain) = chain {
                    writer.text(data::VERDICT_CHAIN, chain);
                }
            });
        });
    }

    fn read(attr: &Attribute<'_>) -> Result<Self, Malformed> {
        let (mut code, mut chain) = (None, None);
        for attr in attr.nested() {
            let attr = attr?;
            match attr.kind {
                data::VERDICT_CODE => code = Some(attr.u32_be()?),
                data::VERDICT_CHAIN => chain = Some(Name::from(attr.text())),
                _ => {}
            }
        }
        let code = code.ok_or(Malformed("verdict: no code"))?;
        Ok(match (code, chain) {
            (ACCEPT, _) => Self::Accept,
            (DROP, _) => Self::Drop,
            (CONTINUE, _) => Self::Continue,
            (BREAK, _) => Self::Break,
            (RETURN, _) => Self::Return,
            (JUMP, Some(chain)) => Self::Jump(chain),
            (GOTO, Some(chain)) => Self::Goto(chain),
            (JUMP | GOTO, None) => return Err(Malformed("verdict: no chain")),
            (other, _) => Self::Other(other),
        })
    }
}

/// What an element of a map leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Data {
    /// It is an element of a set.
    #[default]
    None,
    /// What becomes of the packet.
    Verdict(Verdict),
    /// A value.
    Value(Value),
}

impl Data {
    pub(super) fn write(&self, writer: &mut Writer, kind: u16) {
        match self {
            Self::None => {}
            Self::Verdict(verdict) => verdict.write(writer, kind),
            Self::Value(value) => value.write(writer, kind),
        }
    }

    pub(super) fn read(attr: &Attribute<'_>) -> Result<Self, Malformed> {
        for attr in attr.nested() {
            let attr = attr?;
            match attr.kind {
                data::VALUE => return Value::from_bytes(attr.payload).map(Self::Value),
                data::VERDICT => return Verdict::read(&attr).map(Self::Verdict),
                _ => {}
            }
        }
        Ok(Self::None)
    }
}

/// A comment for people who list the rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Comment(Arc<str>);

impl Comment {
    /// Longest comment that `nft` accepts, in bytes.
    pub const LONGEST: usize = 128;

    /// A comment, cut to what fits.
    pub fn new(text: &str) -> Self {
        let text = text.split('\0').next().unwrap_or_default();
        Self(cut(text, Self::LONGEST).into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As other readers of the rule set expect it, in at most `room` bytes.
    pub(super) fn user_data(&self, kind: u8, room: usize) -> Vec<u8> {
        // Two bytes before the text and one behind it.
        let text = cut(&self.0, room.saturating_sub(3).min(254));
        let len = u8::try_from(text.len() + 1).expect("cut to 254");
        let mut bytes = vec![kind, len];
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(0);
        bytes
    }

    /// Reads what was written by us or by `nft`.
    pub(super) fn read(user_data: &[u8], kind: u8) -> Option<Self> {
        let payload = tlvs(user_data).find_map(|(k, payload)| (k == kind).then_some(payload))?;
        let text = payload.strip_suffix(&[0]).unwrap_or(payload);
        Some(Self(String::from_utf8_lossy(text).into()))
    }
}

impl From<&str> for Comment {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

/// Writes a comment as an attribute of its own, if there is one.
pub(super) fn write_comment(writer: &mut Writer, kind: u16, comment: Option<&Comment>) {
    if let Some(comment) = comment {
        writer.attr(kind, &comment.user_data(user::COMMENT, user::LONGEST));
    }
}

/// The parts of user data: a kind, a length and so many bytes each. Ends where they make no sense.
fn tlvs(mut rest: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (&[kind, len], behind) = rest.split_first_chunk::<2>()?;
        let (payload, behind) = behind.split_at_checked(len.into())?;
        rest = behind;
        Some((kind, payload))
    })
}

/// The longest beginning of a text that has at most `most` bytes.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn one_field_is_bare_and_several_are_padded() {
        assert_eq!(Value::new().port(80).as_bytes(), [0, 80]);
        let key = Value::new().protocol(6).port(80);
        assert_eq!(key.as_bytes(), [6, 0, 0, 0, 0, 80, 0, 0]);
        let address = IpAddr::from(Ipv4Addr::new(10, 0, 0, 1));
        let key = Value::from(address).protocol(17).port(53).number(1);
        assert_eq!(format!("{key:?}")[..27], *"0a000001 11000000 00350000 ");
        assert_eq!(key.as_bytes()[12..], 1_u32.to_ne_bytes());
    }

    #[test]
    fn the_longest_key_of_ours_fits() {
        let address = IpAddr::from(Ipv6Addr::LOCALHOST);
        let key = Value::from(address).address(address).protocol(6).port(80);
        assert_eq!(key.as_bytes().len(), 40);
        assert!(Value::from_bytes(&[0; 64]).is_ok());
        assert!(Value::from_bytes(&[0; 65]).is_err());
    }

    #[test]
    fn comments_are_cut_between_characters() {
        assert_eq!(Comment::new(&"x".repeat(200)).as_str().len(), 128);
        let comment = Comment::new(&format!("{}é", "x".repeat(127)));
        assert_eq!(comment.as_str().len(), 127);
        assert_eq!(Comment::new("a\0b").as_str(), "a");
        let data = Comment::new("abcdef").user_data(7, 6);
        assert_eq!(data, [7, 4, b'a', b'b', b'c', 0]);
        assert_eq!(Comment::read(&data, 7), Some("abc".into()));
        assert_eq!(Comment::read(&data, 0), None);
        assert_eq!(Comment::read(&[0, 9, 1], 0), None);
    }
}
