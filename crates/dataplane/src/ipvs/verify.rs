//! How virtual servers, sets, addresses and rules differ from those that are wanted, in the words of
//! `ipvsadm`, `ipset`, `ip` and `iptables`.
//!
//! In: desired state. Out: a [`Report`]. Nothing is written. The steps that a full sync would make are
//! the differences; destinations that wait for their connections to end are none.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use ferrule_core::desired::Desired;
use ferrule_core::model::{Family, PortKey};
use ferrule_kernel::ipset::Ipset;
use ferrule_kernel::ipvs::{Ipvs as KernelIpvs, ServerKey};
use ferrule_kernel::route::Route;

use super::conversation::Conversation;
use super::diff::{self, Installed, Present, Rules, Step};
use super::layout::LAYOUT;
use super::names::{LINK, Set};
use super::render::{self, Item, Service};
use super::wanted::Wanted;
use super::{Options, statics, text};
use crate::verify::{Discrepancy, Report};
use crate::xtables::ruleset::Ruleset;
use crate::xtables::tables::Tables;
use crate::xtables::verify::{Comparison, unreadable};
use crate::{ApplyError, iptables, said, xtables};

/// How this family in the network namespace of the calling thread differs, on a machine with these
/// addresses.
///
/// # Errors
/// `Unsupported` if this kernel has no IPVS or no sets; otherwise what it said.
pub fn verify(
    desired: &Desired,
    family: Family,
    options: &Options,
    local: &[IpAddr],
) -> io::Result<Report> {
    let xt = xtables::open(family).map_err(unreadable)?;
    let random_fully = xt.has_random_fully();
    let unsupported = |what: &str| {
        let text = format!("this kernel has no {what}");
        io::Error::new(io::ErrorKind::Unsupported, text)
    };
    let ipvs = KernelIpvs::open().map_err(said)?;
    let sets = Ipset::open()?;
    let mut kernel = Conversation {
        family,
        ipvs: ipvs.ok_or_else(|| unsupported("IPVS (module ip_vs)"))?,
        sets: sets.ok_or_else(|| unsupported("sets (module ip_set)"))?,
        route: Route::open()?,
    };
    let facts = desired.facts(family);
    let (wanted, context) = Wanted::drawn(desired, family, options, local);
    let mut report = Report::default();
    let rules = statics::Context::new(family, options.mark, random_fully, facts);
    let ruleset = Ruleset {
        statics: statics::build(&rules, &wanted.contents()),
        ..Ruleset::default()
    };
    let comparison = Comparison {
        layout: &LAYOUT,
        others: &[&iptables::LAYOUT],
        wanted: &ruleset,
        tolerates_idle: false,
    };
    report.append(comparison.of(&mut Tables::new(family, &LAYOUT, xt), family)?);
    let words = Words { family, options };
    let (installed, absent) = words.read(&mut kernel, &wanted, &mut report)?;
    let target = wanted.target();
    let difference = diff::diff(&installed, &target, Rules::default());
    let mut owners = Owners {
        desired,
        family,
        context: &context,
        wanted: &wanted,
        of_items: None,
    };
    for step in difference.steps {
        let Some(found) = words.discrepancy(&step, &installed, &target.servers, &absent) else {
            continue;
        };
        match found {
            Ok(discrepancy) => report.add(discrepancy.of(owners.of(&step))),
            Err(note) => report.note(note),
        }
    }
    Ok(report)
}

/// Sets that are not there.
type Absent = BTreeSet<Set>;

struct Words<'a> {
    family: Family,
    options: &'a Options,
}

impl Words<'_> {
    /// What is installed, and which sets are not there. That is reported at once: of a set that is
    /// not there no entries are missing.
    fn read(
        &self,
        kernel: &mut Conversation,
        wanted: &Wanted,
        report: &mut Report,
    ) -> io::Result<(Installed, Absent)> {
        let said = |error: ApplyError| match error {
            ApplyError::Refused { source, .. }
            | ApplyError::OutOfSync(source)
            | ApplyError::Locked(source) => source,
        };
        let mut absent = Absent::new();
        let headers = kernel.headers().map_err(said)?;
        for set in Set::ALL {
            let object = text::create(set, self.family);
            match headers.get(&set) {
                None => {
                    absent.insert(set);
                    report.add(Discrepancy::missing(format!("ipset {object}")));
                }
                Some(header) if !kernel.has_shape(set, header) => {
                    let kind = header.kind.map_or("another type", |kind| kind.name());
                    let found = format!("{kind}, maxelem {}", header.max_entries);
                    report.add(Discrepancy::different(format!("ipset {object}"), found));
                }
                Some(_) => {}
            }
        }
        let is_wanted = |key: &ServerKey| wanted.server(key).is_some();
        let servers = kernel.servers(&self.options.excluded, is_wanted);
        let mut installed = Installed {
            servers: servers.map_err(said)?,
            entries: kernel.entries().map_err(said)?,
            addresses: BTreeSet::new(),
        };
        if let Some(link) = kernel.find_link().map_err(said)? {
            installed.addresses = kernel.addresses(link).map_err(said)?;
        } else {
            report.add(Discrepancy::missing(format!(
                "ip link add {LINK} type dummy"
            )));
            // So that each address is not missing, too.
            installed.addresses = wanted.target().addresses;
        }
        Ok((installed, absent))
    }

    /// What a step would put right; a note where that is no fault.
    fn discrepancy(
        &self,
        step: &Step,
        installed: &Installed,
        wanted: &BTreeMap<ServerKey, &Service>,
        absent: &Absent,
    ) -> Option<Result<Discrepancy, String>> {
        let family = self.family;
        let entry = |set: &Set, entry| format!("ipset add {} {entry}", set.name(family));
        let address = |ip: &IpAddr| {
            let prefix = if ip.is_ipv4() { 32 } else { 128 };
            format!("ip addr add {ip}/{prefix} dev {LINK}")
        };
        let destination = |key: &ServerKey, to| format!("ipvsadm {}", text::destination(key, to));
        let found = |service: &Present| {
            let Present {
                scheduler,
                flags,
                timeout,
                ..
            } = service;
            format!("-s {scheduler} -p {timeout}, flags {flags:#x}")
        };
        Some(Ok(match step {
            Step::Enter(set, _) if absent.contains(set) => return None,
            Step::Enter(set, what) => Discrepancy::missing(entry(set, what)),
            Step::Leave(set, what) => Discrepancy::unexpected(entry(set, what)),
            Step::AddServer(key, service) => {
                Discrepancy::missing(format!("ipvsadm {}", text::server(key, service)))
            }
            Step::SetServer(key, service) => {
                let object = format!("ipvsadm {}", text::server(key, service));
                let present = installed.servers.get(key)?;
                if self.is_fallback(present, service) {
                    let (asked, there) = (&service.scheduler, &present.scheduler);
                    return Some(Err(format!(
                        "{object}: has scheduler {there}, which is right if this kernel has no {asked}"
                    )));
                }
                Discrepancy::different(object, found(present))
            }
            Step::DeleteServer(key) => {
                let present = installed.servers.get(key)?;
                let object = text::address(key);
                Discrepancy::unexpected(format!("ipvsadm -A {object} -s {}", present.scheduler))
            }
            // A virtual server that is not there has no destinations.
            Step::AddDestination(key, _) if !installed.servers.contains_key(key) => return None,
            Step::AddDestination(key, to) => Discrepancy::missing(destination(key, to)),
            Step::Open(key, to) => {
                let intake = installed.servers.get(key)?.destinations.get(to)?;
                let found = match intake {
                    diff::Intake::Closed => "weight 0: no new connections",
                    diff::Intake::Open | diff::Intake::Other => "another weight or method",
                };
                Discrepancy::different(destination(key, to), found)
            }
            Step::Close(key, to) => {
                let object = destination(key, to).replace(" -w 1", " -w 0");
                Discrepancy::different(object, "it gets new connections")
            }
            Step::DeleteDestination(key, to) if wanted.contains_key(key) => {
                Discrepancy::unexpected(destination(key, to))
            }
            Step::DeleteDestination(..) | Step::Rules(_) => return None,
            Step::Bind(ip) => Discrepancy::missing(address(ip)),
            Step::Unbind(ip) => Discrepancy::unexpected(address(ip)),
        }))
    }

    /// Whether a virtual server is as it should be but for a scheduler that this kernel may lack.
    fn is_fallback(&self, present: &Present, service: &Service) -> bool {
        let default = &self.options.scheduler;
        present.scheduler == *default
            && service.scheduler != *default
            && present.timeout == service.timeout
    }
}

/// Whose something is. That is only asked where something is wrong.
struct Owners<'a> {
    desired: &'a Desired,
    family: Family,
    context: &'a render::Context,
    wanted: &'a Wanted,
    of_items: Option<BTreeMap<Item, PortKey>>,
}

impl Owners<'_> {
    fn of(&mut self, step: &Step) -> Option<PortKey> {
        let item = match step {
            Step::AddServer(key, _)
            | Step::SetServer(key, _)
            | Step::DeleteServer(key)
            | Step::AddDestination(key, _)
            | Step::Open(key, _)
            | Step::Close(key, _)
            | Step::DeleteDestination(key, _) => return self.wanted.owner(key).cloned(),
            Step::Enter(set, entry) => Item::Entry(*set, *entry),
            Step::Bind(ip) => Item::Address(*ip),
            Step::Leave(..) | Step::Unbind(_) | Step::Rules(_) => return None,
        };
        let (desired, family, context) = (self.desired, self.family, self.context);
        let of_items = self.of_items.get_or_insert_with(|| {
            let mut of_items = BTreeMap::new();
            for exposure in desired.exposures(family) {
                for item in render::exposure(exposure, context).items {
                    of_items.entry(item).or_insert_with(|| exposure.key.clone());
                }
            }
            of_items
        });
        of_items.get(&item).cloned()
    }
}
