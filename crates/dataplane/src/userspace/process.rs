//! What this process has once, for both families: the relay, and who is inside the cluster.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use ferrule_core::facts::{Detector, Facts};
use ferrule_core::model::{Family, PerFamily};
use ipnet::IpNet;

use super::Options;
use super::relay::{Relay, Report};

/// The relay and what goes with it.
#[derive(Debug)]
pub struct Process {
    relay: Relay,
    /// Clients inside the cluster.
    inside: Mutex<PerFamily<Vec<IpNet>>>,
}

impl Process {
    /// Starts the relay.
    ///
    /// # Errors
    /// The kernel refused threads or descriptors.
    pub fn start(options: &Options, report: Report) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            relay: Relay::start(options.relay.clone(), report)?,
            inside: Mutex::default(),
        }))
    }

    /// The engine.
    pub const fn relay(&self) -> &Relay {
        &self.relay
    }

    /// Says who is inside the cluster in one family: pods of this node, as far as networks tell,
    /// and the node itself.
    pub(super) fn set_inside(&self, family: Family, facts: &Facts, local: &[IpAddr]) {
        let own = local.iter().filter(|ip| Family::of(**ip) == family);
        let mut networks: Vec<IpNet> = own.map(|ip| IpNet::from(*ip)).collect();
        if let Some(Detector::Source(pods)) = &facts.detector {
            networks.push(*pods);
        }
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if inside[family] != networks {
            inside[family] = networks;
            let all = Family::ALL.into_iter().flat_map(|family| &inside[family]);
            self.relay.set_inside(all.copied().collect());
        }
    }
}
