//! Stories as they are written in `lab/stories`: objects over time, packets and what must come
//! back. docs/testing.md is the guide for writers.
//!
//! In: a YAML file. Out: a [`Story`] whose lines are all understood; what is not is an error that
//! names the line. Nothing is run here.

mod each;
pub mod line;
mod pods_and_nodes;
pub mod short;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::world::WorldKey;

/// One file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Story {
    /// What is true when it passes, as a sentence.
    #[serde(rename = "story")]
    pub title: String,
    /// Behaviours of docs/parity.md it shows.
    pub covers: Vec<String>,
    /// Modes it is about; none means all.
    #[serde(default)]
    pub modes: Vec<String>,
    /// The row of docs/parity.md that says why ferrule and kube-proxy have different rules of
    /// iptables here; without it they are the same.
    #[serde(default)]
    pub rules: Option<String>,
    /// Configuration of the proxies that differs from the lab's.
    #[serde(default)]
    pub settings: Value,
    pub steps: Vec<Step>,
    /// The file's name; also the Kubernetes namespace of its objects.
    #[serde(skip)]
    pub name: String,
}

/// One thing that happens, or is looked at.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Objects as they are from now on: short forms or whole Kubernetes objects.
    Apply(Vec<Value>),
    /// Takes away: a Service of a short form by name, anything else as `Kind/name`.
    Delete(Vec<String>),
    /// Sent at once, from every sender, in every world.
    Packets(Vec<Expectation>),
    /// Sent again until everything is as expected; for what controllers do in their own time.
    Eventually(Vec<Expectation>),
    /// HTTP requests, until they are answered as expected.
    Http(Vec<Expectation>),
    /// Numbers a proxy shows, until they are as expected.
    Metrics(Vec<Expectation>),
    /// Connections that stay open, by name.
    Open(BTreeMap<String, String>),
    /// Something sent over an open connection, and what comes back.
    Send(BTreeMap<String, Expectation>),
    /// Pods whose sockets close.
    Stop(Vec<String>),
    /// Pods that answer again.
    Start(Vec<String>),
    /// `proxy`; `other`, the other program in place of each proxy until `proxy` is restarted or
    /// the story ends; or a part of the control plane: `apiserver`, `etcd`, `controllers`.
    Restart(String),
    /// A shell command on a host of every world.
    Run(BTreeMap<String, String>),
}

/// What is looked at and what must be seen: `subject = outcome`, or a table when worlds differ.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "Written")]
pub struct Expectation {
    pub subject: String,
    outcome: String,
    /// By program, mode, or both: `kube-proxy`, `iptables`, `kube-proxy/iptables`; or by what a mode has
    /// several of: `userspace-iptables`.
    otherwise: BTreeMap<String, String>,
    /// The row of docs/parity.md that says why ferrule differs.
    pub differs: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Line(String),
    Table(Table),
}

#[derive(Deserialize)]
struct Table {
    line: String,
    #[serde(default)]
    differs: Option<String>,
    #[serde(flatten)]
    otherwise: BTreeMap<String, String>,
}

impl TryFrom<Written> for Expectation {
    type Error = anyhow::Error;

    fn try_from(written: Written) -> Result<Self> {
        let table = match written {
            Written::Line(line) => Table {
                line,
                differs: None,
                otherwise: BTreeMap::new(),
            },
            Written::Table(table) => table,
        };
        // Only the outcome, for something sent over an open connection.
        let (subject, outcome) = table.line.split_once(" = ").unwrap_or(("", &table.line));
        for selector in table.otherwise.keys() {
            let of_program = ["ferrule", "kube-proxy"].contains(&selector.as_str());
            let known = of_program
                || ["nftables", "iptables", "ipvs", "userspace"].contains(&selector.as_str())
                || format!("ferrule/{selector}").parse::<WorldKey>().is_ok()
                || selector.parse::<WorldKey>().is_ok();
            ensure!(known, "{selector:?} names no program, mode or world");
            ensure!(
                !of_program && !selector.contains('/') || table.differs.is_some(),
                "{:?}: where programs differ, `differs` must say why",
                table.line
            );
        }
        Ok(Self {
            subject: subject.trim().to_owned(),
            outcome: outcome.trim().to_owned(),
            otherwise: table.otherwise,
            differs: table.differs,
        })
    }
}

impl Expectation {
    /// What must be seen in a world. The most specific selector counts; what is said of iptables
    /// holds for both of its flavours.
    pub fn outcome(&self, world: &WorldKey) -> &str {
        let in_mode = format!("{}/{}", world.program, world.mode);
        let (variety, mode) = (world.variety(), &world.mode);
        [&world.to_string(), &in_mode, &world.program, &variety, mode]
            .into_iter()
            .find_map(|selector| self.otherwise.get(selector))
            .unwrap_or(&self.outcome)
    }

    fn outcomes(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.outcome)
            .chain(self.otherwise.values())
            .map(String::as_str)
    }
}

impl Story {
    /// Reads a file and checks every line in it.
    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file)?;
        let name = file.file_stem().context("a story has a file name")?;
        Self::parse(&name.to_string_lossy(), &text).with_context(|| file.display().to_string())
    }

    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let written: Value = serde_saphyr::from_str(text)?;
        let mut story: Self = serde_json::from_value(each::expand(written)?)?;
        name.clone_into(&mut story.name);
        for id in &story.covers {
            let (family, number) = id.rsplit_once('-').unwrap_or(("", ""));
            ensure!(
                family.chars().all(|c| c.is_ascii_uppercase())
                    && !family.is_empty()
                    && number.parse::<u16>().is_ok(),
                "{id:?} is not the id of a behaviour, such as NFT-026"
            );
        }
        story.steps.iter().try_for_each(check)?;
        Ok(story)
    }

    /// Every reason given for a difference.
    #[cfg(test)]
    pub fn differences(&self) -> impl Iterator<Item = &str> {
        let expectations = self.steps.iter().flat_map(|step| match step {
            Step::Packets(lines)
            | Step::Eventually(lines)
            | Step::Http(lines)
            | Step::Metrics(lines) => lines.iter().collect::<Vec<_>>(),
            Step::Send(lines) => lines.values().collect(),
            _ => Vec::new(),
        });
        let of_lines = expectations.filter_map(|expectation| expectation.differs.as_deref());
        of_lines.chain(self.rules.as_deref())
    }

    /// Whether it is about this mode.
    pub fn is_about(&self, mode: &str) -> bool {
        self.modes.is_empty() || self.modes.iter().any(|own| own == mode)
    }
}

/// Parses everything in a step that is parsed again when it is run.
fn check(step: &Step) -> Result<()> {
    match step {
        Step::Apply(items) => items.iter().try_for_each(short::check),
        Step::Packets(lines) | Step::Eventually(lines) => lines.iter().try_for_each(|line| {
            line::Packet::parse(&line.subject)?;
            line.outcomes()
                .try_for_each(|text| line::Outcome::parse(text).map(|_| ()))
        }),
        Step::Http(lines) => lines.iter().try_for_each(|line| {
            line::Request::parse(&line.subject)?;
            line.outcomes()
                .try_for_each(|text| line::Reply::parse(text).map(|_| ()))
        }),
        Step::Metrics(lines) => lines.iter().try_for_each(|line| {
            line::Series::parse(&line.subject)?;
            line.outcomes()
                .try_for_each(|text| line::number(text).map(|_| ()))
        }),
        Step::Open(lines) => lines.values().try_for_each(|line| {
            let (packet, outcome) = line::split(line)?;
            line::Packet::parse(packet)?;
            line::Outcome::parse(outcome).map(|_| ())
        }),
        Step::Send(lines) => lines.values().try_for_each(|line| {
            line.outcomes()
                .try_for_each(|text| line::Outcome::parse(text).map(|_| ()))
        }),
        Step::Restart(what) => match what.as_str() {
            "proxy" | "other" | "apiserver" | "etcd" | "controllers" => Ok(()),
            other => bail!("{other:?} cannot be restarted"),
        },
        Step::Delete(_) | Step::Stop(_) | Step::Start(_) | Step::Run(_) => Ok(()),
    }
}

/// All stories below a folder, those with equal settings beside each other: proxies are started
/// anew only when settings change.
pub fn all(folder: &Path) -> Result<Vec<Story>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            files.push(path);
        }
    }
    files.sort();
    let mut stories: Vec<Story> = files
        .iter()
        .map(|file| Story::read(file))
        .collect::<Result<_>>()?;
    stories.sort_by_key(|story| story.settings.to_string());
    Ok(stories)
}

/// Where the stories of this checkout are.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("stories")
}

#[cfg(test)]
mod tests;
