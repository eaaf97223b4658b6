//! Portals as text for the tool that programs them, for people.
//!
//! In: desired state. Out: what [`Userspace`](super::Userspace) programs for it. Proxy ports are
//! known only to the process that listens on them; here they are counted from the beginning of the
//! range, or from a port that a kernel may choose.

use std::collections::BTreeMap;

use ferrule_core::desired::Desired;
use ferrule_core::model::{Family, PortKey};
use ferrule_kernel::nft::text::{self, NoSyntax};
use ferrule_kernel::nft::{Element, Rule};

use super::names::{self, Container};
use super::plan::{self, Served};
use super::{Options, PortalsBy, chains, render};
use crate::kernel_family;
use crate::xtables::diff;
use crate::xtables::installed::Installed;
use crate::xtables::ruleset::Ruleset;

/// The first of a Linux machine's ephemeral ports.
const FIRST: u16 = 32768;

/// What is programmed for one family.
///
/// # Errors
/// The name of a Service, or of an interface, that `nft` cannot read. No API server accepts such.
pub fn text(desired: &Desired, family: Family, options: &Options) -> Result<String, NoSyntax> {
    let served = served(desired, family, options);
    let facts = desired.facts(family);
    let text = match options.portals {
        PortalsBy::Nftables => Sheet::write(
            family,
            options.transparent,
            &render::statics(facts, family, options),
            &drawn(&served),
        )?,
        PortalsBy::Iptables => {
            let context = chains::Context::new(family, facts, options);
            let mut wanted = Ruleset::default();
            for (key, served) in &served {
                wanted.add(key, chains::rules(key, served, &context));
            }
            diff::full(&chains::LAYOUT, &Installed::new(family), &wanted).text()
        }
    };
    let note = match &options.relay.proxy_ports {
        Some(range) => format!(
            "# Proxy ports are any of {} to {}.\n",
            range.start(),
            range.end()
        ),
        None => "# Proxy ports are those that the kernel chooses.\n".to_owned(),
    };
    Ok(note + &text)
}

/// Every Service port with all its lanes open.
fn served(desired: &Desired, family: Family, options: &Options) -> BTreeMap<PortKey, Served> {
    let first = options
        .relay
        .proxy_ports
        .as_ref()
        .map(|range| *range.start());
    let mut ports = first.unwrap_or(FIRST)..=u16::MAX;
    let all = desired.exposures(family).into_iter();
    all.map(|exposure| {
        let plan = plan::plan(exposure);
        let lanes = plan.lanes().into_iter();
        let served = Served {
            ports: lanes.zip(&mut ports).collect(),
            plan,
            ..Served::default()
        };
        (exposure.key.clone(), served)
    })
    .collect()
}

fn drawn(served: &BTreeMap<PortKey, Served>) -> BTreeMap<Container, Vec<Element>> {
    let mut drawn: BTreeMap<Container, Vec<Element>> = BTreeMap::new();
    for (key, served) in served {
        for (container, element) in render::drawing(key, served) {
            drawn.entry(container).or_default().push(element);
        }
    }
    for elements in drawn.values_mut() {
        elements.sort_by_key(|element| element.key);
        elements.dedup_by_key(|element| element.key);
    }
    drawn
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

    fn write(
        family: Family,
        transparent: bool,
        statics: &render::Statics,
        drawn: &BTreeMap<Container, Vec<Element>>,
    ) -> Result<String, NoSyntax> {
        let mut sheet = Self {
            family: kernel_family(family),
            text: String::new(),
        };
        let name = names::TABLES[0];
        let table = format!("table {} {name}", text::family(sheet.family));
        // Deleting what is not there is refused, so it is made first.
        sheet.line(0, &table);
        sheet.line(0, &format!("delete {table}"));
        sheet.line(0, &format!("{table} {{"));
        if let Some(comment) = &names::table(name).comment {
            sheet.line(1, &text::comment(comment));
        }
        for container in Container::ALL {
            let nets = statics.nets.get(&container);
            let elements = drawn.get(&container).or(nets);
            sheet.set(container, elements.map_or(&[], Vec::as_slice))?;
        }
        for chain in names::chains(transparent) {
            sheet.line(1, &format!("chain {} {{", text::name(&chain.name)?));
            for line in text::chain(&chain)? {
                sheet.line(2, &line);
            }
            let rules = statics.rules.iter();
            let rules: Vec<&Rule> = rules.filter(|rule| rule.chain == chain.name).collect();
            for rule in rules {
                let line = text::rule(rule, sheet.family)?;
                sheet.line(2, &line);
            }
            sheet.line(1, "}");
        }
        sheet.line(0, "}");
        Ok(sheet.text)
    }

    fn set(&mut self, container: Container, elements: &[Element]) -> Result<(), NoSyntax> {
        let set = container.set(self.family);
        let word = text::set_word(&set);
        self.line(1, &format!("{word} {} {{", text::name(&set.name)?));
        for line in text::set(&set)? {
            self.line(2, &line);
        }
        if !elements.is_empty() {
            self.line(2, "elements = {");
            for element in text::elements(&set, elements)? {
                self.line(3, &format!("{element},"));
            }
            self.line(2, "}");
        }
        self.line(1, "}");
        Ok(())
    }
}
