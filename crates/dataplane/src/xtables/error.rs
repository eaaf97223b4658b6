//! Why the tables are not as wanted, and whose fault it is.

use std::io;

use ferrule_core::model::PortKey;
use ferrule_kernel::xt::XtError;

use super::document::Document;
use crate::ApplyError;

/// What the direct way is called where a program would be named.
const DIRECTLY: &str = "nf_tables";

/// Why the tables are not as wanted.
#[derive(Debug, thiserror::Error)]
pub enum TablesError {
    /// A program of iptables failed.
    #[error(transparent)]
    Program(#[from] XtError),
    /// Writing to `nf_tables` directly failed.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Why `nf_tables` could not be read or written directly.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A rule has no equivalent in the expressions that we write.
    #[error("nf_tables: a rule cannot be encoded")]
    Encoding,
    /// A chain does not have the rules that we remember.
    #[error("nf_tables: an external change to chain {0}")]
    Changed(String),
    /// The kernel refused.
    #[error("nf_tables failed: {message}")]
    Refused {
        /// Whose rule it refused, if the rule belongs to a Service port.
        owner: Option<PortKey>,
        /// The rule counts packets.
        counts: bool,
        /// The kernel's message.
        message: String,
    },
    /// The kernel could not be asked, or its answer was lost.
    #[error("nf_tables: no answer from the kernel")]
    Lost(#[source] io::Error),
}

/// An attempt to change the tables that failed.
#[derive(Debug)]
pub struct Failure {
    /// Why.
    pub error: TablesError,
    /// Whose line was at fault, if it is known.
    pub owner: Option<PortKey>,
    /// Rules cannot use counters.
    pub counters: bool,
}

impl TablesError {
    /// Whether rules were refused, as opposed to nothing being written at all.
    pub const fn is_refusal(&self) -> bool {
        match self {
            Self::Program(error) => matches!(error, XtError::Refused { .. }),
            Self::Link(error) => !matches!(error, LinkError::Lost(_)),
        }
    }

    /// Whether another process held the lock until the timeout.
    pub const fn is_locked(&self) -> bool {
        matches!(self, Self::Program(XtError::Locked { .. }))
    }
}

impl From<TablesError> for ApplyError {
    fn from(error: TablesError) -> Self {
        if error.is_locked() {
            return Self::Locked(io::Error::other(error));
        }
        let step = match &error {
            TablesError::Program(error) => error.program().to_owned(),
            TablesError::Link(_) => DIRECTLY.to_owned(),
        };
        Self::Refused {
            step,
            source: io::Error::other(error),
        }
    }
}

impl Failure {
    /// A failure before anything was written.
    pub fn unwritten(error: impl Into<TablesError>) -> Self {
        Self {
            error: error.into(),
            owner: None,
            counters: false,
        }
    }

    /// A failure of the program that was given this document.
    pub fn of_program(error: XtError, document: &Document) -> Self {
        let line = match &error {
            XtError::Refused { line, .. } => *line,
            _ => None,
        };
        Self {
            owner: line.and_then(|line| document.owner(line)).cloned(),
            counters: line.is_some_and(|line| document.counts(line)),
            error: error.into(),
        }
    }
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Self {
        let (owner, counters) = match &error {
            LinkError::Refused { owner, counts, .. } => (owner.clone(), *counts),
            _ => (None, false),
        };
        Self {
            error: error.into(),
            owner,
            counters,
        }
    }
}
