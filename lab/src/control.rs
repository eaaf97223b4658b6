//! The control plane: etcd, the API server and a few controllers, all in the lab's own network.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::api::{Api, TOKEN};
use crate::process::Process;
use crate::tools::Tools;
use crate::{netns, os, plan};

/// Where nodes reach the API server.
const ADDRESS: &str = "172.31.0.1";
const ADDRESS6: &str = "fd00:172:31::1";
const ETCD: &str = "http://127.0.0.1:2379";
const ETCD_ADDRESS: &str = "127.0.0.1:2379";
/// Data that nobody needs after the lab, in its private memory file system.
const DATA: &str = "/run/lab";
/// The API server needs a few seconds here; a busy machine needs more, and User Mode Linux a minute.
const TIMEOUT: Duration = Duration::from_mins(3);
/// The controllers that make what a proxy reads. The one for ServiceCIDRs makes nothing: it would
/// only hold back their deletion for ten seconds.
const CONTROLLERS: &str = "endpointslice-controller,endpointslice-mirroring-controller";

/// A running control plane.
pub struct Control {
    pub api: Api,
    tools: Tools,
    folder: PathBuf,
    etcd: Process,
    server: Process,
    /// Further flags of the API server.
    variant: Variant,
    /// None until there is an API server: they give up without one.
    controllers: Option<Process>,
}

/// An API server that is not as usual.
#[derive(Clone, Debug, Default)]
pub struct Variant {
    /// Who is let in beside the lab itself: token, and group.
    pub guests: Vec<(&'static str, &'static str)>,
    /// What guests may do is decided by roles.
    pub roles: bool,
    /// Everything that a cluster with kubelets needs: service accounts, all controllers, and roles.
    pub whole: bool,
    /// Further flags.
    pub flags: Vec<String>,
}

/// Lays the network on which nodes reach the API server. Worlds need it before they are built.
pub fn lay_network() -> Result<()> {
    netns::ip_here(&format!(
        "link set lo up\nlink add mgmt type bridge\naddr add {ADDRESS}/16 dev mgmt\n\
         addr add {ADDRESS6}/64 dev mgmt nodad\nlink set mgmt up\n"
    ))
}

impl Control {
    /// Starts everything and waits until the API server is ready and knows the nodes.
    pub fn start(tools: &Tools, folder: &Path, runtime: &tokio::runtime::Handle) -> Result<Self> {
        let control = Self::start_as(Variant::default(), tools, folder, runtime)?;
        control.register_nodes()?;
        Ok(control)
    }

    /// The same with a variant, and without nodes.
    pub fn start_as(
        variant: Variant,
        tools: &Tools,
        folder: &Path,
        runtime: &tokio::runtime::Handle,
    ) -> Result<Self> {
        std::fs::create_dir_all(DATA)?;
        prepare_files(folder)?;
        write_tokens(&variant)?;
        let etcd = Process::start("etcd", &mut etcd(tools), folder)?;
        let server = Process::start("kube-apiserver", &mut server(tools, &variant), folder)?;
        let api = Api::new(&format!("https://{ADDRESS}:6443"), runtime)?;
        let mut control = Self {
            api,
            tools: tools.clone(),
            folder: folder.to_owned(),
            etcd,
            server,
            variant,
            controllers: None,
        };
        control.wait()?;
        control.restart("controllers")?;
        Ok(control)
    }

    /// Ends a part the hard way and starts it again; returns when the API server is ready.
    pub fn restart(&mut self, part: &str) -> Result<()> {
        match part {
            "etcd" => {
                self.etcd.kill()?;
                self.etcd = Process::start("etcd", &mut etcd(&self.tools), &self.folder)?;
            }
            "apiserver" => {
                self.server.kill()?;
                write_tokens(&self.variant)?;
                let mut command = server(&self.tools, &self.variant);
                self.server = Process::start("kube-apiserver", &mut command, &self.folder)?;
            }
            "controllers" => {
                // Ended first: the new one wants the same port.
                drop(self.controllers.take());
                let mut command = controllers(&self.tools, &self.variant, &self.folder);
                let process =
                    Process::start("kube-controller-manager", &mut command, &self.folder)?;
                self.controllers = Some(process);
            }
            other => bail!("{other} is not a part of the control plane"),
        }
        self.wait()
    }

    /// Ends the API server the hard way and starts one that is otherwise.
    pub fn become_variant(&mut self, variant: Variant) -> Result<()> {
        self.variant = variant;
        self.restart("apiserver")
    }

    /// Ends the controllers for good: whoever writes slices itself does not need them, and they
    /// would do their share of work for every object.
    pub fn end_controllers(&mut self) {
        drop(self.controllers.take());
    }

    /// The process of the API server.
    pub fn server(&self) -> u32 {
        self.server.id()
    }

    fn wait(&mut self) -> Result<()> {
        let ready = os::poll(TIMEOUT, || {
            if let Err(error) = self.check() {
                return Some(Err(error));
            }
            self.api.ready().then_some(Ok(()))
        });
        match ready {
            Some(result) => result,
            None => bail!(
                "the API server is not ready; see {}",
                self.server.log().display()
            ),
        }
    }

    /// Fails when a part ended that should run.
    pub fn check(&mut self) -> Result<()> {
        self.etcd.check()?;
        self.server.check()?;
        self.controllers.as_mut().map_or(Ok(()), Process::check)
    }

    /// Writes the Node objects as they are when no story changed them.
    pub fn register_nodes(&self) -> Result<()> {
        plan::nodes().try_for_each(|node| self.api.apply(&node_object(node)))
    }
}

/// A Node as it is when no story changed it.
pub fn node_object(node: &plan::Host) -> Value {
    let addresses = plan::Family::BOTH
        .map(|family| json!({ "type": "InternalIP", "address": node.address(family).to_string() }));
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": node.name, "labels": { "kubernetes.io/hostname": node.name } },
        "spec": {
            "podCIDR": format!("10.244.{}.0/24", node.number()),
            "podCIDRs": [
                format!("10.244.{}.0/24", node.number()),
                format!("fd00:10:244:{}::/64", node.number()),
            ],
        },
        "status": { "addresses": addresses },
    })
}

/// Where a client finds the file that lets it in.
pub fn kubeconfig(folder: &Path) -> PathBuf {
    folder.join("kubeconfig")
}

fn prepare_files(folder: &Path) -> Result<()> {
    let file = |name: &str| Path::new(DATA).join(name);
    write_tokens(&Variant::default())?;
    let mut text = String::from("apiVersion: v1\nkind: Config\ncurrent-context: lab\n");
    writeln!(
        text,
        "contexts: [{{name: lab, context: {{cluster: lab, user: lab}}}}]\n\
         clusters: [{{name: lab, cluster: {{server: \"https://{ADDRESS}:6443\", \
         insecure-skip-tls-verify: true}}}}]\n\
         users: [{{name: lab, user: {{token: {TOKEN}}}}}]"
    )?;
    std::fs::write(kubeconfig(folder), text)?;
    // The server refuses to start without a key for tokens of service accounts, which nobody
    // asks for here.
    let key = file("accounts.key");
    os::output(
        os::command("openssl")
            .args(["genrsa", "-out"])
            .arg(key)
            .arg("2048"),
    )?;
    Ok(())
}

/// Who is let in.
fn write_tokens(variant: &Variant) -> Result<()> {
    let mut text = format!("{TOKEN},lab,lab,system:masters\n");
    for (token, group) in &variant.guests {
        writeln!(text, "{token},{token},{token},{group}")?;
    }
    std::fs::write(Path::new(DATA).join("tokens.csv"), text)?;
    Ok(())
}

/// Lets etcd forget everything but the present.
pub fn compact() -> Result<()> {
    let now = ask_etcd("range", &json!({ "key": "AA==" }))?;
    let revision = &now["header"]["revision"];
    let question = json!({ "revision": revision, "physical": true });
    ask_etcd("compaction", &question).map(|_| ())
}

/// A question in JSON to etcd, and its answer.
fn ask_etcd(what: &str, question: &Value) -> Result<Value> {
    let body = question.to_string();
    let mut stream = TcpStream::connect(ETCD_ADDRESS)?;
    write!(
        stream,
        "POST /v3/kv/{what} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let json = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    ensure!(
        answer.starts_with("HTTP/1.1 200"),
        "etcd does not do {what}: {answer}"
    );
    serde_json::from_str(json).with_context(|| format!("etcd said {json}"))
}

/// The certificate the API server made for itself, and who signed it.
pub fn certificate() -> PathBuf {
    Path::new(DATA).join("certs/apiserver.crt")
}

/// A kubeconfig beside the usual one. `cluster` and `user` are the fields of those entries.
pub fn write_kubeconfig(file: &Path, cluster: &Value, user: &Value) -> Result<()> {
    let mut cluster = cluster.clone();
    cluster["server"] = format!("https://{ADDRESS}:6443").into();
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "contexts": [{ "name": "lab", "context": { "cluster": "lab", "user": "lab" } }],
        "clusters": [{ "name": "lab", "cluster": cluster }],
        "users": [{ "name": "lab", "user": user }],
    });
    std::fs::write(file, config.to_string())?;
    Ok(())
}

fn etcd(tools: &Tools) -> Command {
    let mut command = os::command(tools.program("etcd"));
    command.args([
        "--data-dir=/run/lab/etcd",
        "--listen-peer-urls=http://127.0.0.1:2380",
        &format!("--listen-client-urls={ETCD}"),
        &format!("--advertise-client-urls={ETCD}"),
    ]);
    command
}

fn server(tools: &Tools, variant: &Variant) -> Command {
    let authorization = match variant {
        Variant { whole: true, .. } => "Node,RBAC",
        Variant { roles: true, .. } => "RBAC",
        _ => "AlwaysAllow",
    };
    let mut command = os::command(tools.program("kube-apiserver"));
    command.args([
        &format!("--etcd-servers={ETCD}"),
        &format!("--advertise-address={ADDRESS}"),
        &format!("--bind-address={ADDRESS}"),
        "--secure-port=6443",
        &format!("--cert-dir={DATA}/certs"),
        &format!("--token-auth-file={DATA}/tokens.csv"),
        &format!("--authorization-mode={authorization}"),
        &format!("--service-cluster-ip-range={}", plan::SERVICE_CIDRS),
        "--service-account-issuer=https://lab.invalid",
        &format!("--service-account-key-file={DATA}/accounts.key"),
        &format!("--service-account-signing-key-file={DATA}/accounts.key"),
    ]);
    if variant.whole {
        command.args([
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
        ]);
    } else {
        // Stories write Pods without service accounts.
        command.arg("--disable-admission-plugins=ServiceAccount");
    }
    command.args(&variant.flags);
    command
}

fn controllers(tools: &Tools, variant: &Variant, folder: &Path) -> Command {
    let mut command = os::command(tools.program("kube-controller-manager"));
    let kubeconfig = kubeconfig(folder);
    let kubeconfig = kubeconfig.display();
    command.args([
        &format!("--kubeconfig={kubeconfig}"),
        &format!("--authentication-kubeconfig={kubeconfig}"),
        &format!("--authorization-kubeconfig={kubeconfig}"),
        &format!("--cert-dir={DATA}/controllers"),
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    ]);
    if variant.whole {
        let root = certificate();
        command.args([
            &format!("--root-ca-file={}", root.display()),
            &format!("--service-account-private-key-file={DATA}/accounts.key"),
        ]);
    } else {
        command.arg(format!("--controllers={CONTROLLERS}"));
    }
    command
}
