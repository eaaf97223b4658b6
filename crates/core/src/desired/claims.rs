//! Who claims which address.
//!
//! Two Services can name the same external IP and port, or one can name another's cluster IP.
//! kube-proxy then lets the one that happens to be visited last win. Here every claim is known,
//! so the winner is decided by rank, and the runner-up takes over when the winner goes.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::Frontend;
use crate::issue::{Issue, ObjectKey, Severity};
use crate::model::{Family, Port, PortKey, Protocol, ServiceKey};

/// What a packet is addressed to; `ip: None` is the NodePort addresses of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Address {
    pub(super) ip: Option<IpAddr>,
    pub(super) protocol: Protocol,
    pub(super) port: Port,
}

/// The claimants of one address. Nearly always one.
#[derive(Debug)]
enum Claimants {
    One(ServiceKey),
    Several(Vec<ServiceKey>),
}

/// Who claims which address, in one family.
#[derive(Debug, Default)]
pub(super) struct Claims(HashMap<Address, Claimants>);

impl Claims {
    /// Moves the claims of one Service from `released` to `claimed`. Every Service whose standing
    /// at some address may have changed is added to `contested`.
    pub(super) fn replace(
        &mut self,
        key: &ServiceKey,
        mut released: Vec<Address>,
        mut claimed: Vec<Address>,
        contested: &mut BTreeSet<ServiceKey>,
    ) {
        released.sort_unstable();
        claimed.sort_unstable();
        // A Service can contest its own address: the same IP as external and load balancer IP.
        if claimed.windows(2).any(|pair| pair[0] == pair[1]) {
            contested.insert(key.clone());
        }
        released.dedup();
        claimed.dedup();
        for address in &released {
            if claimed.binary_search(address).is_err() {
                self.release(key, address, contested);
            }
        }
        for address in claimed {
            if released.binary_search(&address).is_err() {
                self.claim(key, address, contested);
            } else if let Some(Claimants::Several(keys)) = self.0.get(&address) {
                // Same address, but kind or age may be another now.
                contested.extend(keys.iter().cloned());
            }
        }
    }

    /// All who claim an address.
    pub(super) fn claimants(&self, address: &Address) -> &[ServiceKey] {
        match self.0.get(address) {
            None => &[],
            Some(Claimants::One(key)) => std::slice::from_ref(key),
            Some(Claimants::Several(keys)) => keys,
        }
    }

    fn claim(&mut self, key: &ServiceKey, address: Address, contested: &mut BTreeSet<ServiceKey>) {
        match self.0.entry(address) {
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(Claimants::One(key.clone()));
            }
            std::collections::hash_map::Entry::Occupied(mut taken) => {
                let claimants = taken.get_mut();
                let mut keys = claimants.take();
                keys.push(key.clone());
                contested.extend(keys.iter().cloned());
                *claimants = Claimants::Several(keys);
            }
        }
    }

    fn release(
        &mut self,
        key: &ServiceKey,
        address: &Address,
        contested: &mut BTreeSet<ServiceKey>,
    ) {
        let Some(claimants) = self.0.get_mut(address) else {
            return;
        };
        let mut keys = claimants.take();
        keys.retain(|claimant| claimant != key);
        contested.extend(keys.iter().cloned());
        match keys.len() {
            0 => {
                self.0.remove(address);
            }
            1 => *claimants = Claimants::One(keys.remove(0)),
            _ => *claimants = Claimants::Several(keys),
        }
    }
}

impl Claimants {
    /// Takes the list out, leaving an empty one.
    fn take(&mut self) -> Vec<ServiceKey> {
        match std::mem::replace(self, Self::Several(Vec::new())) {
            Self::One(key) => vec![key],
            Self::Several(keys) => keys,
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
