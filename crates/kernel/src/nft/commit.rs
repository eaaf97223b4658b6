//! Sending a batch, and what came of it.
//!
//! An acknowledgement of the last message does not mean that the batch was taken, only that this
//! message was: success is an acknowledgement and no error before it. The last message is always
//! answered, and last, so reading ends there.

use std::io;

use super::batch::{Batch, NFGEN};
use super::chain::Rule;
use super::uapi::msg;
use crate::exchange::{Exchange, Next, Verdict, explained};
use crate::socket::Transport;
use crate::wire::{Malformed, NLMSG_ERROR, messages};

#[cfg(test)]
mod tests;

/// A batch that was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Steps of the batch.
    pub steps: usize,
    /// The generation that it made, if the batch said which one it expected.
    pub generation: Option<u32>,
    /// Of rules whose handles were asked for: the step, and the handle.
    pub handles: Vec<(usize, u64)>,
}

/// Why a batch was not taken.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The kernel refused a step; the whole batch was undone.
    #[error("the kernel refused step {step}: {what}{}", explained(message.as_deref()))]
    Refused {
        /// The first step that was refused.
        step: usize,
        /// Of a list of elements: which one.
        element: Option<usize>,
        /// What the step was to do.
        what: String,
        /// The extended ACK message of the kernel, if any.
        message: Option<String>,
        /// Everything that was refused, in order. Of a list of elements that is the first one.
        faults: Box<[Fault]>,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The kernel refused the batch as a whole; nothing was changed.
    #[error("the kernel refused the batch")]
    Denied(#[source] io::Error),
    /// An external change came since the generation that the batch expected; nothing was
    /// changed.
    #[error("an external change to the ruleset came first")]
    Conflict,
    /// The batch could not be handed over; nothing was changed.
    #[error("cannot send the batch of {bytes} bytes")]
    Unsent {
        /// Its size; there is a limit without the right to administrate the network.
        bytes: usize,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A step was too long to encode; nothing was sent.
    #[error("step {step} is too long: {what}")]
    TooLong {
        /// Which step.
        step: usize,
        /// What it was to do.
        what: String,
    },
    /// Answers were lost: the batch may have been taken or not.
    #[error("the kernel's reply was lost")]
    Lost(#[source] io::Error),
}

/// Something that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The step.
    pub step: usize,
    /// Of a list of elements: which one, if the kernel said.
    pub element: Option<usize>,
    /// What the step was to do.
    pub what: String,
    /// The error of the kernel.
    pub errno: i32,
}

/// Sends a batch and waits for the outcome. An empty one is not sent.
pub(super) fn commit<T: Transport>(
    exchange: &mut Exchange<T>,
    batch: &Batch,
) -> Result<Commit, BatchError> {
    if let Some(step) = batch.too_long() {
        let what = batch.describe(step);
        return Err(BatchError::TooLong { step, what });
    }
    let done = Commit {
        steps: batch.len(),
        generation: batch.expected(),
        handles: Vec::new(),
    };
    if batch.is_empty() {
        return Ok(done);
    }
    let (begin, body, end) = batch.parts();
    let parts = [begin.bytes(), body, end.bytes()];
    let mut outcome = Outcome::new(batch.messages());
    exchange
        .converse(&parts, &mut |datagram| outcome.next(datagram))
        .map_err(|source| BatchError::Unsent {
            bytes: parts.iter().map(|part| part.len()).sum(),
            source,
        })?;
    let rules = std::mem::take(&mut outcome.rules).into_iter();
    let handles = rules.map(|(message, handle)| (batch.locate(message, None).0, handle));
    let handles = handles.collect();
    outcome.into_result(batch)?;
    Ok(Commit {
        handles,
        // The count starts again at 1.
        generation: done.generation.map(|id| id.wrapping_add(1).max(1)),
        ..done
    })
}

/// What the replies contained so far.
struct Outcome {
    last: u32,
    acknowledged: bool,
    /// New rules, by the number of the message that asked for them.
    rules: Vec<(u32, u64)>,
    /// The first refusal with the number of its message.
    refused: Option<(u32, Verdict)>,
    /// Of all refusals: the message, where in it the fault is, and why.
    faults: Vec<(u32, Option<u32>, i32)>,
    denied: Option<i32>,
    lost: Option<io::Error>,
}

impl Outcome {
    const fn new(last: u32) -> Self {
        Self {
            last,
            acknowledged: false,
            rules: Vec::new(),
            refused: None,
            faults: Vec::new(),
            denied: None,
            lost: None,
        }
    }

    /// Takes one datagram, and says how to go on.
    fn next(&mut self, datagram: io::Result<&[u8]>) -> Next {
        match datagram {
            Ok(datagram) => match self.read(datagram) {
                Ok(()) if self.acknowledged => Next::Finished,
                // After a refusal of the whole the last message may go unanswered.
                Ok(()) if self.denied.is_some() => Next::GiveUp,
                Ok(()) if self.lost.is_some() => Next::IfThere,
                Ok(()) => Next::Wait,
                Err(error) => {
                    self.lost = Some(io::Error::new(io::ErrorKind::InvalidData, error));
                    Next::GiveUp
                }
            },
            // What is left to read may still hold a refusal, and then we know more.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.lost = Some(error);
                Next::IfThere
            }
            Err(error) => {
                self.lost.get_or_insert(error);
                Next::GiveUp
            }
        }
    }

    fn read(&mut self, datagram: &[u8]) -> Result<(), Malformed> {
        for message in messages(datagram) {
            let message = message?;
            if message.sequence > self.last {
                continue;
            }
            if message.kind == msg::NEWRULE {
                let (_, _, handle) = Rule::read(message.attributes(NFGEN)?)?;
                self.rules.push((message.sequence, handle));
            }
            if message.kind != NLMSG_ERROR {
                continue;
            }
            let verdict = Verdict::read(&message)?;
            self.acknowledged |= message.sequence == self.last;
            if verdict.errno == 0 {
                continue;
            }
            if message.sequence == 0 {
                self.denied.get_or_insert(verdict.errno);
                continue;
            }
            let fault = (message.sequence, verdict.offset, verdict.errno);
            self.faults.push(fault);
            self.refused.get_or_insert((message.sequence, verdict));
        }
        Ok(())
    }

    fn into_result(self, batch: &Batch) -> Result<(), BatchError> {
        if let Some((message, verdict)) = self.refused {
            let (step, element) = batch.locate(message, verdict.offset);
            let faults = self.faults.into_iter().map(|(message, offset, errno)| {
                let (step, element) = batch.locate(message, offset);
                Fault {
                    step,
                    element,
                    what: batch.describe_fault(step, offset),
                    errno,
                }
            });
            return Err(BatchError::Refused {
                step,
                element,
                what: batch.describe_fault(step, verdict.offset),
                message: verdict.message,
                faults: faults.collect(),
                source: io::Error::from_raw_os_error(verdict.errno),
            });
        }
        match (self.denied, self.lost) {
            (Some(libc::ERESTART), _) => Err(BatchError::Conflict),
            (Some(errno), _) => Err(BatchError::Denied(io::Error::from_raw_os_error(errno))),
            (None, Some(error)) => Err(BatchError::Lost(error)),
            (None, None) => Ok(()),
        }
    }
}
