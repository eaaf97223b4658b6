//! Removes everything that is ours: for `--cleanup`, and for a start in another mode.
//!
//! The rules of kube-proxy's mode ipvs go too. They share chains with ours, and neither could be
//! removed while the other is there.

use ferrule_kernel::xt::Table;

use super::document::{Document, Stage, Step};
use super::installed::Inventory;
use super::names::{self, Chain};
use super::rule::{Part, Rule, Target};
use super::statics;

/// Chains of mode ipvs that others lead to.
const IPVS_NODE_PORT: Chain = Chain::Fixed("KUBE-NODE-PORT");
const IPVS_FILTER: Chain = Chain::Fixed("KUBE-IPVS-FILTER");
const IPVS_OUT_FILTER: Chain = Chain::Fixed("KUBE-IPVS-OUT-FILTER");

/// Our chains by table. `KUBE-FIREWALL` is kubelet's as well, and stays.
const OURS: [(Table, &[Chain]); 3] = [
    (
        Table::Nat,
        &[
            names::SERVICES,
            names::NODE_PORTS,
            names::POSTROUTING,
            names::MARK_MASQ,
            names::CANARY,
            IPVS_NODE_PORT,
            Chain::Fixed("KUBE-LOAD-BALANCER"),
        ],
    ),
    (
        Table::Filter,
        &[
            names::SERVICES,
            names::EXTERNAL_SERVICES,
            names::FORWARD,
            names::NODE_PORTS,
            names::PROXY_FIREWALL,
            names::CANARY,
            IPVS_NODE_PORT,
            IPVS_FILTER,
            IPVS_OUT_FILTER,
            Chain::Fixed("KUBE-SOURCE-RANGES-FIREWALL"),
        ],
    ),
    (Table::Mangle, &[names::CANARY]),
];

/// What removes everything of ours that is installed.
pub fn leftovers(installed: &dyn Inventory) -> Document {
    let mut document = Document::default();
    for (table, chains) in OURS {
        let mut stage = Stage::new(table);
        for (at, from, rule) in statics::jumps().into_iter().chain(ipvs_jumps()) {
            if at != table || rule.target == Target::Jump(names::FIREWALL) {
                continue;
            }
            for _ in 0..installed.count((table, from), &rule) {
                let step = Step::Delete(Chain::Fixed(from), rule.clone());
                stage.rules.push((None, step));
            }
        }
        for chain in chains {
            let name = chain.to_string();
            if installed.has(table, &name) {
                stage.remove(&name);
            }
        }
        if table == Table::Nat {
            let chains = installed.chains(table).into_iter();
            let own = chains.filter(|name| names::is_own(name));
            own.for_each(|name| stage.remove(name));
        }
        document.push(stage);
    }
    document
}

/// How the rules of mode ipvs are entered, where that differs.
fn ipvs_jumps() -> [(Table, &'static str, Rule); 5] {
    const ACCESS: &str = "kubernetes ipvs access filter";
    const FIREWALL: &str = "kube-proxy firewall rules";
    let jump = |from, text: &str, to| {
        let remark = Part::Comment(text.to_owned());
        (Table::Filter, from, Rule::new([remark], Target::Jump(to)))
    };
    [
        jump("INPUT", "kubernetes health check rules", IPVS_NODE_PORT),
        jump("INPUT", FIREWALL, names::PROXY_FIREWALL),
        jump("FORWARD", FIREWALL, names::PROXY_FIREWALL),
        jump("INPUT", ACCESS, IPVS_FILTER),
        jump("OUTPUT", ACCESS, IPVS_OUT_FILTER),
    ]
}
