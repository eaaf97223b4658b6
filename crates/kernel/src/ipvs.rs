//! IPVS, the kernel's load balancer.
//!
//! In: [`Change`]s to virtual servers and destinations. Out: which of them the kernel refused;
//! what there is; and what went through it.
//!
//! Which virtual servers there should be is not decided here.

use crate::exchange::{self, Exchange, RequestError};
use crate::socket::{Protocol, Socket, Transport};
use crate::wire::{Attribute, Malformed, Message, Writer};

mod server;
mod stats;
#[cfg(test)]
mod tests;

pub use server::{Counted, Destination, Listed, Server, ServerKey};
pub use stats::Stats;

/// Who knows the numbers of all others.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_NUMBER: u16 = 1;
const FAMILY_NAME: u16 = 2;

const NAME: &str = "IPVS";
const VERSION: u8 = 1;

const NEW_SERVER: u8 = 1;
const SET_SERVER: u8 = 2;
const DELETE_SERVER: u8 = 3;
const GET_SERVER: u8 = 4;
const NEW_DESTINATION: u8 = 5;
const SET_DESTINATION: u8 = 6;
const DELETE_DESTINATION: u8 = 7;
const GET_DESTINATION: u8 = 8;
const SET_CONFIG: u8 = 12;
const GET_CONFIG: u8 = 13;
const GET_INFO: u8 = 15;
const FLUSH: u8 = 17;

const SERVER: u16 = 1;
const DESTINATION: u16 = 2;
const TIMEOUT_TCP: u16 = 4;
const TIMEOUT_TCP_FIN: u16 = 5;
const TIMEOUT_UDP: u16 = 6;
const INFO_VERSION: u16 = 1;
const INFO_TABLE_SIZE: u16 = 2;

/// What every message begins with: command, version, and nothing.
const HEADER: usize = 4;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates a virtual server; it must not be there.
    AddServer(Server),
    /// Gives a virtual server another scheduler, other flags or another timeout. Connections stay.
    SetServer(Server),
    /// Deletes a virtual server with its destinations.
    DeleteServer(ServerKey),
    /// Gives a virtual server a destination; it must not be there.
    AddDestination(ServerKey, Destination),
    /// Gives a destination another weight. Connections stay.
    SetDestination(ServerKey, Destination),
    /// Takes a destination away from a virtual server. Its weight does not matter.
    DeleteDestination(ServerKey, Destination),
}

/// What a refusal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// What was to be created is there already.
    Exists,
    /// There is no such virtual server.
    NoServer,
    /// The virtual server is there, but has no such destination.
    NoDestination,
    /// The kernel has no such scheduler, nor a module of it that could be loaded.
    NoScheduler,
    /// Something else, see the error.
    Other,
}

/// One change that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("change {index}")]
pub struct Refused {
    /// Which change, counted from 0.
    pub index: usize,
    /// What that means.
    pub reason: Reason,
    /// What the kernel said; always [`RequestError::Refused`].
    #[source]
    pub error: RequestError,
}

/// After how many seconds the kernel forgets a connection on which nothing happens. In a change, 0
/// keeps what is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// An established connection of TCP.
    pub tcp: u32,
    /// A connection of TCP that one side has closed.
    pub tcp_fin: u32,
    /// UDP.
    pub udp: u32,
}

/// The kernel's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Its version, three numbers of 8 bits.
    pub version: u32,
    /// Slots in the table of connections.
    pub table_size: u32,
}

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
        Self::over(open_socket()?)
    }

    /// The same, but has the kernel load IPVS first if need be; `None` if it cannot.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn load() -> Result<Option<Self>, RequestError> {
        Self::load_over(open_socket()?)
    }
}

fn open_socket() -> Result<Socket, RequestError> {
    Socket::open(Protocol::Generic).map_err(RequestError::Lost)
}

impl<T: Transport> Ipvs<T> {
    /// [`Ipvs::open`] over this transport.
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

    /// [`Ipvs::load`] over this transport.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn load_over(transport: T) -> Result<Option<Self>, RequestError> {
        let mut exchange = Exchange::new(transport);
        let family = exchange.one(
            CONTROL,
            |writer| {
                writer.raw(&[GET_FAMILY, VERSION, 0, 0]);
                writer.text(FAMILY_NAME, NAME);
            },
            read_family,
        );
        match family {
            Ok((_, number)) => Ok(Some(Self { exchange, number })),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The transport, to look at what it recorded.
    pub const fn transport_mut(&mut self) -> &mut T {
        self.exchange.transport_mut()
    }

    /// The number that the kernel gave it: the kind of all messages about it.
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// Version and size.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn info(&mut self) -> Result<Info, RequestError> {
        self.exchange.one(
            self.number,
            |writer| writer.raw(&header(GET_INFO)),
            |message| {
                let mut info = Info::default();
                for attr in message.attributes(HEADER)? {
                    let attr = attr?;
                    match attr.kind {
                        INFO_VERSION => info.version = attr.u32_ne()?,
                        INFO_TABLE_SIZE => info.table_size = attr.u32_ne()?,
                        _ => {}
                    }
                }
                Ok(info)
            },
        )
    }

    /// The timeouts of this network namespace.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn timeouts(&mut self) -> Result<Timeouts, RequestError> {
        self.exchange.one(
            self.number,
            |writer| writer.raw(&header(GET_CONFIG)),
            |message| {
                let mut timeouts = Timeouts::default();
                for attr in message.attributes(HEADER)? {
                    let attr = attr?;
                    match attr.kind {
                        TIMEOUT_TCP => timeouts.tcp = attr.u32_ne()?,
                        TIMEOUT_TCP_FIN => timeouts.tcp_fin = attr.u32_ne()?,
                        TIMEOUT_UDP => timeouts.udp = attr.u32_ne()?,
                        _ => {}
                    }
                }
                Ok(timeouts)
            },
        )
    }

    /// Sets those that are not 0.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), RequestError> {
        self.exchange.acknowledged(self.number, 0, |writer| {
            writer.raw(&header(SET_CONFIG));
            writer.u32_ne(TIMEOUT_TCP, timeouts.tcp);
            writer.u32_ne(TIMEOUT_TCP_FIN, timeouts.tcp_fin);
            writer.u32_ne(TIMEOUT_UDP, timeouts.udp);
        })
    }

    /// Makes these changes in order. Each succeeds or fails on its own; returns those that failed.
    ///
    /// # Errors
    /// See [`RequestError`], but never `Refused`: it is not known then which changes were made.
    pub fn commit(&mut self, changes: &[Change]) -> Result<Vec<Refused>, RequestError> {
        let head = |_: &Change| (self.number, 0);
        let refused = self
            .exchange
            .acknowledged_each(changes, head, Change::write)?;
        let explained = |exchange::Refused { index, error }| Refused {
            index,
            reason: changes[index].reason(&error),
            error,
        };
        Ok(refused.into_iter().map(explained).collect())
    }

    /// All virtual servers of this network namespace, of both families and whoever made them.
    ///
    /// The kernel does not say when changes meanwhile made it leave one out.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn servers(&mut self) -> Result<Vec<Listed>, RequestError> {
        self.dump_servers(server::read_server)
    }

    /// The statistics of all virtual servers that have an address. The kernel adds them up every
    /// two seconds.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn server_stats(&mut self) -> Result<Vec<(ServerKey, Stats)>, RequestError> {
        self.dump_servers(|attr| match server::read_server(attr)? {
            Some(Listed::Server(server)) => Ok(Some((server.key, server::server_stats(attr)?))),
            _ => Ok(None),
        })
    }

    /// The destinations of a virtual server; none if it is not there.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn destinations(&mut self, server: &ServerKey) -> Result<Vec<Counted>, RequestError> {
        let family = server::family_of(server.address);
        self.dump_destinations(server, |attr| server::read_destination(attr, family))
    }

    /// The destinations of a virtual server with their statistics; none if it is not there.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn destination_stats(
        &mut self,
        server: &ServerKey,
    ) -> Result<Vec<(Counted, Stats)>, RequestError> {
        let family = server::family_of(server.address);
        self.dump_destinations(server, |attr| {
            let Some(destination) = server::read_destination(attr, family)? else {
                return Ok(None);
            };
            Ok(Some((destination, server::destination_stats(attr)?)))
        })
    }

    /// Forgets all virtual servers of this network namespace, whoever made them.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn flush(&mut self) -> Result<(), RequestError> {
        self.exchange
            .acknowledged(self.number, 0, |writer| writer.raw(&header(FLUSH)))
    }

    fn dump_servers<A>(
        &mut self,
        read: impl Fn(&Attribute<'_>) -> Result<Option<A>, Malformed>,
    ) -> Result<Vec<A>, RequestError> {
        self.exchange.dump_all(
            self.number,
            |writer| writer.raw(&header(GET_SERVER)),
            |message, all| read_nested(message, NEW_SERVER, SERVER, &read, all),
        )
    }

    fn dump_destinations<A>(
        &mut self,
        server: &ServerKey,
        read: impl Fn(&Attribute<'_>) -> Result<Option<A>, Malformed>,
    ) -> Result<Vec<A>, RequestError> {
        self.exchange.dump_all(
            self.number,
            |writer| {
                writer.raw(&header(GET_DESTINATION));
                writer.nest(SERVER, |writer| server.write(writer));
            },
            |message, all| read_nested(message, NEW_DESTINATION, DESTINATION, &read, all),
        )
    }
}

impl Change {
    fn write(&self, writer: &mut Writer) {
        writer.raw(&header(self.command()));
        writer.nest(SERVER, |writer| match self {
            Self::AddServer(server) | Self::SetServer(server) => server.write(writer),
            Self::DeleteServer(key)
            | Self::AddDestination(key, _)
            | Self::SetDestination(key, _)
            | Self::DeleteDestination(key, _) => key.write(writer),
        });
        match self {
            Self::AddServer(_) | Self::SetServer(_) | Self::DeleteServer(_) => {}
            Self::AddDestination(_, destination) | Self::SetDestination(_, destination) => {
                writer.nest(DESTINATION, |writer| destination.write(writer));
            }
            Self::DeleteDestination(_, Destination { address, port, .. }) => {
                writer.nest(DESTINATION, |writer| {
                    server::write_destination_key(writer, *address, *port);
                });
            }
        }
    }

    const fn command(&self) -> u8 {
        match self {
            Self::AddServer(_) => NEW_SERVER,
            Self::SetServer(_) => SET_SERVER,
            Self::DeleteServer(_) => DELETE_SERVER,
            Self::AddDestination(..) => NEW_DESTINATION,
            Self::SetDestination(..) => SET_DESTINATION,
            Self::DeleteDestination(..) => DELETE_DESTINATION,
        }
    }

    /// What it means that the kernel refused this. It has one error for several things that may be
    /// missing; which it is depends on what was asked.
    fn reason(&self, error: &RequestError) -> Reason {
        let RequestError::Refused { source, .. } = error else {
            return Reason::Other;
        };
        match (source.raw_os_error(), self) {
            (Some(libc::EEXIST), Self::AddServer(_) | Self::AddDestination(..)) => Reason::Exists,
            (Some(libc::ESRCH), _) => Reason::NoServer,
            (Some(libc::ENOENT), Self::AddServer(_) | Self::SetServer(_)) => Reason::NoScheduler,
            (Some(libc::ENOENT), Self::SetDestination(..) | Self::DeleteDestination(..)) => {
                Reason::NoDestination
            }
            _ => Reason::Other,
        }
    }
}

const fn header(command: u8) -> [u8; HEADER] {
    [command, VERSION, 0, 0]
}

/// Reads the one object in a part of a dump, which answers with the command that would create it.
fn read_nested<A>(
    message: &Message<'_>,
    command: u8,
    kind: u16,
    read: impl Fn(&Attribute<'_>) -> Result<Option<A>, Malformed>,
    all: &mut Vec<A>,
) -> Result<(), Malformed> {
    if message.body.first() != Some(&command) {
        return Ok(());
    }
    for attr in message.attributes(HEADER)? {
        let attr = attr?;
        if attr.kind == kind {
            all.extend(read(&attr)?);
        }
    }
    Ok(())
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
