//! The modes: one row each, the only place that knows what a mode means to the program.
//!
//! What a mode programs lives in a folder of `ferrule-dataplane`. Everything else that depends on
//! the mode is a field here: a new mode is a folder, a row and a document.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use ferrule_core::desired::Desired;
use ferrule_core::facts::Connections;
use ferrule_core::model::{Family, Port, PortKey};
use ferrule_dataplane::affinity::Binding;
use ferrule_dataplane::host::Host;
use ferrule_dataplane::iptables::{self, Iptables};
use ferrule_dataplane::ipvs::{self, Ipvs};
use ferrule_dataplane::nftables::{self, Nftables};
use ferrule_dataplane::userspace::relay::Notice;
use ferrule_dataplane::userspace::{self, Process, Userspace};
use ferrule_dataplane::verify::Report;
use ferrule_dataplane::{Applied, Dataplane, Writers, error_chain};

use crate::config::Config;
use crate::config::gates::Gate;
use crate::metrics::Group;

#[cfg(test)]
mod paper;
#[cfg(test)]
mod tests;

/// One way to program Services.
pub struct Mode {
    /// The word in the configuration, at `/proxyMode` and in metrics.
    pub name: &'static str,
    /// What it is, for `--help`; a mode without is not listed anywhere.
    pub about: Option<&'static str>,
    /// The feature gate without which it cannot be chosen.
    pub gate: Option<Gate>,
    /// The section of the configuration file that has its periods, and masquerading.
    pub section: Section,
    /// `nodePortAddresses` where the configuration has none.
    pub node_port_addresses: &'static [&'static str],
    /// How often everything is compared with the kernel.
    pub audit: Audit,
    /// Metrics that not every mode has.
    pub metrics: &'static [Group],
    /// Reads a packet counter that its rules feed, by the counter's name in the kernel.
    pub packets: Option<fn(&str) -> io::Result<u64>>,
    /// Makes the kernel settings that it relies on, at every start and with `--init-only`: where
    /// they are as they must be, it writes nothing and needs no rights.
    pub prepare: fn(&Host, &Config) -> anyhow::Result<()>,
    /// Opens what is there once per node. Writes nothing.
    pub open: fn(&Config) -> anyhow::Result<Opened>,
    /// Removes what it has in the kernel, whoever wrote it.
    pub remove: fn(Part) -> anyhow::Result<Applied>,
    /// Modes with the same chains cannot remove each other's: the word names these chains.
    pub chains: &'static str,
    /// What it would program, as text for the tool that its administrators use.
    pub render: fn(&Desired, Family, &Config, &[IpAddr]) -> anyhow::Result<String>,
    /// How the kernel differs from what it would program, in the words of that tool. Writes nothing.
    pub verify: fn(&Desired, Family, &Config, &[IpAddr]) -> io::Result<Report>,
    /// With which of these endpoints the kernel remembers a client of a Service port, in modes where it
    /// shows that.
    pub binding: Option<FindBinding>,
    /// What becomes of its rules when the program ends.
    pub on_exit: OnExit,
    /// What becomes of connections to endpoints that get no new ones.
    pub connections: Connections,
}

/// What a mode has once per node.
pub struct Opened {
    /// Opens the families.
    pub family: OpenFamily,
    /// What carries connections, where that is this process.
    pub relay: Option<Arc<Process>>,
}

impl Opened {
    /// For a mode whose connections the kernel carries.
    pub fn without_relay<F>(family: F) -> Self
    where
        F: FnMut(Family) -> anyhow::Result<Box<dyn Dataplane>> + 'static,
    {
        Self {
            family: Box::new(family),
            relay: None,
        }
    }
}

/// Finds the endpoint that a client stays with.
pub type FindBinding = fn(&PortKey, &[(IpAddr, Port)], IpAddr) -> io::Result<Option<Binding>>;

/// Opens the dataplane of one family.
pub type OpenFamily = Box<dyn FnMut(Family) -> anyhow::Result<Box<dyn Dataplane>>>;

/// A section of the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// `iptables`
    Iptables,
    /// `ipvs`; masquerading is in `iptables`.
    Ipvs,
    /// `nftables`
    Nftables,
}

/// How often everything is compared with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audit {
    /// Once an hour, whatever the sync period.
    Hourly,
    /// Once per sync period.
    EverySyncPeriod,
}

impl Audit {
    /// The interval.
    pub const fn every(self, sync_period: Duration) -> Duration {
        match self {
            Self::Hourly => Duration::from_hours(1),
            Self::EverySyncPeriod => sync_period,
        }
    }
}

/// A part of what a mode has in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What belongs to one family.
    Family(Family),
    /// What belongs to no family.
    Node,
}

impl Part {
    /// All of them, in the order in which they can be removed.
    pub const ALL: [Self; 3] = [
        Self::Family(Family::V4),
        Self::Family(Family::V6),
        Self::Node,
    ];
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Family(family) => family.fmt(f),
            Self::Node => f.write_str("IPv4+IPv6"),
        }
    }
}

/// What becomes of a mode's rules when the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExit {
    /// They stay, and Services go on working.
    Keep,
    /// They are removed: without the program they would lead nowhere.
    Remove,
}

/// All modes, in the order in which their rules can be removed: those of iptables name the sets of
/// ipvs.
pub static ALL: &[&Mode] = &[
    &IPTABLES,
    &NFTABLES,
    &IPVS,
    &USERSPACE,
    #[cfg(test)]
    &paper::PAPER,
];

/// The mode where none is chosen.
pub static DEFAULT: &Mode = &IPTABLES;

static IPTABLES: Mode = Mode {
    name: "iptables",
    about: Some("Chains of iptables rules"),
    gate: None,
    section: Section::Iptables,
    node_port_addresses: &[],
    audit: Audit::Hourly,
    metrics: &[Group::Partial, Group::Restore, Group::Iptables],
    packets: Some(iptables::packets),
    prepare: |host, config| {
        let node_ports = config.node_ports();
        iptables::prepare(host, config.iptables_options(), &node_ports)?;
        Ok(())
    },
    open: |config| {
        let (options, writers) = (config.iptables_options(), Writers::default());
        Ok(Opened::without_relay(move |family| {
            let opened = Iptables::open(family, options);
            let opened = opened.with_context(|| format!("no iptables support for {family}"))?;
            Ok(Box::new(opened.beside(&writers)))
        }))
    },
    remove: |part| match part {
        Part::Family(family) => iptables::remove(family).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => explain(error),
            _ => anyhow!(error_chain(&error)),
        }),
        Part::Node => Ok(Applied::default()),
    },
    chains: "KUBE-SERVICES",
    render: |desired, family, config, local| {
        let options = config.iptables_options();
        Ok(iptables::render(desired, family, options, local))
    },
    verify: |desired, family, config, local| {
        iptables::verify(desired, family, config.iptables_options(), local)
    },
    binding: Some(iptables::binding),
    on_exit: OnExit::Keep,
    connections: Connections::Tracked,
};

static NFTABLES: Mode = Mode {
    name: "nftables",
    about: Some("Maps and sets of nftables"),
    gate: None,
    section: Section::Nftables,
    // Opening every address of the node is a habit that nftables does not take over.
    node_port_addresses: &["primary"],
    audit: Audit::Hourly,
    metrics: &[Group::Partial, Group::Nftables],
    packets: None,
    prepare: |_, _| Ok(()),
    open: |config| {
        let mut opener = nftables::Opener::new(config.nftables_options());
        let writers = Writers::default();
        Ok(Opened::without_relay(move |family| {
            let opened = opener.open(family).map_err(explain)?;
            Ok(Box::new(opened.beside(&writers)))
        }))
    },
    remove: |part| {
        use io::ErrorKind::{InvalidInput, Unsupported};
        // A kernel without nftables does not understand the question, and has no rules.
        let open = |family| Nftables::open(family, nftables::Options::default());
        remove_family(part, open, &[InvalidInput, Unsupported])
    },
    chains: "table kube-proxy",
    render: |desired, family, config, _| {
        let options = config.nftables_options();
        Ok(nftables::text(desired, family, options)?)
    },
    verify: |desired, family, config, _| {
        nftables::verify(desired, family, config.nftables_options())
    },
    binding: Some(nftables::binding),
    on_exit: OnExit::Keep,
    connections: Connections::Tracked,
};

static IPVS: Mode = Mode {
    name: "ipvs",
    about: Some("The kernel's virtual servers"),
    gate: Some(Gate::KubeProxyIPVS),
    section: Section::Ipvs,
    node_port_addresses: &[],
    audit: Audit::EverySyncPeriod,
    metrics: &[Group::Restore],
    packets: None,
    prepare: |host, config| {
        let timeouts = config.ipvs.timeouts();
        for err in ipvs::prepare(host, config.ipvs.strict_arp, &timeouts)? {
            tracing::error!(err, "Failed to change a setting of IPVS; keeping its value");
        }
        Ok(())
    },
    open: |config| {
        let options = config.ipvs_options();
        Ok(Opened::without_relay(move |family| {
            let opened = Ipvs::open(family, options.clone());
            let opened = opened.with_context(|| format!("no IPVS support for {family}"))?;
            Ok(Box::new(opened))
        }))
    },
    remove: |part| match part {
        // Its rules of iptables go with those of mode iptables.
        Part::Family(_) => Ok(Applied::default()),
        Part::Node => ipvs::remove().map_err(|error| anyhow!(error_chain(&error))),
    },
    chains: "KUBE-SERVICES",
    render: |desired, family, config, local| {
        let options = config.ipvs_options();
        Ok(ipvs::render(desired, family, &options, local))
    },
    verify: |desired, family, config, local| {
        ipvs::verify(desired, family, &config.ipvs_options(), local)
    },
    binding: None,
    on_exit: OnExit::Keep,
    connections: Connections::Drained,
};

static USERSPACE: Mode = Mode {
    name: "userspace",
    about: Some("Connections copied by this process"),
    gate: None,
    section: Section::Iptables,
    node_port_addresses: &[],
    audit: Audit::Hourly,
    metrics: &[Group::Partial, Group::Relay],
    packets: None,
    prepare: |_, _| Ok(()),
    open: |config| {
        let options = config.userspace_options();
        let process = Process::start(&options, Arc::new(tell)).context("cannot start the relay")?;
        let relay = Some(process.clone());
        Ok(Opened {
            family: Box::new(move |family| {
                let opened = Userspace::open(family, options.clone(), process.clone());
                Ok(Box::new(opened.map_err(explain)?))
            }),
            relay,
        })
    },
    remove: |part| match part {
        Part::Family(family) => Ok(Applied::steps(userspace::remove(family).map_err(explain)?)),
        Part::Node => Ok(Applied::default()),
    },
    chains: "KUBE-PORTALS-CONTAINER",
    render: |desired, family, config, _| {
        let options = config.userspace_options();
        Ok(userspace::text(desired, family, &options)?)
    },
    verify: |desired, family, config, _| {
        userspace::verify(desired, family, &config.userspace_options())
    },
    binding: None,
    on_exit: OnExit::Remove,
    connections: Connections::Relayed,
};

/// Logs what an operator should know of the relay.
fn tell(notice: Notice) {
    match notice {
        Notice::Exhausted { key, error } => {
            let err = error_chain(&error);
            tracing::error!(ipFamily = %key.family, servicePortName = %key.port, err, "Out of descriptors or memory; new connections wait");
        }
        Notice::Share { key, open } => {
            tracing::warn!(ipFamily = %key.family, servicePortName = %key.port, open, "A Service port has its share of all descriptors; its new connections wait");
        }
        Notice::Handover { error } => {
            let err = error_chain(&error);
            tracing::error!(err, "Failed to hand sockets from one process to the next");
        }
        Notice::Transparent { family, error } => {
            let err = error_chain(&error);
            tracing::error!(ipFamily = %family, err, "Failed to route answers to clients through this node; endpoints see the node's address");
        }
        Notice::Failed { key, error } => {
            let err = error_chain(&error);
            tracing::error!(ipFamily = %key.family, servicePortName = %key.port, err, "A proxy port failed; will retry");
        }
    }
}

/// The mode of this name.
pub fn find(name: &str) -> Option<&'static Mode> {
    ALL.iter().copied().find(|mode| mode.name == name)
}

/// Modes that `--help` and errors list, by name.
pub fn listed() -> Vec<&'static Mode> {
    let mut listed: Vec<_> = ALL.iter().copied().filter(|m| m.about.is_some()).collect();
    listed.sort_by_key(|mode| mode.name);
    listed
}

impl Mode {
    /// Whether this process stands between clients and endpoints. Then tracked flows lead to it,
    /// and the mode itself keeps them in order.
    pub fn relays(&self) -> bool {
        self.connections == Connections::Relayed
    }

    /// Modes whose left-overs of this part are removed once this one has programmed it. Where modes
    /// share chains, programming removes the rules of the other.
    pub fn others(&self, part: Part) -> impl Iterator<Item = &'static Self> {
        let (name, chains) = (self.name, self.chains);
        let others = ALL.iter().copied().filter(move |mode| mode.name != name);
        others.filter(move |mode| part == Part::Node || mode.chains != chains)
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Mode {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Opens a family's dataplane and lets it remove everything. These failures to open mean that
/// there can be nothing.
fn remove_family<D: Dataplane>(
    part: Part,
    open: impl FnOnce(Family) -> io::Result<D>,
    nothing: &[io::ErrorKind],
) -> anyhow::Result<Applied> {
    let Part::Family(family) = part else {
        return Ok(Applied::default());
    };
    match open(family) {
        Ok(mut rules) => rules.remove().map_err(|error| anyhow!(error_chain(&error))),
        Err(error) if nothing.contains(&error.kind()) => Ok(Applied::default()),
        Err(error) => Err(explain(error)),
    }
}

/// What an administrator can do about it.
pub fn explain(error: io::Error) -> anyhow::Error {
    let advice = if error.kind() == io::ErrorKind::PermissionDenied {
        "changing network rules needs CAP_NET_ADMIN: run privileged"
    } else {
        "this kernel may lack what the mode needs: load the module or choose another mode"
    };
    anyhow::Error::new(error).context(advice)
}
