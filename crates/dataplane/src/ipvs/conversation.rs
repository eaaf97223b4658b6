//! What mode ipvs asks of the kernel, but for the rules: sets, virtual servers, addresses.
//!
//! In: steps. Out: what there is, or an [`ApplyError`]. That something to be deleted is gone
//! already, or something to be created is there, is no failure.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ferrule_core::model::Family;
use ferrule_kernel::exchange::{Refused, RequestError};
use ferrule_kernel::ipset::{self, Entry, Header, Ipset};
use ferrule_kernel::ipvs::{
    Change, Counted, Destination, Listed, Reason, Server, ServerKey, {self as kernel_ipvs},
};
use ferrule_kernel::route::Route;
use ferrule_kernel::socket::{Socket, Transport};
use ipnet::IpNet;

use super::diff::{Installed, Intake, Present, Step};
use super::drain::Count;
use super::names::{LINK, LINK_KIND, Set};
use super::render::Service;
use crate::{ApplyError, kernel_family, said};

/// Entries that a set has room for. kube-proxy's 65,536 are not enough for large clusters; room
/// that is not used costs nothing.
pub const ROOM: u32 = 1 << 20;

/// The name of a set while it takes the place of another.
pub const fn interim(family: Family) -> &'static str {
    match family {
        Family::V4 => "FERRULE-INTERIM",
        Family::V6 => "FERRULE-6-INTERIM",
    }
}

/// Sockets for everything but rules.
#[derive(Debug)]
pub struct Conversation<T = Socket> {
    pub family: Family,
    pub ipvs: kernel_ipvs::Ipvs<T>,
    pub sets: Ipset<T>,
    pub route: Route<T>,
}

/// A virtual server that the kernel refused.
#[derive(Debug)]
pub struct RefusedServer {
    /// Which one.
    pub key: ServerKey,
    /// The kernel has no such scheduler.
    pub no_scheduler: bool,
    /// What the kernel said.
    pub error: io::Error,
}

/// Why steps were not made.
#[derive(Debug)]
pub enum Failure {
    /// What is there is not what we remember.
    Unexpected(io::Error),
    /// Something else.
    Other(ApplyError),
}

impl From<Failure> for ApplyError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unexpected(source) => Self::OutOfSync(source),
            Failure::Other(error) => error,
        }
    }
}

impl From<ApplyError> for Failure {
    fn from(error: ApplyError) -> Self {
        Self::Other(error)
    }
}

/// An answer that was refused or lost.
pub fn failed(step: impl Into<String>, error: RequestError) -> ApplyError {
    let step = step.into();
    match error {
        RequestError::Refused { message, source } => {
            let message = message.map_or_else(String::new, |message| format!(": {message}"));
            ApplyError::Refused {
                step: format!("{step}{message}"),
                source,
            }
        }
        error => ApplyError::OutOfSync(said(error)),
    }
}

impl<T: Transport> Conversation<T> {
    /// The number of the interface, which is created if need be; and whether it was.
    pub fn ensure_link(&mut self) -> Result<(u32, bool), ApplyError> {
        if let Some(index) = self.find_link()? {
            return Ok((index, false));
        }
        let step = || format!("create {LINK}");
        let created = self.route.create_dummy(LINK);
        // The other family may have been faster.
        let created = created.map_err(|error| failed(step(), error))?;
        let index = self.find_link()?.ok_or_else(|| ApplyError::Refused {
            step: step(),
            source: io::ErrorKind::NotFound.into(),
        })?;
        Ok((index, created))
    }

    /// The number of the interface, if there is one.
    pub fn find_link(&mut self) -> Result<Option<u32>, ApplyError> {
        let links = self.route.links();
        let links = links.map_err(|error| failed("list interfaces", error))?;
        match links.into_iter().find(|link| link.name == LINK) {
            Some(link) if link.kind.as_deref() != Some(LINK_KIND) => {
                let kind = link.kind.as_deref().unwrap_or("another kind");
                Err(ApplyError::Refused {
                    step: format!("find {LINK}"),
                    source: io::Error::other(format!("it is {kind}, not {LINK_KIND}")),
                })
            }
            link => Ok(link.map(|link| link.index)),
        }
    }

    /// Addresses of the interface.
    pub fn addresses(&mut self, link: u32) -> Result<BTreeSet<IpAddr>, ApplyError> {
        let all = self.route.addresses();
        let all = all.map_err(|error| failed("list addresses", error))?;
        let of_link = all.into_iter().filter(|address| address.link == link);
        let ips = of_link.map(|address| address.address);
        let family = self.family;
        Ok(ips.filter(|ip| is_ours(*ip, family)).collect())
    }

    /// Makes all sets exist with room for `wanted`; whether something was written. A set of another
    /// shape is replaced by a copy with these entries.
    pub fn ensure_sets(&mut self, wanted: &BTreeSet<(Set, Entry)>) -> Result<usize, ApplyError> {
        let headers = self.headers()?;
        let mut written = 0;
        for set in Set::ALL {
            let shape = self.shape(set, set.name(self.family));
            match headers.get(&set) {
                None => {
                    let step = || format!("create set {}", shape.name);
                    self.sets
                        .create(&shape)
                        .map_err(|error| failed(step(), error))?;
                    written += 1;
                }
                Some(header) if !has_shape(header, &shape) => {
                    let entries: Vec<Entry> = entries_of(wanted, set).collect();
                    self.replace_set(&shape, &entries)
                        .map_err(|error| failed(format!("replace set {}", header.name), error))?;
                    written += 1;
                }
                Some(_) => {}
            }
        }
        Ok(written)
    }

    /// Our sets that there are.
    pub fn headers(&mut self) -> Result<BTreeMap<Set, Header>, ApplyError> {
        let headers = self.sets.headers();
        let headers = headers.map_err(|error| failed("list sets", error))?;
        let mut by_name: BTreeMap<String, Header> = headers
            .into_iter()
            .map(|header| (header.name.clone(), header))
            .collect();
        Ok(Set::ALL
            .into_iter()
            .filter_map(|set| Some((set, by_name.remove(set.name(self.family))?)))
            .collect())
    }

    /// Whether a set is as we make it.
    pub fn has_shape(&self, set: Set, header: &Header) -> bool {
        has_shape(header, &self.shape(set, set.name(self.family)))
    }

    fn shape(&self, set: Set, name: &str) -> ipset::Set {
        ipset::Set {
            name: name.to_owned(),
            kind: set.kind(),
            family: kernel_family(self.family),
            max_entries: ROOM,
        }
    }

    fn replace_set(&mut self, shape: &ipset::Set, entries: &[Entry]) -> Result<(), RequestError> {
        let interim = interim(self.family);
        // Perhaps somebody died half-way.
        self.sets.destroy(interim)?;
        self.sets.create_new(&ipset::Set {
            name: interim.to_owned(),
            ..shape.clone()
        })?;
        first(self.sets.add(interim, entries)?)?;
        self.sets.swap(interim, &shape.name)?;
        self.sets.destroy(interim).map(drop)
    }

    /// Entries of all sets.
    pub fn entries(&mut self) -> Result<BTreeSet<(Set, Entry)>, ApplyError> {
        let mut all = BTreeSet::new();
        for set in Set::ALL {
            let name = set.name(self.family);
            let listing = self.sets.list(name);
            let listing = listing.map_err(|error| failed(format!("list set {name}"), error))?;
            let entries = listing.into_iter().flat_map(|listing| listing.entries);
            all.extend(entries.map(|entry| (set, entry)));
        }
        Ok(all)
    }

    /// Virtual servers of this family that are ours: not those for marks, nor those in these
    /// networks, unless they are wanted.
    pub fn servers(
        &mut self,
        excluded: &[IpNet],
        wanted: impl Fn(&ServerKey) -> bool,
    ) -> Result<BTreeMap<ServerKey, Present>, ApplyError> {
        let listed = self.ipvs.servers();
        let listed = listed.map_err(|error| failed("list virtual servers", error))?;
        let mut servers = BTreeMap::new();
        for listed in listed {
            let Listed::Server(server) = listed else {
                continue;
            };
            let key = server.key;
            let is_excluded = || excluded.iter().any(|net| net.contains(&key.address));
            let is_wanted = wanted(&key);
            if Family::of(key.address) != self.family || (!is_wanted && is_excluded()) {
                continue;
            }
            // What goes goes with its destinations.
            let destinations = if is_wanted {
                self.destinations(&key)?
            } else {
                Vec::new()
            };
            servers.insert(key, present(server, &destinations));
        }
        Ok(servers)
    }

    fn destinations(&mut self, key: &ServerKey) -> Result<Vec<Counted>, ApplyError> {
        let destinations = self.ipvs.destinations(key);
        destinations.map_err(|error| failed(format!("list destinations of {key}"), error))
    }

    /// Connections of each destination of a virtual server.
    pub fn counts(&mut self, key: &ServerKey) -> Result<BTreeMap<SocketAddr, Count>, ApplyError> {
        let destinations = self.destinations(key)?.into_iter();
        Ok(destinations
            .map(|counted| {
                let Counted {
                    active, inactive, ..
                } = counted;
                (address(&counted.destination), Count { active, inactive })
            })
            .collect())
    }

    /// Everything that is installed, once there are sets.
    pub fn installed(
        &mut self,
        link: u32,
        excluded: &[IpNet],
        wanted: impl Fn(&ServerKey) -> bool,
    ) -> Result<Installed, ApplyError> {
        Ok(Installed {
            servers: self.servers(excluded, wanted)?,
            entries: self.entries()?,
            addresses: self.addresses(link)?,
        })
    }

    /// Adds or deletes entries of one set.
    pub fn change_entries(
        &mut self,
        set: Set,
        entries: &[Entry],
        add: bool,
    ) -> Result<(), ApplyError> {
        let name = set.name(self.family);
        let (refused, verb) = if add {
            (self.sets.add(name, entries), "add to")
        } else {
            (self.sets.delete(name, entries), "delete from")
        };
        let step = || format!("{verb} set {name}");
        let refused = refused.map_err(|error| failed(step(), error))?;
        if let Some(Refused { index, error }) = refused.into_iter().next() {
            let entry = entries
                .get(index)
                .map_or_else(String::new, Entry::to_string);
            return Err(failed(format!("{}: {entry}", step()), error));
        }
        Ok(())
    }

    /// Adds or removes addresses of the interface.
    pub fn change_addresses(
        &mut self,
        link: u32,
        ips: &[IpAddr],
        add: bool,
    ) -> Result<(), Failure> {
        let (refused, verb) = if add {
            (self.route.add_addresses(link, ips), "add")
        } else {
            (self.route.delete_addresses(link, ips), "remove")
        };
        let refused = refused.map_err(|error| failed(format!("{verb} addresses"), error))?;
        let Some(Refused { index, error }) = refused.into_iter().next() else {
            return Ok(());
        };
        if let RequestError::Refused { source, .. } = &error
            && source.raw_os_error() == Some(ENODEV)
        {
            return Err(Failure::Unexpected(said(error)));
        }
        let ip = ips.get(index).map_or_else(String::new, IpAddr::to_string);
        Err(failed(format!("{verb} address {ip}"), error).into())
    }

    /// Makes steps about virtual servers; returns those that the kernel refused.
    pub fn change_servers(&mut self, steps: &[Step]) -> Result<Vec<RefusedServer>, Failure> {
        let changes: Vec<Change> = steps.iter().filter_map(change).collect();
        let mut refused = Vec::new();
        let mut again = Vec::new();
        for refusal in self.commit(&changes)? {
            let Some(change) = changes.get(refusal.index) else {
                continue;
            };
            let key = key_of(change);
            let source = || said_by(&refusal.error);
            match (change, refusal.reason) {
                // Somebody was faster; it becomes as wanted all the same.
                (Change::AddServer(server), Reason::Exists) => {
                    again.push(Change::SetServer(server.clone()));
                }
                (Change::AddDestination(key, destination), Reason::Exists) => {
                    again.push(Change::SetDestination(*key, *destination));
                }
                (Change::DeleteServer(_), Reason::NoServer)
                | (Change::DeleteDestination(..), Reason::NoDestination) => {}
                // What belongs to a refused virtual server is refused with it.
                (_, Reason::NoServer) if refused.iter().any(|r: &RefusedServer| r.key == key) => {}
                (_, Reason::NoServer | Reason::NoDestination) => {
                    return Err(Failure::Unexpected(source()));
                }
                (_, reason) => refused.push(RefusedServer {
                    key,
                    no_scheduler: reason == Reason::NoScheduler,
                    error: source(),
                }),
            }
        }
        for refusal in self.commit(&again)? {
            let error = said_by(&refusal.error);
            if let Some(change) = again.get(refusal.index) {
                refused.push(RefusedServer {
                    key: key_of(change),
                    no_scheduler: refusal.reason == Reason::NoScheduler,
                    error,
                });
            }
        }
        Ok(refused)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<Vec<kernel_ipvs::Refused>, ApplyError> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let refused = self.ipvs.commit(changes);
        refused.map_err(|error| failed("change virtual servers", error))
    }
}

/// The kernel's word for an interface that is gone.
const ENODEV: i32 = 19;

/// Whether an address of the interface is of this family, and not one that the kernel gives every
/// interface.
pub fn is_ours(ip: IpAddr, family: Family) -> bool {
    let is_kernels = match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    Family::of(ip) == family && !is_kernels
}

fn has_shape(header: &Header, shape: &ipset::Set) -> bool {
    let is_bitmap = shape.kind == ipset::Type::BitmapPort;
    header.kind == Some(shape.kind)
        && (is_bitmap
            || (header.family == Some(shape.family) && header.max_entries >= shape.max_entries))
}

fn entries_of(all: &BTreeSet<(Set, Entry)>, set: Set) -> impl Iterator<Item = Entry> {
    let of_set = all.iter().filter(move |(of, _)| *of == set);
    of_set.map(|(_, entry)| *entry)
}

fn first(refused: Vec<Refused>) -> Result<(), RequestError> {
    match refused.into_iter().next() {
        Some(refused) => Err(refused.error),
        None => Ok(()),
    }
}

fn said_by(error: &RequestError) -> io::Error {
    match error {
        RequestError::Refused { source, .. } => match source.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => source.kind().into(),
        },
        other => io::Error::other(other.to_string()),
    }
}

fn address(destination: &Destination) -> SocketAddr {
    SocketAddr::new(destination.address, destination.port)
}

fn destination(address: SocketAddr, weight: u32) -> Destination {
    Destination {
        address: address.ip(),
        port: address.port(),
        weight,
    }
}

fn present(server: Server, destinations: &[Counted]) -> Present {
    let destinations = destinations.iter().map(|counted| {
        let intake = match (counted.method, counted.destination.weight) {
            (Counted::MASQUERADE, 1) => Intake::Open,
            (Counted::MASQUERADE, 0) => Intake::Closed,
            _ => Intake::Other,
        };
        (address(&counted.destination), intake)
    });
    Present {
        scheduler: Arc::from(server.scheduler),
        flags: server.flags,
        timeout: server.timeout,
        destinations: destinations.collect(),
    }
}

fn server(key: ServerKey, service: &Service) -> Server {
    Server {
        key,
        scheduler: service.scheduler.to_string(),
        flags: service.flags,
        timeout: service.timeout,
    }
}

/// A step as the kernel takes it, if it is about virtual servers.
fn change(step: &Step) -> Option<Change> {
    Some(match step {
        Step::AddServer(key, service) => Change::AddServer(server(*key, service)),
        Step::SetServer(key, service) => Change::SetServer(server(*key, service)),
        Step::DeleteServer(key) => Change::DeleteServer(*key),
        Step::AddDestination(key, to) => Change::AddDestination(*key, destination(*to, 1)),
        Step::Open(key, to) => Change::SetDestination(*key, destination(*to, 1)),
        Step::Close(key, to) => Change::SetDestination(*key, destination(*to, 0)),
        Step::DeleteDestination(key, to) => Change::DeleteDestination(*key, destination(*to, 0)),
        Step::Enter(..) | Step::Leave(..) | Step::Rules(_) | Step::Bind(_) | Step::Unbind(_) => {
            return None;
        }
    })
}

fn key_of(change: &Change) -> ServerKey {
    match change {
        Change::AddServer(server) | Change::SetServer(server) => server.key,
        Change::DeleteServer(key)
        | Change::AddDestination(key, _)
        | Change::SetDestination(key, _)
        | Change::DeleteDestination(key, _) => *key,
    }
}
