//! The chains of a mode: one value per mode, and all that the engine knows of it.

use std::collections::BTreeMap;

use ferrule_kernel::xt::Table;

use super::chain::{Chain, TableChain};
use super::rule::{Rule, Target};

/// The chains of a mode.
#[derive(Debug)]
pub struct Layout {
    /// Chains that exist once, by table, in the order in which tables and chains are written.
    pub fixed: &'static [(Table, &'static [Fixed])],
    /// Chains that exist once per Service port or endpoint, in the order in which they are written.
    pub generated: &'static [Generated],
    /// Jumps from base chains, in the order in which they are ensured.
    pub jumps: Vec<Jump>,
    /// A chain of the mangle table whose absence says that a table was flushed.
    pub canary: Option<Chain>,
    /// Base chains whose jumps the canary inspects.
    pub inspected: &'static [(Table, &'static str)],
}

/// A chain that exists once.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    /// Its name.
    pub chain: Chain,
    /// Service ports put rules into it, before those that do not depend on Services.
    pub shared: bool,
    /// Kubelet uses it too: what kubelet adds is left alone, and so is the chain on removal.
    pub kubelets: bool,
    /// How many jumps follow at most: chains are written before those that jump to them.
    pub depth: u8,
}

/// Chains whose names begin alike.
#[derive(Clone, Copy, Debug)]
pub struct Generated {
    /// Where they are. A prefix is used in one table only.
    pub table: Table,
    /// How their names begin.
    pub prefix: &'static str,
    /// See [`Fixed::depth`].
    pub depth: u8,
}

/// A jump from a base chain to one of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// In which table.
    pub table: Table,
    /// The base chain.
    pub from: &'static str,
    /// Where it is added when it is missing.
    pub position: Position,
    /// The jump.
    pub rule: Rule,
}

/// Where a jump is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Before all other rules.
    First,
    /// Behind all other rules.
    Last,
}

impl Fixed {
    /// A chain of static rules without jumps.
    pub const fn new(chain: Chain) -> Self {
        Self {
            chain,
            shared: false,
            kubelets: false,
            depth: 0,
        }
    }

    /// The same, with rules of Service ports.
    pub const fn shared(self) -> Self {
        Self {
            shared: true,
            ..self
        }
    }

    /// The same, that kubelet uses too.
    pub const fn kubelets(self) -> Self {
        Self {
            kubelets: true,
            ..self
        }
    }

    /// The same, with so many jumps to follow.
    pub const fn depth(self, depth: u8) -> Self {
        Self { depth, ..self }
    }
}

impl Layout {
    /// All chains that exist once, and where.
    pub fn fixed(&self) -> impl Iterator<Item = (Table, Fixed)> {
        let tables = self.fixed.iter();
        tables.flat_map(|(table, chains)| chains.iter().map(|chain| (*table, *chain)))
    }

    /// Whether a chain is ours, judging by its name.
    pub fn owns(&self, table: Table, name: &str) -> bool {
        self.find(table, name).is_some() || self.is_generated(table, name)
    }

    /// Whether a chain belongs to some Service port, judging by its name as kube-proxy does.
    pub fn is_generated(&self, table: Table, name: &str) -> bool {
        self.generating(table, name).is_some()
    }

    /// Whether kubelet uses a chain too.
    pub fn is_kubelets(&self, table: Table, name: &str) -> bool {
        self.find(table, name).is_some_and(|fixed| fixed.kubelets)
    }

    /// See [`Fixed::depth`].
    pub fn depth(&self, (table, chain): TableChain) -> u8 {
        let name = chain.as_str();
        match self.generating(table, name) {
            Some(generated) => generated.depth,
            None => self.find(table, name).map_or(0, |fixed| fixed.depth),
        }
    }

    /// Whether Services work without this table: there are no jumps to our chains in it.
    pub fn can_do_without(&self, table: Table) -> bool {
        self.jumps.iter().all(|jump| jump.table != table)
    }

    /// Generated chains in the order in which they are written.
    pub fn in_order<'m, V>(
        &self,
        table: Table,
        chains: &'m BTreeMap<Chain, V>,
    ) -> impl Iterator<Item = (Chain, &'m V)> {
        let prefixes = self.generated.iter();
        prefixes
            .filter(move |generated| generated.table == table)
            .flat_map(|generated| {
                let alike = chains.range(Chain::new(generated.prefix)..);
                let alike = alike.map(|(chain, value)| (*chain, value));
                alike.take_while(|(chain, _)| chain.as_str().starts_with(generated.prefix))
            })
    }

    fn find(&self, table: Table, name: &str) -> Option<&'static Fixed> {
        let tables = self.fixed.iter().filter(|(at, _)| *at == table);
        let mut chains = tables.flat_map(|(_, chains)| *chains);
        chains.find(|fixed| fixed.chain.is(name))
    }

    fn generating(&self, table: Table, name: &str) -> Option<&'static Generated> {
        let mut all = self.generated.iter();
        all.find(|generated| generated.table == table && name.starts_with(generated.prefix))
    }
}

impl Jump {
    /// A jump that becomes the first rule of its base chain.
    pub const fn first(table: Table, from: &'static str, rule: Rule) -> Self {
        Self {
            table,
            from,
            position: Position::First,
            rule,
        }
    }

    /// A jump that becomes the last rule of its base chain.
    pub const fn last(table: Table, from: &'static str, rule: Rule) -> Self {
        Self {
            table,
            from,
            position: Position::Last,
            rule,
        }
    }

    /// The chain that it jumps to.
    pub const fn to(&self) -> Option<Chain> {
        match self.rule.target {
            Target::Jump(chain) => Some(chain),
            _ => None,
        }
    }
}
