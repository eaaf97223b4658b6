//! Runs stories: their steps in all worlds and compares.
//!
//! In: a running lab and a story. Out: nothing when all is as expected, otherwise an error whose text
//! says what was expected and what each world showed. What a story wrote is taken away at its end,
//! also when it failed, and then nothing of it may answer any more.

mod check;
mod flows;
mod nodes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use crate::lab::Lab;
use crate::probe::{self, Answers, Protocol};
use crate::story::line::Packet;
use crate::story::short::Memory;
use crate::story::{Expectation, Step, Story};
use crate::world::{Who, World};
use crate::{api, os, plan, rules};
use check::Look;
use flows::Flows;
use nodes::Nodes;

/// How long something may take to become as expected when nothing reports that it is done.
const TIMEOUT: Duration = Duration::from_secs(40);
/// Between two looks: ever longer, so that what looking itself keeps alive can end.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(1300);
/// After a story nobody should answer; one who does, does so at once.
const SHORT_WAIT: Duration = Duration::from_millis(300);
/// The original leaves the UDP flows of a deleted Service to the kernel (story `udp-deleted`): a
/// socket that happens to get the port of one meets the pod again. There an answer counts when it
/// comes to several sockets.
const GLANCES_AT_UDP: usize = 3;

/// A lab, and what its proxies were configured with last.
pub struct Runner {
    lab: Lab,
    settings: Value,
    /// A story left proxies in a state the next one should not start from.
    spoiled: bool,
}

/// What one story has done so far.
#[derive(Default)]
struct Scene {
    /// The modes it is about; none means all.
    modes: Vec<String>,
    memory: Memory,
    /// By path.
    written: BTreeMap<String, Value>,
    nodes: Nodes,
    flows: Flows,
    /// The other program was in the proxies' place.
    swapped: bool,
    /// Rules were seen to be different.
    differed: bool,
    /// Targets that were sent to, and by whom.
    targets: BTreeSet<(String, SocketAddr, Protocol)>,
}

impl Runner {
    pub fn new(lab: Lab) -> Self {
        Self {
            lab,
            settings: Value::Null,
            spoiled: false,
        }
    }

    /// Runs one story from beginning to end.
    pub fn run(&mut self, story: &Story) -> Result<()> {
        if self.spoiled || story.settings != self.settings {
            self.settings = story.settings.clone();
            self.lab.start_proxies(Who::Own, &self.settings)?;
            self.spoiled = false;
        }
        let mut scene = Scene {
            modes: story.modes.clone(),
            ..Scene::default()
        };
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": story.name },
        });
        self.lab.control.api.apply(&namespace)?;
        let result = story
            .steps
            .iter()
            .enumerate()
            .try_for_each(|(number, step)| {
                self.step(story, step, &mut scene)
                    .and_then(|()| self.compare_rules(story, step, &mut scene))
                    .with_context(|| format!("step {}", number + 1))
            });
        let result = result.and_then(|()| match &story.rules {
            Some(row) if self.has_rules(&scene) && !scene.differed => {
                bail!("rules of iptables are always the same, whatever {row} says")
            }
            _ => Ok(()),
        });
        let swapped = scene.swapped;
        let cleared = self.clear(story, scene).context("after the story");
        let result = result.and(cleared);
        self.spoiled = swapped || result.is_err();
        result
    }

    /// The worlds a story runs in.
    fn worlds(&self, scene: &Scene) -> Vec<&World> {
        let worlds = self.lab.worlds.iter();
        let about =
            |world: &&World| scene.modes.is_empty() || scene.modes.contains(&world.key.mode);
        worlds.filter(about).collect()
    }

    /// Whether there is a world a story is about.
    pub fn knows(&self, story: &Story) -> bool {
        let mut worlds = self.lab.worlds.iter();
        worlds.any(|world| story.is_about(&world.key.mode))
    }

    fn step(&mut self, story: &Story, step: &Step, scene: &mut Scene) -> Result<()> {
        match step {
            Step::Apply(items) => self.apply(story, items, scene),
            Step::Delete(words) => self.delete(story, words, scene),
            Step::Packets(lines) => {
                remember(lines, scene)?;
                fail(check::look(
                    Look::Packets,
                    lines,
                    &self.worlds(scene),
                    &scene.memory,
                )?)
            }
            Step::Eventually(lines) => {
                remember(lines, scene)?;
                self.until(Look::Packets, lines, scene)
            }
            Step::Http(lines) => self.until(Look::Http, lines, scene),
            Step::Metrics(lines) => self.until(Look::Metrics, lines, scene),
            Step::Open(lines) => fail(flows::open(lines, &self.worlds(scene), scene)?),
            Step::Send(lines) => fail(flows::send(lines, &self.worlds(scene), scene)?),
            Step::Stop(pods) => {
                for world in &mut self.lab.worlds {
                    for pod in pods {
                        world.stop_pod(pod);
                    }
                }
                Ok(())
            }
            Step::Start(pods) => {
                let mut worlds = self.lab.worlds.iter_mut();
                worlds.try_for_each(|world| pods.iter().try_for_each(|pod| world.start_pod(pod)))
            }
            Step::Restart(what) if what == "proxy" && scene.swapped => {
                self.lab.start_proxies(Who::Own, &self.settings)
            }
            Step::Restart(what) if what == "proxy" => self.lab.restart_proxies(&self.settings),
            Step::Restart(what) if what == "other" => {
                scene.swapped = true;
                self.lab.start_proxies(Who::Other, &self.settings)
            }
            Step::Restart(part) => {
                self.lab.control.restart(part)?;
                self.lab.settle(false)
            }
            Step::Run(commands) => self.run_commands(commands, scene),
        }
    }

    /// After whatever may change rules, worlds in iptables mode must have the same ones.
    fn compare_rules(&self, story: &Story, step: &Step, scene: &mut Scene) -> Result<()> {
        if !matches!(step, Step::Apply(_) | Step::Delete(_) | Step::Restart(_)) {
            return Ok(());
        }
        let worlds = self.worlds(scene);
        if story.rules.is_some() {
            scene.differed |= !rules::look(&worlds)?.is_empty();
            return Ok(());
        }
        fail(rules::report(&rules::compare(&worlds)?, &worlds))
    }

    /// Whether there is something to compare.
    fn has_rules(&self, scene: &Scene) -> bool {
        let worlds = self.worlds(scene);
        let of = |program: &str| {
            let mut worlds = worlds.iter().filter(|world| rules::is_about(world));
            worlds.any(|world| world.key.program == program)
        };
        of("ferrule") && of("kube-proxy")
    }

    fn apply(&mut self, story: &Story, items: &[Value], scene: &mut Scene) -> Result<()> {
        let mut last = Vec::new();
        for item in items {
            for object in scene.memory.objects(item, &story.name)? {
                if object["kind"] == "Node" {
                    scene.nodes.change(&object, &self.lab.control.api)?;
                    last.push(object);
                } else {
                    self.lab.control.api.apply(&object)?;
                    scene.written.insert(api::path(&object)?, object);
                }
            }
        }
        self.lab.settle(!last.is_empty())?;
        let api = &self.lab.control.api;
        last.iter().try_for_each(|node| nodes::finish(node, api))
    }

    fn delete(&mut self, story: &Story, words: &[String], scene: &mut Scene) -> Result<()> {
        for word in words {
            for object in scene.memory.delete(word, &story.name)? {
                self.lab.control.api.delete(&object)?;
            }
        }
        self.lab.settle(false)
    }

    /// Looks again and again until nothing is wrong.
    fn until(&self, how: Look, lines: &[Expectation], scene: &Scene) -> Result<()> {
        let begun = os::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let wrong = check::look(how, lines, &self.worlds(scene), &scene.memory)?;
            if wrong.is_empty() || begun.elapsed() > TIMEOUT {
                return fail(wrong);
            }
            std::thread::sleep(pause);
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    fn run_commands(&self, commands: &BTreeMap<String, String>, scene: &Scene) -> Result<()> {
        for (host, line) in commands {
            for world in self.worlds(scene) {
                let shell = || os::output(os::command("sh").args(["-c", line]));
                let output = world.place(host)?.run(shell)?;
                output.with_context(|| format!("{}: {host}: {line}", world.key))?;
            }
        }
        Ok(())
    }

    /// Takes away what the story wrote and sees that nothing of it answers.
    fn clear(&mut self, story: &Story, scene: Scene) -> Result<()> {
        let api = &self.lab.control.api;
        // Also those that a controller made: the lab has no garbage collector.
        for kind in ["EndpointSlice", "Service"] {
            api.delete_all(kind, &story.name)?;
        }
        let collected = |kind: &Value| kind == "EndpointSlice" || kind == "Service";
        let mut rest = scene.written.values();
        rest.try_for_each(|object| match &object["kind"] {
            kind if collected(kind) => Ok(()),
            _ => api.delete(object),
        })?;
        scene.nodes.restore(&self.lab.control)?;
        for world in &mut self.lab.worlds {
            plan::pods().try_for_each(|pod| world.start_pod(pod.name))?;
        }
        drop(scene.flows);
        self.lab.settle(!scene.nodes.is_empty())?;
        self.nobody_answers(&scene.targets)
    }

    fn nobody_answers(&self, targets: &BTreeSet<(String, SocketAddr, Protocol)>) -> Result<()> {
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (sender, to, protocol) in targets {
                for world in &self.lab.worlds {
                    let ask = move || must_be_silent(world, sender, *to, *protocol);
                    threads.push(scope.spawn(ask));
                }
            }
            threads.into_iter().try_for_each(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })
    }

    /// The lab as it is at its beginning.
    pub fn rested(&mut self) -> Result<&mut Lab> {
        if self.spoiled || self.settings != Value::Null {
            self.settings = Value::Null;
            self.lab.start_proxies(Who::Own, &self.settings)?;
            self.spoiled = false;
        }
        Ok(&mut self.lab)
    }

    /// Where the proxies write.
    pub fn logs(&self) -> Vec<String> {
        let logs = self.lab.worlds.iter().flat_map(World::logs);
        logs.map(|path| path.display().to_string()).collect()
    }
}

/// Fails if a pod answers that is gone.
fn must_be_silent(world: &World, sender: &str, to: SocketAddr, protocol: Protocol) -> Result<()> {
    let original = world.key.program == "kube-proxy";
    let glances = match protocol {
        Protocol::Udp if original => GLANCES_AT_UDP,
        _ => 1,
    };
    let mut last = Answers::new();
    for _ in 0..glances {
        let once = || probe::once(protocol, to, SHORT_WAIT);
        last = Answers::from([world.place(sender)?.run(once)?]);
        if !check::is_answered(&last) {
            return Ok(());
        }
    }
    let last = probe::show(&last);
    bail!("{}: {to} still answers {sender}: {last}", world.key)
}

fn fail(wrong: String) -> Result<()> {
    if wrong.is_empty() {
        return Ok(());
    }
    Err(anyhow!(wrong))
}

/// Keeps who was sent to, to see at the end that they are gone.
fn remember(lines: &[Expectation], scene: &mut Scene) -> Result<()> {
    for line in lines {
        let packet = Packet::parse(&line.subject)?;
        if packet.is_direct() {
            continue;
        }
        let to = packet.target(|name, family| scene.memory.address(name, family))?;
        let senders = packet.senders.into_iter();
        scene
            .targets
            .extend(senders.map(|sender| (sender, to, packet.protocol)));
    }
    Ok(())
}
