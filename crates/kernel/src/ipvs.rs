//! IPVS, the kernel's load balancer: for now, only to make it forget everything.

use crate::exchange::{Exchange, RequestError};
use crate::socket::{Protocol, Socket, Transport};
use crate::wire::{Malformed, Message};

/// Who knows the numbers of all others.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_NUMBER: u16 = 1;
const FAMILY_NAME: u16 = 2;

const NAME: &str = "IPVS";
const VERSION: u8 = 1;
const FLUSH: u8 = 17;

/// What every message begins with: command, version, and nothing.
const HEADER: usize = 4;

/// A conversation with IPVS.
#[derive(Debug)]
pub struct Ipvs<T = Socket> {
    exchange: Exchange<T>,
    /// The number that the kernel gave it when it was loaded.
    number: u16,
}

impl Ipvs {
    /// Opens a conversation in the network namespace of the calling thread; `None` if this kernel
    /// has no IPVS, or has not loaded it, and so has no virtual servers.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn open() -> Result<Option<Self>, RequestError> {
        let socket = Socket::open(Protocol::Generic).map_err(RequestError::Lost)?;
        Self::over(socket)
    }
}

impl<T: Transport> Ipvs<T> {
    /// The same over this transport.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn over(transport: T) -> Result<Option<Self>, RequestError> {
        let mut exchange = Exchange::new(transport);
        // Asking for all of them, not for one by name, loads nothing.
        let families = exchange.dump_all(
            CONTROL,
            |writer| writer.raw(&[GET_FAMILY, VERSION, 0, 0]),
            |message, all| {
                all.push(read_family(message)?);
                Ok(())
            },
        )?;
        let found = families.into_iter().find(|(name, _)| name == NAME);
        Ok(found.map(|(_, number)| Self { exchange, number }))
    }

    /// Forgets all virtual servers of this network namespace, whoever made them.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn flush(&mut self) -> Result<(), RequestError> {
        let flush = [FLUSH, VERSION, 0, 0];
        self.exchange
            .acknowledged(self.number, 0, |writer| writer.raw(&flush))
    }
}

fn read_family(message: &Message<'_>) -> Result<(String, u16), Malformed> {
    let mut family = (String::new(), 0);
    for attribute in message.attributes(HEADER)? {
        let attribute = attribute?;
        match attribute.kind {
            FAMILY_NAME => family.0 = attribute.text().into_owned(),
            FAMILY_NUMBER => family.1 = u16::from_ne_bytes(attribute.array()?),
            _ => {}
        }
    }
    Ok(family)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Answer, Recorder, Script};
    use crate::wire::{NLM_F_MULTI, NLMSG_DONE, Writer};

    /// Families as the kernel lists them.
    fn families(names: &[(&str, u16)]) -> Vec<u8> {
        let mut writer = Writer::new();
        for (name, number) in names {
            let start = writer.begin(CONTROL, NLM_F_MULTI, 0);
            writer.raw(&[1, 2, 0, 0]);
            writer.text(FAMILY_NAME, name);
            writer.attr(FAMILY_NUMBER, &number.to_ne_bytes());
            writer.u32_ne(3, 1);
            writer.end(start);
        }
        let start = writer.begin(NLMSG_DONE, NLM_F_MULTI, 0);
        writer.raw(&[0; 4]);
        writer.end(start);
        writer.bytes().to_vec()
    }

    #[test]
    fn all_is_forgotten_by_the_number_that_the_name_has() {
        let script = Script::default();
        let listed = families(&[("nlctrl", 16), ("IPVS", 28), ("ethtool", 29)]);
        script.answer(Answer::Replay(vec![listed]));
        let ipvs = Ipvs::over(Recorder::new(script.clone())).unwrap();
        ipvs.unwrap().flush().unwrap();
        let requests = script.take_requests();
        assert_eq!(requests.len(), 2);
        // Length, number, flags (request, acknowledge), sequence, port; command and version.
        assert_eq!(requests[1][..8], [20, 0, 0, 0, 28, 0, 5, 0]);
        assert_eq!(requests[1][16..], [17, 1, 0, 0]);
    }

    #[test]
    fn a_kernel_without_it_has_nothing_to_forget() {
        let script = Script::default();
        script.answer(Answer::Replay(vec![families(&[("nlctrl", 16)])]));
        assert!(Ipvs::over(Recorder::new(script)).unwrap().is_none());
    }
}
