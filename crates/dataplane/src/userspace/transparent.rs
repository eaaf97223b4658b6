//! Connections to endpoints that have the client's own address.
//!
//! A socket of the relay that speaks for a client is marked. The mark goes over to what conntrack
//! knows of the connection; answers that belong to it are given a mark of their own, by which a rule
//! delivers them to this machine instead of to the client. For which connections that works is decided
//! in the relay.

use std::io;

use ferrule_core::model::Family;
use ferrule_kernel::exchange::RequestError;
use ferrule_kernel::inet;
use ferrule_kernel::nft::expr::{CT_REPLY, CtKey, MetaKey};
use ferrule_kernel::nft::{Expr, Reg, Rule, Value};
use ferrule_kernel::route::{Diversion, Route};

use super::names;
use crate::kernel_family;

/// The mark of sockets that speak for a client, and of their connections; and that of answers. Both
/// are compared as a whole, and have no bit by which kube-proxy, the usual network plugins or VPNs
/// tell packets.
pub const SPEAKS: u32 = 0x1060;
const ANSWERS: u32 = 0x1050;

/// The routing table, and where its rule stands: before those of network plugins.
const TABLE: u32 = 0x1050;
const PRIORITY: u32 = 50;

/// Rules that tell answers.
pub fn rules() -> Vec<Rule> {
    let number = |number| Value::new().number(number);
    let load = |value| Expr::Load {
        value: number(value),
        into: Reg::FIRST,
    };
    let set_mark = Expr::SetMeta {
        key: MetaKey::Mark,
        from: Reg::FIRST,
    };
    let remember = vec![
        Expr::Meta {
            key: MetaKey::Mark,
            into: Reg::FIRST,
        },
        Expr::equal(Reg::FIRST, number(SPEAKS)),
        load(SPEAKS),
        Expr::SetCt {
            key: CtKey::Mark,
            from: Reg::FIRST,
        },
        // What comes later on the way out has rules for marks of its own.
        load(0),
        set_mark.clone(),
    ];
    let divert = vec![
        Expr::Ct {
            key: CtKey::Direction,
            into: Reg::FIRST,
        },
        Expr::equal(Reg::FIRST, Value::new().field(&[CT_REPLY])),
        Expr::Ct {
            key: CtKey::Mark,
            into: Reg::FIRST,
        },
        Expr::equal(Reg::FIRST, number(SPEAKS)),
        load(ANSWERS),
        set_mark,
    ];
    vec![
        Rule::new(names::TRANSPARENT_OUTPUT, remember).comment("with the address of a client"),
        Rule::new(names::TRANSPARENT_ANSWERS, divert).comment("for a client's relayed connection"),
    ]
}

/// The rule and the route of one family by which answers come here.
#[derive(Debug)]
pub struct Answers {
    route: Route,
    diversion: Diversion,
}

impl Answers {
    /// Opens a conversation in the network namespace of the calling thread. Nothing is written.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(family: Family) -> io::Result<Self> {
        Ok(Self {
            route: Route::open()?,
            diversion: Diversion {
                family: kernel_family(family),
                mark: ANSWERS,
                table: TABLE,
                priority: PRIORITY,
            },
        })
    }

    /// Makes what is missing. Returns how much that was.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn ensure(&mut self) -> Result<usize, RequestError> {
        self.route.divert(&self.diversion)
    }

    /// Removes what there is. Returns how much that was.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn remove(&mut self) -> Result<usize, RequestError> {
        self.route.divert_no_more(&self.diversion)
    }
}

/// Whether this machine lets a program speak for others.
///
/// # Errors
/// Why not.
pub fn probe(family: Family) -> io::Result<()> {
    inet::may_speak_for_others(kernel_family(family), SPEAKS).map_err(|error| {
        let why = format!("no connections with a client's address ({family}): {error}");
        io::Error::new(error.kind(), why)
    })
}
