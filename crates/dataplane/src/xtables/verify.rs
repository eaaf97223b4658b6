//! How rules of iptables differ from those that are wanted, in the words of `iptables`.
//!
//! In: a ruleset, and the tables. Out: a [`Report`]. Nothing is written. Rules are compared as
//! `iptables-save` prints them, so it does not matter which program wrote them, or by which way.
//!
//! In a chain that Service ports share, kube-proxy has them in any order. There only what a packet
//! can tell matters: the order of each one's own rules, of rules that match the same, and that those
//! of no Service come last.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use ferrule_core::model::{Family, PortKey};
use ferrule_kernel::xt::{Table, Xt, XtError};

use super::chain::{Chain, TableChain};
use super::diff;
use super::document::Step;
use super::installed::{Installed, Inventory, Saved};
use super::layout::Layout;
use super::removal::leftovers;
use super::rule::Rule;
use super::ruleset::Ruleset;
use super::tables::Tables;
use crate::verify::{Discrepancy, Report, line_discrepancies};

/// What is compared.
#[derive(Clone, Copy)]
pub struct Comparison<'a> {
    /// Which chains are ours.
    pub layout: &'static Layout,
    /// Layouts of other modes, of which nothing should be left.
    pub others: &'a [&'a Layout],
    /// What is wanted.
    pub wanted: &'a Ruleset,
    /// Chains of Service ports that nothing jumps to are left for a while: kube-proxy does so in
    /// large clusters.
    pub tolerates_idle: bool,
}

impl Comparison<'_> {
    /// How the tables differ.
    ///
    /// # Errors
    /// They cannot be read; `PermissionDenied` for want of rights.
    pub fn of(&self, tables: &mut Tables, family: Family) -> io::Result<Report> {
        // The kernel says quickly which chains are not as wanted, and programs print slowly how they
        // are.
        match tables.ask(|there| self.differing(there)) {
            Some(differing) if differing.chains.is_empty() => return Ok(Report::default()),
            Some(differing) if differing.chains.len() <= FEW => {
                let saved = differing.print(tables.xt()).map_err(unreadable)?;
                let installed = saved.installed(family);
                return Ok(self.of_installed(&installed, family, Some(&differing.chains)));
            }
            _ => {}
        }
        let saved = tables.saved().map_err(unreadable)?;
        let installed = saved.installed(family);
        let mut report = self.of_installed(&installed, family, None);
        // A table that this kernel lacks and that is not needed.
        for table in Table::ALL.into_iter().filter(|table| !saved.has(*table)) {
            let start = format!("{} -t {table} ", program(family));
            report
                .discrepancies
                .retain(|one| !one.object.starts_with(&start));
        }
        Ok(report)
    }

    /// The chains that a full sync would write, or where it would.
    fn differing(&self, there: &dyn Inventory) -> Differing {
        let mut document = diff::full(self.layout, there, self.wanted);
        document.append(leftovers(self.layout, self.others, there));
        let mut chains = Chains::new();
        for stage in document.stages() {
            let rules = stage.rules.iter().map(|(_, step)| step);
            for step in stage.declared.iter().chain(rules).chain(&stage.removed) {
                let chain = match step {
                    Step::Declare(chain)
                    | Step::Append(chain, _)
                    | Step::Insert(chain, ..)
                    | Step::Delete(chain, _) => chain.as_str(),
                    Step::Empty(chain) | Step::Remove(chain) => chain.as_str(),
                };
                chains.insert((stage.table, chain.to_owned()));
            }
        }
        let names = |table| {
            let names = there.chains(table).into_iter();
            names.map(str::to_owned).collect()
        };
        Differing {
            chains,
            present: Table::ALL.map(|table| (table, names(table))),
        }
    }

    /// How rules that programs printed differ, in all chains or in these.
    fn of_installed(
        &self,
        installed: &Installed<'_>,
        family: Family,
        only: Option<&Chains>,
    ) -> Report {
        let mut lines = Lines {
            comparison: *self,
            installed,
            only,
            family,
            report: Report::default(),
        };
        lines.fixed();
        lines.jumps();
        lines.generated();
        lines.leftovers();
        lines.report
    }
}

/// Up to so many chains are printed one by one: to print all of a large cluster's takes long.
const FEW: usize = 64;

/// Chains and their tables.
type Chains = BTreeSet<(Table, String)>;

/// What is not as wanted, as the kernel says.
struct Differing {
    chains: Chains,
    /// All chains that there are.
    present: [(Table, Vec<String>); 3],
}

impl Differing {
    /// All chains, and the rules of those that differ, as programs print them.
    fn print(&self, xt: &Xt) -> Result<Saved, XtError> {
        let mut saved = Saved::default();
        for (table, names) in &self.present {
            let mut text = String::new();
            for name in names {
                text += &[":", name, " -\n"].concat();
            }
            for (at, chain) in &self.chains {
                if at == table && names.contains(chain) {
                    // One that went in the meantime has no rules.
                    text += &xt.list(*table, chain)?.unwrap_or_default();
                }
            }
            saved.insert(*table, text);
        }
        Ok(saved)
    }
}

const fn program(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

struct Lines<'a, 'i> {
    comparison: Comparison<'a>,
    installed: &'a Installed<'i>,
    only: Option<&'a Chains>,
    family: Family,
    report: Report,
}

impl Lines<'_, '_> {
    fn chain(&self, table: Table, chain: &str) -> String {
        format!("{} -t {table} -N {chain}", program(self.family))
    }

    fn rule(&self, table: Table, chain: &str, rule: &str) -> String {
        format!("{} -t {table} -A {chain} {rule}", program(self.family))
    }

    /// Whether a chain is to be compared.
    fn concerns(&self, table: Table, chain: &str) -> bool {
        let only = self.only;
        only.is_none_or(|only| only.contains(&(table, chain.to_owned())))
    }

    /// A rule as it is printed.
    fn line(&self, rule: &Rule) -> String {
        let mut line = String::new();
        rule.saved(self.family, &mut line);
        plain(&line)
    }

    /// What is printed of a chain; `None` if there is none.
    fn found(&self, table: Table, chain: &str) -> Option<Vec<String>> {
        let lines = self.installed.chain(table, chain)?;
        Some(lines.iter().map(|line| plain(line)).collect())
    }

    /// Chains that exist once.
    fn fixed(&mut self) {
        let wanted = self.comparison.wanted;
        for (table, fixed) in self.comparison.layout.fixed() {
            let at = (table, fixed.chain);
            let name = fixed.chain.as_str();
            if !self.concerns(table, name) {
                continue;
            }
            let Some(found) = self.found(table, name) else {
                let object = self.chain(table, name);
                self.report.add(Discrepancy::missing(object));
                continue;
            };
            if fixed.shared {
                self.shared(at, &found);
            } else if let Some(rules) = wanted.statics.get(&at) {
                let rules: Vec<_> = rules.iter().map(|rule| self.line(rule)).collect();
                self.ordered(table, name, &rules, &found, None);
            }
        }
    }

    /// A chain whose order matters everywhere.
    fn ordered(
        &mut self,
        table: Table,
        chain: &str,
        wanted: &[String],
        found: &[String],
        owner: Option<&PortKey>,
    ) {
        let all = line_discrepancies(wanted, found, |line| self.rule(table, chain, line));
        for one in all {
            let service = owner.map(ToString::to_string);
            let service = service.or_else(|| service_of(&one.object));
            self.report.add(one.of(service));
        }
    }

    /// A chain that Service ports share.
    fn shared(&mut self, (table, chain): TableChain, found: &[String]) {
        let name = chain.as_str();
        let wanted = self.comparison.wanted.shared_rules((table, chain));
        let wanted: Vec<(Option<&PortKey>, String)> = wanted
            .into_iter()
            .map(|(owner, rule)| (owner, self.line(rule)))
            .collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for line in found {
            *counts.entry(line).or_default() += 1;
        }
        let mut missing = Vec::new();
        for (owner, line) in &wanted {
            match counts.get_mut(line.as_str()) {
                Some(count) if *count > 0 => *count -= 1,
                _ => missing.push((*owner, line.as_str())),
            }
        }
        // Those that match the same packets are one that differs.
        let mut strange: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (line, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            let alike = strange.entry(matched(line)).or_default();
            alike.extend(std::iter::repeat_n(line, count));
        }
        let complete = missing.is_empty() && strange.is_empty();
        for (owner, line) in missing {
            let alike = strange.get_mut(&matched(line)).and_then(Vec::pop);
            let object = self.rule(table, name, line);
            let discrepancy = match alike {
                Some(found) => Discrepancy::different(object, found),
                None => Discrepancy::missing(object),
            };
            self.report.add(discrepancy.of(owner));
        }
        for line in strange.into_values().flatten() {
            let object = self.rule(table, name, line);
            let service = service_of(line);
            self.report.add(Discrepancy::unexpected(object).of(service));
        }
        if complete {
            self.order((table, chain), &wanted, found);
        }
    }

    /// The order of a shared chain, as far as a packet can tell.
    fn order(
        &mut self,
        (table, chain): TableChain,
        wanted: &[(Option<&PortKey>, String)],
        found: &[String],
    ) {
        let owners: BTreeMap<&str, Option<&PortKey>> = wanted
            .iter()
            .map(|(owner, line)| (line.as_str(), *owner))
            .collect();
        // Rules that must keep their order are in the same group.
        let groups = |line: &str| {
            let owner = owners.get(line).copied().flatten();
            let owner = owner.map(|owner| format!("of {owner}"));
            [Some(format!("for {}", matched(line))), owner]
        };
        let arranged = |lines: &mut dyn Iterator<Item = &str>| {
            let mut arranged: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for line in lines {
                for group in groups(line).into_iter().flatten() {
                    arranged.entry(group).or_default().push(line.to_owned());
                }
            }
            arranged
        };
        let left = arranged(&mut wanted.iter().map(|(_, line)| line.as_str()));
        let right = arranged(&mut found.iter().map(String::as_str));
        let mut told = BTreeSet::new();
        for (group, lines) in &left {
            let found = right.get(group).map_or(&[][..], Vec::as_slice);
            let moved = lines.iter().zip(found).find(|(line, found)| line != found);
            if let Some((line, instead)) = moved
                && told.insert(line.clone())
            {
                let object = self.rule(table, chain.as_str(), line);
                let discrepancy = Discrepancy::different(object, format!("before it: {instead}"));
                let owner = owners.get(line.as_str()).copied().flatten();
                self.report.add(discrepancy.of(owner));
            }
        }
        let is_of_none = |line: &&String| owners.get(line.as_str()) == Some(&None);
        let first = found.iter().position(|line| is_of_none(&line));
        let behind = first.and_then(|first| {
            let mut rest = found[first..].iter();
            rest.find(|line| !is_of_none(line))
        });
        if let (Some(first), Some(line)) = (first, behind) {
            let object = self.rule(table, chain.as_str(), line);
            let before = format!("before it: {}", found[first]);
            let owner = owners.get(line.as_str()).copied().flatten();
            self.report
                .add(Discrepancy::different(object, before).of(owner));
        }
    }

    /// Jumps from base chains.
    fn jumps(&mut self) {
        for jump in &self.comparison.layout.jumps {
            if self.concerns(jump.table, jump.from)
                && self.installed.count((jump.table, jump.from), &jump.rule) == 0
            {
                let object = self.rule(jump.table, jump.from, &self.line(&jump.rule));
                self.report.add(Discrepancy::missing(object));
            }
        }
    }

    /// Chains of Service ports.
    fn generated(&mut self) {
        let comparison = self.comparison;
        let mut tables: Vec<Table> = Vec::new();
        for generated in comparison.layout.generated {
            if !tables.contains(&generated.table) {
                tables.push(generated.table);
            }
        }
        for table in tables {
            for (chain, (key, rules)) in
                comparison.layout.in_order(table, &comparison.wanted.chains)
            {
                let name = chain.as_str();
                if !self.concerns(table, name) {
                    continue;
                }
                if let Some(found) = self.found(table, name) {
                    let rules: Vec<_> = rules.iter().map(|rule| self.line(rule)).collect();
                    self.ordered(table, name, &rules, &found, Some(key));
                } else {
                    let object = self.chain(table, name);
                    self.report.add(Discrepancy::missing(object).of(Some(key)));
                }
            }
            let wanted = comparison.wanted.chains.keys();
            let wanted: BTreeSet<&str> = wanted.map(Chain::as_str).collect();
            let mut idle = self.idle(table);
            for name in self.installed.chains(table) {
                if !comparison.layout.is_generated(table, name) || wanted.contains(name) {
                    continue;
                }
                if idle.remove(name) && comparison.tolerates_idle {
                    continue;
                }
                let service = self.found(table, name).unwrap_or_default();
                let service = service.iter().find_map(|line| service_of(line));
                let object = self.chain(table, name);
                self.report.add(Discrepancy::unexpected(object).of(service));
            }
        }
    }

    /// Chains of a table that nothing jumps to.
    fn idle(&self, table: Table) -> BTreeSet<String> {
        let chains = self.installed.chains(table);
        let mut idle: BTreeSet<String> = chains.iter().map(|name| (*name).to_owned()).collect();
        for chain in chains {
            for line in self.installed.chain(table, chain).unwrap_or_default() {
                let mut words = line.split_whitespace();
                if words.any(|word| word == "-j" || word == "-g")
                    && let Some(to) = words.next()
                {
                    idle.remove(to);
                }
            }
        }
        idle
    }

    /// What another mode left.
    fn leftovers(&mut self) {
        let Comparison { layout, others, .. } = self.comparison;
        let document = leftovers(layout, others, self.installed);
        for stage in document.stages() {
            for step in stage
                .rules
                .iter()
                .map(|(_, step)| step)
                .chain(&stage.removed)
            {
                let object = match step {
                    Step::Delete(chain, rule) => {
                        self.rule(stage.table, chain.as_str(), &self.line(rule))
                    }
                    Step::Remove(chain) => self.chain(stage.table, chain),
                    _ => continue,
                };
                self.report.add(Discrepancy::unexpected(object));
            }
        }
    }
}

/// A line with single blanks: some versions print more of them than others.
fn plain(line: &str) -> String {
    let words: Vec<_> = line.split_whitespace().collect();
    words.join(" ")
}

/// What stands before the comment of a rule, the comment, and what stands behind it. One without
/// odd characters is printed without quotes.
fn around_comment(line: &str) -> Option<(&str, &str, &str)> {
    let (start, rest) = line.split_once("-m comment --comment ")?;
    let (comment, end) = match rest.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"')?,
        None => rest.split_once(' ').unwrap_or((rest, "")),
    };
    Some((start, comment, end))
}

/// What of a packet a rule matches: without its comment and what happens then.
fn matched(line: &str) -> String {
    let (start, end) = match around_comment(line) {
        Some((start, _, end)) => (start, end),
        None => (line, ""),
    };
    let rest = plain(&[start, " ", end].concat());
    match rest.split_once("-j ") {
        Some((condition, _)) => condition.trim_end().to_owned(),
        None => rest,
    }
}

/// The Service port that the comment of a rule begins with.
fn service_of(line: &str) -> Option<String> {
    let (_, comment, _) = around_comment(line)?;
    let label = comment.split(' ').next()?;
    let is_key = label.split_once('/').is_some_and(|(namespace, name)| {
        !namespace.is_empty() && !name.is_empty() && !name.contains('/')
    });
    is_key.then(|| label.to_owned())
}

/// Tables that cannot be read, as an error whose kind says whether that is for want of rights.
pub fn unreadable(error: XtError) -> io::Error {
    let kind = match &error {
        XtError::Unusable { source, .. } => source.kind(),
        XtError::Missing { .. } => io::ErrorKind::Unsupported,
        XtError::NotPermitted { .. } => io::ErrorKind::PermissionDenied,
        XtError::Refused { message, .. } if message.contains("Permission denied") => {
            io::ErrorKind::PermissionDenied
        }
        XtError::Locked { .. } | XtError::Refused { .. } => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rule_matches_is_told_without_comment_and_target() {
        let line = "-d 10.96.0.1/32 -p tcp -m comment --comment \"a/b:c cluster IP\" -m tcp \
                    --dport 80 -j KUBE-SVC-X";
        let other = "-d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j DROP";
        assert_eq!(matched(line), matched(other));
        assert_eq!(service_of(line).as_deref(), Some("a/b:c"));
        assert_eq!(service_of(other), None);
        let bare = "-d 10.96.0.1/32 -p tcp -m comment --comment changed -m tcp --dport 80 -j X";
        assert_eq!(matched(bare), matched(other));
        assert_eq!(service_of(bare), None);
        let words = "-m comment --comment \"kubernetes service portals\" -j X";
        assert_eq!(service_of(words), None);
    }
}
