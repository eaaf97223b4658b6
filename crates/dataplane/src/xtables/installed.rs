//! What is in the tables: the questions asked about it, and the answers from `iptables-save`.

use std::collections::BTreeMap;

use ferrule_core::model::Family;
use ferrule_kernel::xt::{Table, XtError};

use super::layout::Layout;
use super::rule::Rule;

/// What is in the tables, as far as it is ours or may hold something of ours.
pub trait Inventory {
    /// Whether there is such a chain.
    fn has(&self, table: Table, name: &str) -> bool;

    /// All chains of a table.
    fn chains(&self, table: Table) -> Vec<&str>;

    /// Whether a chain exists and has exactly these rules.
    fn holds(&self, chain: (Table, &str), rules: &mut dyn Iterator<Item = &Rule>) -> bool;

    /// How often a chain has this jump, however iptables puts it.
    fn count(&self, chain: (Table, &str), jump: &Rule) -> usize;
}

/// What programs printed about the tables.
#[derive(Debug, Default)]
pub struct Saved(BTreeMap<Table, String>);

impl Saved {
    /// Adds what was printed about a table, or a chain of it. A table that the kernel lacks is left
    /// out if the layout can do without it.
    pub fn add(
        &mut self,
        layout: &Layout,
        table: Table,
        printed: Result<String, XtError>,
    ) -> Result<(), XtError> {
        match printed {
            Ok(text) => {
                let all = self.0.entry(table).or_default();
                if all.is_empty() {
                    *all = text;
                } else {
                    all.push_str(&text);
                }
                Ok(())
            }
            Err(XtError::Missing { .. }) if layout.can_do_without(table) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Adds what was printed about a table.
    pub fn insert(&mut self, table: Table, printed: String) {
        self.0.insert(table, printed);
    }

    /// Whether the kernel has this table.
    pub fn has(&self, table: Table) -> bool {
        self.0.contains_key(&table)
    }

    /// The chains and rules in it.
    pub fn installed(&self, family: Family) -> Installed<'_> {
        let mut installed = Installed::new(family);
        for (table, text) in &self.0 {
            installed.read(*table, text);
        }
        installed
    }
}

/// What is in the tables, as text.
#[derive(Debug)]
pub struct Installed<'a> {
    family: Family,
    tables: BTreeMap<Table, BTreeMap<&'a str, Vec<&'a str>>>,
}

impl<'a> Installed<'a> {
    /// Nothing yet.
    pub const fn new(family: Family) -> Self {
        Self {
            family,
            tables: BTreeMap::new(),
        }
    }

    /// Adds a table. Lines that are neither chains nor rules are comments.
    pub fn read(&mut self, table: Table, saved: &'a str) {
        let chains = self.tables.entry(table).or_default();
        for line in saved.lines() {
            if let Some(rest) = line.strip_prefix(':') {
                let name = rest.split_once(' ').map_or(rest, |(name, _)| name);
                chains.entry(name).or_default();
            } else if let Some(rest) = line.strip_prefix("-A ") {
                let name = rest.split_once(' ').map_or(rest, |(name, _)| name);
                let rule = &rest[name.len()..];
                chains.entry(name).or_default().push(rule);
            }
        }
    }

    /// The rules of a chain, without its name; `None` if there is no such chain.
    pub fn chain(&self, table: Table, name: &str) -> Option<&[&'a str]> {
        let rules = self.tables.get(&table)?.get(name)?;
        Some(rules)
    }
}

impl Inventory for Installed<'_> {
    fn has(&self, table: Table, name: &str) -> bool {
        self.chain(table, name).is_some()
    }

    fn chains(&self, table: Table) -> Vec<&str> {
        let chains = self.tables.get(&table).into_iter();
        chains.flat_map(|chains| chains.keys().copied()).collect()
    }

    fn holds(&self, (table, name): (Table, &str), rules: &mut dyn Iterator<Item = &Rule>) -> bool {
        let Some(mut lines) = self.chain(table, name).map(<[_]>::iter) else {
            return false;
        };
        let mut wanted = String::new();
        for rule in rules {
            wanted.clear();
            rule.saved(self.family, &mut wanted);
            if !lines.next().is_some_and(|line| same(line, &wanted)) {
                return false;
            }
        }
        lines.next().is_none()
    }

    fn count(&self, (table, name): (Table, &str), jump: &Rule) -> usize {
        let mut wanted = String::new();
        jump.saved(self.family, &mut wanted);
        let wanted = sorted_words(&wanted);
        let lines = self.chain(table, name).unwrap_or_default();
        let alike = lines.iter().filter(|line| sorted_words(line) == wanted);
        alike.count()
    }
}

/// Whether two rules differ at most in blanks: some versions print more of them than others.
fn same(line: &str, wanted: &str) -> bool {
    line == wanted || line.split_whitespace().eq(wanted.split_whitespace())
}

/// Versions of iptables differ in the order of words.
fn sorted_words(rule: &str) -> Vec<&str> {
    let mut words: Vec<_> = rule.split_whitespace().collect();
    words.sort_unstable();
    words
}

#[cfg(test)]
mod tests {
    use super::super::chain::Chain;
    use super::super::rule::{Part, Target};
    use super::*;

    const SAVED: &str = "# Generated by iptables-save\n*filter\n:INPUT ACCEPT [5:300]\n\
                         :KUBE-FORWARD - [0:0]\n:KUBE-X - [0:0]\n\
                         -A INPUT -m conntrack --ctstate NEW -m comment --comment \"a b\" -j DROP\n\
                         -A KUBE-FORWARD -m nfacct --nfacct-name  c -j DROP\nCOMMIT\n";

    #[test]
    fn chains_and_rules_are_read_and_compared() {
        let mut installed = Installed::new(Family::V4);
        installed.read(Table::Filter, SAVED);
        let names = installed.chains(Table::Filter);
        assert_eq!(names, ["INPUT", "KUBE-FORWARD", "KUBE-X"]);
        assert_eq!(installed.chain(Table::Nat, "INPUT"), None);
        let holds =
            |name: &str, rules: &[Rule]| installed.holds((Table::Filter, name), &mut rules.iter());
        let counted = Rule::new([Part::Count("c")], Target::Drop);
        assert!(holds("KUBE-FORWARD", std::slice::from_ref(&counted)));
        assert!(!holds("KUBE-FORWARD", &[]));
        assert!(!holds("KUBE-FORWARD", &[counted.clone(), counted.clone()]));
        assert!(!holds("KUBE-X", std::slice::from_ref(&counted)));
        assert!(holds("KUBE-X", &[]));
        assert!(!holds("KUBE-Y", &[]));
    }

    #[test]
    fn jumps_are_found_in_any_order_of_words() {
        let mut installed = Installed::new(Family::V4);
        installed.read(Table::Filter, SAVED);
        let parts = [Part::Comment("a b".into()), Part::State("NEW")];
        let count = |target| {
            let rule = Rule::new(parts.clone(), target);
            installed.count((Table::Filter, "INPUT"), &rule)
        };
        assert_eq!(count(Target::Drop), 1);
        assert_eq!(count(Target::Jump(Chain::new("KUBE-FORWARD"))), 0);
    }
}
