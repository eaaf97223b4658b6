//! What a set's key is, said as the expressions that make it, for `nft` to show.
//!
//! A plain number has no type that could be declared; `typeof numgen random mod 65536` can. The
//! numbers below are those of `nft`, which keeps them stable because rule sets outlive it.

use super::Field;
use crate::nft::uapi::user::{TYPEOF_DATA, TYPEOF_EXPR};

const PAYLOAD: u32 = 7;
const META: u32 = 9;
const CONCAT: u32 = 13;
const NUMGEN: u32 = 23;

/// Protocols and their fields, in `nft`'s numbers.
const IP_DADDR: [u32; 2] = [12, 12];
const IP6_DADDR: [u32; 2] = [13, 9];
const TH_DPORT: [u32; 2] = [11, 2];

const META_MARK: u32 = 3;
const META_IIFNAME: u32 = 6;
const META_L4PROTO: u32 = 16;

/// Random, below 65536, from 0.
const NUMGEN_RANDOM: [u32; 3] = [1, 65536, 0];

/// Whether one of the fields can be shown only so.
pub fn is_needed(fields: &[Field]) -> bool {
    fields.contains(&Field::Number)
}

/// The description, or nothing where one of the fields has none.
pub fn describe(kind: u8, fields: &[Field]) -> Vec<u8> {
    let Some(parts) = fields.iter().copied().map(expression).collect() else {
        return Vec::new();
    };
    let parts: Vec<Vec<u8>> = parts;
    let described = match parts.as_slice() {
        [only] => only.clone(),
        several => {
            let numbered = (0..).zip(several);
            let content = numbered.flat_map(|(index, part)| tlv(index, part));
            typed(CONCAT, &content.collect::<Vec<_>>())
        }
    };
    tlv(kind, &described)
}

fn expression(field: Field) -> Option<Vec<u8>> {
    Some(match field {
        Field::Ipv4Addr => typed(PAYLOAD, &numbers(&IP_DADDR)),
        Field::Ipv6Addr => typed(PAYLOAD, &numbers(&IP6_DADDR)),
        Field::Port => typed(PAYLOAD, &numbers(&TH_DPORT)),
        Field::Protocol => typed(META, &numbers(&[META_L4PROTO])),
        Field::Mark => typed(META, &numbers(&[META_MARK])),
        Field::Interface => typed(META, &numbers(&[META_IIFNAME])),
        Field::Number => typed(NUMGEN, &numbers(&NUMGEN_RANDOM)),
        Field::Other(..) => return None,
    })
}

fn typed(kind: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = tlv(TYPEOF_EXPR, &kind.to_ne_bytes());
    bytes.extend(tlv(TYPEOF_DATA, content));
    bytes
}

/// One part per number, in order.
fn numbers(numbers: &[u32]) -> Vec<u8> {
    let numbered = (0..).zip(numbers);
    numbered
        .flat_map(|(index, number)| tlv(index, &number.to_ne_bytes()))
        .collect()
}

fn tlv(kind: u8, payload: &[u8]) -> Vec<u8> {
    let len = u8::try_from(payload.len()).expect("a handful of fields");
    let mut bytes = vec![kind, len];
    bytes.extend_from_slice(payload);
    bytes
}
