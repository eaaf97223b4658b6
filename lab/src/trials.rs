//! What a story cannot express: how ferrule handles failures of the API server, and how its
//! configuration is written.
//!
//! In: a running lab. Out: for every trial whether it was passed. A trial may bend the control plane
//! and ferrule's configuration as it likes; both are as before when the next one begins.

mod access;
mod config;
mod formats;
mod lists;
mod migrate;
mod server;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::control::Variant;
use crate::lab::Lab;
use crate::os;
use crate::plan::Family;
use crate::probe::{self, Answer, Protocol};
use crate::story::short::Memory;
use crate::world::{Who, World};

const NAMESPACE: &str = "trials";
/// Failed watches are tried again after up to half a minute.
const TIMEOUT: Duration = Duration::from_secs(75);

/// One trial.
pub struct Trial {
    pub name: &'static str,
    /// What is true when it is passed.
    pub title: &'static str,
    run: fn(&mut Stage<'_>) -> Result<()>,
}

const fn trial(
    name: &'static str,
    title: &'static str,
    run: fn(&mut Stage<'_>) -> Result<()>,
) -> Trial {
    Trial { name, title, run }
}

/// All of them.
pub const ALL: &[Trial] = &[
    trial(
        "written-configuration",
        "What --write-config-to writes is what kube-proxy writes, and kube-proxy reads it",
        config::written,
    ),
    trial(
        "server-crash",
        "API server and etcd may be killed while objects change, and nothing is missed",
        server::crash,
    ),
    trial(
        "history-lost",
        "A watch whose past was compacted away lists again, deletions included",
        server::history_lost,
    ),
    trial(
        "half-open",
        "A connection that died in silence is noticed",
        server::half_open,
    ),
    trial(
        "lists",
        "Lists are streamed, and asked for in one piece where either side does not stream",
        lists::lists,
    ),
    trial(
        "formats",
        "Random objects give the same rules, whether they come in protobuf or in JSON",
        formats::formats,
    ),
    trial(
        "token-replaced",
        "A token file may be replaced at any time, also too late",
        access::token_replaced,
    ),
    trial(
        "not-allowed",
        "A missing role is logged by name, and lists go on when it is granted",
        access::not_allowed,
    ),
    trial(
        "certificates",
        "An unknown or expired certificate is named as the reason",
        access::certificates,
    ),
    trial(
        "cleanup",
        "What a mode leaves in the kernel is gone after --cleanup",
        migrate::cleanup,
    ),
    trial(
        "migration",
        "From any mode of either program to any mode of ferrule and back, no request fails",
        migrate::migration,
    ),
];

/// A trial under way.
pub struct Stage<'a> {
    pub lab: &'a mut Lab,
    /// Which world is ferrule's.
    ferrule: usize,
    pub folder: PathBuf,
    memory: Memory,
}

/// Runs a trial and puts everything back.
pub fn run(trial: &Trial, lab: &mut Lab, folder: &Path) -> Result<()> {
    let ferrule = lab.worlds.iter();
    let ferrule = ferrule
        .clone()
        .position(|world| world.key.program == "ferrule")
        .context("there is no world with ferrule")?;
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE },
    });
    lab.control.api.apply(&namespace)?;
    let mut stage = Stage {
        lab,
        ferrule,
        folder: folder.to_owned(),
        memory: Memory::default(),
    };
    let result = (trial.run)(&mut stage);
    let cleared = stage.clear().context("after the trial");
    result.and(cleared)
}

impl Stage<'_> {
    pub fn world(&mut self) -> &mut World {
        &mut self.lab.worlds[self.ferrule]
    }

    /// Starts ferrule anew with these settings, without waiting for anything.
    pub fn start(&mut self, settings: &Value) -> Result<()> {
        let tools = self.lab.tools.clone();
        self.world().start_proxies(&tools, Who::Own, settings)
    }

    /// Starts ferrule anew with another kubeconfig; `cluster` and `user` are its entries.
    pub fn start_as(&mut self, cluster: &Value, user: &Value) -> Result<()> {
        let file = self.folder.join("kubeconfig-guest");
        crate::control::write_kubeconfig(&file, cluster, user)?;
        self.start(&json!({ "clientConnection": { "kubeconfig": file } }))
    }

    /// Waits until ferrule has programmed everything written so far.
    pub fn settle(&mut self) -> Result<()> {
        self.lab.settle_in(self.ferrule)
    }

    /// As [`Stage::settle`], after something that ferrule notices in its own time.
    pub fn settle_patiently(&mut self) -> Result<()> {
        let settled = os::poll(TIMEOUT, || self.settle().ok());
        settled.map_or_else(|| self.settle(), Ok)
    }

    /// Makes a Service so that these pods, and no others, are behind it.
    pub fn write(&mut self, endpoints: &[&str]) -> Result<()> {
        for object in web(&mut self.memory, endpoints)? {
            self.lab.control.api.apply(&object)?;
        }
        Ok(())
    }

    /// Fails unless exactly these pods answer, on both nodes and in both families.
    pub fn expect(&self, endpoints: &[&str]) -> Result<()> {
        for sender in ["a4", "b4"] {
            for family in Family::BOTH {
                let answers = self.ask("web", sender, family, endpoints.len())?;
                ensure!(
                    answers == endpoints,
                    "{sender} was answered by {answers:?} over {family:?}, and not by {endpoints:?}"
                );
            }
        }
        Ok(())
    }

    /// The pods behind a Service, as a sender meets them.
    pub fn ask(
        &self,
        service: &str,
        sender: &str,
        family: Family,
        expected: usize,
    ) -> Result<Vec<String>> {
        let address = self.memory.address(service, family);
        let address = address.with_context(|| format!("there is no Service {service}"))?;
        let to = std::net::SocketAddr::new(address, 80);
        let place = self.lab.worlds[self.ferrule].place(sender)?;
        let answers =
            place.run(|| probe::balanced(Protocol::Tcp, to, expected, Duration::from_secs(2)))?;
        let pods = answers.into_iter().map(|answer| match answer {
            Answer::Pod { name, .. } => name,
            other => other.to_string(),
        });
        Ok(pods.collect())
    }

    /// How long ferrule's logs are now.
    pub fn mark(&self) -> Mark {
        let logs = self.lab.worlds[self.ferrule].logs();
        let logs = logs.into_iter().map(|log| {
            let length = std::fs::read(log).map_or(0, |text| text.len());
            (log.to_owned(), length)
        });
        Mark {
            logs: logs.collect(),
        }
    }

    fn clear(self) -> Result<()> {
        let lab = self.lab;
        lab.control.become_variant(Variant::default())?;
        for kind in ["Service", "EndpointSlice"] {
            lab.control.api.delete_all(kind, NAMESPACE)?;
        }
        lab.start_proxies(Who::Own, &Value::Null)
    }
}

/// A place in ferrule's logs.
pub struct Mark {
    logs: Vec<(PathBuf, usize)>,
}

impl Mark {
    /// Waits until every log says all of this in one line after the mark.
    pub fn until_said(&self, words: &[&str]) -> Result<()> {
        for (log, length) in &self.logs {
            let said = || {
                let text = std::fs::read(log).ok()?;
                let text = String::from_utf8_lossy(text.get(*length..)?).into_owned();
                let says = |line: &str| words.iter().all(|word| line.contains(word));
                text.lines().any(says).then_some(())
            };
            os::poll(TIMEOUT, said)
                .with_context(|| format!("{} does not say {words:?}", log.display()))?;
        }
        Ok(())
    }
}

/// The objects of the Service that trials write.
pub fn web(memory: &mut Memory, endpoints: &[&str]) -> Result<Vec<Value>> {
    named(memory, "web", "10.96.8.1", "fd00:10:96::801", endpoints)
}

/// The objects of a Service.
pub fn named(
    memory: &mut Memory,
    name: &str,
    v4: &str,
    v6: &str,
    endpoints: &[&str],
) -> Result<Vec<Value>> {
    let item = json!({
        "service": name,
        "ips": [v4, v6],
        "ports": ["80->8080"],
        "endpoints": endpoints,
    });
    memory.objects(&item, NAMESPACE)
}
