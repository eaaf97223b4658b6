//! Who claims which address, and who of them holds it.
//!
//! Two Services can name the same external IP and port, or one can name another's cluster IP.
//! kube-proxy then lets the one that happens to be visited last win. Here every claim has a rank,
//! the strongest claim holds the address, and the others wait in order of rank, so the next one
//! takes over when the holder goes.
//!
//! In: the claims of one Service port before and after a change. Out: a [`Contest`], the Service
//! ports whose frontends win or lose an address by it. Each claim that comes or goes costs one
//! lookup, and the logarithm of all waiting claims where the address is contested. Nothing is kept
//! per pair of rivals.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use super::{Exposure, Frontend, FrontendKind};
use crate::model::{Port, PortKey, Protocol, ServiceKey};

/// What a packet is addressed to.
///
/// Bytes compare and hash at once where the parts would one by one; that is most of what a contest
/// costs. The IP comes last: the addresses of one Service port are neighbours in sorted
/// collections, and mostly claimed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Address {
    protocol: Protocol,
    /// Which sort of IP, the port, the IP.
    rest: [u8; 19],
}

impl Address {
    /// `ip: None` is the NodePort addresses of this node.
    pub(super) fn new(ip: Option<IpAddr>, protocol: Protocol, port: Port) -> Self {
        let mut rest = [0; 19];
        rest[1..3].copy_from_slice(&port.get().to_be_bytes());
        match ip {
            None => {}
            Some(IpAddr::V4(ip)) => {
                rest[0] = 4;
                rest[3..7].copy_from_slice(&ip.octets());
            }
            Some(IpAddr::V6(ip)) => {
                rest[0] = 6;
                rest[3..].copy_from_slice(&ip.octets());
            }
        }
        Self { protocol, rest }
    }
}

/// A Service port's claim to an address. The order is the rank, strongest first: by kind, then
/// age, then name. It is total, so the order in which Services arrive does not matter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    pub(super) kind: FrontendKind,
    pub(super) created: i64,
    pub(super) service: ServiceKey,
    pub(super) port_name: Arc<str>,
}

impl Claim {
    pub(super) fn new(kind: FrontendKind, created: i64, key: &PortKey) -> Self {
        Self {
            kind,
            created,
            service: key.service.clone(),
            port_name: key.name.clone(),
        }
    }

    /// Whether this Service port makes the claim; the protocol is that of the address.
    pub(super) fn is_of(&self, key: &PortKey) -> bool {
        self.service == key.service && self.port_name == key.name
    }

    /// The Service port that makes it.
    pub(super) fn port_key(&self, address: &Address) -> PortKey {
        PortKey {
            service: self.service.clone(),
            name: self.port_name.clone(),
            protocol: address.protocol,
        }
    }
}

/// A claim and what it claims. All claims to one address are neighbours, strongest first.
pub(super) type Place = (Address, Claim);

/// What one Service port claims, sorted: each address once, by its strongest kind. A Service may
/// name an address as external and as load balancer IP; it does not compete with itself.
pub(super) type Claimed = Vec<(Address, FrontendKind)>;

/// How one Service fares at the addresses that others claim too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Claims that wait.
    pub(super) lost: usize,
    /// Addresses held while other claims wait.
    pub(super) held: usize,
}

/// What a round of changes leaves to mark.
#[derive(Debug, Default)]
pub(super) struct Contest {
    /// Ports with a frontend that may have won or lost its address; may repeat.
    pub(super) ports: Vec<PortKey>,
    /// A contested address changed in some way, so the issues about them may be different.
    pub(super) touched: bool,
}

impl Contest {
    fn mark(&mut self, (address, claim): &Place) {
        self.touched = true;
        // One Service port mostly wins or loses many addresses in a row.
        let is_last = |last: &PortKey| claim.is_of(last) && last.protocol == address.protocol;
        if !self.ports.last().is_some_and(is_last) {
            self.ports.push(claim.port_key(address));
        }
    }
}

/// The strongest claim to an address.
#[derive(Debug)]
struct Holding {
    claim: Claim,
    /// How many others there are.
    waiting: u32,
}

/// Who claims which address, in one family.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// The strongest claim to each address.
    holders: HashMap<Address, Holding>,
    /// All other claims, by address and then rank.
    waiting: BTreeSet<Place>,
    /// The Services that meet others at some address.
    standings: BTreeMap<ServiceKey, Standing>,
}

impl Claims {
    /// Moves the claims of one Service port from `before` to `after`, each with the time its
    /// Service was created.
    pub(super) fn replace(
        &mut self,
        key: &PortKey,
        before: Option<(i64, Claimed)>,
        after: Option<(i64, Claimed)>,
        contest: &mut Contest,
    ) {
        let same_age = matches!((&before, &after), (Some(old), Some(new)) if old.0 == new.0);
        let (old_age, old) = before.unwrap_or_default();
        let (new_age, new) = after.unwrap_or_default();
        let stays = |claim: &(Address, FrontendKind), others: &Claimed| {
            same_age && others.binary_search(claim).is_ok()
        };
        for claim in old.iter().filter(|claim| !stays(claim, &new)) {
            let (address, kind) = *claim;
            self.release(address, Claim::new(kind, old_age, key), contest);
        }
        let mut is_marked = false;
        for claim in &new {
            let (address, kind) = *claim;
            if !stays(claim, &old) {
                self.claim(address, Claim::new(kind, new_age, key), contest);
            } else if !self.is_held_by(&address, kind, key) {
                is_marked = true;
            }
        }
        if is_marked {
            contest.ports.push(key.clone()); // It is drawn without marks.
        }
    }

    /// Whether this frontend of this Service port holds its address.
    pub(super) fn is_held_by(&self, address: &Address, kind: FrontendKind, key: &PortKey) -> bool {
        let holder = self.holder(address);
        holder.is_some_and(|holder| holder.kind == kind && holder.is_of(key))
    }

    /// The strongest claim to an address.
    pub(super) fn holder(&self, address: &Address) -> Option<&Claim> {
        self.holders.get(address).map(|holding| &holding.claim)
    }

    /// The strongest of the claims that wait for this holder to go.
    pub(super) fn next(&self, holder: &Place) -> Option<&Claim> {
        next(&self.waiting, holder)
    }

    /// The Services that meet others at some address, sorted.
    pub(super) fn standings(&self) -> &BTreeMap<ServiceKey, Standing> {
        &self.standings
    }

    fn claim(&mut self, address: Address, claim: Claim, contest: &mut Contest) {
        let holding = match self.holders.entry(address) {
            Entry::Vacant(free) => {
                free.insert(Holding { claim, waiting: 0 });
                return;
            }
            Entry::Occupied(taken) => taken.into_mut(),
        };
        let was_contested = holding.waiting > 0;
        holding.waiting += 1;
        let place = if claim < holding.claim {
            let taker = claim.service.clone();
            let former = std::mem::replace(&mut holding.claim, claim);
            stand(&mut self.standings, &taker, |standing| standing.held += 1);
            stand(&mut self.standings, &former.service, |standing| {
                standing.held -= usize::from(was_contested);
                standing.lost += 1;
            });
            (address, former)
        } else {
            if !was_contested {
                let holder = &holding.claim.service;
                stand(&mut self.standings, holder, |standing| standing.held += 1);
            }
            stand(&mut self.standings, &claim.service, |standing| {
                standing.lost += 1;
            });
            (address, claim)
        };
        contest.mark(&place);
        self.waiting.insert(place);
    }

    fn release(&mut self, address: Address, claim: Claim, contest: &mut Contest) {
        let Entry::Occupied(held) = self.holders.entry(address) else {
            return;
        };
        if held.get().waiting == 0 {
            held.remove();
            return;
        }
        contest.touched = true;
        let holding = held.into_mut();
        holding.waiting -= 1;
        let is_free = holding.waiting == 0;
        let is_holder = holding.claim == claim;
        if is_holder || is_free {
            let holder = &holding.claim.service;
            stand(&mut self.standings, holder, |standing| standing.held -= 1);
        }
        if !is_holder {
            stand(&mut self.standings, &claim.service, |standing| {
                standing.lost -= 1;
            });
            self.waiting.remove(&(address, claim));
            return;
        }
        let place = (address, claim);
        if let Some(next) = next(&self.waiting, &place).cloned() {
            stand(&mut self.standings, &next.service, |standing| {
                standing.lost -= 1;
                standing.held += usize::from(!is_free);
            });
            let place = (address, next);
            self.waiting.remove(&place);
            contest.mark(&place);
            holding.claim = place.1;
        }
    }
}

/// The strongest of the claims that wait for this holder to go.
fn next<'a>(waiting: &'a BTreeSet<Place>, holder: &Place) -> Option<&'a Claim> {
    // Whoever waits ranks behind the holder.
    let behind = (Bound::Excluded(holder), Bound::Unbounded);
    let (address, claim) = waiting.range(behind).next()?;
    (*address == holder.0).then_some(claim)
}

fn stand(
    standings: &mut BTreeMap<ServiceKey, Standing>,
    service: &ServiceKey,
    change: impl FnOnce(&mut Standing),
) {
    let standing = match standings.get_mut(service) {
        Some(standing) => standing,
        None => standings.entry(service.clone()).or_default(),
    };
    change(standing);
    if *standing == Standing::default() {
        standings.remove(service);
    }
}

impl Exposure {
    /// What it claims.
    pub(super) fn claims(&self) -> Claimed {
        let mut claims: Claimed = self
            .frontends
            .iter()
            .map(|frontend| (self.address(frontend), frontend.kind))
            .collect();
        claims.sort_unstable();
        claims.dedup_by_key(|(address, _)| *address);
        claims
    }

    /// Whether `other` makes the same claims. May deny it when only the order differs.
    pub(super) fn claims_like(&self, other: &Self) -> bool {
        let claim = |frontend: &Frontend| (frontend.kind, frontend.ip, frontend.port);
        let (mine, others) = (self.frontends.iter(), other.frontends.iter());
        self.key == other.key && mine.map(claim).eq(others.map(claim))
    }
}
