//! A container of a Pod as `runc` starts it, in the way of a node's runtime.
//!
//! In: an image, the container as a manifest describes it, and what the API server and the kubelet
//! would add: values of variables, files of volumes. Out: a bundle, and the running container. The
//! network is that of whoever starts it, as with `hostNetwork`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::image::Image;
use super::seccomp;
use crate::netns::Netns;
use crate::os;
use crate::process::Process;

/// In the order of their numbers.
const CAPABILITIES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What a manifest leaves to the node.
#[derive(Clone, Default)]
pub struct Surroundings {
    /// Variables, by name: of configuration and of fields of the Pod.
    pub variables: BTreeMap<String, String>,
    /// Folders and files that stand for volumes, by the volume's name.
    pub volumes: BTreeMap<String, PathBuf>,
    /// Mounts beside those of the manifest, read-only: from and to.
    pub mounts: Vec<(PathBuf, &'static str)>,
    /// Words after those of the manifest.
    pub arguments: Vec<String>,
    /// A capability that the manifest lists and the container does not get.
    pub without: Option<&'static str>,
}

/// What starts containers.
pub struct Runtime {
    program: PathBuf,
    profile: Value,
    folder: PathBuf,
    number: usize,
}

impl Runtime {
    /// With the files of unpacked packages; bundles go below `folder`.
    pub fn open(packages: &Path, folder: &Path) -> Result<Self> {
        let file = packages.join("usr/share/containers/seccomp.json");
        let text = std::fs::read(&file).with_context(|| file.display().to_string())?;
        Ok(Self {
            program: packages.join("usr/sbin/runc"),
            profile: serde_json::from_slice(&text)?,
            folder: folder.to_owned(),
            number: 0,
        })
    }

    /// Starts a container in a network; its output goes to a log of its own.
    pub fn start(
        &mut self,
        image: &Image,
        container: &Value,
        around: &Surroundings,
        place: &Netns,
    ) -> Result<Container> {
        self.number += 1;
        let name = container["name"]
            .as_str()
            .context("a container without a name")?;
        let id = format!("{}-{name}", self.number);
        let bundle = self.folder.join(&id);
        std::fs::create_dir_all(&bundle)?;
        let config = self.config(image, container, around)?;
        std::fs::write(
            bundle.join("config.json"),
            serde_json::to_vec_pretty(&config)?,
        )?;
        let mut run = self.command();
        run.arg("run").arg("--bundle").arg(&bundle).arg(&id);
        let process = place.run(|| Process::start(&id, &mut run, &self.folder))??;
        Ok(Container { process })
    }

    fn command(&self) -> std::process::Command {
        let mut command = os::command(&self.program);
        command.arg("--root=/run/runc");
        command
    }

    fn config(&self, image: &Image, container: &Value, around: &Surroundings) -> Result<Value> {
        let rights = Rights::of(&container["securityContext"], around.without)?;
        let mut linux = json!({
            "namespaces": [{ "type": "mount" }, { "type": "pid" }, { "type": "ipc" }],
        });
        if !rights.privileged {
            linux["maskedPaths"] = json!(["/proc/kcore", "/proc/keys", "/proc/timer_list"]);
            linux["readonlyPaths"] = json!([
                "/proc/bus",
                "/proc/fs",
                "/proc/irq",
                "/proc/sys",
                "/proc/sysrq-trigger"
            ]);
            linux["seccomp"] = seccomp::filter(&self.profile, &rights.capabilities);
        }
        let list = &rights.capabilities;
        let capabilities = json!({ "bounding": list, "effective": list, "permitted": list });
        let variables = variables(container, around)?;
        let environment = variables
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let environment = image.environment.iter().cloned().chain(environment);
        Ok(json!({
            "ociVersion": "1.0.2",
            "root": { "path": image.root, "readonly": container["securityContext"]["readOnlyRootFilesystem"] },
            "process": {
                "user": { "uid": 0, "gid": 0 },
                "cwd": "/",
                "args": arguments(image, container, around, &variables)?,
                "env": environment.collect::<Vec<_>>(),
                "noNewPrivileges": rights.no_new_privileges,
                "capabilities": capabilities,
            },
            "mounts": mounts(container, around, rights.privileged)?,
            "linux": linux,
        }))
    }
}

/// A running container. Dropping it ends it.
pub struct Container {
    pub process: Process,
}

impl Container {
    /// All it wrote so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.process.log()).unwrap_or_default()
    }
}

struct Rights {
    privileged: bool,
    no_new_privileges: bool,
    capabilities: Vec<String>,
}

impl Rights {
    fn of(context: &Value, without: Option<&str>) -> Result<Self> {
        let privileged = context["privileged"] == true;
        let capabilities = if privileged {
            own_capabilities()?
        } else {
            let dropped = &context["capabilities"]["drop"];
            ensure!(
                dropped == &json!(["ALL"]),
                "capabilities that are not dropped: {dropped}"
            );
            ensure!(
                context["seccompProfile"]["type"] == "RuntimeDefault",
                "another seccomp profile than the runtime's"
            );
            let added = context["capabilities"]["add"]
                .as_array()
                .into_iter()
                .flatten();
            let added = added
                .filter_map(Value::as_str)
                .filter(|name| Some(*name) != without);
            added.map(|name| format!("CAP_{name}")).collect()
        };
        Ok(Self {
            privileged,
            no_new_privileges: context["allowPrivilegeEscalation"] == false,
            capabilities,
        })
    }
}

/// All that this process has, and therefore can give.
fn own_capabilities() -> Result<Vec<String>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let bits = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let bits = u64::from_str_radix(bits.context("no capabilities in /proc")?.trim(), 16)?;
    let names = CAPABILITIES.iter().enumerate();
    let own = names.filter(|(number, _)| bits & (1 << number) != 0);
    Ok(own.map(|(_, name)| format!("CAP_{name}")).collect())
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

fn variables(container: &Value, around: &Surroundings) -> Result<BTreeMap<String, String>> {
    let mut variables = around.variables.clone();
    for variable in list(container, "env") {
        let name = variable["name"]
            .as_str()
            .context("a variable without a name")?;
        if let Some(value) = variable["value"].as_str() {
            variables.insert(name.to_owned(), value.to_owned());
        }
        ensure!(variables.contains_key(name), "nobody gives {name} a value");
    }
    Ok(variables)
}

fn arguments(
    image: &Image,
    container: &Value,
    around: &Surroundings,
    variables: &BTreeMap<String, String>,
) -> Result<Vec<String>> {
    ensure!(
        container["command"].is_null(),
        "a command instead of the image's"
    );
    let expand = |word: &str| {
        let expand = |word: String, (name, value): (&String, &String)| {
            word.replace(&format!("$({name})"), value)
        };
        variables.iter().fold(word.to_owned(), expand)
    };
    let written = list(container, "args").filter_map(Value::as_str);
    let words = image
        .entrypoint
        .iter()
        .map(String::as_str)
        .chain(written)
        .map(expand);
    Ok(words.chain(around.arguments.iter().cloned()).collect())
}

fn mounts(container: &Value, around: &Surroundings, privileged: bool) -> Result<Vec<Value>> {
    let mode = if privileged { "rw" } else { "ro" };
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc",
                "options": ["nosuid", "noexec", "nodev"] }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                "options": ["nosuid", "mode=755", "size=64m"] }),
        json!({ "destination": "/sys", "type": "bind", "source": "/sys",
                "options": ["rbind", mode] }),
    ];
    let bind = |from: &Path, to: &str, mode: &str| {
        json!({ "destination": to, "type": "bind", "source": from,
                "options": ["rbind", "rprivate", mode] })
    };
    for mount in list(container, "volumeMounts") {
        let (name, path) = (mount["name"].as_str(), mount["mountPath"].as_str());
        let (name, path) = name.zip(path).context("a mount without name or path")?;
        let Some(from) = around.volumes.get(name) else {
            bail!("nobody gives the volume {name}");
        };
        let mode = if mount["readOnly"] == true {
            "ro"
        } else {
            "rw"
        };
        mounts.push(bind(from, path, mode));
    }
    let further = around.mounts.iter();
    mounts.extend(further.map(|(from, to)| bind(from, to, "ro")));
    Ok(mounts)
}
