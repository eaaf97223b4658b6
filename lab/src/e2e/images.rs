//! Images for the pods of the suite, as one archive.
//!
//! The suite asks for images by name. All of them here are the same files, which are programs of
//! Debian and Kubernetes' own test programs, and differ in the program that starts. The archive is in
//! the form that `docker save` writes, because it can hold many names.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::packages;
use crate::{os, tools};

/// An image: its name, and what starts in it.
struct Image {
    name: &'static str,
    entrypoint: &'static [&'static str],
    command: &'static [&'static str],
}

const fn image(
    name: &'static str,
    entrypoint: &'static [&'static str],
    command: &'static [&'static str],
) -> Image {
    Image {
        name,
        entrypoint,
        command,
    }
}

/// The image that holds a pod's namespaces.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10.2";
pub const COREDNS: &str = "registry.k8s.io/coredns/coredns:v1.14.7";

/// Every image that the tests of sig-network ask for, in the versions they ask for.
const IMAGES: &[Image] = &[
    image(PAUSE, &["/bin/sleep", "infinity"], &[]),
    image(COREDNS, &["/coredns"], &[]),
    image(
        "registry.k8s.io/e2e-test-images/agnhost:2.63.0",
        &["/agnhost"],
        &["pause"],
    ),
    image(
        "registry.k8s.io/e2e-test-images/busybox:1.37.0-1",
        &[],
        &["/bin/sh"],
    ),
    image(
        "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0",
        &[],
        &["/bin/sh"],
    ),
    // Only the addresses of its pods matter in these tests.
    image(
        "registry.k8s.io/e2e-test-images/nginx:1.15-4",
        &["/bin/sleep", "infinity"],
        &[],
    ),
    image(
        "registry.k8s.io/e2e-test-images/regression-issue-74839:1.4",
        &["/regression-issue-74839"],
        &[],
    ),
    image(
        "registry.k8s.io/build-image/distroless-iptables:v0.9.6",
        &[],
        &["/bin/sh"],
    ),
];

/// What no test reads.
const LEFT_OUT: [&str; 4] = ["usr/share", "usr/lib/x86_64-linux-gnu/gconv", "boot", "var"];

/// The archive in the folder of a run.
pub const ARCHIVE: &str = "images.tar";

/// Writes the archive into a folder.
pub fn build(cluster: &tools::Cluster, folder: &Path) -> Result<()> {
    let files = folder.join("image");
    gather(cluster, &files)?;
    let layer = folder.join("layer.tar");
    tar(&layer, &files, &["."])?;
    std::fs::remove_dir_all(&files)?;
    let sum = sha256(&layer)?;
    let mut manifest = Vec::new();
    let mut names = vec!["manifest.json".to_owned(), "layer.tar".to_owned()];
    for (number, image) in IMAGES.iter().enumerate() {
        let name = format!("config{number}.json");
        std::fs::write(folder.join(&name), image.config(&sum).to_string())?;
        manifest.push(json!({ "Config": name, "RepoTags": [image.name], "Layers": ["layer.tar"] }));
        names.push(name);
    }
    std::fs::write(
        folder.join("manifest.json"),
        Value::from(manifest).to_string(),
    )?;
    let words: Vec<_> = names.iter().map(String::as_str).collect();
    tar(&folder.join(ARCHIVE), folder, &words)?;
    for name in names {
        std::fs::remove_file(folder.join(name))?;
    }
    Ok(())
}

impl Image {
    fn config(&self, layer: &str) -> Value {
        json!({
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint,
                "Cmd": self.command,
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            },
            // Without it images of one layer and one program would be one image.
            "history": [{ "comment": self.name }],
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
        })
    }
}

/// The files of all images.
fn gather(cluster: &tools::Cluster, files: &Path) -> Result<()> {
    std::fs::create_dir_all(files)?;
    let from = packages::containers()?.join(".");
    let mut copy = os::command("cp");
    os::output(copy.arg("-a").arg(from).arg(files))?;
    for unused in LEFT_OUT {
        let path = files.join(unused);
        if path.exists() {
            std::fs::remove_dir_all(path)?;
        }
    }
    // What the test program shows where it speaks TLS; nobody checks it.
    let mut openssl = os::command("openssl");
    openssl
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-batch", "-days", "3650",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-keyout",
            "localhost.key",
            "-out",
            "localhost.crt",
        ])
        .current_dir(files);
    os::output(&mut openssl)?;
    for name in ["agnhost", "regression-issue-74839"] {
        std::fs::copy(cluster.kubernetes.join(name), files.join(name))?;
    }
    std::fs::copy(&cluster.coredns, files.join("coredns"))?;
    // Debian makes these links while it installs.
    for (to, link) in [
        ("agnhost", "agnhost-2"),
        ("bash", "bin/sh"),
        ("nc.openbsd", "bin/nc"),
        ("which.debianutils", "usr/bin/which"),
        ("mawk", "usr/bin/awk"),
        ("xtables-nft-multi", "usr/sbin/iptables"),
        ("xtables-nft-multi", "usr/sbin/iptables-save"),
        ("xtables-nft-multi", "usr/sbin/ip6tables"),
        ("xtables-nft-multi", "usr/sbin/ip6tables-save"),
    ] {
        let link = files.join(link);
        if std::fs::symlink_metadata(&link).is_err() {
            symlink(to, &link).with_context(|| link.display().to_string())?;
        }
    }
    for folder in ["tmp", "uploads", "var/log", "run", "etc"] {
        std::fs::create_dir_all(files.join(folder))?;
    }
    std::fs::set_permissions(files.join("tmp"), Permissions::from_mode(0o1777))?;
    // One attempt per call: tests count them.
    std::fs::write(files.join("etc/wgetrc"), "tries = 1\n")?;
    std::fs::write(files.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    std::fs::write(files.join("etc/group"), "root:x:0:\n")?;
    // Where names come from; glibc's own default asks no name server.
    std::fs::write(files.join("etc/nsswitch.conf"), "hosts: files dns\n")?;
    Ok(())
}

fn tar(to: &Path, folder: &Path, what: &[&str]) -> Result<()> {
    let mut tar = os::command("tar");
    tar.args(["--owner=0", "--group=0", "--numeric-owner", "-C"])
        .arg(folder)
        .arg("-cf")
        .arg(to)
        .args(what);
    os::output(&mut tar).map(drop)
}

fn sha256(file: &Path) -> Result<String> {
    let output = os::output(os::command("sha256sum").arg(file))?;
    let sum = output.split_whitespace().next();
    Ok(sum.context("sha256sum prints a sum")?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn images_of_the_same_files_are_different_images() {
        let configs: BTreeSet<_> = IMAGES
            .iter()
            .map(|image| image.config("x").to_string())
            .collect();
        assert_eq!(configs.len(), IMAGES.len());
    }
}
