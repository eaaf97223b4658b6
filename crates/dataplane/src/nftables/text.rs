//! The whole table as a file for `nft -f`, for people.
//!
//! In: desired state. Out: what [`Nftables`](super::Nftables) programs for it, word for word: the
//! same objects are written in `nft`'s language instead of being sent. Loading it replaces the table, and
//! a proxy that starts afterwards finds nothing to write.

use std::collections::BTreeMap;

use ferrule_core::desired::Desired;
use ferrule_core::model::Family;
use ferrule_kernel::nft::text::{self, NoSyntax};
use ferrule_kernel::nft::{Chain, Element, Name, Rule, Set, Value};

use super::names::{self, Container, TABLE};
use super::ruleset::Ruleset;
use super::{Options, program, render};
use crate::kernel_family;

/// What is programmed for one family, in the words of `nft`.
///
/// # Errors
/// The name of a Service, or of an interface, that `nft` cannot read. No API server accepts such.
pub fn text(desired: &Desired, family: Family, options: Options) -> Result<String, NoSyntax> {
    let exposures = desired.exposures(family).into_iter().map(|all| &**all);
    let wanted = render::ruleset(exposures, desired.facts(family), family, options);
    let mut sheet = Sheet {
        family: kernel_family(family),
        text: String::new(),
    };
    sheet.write(&wanted, options)?;
    Ok(sheet.text)
}

struct Sheet {
    family: ferrule_kernel::Family,
    text: String,
}

impl Sheet {
    fn line(&mut self, depth: usize, line: &str) {
        self.text.extend(std::iter::repeat_n('\t', depth));
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn heading(&mut self, heading: &str) {
        self.line(0, "");
        self.line(1, &format!("# {heading}"));
    }

    fn write(&mut self, wanted: &Ruleset, options: Options) -> Result<(), NoSyntax> {
        let table = format!("table {} {TABLE}", text::family(self.family));
        // Deleting what is not there is refused, so it is made first.
        self.line(0, &table);
        self.line(0, &format!("delete {table}"));
        self.line(0, &format!("{table} {{"));
        if let Some(comment) = &names::table().comment {
            self.line(1, &text::comment(comment));
        }
        self.sets(wanted)?;
        self.chains(wanted, options)?;
        self.line(0, "}");
        Ok(())
    }

    fn sets(&mut self, wanted: &Ruleset) -> Result<(), NoSyntax> {
        self.heading("What addresses and ports lead to.");
        let owners = owners(wanted);
        // Backwards: who leads comes before who is led to, as one reads.
        for container in Container::ALL.into_iter().rev() {
            let set = container.set(self.family);
            let mut elements: Vec<_> = wanted.elements(container).iter().collect();
            elements.extend(
                wanted
                    .common
                    .statics
                    .nets
                    .get(&container)
                    .into_iter()
                    .flatten(),
            );
            elements.sort_by_key(|element| order(container, element));
            let comments: Vec<_> = elements
                .iter()
                .map(|element| comment(container, element, &owners))
                .collect();
            self.set(&set, &elements, &comments)?;
        }
        let (ranges, clients): (Vec<_>, Vec<_>) =
            wanted.sets.values().partition(|own| own.set.interval);
        for (heading, sets) in [
            (
                "Who may use the load balancer addresses of a Service.",
                ranges,
            ),
            (
                "Which clients stay with which endpoint. Packets fill these.",
                clients,
            ),
        ] {
            if !sets.is_empty() {
                self.heading(heading);
            }
            for own in sets {
                let elements = own.elements();
                self.set(&own.set, &elements.iter().collect::<Vec<_>>(), &[])?;
            }
        }
        Ok(())
    }

    fn set(
        &mut self,
        set: &Set,
        elements: &[&Element],
        comments: &[Option<&str>],
    ) -> Result<(), NoSyntax> {
        let (word, name) = (text::set_word(set), text::name(&set.name)?);
        self.line(1, &format!("{word} {name} {{"));
        for line in text::set(set)? {
            self.line(2, &line);
        }
        if !elements.is_empty() {
            self.line(2, "elements = {");
            let comments = comments.iter().copied().chain(std::iter::repeat(None));
            let elements = text::elements(set, elements.iter().copied())?;
            for (element, comment) in elements.iter().zip(comments) {
                match comment {
                    Some(comment) => self.line(3, &format!("{element}, # {comment}")),
                    None => self.line(3, &format!("{element},")),
                }
            }
            self.line(2, "}");
        }
        self.line(1, "}");
        Ok(())
    }

    fn chains(&mut self, wanted: &Ruleset, options: Options) -> Result<(), NoSyntax> {
        let mut rules: BTreeMap<&str, Vec<&Rule>> = BTreeMap::new();
        for rule in &wanted.common.statics.rules {
            rules.entry(&rule.chain).or_default().push(rule);
        }
        let (entrances, others): (Vec<_>, Vec<_>) = names::chains()
            .into_iter()
            .partition(|chain| chain.base.is_some());
        for (heading, chains) in [
            ("Where packets enter.", entrances),
            ("What happens to them.", others),
        ] {
            self.heading(heading);
            for chain in chains {
                let rules = rules.remove(&*chain.name).unwrap_or_default();
                self.chain(&chain, rules)?;
            }
        }
        if !wanted.common.picks.is_empty() {
            self.heading("Draws one of so many endpoints. Services with as many share it.");
        }
        for pick in &wanted.common.picks {
            let rules = program::pick(self.family, pick, options.mark);
            self.chain(&Chain::new(pick.name()), &rules)?;
        }
        let (sources, stays): (Vec<_>, Vec<_>) = wanted
            .chains
            .iter()
            .partition(|(name, _)| names::is_sources_chain(name));
        for (heading, chains) in [
            ("Drops sources that may not use an address.", sources),
            (
                "Leads clients to the endpoint that they were with before.",
                stays,
            ),
        ] {
            if !chains.is_empty() {
                self.heading(heading);
            }
            for (name, rules) in chains {
                self.chain(&Chain::new(Name::clone(name)), rules)?;
            }
        }
        Ok(())
    }

    fn chain<'a>(
        &mut self,
        chain: &Chain,
        rules: impl IntoIterator<Item = &'a Rule>,
    ) -> Result<(), NoSyntax> {
        self.line(1, &format!("chain {} {{", text::name(&chain.name)?));
        for line in text::chain(chain)? {
            self.line(2, &line);
        }
        for rule in rules {
            self.line(2, &text::rule(rule, self.family)?);
        }
        self.line(1, "}");
        Ok(())
    }
}

/// Whether elements have a slot behind the key of their Service address or NodePort.
const fn has_slots(container: Container) -> bool {
    matches!(
        container,
        Container::Endpoints | Container::NodePortEndpoints
    )
}

/// The key without the slot, and the slot, which is in this machine's order.
fn split_slot(key: &Value) -> Option<(&[u8], u32)> {
    let (frontend, slot) = key.as_bytes().split_last_chunk()?;
    Some((frontend, u32::from_ne_bytes(*slot)))
}

fn order(container: Container, element: &Element) -> (Vec<u8>, u32) {
    match split_slot(&element.key) {
        Some((frontend, slot)) if has_slots(container) => (frontend.to_vec(), slot),
        _ => (element.key.as_bytes().to_vec(), 0),
    }
}

/// Which Service port answers at the keys that lead somewhere.
fn owners(wanted: &Ruleset) -> BTreeMap<&[u8], &str> {
    let elements = wanted.elements.values().flatten();
    elements
        .filter_map(|element| {
            let comment = element.comment.as_ref()?;
            Some((element.key.as_bytes(), comment.as_str()))
        })
        .collect()
}

/// Endpoints carry no comment in the kernel, where each would cost memory; in a file it is free.
fn comment<'a>(
    container: Container,
    element: &Element,
    owners: &BTreeMap<&[u8], &'a str>,
) -> Option<&'a str> {
    let (frontend, _) = split_slot(&element.key).filter(|_| has_slots(container))?;
    let owner = owners.get(frontend).copied()?;
    // It would end the line early.
    (!owner.contains(char::is_control)).then_some(owner)
}
