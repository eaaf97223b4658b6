//! Chains and rules.

use super::expr::{Expr, numbered};
use super::uapi::{chain, rule, user};
use super::value::{Comment, Name, write_comment};
use crate::wire::{Attribute, Attributes, Malformed, Writer};

/// A list of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: Name,
    /// Where packets enter it; without, only from other chains.
    pub base: Option<BaseChain>,
    /// The comment.
    pub comment: Option<Comment>,
}

/// Where packets enter a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// What its rules may do.
    pub kind: ChainKind,
    /// Where on a packet's way.
    pub hook: Hook,
    /// Lower ones come first.
    pub priority: i32,
    /// What becomes of packets that no rule decides about.
    pub policy: Policy,
}

/// What the rules of a chain may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainKind {
    /// Accept and drop.
    Filter,
    /// Translate addresses; only the first packet of a connection comes.
    Nat,
    /// Change what decides about the route.
    Route,
    /// Something that we never ask for.
    Other(Name),
}

numbered! {
    /// Where on a packet's way.
    Hook {
        /// On arrival.
        Prerouting = 0,
        /// On delivery to this machine.
        Input = 1,
        /// When passing through.
        Forward = 2,
        /// When sent from this machine.
        Output = 3,
        /// On departure.
        Postrouting = 4,
    }
}

numbered! {
    /// What becomes of packets that no rule decides about.
    Policy {
        /// They are thrown away.
        Drop = 0,
        /// They pass.
        Accept = 1,
    }
}

impl ChainKind {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
            Self::Other(name) => name,
        }
    }

    fn from_text(text: &str) -> Self {
        match text {
            "filter" => Self::Filter,
            "nat" => Self::Nat,
            "route" => Self::Route,
            other => Self::Other(other.into()),
        }
    }
}

impl Chain {
    /// A chain that packets enter only from other chains.
    pub fn new(name: impl Into<Name>) -> Self {
        Self {
            name: name.into(),
            base: None,
            comment: None,
        }
    }

    /// A chain that packets enter by themselves; those that no rule decides about pass.
    pub fn base(name: impl Into<Name>, kind: ChainKind, hook: Hook, priority: i32) -> Self {
        Self {
            base: Some(BaseChain {
                kind,
                hook,
                priority,
                policy: Policy::Accept,
            }),
            ..Self::new(name)
        }
    }

    pub(super) fn write(&self, writer: &mut Writer, table: &str) {
        self.write_without_policy(writer, table);
        if let Some(base) = &self.base {
            writer.u32_be(chain::POLICY, base.policy.number());
        }
    }

    /// Leaves the policy to the kernel: of a new chain it lets packets pass, and that of one that
    /// exists stays.
    pub(super) fn write_without_policy(&self, writer: &mut Writer, table: &str) {
        writer.text(chain::TABLE, table);
        writer.text(chain::NAME, &self.name);
        if let Some(base) = &self.base {
            writer.nest(chain::HOOK, |writer| {
                writer.u32_be(chain::HOOK_NUM, base.hook.number());
                writer.attr(chain::HOOK_PRIORITY, &base.priority.to_be_bytes());
            });
            writer.text(chain::TYPE, base.kind.as_str());
        }
        write_comment(writer, chain::USERDATA, self.comment.as_ref());
    }

    /// The chain, its table and its handle.
    pub(super) fn read(attrs: Attributes<'_>) -> Result<(Self, Name, u64), Malformed> {
        let mut read = Self::new("");
        let (mut table, mut handle) = (Name::default(), 0);
        let (mut hook, mut kind, mut policy) = (None, None, Policy::Accept);
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                chain::TABLE => table = attr.text().into(),
                chain::HANDLE => handle = attr.u64_be()?,
                chain::NAME => read.name = attr.text().into(),
                chain::HOOK => hook = Some(read_hook(&attr)?),
                chain::POLICY => policy = Policy::from_number(attr.u32_be()?),
                chain::TYPE => kind = Some(ChainKind::from_text(&attr.text())),
                chain::USERDATA => read.comment = Comment::read(attr.payload, user::COMMENT),
                _ => {}
            }
        }
        if let (Some((hook, priority)), Some(kind)) = (hook, kind) {
            read.base = Some(BaseChain {
                kind,
                hook,
                priority,
                policy,
            });
        }
        Ok((read, table, handle))
    }
}

fn read_hook(attr: &Attribute<'_>) -> Result<(Hook, i32), Malformed> {
    let (mut hook, mut priority) = (Hook::Other(u32::MAX), 0);
    for attr in attr.nested() {
        let attr = attr?;
        match attr.kind {
            chain::HOOK_NUM => hook = Hook::from_number(attr.u32_be()?),
            chain::HOOK_PRIORITY => priority = i32::from_be_bytes(attr.array()?),
            _ => {}
        }
    }
    Ok((hook, priority))
}

/// One rule of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The chain that it is in.
    pub chain: Name,
    /// What it does, in order.
    pub expressions: Vec<Expr>,
    /// The comment.
    pub comment: Option<Comment>,
    /// The number of the only protocol whose packets get as far as its matches and targets of
    /// iptables, which some of them ask for. The kernel does not report it back.
    pub protocol: Option<u8>,
}

impl Rule {
    /// A rule without comment.
    pub fn new(chain: impl Into<Name>, expressions: Vec<Expr>) -> Self {
        Self {
            chain: chain.into(),
            expressions,
            comment: None,
            protocol: None,
        }
    }

    /// The same with a comment.
    #[must_use]
    pub fn comment(mut self, comment: &str) -> Self {
        self.comment = Some(comment.into());
        self
    }

    pub(super) fn write(&self, writer: &mut Writer, table: &str) {
        writer.text(rule::TABLE, table);
        writer.text(rule::CHAIN, &self.chain);
        writer.nest(rule::EXPRESSIONS, |writer| {
            self.expressions.iter().for_each(|expr| expr.write(writer));
        });
        if let Some(protocol) = self.protocol {
            writer.nest(rule::COMPAT, |writer| {
                writer.u32_be(rule::COMPAT_PROTOCOL, protocol.into());
                writer.u32_be(rule::COMPAT_FLAGS, 0);
            });
        }
        write_comment(writer, rule::USERDATA, self.comment.as_ref());
    }

    /// The rule, its table and its handle.
    pub(super) fn read(attrs: Attributes<'_>) -> Result<(Self, Name, u64), Malformed> {
        let mut read = Self::new("", Vec::new());
        let (mut table, mut handle) = (Name::default(), 0);
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                rule::TABLE => table = attr.text().into(),
                rule::CHAIN => read.chain = attr.text().into(),
                rule::HANDLE => handle = attr.u64_be()?,
                rule::EXPRESSIONS => {
                    read.expressions = attr
                        .nested()
                        .map(|attr| Expr::read(&attr?))
                        .collect::<Result<_, _>>()?;
                    read.expressions.retain(|expr| !expr.is_idle());
                }
                rule::USERDATA => read.comment = Comment::read(attr.payload, user::COMMENT),
                _ => {}
            }
        }
        Ok((read, table, handle))
    }
}
