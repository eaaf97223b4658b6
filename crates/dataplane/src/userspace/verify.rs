//! How portals differ from those that are wanted.
//!
//! In: desired state. Out: a [`Report`]. Nothing is written. Proxy ports are the process's: which one
//! an address leads to only that process knows. So a portal must lead to one of the ports that its
//! table lists as proxy ports, and all of a Service port's addresses of one class to the same one; who
//! listens there, and which endpoints are behind it, must be asked of the process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use ferrule_core::desired::Desired;
use ferrule_core::model::{Family, PortKey};
use ferrule_kernel::nft::{Chain, Comment, Data, Element, Nft, Rule, Snapshot, Table, Value, text};

use super::chains::{self, PortalChains};
use super::names::{self, Container, TABLES};
use super::plan::{self, Served};
use super::{Options, PortalsBy, render};
use crate::nftables::{self, Words};
use crate::verify::{Discrepancy, Report};
use crate::xtables::ruleset::Ruleset;
use crate::{kernel_family, said};

/// Stands for a proxy port that nobody knows. No process can listen there without being asked to.
const UNKNOWN: u16 = 1;

/// How the portals of this family in the network namespace of the calling thread differ.
///
/// # Errors
/// What the kernel said.
pub fn verify(desired: &Desired, family: Family, options: &Options) -> io::Result<Report> {
    let mut report = match options.portals {
        PortalsBy::Nftables => by_nftables(desired, family, options)?,
        PortalsBy::Iptables => by_iptables(desired, family, options)?,
    };
    report.note(
        "which endpoints are behind proxy ports must be asked of the running process; compared is \
         what leads to these ports",
    );
    Ok(report)
}

/// What a Service port needs, with a proxy port for each of its lanes.
fn served(desired: &Desired, family: Family) -> BTreeMap<PortKey, Served> {
    let all = desired.exposures(family).into_iter();
    all.map(|exposure| {
        let plan = plan::plan(exposure);
        let served = Served {
            ports: plan
                .lanes()
                .into_iter()
                .map(|lane| (lane, UNKNOWN))
                .collect(),
            plan,
            ..Served::default()
        };
        (exposure.key.clone(), served)
    })
    .collect()
}

fn by_nftables(desired: &Desired, family: Family, options: &Options) -> io::Result<Report> {
    let mut nft = Nft::open()?;
    let mut best: Option<Report> = None;
    // While one process takes over from another there are two, and the older one goes.
    for name in TABLES {
        let found = nft.snapshot(kernel_family(family), name).map_err(said)?;
        let Some(installed) = found else { continue };
        let report = compare(&installed, name, desired, family, options);
        let fewer = |best: &Report| report.discrepancies.len() < best.discrepancies.len();
        if best.as_ref().is_none_or(fewer) {
            best = Some(report);
        }
    }
    Ok(best.unwrap_or_else(|| {
        let mut report = Report::default();
        let words = Words::new(kernel_family(family), TABLES[0]);
        report.add(Discrepancy::missing(words.table()));
        report
    }))
}

/// How one table differs.
fn compare(
    installed: &Snapshot,
    name: &'static str,
    desired: &Desired,
    family: Family,
    options: &Options,
) -> Report {
    let words = Words::new(kernel_family(family), name);
    let mut report = Report::default();
    if installed.table.object.flags & Table::OWNER == 0 {
        let found = "no process owns it: it is left of one that ended";
        report.add(Discrepancy::different(words.table(), found));
    }
    let statics = render::statics(desired.facts(family), family, options);
    for chain in names::chains(options.transparent) {
        let chain_rules = |rules: &mut dyn Iterator<Item = &Rule>| -> Vec<Rule> {
            rules
                .filter(|rule| rule.chain == chain.name)
                .cloned()
                .collect()
        };
        let wanted = chain_rules(&mut statics.rules.iter());
        let found = chain_rules(&mut installed.rules.iter().map(|held| &held.object));
        compare_chain(words, &chain, installed, (&wanted, &found), &mut report);
    }
    let served = served(desired, family);
    let mut wanted: BTreeMap<Container, BTreeMap<Value, (Element, &PortKey)>> = BTreeMap::new();
    for (key, served) in &served {
        for (container, element) in render::drawing(key, served) {
            let elements = wanted.entry(container).or_default();
            elements.entry(element.key).or_insert((element, key));
        }
    }
    let nothing = BTreeMap::new();
    for container in Container::ALL {
        let set = container.set(kernel_family(family));
        let Some(found) = installed.elements.get(&set.name) else {
            report.add(Discrepancy::missing(words.set(&set)));
            continue;
        };
        if let Some(nets) = statics.nets.get(&container) {
            let differences = nftables::elements_of_set(words, &set, nets, found);
            report.discrepancies.extend(differences);
        } else if container != Container::ProxyPorts {
            let wanted = wanted.get(&container).unwrap_or(&nothing);
            let proxy_ports = installed.elements.get(Container::ProxyPorts.name());
            let proxy_ports = proxy_ports.map_or(&[][..], Vec::as_slice);
            compare_elements(
                words,
                container,
                family,
                wanted,
                (found, proxy_ports),
                &mut report,
            );
        }
    }
    report
}

fn compare_chain(
    words: Words,
    chain: &Chain,
    installed: &Snapshot,
    (wanted, found): (&[Rule], &[Rule]),
    report: &mut Report,
) {
    let object = words.chain(&chain.name);
    let mut chains = installed.chains.iter().map(|held| &held.object);
    match chains.find(|other| other.name == chain.name) {
        None => report.add(Discrepancy::missing(object)),
        Some(other) => {
            if other.base != chain.base {
                let found = text::chain(other).unwrap_or_default().join("; ");
                report.add(Discrepancy::different(object, found));
            }
            let (wanted, found): (Vec<&Rule>, Vec<&Rule>) =
                (wanted.iter().collect(), found.iter().collect());
            let differences = nftables::rules_of_chain(words, &chain.name, &wanted, &found);
            report.discrepancies.extend(differences);
        }
    }
}

/// Elements of a set or map, but for proxy ports.
fn compare_elements(
    words: Words,
    container: Container,
    family: Family,
    wanted: &BTreeMap<Value, (Element, &PortKey)>,
    (found, proxy_ports): (&[Element], &[Element]),
    report: &mut Report,
) {
    let set = container.set(kernel_family(family));
    let say = |element: &Element| {
        let text = text::elements(&set, [element]);
        let text = text.map_or_else(|none| none.to_string(), |all| all.concat());
        words.element(&set.name, &text)
    };
    let unknown =
        |element: &Element| say(element).replace(&format!(" : {UNKNOWN} }}"), " : PORT }");
    let mut seen = BTreeSet::new();
    for element in found {
        let Some((other, owner)) = wanted.get(&element.key) else {
            let owner = element.comment.as_ref().map(Comment::as_str);
            report.add(Discrepancy::unexpected(say(element)).of(owner));
            continue;
        };
        seen.insert(element.key);
        let (leads, matches) = match (&element.data, &other.data) {
            // Behind a protocol that the key ends with, but for its port.
            (Data::Value(port), Data::Value(_)) => {
                let bytes = element.key.as_bytes();
                let protocol = bytes.len().checked_sub(8).and_then(|at| bytes.get(at));
                let listed = proxy_ports.iter().any(|proxy| {
                    let key = proxy.key.as_bytes();
                    key.first() == protocol && key.get(4..6) == port.as_bytes().get(..2)
                });
                (listed, element.comment == other.comment)
            }
            _ => (true, *element == *other),
        };
        if !leads {
            let found = format!("{}, where no proxy port is", say(element));
            report.add(Discrepancy::different(unknown(other), found).of(Some(owner)));
        } else if !matches {
            report.add(Discrepancy::different(unknown(other), say(element)).of(Some(owner)));
        }
    }
    for (key, (element, owner)) in wanted {
        if !seen.contains(key) {
            report.add(Discrepancy::missing(unknown(element)).of(Some(owner)));
        }
    }
}

fn by_iptables(desired: &Desired, family: Family, options: &Options) -> io::Result<Report> {
    let mut portals = PortalChains::open(family)?.recall();
    let context = chains::Context::new(family, desired.facts(family), options);
    let mut wanted = Ruleset::default();
    for (key, mut served) in served(desired, family) {
        // In these chains every lane is open.
        for portal in &served.plan.portals {
            let port = portals.port_before(key.protocol, portal);
            let known = served.ports.entry(portal.class()).or_insert(UNKNOWN);
            if let (UNKNOWN, Some(port)) = (*known, port) {
                *known = port;
            }
        }
        if plan::is_relayed(key.protocol) {
            wanted.add(&key, chains::rules(&key, &served, &context));
        }
    }
    let mut report = portals.verify(&wanted, family)?;
    let ends = [format!("--to-ports {UNKNOWN}"), format!(":{UNKNOWN}")];
    let hide = |object: &str| {
        let end = ends.iter().find(|end| object.ends_with(end.as_str()))?;
        let start = object.strip_suffix(end.as_str())?;
        Some(format!(
            "{start}{}",
            end.replace(&UNKNOWN.to_string(), "PORT")
        ))
    };
    report.discrepancies = std::mem::take(&mut report.discrepancies)
        .into_iter()
        .map(|one| match hide(&one.object) {
            Some(object) => Discrepancy { object, ..one },
            None => one,
        })
        .collect();
    Ok(report)
}
