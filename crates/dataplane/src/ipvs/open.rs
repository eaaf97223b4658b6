//! Opens what mode ipvs needs, and says all that is missing at once.

use std::io;

use ferrule_core::model::Family;
use ferrule_kernel::ipset::{Ipset, Type};
use ferrule_kernel::ipvs::{Change, Ipvs as KernelIpvs, Listed, Reason, Server, ServerKey};
use ferrule_kernel::route::Route;

use super::conversation::Conversation;
use super::prepare::keeps_reused_ports;
use super::{Ipvs, Options};
use crate::host::Host;
use crate::{kernel_family, said, xtables};

/// A virtual server to try a scheduler with: an address of no network, for documentation.
const PROBE: ServerKey = ServerKey {
    protocol: 6,
    address: std::net::IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 0)),
    port: 20_000,
};

impl Ipvs {
    /// Opens IPVS, sets and iptables in the network namespace of the calling thread. The modules of
    /// IPVS and its scheduler are loaded if need be, and all that is missing is named.
    ///
    /// # Errors
    /// `Unsupported` if this machine lacks something; otherwise what the kernel said.
    pub fn open(family: Family, options: Options) -> io::Result<Self> {
        let xt = xtables::open(family).map_err(|error| io::Error::new(error.kind(), error))?;
        let mut missing = Vec::new();
        let ipvs = KernelIpvs::load().map_err(said)?;
        if ipvs.is_none() {
            missing.push("IPVS (module ip_vs)".to_owned());
        }
        let sets = Ipset::open()?;
        let (ipvs, sets) = match (ipvs, sets) {
            (Some(ipvs), Some(mut sets)) => {
                missing.extend(missing_types(&mut sets, family)?);
                (ipvs, sets)
            }
            (_, sets) => {
                if sets.is_none() {
                    missing.push("sets (module ip_set)".to_owned());
                }
                return Err(unsupported(&missing));
            }
        };
        let mut kernel = Conversation {
            family,
            ipvs,
            sets,
            route: Route::open()?,
        };
        if !has_scheduler(&mut kernel.ipvs, &options.scheduler)? {
            let name = &options.scheduler;
            missing.push(format!("scheduler {name} (module ip_vs_{name})"));
        }
        if !missing.is_empty() {
            return Err(unsupported(&missing));
        }
        let opened = Self::new(family, options, kernel, xt);
        let version = Host::default().kernel_version()?;
        Ok(if keeps_reused_ports(version) {
            opened.without_lingering()
        } else {
            opened
        })
    }
}

fn unsupported(missing: &[String]) -> io::Error {
    let missing = missing.join(", ");
    let text = format!("can't use the IPVS proxier: this kernel has no {missing}");
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// Types of sets that this kernel lacks.
fn missing_types(sets: &mut Ipset, family: Family) -> io::Result<Vec<String>> {
    let mut missing = Vec::new();
    for kind in Type::ALL {
        let there = sets.revisions(kind, kernel_family(family)).map_err(said)?;
        if there.is_none() {
            let name = kind.name();
            let module = name.replace(':', "_").replace(',', "");
            missing.push(format!("sets {name} (module ip_set_{module})"));
        }
    }
    Ok(missing)
}

/// Whether the kernel has this scheduler. One that is in use needs no trial.
fn has_scheduler(ipvs: &mut KernelIpvs, name: &str) -> io::Result<bool> {
    let servers = ipvs.servers().map_err(said)?;
    let in_use = servers.iter().any(|listed| match listed {
        Listed::Server(server) => server.scheduler == name,
        Listed::Mark { .. } => false,
    });
    if in_use {
        return Ok(true);
    }
    let server = Server {
        key: PROBE,
        scheduler: name.to_owned(),
        flags: 0,
        timeout: 0,
    };
    let add = Change::AddServer(server);
    // One of a process that ended half-way may be there.
    let changes = [
        Change::DeleteServer(PROBE),
        add,
        Change::DeleteServer(PROBE),
    ];
    for refused in ipvs.commit(&changes).map_err(said)? {
        match (refused.index, refused.reason) {
            (1, Reason::NoScheduler) => return Ok(false),
            (1, _) => return Err(said(refused.error)),
            _ => {}
        }
    }
    Ok(true)
}
