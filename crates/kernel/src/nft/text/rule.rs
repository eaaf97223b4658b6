//! Rules in the words of `nft`.
//!
//! A rule is run without a packet: registers hold the words for what would be in them. Since
//! `nft` has no registers, what was loaded can be used once, and must be.

use super::super::chain::Rule;
use super::super::expr::{
    ADDRESS_LOCAL, Base, CT_REPLY, CmpOp, CtKey, DynsetOp, Expr, FIB_DESTINATION, FIB_SOURCE,
    FibResult, Found, MetaKey, NatKind, NumgenKind, Reg, Reject,
};
use super::super::set::Field;
use super::super::value::{Name, Value};
use super::{
    NoSyntax, Text, address, comment, duration, family, interface, name, no_syntax, prefix_length,
    single, verdict, word,
};
use crate::Family;

/// A rule of a table of this family.
///
/// # Errors
/// An expression, or a use of registers, for which `nft` has no words.
pub fn rule(rule: &Rule, family: Family) -> Text {
    let mut reading = Reading {
        family,
        registers: std::array::from_fn(|_| None),
        words: Vec::new(),
    };
    for expr in &rule.expressions {
        reading.expression(expr)?;
    }
    if reading.registers.iter().any(Option::is_some) {
        return no_syntax(&rule.expressions);
    }
    reading.words.extend(rule.comment.as_ref().map(comment));
    Ok(reading.words.join(" "))
}

/// A rule, read so far.
struct Reading {
    family: Family,
    registers: [Option<Term>; 16],
    words: Vec<String>,
}

/// What is in a register and those behind it.
#[derive(Clone, Debug)]
struct Term {
    words: String,
    meaning: Meaning,
    /// `& mask ^ xor`, if that was done.
    changed: Option<(Value, Value)>,
}

#[derive(Clone, Debug)]
enum Meaning {
    Field(Field),
    /// The first bytes of an address.
    Beginning(Family),
    State,
    Status,
    Direction,
    AddressType,
    Constant(Value),
    /// What a map led to.
    Found,
}

impl Term {
    fn new(words: impl Into<String>, meaning: Meaning) -> Self {
        Self {
            words: words.into(),
            meaning,
            changed: None,
        }
    }

    /// Registers that it fills.
    fn width(&self) -> usize {
        match &self.meaning {
            Meaning::Field(Field::Ipv6Addr | Field::Interface) => 4,
            Meaning::Constant(value) => value.as_bytes().len().div_ceil(4),
            _ => 1,
        }
    }
}

impl Reading {
    fn expression(&mut self, expr: &Expr) -> Result<(), NoSyntax> {
        match expr {
            Expr::Payload { into, .. }
            | Expr::Meta { into, .. }
            | Expr::Ct { into, .. }
            | Expr::Numgen { into, .. }
            | Expr::Load { into, .. }
            | Expr::Fib { into, .. } => {
                let term = self.loaded(expr)?;
                self.put(*into, term);
            }
            Expr::Hash {
                from, into, offset, ..
            } => {
                let (Expr::Hash { modulus, seed, .. }, 0) = (expr, offset) else {
                    return no_syntax(expr);
                };
                let hashed = self.take(*from)?.words;
                let words = format!("jhash {hashed} mod {modulus} seed {seed:#x}");
                self.put(*into, Term::new(words, Meaning::Field(Field::Number)));
            }
            Expr::Bitwise {
                from,
                into,
                mask,
                xor,
            } => {
                let mut term = self.take(*from)?;
                if term.changed.replace((*mask, *xor)).is_some() {
                    return no_syntax(expr);
                }
                self.put(*into, term);
            }
            Expr::Cmp { op, reg, value } => {
                let term = self.take(*reg)?;
                self.words.push(comparison(&term, *op, value)?);
            }
            Expr::SetMeta {
                key: MetaKey::Mark,
                from,
            } => self.set_mark("meta mark", *from)?,
            Expr::SetCt {
                key: CtKey::Mark,
                from,
            } => self.set_mark("ct mark", *from)?,
            Expr::Lookup { set, key, found } => self.lookup(set, *key, *found)?,
            Expr::Nat { .. } => self.nat(expr)?,
            Expr::Redirect { port } => {
                let term = self.take(*port)?;
                let Meaning::Found = term.meaning else {
                    return no_syntax(expr);
                };
                self.words.push(format!("redirect to :{}", term.words));
            }
            Expr::Dynset { .. } => self.dynset(expr)?,
            _ => self.words.push(act(expr, self.family)?),
        }
        Ok(())
    }

    fn put(&mut self, register: Reg, term: Term) {
        self.registers[usize::from(register.index())] = Some(term);
    }

    fn take(&mut self, register: Reg) -> Result<Term, NoSyntax> {
        match self.registers[usize::from(register.index())].take() {
            Some(term) => Ok(term),
            None => no_syntax(format!("register {} used again", register.index())),
        }
    }

    /// The terms from a register on, as one key.
    fn key(&mut self, register: Reg) -> Text {
        let mut at = usize::from(register.index());
        let mut words = Vec::new();
        while let Some(term) = self.registers.get_mut(at).and_then(Option::take) {
            if term.changed.is_some() {
                return no_syntax(term);
            }
            at += term.width();
            words.push(term.words);
        }
        if words.is_empty() {
            return no_syntax(format!("register {} used again", register.index()));
        }
        Ok(words.join(" . "))
    }

    /// What an expression loads.
    fn loaded(&self, expr: &Expr) -> Result<Term, NoSyntax> {
        let field = |words: &str, field| Ok(Term::new(words, Meaning::Field(field)));
        match expr {
            Expr::Payload { .. } => payload(expr, self.family),
            Expr::Meta { key, .. } => match key {
                MetaKey::Mark => field("meta mark", Field::Mark),
                MetaKey::InputName => field("iifname", Field::Interface),
                MetaKey::OutputName => field("oifname", Field::Interface),
                MetaKey::Protocol => field("meta l4proto", Field::Protocol),
                MetaKey::Other(_) => no_syntax(expr),
            },
            Expr::Ct { key, .. } => match key {
                CtKey::State => Ok(Term::new("ct state", Meaning::State)),
                CtKey::Status => Ok(Term::new("ct status", Meaning::Status)),
                CtKey::Direction => Ok(Term::new("ct direction", Meaning::Direction)),
                CtKey::Mark => field("ct mark", Field::Mark),
                CtKey::Other(_) => no_syntax(expr),
            },
            Expr::Numgen {
                kind,
                modulus,
                offset,
                ..
            } => {
                let how = match kind {
                    NumgenKind::Random => "random",
                    NumgenKind::Incremental => "inc",
                    NumgenKind::Other(_) => return no_syntax(expr),
                };
                let offset = match offset {
                    0 => String::new(),
                    offset => format!(" offset {offset}"),
                };
                field(
                    &format!("numgen {how} mod {modulus}{offset}"),
                    Field::Number,
                )
            }
            Expr::Fib { result, flags, .. } => match (result, *flags) {
                (FibResult::AddressType, FIB_SOURCE) => {
                    Ok(Term::new("fib saddr type", Meaning::AddressType))
                }
                (FibResult::AddressType, FIB_DESTINATION) => {
                    Ok(Term::new("fib daddr type", Meaning::AddressType))
                }
                _ => no_syntax(expr),
            },
            Expr::Load { value, .. } => Ok(Term::new("", Meaning::Constant(*value))),
            _ => no_syntax(expr),
        }
    }

    fn set_mark(&mut self, mark: &str, from: Reg) -> Result<(), NoSyntax> {
        let term = self.take(from)?;
        let words = match (&term.meaning, &term.changed) {
            (Meaning::Constant(value), None) => {
                format!("{mark} set {:#010x}", word(value.as_bytes())?)
            }
            (Meaning::Field(Field::Mark), Some((kept, xor))) => {
                let (bits, xor) = (word(kept.as_bytes())?, word(xor.as_bytes())?);
                let how = match bits {
                    u32::MAX => "^",
                    _ if bits == !xor => "|",
                    _ => return no_syntax(term),
                };
                format!("{mark} set {} {how} {xor:#010x}", term.words)
            }
            _ => return no_syntax(term),
        };
        self.words.push(words);
        Ok(())
    }

    fn lookup(&mut self, set: &Name, key: Reg, found: Found) -> Result<(), NoSyntax> {
        let (key, set) = (self.key(key)?, name(set)?);
        match found {
            Found::Present => self.words.push(format!("{key} @{set}")),
            Found::Absent => self.words.push(format!("{key} != @{set}")),
            Found::Verdict => self.words.push(format!("{key} vmap @{set}")),
            Found::Value(into) => {
                let words = format!("{key} map @{set}");
                self.put(into, Term::new(words, Meaning::Found));
            }
        }
        Ok(())
    }

    fn nat(&mut self, expr: &Expr) -> Result<(), NoSyntax> {
        let Expr::Nat {
            kind,
            family: of,
            address: Some(from),
            port: Some(port),
            flags: 0,
        } = expr
        else {
            return no_syntax(expr);
        };
        let verb = match kind {
            NatKind::Source => "snat",
            NatKind::Destination => "dnat",
            NatKind::Other(_) => return no_syntax(expr),
        };
        let behind = u32::from(from.index()) * 4 + of.address_len();
        let found = |term: &Option<Term>| matches!(term, Some(term) if matches!(term.meaning, Meaning::Found));
        let port_is_found = found(&self.registers[usize::from(port.index())]);
        let term = self.take(*from)?;
        let words = match term.meaning {
            // The port lies behind the address, as the map has it.
            Meaning::Found if u32::from(port.index()) * 4 == behind => {
                format!("{verb} {} to {}", family(*of), term.words)
            }
            Meaning::Constant(ip) if port_is_found => {
                let port = self.take(*port)?.words;
                match *of {
                    Family::V4 => format!("{verb} to {}:{port}", address(ip.as_bytes())?),
                    Family::V6 => format!("{verb} to [{}]:{port}", address(ip.as_bytes())?),
                }
            }
            Meaning::Constant(ip) => {
                let Meaning::Constant(port) = self.take(*port)?.meaning else {
                    return no_syntax(expr);
                };
                let port = single(Field::Port, port.as_bytes())?;
                match *of {
                    Family::V4 => format!("{verb} to {}:{port}", address(ip.as_bytes())?),
                    Family::V6 => format!("{verb} to [{}]:{port}", address(ip.as_bytes())?),
                }
            }
            _ => return no_syntax(expr),
        };
        self.words.push(words);
        Ok(())
    }

    fn dynset(&mut self, expr: &Expr) -> Result<(), NoSyntax> {
        let Expr::Dynset {
            set,
            op,
            key,
            data: None,
            timeout,
        } = expr
        else {
            return no_syntax(expr);
        };
        let verb = match op {
            DynsetOp::Add => "add",
            DynsetOp::Update => "update",
            DynsetOp::Delete => "delete",
            DynsetOp::Other(_) => return no_syntax(expr),
        };
        let (key, set) = (self.key(*key)?, name(set)?);
        let time = timeout.map_or_else(String::new, |time| format!(" timeout {}", duration(time)));
        self.words.push(format!("{verb} @{set} {{ {key}{time} }}"));
        Ok(())
    }
}

/// What an expression loads from a packet.
fn payload(expr: &Expr, of: Family) -> Result<Term, NoSyntax> {
    let Expr::Payload {
        base, offset, len, ..
    } = expr
    else {
        return no_syntax(expr);
    };
    let source = match of {
        Family::V4 => 12,
        Family::V6 => 8,
    };
    let name = family(of);
    let words = match (base, offset) {
        (Base::Network, at) if *at == source => format!("{name} saddr"),
        (Base::Network, at) if *at == source + of.address_len() => format!("{name} daddr"),
        (Base::Transport, 0) if *len == 2 => "th sport".to_owned(),
        (Base::Transport, 2) if *len == 2 => "th dport".to_owned(),
        _ => return no_syntax(expr),
    };
    let meaning = match base {
        Base::Transport => Meaning::Field(Field::Port),
        _ if *len == of.address_len() => Meaning::Field(Field::address(of)),
        _ if *len < of.address_len() => Meaning::Beginning(of),
        _ => return no_syntax(expr),
    };
    Ok(Term::new(words, meaning))
}

fn comparison(term: &Term, op: CmpOp, value: &Value) -> Text {
    let words = &term.words;
    let bytes = value.as_bytes();
    let sign = match op {
        CmpOp::Equal => "",
        CmpOp::NotEqual => "!= ",
        CmpOp::Less => "< ",
        CmpOp::LessOrEqual => "<= ",
        CmpOp::Greater => "> ",
        CmpOp::GreaterOrEqual => ">= ",
        CmpOp::Other(_) => return no_syntax(op),
    };
    let right = match (&term.meaning, &term.changed) {
        (Meaning::State | Meaning::Status, Some((mask, _))) => {
            // Any of these bits is set.
            if (op, word(bytes)?) != (CmpOp::NotEqual, 0) {
                return no_syntax(term);
            }
            return Ok(format!("{words} {}", bits(term, word(mask.as_bytes())?)?));
        }
        (Meaning::Field(Field::Mark), Some((mask, _))) => {
            let (mask, value) = (word(mask.as_bytes())?, word(bytes)?);
            let sign = if op == CmpOp::Equal { "== " } else { sign };
            return Ok(format!("{words} & {mask:#010x} {sign}{value:#010x}"));
        }
        (Meaning::Field(Field::Ipv4Addr | Field::Ipv6Addr), Some((mask, _))) => {
            let Some(length) = prefix_length(mask.as_bytes()) else {
                return no_syntax(term);
            };
            format!("{}/{length}", address(bytes)?)
        }
        (Meaning::Beginning(family), None) => {
            let mut whole = bytes.to_vec();
            whole.resize(family.address_len() as usize, 0);
            format!("{}/{}", address(&whole)?, bytes.len() * 8)
        }
        (Meaning::Direction, None) if bytes == [CT_REPLY] => "reply".to_owned(),
        (Meaning::AddressType, None) if word(bytes)? == ADDRESS_LOCAL => "local".to_owned(),
        (Meaning::Field(Field::Interface), None) => interface(bytes)?,
        (Meaning::Field(field), None) => single(*field, bytes)?,
        _ => return no_syntax(term),
    };
    Ok(format!("{words} {sign}{right}"))
}

/// States of a connection by name.
fn bits(term: &Term, bits: u32) -> Text {
    let names: &[(u32, &str)] = match term.meaning {
        Meaning::State => &[
            (1, "invalid"),
            (2, "established"),
            (4, "related"),
            (8, "new"),
        ],
        _ => &[(0x10, "snat"), (0x20, "dnat")],
    };
    let set = names.iter().filter(|(bit, _)| bits & bit != 0);
    let known: u32 = set.clone().map(|(bit, _)| bit).sum();
    if known != bits {
        return no_syntax(term);
    }
    let set: Vec<_> = set.map(|(_, name)| *name).collect();
    Ok(set.join(","))
}

/// What needs no register.
fn act(expr: &Expr, family: Family) -> Text {
    Ok(match expr {
        Expr::Verdict(what) => verdict(what)?,
        Expr::Reject(Reject::Reset) => "reject with tcp reset".to_owned(),
        Expr::Reject(reject) if *reject == Reject::port_unreachable(family) => "reject".to_owned(),
        Expr::Counter { packets, bytes } => format!("counter packets {packets} bytes {bytes}"),
        Expr::Masquerade { flags } => match *flags {
            0 => "masquerade".to_owned(),
            super::expr::NAT_FULLY_RANDOM => "masquerade fully-random".to_owned(),
            _ => return no_syntax(expr),
        },
        _ => return no_syntax(expr),
    })
}
