//! The steps from what is installed to what is wanted, in the order the kernel must see them.
//!
//! The kernel has no transactions here, so the order is what keeps traffic right in between:
//!
//! 1. An address that is no longer one of policy Local is masqueraded first, as its new
//!    destinations need.
//! 2. Entries of sets and rules are there before the virtual server that they guard.
//! 3. Virtual servers, then their destinations; new destinations before old ones go.
//! 4. Addresses come last, when everything behind them works.
//! 5. All that goes, goes in reverse.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ferrule_kernel::ipset::Entry;
use ferrule_kernel::ipvs::ServerKey;

use super::names::Set;
use super::render::{Item, Service};
use super::statics::Contents;

/// What is installed, or a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// Virtual servers.
    pub servers: BTreeMap<ServerKey, Present>,
    /// Entries of sets.
    pub entries: BTreeSet<(Set, Entry)>,
    /// Addresses on the interface.
    pub addresses: BTreeSet<IpAddr>,
}

/// A virtual server that is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// How the kernel chooses a destination.
    pub scheduler: Arc<str>,
    /// See [`ferrule_kernel::ipvs::Server::flags`].
    pub flags: u32,
    /// See [`ferrule_kernel::ipvs::Server::timeout`].
    pub timeout: u32,
    /// Its destinations.
    pub destinations: BTreeMap<SocketAddr, Intake>,
}

/// What a destination gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// New connections, by weight 1.
    Open,
    /// No new connections, by weight 0.
    Closed,
    /// It is not as we write it.
    Other,
}

/// What is wanted, or a part of it.
#[derive(Clone, Debug, Default)]
pub struct Target<'a> {
    /// Virtual servers.
    pub servers: BTreeMap<ServerKey, &'a Service>,
    /// Entries of sets.
    pub entries: BTreeSet<(Set, Entry)>,
    /// Addresses on the interface.
    pub addresses: BTreeSet<IpAddr>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Adds an entry to a set.
    Enter(Set, Entry),
    /// Deletes an entry from a set.
    Leave(Set, Entry),
    /// Writes the rules.
    Rules(Contents),
    /// Creates a virtual server without destinations.
    AddServer(ServerKey, Service),
    /// Changes scheduler, flags or timeout. Connections stay.
    SetServer(ServerKey, Service),
    /// Deletes a virtual server with its destinations.
    DeleteServer(ServerKey),
    /// Creates a destination.
    AddDestination(ServerKey, SocketAddr),
    /// Lets new connections go to a destination.
    Open(ServerKey, SocketAddr),
    /// Lets no new connections go to a destination.
    Close(ServerKey, SocketAddr),
    /// Deletes a destination and its connections.
    DeleteDestination(ServerKey, SocketAddr),
    /// Adds an address to the interface.
    Bind(IpAddr),
    /// Removes an address from the interface.
    Unbind(IpAddr),
}

/// Steps, and destinations that get no new connections afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// What to do.
    pub steps: Vec<Step>,
    /// Whose connections may end before they are deleted.
    pub closed: Vec<(ServerKey, SocketAddr)>,
}

/// What to do with the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// What they depend on before everything else changes.
    pub early: Option<Contents>,
    /// What they depend on at the end, if that differs.
    pub late: Option<Contents>,
}

impl Rules {
    /// From one state to another: a rule that goes stays until what it guards is gone.
    pub fn between(before: &Contents, after: Contents) -> Self {
        let both = before.union(&after);
        Self {
            late: (both != after).then_some(after),
            early: Some(both),
        }
    }
}

impl Installed {
    /// Adds an item.
    pub fn add(&mut self, item: Item) {
        match item {
            Item::Entry(set, entry) => drop(self.entries.insert((set, entry))),
            Item::Address(ip) => drop(self.addresses.insert(ip)),
            Item::Barred(_) => {}
        }
    }

    /// Sets with entries.
    pub fn occupied(&self) -> BTreeSet<Set> {
        self.entries.iter().map(|(set, _)| *set).collect()
    }
}

impl Present {
    /// A virtual server as we left it.
    pub fn of(service: &Service, draining: impl IntoIterator<Item = SocketAddr>) -> Self {
        let open = service.destinations.iter();
        let open = open.map(|address| (*address, Intake::Open));
        let closed = draining.into_iter();
        let closed = closed.map(|address| (address, Intake::Closed));
        Self {
            scheduler: service.scheduler.clone(),
            flags: service.flags,
            timeout: service.timeout,
            destinations: closed.chain(open).collect(),
        }
    }

    fn is_like(&self, service: &Service) -> bool {
        (&self.scheduler, self.flags, self.timeout)
            == (&service.scheduler, service.flags, service.timeout)
    }
}

impl Target<'_> {
    /// Adds an item.
    pub fn add(&mut self, item: Item) {
        match item {
            Item::Entry(set, entry) => drop(self.entries.insert((set, entry))),
            Item::Address(ip) => drop(self.addresses.insert(ip)),
            Item::Barred(_) => {}
        }
    }
}

/// The steps from what is installed to what is wanted.
pub fn diff(installed: &Installed, wanted: &Target<'_>, rules: Rules) -> Difference {
    let mut servers = Servers::default();
    for (key, service) in &wanted.servers {
        servers.compare(*key, installed.servers.get(key), service);
    }
    let stray = installed.servers.keys();
    let stray = stray.filter(|key| !wanted.servers.contains_key(key));
    servers.gone.extend(stray.copied().map(Step::DeleteServer));

    let (long, short) = entries(&installed.entries, &wanted.entries);
    let bind = wanted.addresses.difference(&installed.addresses);
    let unbind = installed.addresses.difference(&wanted.addresses);

    let mut steps = short.first;
    steps.extend(long.first);
    steps.extend(rules.early.map(Step::Rules));
    steps.extend(servers.changed);
    steps.extend(servers.opened);
    steps.extend(servers.closing);
    steps.extend(short.last);
    steps.extend(bind.copied().map(Step::Bind));
    steps.extend(unbind.copied().map(Step::Unbind));
    steps.extend(servers.gone);
    steps.extend(long.last);
    steps.extend(rules.late.map(Step::Rules));
    Difference {
        steps,
        closed: servers.closed,
    }
}

/// Steps about virtual servers.
#[derive(Default)]
struct Servers {
    changed: Vec<Step>,
    opened: Vec<Step>,
    closing: Vec<Step>,
    gone: Vec<Step>,
    closed: Vec<(ServerKey, SocketAddr)>,
}

impl Servers {
    fn compare(&mut self, key: ServerKey, present: Option<&Present>, service: &Service) {
        match present {
            None => self.changed.push(Step::AddServer(key, service.clone())),
            Some(present) if !present.is_like(service) => {
                self.changed.push(Step::SetServer(key, service.clone()));
            }
            Some(_) => {}
        }
        let nothing = BTreeMap::new();
        let there = present.map_or(&nothing, |present| &present.destinations);
        for address in service.destinations.iter() {
            match there.get(address) {
                None => self.opened.push(Step::AddDestination(key, *address)),
                Some(Intake::Open) => {}
                Some(Intake::Closed | Intake::Other) => {
                    self.opened.push(Step::Open(key, *address));
                }
            }
        }
        for (address, intake) in there {
            if service.destinations.binary_search(address).is_ok() {
                continue;
            }
            if service.leaving.binary_search(address).is_err() {
                // No slice has it: another pod may get the address any moment.
                self.closing.push(Step::DeleteDestination(key, *address));
                continue;
            }
            if *intake != Intake::Closed {
                self.closing.push(Step::Close(key, *address));
            }
            self.closed.push((key, *address));
        }
    }
}

/// Entries that change at the beginning and at the end of everything else.
#[derive(Default)]
struct Halves {
    first: Vec<Step>,
    last: Vec<Step>,
}

/// Two kinds of sets. Most take effect for as long as possible: entries come before everything else
/// and go after it. Those that spare masquerading take effect for as short as possible: packets to
/// an endpoint of another node must be masqueraded.
fn entries(
    installed: &BTreeSet<(Set, Entry)>,
    wanted: &BTreeSet<(Set, Entry)>,
) -> (Halves, Halves) {
    let (mut long, mut short) = (Halves::default(), Halves::default());
    let mut come: Vec<_> = wanted.difference(installed).copied().collect();
    let mut gone: Vec<_> = installed.difference(wanted).copied().collect();
    come.sort_unstable_by_key(|(set, entry)| (rank(*set), *set, *entry));
    gone.sort_unstable_by_key(|(set, entry)| (Reverse(rank(*set)), *set, *entry));
    for (set, entry) in come {
        let step = Step::Enter(set, entry);
        if spares_masquerading(set) {
            short.last.push(step);
        } else {
            long.first.push(step);
        }
    }
    for (set, entry) in gone {
        let step = Step::Leave(set, entry);
        if spares_masquerading(set) {
            short.first.push(step);
        } else {
            long.last.push(step);
        }
    }
    (long, short)
}

const fn spares_masquerading(set: Set) -> bool {
    matches!(
        set,
        Set::LoadBalancerLocal
            | Set::NodePortTcpLocal
            | Set::NodePortUdpLocal
            | Set::NodePortSctpLocal
    )
}

/// Entries come in this order of sets, and go in the opposite one: those that refuse what other sets
/// allow come behind them.
const fn rank(set: Set) -> u8 {
    match set {
        Set::Addresses => 2,
        Set::Firewalled => 1,
        _ => 0,
    }
}
