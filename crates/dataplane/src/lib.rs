//! Desired state becomes kernel state. No API object is ever seen here.
//!
//! A [`Dataplane`] programs one family. It receives what changed since its last success and
//! remembers what it wrote. After a failure the caller asks for [`Scope::Full`] again; it never
//! looks at error codes.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferrule_core::desired::{Desired, FamilyDelta};
use ferrule_core::model::{Family, PortKey, Protocol};
pub use ferrule_kernel::error_chain;
use ferrule_kernel::exchange::RequestError;
pub use ferrule_kernel::nft::Writers;

pub mod affinity;
pub mod conntrack;
mod dry_run;
pub mod host;
pub mod iptables;
pub mod ipvs;
mod listen;
pub mod nftables;
mod probe;
pub mod support;
pub mod userspace;
pub mod verify;
mod xtables;

pub use dry_run::DryRun;
pub use listen::Listener;

/// Programs one family's desired state into the kernel.
pub trait Dataplane: Send {
    /// Makes the kernel do what is desired.
    ///
    /// # Errors
    /// What was attempted and why it failed. The last good state is still in place.
    fn apply(&mut self, work: &Work<'_>) -> Result<Applied, ApplyError>;

    /// Removes everything that this mode has in the kernel for this family, whoever wrote it.
    ///
    /// # Errors
    /// What was attempted and why it failed. Some of it may be gone.
    fn remove(&mut self) -> Result<Applied, ApplyError>;

    /// Leads no new connections anywhere. Connections that this process carries go on.
    ///
    /// # Errors
    /// As [`Dataplane::remove`].
    fn withdraw(&mut self) -> Result<Applied, ApplyError> {
        self.remove()
    }

    /// Waits for the connections that this process carries, for as long as it may.
    fn drain(&mut self) {}

    /// Watchers for external changes to what is programmed. Asked for after the first success:
    /// before it nothing is ours, and notifications of the first, large transaction cost much.
    /// The first report may be of a change that came between that success and now.
    fn watch(&mut self) -> Vec<Box<dyn Watcher>>;

    /// Does what comes due by itself, whatever is desired. Called after each success of
    /// [`Dataplane::apply`], and when the time that it returned has come; `None` while there is
    /// nothing to wait for.
    ///
    /// # Errors
    /// What was attempted and why it failed. The caller asks for [`Scope::Full`].
    fn tick(&mut self, _now: Instant) -> Result<Option<Instant>, ApplyError> {
        Ok(None)
    }

    /// Whether other addresses of this machine may change what is programmed, also where NodePorts
    /// answer on all of them.
    fn follows_addresses(&self) -> bool {
        false
    }
}

/// Notices external changes to what a dataplane programmed.
pub trait Watcher: Send {
    /// Whether it waits for the kernel or must be asked.
    fn cadence(&self) -> Cadence;

    /// An external change, if there was one. A watcher that is [`Cadence::Notified`] waits for it, at
    /// most for this long; one that is [`Cadence::Polled`] inspects the kernel now.
    ///
    /// # Errors
    /// What the kernel said. The next call tries again, and reports a change if one may have been
    /// missed.
    fn changed(&mut self, timeout: Duration) -> io::Result<Option<ExternalChange>>;
}

/// A change to what is programmed that was not made here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalChange {
    /// Who made it, if that is known. The kernel says so at the end of a transaction, so this may
    /// come with a second report.
    pub process: Option<Process>,
}

/// A process of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number, in the first PID namespace.
    pub id: u32,
    /// What the kernel calls it.
    pub name: String,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (PID {})", self.name, self.id)
    }
}

/// How a [`Watcher`] learns of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cadence {
    /// The kernel notifies it.
    Notified,
    /// It inspects the kernel, once per sync period.
    Polled,
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
    /// Everything that is desired.
    pub desired: &'a Desired,
    /// How much of it to compare with the kernel.
    pub scope: Scope<'a>,
    /// Addresses of this machine's interfaces, sorted.
    pub local: &'a [IpAddr],
}

/// How much of the desired state to compare with the kernel.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// All of it, with what the kernel really has: at start, after an external change or a failure,
    /// and as a slow audit. What changed in between is not known, so tracked flows are to be
    /// compared with all of it as well.
    Full,
    /// What changed since the last success.
    Delta(&'a FamilyDelta),
}

/// What a success consisted of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Operations sent to the kernel; 0 when it was right already.
    pub steps: usize,
    /// Service ports that are not programmed, because the kernel refuses their rules.
    pub refused: Vec<Refusal>,
    /// Objects that are not needed any more and that the kernel refused to delete. They are
    /// deleted later.
    pub kept: usize,
    /// How many rules there are now; empty in modes that do not count them.
    pub rules: Vec<RuleCount>,
}

impl Applied {
    /// A success of so many steps, with nothing refused and nothing counted.
    pub fn steps(steps: usize) -> Self {
        Self {
            steps,
            ..Self::default()
        }
    }
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
    /// Replies were lost, or another process wrote at the same time: what we remember of the kernel
    /// may be wrong.
    #[error("out of sync with the kernel")]
    OutOfSync(#[source] std::io::Error),
    /// Another process held the tables' lock until the timeout; nothing was written.
    #[error("the tables are locked")]
    Locked(#[source] std::io::Error),
}

impl ApplyError {
    /// Whether the failure itself was a long wait, so that the next attempt need not be delayed.
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
