//! The endpoints behind one Service port, from all its slices, each once and in order.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::{Family, Port, Protocol, Slice, SliceEndpoint};

/// An endpoint of a slice with the port it answers on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) endpoint: &'a SliceEndpoint,
    pub(super) port: Port,
    pub(super) slice: &'a Slice,
}

/// Candidates in text order, and those that lost against another entry for the same `ip:port`.
pub(super) struct Gathered<'a> {
    pub(super) candidates: Vec<Candidate<'a>>,
    pub(super) duplicates: Vec<Candidate<'a>>,
}

/// Collects the endpoints of the slices' ports with this name and protocol.
pub(super) fn gather<'a>(
    slices: &'a [Arc<Slice>],
    family: Family,
    name: &str,
    protocol: Protocol,
) -> Gathered<'a> {
    let mut found: Vec<(TextKey, Candidate<'a>)> = Vec::new();
    for slice in slices.iter().filter(|slice| slice.family == family) {
        let matching = slice
            .ports
            .iter()
            .filter(|port| *port.name == *name && port.protocol == protocol);
        for port in matching {
            found.extend(slice.endpoints.iter().map(|endpoint| {
                let candidate = Candidate {
                    endpoint,
                    port: port.port,
                    slice,
                };
                (text_key(endpoint.ip, port.port), candidate)
            }));
        }
    }
    // Stable: among equals the slices' own order decides, which does not depend on arrival.
    found.sort_by_key(|(key, _)| *key);
    let mut candidates: Vec<Candidate<'a>> = Vec::with_capacity(found.len());
    let mut duplicates = Vec::new();
    let mut last = None;
    for (key, candidate) in found {
        match candidates.last_mut() {
            Some(kept) if last == Some(key) => {
                if preference(candidate.endpoint) > preference(kept.endpoint) {
                    duplicates.push(std::mem::replace(kept, candidate));
                } else {
                    duplicates.push(candidate);
                }
            }
            _ => candidates.push(candidate),
        }
        last = Some(key);
    }
    Gathered {
        candidates,
        duplicates,
    }
}

/// Which of two entries for the same `ip:port` counts. While an endpoint moves between
/// slices both may name it; the one that is not shutting down is the newer.
fn preference(endpoint: &SliceEndpoint) -> (bool, bool, bool, bool) {
    (
        !endpoint.terminating,
        endpoint.ready,
        endpoint.serving,
        endpoint.local,
    )
}

/// Orders endpoints as the text `ip:port` does, byte by byte.
///
/// kube-proxy sorts by that text, so iptables rules come in this order and
/// `10.0.0.10:80` stands before `10.0.0.2:80`.
pub(super) type TextKey = [u128; 3];

/// The [`TextKey`] of an endpoint.
pub(super) fn text_key(ip: IpAddr, port: Port) -> TextKey {
    let mut text = Text {
        bytes: [0; 48],
        len: 0,
    };
    match ip {
        IpAddr::V4(ip) => {
            for (position, octet) in ip.octets().into_iter().enumerate() {
                if position > 0 {
                    text.push(b'.');
                }
                text.push_number(octet.into());
            }
            text.push(b':');
        }
        IpAddr::V6(ip) => write!(text, "[{ip}]:").expect("39 characters and brackets fit"),
    }
    text.push_number(port.get());
    let word = |at: usize| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&text.bytes[at..at + 16]);
        u128::from_be_bytes(bytes)
    };
    [word(0), word(16), word(32)]
}

/// Text on the stack: 47 bytes are the longest `[ip]:port`.
struct Text {
    bytes: [u8; 48],
    len: usize,
}

impl Text {
    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn push_number(&mut self, number: u16) {
        let mut divisor = 10_000;
        while divisor > 1 && number / divisor == 0 {
            divisor /= 10;
        }
        while divisor > 0 {
            let digit = u8::try_from(number / divisor % 10).expect("a digit is below ten");
            self.push(b'0' + digit);
            divisor /= 10;
        }
    }
}

impl std::fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.len + text.len();
        self.bytes
            .get_mut(self.len..end)
            .ok_or(std::fmt::Error)?
            .copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}
