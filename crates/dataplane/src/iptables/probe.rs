//! Whether the kernel can do what this mode writes for a family, in the nft flavour.
//!
//! There its programs do not find out: they list tables that the kernel could not have.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferrule_core::desired::Desired;
use ferrule_core::facts::Settings;
use ferrule_core::model::{Family, Port, Protocol};
use ferrule_kernel::nft::{Batch, Chain, Nft, Table as NftTable};
use ferrule_kernel::socket::Transport;
use ferrule_kernel::xt::Table;

use super::Options;
use super::layout::LAYOUT;
use super::statics::{self, HostFacts, RenderContext};
use crate::kernel_family;
use crate::probe::{PROBE, probe};
use crate::xtables::rule::{Part, Rule, Target};
use crate::xtables::{base_chains, encode};

/// Makes sure that the kernel can do what this mode writes.
///
/// # Errors
/// `Unsupported`: it lacks something.
pub fn check<T: Transport>(
    nft: &mut Nft<T>,
    family: Family,
    options: Options,
    host: HostFacts,
) -> io::Result<()> {
    probe(nft, hooks(family))?;
    for table in [Table::Nat, Table::Filter] {
        probe(nft, rules(table, family, options, host))?;
    }
    Ok(())
}

/// The base chains with jumps of ours, in a table that no packet enters.
fn hooks(family: Family) -> Batch {
    let mut batch = Batch::new(kernel_family(family), PROBE);
    batch.add_table(&NftTable {
        flags: NftTable::DORMANT,
        ..NftTable::new(PROBE)
    });
    let jumps = LAYOUT.jumps.iter().map(|jump| (jump.table, jump.from));
    let distinct: BTreeSet<(Table, &str)> = jumps.collect();
    for (table, from) in distinct {
        if let Some(base) = base_chains::base_chain(table, from) {
            batch.add_chain(&Chain {
                name: format!("{table}-{from}").into(),
                ..base
            });
        }
    }
    batch
}

/// What a cluster without Services needs, and what translates to an endpoint and refuses without
/// one. Matches and targets ask for the name of their table, so this goes into the real one, in a
/// chain that nothing jumps to.
fn rules(table: Table, family: Family, options: Options, host: HostFacts) -> Batch {
    let mut batch = Batch::new(kernel_family(family), table.as_str());
    batch.add_table(&NftTable::new(table.as_str()));
    batch.add_chain(&Chain::new(PROBE));
    let nothing = Desired::new(Settings::default());
    let context = RenderContext::new(family, options, nothing.facts(family), host, 0, &[]);
    let statics = statics::build(&context).into_iter();
    let statics = statics.filter(|((at, _), _)| *at == table);
    let of_services = match table {
        Table::Nat => translation(family),
        Table::Filter => Some(Rule::new([], Target::Reject)),
        Table::Mangle => None,
    };
    let all = statics.flat_map(|(_, rules)| rules);
    for rule in all.chain(of_services) {
        let rule = match rule.target {
            Target::Jump(_) => Rule::new(rule.parts, Target::Return),
            _ => rule,
        };
        if let Some(rule) = encode::rule(&rule, PROBE, family) {
            batch.add_rule(&rule);
        }
    }
    batch
}

fn translation(family: Family) -> Option<Rule> {
    let to = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    let target = Target::Dnat(to, Port::new(1)?);
    Some(Rule::new([Part::Protocol(Protocol::Tcp)], target))
}

#[cfg(test)]
mod tests {
    use ferrule_kernel::recorder::{Answer, Recorder, Script};
    use ferrule_testbed::in_namespace;

    use super::*;

    const HOST: HostFacts = HostFacts {
        random_fully: true,
        drop_invalid: true,
        count_invalid: false,
        count_localhost: false,
    };

    #[test]
    fn core_041_a_family_whose_nat_the_kernel_lacks_is_found_out_in_the_nft_flavour() {
        // The step that cannot succeed is refused, but for those that say that something is lacking.
        let accepted = |batch: Batch| Answer::Refuse {
            message: 1 + batch.len(),
            errno: nix::libc::ENOENT,
        };
        let (family, options) = (Family::V6, Options::default());
        let outcome = |answers: Vec<Answer>| {
            let script = Script::default();
            for answer in answers {
                script.answer(answer);
            }
            let mut nft = Nft::new(Recorder::new(script));
            check(&mut nft, family, options, HOST)
        };
        let fine = || accepted(hooks(family));
        let nat = || accepted(rules(Table::Nat, family, options, HOST));
        let filter = || accepted(rules(Table::Filter, family, options, HOST));
        outcome(vec![fine(), nat(), filter()]).unwrap();
        let lack = |message| Answer::Refuse {
            message,
            errno: nix::libc::ENOENT,
        };
        for answers in [
            vec![lack(5)],
            vec![fine(), lack(4)],
            vec![fine(), nat(), lack(4)],
        ] {
            let error = outcome(answers).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
        }
    }

    #[test]
    fn core_041_asking_leaves_nothing_in_the_tables_of_iptables() {
        for family in Family::ALL {
            in_namespace(move || {
                let mut nft = Nft::open().unwrap();
                let before = nft.generation().unwrap();
                check(&mut nft, family, Options::default(), HOST).unwrap();
                assert_eq!(nft.generation().unwrap(), before);
                assert_eq!(ferrule_testbed::run("nft", &["list", "ruleset"]), "");
            });
        }
    }
}
