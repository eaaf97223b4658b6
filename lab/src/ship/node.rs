//! A node that a container serves, from manifests in a folder.
//!
//! In: images and `deploy/rendered`. Out: nothing when every mode answers with the listed rights,
//! and when with one capability fewer the program ends and names it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::bundle::{Container, Runtime, Surroundings};
use super::image::Image;
use super::manifests::Manifests;
use super::{CASES, Case, Options, deploy};
use crate::netns::Netns;
use crate::plan::{self, Family};
use crate::probe::{self, Answer, Protocol};
use crate::story::short::Memory;
use crate::world::{World, WorldKey};
use crate::{control, lab, os};

const TIMEOUT: Duration = Duration::from_mins(1);
const NODE: &str = "node1";
const NODE_PORT: u16 = 30080;

/// Serves a node in every mode that this kernel has.
pub fn run(options: &Options, folder: &Path) -> Result<()> {
    let runtime = lab::runtime()?;
    control::lay_network()?;
    let mut containers = Runtime::open(&options.runtime, folder)?;
    let images = Images::unpack(options, folder)?;
    let objects = write_objects(folder)?;
    for (number, case) in CASES.iter().enumerate() {
        let label = label(case);
        let begun = os::now();
        serve(
            case,
            number,
            &objects,
            &images,
            &mut containers,
            folder,
            &runtime,
        )
        .with_context(|| format!("mode {label}"))?;
        println!("ok {:5.1} s  mode {label}", begun.elapsed().as_secs_f64());
    }
    Ok(())
}

fn label(case: &Case) -> String {
    let flavour = if case.legacy { " (legacy)" } else { "" };
    format!("{}{flavour}", case.mode)
}

fn serve(
    case: &Case,
    number: usize,
    objects: &Path,
    images: &Images,
    containers: &mut Runtime,
    folder: &Path,
    runtime: &Handle,
) -> Result<()> {
    let node = Node::build(case, number, folder, runtime)?;
    let file = deploy()?.join(format!("rendered/{}.yaml", case.mode));
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let manifests = Manifests::read(&text)?;
    let mut around = node.surroundings(&manifests)?;
    around.mounts.push((objects.to_owned(), "/manifests"));
    around.arguments.push("--manifests=/manifests".to_owned());

    let image = images.of(&manifests)?;
    let pod = manifests.pod()?;
    let (init, main) = (&pod["initContainers"][0], &pod["containers"][0]);
    node.init(containers, image, init, &around)?;
    let mut proxy = containers.start(image, main, &around, node.place()?)?;
    node.until_served(&mut proxy, &["a1", "b1"])?;
    proxy.process.stop()?;

    let listed = main["securityContext"]["capabilities"]["add"].clone();
    for needed in case.needed {
        ensure!(
            listed
                .as_array()
                .is_some_and(|list| list.contains(&json!(needed))),
            "{needed} is not listed: {listed}"
        );
        around.without = Some(needed);
        let proxy = containers.start(image, main, &around, node.place()?)?;
        fails_for_want_of(proxy, needed)?;
        println!("   {}: without {needed} it fails and names it", label(case));
    }
    Ok(())
}

/// The images by the name that manifests give them.
pub struct Images(BTreeMap<&'static str, Image>);

impl Images {
    pub fn unpack(options: &Options, folder: &Path) -> Result<Self> {
        let mut images = BTreeMap::new();
        for name in ["ferrule", "ferrule-iptables"] {
            let archive = options.images.join(format!("{name}-image.tar"));
            images.insert(name, Image::unpack(&archive, &folder.join(name))?);
            let size = std::fs::metadata(&archive)?.len();
            println!("   image {name}: {} KiB", size.div_ceil(1024));
        }
        Ok(Self(images))
    }

    /// The one that a pod names.
    pub fn of(&self, manifests: &Manifests) -> Result<&Image> {
        let named = manifests.pod()?["containers"][0]["image"].as_str();
        let name = named
            .and_then(|name| name.split(':').next())
            .unwrap_or_default();
        self.0
            .get(name)
            .with_context(|| format!("there is no image {name:?}"))
    }
}

/// A node and what is around it.
pub struct Node {
    world: World,
    folder: PathBuf,
}

impl Node {
    /// Builds the network of a world; its first node is the one.
    pub fn build(case: &Case, number: usize, folder: &Path, runtime: &Handle) -> Result<Self> {
        let key = WorldKey {
            program: "ferrule".to_owned(),
            mode: case.mode.to_owned(),
            legacy: case.legacy,
            portals_by_iptables: false,
        };
        let folder = folder.join(format!("node-{number}"));
        std::fs::create_dir_all(&folder)?;
        let world = World::build(key, number, &folder, runtime)?;
        let node = Self { world, folder };
        if case.legacy {
            // By this chain the kubelet shows which flavour the node uses.
            let mark = || {
                let mut iptables = os::command("iptables-legacy");
                os::output(iptables.args(["-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]))
            };
            node.place()?.run(mark)??;
        }
        Ok(node)
    }

    pub fn place(&self) -> Result<&Netns> {
        self.world.place(NODE)
    }

    /// What the kubelet would add to the pod.
    pub fn surroundings(&self, manifests: &Manifests) -> Result<Surroundings> {
        let mut variables = BTreeMap::from([("NODE_NAME".to_owned(), NODE.to_owned())]);
        let apiserver = &manifests.find("ConfigMap", "ferrule-apiserver")?["data"];
        for (name, value) in apiserver.as_object().into_iter().flatten() {
            variables.insert(name.clone(), value.as_str().unwrap_or_default().to_owned());
        }
        let config = self.folder.join("config");
        std::fs::create_dir_all(&config)?;
        let text = manifests.find("ConfigMap", "ferrule")?["data"]["config.conf"].as_str();
        let mut settings: Value = serde_saphyr::from_str(text.context("no config.conf")?)?;
        settings["clusterCIDR"] = plan::CLUSTER_CIDRS.into();
        // Limits of connection tracking belong to the whole machine.
        settings["conntrack"] = json!({
            "maxPerCore": 0, "min": 0,
            "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
        });
        std::fs::write(config.join("config.conf"), settings.to_string())?;
        let mut volumes = BTreeMap::from([("config".to_owned(), config)]);
        // Volumes of the node's own: a folder or a file of this name.
        for volume in manifests.pod()?["volumes"].as_array().into_iter().flatten() {
            let name = volume["name"].as_str().context("a volume without a name")?;
            let at = self.folder.join(name);
            match volume["hostPath"]["type"].as_str() {
                Some("FileOrCreate") => std::fs::write(&at, "")?,
                Some("DirectoryOrCreate") => std::fs::create_dir_all(&at)?,
                None if volume["emptyDir"].is_object() => std::fs::create_dir_all(&at)?,
                _ => continue,
            }
            volumes.insert(name.to_owned(), at);
        }
        Ok(Surroundings {
            variables,
            volumes,
            ..Surroundings::default()
        })
    }

    /// Runs the init container to its end.
    pub fn init(
        &self,
        containers: &mut Runtime,
        image: &Image,
        init: &Value,
        around: &Surroundings,
    ) -> Result<()> {
        let mut container = containers.start(image, init, around, self.place()?)?;
        let status = os::poll(TIMEOUT, || container.process.ended());
        match status {
            Some(status) if status.success() => Ok(()),
            _ => bail!("the init container failed: {}", container.process.log_end()),
        }
    }

    /// Waits until the container is ready and exactly these pods answer, over all kinds of address.
    pub fn until_served(&self, proxy: &mut Container, pods: &[&str]) -> Result<()> {
        let node = plan::find(NODE).context("there is a first node")?;
        let health = SocketAddr::new(node.address(Family::V4), 10256);
        let ready = || {
            if proxy.process.ended().is_some() {
                return Some(false);
            }
            let answer = probe::get(health, "/readyz", Duration::from_secs(1)).ok()?;
            (answer.0 == 200).then_some(true)
        };
        if self.place()?.run(|| os::poll(TIMEOUT, ready))? != Some(true) {
            bail!("it does not get ready: {}", proxy.process.log_end());
        }
        for (sender, to) in [
            ("a3", "10.96.3.1:80"),
            ("a3", "[fd00:10:96::301]:80"),
            ("outside1", "172.18.0.1:30080"),
            ("outside1", "[fd00:172:18::1]:30080"),
        ] {
            let to: SocketAddr = to.parse()?;
            let wait = Duration::from_secs(5);
            let ask = || probe::balanced(Protocol::Tcp, to, pods.len(), wait);
            let mut last = String::new();
            let right = || {
                let answers = self
                    .world
                    .place(sender)
                    .and_then(|place| place.run(ask))
                    .ok()?;
                last = probe::show(&answers);
                let named = answers.iter().map(|answer| match answer {
                    Answer::Pod { name, .. } => name.as_str(),
                    _ => "",
                });
                named.eq(pods.iter().copied()).then_some(())
            };
            if os::poll(TIMEOUT, right).is_none() {
                let log = proxy.process.log_end();
                bail!("{sender} -> {to}: {last}, and not {pods:?}; {log}");
            }
        }
        Ok(())
    }
}

/// Waits until the container ends and says which capability it misses.
fn fails_for_want_of(mut proxy: Container, capability: &str) -> Result<()> {
    let status = os::poll(TIMEOUT, || proxy.process.ended());
    let log = proxy.log();
    let named = format!("CAP_{capability}");
    match status {
        Some(status) if !status.success() && log.contains(&named) => Ok(()),
        status => bail!(
            "without {named} it should end and say so, but: {status:?}, {}",
            proxy.process.log_end()
        ),
    }
}

/// Services with endpoints on both nodes, as files.
fn write_objects(folder: &Path) -> Result<PathBuf> {
    let objects = folder.join("objects");
    std::fs::create_dir_all(&objects)?;
    let mut all = service()?;
    all.extend(plan::nodes().map(control::node_object));
    for (number, object) in all.iter().enumerate() {
        std::fs::write(objects.join(format!("{number}.json")), object.to_string())?;
    }
    Ok(objects)
}

/// The Service that is asked.
pub fn service() -> Result<Vec<Value>> {
    let service = json!({
        "service": "web",
        "ips": ["10.96.3.1", "fd00:10:96::301"],
        "ports": [format!("80->8080 @{NODE_PORT}")],
        "endpoints": ["a1", "b1"],
        "spec": { "type": "NodePort" },
    });
    Memory::default().objects(&service, "default")
}
