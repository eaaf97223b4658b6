//! What is in a table, in the words of `nft`.
//!
//! In: sets, elements, chains and rules. Out: the pieces of a file for `nft -f`, which makes
//! exactly what was given. They look as `nft list` prints them.
//!
//! In which order the pieces stand is not decided here.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use super::chain::{BaseChain, Chain, Hook, Policy};
use super::element::Element;
use super::set::{Field, MapData, Set, Timeout};
use super::value::{Comment, Data, Value, Verdict};
use super::{expr, ranges};
use crate::Family;

mod rule;

pub use rule::rule;

/// There are no words for it in `nft`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nft has no syntax for {0}")]
pub struct NoSyntax(String);

type Text = Result<String, NoSyntax>;

fn no_syntax<T>(what: impl std::fmt::Debug) -> Result<T, NoSyntax> {
    Err(NoSyntax(format!("{what:?}")))
}

/// The word for tables of a family, which is also the word for its packets.
pub const fn family(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// The name of a chain or set.
///
/// # Errors
/// `nft` knows no quotes around names, so that not every name can be written.
pub fn name(name: &str) -> Result<&str, NoSyntax> {
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || "_.".contains(c));
    let goes_well = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
    if begins_well && name.chars().all(goes_well) {
        Ok(name)
    } else {
        no_syntax(name)
    }
}

/// A comment. What would end it early is replaced, so that one odd name harms only itself.
pub fn comment(comment: &Comment) -> String {
    let odd = |c: char| c == '"' || c.is_control();
    format!("comment \"{}\"", comment.as_str().replace(odd, "?"))
}

/// The lines that declare a set or map, without its name and elements.
///
/// # Errors
/// A field of a type that is not ours.
pub fn set(set: &Set) -> Result<Vec<String>, NoSyntax> {
    let mut lines = vec![types(set)?];
    if let Some(size) = set.size {
        lines.push(format!("size {size}"));
    }
    let timed = set.timeout != Timeout::None;
    let flags = [
        ("dynamic", set.dynamic),
        ("interval", set.interval),
        ("timeout", timed),
    ];
    let flags: Vec<_> = flags
        .into_iter()
        .filter_map(|(word, on)| on.then_some(word))
        .collect();
    if !flags.is_empty() {
        lines.push(format!("flags {}", flags.join(",")));
    }
    if let Timeout::Default(time) = set.timeout {
        lines.push(format!("timeout {}", duration(time)));
    }
    lines.extend(set.comment.as_ref().map(comment));
    Ok(lines)
}

/// `set` or `map`.
pub fn set_word(set: &Set) -> &'static str {
    match set.data {
        MapData::None => "set",
        MapData::Verdict | MapData::Value(_) => "map",
    }
}

fn types(set: &Set) -> Text {
    let data: &[Field] = match &set.data {
        MapData::Value(fields) => fields,
        MapData::None | MapData::Verdict => &[],
    };
    // A number that was drawn has no type of its own, only an expression that makes it.
    let by_expression = set.key.contains(&Field::Number) || data.contains(&Field::Number);
    let fields = |fields: &[Field]| -> Text {
        let say = if by_expression {
            expression_of
        } else {
            type_of
        };
        let words = fields.iter().copied().map(say);
        Ok(words.collect::<Result<Vec<_>, _>>()?.join(" . "))
    };
    let word = if by_expression { "typeof" } else { "type" };
    let key = fields(&set.key)?;
    Ok(match &set.data {
        MapData::None => format!("{word} {key}"),
        MapData::Verdict => format!("{word} {key} : verdict"),
        MapData::Value(data) => format!("{word} {key} : {}", fields(data)?),
    })
}

fn type_of(field: Field) -> Result<&'static str, NoSyntax> {
    Ok(match field {
        Field::Ipv4Addr => "ipv4_addr",
        Field::Ipv6Addr => "ipv6_addr",
        Field::Protocol => "inet_proto",
        Field::Port => "inet_service",
        Field::Mark => "mark",
        Field::Interface => "ifname",
        Field::Number | Field::Other(..) => return no_syntax(field),
    })
}

fn expression_of(field: Field) -> Result<&'static str, NoSyntax> {
    Ok(match field {
        Field::Ipv4Addr => "ip daddr",
        Field::Ipv6Addr => "ip6 daddr",
        Field::Protocol => "meta l4proto",
        Field::Port => "th dport",
        Field::Mark => "meta mark",
        Field::Interface => "iifname",
        Field::Number => "numgen random mod 65536",
        Field::Other(..) => return no_syntax(field),
    })
}

/// The elements of a set in the order given; ranges of one field in order of their keys.
///
/// # Errors
/// An element that is not of the set's type, or one that leads to a chain without a proper name.
pub fn elements<'a>(
    set: &Set,
    elements: impl IntoIterator<Item = &'a Element>,
) -> Result<Vec<String>, NoSyntax> {
    if let (true, [field]) = (set.interval, &set.key[..]) {
        let all: Vec<_> = elements.into_iter().cloned().collect();
        let ranges = ranges::ranges(&all).into_iter();
        let words = ranges.map(|(first, last)| range(*field, first.as_bytes(), last.as_bytes()));
        return words.collect();
    }
    let words = elements.into_iter();
    words.map(|element| self::element(set, element)).collect()
}

fn element(set: &Set, element: &Element) -> Text {
    let mut text = match &element.last {
        _ if element.catch_all => "*".to_owned(),
        None => value(&set.key, &element.key)?,
        Some(last) => {
            let (first, last) = (split(&set.key, &element.key)?, split(&set.key, last)?);
            let words = first.into_iter().zip(last);
            let words = words.map(|((field, first), (_, last))| range(field, first, last));
            words.collect::<Result<Vec<_>, _>>()?.join(" . ")
        }
    };
    if let Some(time) = element.timeout {
        let _ = write!(text, " timeout {}", duration(time));
    }
    if let Some(note) = &element.comment {
        let _ = write!(text, " {}", comment(note));
    }
    match (&element.data, &set.data) {
        (Data::None, MapData::None) => {}
        (Data::Verdict(verdict), MapData::Verdict) => {
            let _ = write!(text, " : {}", self::verdict(verdict)?);
        }
        (Data::Value(data), MapData::Value(fields)) => {
            let _ = write!(text, " : {}", value(fields, data)?);
        }
        (data, _) => return no_syntax(data),
    }
    Ok(text)
}

fn value(fields: &[Field], value: &Value) -> Text {
    let parts = split(fields, value)?.into_iter();
    let words: Result<Vec<_>, _> = parts.map(|(field, bytes)| single(field, bytes)).collect();
    Ok(words?.join(" . "))
}

/// The fields of a value: one is bare, each of several is padded to four bytes.
fn split<'a>(fields: &[Field], value: &'a Value) -> Result<Vec<(Field, &'a [u8])>, NoSyntax> {
    let mut rest = value.as_bytes();
    let mut parts = Vec::new();
    for field in fields {
        let len = usize::try_from(field.len()).unwrap_or(usize::MAX);
        let padded = match fields {
            [_] => len,
            _ => len.next_multiple_of(4),
        };
        let Some((part, behind)) = rest.split_at_checked(padded) else {
            return no_syntax(value);
        };
        parts.push((*field, &part[..len]));
        rest = behind;
    }
    Ok(parts)
}

/// One field.
fn single(field: Field, bytes: &[u8]) -> Text {
    Ok(match (field, bytes) {
        (Field::Protocol, [6]) => "tcp".to_owned(),
        (Field::Protocol, [17]) => "udp".to_owned(),
        (Field::Protocol, [132]) => "sctp".to_owned(),
        (Field::Protocol, [other]) => other.to_string(),
        (Field::Port, [high, low]) => u16::from_be_bytes([*high, *low]).to_string(),
        (Field::Mark, _) => format!("{:#010x}", word(bytes)?),
        (Field::Number, _) => word(bytes)?.to_string(),
        (Field::Interface, _) => interface(bytes)?,
        _ => address(bytes)?.to_string(),
    })
}

/// One field from one value to another, both included.
fn range(field: Field, first: &[u8], last: &[u8]) -> Text {
    if first == last {
        return single(field, first);
    }
    let differ = |(a, b): (&u8, &u8)| a ^ b;
    let wildcard: Vec<u8> = first.iter().zip(last).map(differ).collect();
    let begins_there = first.iter().zip(&wildcard).all(|(a, w)| a & w == 0);
    let mask: Vec<u8> = wildcard.iter().map(|byte| !byte).collect();
    let text = single(field, first)?;
    Ok(match prefix_length(&mask) {
        Some(length) if begins_there => format!("{text}/{length}"),
        _ => format!("{text}-{}", single(field, last)?),
    })
}

/// How many bits are ones before all are zeros.
fn prefix_length(mask: &[u8]) -> Option<u32> {
    let ones: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    let mut leading = 0;
    for byte in mask {
        leading += byte.leading_ones();
        if *byte != u8::MAX {
            break;
        }
    }
    (leading == ones).then_some(ones)
}

fn address(bytes: &[u8]) -> Result<IpAddr, NoSyntax> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Ok(four.into());
    }
    match <[u8; 16]>::try_from(bytes) {
        Ok(sixteen) => Ok(sixteen.into()),
        Err(_) => no_syntax(bytes),
    }
}

fn word(bytes: &[u8]) -> Result<u32, NoSyntax> {
    match bytes.try_into() {
        Ok(four) => Ok(u32::from_ne_bytes(four)),
        Err(_) => no_syntax(bytes),
    }
}

/// The name of an interface: a whole one in sixteen bytes, otherwise only its beginning.
fn interface(bytes: &[u8]) -> Text {
    let whole = bytes.len() == 16;
    let end = bytes.iter().position(|byte| *byte == 0);
    let name = &bytes[..end.unwrap_or(bytes.len())];
    match std::str::from_utf8(name) {
        Ok(name) if !name.contains(['"', '\\']) && !name.contains(char::is_control) => {
            Ok(match (whole, name.strip_suffix('*')) {
                (true, None) => format!("\"{name}\""),
                (true, Some(start)) => format!("\"{start}\\*\""),
                (false, _) => format!("\"{name}*\""),
            })
        }
        _ => no_syntax(Value::from_bytes(bytes)),
    }
}

fn verdict(verdict: &Verdict) -> Text {
    Ok(match verdict {
        Verdict::Accept => "accept".to_owned(),
        Verdict::Drop => "drop".to_owned(),
        Verdict::Continue => "continue".to_owned(),
        Verdict::Return => "return".to_owned(),
        Verdict::Jump(chain) => format!("jump {}", name(chain)?),
        Verdict::Goto(chain) => format!("goto {}", name(chain)?),
        Verdict::Break | Verdict::Other(_) => return no_syntax(verdict),
    })
}

fn duration(time: Duration) -> String {
    let mut rest = time.as_millis();
    let mut text = String::new();
    let units = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1_000, "s"),
        (1, "ms"),
    ];
    for (millis, unit) in units {
        if rest >= millis {
            let _ = write!(text, "{}{unit}", rest / millis);
            rest %= millis;
        }
    }
    if text.is_empty() {
        text.push_str("0s");
    }
    text
}

/// The lines that declare a chain, without its name and rules.
///
/// # Errors
/// A hook or a policy that is not ours.
pub fn chain(chain: &Chain) -> Result<Vec<String>, NoSyntax> {
    let mut lines = Vec::new();
    lines.extend(chain.comment.as_ref().map(comment));
    if let Some(base) = &chain.base {
        lines.push(base_chain(base)?);
    }
    Ok(lines)
}

fn base_chain(base: &BaseChain) -> Text {
    let hook = match base.hook {
        Hook::Prerouting => "prerouting",
        Hook::Input => "input",
        Hook::Forward => "forward",
        Hook::Output => "output",
        Hook::Postrouting => "postrouting",
        Hook::Other(_) => return no_syntax(base.hook),
    };
    let policy = match base.policy {
        Policy::Accept => "accept",
        Policy::Drop => "drop",
        Policy::Other(_) => return no_syntax(base.policy),
    };
    let kind = name(base.kind.as_str())?;
    let priority = priority(base.hook, base.priority);
    Ok(format!(
        "type {kind} hook {hook} priority {priority}; policy {policy};"
    ))
}

/// A priority by its name, or as a small distance from one that has a name.
fn priority(hook: Hook, priority: i32) -> String {
    let named = match hook {
        Hook::Prerouting => Some(("dstnat", -100)),
        Hook::Postrouting => Some(("srcnat", 100)),
        _ => None,
    };
    let named = named.into_iter().chain([("filter", 0)]);
    for (name, number) in named {
        match priority - number {
            0 => return name.to_owned(),
            distance @ 1..=10 => return format!("{name} + {distance}"),
            distance @ -10..=-1 => return format!("{name} - {}", -distance),
            _ => {}
        }
    }
    priority.to_string()
}

#[cfg(test)]
mod tests;
