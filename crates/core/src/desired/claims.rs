//! Who claims which address.
//!
//! Two Services can name the same external IP and port, or one can name another's cluster IP.
//! kube-proxy then lets the one that happens to be visited last win. Here every claim is known,
//! so the winner is decided by rank, and the runner-up takes over when the winner goes.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::{Frontend, FrontendKind};
use crate::issue::{Issue, ObjectKey, Severity};
use crate::model::{Family, Port, PortKey, Protocol, ServiceKey};

/// What a packet is addressed to; `ip: None` is the NodePort addresses of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Address {
    pub(super) ip: Option<IpAddr>,
    pub(super) protocol: Protocol,
    pub(super) port: Port,
}

/// The strongest claim to an address: by kind, then age, then name.
pub(super) type Rank = (FrontendKind, i64, PortKey);

/// The claimants of one address. Nearly always one.
#[derive(Debug)]
enum Claimants {
    One(ServiceKey),
    /// Boxed: it is rare, and there is an entry for every address of the cluster.
    Several(Box<Rivals>),
}

#[derive(Debug)]
struct Rivals {
    keys: Vec<ServiceKey>,
    /// Who holds it, as last settled.
    holder: Option<Rank>,
}

/// What a round of changes has to settle.
#[derive(Debug, Default)]
pub(super) struct Contest {
    /// Addresses of several claimants, where another may be the strongest now.
    pub(super) addresses: BTreeSet<Address>,
    /// Services that must be marked anew in any case.
    pub(super) services: BTreeSet<ServiceKey>,
}

/// Who claims which address, in one family.
#[derive(Debug, Default)]
pub(super) struct Claims(HashMap<Address, Claimants>);

impl Claims {
    /// Moves the claims of one Service from `released` to `claimed`, and adds to `contest` what
    /// that leaves to settle.
    pub(super) fn replace(
        &mut self,
        key: &ServiceKey,
        mut released: Vec<Address>,
        mut claimed: Vec<Address>,
        contest: &mut Contest,
    ) {
        released.sort_unstable();
        claimed.sort_unstable();
        // A Service can contest its own address: the same IP as external and load balancer IP.
        if claimed.windows(2).any(|pair| pair[0] == pair[1]) {
            contest.services.insert(key.clone());
        }
        released.dedup();
        claimed.dedup();
        for address in &released {
            if claimed.binary_search(address).is_err() {
                self.release(key, address, contest);
            }
        }
        for address in claimed {
            if released.binary_search(&address).is_err() {
                self.claim(key, address);
            }
            if let Some(Claimants::Several(_)) = self.0.get(&address) {
                // It was drawn without marks, and its kind or age may be another now.
                contest.addresses.insert(address);
                contest.services.insert(key.clone());
            }
        }
    }

    /// All who claim an address.
    pub(super) fn claimants(&self, address: &Address) -> &[ServiceKey] {
        match self.0.get(address) {
            None => &[],
            Some(Claimants::One(key)) => std::slice::from_ref(key),
            Some(Claimants::Several(rivals)) => &rivals.keys,
        }
    }

    /// Who holds an address of several claimants, as last settled.
    pub(super) fn holder(&self, address: &Address) -> Option<&Rank> {
        match self.0.get(address)? {
            Claimants::One(_) => None,
            Claimants::Several(rivals) => rivals.holder.as_ref(),
        }
    }

    /// Settles who holds an address. Says whether that is another than before.
    pub(super) fn settle(&mut self, address: &Address, strongest: Option<Rank>) -> bool {
        match self.0.get_mut(address) {
            Some(Claimants::Several(rivals)) if rivals.holder != strongest => {
                rivals.holder = strongest;
                true
            }
            _ => false,
        }
    }

    fn claim(&mut self, key: &ServiceKey, address: Address) {
        match self.0.entry(address) {
            Entry::Vacant(free) => {
                free.insert(Claimants::One(key.clone()));
            }
            Entry::Occupied(mut taken) => match taken.get_mut() {
                Claimants::One(first) => {
                    let keys = vec![first.clone(), key.clone()];
                    let rivals = Rivals { keys, holder: None };
                    taken.insert(Claimants::Several(Box::new(rivals)));
                }
                Claimants::Several(rivals) => rivals.keys.push(key.clone()),
            },
        }
    }

    fn release(&mut self, key: &ServiceKey, address: &Address, contest: &mut Contest) {
        let Some(claimants) = self.0.get_mut(address) else {
            return;
        };
        match claimants {
            Claimants::One(_) => {
                self.0.remove(address);
            }
            Claimants::Several(rivals) => {
                rivals.keys.retain(|claimant| claimant != key);
                if let [last] = rivals.keys.as_slice() {
                    let last = last.clone();
                    contest.services.insert(last.clone());
                    *claimants = Claimants::One(last);
                } else {
                    contest.addresses.insert(*address);
                }
            }
        }
    }
}

/// Tells that `loser` does not get the address of `frontend`, because `holder` has it.
pub(super) fn lost(
    loser: &PortKey,
    frontend: &Frontend,
    holder: &PortKey,
    family: Family,
) -> Issue {
    let address = match frontend.ip {
        Some(ip) => crate::model::format_socket(ip, frontend.port),
        None => format!("NodePort {} ({family})", frontend.port),
    };
    Issue {
        object: ObjectKey::Service(loser.service.clone()),
        field: frontend.kind.as_str().to_owned(),
        message: format!("{address}/{} is held by {holder}", loser.protocol),
        severity: Severity::Warning,
    }
}
