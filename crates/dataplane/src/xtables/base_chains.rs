//! Base chains, where packets enter from the kernel's hooks, and the jumps from them to our chains.
//!
//! Base chains are not ours. Our jumps in them are recognised whichever version of iptables wrote
//! them; missing base chains are made as iptables makes them.

use std::borrow::Cow;

use ferrule_kernel::nft::{self, Chain, ChainKind, Expr, Hook, Name, Verdict};
use ferrule_kernel::xt::Table;

use super::listing::{is_same, without_counters};

/// The names of base chains.
const BASE_CHAINS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// Whether a chain is a base chain, judging by its name.
pub fn is_base_chain(name: &str) -> bool {
    BASE_CHAINS.contains(&name)
}

/// The base chain of this name; `None` if no jump of ours is in it.
pub fn base_chain(table: Table, name: &str) -> Option<Chain> {
    const FIRST: i32 = -100;
    const LAST: i32 = 100;
    let (kind, hook, priority) = match (table, name) {
        (Table::Filter, "INPUT") => (ChainKind::Filter, Hook::Input, 0),
        (Table::Filter, "FORWARD") => (ChainKind::Filter, Hook::Forward, 0),
        (Table::Filter, "OUTPUT") => (ChainKind::Filter, Hook::Output, 0),
        (Table::Nat, "PREROUTING") => (ChainKind::Nat, Hook::Prerouting, FIRST),
        (Table::Nat, "OUTPUT") => (ChainKind::Nat, Hook::Output, FIRST),
        (Table::Nat, "POSTROUTING") => (ChainKind::Nat, Hook::Postrouting, LAST),
        _ => return None,
    };
    Some(Chain::base(name, kind, hook, priority))
}

/// Whether a rule is this jump, whichever version of iptables wrote it.
pub fn is_same_jump(rule: &nft::Rule, jump: &[Expr]) -> bool {
    if is_same(&rule.expressions, jump) {
        return true;
    }
    let (found, mut wanted) = (
        NormalizedJump::of(&rule.expressions),
        NormalizedJump::of(jump),
    );
    let comment = rule
        .comment
        .as_ref()
        .map(|comment| comment.as_str().to_owned());
    // Older versions keep comments beside the rule.
    if let (None, Some(_)) = (&found.comment, &comment)
        && wanted.comment == comment
    {
        wanted.comment = None;
    }
    !found.more && found == wanted
}

/// A jump, without what differs between versions of iptables.
#[derive(PartialEq)]
struct NormalizedJump {
    to: Option<Name>,
    comment: Option<String>,
    matches_state: bool,
    more: bool,
}

impl NormalizedJump {
    fn of(expressions: &[Expr]) -> Self {
        let mut jump = Self {
            to: None,
            comment: None,
            matches_state: false,
            more: false,
        };
        for expr in without_counters(expressions) {
            match expr {
                Expr::Verdict(Verdict::Jump(to)) => jump.to = Some(to.clone()),
                Expr::Match(extension) if extension.name == "conntrack" => {
                    jump.matches_state = true;
                }
                Expr::Match(extension) => {
                    let comment = extension.as_comment().map(Cow::into_owned);
                    jump.more |= comment.is_none();
                    jump.comment = comment;
                }
                Expr::Ct { .. } => jump.matches_state = true,
                Expr::Bitwise { .. } | Expr::Cmp { .. } if jump.matches_state => {}
                _ => jump.more = true,
            }
        }
        jump
    }
}
