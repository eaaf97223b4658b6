//! Tells stories: runs their steps in all worlds and compares.
//!
//! In: a running lab and a story. Out: nothing when all is as told, otherwise an error whose text
//! says what was expected and what each world showed. What a story wrote is taken away at its end,
//! also when it failed, and then nothing of it may answer any more.

mod check;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};

use crate::lab::Lab;
use crate::probe::{self, Answers, Flow, Protocol};
use crate::story::line::{self, Outcome, Packet};
use crate::story::short::Memory;
use crate::story::{Expectation, Step, Story};
use crate::world::World;
use crate::{api, os, plan};
use check::Look;

/// How long something may take to become as expected when nothing tells that it is done.
const PATIENCE: Duration = Duration::from_secs(20);
/// After a story nobody should answer; one who does, does so at once.
const GLANCE: Duration = Duration::from_millis(300);

/// A lab, and what its proxies were told last.
pub struct Teller {
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
    written: Vec<Value>,
    labels: BTreeSet<(String, String)>,
    flows: BTreeMap<String, Vec<(Flow, String)>>,
    /// Targets that were sent to, and by whom.
    targets: BTreeSet<(String, SocketAddr, Protocol)>,
}

impl Teller {
    pub fn new(lab: Lab) -> Self {
        Self {
            lab,
            settings: Value::Null,
            spoiled: false,
        }
    }

    /// Runs one story from beginning to end.
    pub fn tell(&mut self, story: &Story) -> Result<()> {
        if self.spoiled || story.settings != self.settings {
            self.settings = story.settings.clone();
            self.lab.start_proxies(&self.settings)?;
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
        let told = story
            .steps
            .iter()
            .enumerate()
            .try_for_each(|(number, step)| {
                self.step(story, step, &mut scene)
                    .with_context(|| format!("step {}", number + 1))
            });
        let cleared = self.clear(story, scene).context("after the story");
        let result = told.and(cleared);
        self.spoiled = result.is_err();
        result
    }

    /// The worlds a story is told in.
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
            Step::Open(lines) => self.open(lines, scene),
            Step::Send(lines) => self.send(lines, scene),
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
            Step::Restart(what) if what == "proxy" => self.lab.start_proxies(&self.settings),
            Step::Restart(part) => {
                self.lab.control.restart(part)?;
                self.lab.settle(false)
            }
            Step::Run(commands) => self.run(commands, scene),
        }
    }

    fn apply(&mut self, story: &Story, items: &[Value], scene: &mut Scene) -> Result<()> {
        let mut nodes = false;
        let mut taints = Vec::new();
        for item in items {
            for object in scene.memory.objects(item, &story.name)? {
                if object["kind"] == "Node" {
                    nodes = true;
                    taints.push(self.change_node(&object, scene)?);
                } else {
                    self.lab.control.api.apply(&object)?;
                    scene.written.push(object);
                }
            }
        }
        self.lab.settle(nodes)?;
        // Taints last: the barrier works with taints of its own.
        let api = &self.lab.control.api;
        taints
            .iter()
            .filter(|(_, change)| change["spec"]["taints"] != json!([]))
            .try_for_each(|(path, change)| api.merge(path, change).map(|_| ()))
    }

    /// Writes a Node's labels, and returns how to write its taints.
    fn change_node(&self, object: &Value, scene: &mut Scene) -> Result<(String, Value)> {
        let path = api::path(object)?;
        let labels = &object["metadata"]["labels"];
        self.lab
            .control
            .api
            .merge(&path, &json!({ "metadata": { "labels": labels } }))?;
        let names = labels
            .as_object()
            .into_iter()
            .flat_map(|labels| labels.keys());
        let changed = names.map(|label| (path.clone(), label.clone()));
        scene.labels.extend(changed);
        Ok((
            path,
            json!({ "spec": { "taints": object["spec"]["taints"] } }),
        ))
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
        loop {
            let wrong = check::look(how, lines, &self.worlds(scene), &scene.memory)?;
            if wrong.is_empty() || begun.elapsed() > PATIENCE {
                return fail(wrong);
            }
        }
    }

    fn open(&self, lines: &BTreeMap<String, String>, scene: &mut Scene) -> Result<()> {
        let mut wrong = String::new();
        for (name, text) in lines {
            let (subject, outcome) = line::split(text)?;
            let packet = Packet::parse(subject)?;
            let [sender] = &packet.senders[..] else {
                bail!("{text:?}: a connection has one sender");
            };
            let to = packet.target(|name, family| scene.memory.address(name, family))?;
            let outcome = Outcome::parse(outcome)?;
            for world in self.worlds(scene) {
                let place = world.place(sender)?;
                let opened = place.run(|| Flow::open(packet.protocol, to, PATIENCE))?;
                let (flow, answer) =
                    opened.with_context(|| format!("{}: {text} did not open", world.key))?;
                let seen = check::judge(&Answers::from([answer]), &outcome, sender);
                if !seen.fits {
                    writeln!(wrong, "{}: {text}\n    seen: {}", world.key, seen.shown)?;
                }
                let flows = scene.flows.entry(name.clone()).or_default();
                flows.push((flow, sender.clone()));
            }
        }
        fail(wrong)
    }

    fn send(&self, lines: &BTreeMap<String, Expectation>, scene: &mut Scene) -> Result<()> {
        let mut wrong = String::new();
        for (name, expectation) in lines {
            let worlds = self.worlds(scene);
            let flows = scene.flows.get_mut(name);
            let flows = flows.with_context(|| format!("no connection {name} was opened"))?;
            for (world, (flow, sender)) in worlds.into_iter().zip(flows) {
                let wanted = expectation.outcome(&world.key);
                let outcome = Outcome::parse(wanted)?;
                let patience = match outcome {
                    Outcome::Timeout => Duration::from_secs(1),
                    _ => Duration::from_secs(5),
                };
                let answer = flow.try_ask(patience);
                let seen = check::judge(&Answers::from([answer]), &outcome, sender);
                if !seen.fits {
                    let key = &world.key;
                    writeln!(wrong, "{key}: {name} = {wanted}\n    seen: {}", seen.shown)?;
                }
            }
        }
        fail(wrong)
    }

    fn run(&self, commands: &BTreeMap<String, String>, scene: &Scene) -> Result<()> {
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
        for object in scene.written.iter().rev() {
            api.delete(object)?;
        }
        // Those that a controller made are left to a garbage collector, which the lab has not.
        api.delete_all("EndpointSlice", &story.name)?;
        for (path, label) in &scene.labels {
            api.merge(path, &json!({ "metadata": { "labels": { label: null } } }))?;
        }
        for world in &mut self.lab.worlds {
            plan::pods().try_for_each(|pod| world.start_pod(pod.name))?;
        }
        drop(scene.flows);
        self.lab
            .settle(!scene.labels.is_empty() || story_taints(story))?;
        self.nobody_answers(&scene.targets)
    }

    fn nobody_answers(&self, targets: &BTreeSet<(String, SocketAddr, Protocol)>) -> Result<()> {
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (sender, to, protocol) in targets {
                for world in &self.lab.worlds {
                    let ask = move || -> Result<()> {
                        let once = || probe::once(*protocol, *to, GLANCE);
                        let answers = Answers::from([world.place(sender)?.run(once)?]);
                        ensure!(
                            !check::is_answered(&answers),
                            "{}: {to} still answers {sender}: {}",
                            world.key,
                            probe::show(&answers)
                        );
                        Ok(())
                    };
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
            self.lab.start_proxies(&self.settings)?;
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

/// Whether a story changes taints, which the barrier then takes away.
fn story_taints(story: &Story) -> bool {
    story.steps.iter().any(|step| match step {
        Step::Apply(items) => items.iter().any(|item| item.get("taints").is_some()),
        _ => false,
    })
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
