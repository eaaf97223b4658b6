//! The dataplanes that all cases run for.

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;

use ferrule_core::model::Family;
use ferrule_dataplane::Dataplane;
use ferrule_dataplane::iptables::{self, Iptables};
use ferrule_dataplane::ipvs::{self, Ipvs};
use ferrule_dataplane::nftables::{self, Nftables};
use ferrule_dataplane::userspace::{self, PortalsBy, Process, Userspace, relay};
use ferrule_kernel::xt::{Flavour, Xt, XtError};
use ferrule_testbed::{kernel, variable};

/// Every way to program a node. A mode that is added here is asked every question.
///
/// Few kernels have IPVS, and the one that `cargo xtask uml` brings has nothing else.
pub fn modes() -> Vec<Mode> {
    if variable("FERRULE_UML") {
        return vec![Mode::new("ipvs", IPVS, open_ipvs)];
    }
    vec![
        Mode::new("nftables", NFTABLES, open_nftables),
        Mode::new("iptables, directly", IPTABLES, open_iptables),
        Mode::new("iptables, by programs", IPTABLES, open_iptables_programs),
        Mode::new("iptables, legacy", IPTABLES, open_iptables_legacy),
        Mode::new("userspace", USERSPACE, open_userspace),
    ]
}

/// kube-proxy's mode nftables.
pub const NFTABLES: &str = "nftables";

/// kube-proxy's mode iptables.
pub const IPTABLES: &str = "iptables";

/// kube-proxy's mode userspace, up to v1.25.
pub const USERSPACE: &str = "userspace";

/// Mode userspace with the chains of iptables that it had. Packets meet other things there, so it
/// is not in the list.
pub const USERSPACE_BY_IPTABLES: Mode = Mode::new(
    "userspace, by iptables",
    USERSPACE,
    open_userspace_by_iptables,
);

/// Mode userspace in which endpoints of this node see their clients' addresses.
pub const USERSPACE_TRANSPARENT: Mode = Mode::new(
    "userspace, transparent",
    USERSPACE,
    open_userspace_transparent,
);

/// kube-proxy's mode ipvs.
pub const IPVS: &str = "ipvs";

/// One way to program a node.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    pub name: &'static str,
    /// The mode of kube-proxy that it takes the place of: both answer alike.
    pub like: &'static str,
    open: Open,
}

type Open = fn(Family, Knobs) -> io::Result<Box<dyn Dataplane>>;

impl Mode {
    const fn new(name: &'static str, like: &'static str, open: Open) -> Self {
        Self { name, like, open }
    }

    /// Opens it in the network namespace of the calling thread.
    ///
    /// # Errors
    /// `Unsupported` where the machine does not have what it takes.
    pub fn open(self, family: Family, knobs: Knobs) -> io::Result<Box<dyn Dataplane>> {
        (self.open)(family, knobs)
    }
}

/// What the administrator decides, in every mode. `masquerade_all` is a setting of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Knobs {
    pub mark: u32,
    pub masquerade_all: bool,
    /// How many clients mode nftables remembers with an endpoint.
    pub affinity_size: NonZeroU32,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            mark: 1 << 14,
            masquerade_all: false,
            affinity_size: nftables::Options::default().affinity_size,
        }
    }
}

fn open_nftables(family: Family, knobs: Knobs) -> io::Result<Box<dyn Dataplane>> {
    let options = nftables::Options {
        mark: knobs.mark,
        affinity_size: knobs.affinity_size,
    };
    Ok(Box::new(Nftables::open(family, options)?))
}

fn open_iptables(family: Family, knobs: Knobs) -> io::Result<Box<dyn Dataplane>> {
    Ok(Box::new(iptables(Flavour::Nft, family, knobs)?))
}

fn open_iptables_programs(family: Family, knobs: Knobs) -> io::Result<Box<dyn Dataplane>> {
    let iptables = iptables(Flavour::Nft, family, knobs)?;
    Ok(Box::new(iptables.by_programs()))
}

fn open_iptables_legacy(family: Family, knobs: Knobs) -> io::Result<Box<dyn Dataplane>> {
    Ok(Box::new(iptables(Flavour::Legacy, family, knobs)?))
}

fn open_userspace(family: Family, knobs: Knobs) -> io::Result<Box<dyn Dataplane>> {
    userspace(family, knobs, PortalsBy::Nftables, false)
}

fn open_userspace_by_iptables(family: Family, knobs: Knobs) -> io::Result<Box<dyn Dataplane>> {
    userspace(family, knobs, PortalsBy::Iptables, false)
}

fn open_userspace_transparent(family: Family, knobs: Knobs) -> io::Result<Box<dyn Dataplane>> {
    userspace(family, knobs, PortalsBy::Nftables, true)
}

fn userspace(
    family: Family,
    knobs: Knobs,
    portals: PortalsBy,
    transparent: bool,
) -> io::Result<Box<dyn Dataplane>> {
    let defaults = userspace::Options::default();
    let options = userspace::Options {
        mark: knobs.mark,
        portals,
        transparent,
        relay: relay::Options {
            workers: 1,
            ..defaults.relay
        },
        ..defaults
    };
    let process = Process::start(&options, Arc::new(|_| ()))?;
    Ok(Box::new(Userspace::open(family, options, process)?))
}

fn open_ipvs(family: Family, knobs: Knobs) -> io::Result<Box<dyn Dataplane>> {
    let options = ipvs::Options {
        mark: knobs.mark,
        ..ipvs::Options::default()
    };
    let opened = Ipvs::open(family, options)?;
    // As the program does at its start; they are there once IPVS is.
    let settings = [
        "vs/conntrack",
        "vs/expire_nodest_conn",
        "vs/expire_quiescent_template",
        "ip_forward",
    ];
    for name in settings {
        std::fs::write(format!("/proc/sys/net/ipv4/{name}"), "1")?;
    }
    Ok(Box::new(opened))
}

fn iptables(flavour: Flavour, family: Family, knobs: Knobs) -> io::Result<Iptables> {
    let xt = Xt::open_as(flavour, kernel(family)).map_err(|error| match error {
        XtError::Missing { .. } | XtError::Unusable { .. } => {
            io::Error::new(io::ErrorKind::Unsupported, error)
        }
        XtError::Locked { .. } | XtError::NotPermitted { .. } | XtError::Refused { .. } => {
            io::Error::other(error)
        }
    })?;
    let options = iptables::Options {
        mark: knobs.mark,
        ..iptables::Options::default()
    };
    Ok(Iptables::new(family, options, xt))
}
