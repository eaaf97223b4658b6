//! Interfaces and addresses that are created and deleted.

use std::net::IpAddr;

use super::{ADDRESS, ADDRESS_LOCAL, DELADDR, DELLINK, NEWADDR, NEWLINK};
use super::{LINK_HEADER, LINK_INFO, LINK_INFO_KIND, LINK_NAME, Route};
use crate::Family;
use crate::exchange::{Refused, RequestError};
use crate::socket::Transport;
use crate::wire::{NLM_F_CREATE, NLM_F_EXCL, Writer};

const LINK_QUEUE: u16 = 13;

const DUMMY: &str = "dummy";

/// Does not wait until it is sure that nobody else has an address: nobody can ask.
const NO_DETECTION: u8 = 0x2;

impl<T: Transport> Route<T> {
    /// Creates a dummy interface, switched off and without a queue. Whether it did: one of that
    /// name, of whatever kind, may be there already.
    ///
    /// # Errors
    /// See [`RequestError`]; `Unsupported` if this kernel has no dummy interfaces.
    pub fn create_dummy(&mut self, name: &str) -> Result<bool, RequestError> {
        let created = self
            .exchange
            .acknowledged(NEWLINK, NLM_F_CREATE | NLM_F_EXCL, |writer| {
                writer.raw(&[0; LINK_HEADER]);
                writer.text(LINK_NAME, name);
                writer.u32_ne(LINK_QUEUE, 0);
                writer.nest(LINK_INFO, |writer| writer.text(LINK_INFO_KIND, DUMMY));
            });
        match created {
            Ok(()) => Ok(true),
            Err(RequestError::Refused { message, source }) => match source.raw_os_error() {
                Some(libc::EEXIST) => Ok(false),
                Some(libc::EOPNOTSUPP) => Err(RequestError::Refused {
                    message: Some("no interfaces of kind dummy".to_owned()),
                    source,
                }),
                _ => Err(RequestError::Refused { message, source }),
            },
            Err(error) => Err(error),
        }
    }

    /// Deletes an interface, by its number. It must be of a kind that can be.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn delete_link(&mut self, index: u32) -> Result<(), RequestError> {
        let mut header = [0; LINK_HEADER];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        self.exchange
            .acknowledged(DELLINK, 0, |writer| writer.raw(&header))
    }

    /// Gives an interface these addresses, each as a network of its own. One that it has already
    /// stays. Returns those that were refused.
    ///
    /// # Errors
    /// See [`RequestError`]; it is not known then which addresses it has.
    pub fn add_addresses(
        &mut self,
        link: u32,
        addresses: &[IpAddr],
    ) -> Result<Vec<Refused>, RequestError> {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.change_addresses((NEWADDR, flags), link, addresses, libc::EEXIST)
    }

    /// Takes these addresses away from an interface, if they are networks of their own. One that it
    /// does not have needs none. Returns those that were refused.
    ///
    /// # Errors
    /// See [`RequestError`]; it is not known then which addresses it has.
    pub fn delete_addresses(
        &mut self,
        link: u32,
        addresses: &[IpAddr],
    ) -> Result<Vec<Refused>, RequestError> {
        self.change_addresses((DELADDR, 0), link, addresses, libc::EADDRNOTAVAIL)
    }

    fn change_addresses(
        &mut self,
        head: (u16, u16),
        link: u32,
        addresses: &[IpAddr],
        fine: i32,
    ) -> Result<Vec<Refused>, RequestError> {
        let write = |address: &IpAddr, writer: &mut Writer| write_address(writer, link, *address);
        let mut refused = self
            .exchange
            .acknowledged_each(addresses, |_| head, write)?;
        refused.retain(|refused| {
            !matches!(&refused.error, RequestError::Refused { source, .. }
                if source.raw_os_error() == Some(fine))
        });
        Ok(refused)
    }
}

fn write_address(writer: &mut Writer, link: u32, address: IpAddr) {
    match address {
        IpAddr::V4(address) => write(
            writer,
            link,
            [Family::V4.number(), 32, 0],
            &address.octets(),
        ),
        IpAddr::V6(address) => {
            let head = [Family::V6.number(), 128, NO_DETECTION];
            write(writer, link, head, &address.octets());
        }
    }
}

/// `head` is family, prefix and flags.
fn write(writer: &mut Writer, link: u32, head: [u8; 3], octets: &[u8]) {
    let [family, prefix, flags] = head;
    let everywhere = 0;
    writer.raw(&[family, prefix, flags, everywhere]);
    writer.raw(&link.to_ne_bytes());
    writer.attr(ADDRESS_LOCAL, octets);
    writer.attr(ADDRESS, octets);
}
