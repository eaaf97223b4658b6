//! Expressions as the kernel reads them.

use super::super::compat::Extension;
use super::super::uapi::{LIST_ELEM, expr};
use super::{Expr, Found, Reg, Reject};
use crate::wire::Writer;

const VERDICT_REGISTER: u32 = 0;

impl Expr {
    /// Appends this expression to a list of expressions.
    pub(in crate::nft) fn write(&self, writer: &mut Writer) {
        writer.nest(LIST_ELEM, |writer| {
            writer.text(expr::NAME, self.name());
            if let Self::Unknown { data, .. } = self {
                let start = writer.begin_nest(expr::DATA);
                writer.raw(data);
                writer.end_nest(start);
            } else {
                writer.nest(expr::DATA, |writer| self.write_data(writer));
            }
        });
    }

    fn name(&self) -> &str {
        match self {
            Self::Payload { .. } => "payload",
            Self::Meta { .. } | Self::SetMeta { .. } => "meta",
            Self::Ct { .. } | Self::SetCt { .. } => "ct",
            Self::Cmp { .. } => "cmp",
            Self::Bitwise { .. } => "bitwise",
            Self::Lookup { .. } => "lookup",
            Self::Load { .. } | Self::Verdict(_) => "immediate",
            Self::Reject(_) => "reject",
            Self::Numgen { .. } => "numgen",
            Self::Hash { .. } => "hash",
            Self::Nat { .. } => "nat",
            Self::Masquerade { .. } => "masq",
            Self::Redirect { .. } => "redir",
            Self::Fib { .. } => "fib",
            Self::Dynset { .. } => "dynset",
            Self::Counter { .. } => "counter",
            Self::Match(_) => "match",
            Self::Target(_) => "target",
            Self::Unknown { name, .. } => name,
        }
    }

    fn write_data(&self, writer: &mut Writer) {
        match self {
            Self::Payload {
                base,
                offset,
                len,
                into,
            } => {
                reg(writer, expr::PAYLOAD_DREG, *into);
                writer.u32_be(expr::PAYLOAD_BASE, base.number());
                writer.u32_be(expr::PAYLOAD_OFFSET, *offset);
                writer.u32_be(expr::PAYLOAD_LEN, *len);
            }
            Self::Meta { key, into } => {
                writer.u32_be(expr::META_KEY, key.number());
                reg(writer, expr::META_DREG, *into);
            }
            Self::SetMeta { key, from } => {
                writer.u32_be(expr::META_KEY, key.number());
                reg(writer, expr::META_SREG, *from);
            }
            Self::Ct { key, into } => {
                writer.u32_be(expr::CT_KEY, key.number());
                reg(writer, expr::CT_DREG, *into);
            }
            Self::SetCt { key, from } => {
                writer.u32_be(expr::CT_KEY, key.number());
                reg(writer, expr::CT_SREG, *from);
            }
            Self::Cmp { op, reg: r, value } => {
                reg(writer, expr::CMP_SREG, *r);
                writer.u32_be(expr::CMP_OP, op.number());
                value.write(writer, expr::CMP_DATA);
            }
            Self::Lookup { set, key, found } => write_lookup(writer, set, *key, *found),
            Self::Load { value, into } => {
                reg(writer, expr::IMMEDIATE_DREG, *into);
                value.write(writer, expr::IMMEDIATE_DATA);
            }
            Self::Verdict(verdict) => {
                writer.u32_be(expr::IMMEDIATE_DREG, VERDICT_REGISTER);
                verdict.write(writer, expr::IMMEDIATE_DATA);
            }
            Self::Reject(reject) => write_reject(writer, *reject),
            Self::Masquerade { flags } => {
                if *flags != 0 {
                    writer.u32_be(expr::MASQ_FLAGS, *flags);
                }
            }
            Self::Redirect { port } => reg(writer, expr::REDIR_PROTO_MIN, *port),
            Self::Fib {
                result,
                flags,
                into,
            } => {
                writer.u32_be(expr::FIB_FLAGS, *flags);
                writer.u32_be(expr::FIB_RESULT, result.number());
                reg(writer, expr::FIB_DREG, *into);
            }
            Self::Counter { packets, bytes } => {
                writer.u64_be(expr::COUNTER_BYTES, *bytes);
                writer.u64_be(expr::COUNTER_PACKETS, *packets);
            }
            Self::Match(extension) | Self::Target(extension) => {
                write_extension(writer, extension);
            }
            Self::Bitwise { .. }
            | Self::Numgen { .. }
            | Self::Hash { .. }
            | Self::Nat { .. }
            | Self::Dynset { .. } => self.write_long_data(writer),
            Self::Unknown { .. } => {}
        }
    }

    /// The expressions with the most attributes.
    fn write_long_data(&self, writer: &mut Writer) {
        match self {
            Self::Bitwise {
                from,
                into,
                mask,
                xor,
            } => {
                reg(writer, expr::BITWISE_SREG, *from);
                reg(writer, expr::BITWISE_DREG, *into);
                let len = u32::try_from(mask.as_bytes().len()).expect("at most 64");
                writer.u32_be(expr::BITWISE_LEN, len);
                mask.write(writer, expr::BITWISE_MASK);
                xor.write(writer, expr::BITWISE_XOR);
            }
            Self::Numgen {
                kind,
                modulus,
                offset,
                into,
            } => {
                reg(writer, expr::NUMGEN_DREG, *into);
                writer.u32_be(expr::NUMGEN_MODULUS, *modulus);
                writer.u32_be(expr::NUMGEN_TYPE, kind.number());
                writer.u32_be(expr::NUMGEN_OFFSET, *offset);
            }
            Self::Hash {
                from,
                len,
                modulus,
                seed,
                offset,
                into,
            } => {
                reg(writer, expr::HASH_SREG, *from);
                reg(writer, expr::HASH_DREG, *into);
                writer.u32_be(expr::HASH_LEN, *len);
                writer.u32_be(expr::HASH_MODULUS, *modulus);
                writer.u32_be(expr::HASH_SEED, *seed);
                writer.u32_be(expr::HASH_OFFSET, *offset);
                writer.u32_be(expr::HASH_TYPE, 0);
            }
            Self::Nat {
                kind,
                family,
                address,
                port,
                flags,
            } => {
                writer.u32_be(expr::NAT_TYPE, kind.number());
                writer.u32_be(expr::NAT_FAMILY, family.number().into());
                if let Some(address) = address {
                    reg(writer, expr::NAT_ADDR_MIN, *address);
                }
                if let Some(port) = port {
                    reg(writer, expr::NAT_PROTO_MIN, *port);
                }
                if *flags != 0 {
                    writer.u32_be(expr::NAT_FLAGS, *flags);
                }
            }
            Self::Dynset {
                set,
                op,
                key,
                data,
                timeout,
            } => {
                writer.text(expr::DYNSET_SET_NAME, set);
                writer.u32_be(expr::DYNSET_OP, op.number());
                reg(writer, expr::DYNSET_SREG_KEY, *key);
                if let Some(data) = data {
                    reg(writer, expr::DYNSET_SREG_DATA, *data);
                }
                if let Some(timeout) = timeout {
                    let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                    writer.u64_be(expr::DYNSET_TIMEOUT, millis);
                }
            }
            _ => {}
        }
    }
}

fn reg(writer: &mut Writer, kind: u16, reg: Reg) {
    writer.u32_be(kind, reg.number());
}

fn write_lookup(writer: &mut Writer, set: &str, key: Reg, found: Found) {
    writer.text(expr::LOOKUP_SET, set);
    reg(writer, expr::LOOKUP_SREG, key);
    match found {
        Found::Present => {}
        Found::Absent => writer.u32_be(expr::LOOKUP_FLAGS, expr::LOOKUP_F_INV),
        Found::Value(into) => reg(writer, expr::LOOKUP_DREG, into),
        Found::Verdict => writer.u32_be(expr::LOOKUP_DREG, VERDICT_REGISTER),
    }
}

fn write_extension(writer: &mut Writer, extension: &Extension) {
    writer.text(expr::EXTENSION_NAME, &extension.name);
    writer.u32_be(expr::EXTENSION_REVISION, extension.revision);
    writer.attr(expr::EXTENSION_INFO, &extension.info);
}

fn write_reject(writer: &mut Writer, reject: Reject) {
    let (kind, code) = match reject {
        Reject::Unreachable(code) => (0, Some(code)),
        Reject::Reset => (1, None),
        Reject::UnreachableBoth(code) => (2, Some(code)),
    };
    writer.u32_be(expr::REJECT_TYPE, kind);
    if let Some(code) = code {
        writer.u8(expr::REJECT_CODE, code);
    }
}
