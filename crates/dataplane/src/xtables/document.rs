//! Steps, and their text for `iptables-restore`.

use std::fmt::Write;

use ferrule_core::model::PortKey;
use ferrule_kernel::xt::Table;

use super::chain::Chain;
use super::rule::{Part, Rule};

/// One change; one line of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes the chain exist, and empty.
    Declare(Chain),
    /// Empties an installed chain.
    Empty(String),
    /// Adds a rule at the end.
    Append(Chain, Rule),
    /// Adds a rule so that it has this number, from 1.
    Insert(Chain, usize, Rule),
    /// Deletes the first rule like this.
    Delete(Chain, Rule),
    /// Deletes an empty chain.
    Remove(String),
}

/// Steps in one table, done at once or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Which table.
    pub table: Table,
    /// Chains, before the jumps to them.
    pub declared: Vec<Step>,
    /// Rules, and whose they are.
    pub rules: Vec<(Option<PortKey>, Step)>,
    /// Chains without jumps to them.
    pub removed: Vec<Step>,
}

/// Stages, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    stages: Vec<Stage>,
}

impl Stage {
    /// Nothing yet.
    pub const fn new(table: Table) -> Self {
        Self {
            table,
            declared: Vec::new(),
            rules: Vec::new(),
            removed: Vec::new(),
        }
    }

    /// Makes a chain have exactly these rules.
    pub fn rewrite<'r>(
        &mut self,
        chain: Chain,
        rules: impl IntoIterator<Item = (Option<&'r PortKey>, &'r Rule)>,
    ) {
        self.declared.push(Step::Declare(chain));
        for (owner, rule) in rules {
            let step = Step::Append(chain, rule.clone());
            self.rules.push((owner.cloned(), step));
        }
    }

    /// Makes a chain be gone.
    pub fn remove(&mut self, chain: &str) {
        self.declared.push(Step::Empty(chain.to_owned()));
        self.removed.push(Step::Remove(chain.to_owned()));
    }

    fn len(&self) -> usize {
        self.declared.len() + self.rules.len() + self.removed.len()
    }

    /// All steps, and whose they are, in the order of the text.
    fn steps(&self) -> impl Iterator<Item = (Option<&PortKey>, &Step)> {
        let declared = self.declared.iter().map(|step| (None, step));
        let rules = self.rules.iter().map(|(key, step)| (key.as_ref(), step));
        let removed = self.removed.iter().map(|step| (None, step));
        declared.chain(rules).chain(removed)
    }
}

impl Document {
    /// Adds a stage, unless it does nothing.
    pub fn push(&mut self, stage: Stage) {
        if stage.len() > 0 {
            self.stages.push(stage);
        }
    }

    /// Adds all stages of another document.
    pub fn append(&mut self, other: Self) {
        self.stages.extend(other.stages);
    }

    /// Keeps only what concerns these tables.
    pub fn retain(&mut self, keep: impl Fn(Table) -> bool) {
        self.stages.retain(|stage| keep(stage.table));
    }

    /// The stages.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Number of steps.
    pub fn len(&self) -> usize {
        self.stages.iter().map(Stage::len).sum()
    }

    /// Steps about rules, and in which table.
    pub fn rules(&self) -> impl Iterator<Item = (Table, &Step)> {
        let stages = self.stages.iter();
        stages.flat_map(|stage| stage.rules.iter().map(|(_, step)| (stage.table, step)))
    }

    /// The text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for stage in &self.stages {
            text.push('*');
            text.push_str(stage.table.as_str());
            text.push('\n');
            for (_, step) in stage.steps() {
                step.write(&mut text);
                text.push('\n');
            }
            text.push_str("COMMIT\n");
        }
        text
    }

    /// Whose a line of the text is, counted from 1.
    pub fn owner(&self, line: usize) -> Option<&PortKey> {
        self.at(line)?.0
    }

    /// Whether a line of the text is a rule that counts.
    pub fn counts(&self, line: usize) -> bool {
        self.at(line).is_some_and(|(_, step)| step.counts())
    }

    fn at(&self, line: usize) -> Option<(Option<&PortKey>, &Step)> {
        let mut next = 1;
        for stage in &self.stages {
            // The name of the table stands before the steps, and `COMMIT` behind.
            let first = next + 1;
            next = first + stage.len() + 1;
            if (first..next).contains(&line) {
                return stage.steps().nth(line - first);
            }
        }
        None
    }
}

impl Step {
    /// Whether it adds a rule that counts.
    pub fn counts(&self) -> bool {
        let (Self::Append(_, rule) | Self::Insert(_, _, rule)) = self else {
            return false;
        };
        let mut parts = rule.parts.iter();
        parts.any(|part| matches!(part, Part::Count(_)))
    }

    fn write(&self, text: &mut String) {
        let (result, rule) = match self {
            Self::Declare(chain) => (write!(text, ":{chain} - [0:0]"), None),
            Self::Empty(chain) => (write!(text, ":{chain} - [0:0]"), None),
            Self::Append(chain, rule) => (write!(text, "-A {chain}"), Some(rule)),
            Self::Insert(chain, 1, rule) => (write!(text, "-I {chain}"), Some(rule)),
            Self::Insert(chain, at, rule) => (write!(text, "-I {chain} {at}"), Some(rule)),
            Self::Delete(chain, rule) => (write!(text, "-D {chain}"), Some(rule)),
            Self::Remove(chain) => (write!(text, "-X {chain}"), None),
        };
        result.expect("a string takes all text");
        if let Some(rule) = rule {
            rule.restore(text);
        }
    }
}
