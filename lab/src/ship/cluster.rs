//! The manifests in `deploy/`, and a cluster that takes them.
//!
//! In: kustomize's folders, the chart, an API server with roles. Out: nothing when both ways of
//! installing say the same in every mode, the API server finds nothing to object to, a container with
//! the service account and the listed rights serves a node, and with one permission fewer the program
//! names what is missing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::bundle::{Runtime, Surroundings};
use super::image::Image;
use super::manifests::Manifests;
use super::node::{self, Images, Node};
use super::{CASES, MODES, Options, deploy};
use crate::control::{self, Control, Variant};
use crate::tools::Tools;
use crate::{lab, os, tools};

/// Failed watches are tried again after up to half a minute.
const TIMEOUT: Duration = Duration::from_secs(75);
/// Where the kubelet puts what a service account needs.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// What the API server says to those who may not do something.
const REFUSED: &str = "is forbidden: User";
const HOST: &str = "172.31.0.1";

/// Builds what installs manifests, while there is a network, and compares what it makes of them.
pub fn prepare(options: &Options, folder: &Path) -> Result<()> {
    let (kubectl, helm) = tools::installers()?;
    for mode in MODES {
        let kustomize = os::output(
            os::command(&kubectl)
                .arg("kustomize")
                .arg(deploy()?.join(mode)),
        )?;
        let file = rendered(mode)?;
        let text = format!("{}{kustomize}", header(mode));
        if options.renew {
            std::fs::write(&file, &text)?;
        }
        let committed =
            std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        ensure!(
            committed == text,
            "{} is not what kustomize makes of deploy/{mode}; `cargo xtask deploy-check --renew` \
             writes it",
            file.display()
        );
        let ours = Manifests::read(&kustomize)?.normalized()?;
        let chart = Manifests::read(&template(&helm, mode, &ours, folder)?)?.normalized()?;
        let lines = ours.differences(&chart);
        ensure!(
            lines.is_empty(),
            "mode {mode}: kustomize and the chart differ:\n{lines}"
        );
        println!("ok  mode {mode}: kustomize and Helm install the same");
    }
    Ok(())
}

fn rendered(mode: &str) -> Result<PathBuf> {
    Ok(deploy()?.join(format!("rendered/{mode}.yaml")))
}

fn header(mode: &str) -> String {
    format!(
        "# What `kubectl kustomize deploy/{mode}` prints. Write the address of the API server before \
         you apply\n# it; `cargo xtask deploy-check --renew` writes this file.\n"
    )
}

/// What Helm makes of the chart with the values that the other way has.
fn template(helm: &Path, mode: &str, ours: &Manifests, folder: &Path) -> Result<String> {
    let address = &ours.find("ConfigMap", "ferrule-apiserver")?["data"];
    let word = |name: &str| address[name].as_str().unwrap_or_default().to_owned();
    let mut command = os::command(helm);
    command
        .args(["template", "ferrule", "--namespace=kube-system"])
        .arg(deploy()?.join("chart"))
        .arg(format!("--kube-version={}", tools::version()))
        .arg(format!("--set=mode={mode}"))
        .arg(format!(
            "--set=apiServer.host={}",
            word("KUBERNETES_SERVICE_HOST")
        ))
        .arg(format!(
            "--set=apiServer.port={}",
            word("KUBERNETES_SERVICE_PORT")
        ))
        // It looks for settings and caches of its own.
        .env("HOME", folder);
    os::output(&mut command)
}

/// Raises a cluster and puts ferrule into it.
pub fn run(options: &Options, folder: &Path) -> Result<()> {
    let tools = Tools::ensure(None)?;
    let (kubectl, _) = tools::installers()?;
    let runtime = lab::runtime()?;
    control::lay_network()?;
    let case = &CASES[0];
    let node = Node::build(case, 0, folder, &runtime)?;
    let mut control = Control::start(&tools, folder, &runtime)?;
    control.become_variant(Variant {
        roles: true,
        // A list by way of a watch needs no right to list.
        flags: vec![
            "--feature-gates=WatchList=false".to_owned(),
            // As kubeadm has it: the init container sets sysctls.
            "--allow-privileged=true".to_owned(),
        ],
        ..Variant::default()
    })?;
    let kubectl = Kubectl {
        program: kubectl,
        folder: folder.to_owned(),
    };
    for mode in MODES {
        let file = rendered(mode)?.display().to_string();
        kubectl.run(&["apply", "--server-side", "--dry-run=server", "-f", &file])?;
        println!("ok  mode {mode}: the API server takes the manifests");
    }

    let file = rendered(case.mode)?;
    kubectl.run(&["apply", "--server-side", "-f", &file.display().to_string()])?;
    for object in node::service()? {
        control.api.apply(&object)?;
    }
    let manifests = Manifests::read(&std::fs::read_to_string(file)?)?;
    let images = Images::unpack(options, folder)?;
    let mut trial = Trial {
        containers: Runtime::open(&options.runtime, folder)?,
        image: images.of(&manifests)?,
        around: surroundings(&node, &manifests, &kubectl, folder)?,
        manifests: &manifests,
        node: &node,
        kubectl: &kubectl,
    };
    trial.serve()?;
    trial.without_each_permission(&mut control)
}

/// What the kubelet would add, the account's token included.
fn surroundings(
    node: &Node,
    manifests: &Manifests,
    kubectl: &Kubectl,
    folder: &Path,
) -> Result<Surroundings> {
    let mut around = node.surroundings(manifests)?;
    // The manifests have an example of an address.
    around
        .variables
        .insert("KUBERNETES_SERVICE_HOST".to_owned(), HOST.to_owned());
    let account = folder.join("account");
    std::fs::create_dir_all(&account)?;
    let token = kubectl.run(&["-n", "kube-system", "create", "token", "ferrule"])?;
    std::fs::write(account.join("token"), token.trim())?;
    std::fs::write(account.join("namespace"), "kube-system")?;
    std::fs::copy(control::certificate(), account.join("ca.crt"))?;
    around.mounts.push((account, ACCOUNT));
    Ok(around)
}

struct Kubectl {
    program: PathBuf,
    folder: PathBuf,
}

impl Kubectl {
    fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut command = os::command(&self.program);
        command
            .arg(format!(
                "--kubeconfig={}",
                control::kubeconfig(&self.folder).display()
            ))
            .args(arguments)
            .env("HOME", &self.folder);
        os::output(&mut command)
    }
}

/// A container in the cluster, again and again.
struct Trial<'a> {
    containers: Runtime,
    image: &'a Image,
    around: Surroundings,
    manifests: &'a Manifests,
    node: &'a Node,
    kubectl: &'a Kubectl,
}

/// A permission in a role: group, resource, verb.
struct Permission {
    group: String,
    resource: String,
    verb: String,
}

impl Trial<'_> {
    fn serve(&mut self) -> Result<()> {
        let pod = self.manifests.pod()?;
        let (init, main) = (&pod["initContainers"][0], &pod["containers"][0]);
        self.node
            .init(&mut self.containers, self.image, init, &self.around)?;
        let mut proxy =
            self.containers
                .start(self.image, main, &self.around, self.node.place()?)?;
        self.node.until_served(&mut proxy, &["a1", "b1"])?;
        let started = os::poll(TIMEOUT, || {
            let events = self
                .kubectl
                .run(&["get", "events", "-A", "-o", "name"])
                .ok()?;
            events.contains("node1").then_some(())
        });
        ensure!(
            started.is_some(),
            "no event on the Node: {}",
            proxy.process.log_end()
        );
        let refused: Vec<_> = proxy
            .log()
            .lines()
            .filter(|line| line.contains(REFUSED))
            .map(str::to_owned)
            .collect();
        ensure!(refused.is_empty(), "a permission is missing: {refused:#?}");
        proxy.process.stop()?;
        println!("ok  a container with the service account serves a node");
        Ok(())
    }

    /// Takes one permission away at a time and waits until the program says which.
    fn without_each_permission(&mut self, control: &mut Control) -> Result<()> {
        let role = self.manifests.find("ClusterRole", "ferrule")?.clone();
        for permission in permissions(&role)? {
            let Permission {
                group,
                resource,
                verb,
            } = &permission;
            if resource == "endpoints" {
                // Only read where the API server has no EndpointSlices.
                continue;
            }
            control.api.apply(&without(&role, &permission))?;
            self.until_refused(&permission)?;
            self.until_named(&permission)?;
            println!("   without {verb} on {resource} in API group {group:?} it says so");
        }
        control.api.apply(&role)
    }

    /// The API server learns of roles by watching them too.
    fn until_refused(&self, permission: &Permission) -> Result<()> {
        let Permission {
            group,
            resource,
            verb,
        } = permission;
        let what = format!("{resource}.{group}");
        let user = "--as=system:serviceaccount:kube-system:ferrule";
        let ask = ["auth", "can-i", verb, what.trim_end_matches('.'), user];
        // It ends with 1 where the answer is no.
        let refused = || self.kubectl.run(&ask).is_err().then_some(());
        os::poll(TIMEOUT, refused).with_context(|| format!("{verb} on {what} is still allowed"))
    }

    fn until_named(&mut self, permission: &Permission) -> Result<()> {
        let main = &self.manifests.pod()?["containers"][0];
        let Permission { resource, verb, .. } = permission;
        let mut proxy =
            self.containers
                .start(self.image, main, &self.around, self.node.place()?)?;
        let missing = format!("cannot {verb} resource");
        let named = os::poll(TIMEOUT, || {
            if proxy.process.ended().is_some() {
                return Some(false);
            }
            let log = proxy.log();
            let says = |line: &str| {
                line.contains(REFUSED) && line.contains(&missing) && line.contains(resource)
            };
            log.lines().any(says).then_some(true)
        });
        if named != Some(true) {
            bail!(
                "{verb} on {resource} is missing and not named: {}",
                proxy.process.log_end()
            );
        }
        proxy.process.stop()?;
        Ok(())
    }
}

fn permissions(role: &Value) -> Result<Vec<Permission>> {
    let words = |rule: &Value, name: &str| -> Vec<String> {
        let words = rule[name].as_array().into_iter().flatten();
        words
            .filter_map(|word| Some(word.as_str()?.to_owned()))
            .collect()
    };
    let mut permissions = Vec::new();
    for rule in role["rules"].as_array().context("a role without rules")? {
        let group = words(rule, "apiGroups").join(",");
        for resource in words(rule, "resources") {
            for verb in words(rule, "verbs") {
                permissions.push(Permission {
                    group: group.clone(),
                    resource: resource.clone(),
                    verb,
                });
            }
        }
    }
    Ok(permissions)
}

/// The role with a rule per permission, and without this one.
fn without(role: &Value, left_out: &Permission) -> Value {
    let mut role = role.clone();
    let all = permissions(&role).unwrap_or_default().into_iter();
    let kept = all.filter(|one| {
        (&one.group, &one.resource, &one.verb)
            != (&left_out.group, &left_out.resource, &left_out.verb)
    });
    let grant = |one: Permission| json!({ "apiGroups": [one.group], "resources": [one.resource], "verbs": [one.verb] });
    role["rules"] = kept.map(grant).collect();
    role
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_loses_exactly_one_permission() {
        let role = json!({ "rules": [
            { "apiGroups": [""], "resources": ["services", "nodes"], "verbs": ["list", "watch"] },
        ] });
        let all = permissions(&role).unwrap();
        assert_eq!(all.len(), 4);
        let left = permissions(&without(&role, &all[1])).unwrap();
        assert_eq!(left.len(), 3);
        assert!(
            !left
                .iter()
                .any(|one| one.resource == "services" && one.verb == "watch")
        );
    }
}
