//! Expressions as the kernel describes them.
//!
//! Attributes that we do not know are skipped; an expression that cannot be said in our types is
//! kept as it is.

use std::time::Duration;

use super::super::compat::Extension;
use super::super::uapi::expr;
use super::super::value::{Data, Name, Value};
use super::{
    Base, CmpOp, CtKey, DynsetOp, Expr, FibResult, Found, MetaKey, NatKind, NumgenKind, Reg, Reject,
};
use crate::Family;
use crate::wire::{Attribute, Malformed};

/// More attributes than any expression has.
const MOST: usize = 16;

/// The attributes of one expression, by kind.
struct Given<'a>([Option<Attribute<'a>>; MOST]);

impl<'a> Given<'a> {
    fn read(attr: &Attribute<'a>) -> Result<Self, Malformed> {
        let mut given = [None; MOST];
        for attr in attr.nested() {
            let attr = attr?;
            if let Some(place) = given.get_mut(usize::from(attr.kind)) {
                *place = Some(attr);
            }
        }
        Ok(Self(given))
    }

    fn get(&self, kind: u16) -> Option<&Attribute<'a>> {
        self.0.get(usize::from(kind))?.as_ref()
    }

    fn need(&self, kind: u16) -> Result<&Attribute<'a>, Malformed> {
        self.get(kind)
            .ok_or(Malformed("expression: missing attribute"))
    }

    fn number(&self, kind: u16) -> Result<u32, Malformed> {
        self.need(kind)?.u32_be()
    }

    fn number_or(&self, kind: u16, default: u32) -> Result<u32, Malformed> {
        self.get(kind).map_or(Ok(default), Attribute::u32_be)
    }

    fn reg(&self, kind: u16) -> Result<Reg, Malformed> {
        Reg::from_number(self.number(kind)?)
    }

    fn reg_or_none(&self, kind: u16) -> Result<Option<Reg>, Malformed> {
        self.get(kind).map(|_| self.reg(kind)).transpose()
    }

    fn value(&self, kind: u16) -> Result<Value, Malformed> {
        Value::read(self.need(kind)?)
    }

    fn name(&self, kind: u16) -> Result<Name, Malformed> {
        self.need(kind).map(|attr| attr.text().into())
    }
}

impl Expr {
    /// Reads one element of a list of expressions.
    pub(in crate::nft) fn read(attr: &Attribute<'_>) -> Result<Self, Malformed> {
        let (mut name, mut data) = (None, None);
        for attr in attr.nested() {
            let attr = attr?;
            match attr.kind {
                expr::NAME => name = Some(attr.text()),
                expr::DATA => data = Some(attr),
                _ => {}
            }
        }
        let name = name.ok_or(Malformed("expression: no name"))?;
        let data = data.unwrap_or(Attribute {
            kind: expr::DATA,
            payload: &[],
        });
        let known = Self::read_known(&name, &Given::read(&data)?)?;
        Ok(known.unwrap_or_else(|| Self::Unknown {
            name: name.into(),
            data: data.payload.into(),
        }))
    }

    /// Whether this has no effect: `nft` turns the bytes of numbers in ranges even where there is
    /// only one.
    pub(in crate::nft) fn is_idle(&self) -> bool {
        let Self::Unknown { name, data } = self else {
            return false;
        };
        let attr = Attribute {
            kind: expr::DATA,
            payload: data,
        };
        let turned = Given::read(&attr).and_then(|given| {
            let size = given.number(expr::BYTEORDER_SIZE)?;
            Ok(given.number(expr::BYTEORDER_LEN)? >= size)
        });
        **name == *"byteorder" && turned == Ok(false)
    }

    /// `None` if this cannot be said in our types.
    fn read_known(name: &str, given: &Given<'_>) -> Result<Option<Self>, Malformed> {
        Ok(Some(match name {
            "payload" => match given.get(expr::PAYLOAD_DREG) {
                Some(_) => Self::Payload {
                    base: Base::from_number(given.number(expr::PAYLOAD_BASE)?),
                    offset: given.number(expr::PAYLOAD_OFFSET)?,
                    len: given.number(expr::PAYLOAD_LEN)?,
                    into: given.reg(expr::PAYLOAD_DREG)?,
                },
                None => return Ok(None),
            },
            "meta" => {
                let key = MetaKey::from_number(given.number(expr::META_KEY)?);
                match given.reg_or_none(expr::META_SREG)? {
                    Some(from) => Self::SetMeta { key, from },
                    None => Self::Meta {
                        key,
                        into: given.reg(expr::META_DREG)?,
                    },
                }
            }
            "ct" if given.get(expr::CT_DIRECTION).is_none() => {
                let key = CtKey::from_number(given.number(expr::CT_KEY)?);
                match given.reg_or_none(expr::CT_SREG)? {
                    Some(from) => Self::SetCt { key, from },
                    None => Self::Ct {
                        key,
                        into: given.reg(expr::CT_DREG)?,
                    },
                }
            }
            "cmp" => Self::Cmp {
                op: CmpOp::from_number(given.number(expr::CMP_OP)?),
                reg: given.reg(expr::CMP_SREG)?,
                value: given.value(expr::CMP_DATA)?,
            },
            "bitwise" if given.number_or(expr::BITWISE_OP, 0)? == 0 => Self::Bitwise {
                from: given.reg(expr::BITWISE_SREG)?,
                into: given.reg(expr::BITWISE_DREG)?,
                mask: given.value(expr::BITWISE_MASK)?,
                xor: given.value(expr::BITWISE_XOR)?,
            },
            "lookup" => read_lookup(given)?,
            "immediate" => match Data::read(given.need(expr::IMMEDIATE_DATA)?)? {
                Data::Verdict(verdict) => Self::Verdict(verdict),
                Data::Value(value) => Self::Load {
                    value,
                    into: given.reg(expr::IMMEDIATE_DREG)?,
                },
                Data::None => return Err(Malformed("expression: no data")),
            },
            "reject" => match read_reject(given)? {
                Some(reject) => Self::Reject(reject),
                None => return Ok(None),
            },
            "numgen" => Self::Numgen {
                kind: NumgenKind::from_number(given.number(expr::NUMGEN_TYPE)?),
                modulus: given.number(expr::NUMGEN_MODULUS)?,
                offset: given.number_or(expr::NUMGEN_OFFSET, 0)?,
                into: given.reg(expr::NUMGEN_DREG)?,
            },
            "hash" if given.number_or(expr::HASH_TYPE, 0)? == 0 => Self::Hash {
                from: given.reg(expr::HASH_SREG)?,
                len: given.number(expr::HASH_LEN)?,
                modulus: given.number(expr::HASH_MODULUS)?,
                seed: given.number_or(expr::HASH_SEED, 0)?,
                offset: given.number_or(expr::HASH_OFFSET, 0)?,
                into: given.reg(expr::HASH_DREG)?,
            },
            "nat" => return read_nat(given),
            "masq" if given.get(expr::MASQ_PROTO_MIN).is_none() => Self::Masquerade {
                flags: given.number_or(expr::MASQ_FLAGS, 0)?,
            },
            "redir" => return read_redirect(given),
            "fib" => Self::Fib {
                result: FibResult::from_number(given.number(expr::FIB_RESULT)?),
                flags: given.number(expr::FIB_FLAGS)?,
                into: given.reg(expr::FIB_DREG)?,
            },
            "dynset" => return read_dynset(given),
            "counter" => Self::Counter {
                packets: given.need(expr::COUNTER_PACKETS)?.u64_be()?,
                bytes: given.need(expr::COUNTER_BYTES)?.u64_be()?,
            },
            "match" => Self::Match(read_extension(given)?),
            "target" => Self::Target(read_extension(given)?),
            _ => return Ok(None),
        }))
    }
}

fn read_lookup(given: &Given<'_>) -> Result<Expr, Malformed> {
    let inverted = given.number_or(expr::LOOKUP_FLAGS, 0)? & expr::LOOKUP_F_INV != 0;
    let found = match given.get(expr::LOOKUP_DREG) {
        None if inverted => Found::Absent,
        None => Found::Present,
        Some(attr) => match attr.u32_be()? {
            0 => Found::Verdict,
            number => Found::Value(Reg::from_number(number)?),
        },
    };
    Ok(Expr::Lookup {
        set: given.name(expr::LOOKUP_SET)?,
        key: given.reg(expr::LOOKUP_SREG)?,
        found,
    })
}

fn read_extension(given: &Given<'_>) -> Result<Extension, Malformed> {
    Ok(Extension {
        name: given.need(expr::EXTENSION_NAME)?.text().into_owned().into(),
        revision: given.number(expr::EXTENSION_REVISION)?,
        info: given.need(expr::EXTENSION_INFO)?.payload.into(),
    })
}

fn read_reject(given: &Given<'_>) -> Result<Option<Reject>, Malformed> {
    let code = || given.need(expr::REJECT_CODE)?.u8();
    Ok(match given.number(expr::REJECT_TYPE)? {
        0 => Some(Reject::Unreachable(code()?)),
        1 => Some(Reject::Reset),
        2 => Some(Reject::UnreachableBoth(code()?)),
        _ => None,
    })
}

fn read_nat(given: &Given<'_>) -> Result<Option<Expr>, Malformed> {
    // The kernel adds these by itself when an address or a port is given.
    const IMPLIED: u32 = 0x3;
    // It also answers ranges from x to x where x was asked for. Real ranges are not ours.
    let single = |min, max| -> Result<Option<Option<Reg>>, Malformed> {
        let (min, max) = (given.reg_or_none(min)?, given.reg_or_none(max)?);
        Ok((max.is_none() || min == max).then_some(min))
    };
    let family = given.number(expr::NAT_FAMILY)?;
    let family = u8::try_from(family).ok().and_then(Family::from_number);
    let address = single(expr::NAT_ADDR_MIN, expr::NAT_ADDR_MAX)?;
    let port = single(expr::NAT_PROTO_MIN, expr::NAT_PROTO_MAX)?;
    let (Some(family), Some(address), Some(port)) = (family, address, port) else {
        return Ok(None);
    };
    Ok(Some(Expr::Nat {
        kind: NatKind::from_number(given.number(expr::NAT_TYPE)?),
        family,
        address,
        port,
        flags: given.number_or(expr::NAT_FLAGS, 0)? & !IMPLIED,
    }))
}

/// `None` if this goes to one of several ports, or to the port that it had.
fn read_redirect(given: &Given<'_>) -> Result<Option<Expr>, Malformed> {
    // The kernel adds it by itself when a port is given.
    const IMPLIED: u32 = 0x2;
    let (first, last) = (
        given.reg_or_none(expr::REDIR_PROTO_MIN)?,
        given.reg_or_none(expr::REDIR_PROTO_MAX)?,
    );
    let plain = given.number_or(expr::REDIR_FLAGS, 0)? & !IMPLIED == 0;
    let single = plain && (last.is_none() || first == last);
    Ok(first.filter(|_| single).map(|port| Expr::Redirect { port }))
}

fn read_dynset(given: &Given<'_>) -> Result<Option<Expr>, Malformed> {
    let beyond_us = [expr::DYNSET_EXPR, expr::DYNSET_EXPRESSIONS]
        .iter()
        .any(|kind| given.get(*kind).is_some());
    if beyond_us || given.number_or(expr::DYNSET_FLAGS, 0)? != 0 {
        return Ok(None);
    }
    let timeout = given.get(expr::DYNSET_TIMEOUT);
    let millis = timeout.map_or(Ok(0), Attribute::u64_be)?;
    Ok(Some(Expr::Dynset {
        set: given.name(expr::DYNSET_SET_NAME)?,
        op: DynsetOp::from_number(given.number(expr::DYNSET_OP)?),
        key: given.reg(expr::DYNSET_SREG_KEY)?,
        data: given.reg_or_none(expr::DYNSET_SREG_DATA)?,
        timeout: (millis > 0).then(|| Duration::from_millis(millis)),
    }))
}
