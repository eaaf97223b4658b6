//! Many requests at once, each with an acknowledgement of its own.
//!
//! In: requests. Out: which of them the kernel refused, and why. One that is refused does not keep
//! the others from being carried out.

use crate::exchange::{Exchange, FIRST_SEQUENCE, Next, RequestError, Verdict};
use crate::socket::Transport;
use crate::wire::{Malformed, NLM_F_ACK, NLM_F_REQUEST, NLMSG_ERROR, Writer, messages};

/// Requests per datagram: enough to spare system calls, few enough that all answers fit where
/// limits of sockets cannot be raised.
const CHUNK: u32 = 256;

/// Bytes per datagram, for the same reason. A single longer request is sent alone.
const CHUNK_BYTES: usize = 128 * 1024;

/// One of many requests, refused.
#[derive(Debug, thiserror::Error)]
#[error("request {index}")]
pub struct Refused {
    /// Which request, counted from 0.
    pub index: usize,
    /// Always [`RequestError::Refused`].
    #[source]
    pub error: RequestError,
}

impl<T: Transport> Exchange<T> {
    /// Makes these requests, each of which is answered by an acknowledgement. `head` gives kind and
    /// flags of a message. Returns those that were refused, in order.
    ///
    /// # Errors
    /// See [`RequestError`], but never `Refused`: then it is not known which were carried out.
    pub(crate) fn acknowledged_each<A>(
        &mut self,
        requests: &[A],
        head: impl Fn(&A) -> (u16, u16),
        content: impl Fn(&A, &mut Writer),
    ) -> Result<Vec<Refused>, RequestError> {
        let mut refused = Vec::new();
        let mut sent = 0;
        while sent < requests.len() {
            let first = self.next_sequences();
            let mut writer = Writer::new();
            let mut count = 0;
            for request in requests[sent..].iter().take(CHUNK as usize) {
                let before = writer.len();
                let (kind, flags) = head(request);
                let start = writer.begin(kind, flags | NLM_F_REQUEST | NLM_F_ACK, first + count);
                content(request, &mut writer);
                writer.end(start);
                if count > 0 && writer.len() > CHUNK_BYTES {
                    writer.split_off(before);
                    break;
                }
                count += 1;
            }
            if writer.overflowed() {
                return Err(Malformed("request: too long").into());
            }
            let verdicts = self.verdicts(writer.bytes(), first, count)?;
            for (at, verdict) in verdicts.into_iter().enumerate() {
                if let Err(error) = verdict.into_result() {
                    let index = sent + at;
                    refused.push(Refused { index, error });
                }
            }
            sent += count as usize;
        }
        Ok(refused)
    }

    /// Numbers for a whole datagram, none of which an earlier request had lately.
    const fn next_sequences(&mut self) -> u32 {
        let first = self.sequence.wrapping_add(1) | FIRST_SEQUENCE;
        let last = first.wrapping_add(CHUNK);
        if last < first {
            self.sequence = FIRST_SEQUENCE + CHUNK;
            return FIRST_SEQUENCE;
        }
        self.sequence = last;
        first
    }

    /// Sends messages numbered from `first` on, and reads what the kernel says to each.
    fn verdicts(
        &mut self,
        bytes: &[u8],
        first: u32,
        count: u32,
    ) -> Result<Vec<Verdict>, RequestError> {
        let mut verdicts: Vec<Option<Verdict>> = vec![None; count as usize];
        let mut missing = verdicts.len();
        let mut fault = None;
        self.converse(&[bytes], &mut |datagram| {
            let read = datagram.map_err(RequestError::Lost).and_then(|datagram| {
                each_verdict(datagram, |sequence, verdict| {
                    let slot = sequence
                        .checked_sub(first)
                        .and_then(|at| verdicts.get_mut(at as usize));
                    if let Some(slot @ None) = slot {
                        *slot = Some(verdict);
                        missing -= 1;
                    }
                })
                .map_err(RequestError::from)
            });
            match read {
                Err(error) => {
                    fault = Some(error);
                    Next::GiveUp
                }
                Ok(()) if missing == 0 => Next::Finished,
                Ok(()) => Next::Wait,
            }
        })
        .map_err(RequestError::Lost)?;
        fault.map_or_else(|| Ok(verdicts.into_iter().flatten().collect()), Err)
    }
}

fn each_verdict(datagram: &[u8], mut note: impl FnMut(u32, Verdict)) -> Result<(), Malformed> {
    for message in messages(datagram) {
        let message = message?;
        if message.kind == NLMSG_ERROR {
            note(message.sequence, Verdict::read(&message)?);
        }
    }
    Ok(())
}
