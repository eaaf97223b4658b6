//! Removes what mode ipvs has in the kernel, whichever program made it.
//!
//! Rules name sets, so the rules go first. Virtual servers may belong to other programs: ours are
//! those whose address is on the interface or in one of the sets.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use ferrule_core::model::{Family, Protocol};
use ferrule_kernel::ipset::{Entry, IpPort, Ipset};
use ferrule_kernel::ipvs::{Change, Ipvs, Listed, Reason, ServerKey};
use ferrule_kernel::route::Route;
use ferrule_kernel::socket::Transport;

use super::conversation::{Conversation, failed, interim, is_ours};
use super::layout::LAYOUT;
use super::names::{LINK, LINK_KIND, Set};
use crate::xtables::layout::Layout;
use crate::xtables::removal::removal;
use crate::xtables::tables::Tables;
use crate::{Applied, ApplyError, iptables, protocol_number};

/// Removes virtual servers, the interface with their addresses, and sets of both families, in the
/// network namespace of the calling thread. Rules must be gone. Each is tried, whatever happens to
/// the others; the first failure is returned.
///
/// # Errors
/// See [`ApplyError`].
pub fn remove() -> Result<Applied, ApplyError> {
    let refused = |step: &str| {
        let step = step.to_owned();
        move |source| ApplyError::Refused { step, source }
    };
    let mut route = Route::open().map_err(refused("open a socket for interfaces"))?;
    let mut sets = Ipset::open().map_err(refused("open a socket for sets"))?;
    let mut ipvs = Ipvs::open().map_err(|error| failed("find IPVS", error))?;
    Removal {
        route: &mut route,
        sets: sets.as_mut(),
        ipvs: ipvs.as_mut(),
        steps: 0,
        failure: None,
    }
    .run(&Family::ALL)
}

/// The same for one family, with its rules.
pub fn of_family<T: Transport>(
    kernel: &mut Conversation<T>,
    tables: &mut Tables,
) -> Result<Applied, ApplyError> {
    let layouts: [&Layout; 2] = [&LAYOUT, &iptables::LAYOUT];
    let sent = tables.reconcile(|there| removal(&layouts, there));
    let sent = sent.map_err(|failure| failure.error)?;
    let family = kernel.family;
    let removal = Removal {
        route: &mut kernel.route,
        sets: Some(&mut kernel.sets),
        ipvs: Some(&mut kernel.ipvs),
        steps: sent.steps,
        failure: None,
    };
    removal.run(&[family])
}

/// Conversations, and how far it got.
struct Removal<'a, T> {
    route: &'a mut Route<T>,
    /// `None` where the kernel has no sets.
    sets: Option<&'a mut Ipset<T>>,
    /// `None` where the kernel has no virtual servers.
    ipvs: Option<&'a mut Ipvs<T>>,
    steps: usize,
    failure: Option<ApplyError>,
}

/// Addresses that are ours.
#[derive(Default)]
struct Ours {
    /// On the interface.
    bound: BTreeSet<IpAddr>,
    /// Whatever the protocol and port.
    addresses: BTreeSet<IpAddr>,
    /// With protocol and port.
    sockets: BTreeSet<IpPort>,
    /// On every address of this machine.
    node_ports: BTreeSet<(u8, u16)>,
    /// Addresses of this machine.
    local: BTreeSet<IpAddr>,
}

impl Ours {
    fn has(&self, key: &ServerKey) -> bool {
        let ServerKey {
            protocol,
            address,
            port,
        } = *key;
        let socket = IpPort {
            address,
            protocol,
            port,
        };
        self.addresses.contains(&address)
            || self.sockets.contains(&socket)
            || (self.node_ports.contains(&(protocol, port)) && self.local.contains(&address))
    }
}

impl<T: Transport> Removal<'_, T> {
    fn run(mut self, families: &[Family]) -> Result<Applied, ApplyError> {
        let link = self.find_link();
        let ours = self.ours(link, families);
        // First: a client that has a connection hears nothing, instead of being refused.
        if let Some(link) = link {
            self.unbind(link, &ours, families);
        }
        self.delete_servers(&ours);
        self.destroy_sets(families);
        match self.failure {
            Some(failure) => Err(failure),
            None => Ok(Applied::steps(self.steps)),
        }
    }

    /// Removes addresses of these families, and the interface if no others are left.
    fn unbind(&mut self, link: u32, ours: &Ours, families: &[Family]) {
        let bound = ours.bound.iter().copied();
        let (of_these, others): (Vec<IpAddr>, Vec<IpAddr>) =
            bound.partition(|ip| families.contains(&Family::of(*ip)));
        if others.is_empty() {
            let deleted = self.route.delete_link(link);
            let deleted = deleted.map_err(|error| failed(format!("delete {LINK}"), error));
            self.count(deleted.map(|()| true));
        } else {
            let deleted = self.route.delete_addresses(link, &of_these);
            let deleted = deleted.map_err(|error| failed("remove addresses", error));
            self.count(deleted.map(|_| !of_these.is_empty()));
        }
    }

    /// Keeps the first failure; counts what was done.
    fn count(&mut self, result: Result<bool, ApplyError>) {
        let done = self.note(result);
        self.steps += usize::from(done == Some(true));
    }

    fn note<A>(&mut self, result: Result<A, ApplyError>) -> Option<A> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.failure.get_or_insert(error);
                None
            }
        }
    }

    /// The number of the interface, if there is one.
    fn find_link(&mut self) -> Option<u32> {
        let links = self.route.links();
        let links = self.note(links.map_err(|error| failed("list interfaces", error)))?;
        let link = links.into_iter().find(|link| link.name == LINK)?;
        if link.kind.as_deref() == Some(LINK_KIND) {
            return Some(link.index);
        }
        // As kube-proxy does: an interface of another kind belongs to another program.
        let kind = link.kind.as_deref().unwrap_or("another kind");
        let source = io::Error::other(format!("it is {kind}, not {LINK_KIND}"));
        let step = format!("find {LINK}");
        self.note::<()>(Err(ApplyError::Refused { step, source }));
        None
    }

    fn ours(&mut self, link: Option<u32>, families: &[Family]) -> Ours {
        let mut ours = Ours::default();
        let addresses = self.route.addresses();
        let addresses = self.note(addresses.map_err(|error| failed("list addresses", error)));
        for address in addresses.unwrap_or_default() {
            if Some(address.link) == link {
                if families
                    .iter()
                    .any(|family| is_ours(address.address, *family))
                {
                    ours.addresses.insert(address.address);
                }
                if Family::ALL
                    .iter()
                    .any(|family| is_ours(address.address, *family))
                {
                    ours.bound.insert(address.address);
                }
            } else {
                ours.local.insert(address.address);
            }
        }
        for (family, set) in each(families) {
            let Some(sets) = &mut self.sets else {
                break;
            };
            let name = set.name(family);
            let listing = sets.list(name);
            let listing = listing.map_err(|error| failed(format!("list set {name}"), error));
            let entries = self.note(listing).flatten().map(|listing| listing.entries);
            for entry in entries.unwrap_or_default() {
                match (set, entry) {
                    (Set::Addresses, Entry::Ip(ip)) => drop(ours.addresses.insert(ip)),
                    (Set::LoopBack, _) => {}
                    (_, Entry::IpPort(socket)) => drop(ours.sockets.insert(socket)),
                    (Set::NodePortTcp, Entry::Port(port)) => {
                        ours.node_ports
                            .insert((protocol_number(Protocol::Tcp), port));
                    }
                    (Set::NodePortUdp, Entry::Port(port)) => {
                        ours.node_ports
                            .insert((protocol_number(Protocol::Udp), port));
                    }
                    _ => {}
                }
            }
        }
        ours
    }

    fn delete_servers(&mut self, ours: &Ours) {
        let Some(ipvs) = &mut self.ipvs else {
            return;
        };
        let listed = ipvs.servers();
        let listed = listed.map_err(|error| failed("list virtual servers", error));
        let Some(listed) = self.note(listed) else {
            return;
        };
        let deletions: Vec<Change> = listed
            .into_iter()
            .filter_map(|listed| match listed {
                Listed::Server(server) if ours.has(&server.key) => {
                    Some(Change::DeleteServer(server.key))
                }
                _ => None,
            })
            .collect();
        if deletions.is_empty() {
            return;
        }
        let Some(ipvs) = &mut self.ipvs else {
            return;
        };
        let refused = ipvs.commit(&deletions);
        let refused = refused.map_err(|error| failed("delete virtual servers", error));
        let Some(refused) = self.note(refused) else {
            return;
        };
        self.steps += deletions.len() - refused.len();
        let real = refused.into_iter().find(|r| r.reason != Reason::NoServer);
        if let Some(refusal) = real {
            let step = "delete a virtual server";
            self.note::<()>(Err(failed(step, refusal.error)));
        }
    }

    fn destroy_sets(&mut self, families: &[Family]) {
        let names = each(families).map(|(family, set)| set.name(family));
        let interims = families.iter().map(|family| interim(*family));
        for name in names.chain(interims) {
            let Some(sets) = &mut self.sets else {
                return;
            };
            let destroyed = sets.destroy(name);
            let destroyed = destroyed.map_err(|error| failed(format!("destroy {name}"), error));
            self.count(destroyed);
        }
    }
}

/// All sets of these families.
fn each(families: &[Family]) -> impl Iterator<Item = (Family, Set)> {
    let families = families.iter().copied();
    families.flat_map(|family| Set::ALL.into_iter().map(move |set| (family, set)))
}
