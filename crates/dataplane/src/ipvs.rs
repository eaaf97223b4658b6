//! What kube-proxy's mode ipvs leaves behind, and its removal.
//!
//! The rules of that mode go with those of mode iptables, and must go first: they name the sets.

use std::io;
use std::sync::LazyLock;

use ferrule_kernel::ipset::Ipset;
use ferrule_kernel::ipvs::Ipvs;
use ferrule_kernel::route::Route;
use ferrule_kernel::xt::Table;

use crate::iptables::names;
use crate::xtables::chain::Chain;
use crate::xtables::layout::{Fixed, Jump, Layout};
use crate::xtables::rule::{Part, Rule, Target};
use crate::{Applied, ApplyError, said};

/// The interface that holds all Service addresses.
const LINK: &str = "kube-ipvs0";
const LINK_KIND: &str = "dummy";

/// The chains of this mode.
pub(crate) static LAYOUT: LazyLock<Layout> = LazyLock::new(|| Layout {
    fixed: &FIXED,
    generated: &[],
    jumps: jumps(),
    canary: None,
    inspected: &[],
});

const NODE_PORT: Chain = Chain::new("KUBE-NODE-PORT");
const FILTER: Chain = Chain::new("KUBE-IPVS-FILTER");
const OUT_FILTER: Chain = Chain::new("KUBE-IPVS-OUT-FILTER");

const FIXED: [(Table, &[Fixed]); 2] = [
    (
        Table::Nat,
        &[
            Fixed::new(names::SERVICES),
            Fixed::new(names::POSTROUTING),
            Fixed::new(NODE_PORT),
            Fixed::new(Chain::new("KUBE-LOAD-BALANCER")),
            Fixed::new(names::MARK_MASQ),
        ],
    ),
    (
        Table::Filter,
        &[
            Fixed::new(names::FORWARD),
            Fixed::new(NODE_PORT),
            Fixed::new(names::PROXY_FIREWALL),
            Fixed::new(Chain::new("KUBE-SOURCE-RANGES-FIREWALL")),
            Fixed::new(FILTER),
            Fixed::new(OUT_FILTER),
        ],
    ),
];

/// In the order in which kube-proxy ensures them.
fn jumps() -> Vec<Jump> {
    const PORTALS: &str = "kubernetes service portals";
    const FIREWALL: &str = "kube-proxy firewall rules";
    const ACCESS: &str = "kubernetes ipvs access filter";
    use Table::{Filter, Nat};
    [
        (Nat, "OUTPUT", PORTALS, names::SERVICES),
        (Nat, "PREROUTING", PORTALS, names::SERVICES),
        (
            Nat,
            "POSTROUTING",
            "kubernetes postrouting rules",
            names::POSTROUTING,
        ),
        (
            Filter,
            "FORWARD",
            "kubernetes forwarding rules",
            names::FORWARD,
        ),
        (Filter, "INPUT", "kubernetes health check rules", NODE_PORT),
        (Filter, "INPUT", FIREWALL, names::PROXY_FIREWALL),
        (Filter, "FORWARD", FIREWALL, names::PROXY_FIREWALL),
        (Filter, "INPUT", ACCESS, FILTER),
        (Filter, "OUTPUT", ACCESS, OUT_FILTER),
    ]
    .map(|(table, from, text, to)| {
        let rule = Rule::new([Part::Comment(text.into())], Target::Jump(to));
        Jump::first(table, from, rule)
    })
    .into()
}

/// Sets of IPv4. Those of IPv6 are called `KUBE-6-…`.
const SETS: [&str; 17] = [
    "KUBE-LOOP-BACK",
    "KUBE-CLUSTER-IP",
    "KUBE-EXTERNAL-IP",
    "KUBE-EXTERNAL-IP-LOCAL",
    "KUBE-LOAD-BALANCER",
    "KUBE-LOAD-BALANCER-FW",
    "KUBE-LOAD-BALANCER-LOCAL",
    "KUBE-LOAD-BALANCER-SOURCE-IP",
    "KUBE-LOAD-BALANCER-SOURCE-CIDR",
    "KUBE-NODE-PORT-TCP",
    "KUBE-NODE-PORT-LOCAL-TCP",
    "KUBE-NODE-PORT-UDP",
    "KUBE-NODE-PORT-LOCAL-UDP",
    "KUBE-NODE-PORT-SCTP-HASH",
    "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
    "KUBE-HEALTH-CHECK-NODE-PORT",
    "KUBE-IPVS-IPS",
];

/// Longest name of a set.
const LONGEST: usize = 31;

/// Removes virtual servers, the interface with their addresses, and sets of both families. Each is
/// tried, whatever happens to the others; the first failure is returned.
///
/// The kernel forgets all virtual servers or none. They may belong to another program, so they stay
/// where nothing else of this mode exists.
///
/// # Errors
/// See [`ApplyError`].
pub fn remove() -> Result<Applied, ApplyError> {
    let mut removal = Removal::default();
    let link = removal.note(&format!("find {LINK}"), find_link());
    let link = link.flatten();
    removal.destroy_sets();
    if link.is_some() || removal.steps > 0 {
        let flushed = removal.note("flush virtual servers", flush());
        removal.steps += usize::from(flushed == Some(true));
    }
    if let Some(index) = link {
        let deleted = removal.note(&format!("delete {LINK}"), delete_link(index));
        removal.steps += usize::from(deleted.is_some());
    }
    match removal.failure {
        Some(failure) => Err(failure),
        None => Ok(Applied::steps(removal.steps)),
    }
}

/// How far it got.
#[derive(Default)]
struct Removal {
    steps: usize,
    failure: Option<ApplyError>,
}

impl Removal {
    /// The result, if there is one; the first failure is kept.
    fn note<A>(&mut self, step: &str, result: io::Result<A>) -> Option<A> {
        result
            .map_err(|source| {
                let step = step.to_owned();
                self.failure
                    .get_or_insert(ApplyError::Refused { step, source });
            })
            .ok()
    }

    fn destroy_sets(&mut self) {
        let sets = self.note("open a socket for sets", Ipset::open());
        let Some(mut sets) = sets.flatten() else {
            return;
        };
        for name in set_names() {
            let destroyed = sets.destroy(&name).map_err(said);
            let destroyed = self.note(&format!("destroy {name}"), destroyed);
            self.steps += usize::from(destroyed == Some(true));
        }
    }
}

/// All sets of both families.
fn set_names() -> impl Iterator<Item = String> {
    let six = |name: &str| {
        let mut name = name.replacen("KUBE-", "KUBE-6-", 1);
        name.truncate(LONGEST);
        name
    };
    SETS.into_iter()
        .flat_map(move |name| [name.to_owned(), six(name)])
}

/// The number of the interface, if there is one.
fn find_link() -> io::Result<Option<u32>> {
    let links = Route::open()?.links().map_err(said)?;
    match links.into_iter().find(|link| link.name == LINK) {
        // As kube-proxy does: an interface of another kind belongs to another program.
        Some(link) if link.kind.as_deref() != Some(LINK_KIND) => {
            let kind = link.kind.as_deref().unwrap_or("another kind");
            Err(io::Error::other(format!("it is {kind}, not {LINK_KIND}")))
        }
        link => Ok(link.map(|link| link.index)),
    }
}

fn delete_link(index: u32) -> io::Result<()> {
    Route::open()?.delete_link(index).map_err(said)
}

/// Whether there was something that could be flushed.
fn flush() -> io::Result<bool> {
    let Some(mut ipvs) = Ipvs::open().map_err(said)? else {
        return Ok(false);
    };
    ipvs.flush().map_err(said)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_ipv6_have_names_that_fit() {
        let names: Vec<_> = set_names().collect();
        assert_eq!(names.len(), 34);
        for cut in [
            "KUBE-6-LOAD-BALANCER-SOURCE-CID",
            "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS",
            "KUBE-6-IPVS-IPS",
        ] {
            assert!(names.iter().any(|name| name == cut), "{cut}");
        }
        assert!(names.iter().all(|name| name.len() <= LONGEST));
    }
}
