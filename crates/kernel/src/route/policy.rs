//! Which way packets go: asked of the kernel, and for marked packets decided.
//!
//! In: an address, or a [`Diversion`]. Out: the [`Way`] to it, or a rule and a route that deliver
//! marked packets to this machine whatever their destination is.

use std::net::IpAddr;

use super::Route;
use crate::Family;
use crate::exchange::RequestError;
use crate::socket::Transport;
use crate::wire::{Malformed, Message, NLM_F_CREATE, NLM_F_EXCL, Writer};

const NEWROUTE: u16 = 24;
const DELROUTE: u16 = 25;
const GETROUTE: u16 = 26;
const NEWRULE: u16 = 32;
const DELRULE: u16 = 33;

/// The header of a route and that of a rule have the same length.
const HEADER: usize = 12;

const ROUTE_DESTINATION: u16 = 1;
const ROUTE_LINK: u16 = 4;
const ROUTE_TABLE: u16 = 15;

const RULE_PRIORITY: u16 = 6;
const RULE_MARK: u16 = 10;
const RULE_TABLE: u16 = 15;
const RULE_MASK: u16 = 16;

/// What a rule does: looks into a table.
const LOOK_INTO_TABLE: u8 = 1;

/// Made by an administrator's program, so that no routing daemon takes it for its own.
const STATIC: u8 = 4;

/// Known on this machine alone.
const SCOPE_HOST: u8 = 254;

/// A route to other machines, and one to this machine.
const UNICAST: u8 = 1;
const LOCAL: u8 = 2;

/// The interface `lo` has this number in every network namespace.
const LOOPBACK: u32 = 1;

/// Where packets to an address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// They are delivered here.
    Local,
    /// They leave by the interface of this number.
    Link(u32),
    /// Nowhere.
    None,
}

/// Delivers packets with a mark to this machine, wherever they are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Diversion {
    /// Of which family.
    pub family: Family,
    /// All bits of the mark.
    pub mark: u32,
    /// The routing table, which nobody else uses.
    pub table: u32,
    /// Where the rule stands among all rules; lower numbers come first.
    pub priority: u32,
}

impl<T: Transport> Route<T> {
    /// Where packets of this machine to an address go.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn way_to(&mut self, to: IpAddr) -> Result<Way, RequestError> {
        let write = |writer: &mut Writer| match to {
            IpAddr::V4(ip) => destination(writer, Family::V4, &ip.octets()),
            IpAddr::V6(ip) => destination(writer, Family::V6, &ip.octets()),
        };
        match self.exchange.one(GETROUTE, write, read_way) {
            // Unreachable, prohibited and discarded are answered so.
            Err(RequestError::Refused { source, .. })
                if [
                    Some(libc::ENETUNREACH),
                    Some(libc::EHOSTUNREACH),
                    Some(libc::EACCES),
                    Some(libc::EINVAL),
                ]
                .contains(&source.raw_os_error()) =>
            {
                Ok(Way::None)
            }
            result => result,
        }
    }

    /// Makes a diversion. Returns how much of it was missing.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn divert(&mut self, diversion: &Diversion) -> Result<usize, RequestError> {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        // The route first: with the rule alone marked packets would go on as if there were none.
        let route = |writer: &mut Writer| write_route(writer, diversion);
        let route = self.exchange.acknowledged(NEWROUTE, flags, route);
        let route = changed(route, &[libc::EEXIST])?;
        let rule = |writer: &mut Writer| write_rule(writer, diversion);
        let rule = self.exchange.acknowledged(NEWRULE, flags, rule);
        Ok(route + changed(rule, &[libc::EEXIST])?)
    }

    /// Takes a diversion back. Returns how much of it there was.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn divert_no_more(&mut self, diversion: &Diversion) -> Result<usize, RequestError> {
        // A kernel without this family has none of it.
        const NOTHING: [i32; 4] = [
            libc::ENOENT,
            libc::ESRCH,
            libc::EAFNOSUPPORT,
            libc::EOPNOTSUPP,
        ];
        let rule = |writer: &mut Writer| write_rule(writer, diversion);
        let rule = self.exchange.acknowledged(DELRULE, 0, rule);
        let rule = changed(rule, &NOTHING)?;
        let route = |writer: &mut Writer| write_route(writer, diversion);
        let route = self.exchange.acknowledged(DELROUTE, 0, route);
        Ok(rule + changed(route, &NOTHING)?)
    }
}

/// One if something was changed, and none if that was not needed.
fn changed(result: Result<(), RequestError>, fine: &[i32]) -> Result<usize, RequestError> {
    match result {
        Ok(()) => Ok(1),
        Err(RequestError::Refused { source, .. })
            if source
                .raw_os_error()
                .is_some_and(|code| fine.contains(&code)) =>
        {
            Ok(0)
        }
        Err(error) => Err(error),
    }
}

fn destination(writer: &mut Writer, family: Family, octets: &[u8]) {
    let bits = match family {
        Family::V4 => 32,
        Family::V6 => 128,
    };
    writer.raw(&[family.number(), bits, 0, 0, 0, 0, 0, 0]);
    writer.raw(&[0; 4]);
    writer.attr(ROUTE_DESTINATION, octets);
}

/// All addresses, to this machine.
fn write_route(writer: &mut Writer, diversion: &Diversion) {
    let family = diversion.family.number();
    writer.raw(&[family, 0, 0, 0, 0, STATIC, SCOPE_HOST, LOCAL]);
    writer.raw(&[0; 4]);
    writer.u32_ne(ROUTE_TABLE, diversion.table);
    writer.u32_ne(ROUTE_LINK, LOOPBACK);
}

fn write_rule(writer: &mut Writer, diversion: &Diversion) {
    let family = diversion.family.number();
    writer.raw(&[family, 0, 0, 0, 0, 0, 0, LOOK_INTO_TABLE]);
    writer.raw(&[0; 4]);
    writer.u32_ne(RULE_PRIORITY, diversion.priority);
    writer.u32_ne(RULE_MARK, diversion.mark);
    writer.u32_ne(RULE_MASK, u32::MAX);
    writer.u32_ne(RULE_TABLE, diversion.table);
}

fn read_way(message: &Message<'_>) -> Result<Way, Malformed> {
    let header: &[u8; HEADER] = message
        .body
        .first_chunk()
        .ok_or(Malformed("route: truncated"))?;
    let [_, _, _, _, _, _, _, kind, ..] = *header;
    let mut link = None;
    for attr in message.attributes(HEADER)? {
        let attr = attr?;
        if attr.kind == ROUTE_LINK {
            link = Some(attr.u32_ne()?);
        }
    }
    Ok(match (kind, link) {
        (LOCAL, _) => Way::Local,
        (UNICAST, Some(link)) => Way::Link(link),
        _ => Way::None,
    })
}
