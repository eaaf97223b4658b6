//! Sets that rules of iptables can name.
//!
//! In: a name. Out: whether there was such a set to destroy. What is in sets is not looked at.

use std::io;

use crate::exchange::{Exchange, RequestError};
use crate::socket::{Protocol, Socket, Transport};
use crate::wire::NLM_F_EXCL;

const DESTROY: u16 = 0x603;

const VERSION: u16 = 1;
const NAME: u16 = 2;

/// The version of the protocol that every kernel speaks.
const PROTOCOL_VERSION: u8 = 6;

/// A protocol's own header behind that of a message. It wants some family, and does not use it.
const HEADER: [u8; 4] = [2, 0, 0, 0];

/// What the kernel says about a set that a rule still names.
const BUSY: i32 = 4100;

/// A conversation about sets.
#[derive(Debug)]
pub struct Ipset<T = Socket> {
    exchange: Exchange<T>,
}

impl Ipset {
    /// Opens a conversation in the network namespace of the calling thread; `None` if this kernel
    /// has no netfilter, and so no sets.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn open() -> io::Result<Option<Self>> {
        match Socket::open(Protocol::Netfilter) {
            Ok(socket) => Ok(Some(Self::new(socket))),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl<T: Transport> Ipset<T> {
    /// A conversation over this transport.
    pub const fn new(transport: T) -> Self {
        Self {
            exchange: Exchange::new(transport),
        }
    }

    /// Destroys a set with everything in it. Whether there was one: a kernel without sets has none.
    ///
    /// # Errors
    /// See [`RequestError`]; a set that a rule names is `ResourceBusy`.
    pub fn destroy(&mut self, name: &str) -> Result<bool, RequestError> {
        // Without this, newer kernels are content with a set that is not there.
        let strictly = NLM_F_EXCL;
        let result = self.exchange.acknowledged(DESTROY, strictly, |writer| {
            writer.raw(&HEADER);
            writer.u8(VERSION, PROTOCOL_VERSION);
            writer.text(NAME, name);
        });
        match result {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(RequestError::Refused { message, source }) => match source.raw_os_error() {
                // Nobody in this kernel listens to such messages.
                Some(libc::EINVAL) => Ok(false),
                Some(BUSY) => Err(RequestError::Refused {
                    message,
                    source: io::ErrorKind::ResourceBusy.into(),
                }),
                _ => Err(RequestError::Refused { message, source }),
            },
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Answer, Recorder, Script};

    fn answered(errno: i32) -> Result<bool, RequestError> {
        let script = Script::default();
        let mut sets = Ipset::new(Recorder::new(script.clone()));
        script.answer(Answer::Refuse { message: 0, errno });
        sets.destroy("KUBE-CLUSTER-IP")
    }

    #[test]
    fn a_set_is_destroyed_by_name() {
        let script = Script::default();
        let mut sets = Ipset::new(Recorder::new(script.clone()));
        assert!(sets.destroy("KUBE-IPVS-IPS").unwrap());
        let requests = script.take_requests();
        let body = [
            &[2, 0, 0, 0][..],
            &[5, 0, 1, 0, 6, 0, 0, 0],
            &[18, 0, 2, 0],
            b"KUBE-IPVS-IPS\0",
            &[0, 0],
        ];
        // The kind, and flags: request, acknowledge, strictly.
        assert_eq!(requests[0][4..8], [3, 6, 5, 2]);
        assert_eq!(requests[0][16..], body.concat());
    }

    #[test]
    fn what_is_not_there_needs_no_destroying() {
        assert!(!answered(libc::ENOENT).unwrap());
        assert!(!answered(libc::EINVAL).unwrap());
    }

    #[test]
    fn a_set_that_a_rule_names_is_busy() {
        let Err(RequestError::Refused { source, .. }) = answered(BUSY) else {
            panic!("it is refused");
        };
        assert_eq!(source.kind(), io::ErrorKind::ResourceBusy);
    }
}
