//! How the rules in the tables differ from those that are wanted. kube-proxy's are the same, so this
//! also tells whether a node is right that it still programs.
//!
//! In: desired state. Out: a [`Report`]. Nothing is written.

use std::io;
use std::net::IpAddr;

use ferrule_core::desired::Desired;
use ferrule_core::model::Family;
use ferrule_kernel::nfacct::Nfacct;
use ferrule_kernel::xt::Xt;

use super::layout::LAYOUT;
use super::statics::{HostFacts, RenderContext};
use super::{Options, names, render};
use crate::host::Host;
use crate::verify::Report;
use crate::xtables::tables::Tables;
use crate::xtables::verify::{Comparison, unreadable};
use crate::{ipvs, xtables};

/// How the rules of this family in the network namespace of the calling thread differ, on a machine
/// with these addresses.
///
/// # Errors
/// There is no iptables for this family, or the tables cannot be read.
pub fn verify(
    desired: &Desired,
    family: Family,
    options: Options,
    local: &[IpAddr],
) -> io::Result<Report> {
    let xt = xtables::open(family).map_err(unreadable)?;
    verify_by(xt, desired, family, options, local)
}

/// The same by this iptables.
///
/// # Errors
/// The tables cannot be read.
pub fn verify_by(
    xt: Xt,
    desired: &Desired,
    family: Family,
    options: Options,
    local: &[IpAddr],
) -> io::Result<Report> {
    let (count_invalid, count_localhost) = counters();
    let mut host = HostFacts {
        random_fully: xt.has_random_fully(),
        drop_invalid: !Host::default().is_tcp_liberal(),
        count_invalid,
        count_localhost,
    };
    let mut tables = Tables::new(family, &LAYOUT, xt);
    let mut compare = |host: HostFacts| {
        let (facts, totals) = (desired.facts(family), desired.totals(family));
        let context = RenderContext::new(family, options, facts, host, totals.listed, local);
        let all = desired.exposures(family).into_iter();
        let wanted = render::ruleset(all.map(|exposure| &**exposure), &context);
        let comparison = Comparison {
            layout: &LAYOUT,
            others: &[&ipvs::LAYOUT],
            wanted: &wanted,
            tolerates_idle: context.large,
        };
        comparison.of(&mut tables, family)
    };
    let report = compare(host)?;
    let is_about_counters = || {
        let mut all = report.discrepancies.iter();
        all.any(|one| one.object.contains(" nfacct "))
    };
    if !is_about_counters() {
        return Ok(report);
    }
    // A kernel may have counters and no way to use them in a rule; then rules do not count.
    host.count_invalid = false;
    host.count_localhost = false;
    let without = compare(host)?;
    let fewer = without.discrepancies.len() < report.discrepancies.len();
    Ok(if fewer { without } else { report })
}

/// Which counters there are, for packets that belong to no connection and for localhost.
fn counters() -> (bool, bool) {
    let Ok(mut nfacct) = Nfacct::open() else {
        return (false, false);
    };
    let mut has = |name| nfacct.get(name).is_ok_and(|found| found.is_some());
    (has(names::INVALID_COUNTER), has(names::LOCALHOST_COUNTER))
}
