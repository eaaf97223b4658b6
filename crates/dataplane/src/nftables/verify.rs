//! How the table in the kernel differs from what is wanted, element by element, in the words of `nft`.
//!
//! In: a snapshot of the table, and desired state. Out: a [`Report`]. Nothing is written. A table that
//! kube-proxy wrote has another layout: [`kube_proxy`] compares what it does.
//!
//! All of the table is ours, so what others put into it is unexpected. Chains of ours that nothing
//! leads to any more are not: they go with the next change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Display;
use std::io;

use ferrule_core::desired::Desired;
use ferrule_core::model::{Family, PortKey};
use ferrule_kernel::nft::text::{self, NoSyntax};
use ferrule_kernel::nft::{Chain, Comment, Element, Name, Nft, Rule, Set, Snapshot, Table, Value};
use ferrule_kernel::socket::Transport;

use super::diff::{RenderContext, Unused, by_chain, of};
use super::kube_proxy;
use super::names::{self, Container, TABLE};
use super::ruleset::Ruleset;
use super::{Options, program, render};
use crate::verify::{Discrepancy, Report, line_discrepancies};
use crate::{kernel_family, said};

/// How the table of this family in the network namespace of the calling thread differs.
///
/// # Errors
/// What the kernel said.
pub fn verify(desired: &Desired, family: Family, options: Options) -> io::Result<Report> {
    verify_over(&mut Nft::open()?, desired, family, options)
}

/// The same over this conversation.
///
/// # Errors
/// What the kernel said.
pub fn verify_over<T: Transport>(
    nft: &mut Nft<T>,
    desired: &Desired,
    family: Family,
    options: Options,
) -> io::Result<Report> {
    let installed = nft.snapshot(kernel_family(family), TABLE).map_err(said)?;
    Ok(compare(installed.as_ref(), desired, family, options))
}

/// How what is installed differs from what is wanted.
fn compare(
    installed: Option<&Snapshot>,
    desired: &Desired,
    family: Family,
    options: Options,
) -> Report {
    let mut report = Report::default();
    let words = Words::new(kernel_family(family), TABLE);
    let Some(installed) = installed else {
        report.add(Discrepancy::missing(words.table()));
        return report;
    };
    if let Some(state) = table_state(&installed.table.object) {
        report.add(Discrepancy::different(words.table(), state));
    }
    if kube_proxy::is_its(installed) {
        report.append(kube_proxy::compare(installed, desired, family, options));
        return report;
    }
    let exposures = || desired.exposures(family).into_iter().map(|all| &**all);
    let facts = desired.facts(family);
    let wanted = render::ruleset(exposures(), facts, family, options);
    let context = RenderContext::new(family, options);
    let mut comparison = Comparison {
        words,
        context,
        installed,
        wanted: &wanted,
        rules: by_chain(installed.rules.iter().map(|held| &held.object)),
        report,
    };
    comparison.chains();
    comparison.sets();
    comparison.elements();
    let mut report = comparison.report;
    if !report.discrepancies.is_empty() {
        // To know whose everything is costs as much as to render it, so only now.
        let owners = Owners::of(desired, family, context);
        report.discrepancies = std::mem::take(&mut report.discrepancies)
            .into_iter()
            .map(|one| owners.name(one, words))
            .collect();
    }
    report
}

/// What is wrong with a table itself.
fn table_state(table: &Table) -> Option<String> {
    let dormant = table.flags & Table::DORMANT != 0;
    let rest = table.flags & !Table::DORMANT;
    match (dormant, rest) {
        (false, 0) => None,
        (true, 0) => Some("flags dormant: none of its rules is in force".to_owned()),
        (_, rest) => Some(format!("flags {rest:#x}")),
    }
}

/// Objects of one table in the words of `nft`.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    family: ferrule_kernel::Family,
    table: &'static str,
}

impl Words {
    /// Of this table.
    pub const fn new(family: ferrule_kernel::Family, table: &'static str) -> Self {
        Self { family, table }
    }

    /// The table.
    pub fn table(&self) -> String {
        format!("table {} {}", text::family(self.family), self.table)
    }

    fn named(&self, word: &str, name: impl Display) -> String {
        let Self { family, table } = self;
        format!("{word} {} {table} {name}", text::family(*family))
    }

    /// A chain.
    pub fn chain(&self, name: &str) -> String {
        self.named("chain", name)
    }

    /// A set or map.
    pub fn set(&self, set: &Set) -> String {
        self.named(text::set_word(set), &set.name)
    }

    /// A rule of a chain.
    pub fn rule(&self, chain: &str, rule: &str) -> String {
        self.named("rule", format_args!("{chain} {rule}"))
    }

    /// An element of a set or map.
    pub fn element(&self, set: &str, element: &str) -> String {
        self.named("element", format_args!("{set} {{ {element} }}"))
    }

    /// What a rule does. Rules of others may have no words here.
    pub fn of_rule(&self, rule: &Rule) -> String {
        text::rule(rule, self.family).unwrap_or_else(|none| none.to_string())
    }
}

/// What is compared with what.
struct Comparison<'a> {
    words: Words,
    context: RenderContext,
    installed: &'a Snapshot,
    wanted: &'a Ruleset,
    rules: BTreeMap<&'a str, Vec<&'a Rule>>,
    report: Report,
}

impl Comparison<'_> {
    /// Chains that are missing, of another kind or not wanted, and the rules of all others.
    fn chains(&mut self) {
        let (installed, wanted) = (self.installed, self.wanted);
        let present = installed.chains.iter();
        let present: BTreeMap<&str, &Chain> = present
            .map(|held| (&*held.object.name, &held.object))
            .collect();
        let statics = by_chain(&wanted.common.statics.rules);
        for chain in names::chains() {
            let rules = of(&statics, &chain.name);
            self.chain(&chain, rules, &present);
        }
        for pick in &wanted.common.picks {
            let rules = program::pick(self.context.family, pick, self.context.mark);
            let rules: Vec<&Rule> = rules.iter().collect();
            self.chain(&Chain::new(pick.name()), &rules, &present);
        }
        for (name, rules) in &wanted.chains {
            let rules: Vec<&Rule> = rules.iter().collect();
            self.chain(&Chain::new(Name::clone(name)), &rules, &present);
        }
        let unused = Unused::find(installed, wanted, &self.rules);
        for name in unused.strange_chains() {
            let object = self.words.chain(name);
            self.report.add(Discrepancy::unexpected(object));
        }
        for name in unused.sets() {
            let set = installed
                .sets
                .iter()
                .find(|held| held.object.name == **name);
            if let Some(held) = set {
                let object = self.words.set(&held.object);
                self.report.add(Discrepancy::unexpected(object));
            }
        }
    }

    fn chain(&mut self, chain: &Chain, wanted: &[&Rule], present: &BTreeMap<&str, &Chain>) {
        let object = self.words.chain(&chain.name);
        let Some(found) = present.get(&*chain.name) else {
            self.report.add(Discrepancy::missing(object));
            return;
        };
        if found.base != chain.base {
            let found = declaration(text::chain(found));
            self.report.add(Discrepancy::different(object, found));
        }
        self.report.discrepancies.extend(rules_of_chain(
            self.words,
            &chain.name,
            wanted,
            of(&self.rules, &chain.name),
        ));
    }

    /// Sets and maps that are missing or of another type.
    fn sets(&mut self) {
        let present = self.installed.sets.iter();
        let present: BTreeMap<&str, &Set> = present
            .map(|held| (&*held.object.name, &held.object))
            .collect();
        let containers = Container::ALL.map(|container| container.set(self.context.family));
        let own = self.wanted.sets.values().map(|own| &own.set);
        for set in containers.iter().chain(own) {
            let object = self.words.set(set);
            match present.get(&*set.name) {
                None => self.report.add(Discrepancy::missing(object)),
                Some(found) if !is_alike(set, found) => {
                    let found = declaration(text::set(found));
                    self.report.add(Discrepancy::different(object, found));
                }
                Some(_) => {}
            }
        }
    }

    /// Elements of all sets and maps that packets do not fill.
    fn elements(&mut self) {
        let (words, family) = (self.words, self.context.family);
        for container in Container::ALL {
            let set = container.set(family);
            let Some(found) = self.installed.elements.get(&set.name) else {
                continue;
            };
            let found =
                elements_of_set(words, &set, wanted_elements(self.wanted, container), found);
            self.report.discrepancies.extend(found);
        }
        for (name, own) in self.wanted.sets.iter().filter(|(_, own)| own.set.interval) {
            let Some(found) = self.installed.elements.get(name) else {
                continue;
            };
            let found = elements_of_set(words, &own.set, &own.elements(), found);
            self.report.discrepancies.extend(found);
        }
    }
}

fn wanted_elements(wanted: &Ruleset, container: Container) -> &[Element] {
    let nets = wanted.common.statics.nets.get(&container);
    nets.map_or_else(|| wanted.elements(container), Vec::as_slice)
}

/// Whether a set does what the other one does. Sizes may differ: who is remembered there stays.
fn is_alike(wanted: &Set, found: &Set) -> bool {
    let flags = |set: &Set| (set.anonymous, set.interval, set.dynamic, set.timeout);
    flags(wanted) == flags(found) && wanted.key == found.key && wanted.data == found.data
}

fn declaration(lines: Result<Vec<String>, NoSyntax>) -> String {
    match lines {
        Ok(lines) if lines.is_empty() => "no base chain".to_owned(),
        Ok(lines) => lines.join("; "),
        Err(none) => none.to_string(),
    }
}

/// How the rules of one chain differ from those that are wanted.
pub fn rules_of_chain(
    words: Words,
    chain: &str,
    wanted: &[&Rule],
    found: &[&Rule],
) -> Vec<Discrepancy> {
    if wanted == found {
        return Vec::new();
    }
    let differences = rules_by_words(words, chain, wanted, found);
    if differences.is_empty() {
        // They differ in something for which there are no words.
        return vec![Discrepancy::different(
            words.chain(chain),
            "rules that nft lists alike and that are not",
        )];
    }
    differences
}

/// The same, where rules that are listed alike are alike.
pub fn rules_by_words(
    words: Words,
    chain: &str,
    wanted: &[&Rule],
    found: &[&Rule],
) -> Vec<Discrepancy> {
    let lines =
        |rules: &[&Rule]| -> Vec<String> { rules.iter().map(|rule| words.of_rule(rule)).collect() };
    line_discrepancies(&lines(wanted), &lines(found), |line| {
        words.rule(chain, line)
    })
}

/// How the elements of a set differ from those that are wanted, which are sorted by key unless the
/// set is one of ranges.
pub fn elements_of_set(
    words: Words,
    set: &Set,
    wanted: &[Element],
    found: &[Element],
) -> Vec<Discrepancy> {
    let say = |element: &Element| {
        let one = text::elements(set, [element]);
        let text = one.map_or_else(|none| none.to_string(), |all| all.concat());
        words.element(&set.name, &text)
    };
    if set.interval && set.key.len() == 1 {
        return ranges_of_set(words, set, wanted, found);
    }
    let mut differences = Vec::new();
    let mut seen = vec![false; wanted.len()];
    for element in found {
        let at = wanted.binary_search_by(|other| other.key.cmp(&element.key));
        let at = at
            .ok()
            .filter(|at| !std::mem::replace(&mut seen[*at], true));
        match at.map(|at| &wanted[at]) {
            Some(wanted) if wanted == element => {}
            Some(wanted) => {
                differences.push(Discrepancy::different(say(wanted), say(element)));
            }
            None => differences.push(
                Discrepancy::unexpected(say(element))
                    .of(element.comment.as_ref().map(Comment::as_str)),
            ),
        }
    }
    let absent = wanted.iter().zip(seen).filter(|(_, seen)| !seen);
    differences.extend(absent.map(|(element, _)| Discrepancy::missing(say(element))));
    differences
}

/// Ranges are told by what is in them: half a range says nothing.
fn ranges_of_set(
    words: Words,
    set: &Set,
    wanted: &[Element],
    found: &[Element],
) -> Vec<Discrepancy> {
    let lines = |elements: &[Element]| -> BTreeSet<String> {
        let lines = text::elements(set, elements);
        let lines = lines.unwrap_or_else(|none| vec![none.to_string()]);
        lines.into_iter().collect()
    };
    let (wanted, found) = (lines(wanted), lines(found));
    let missing = wanted.difference(&found);
    let missing = missing.map(|line| Discrepancy::missing(words.element(&set.name, line)));
    let more = found.difference(&wanted);
    let more = more.map(|line| Discrepancy::unexpected(words.element(&set.name, line)));
    missing.chain(more).collect()
}

/// Which Service port something in the table belongs to.
struct Owners(HashMap<String, PortKey>);

impl Owners {
    /// Of everything that these Services put into the table.
    fn of(desired: &Desired, family: Family, context: RenderContext) -> Self {
        let words = Words::new(kernel_family(family), TABLE);
        let mut owners = HashMap::new();
        let mut own = |what: String, key: &PortKey| {
            owners.entry(what).or_insert_with(|| key.clone());
        };
        for exposure in desired.exposures(family) {
            let key = &exposure.key;
            let drawing = render::exposure(exposure, context);
            for (container, element) in &drawing.elements {
                own(element_name(words, *container, &element.key), key);
            }
            for name in drawing.chains.keys() {
                own(words.chain(name), key);
                own(words.rule(name, ""), key);
            }
            for own_set in drawing.sets.values() {
                own(words.set(&own_set.set), key);
                own(words.element(&own_set.set.name, ""), key);
            }
        }
        Self(owners)
    }

    /// The same discrepancy with its owner.
    fn name(&self, discrepancy: Discrepancy, words: Words) -> Discrepancy {
        if discrepancy.service.is_some() {
            return discrepancy;
        }
        let owner = self.find(&discrepancy.object, words).cloned();
        discrepancy.of(owner)
    }

    fn find(&self, object: &str, words: Words) -> Option<&PortKey> {
        if let Some(owner) = self.0.get(object) {
            return Some(owner);
        }
        let mut parts = object.split(' ');
        let (word, name) = (parts.next()?, parts.nth(2)?);
        match word {
            "rule" => self.0.get(&words.rule(name, "")),
            "element" => self.0.get(&words.element(name, "")).or_else(|| {
                // Without what the key leads to, and without its comment.
                let (_, rest) = object.split_once(" { ")?;
                let rest = rest.strip_suffix(" }")?;
                let end = [" comment \"", " : "].into_iter();
                let end = end.filter_map(|end| rest.find(end)).min();
                let key = &rest[..end.unwrap_or(rest.len())];
                self.0.get(&words.element(name, key)).or_else(|| {
                    // A slot that is too many is behind the address of its Service.
                    let (frontend, _) = key.rsplit_once(" . ")?;
                    let first = self.0.get(&words.element(name, &format!("{frontend} . 0")));
                    first.filter(|_| name.ends_with("endpoints"))
                })
            }),
            _ => None,
        }
    }
}

/// An element by its key alone.
fn element_name(words: Words, container: Container, key: &Value) -> String {
    let mut set = container.set(words.family);
    set.data = ferrule_kernel::nft::MapData::None;
    let text = text::elements(&set, [&Element::new(*key)]);
    words.element(container.name(), &text.unwrap_or_default().concat())
}
