//! The lines of a story: who sends what where, and what comes back.
//!
//! ```text
//! a1 b1 -> web:80 = a1 b1 from client
//! outside1 -> node1:30080 udp6 = a1:5353 from node1, b1 from outside1
//! outside1 -> node1:32000/ = 200 localEndpoints:1
//! node1 kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy="internal"} = 1
//! ```

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};

use crate::plan::{self, Family};
use crate::probe::{Answer, Answers, Protocol};

/// Subject and outcome of a line.
pub fn split(line: &str) -> Result<(&str, &str)> {
    line.split_once(" = ")
        .with_context(|| format!("{line:?} has no ` = ` between what is sent and what comes back"))
}

/// Senders, a target, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub senders: Vec<String>,
    target: Target,
    pub protocol: Protocol,
    family: Option<Family>,
}

/// A host, a Service of the story, or an address; with a port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    name: String,
    port: u16,
}

impl Packet {
    pub fn parse(line: &str) -> Result<Self> {
        let (senders, rest) = arrow(line)?;
        let mut words = rest.split_whitespace();
        let target = Target::parse(words.next().context("no target")?)?;
        let (protocol, family) = match words.next() {
            None | Some("tcp") => (Protocol::Tcp, None),
            Some("tcp6") => (Protocol::Tcp, Some(Family::V6)),
            Some("udp") => (Protocol::Udp, None),
            Some("udp6") => (Protocol::Udp, Some(Family::V6)),
            Some(other) => bail!("{line:?}: {other:?} is neither tcp, udp, tcp6 nor udp6"),
        };
        ensure!(words.next().is_none(), "{line:?} has a word too many");
        Ok(Self {
            senders,
            target,
            protocol,
            family,
        })
    }

    /// Where it goes. `services` knows the cluster IPs of the story's Services.
    pub fn target(&self, services: impl Fn(&str, Family) -> Option<IpAddr>) -> Result<SocketAddr> {
        self.target
            .resolve(self.family.unwrap_or(Family::V4), services)
    }

    /// Whether it goes to a pod itself, past every Service.
    pub fn is_direct(&self) -> bool {
        plan::pods().any(|pod| pod.name == self.target.name)
    }
}

impl Target {
    fn parse(text: &str) -> Result<Self> {
        let (name, port) = text
            .rsplit_once(':')
            .with_context(|| format!("{text:?} has no port"))?;
        let port = port
            .parse()
            .with_context(|| format!("the port in {text:?}"))?;
        let name = name
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Ok(Self { name, port })
    }

    fn resolve(
        &self,
        family: Family,
        services: impl Fn(&str, Family) -> Option<IpAddr>,
    ) -> Result<SocketAddr> {
        let name = &self.name;
        let address = name.parse().ok();
        let address = address
            .or_else(|| plan::resolve(name, family))
            .or_else(|| services(name, family))
            .with_context(|| format!("{name} is neither a host, a Service nor an address"))?;
        Ok(SocketAddr::new(address, self.port))
    }
}

/// The senders left of the arrow, and what is right of it.
fn arrow(line: &str) -> Result<(Vec<String>, &str)> {
    let (senders, rest) = line
        .split_once("->")
        .with_context(|| format!("{line:?} has no arrow"))?;
    let senders: Vec<_> = senders.split_whitespace().map(str::to_owned).collect();
    ensure!(!senders.is_empty(), "{line:?}: nobody sends");
    for sender in &senders {
        ensure!(
            plan::find(sender).is_some(),
            "{line:?}: there is no host {sender}"
        );
    }
    Ok((senders, rest))
}

/// What comes back.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Exactly these pods answer, over enough tries to see each.
    Pods(Vec<Wanted>),
    /// One of these pods answers, and only that one.
    OneOf(Vec<Wanted>),
    Refused,
    /// No pod answers; how that shows is left open.
    Unserved,
    Timeout,
    Closed,
    /// Whoever answered when the connection was opened.
    Same,
}

/// A pod, its port if that matters, and whom it saw if that matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    name: String,
    port: Option<u16>,
    /// One of these; anybody if there are none.
    from: Vec<String>,
}

impl Outcome {
    pub fn parse(text: &str) -> Result<Self> {
        Ok(match text {
            "refused" => Self::Refused,
            "timeout" => Self::Timeout,
            "closed" => Self::Closed,
            "same" => Self::Same,
            text => match text.strip_prefix("one of ") {
                Some(pods) => Self::OneOf(wanted(pods)?),
                None => Self::Pods(wanted(text)?),
            },
        })
    }

    /// The same where a relay stands in between: a pod sees one of these nodes, never its client.
    #[must_use]
    pub fn relayed_by(self, nodes: &[String]) -> Self {
        let relayed = |wanted: Vec<Wanted>| {
            let wanted = wanted.into_iter();
            let relayed = wanted.map(|wanted| Wanted {
                from: nodes.to_vec(),
                ..wanted
            });
            relayed.collect()
        };
        match self {
            Self::Pods(wanted) => Self::Pods(relayed(wanted)),
            Self::OneOf(wanted) => Self::OneOf(relayed(wanted)),
            other => other,
        }
    }

    /// The same where nothing can refuse: whoever would be refused is not served.
    #[must_use]
    pub fn without_refusals(self) -> Self {
        match self {
            Self::Refused => Self::Unserved,
            other => other,
        }
    }

    /// How many different answers there can be.
    pub fn choices(&self) -> usize {
        match self {
            Self::Pods(wanted) | Self::OneOf(wanted) => wanted.len(),
            _ => 0,
        }
    }

    /// Whether two worlds may see different things and both be right.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::OneOf(_) | Self::Unserved)
    }

    /// Whether this is what came back to `sender`.
    pub fn fits(&self, answers: &Answers, sender: &str) -> bool {
        let only = |wanted: &Answer| answers.len() == 1 && answers.contains(wanted);
        match self {
            Self::Refused => only(&Answer::Refused),
            Self::Unserved => answers
                .iter()
                .all(|got| matches!(got, Answer::Refused | Answer::Timeout | Answer::Closed)),
            Self::Timeout => only(&Answer::Timeout),
            Self::Closed => only(&Answer::Closed),
            // Only an open connection remembers.
            Self::Same => false,
            Self::OneOf(wanted) => {
                answers.len() == 1
                    && answers
                        .iter()
                        .all(|got| wanted.iter().any(|pod| pod.is(got, sender)))
            }
            Self::Pods(wanted) => {
                answers
                    .iter()
                    .all(|got| wanted.iter().any(|pod| pod.is(got, sender)))
                    && wanted
                        .iter()
                        .all(|pod| answers.iter().any(|got| pod.is(got, sender)))
            }
        }
    }
}

impl Wanted {
    fn is(&self, answer: &Answer, sender: &str) -> bool {
        let Answer::Pod { name, port, from } = answer else {
            return false;
        };
        let is_seen = |wanted: &String| match wanted.as_str() {
            "client" => from == sender,
            other => from == other,
        };
        let seen = self.from.is_empty() || self.from.iter().any(is_seen);
        *name == self.name && self.port.is_none_or(|wanted| wanted == *port) && seen
    }
}

/// `a1 b1:8081 from client, b2`.
fn wanted(text: &str) -> Result<Vec<Wanted>> {
    let mut all = Vec::new();
    for group in text.split(',') {
        let (pods, from) = match group.split_once(" from ") {
            Some((pods, from)) => (pods, Some(from.trim().to_owned())),
            None => (group, None),
        };
        if let Some(from) = from.as_deref() {
            let known = from == "client"
                || plan::resolve(from, Family::V4).is_some()
                || from.parse::<IpAddr>().is_ok();
            ensure!(known, "{text:?}: nobody is called {from}");
        }
        for word in pods.split_whitespace() {
            let (name, port) = match word.split_once(':') {
                Some((name, port)) => (name, Some(port.parse().context("the port of a pod")?)),
                None => (word, None),
            };
            ensure!(
                plan::pods().any(|pod| pod.name == name),
                "{text:?}: {name} is neither a pod nor an outcome"
            );
            all.push(Wanted {
                name: name.to_owned(),
                port,
                from: from.iter().cloned().collect(),
            });
        }
    }
    ensure!(!all.is_empty(), "nothing stands after the ` = `");
    Ok(all)
}

/// An HTTP request.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub senders: Vec<String>,
    target: Target,
    pub path: String,
}

impl Request {
    pub fn parse(line: &str) -> Result<Self> {
        let (senders, rest) = arrow(line)?;
        let rest = rest.trim();
        let slash = rest.find('/').unwrap_or(rest.len());
        let path = if slash == rest.len() {
            "/"
        } else {
            &rest[slash..]
        };
        Ok(Self {
            senders,
            target: Target::parse(&rest[..slash])?,
            path: path.to_owned(),
        })
    }

    /// Where it goes.
    pub fn target(&self, services: impl Fn(&str, Family) -> Option<IpAddr>) -> Result<SocketAddr> {
        self.target.resolve(Family::V4, services)
    }
}

/// An HTTP answer: a status, and text that occurs in it; or none. Quotes and blanks do not count,
/// which YAML would make hard to write.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Status { code: u16, text: String },
    None(Answer),
}

impl Reply {
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "refused" => return Ok(Self::None(Answer::Refused)),
            "timeout" => return Ok(Self::None(Answer::Timeout)),
            _ => {}
        }
        let (code, text) = text.split_once(' ').unwrap_or((text, ""));
        let code = code
            .parse()
            .with_context(|| format!("{code:?} is not an HTTP status"))?;
        let text = bare(text);
        Ok(Self::Status { code, text })
    }

    /// Whether this is what was answered.
    pub fn fits(&self, status: u16, answer: &str) -> bool {
        match self {
            Self::Status { code, text } => *code == status && bare(answer).contains(text.as_str()),
            Self::None(_) => false,
        }
    }
}

fn bare(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_whitespace() && *c != '"')
        .collect()
}

/// A number of a node's proxy: `node1 kubeproxy_…{label="…"}`.
#[derive(Debug, PartialEq, Eq)]
pub struct Series {
    pub node: String,
    pub name: String,
}

impl Series {
    pub fn parse(line: &str) -> Result<Self> {
        let (node, name) = line.split_once(' ').context("write: node, metric")?;
        ensure!(
            plan::nodes().any(|own| own.name == node),
            "there is no node {node}"
        );
        Ok(Self {
            node: node.to_owned(),
            name: name.trim().to_owned(),
        })
    }

    /// Its value on a page of metrics.
    pub fn find<'a>(&self, page: &'a str) -> Option<&'a str> {
        let value = |line: &'a str| line.strip_prefix(self.name.as_str())?.strip_prefix(' ');
        page.lines().find_map(value).map(str::trim)
    }
}

/// A number as stories and metrics write it.
pub fn number(text: &str) -> Result<f64> {
    text.parse()
        .with_context(|| format!("{text:?} is not a number"))
}
