//! Desired state becomes kernel state. No API object is ever seen here.
//!
//! A [`Dataplane`] programs one family. It is handed what became different since its last success
//! and owns the picture of what it wrote; what to do after a failure it tells by
//! [`ApplyError::recovery`], so that no caller looks at error codes.

use ferrule_core::desired::{Desired, FamilyDelta};
use ferrule_core::model::{Family, PortKey, Protocol};
use ferrule_kernel::exchange::RequestError;

pub mod conntrack;
mod dry_run;
pub mod host;
pub mod iptables;
pub mod ipvs;
pub mod listen;
pub mod nftables;
mod recorder;
mod xtables;

pub use dry_run::DryRun;
pub use recorder::{Call, Recorder, Script};

/// Programs one family's desired state into the kernel.
pub trait Dataplane: Send {
    /// Makes the kernel do what is desired.
    ///
    /// # Errors
    /// What was attempted and why it failed. The last good state is still in place.
    fn apply(&mut self, work: &Work<'_>) -> Result<Applied, ApplyError>;

    /// Service ports that the last success left out, because the kernel refuses their rules.
    fn refused(&self) -> Vec<Refusal> {
        Vec::new()
    }

    /// How many rules there are since the last success; nothing where rules are not counted.
    fn rules(&self) -> Vec<RuleCount> {
        Vec::new()
    }
}

/// Rules in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCount {
    /// Its name.
    pub table: &'static str,
    /// Rules that are ours.
    pub owned: usize,
    /// Those that the last success wrote.
    pub written: usize,
}

/// A Service port that is not programmed, so that all others could be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which one.
    pub key: PortKey,
    /// What was said about it.
    pub message: String,
}

/// What to program.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// Which family.
    pub family: Family,
    /// The whole picture.
    pub desired: &'a Desired,
    /// How much of it to look at.
    pub scope: Scope<'a>,
}

/// How much of the picture to look at.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// All of it, beside what the kernel really has: at start, after doubt or a failure, and as a
    /// slow audit. What changed in between is not told, so tracked flows are to be compared with
    /// the whole picture as well.
    Whole,
    /// What became different since the last success.
    Delta(&'a FamilyDelta),
}

/// What a success consisted of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Operations sent to the kernel; 0 when it was right already.
    pub steps: usize,
}

/// Why the kernel does not do what is desired.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The kernel refused; the whole transaction was undone.
    #[error("the kernel refused {step}")]
    Refused {
        /// What was attempted.
        step: String,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// Replies were lost, or somebody else wrote: our picture of the kernel may be wrong.
    #[error("the state of the kernel is in doubt")]
    Doubtful(#[source] std::io::Error),
    /// Somebody else had the tables locked for as long as it was waited for; nothing was written.
    #[error("the tables are in use")]
    Locked(#[source] std::io::Error),
}

/// What helps after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// The same again, with whatever has changed since.
    Retry,
    /// Look at the kernel first: [`Scope::Whole`].
    Reread,
}

impl ApplyError {
    /// What helps. A refusal often means that the kernel is not as we believed, and whoever has a
    /// lock is about to change something, so all reread.
    pub const fn recovery(&self) -> Recovery {
        match self {
            Self::Refused { .. } | Self::Doubtful(_) | Self::Locked(_) => Recovery::Reread,
        }
    }

    /// Whether the failure itself was a long wait, and the next try waits by itself.
    pub const fn has_waited(&self) -> bool {
        matches!(self, Self::Locked(_))
    }
}

/// The kernel's word for a family.
const fn kernel_family(family: Family) -> ferrule_kernel::Family {
    match family {
        Family::V4 => ferrule_kernel::Family::V4,
        Family::V6 => ferrule_kernel::Family::V6,
    }
}

/// A protocol's number in packets.
const fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

/// What the kernel said.
fn said(error: RequestError) -> std::io::Error {
    match error {
        RequestError::Lost(source) | RequestError::Refused { source, .. } => source,
        other => std::io::Error::other(other),
    }
}
