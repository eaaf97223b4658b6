//! The chains that packets enter by themselves, and the jumps from there to ours.
//!
//! They belong to everybody. Ours among their rules are found again however some version of iptables
//! put them; missing chains are made as iptables makes them.

use std::borrow::Cow;

use ferrule_kernel::nft::{self, Chain, ChainKind, Expr, Hook, Name, Verdict};
use ferrule_kernel::xt::Table;

use super::listing::{is_same, without_counters};

/// Chains that packets enter by themselves.
const ENTRIES: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// Whether packets enter a chain by themselves, judging by its name.
pub fn is_base_chain(name: &str) -> bool {
    ENTRIES.contains(&name)
}

/// The chain of this name; `None` if we put nothing there.
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

/// Whether a rule of somebody's iptables is this jump. Versions differ in how they put conditions.
pub fn is_same_jump(rule: &nft::Rule, jump: &[Expr]) -> bool {
    if is_same(&rule.expressions, jump) {
        return true;
    }
    let (found, mut wanted) = (
        NormalizedJump::of(&rule.expressions),
        NormalizedJump::of(jump),
    );
    let remark = rule
        .comment
        .as_ref()
        .map(|comment| comment.as_str().to_owned());
    // Older ones kept remarks beside the rule.
    if let (None, Some(_)) = (&found.remark, &remark)
        && wanted.remark == remark
    {
        wanted.remark = None;
    }
    !found.more && found == wanted
}

/// What a jump comes down to.
#[derive(PartialEq)]
struct NormalizedJump {
    to: Option<Name>,
    remark: Option<String>,
    asks_for_state: bool,
    more: bool,
}

impl NormalizedJump {
    fn of(expressions: &[Expr]) -> Self {
        let mut jump = Self {
            to: None,
            remark: None,
            asks_for_state: false,
            more: false,
        };
        for expr in without_counters(expressions) {
            match expr {
                Expr::Verdict(Verdict::Jump(to)) => jump.to = Some(to.clone()),
                Expr::Match(extension) if extension.name == "conntrack" => {
                    jump.asks_for_state = true;
                }
                Expr::Match(extension) => {
                    let remark = extension.as_comment().map(Cow::into_owned);
                    jump.more |= remark.is_none();
                    jump.remark = remark;
                }
                Expr::Ct { .. } => jump.asks_for_state = true,
                Expr::Bitwise { .. } | Expr::Cmp { .. } if jump.asks_for_state => {}
                _ => jump.more = true,
            }
        }
        jump
    }
}
