//! Files out of Debian packages, without installing them.
//!
//! In: names of packages, and the machine's package sources. Out: a folder with their files, kept
//! beside the built programs.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::{os, tools};

/// What a node runs beside what is built.
const NODE: Set = Set {
    name: "node",
    packages: &["runc", "containernetworking-plugins"],
    with_dependencies: false,
};
/// What tests call in containers.
const CONTAINERS: Set = Set {
    name: "containers",
    packages: &[
        "bash",
        "bind9-dnsutils",
        "conntrack",
        "coreutils",
        "curl",
        "findutils",
        "grep",
        "hostname",
        "iperf",
        "iproute2",
        "iptables",
        "libc-bin",
        "mawk",
        "netcat-openbsd",
        "sed",
        "util-linux",
        "wget",
    ],
    with_dependencies: true,
};

struct Set {
    name: &'static str,
    packages: &'static [&'static str],
    with_dependencies: bool,
}

/// The folder with `runc` and network plugins.
pub fn node() -> Result<PathBuf> {
    NODE.ensure()
}

/// The folder with the files of containers.
pub fn containers() -> Result<PathBuf> {
    CONTAINERS.ensure()
}

impl Set {
    /// Unpacks the packages unless they are there.
    fn ensure(&self) -> Result<PathBuf> {
        let folder = tools::cache()?.join(format!("debian-{}", self.name));
        let root = folder.join("root");
        std::fs::create_dir_all(&folder)?;
        let lock = File::create(folder.join("lock"))?;
        lock.lock()?;
        // The list is written last, and another list is another set.
        let list = folder.join("list");
        let wanted = self.packages.join(" ");
        if std::fs::read_to_string(&list).is_ok_and(|found| found == wanted) {
            return Ok(root);
        }
        for old in [&root, &folder.join("archives")] {
            if old.exists() {
                std::fs::remove_dir_all(old)?;
            }
        }
        std::fs::create_dir_all(&root)?;
        self.fetch(&folder).with_context(|| {
            format!(
                "{wanted}: these Debian packages could not be fetched; this needs apt-get and \
                 up-to-date package lists"
            )
        })?;
        unpack(&folder.join("archives"), &root)?;
        std::fs::remove_dir_all(folder.join("archives"))?;
        std::fs::write(list, wanted)?;
        Ok(root)
    }

    fn fetch(&self, folder: &Path) -> Result<()> {
        let archives = folder.join("archives");
        std::fs::create_dir_all(archives.join("partial"))?;
        let mut apt = os::command("apt-get");
        apt.current_dir(&archives);
        if self.with_dependencies {
            // To a machine on which nothing is installed, so that every dependency is fetched.
            let status = folder.join("status");
            std::fs::write(&status, "")?;
            apt.arg("-o")
                .arg(format!("Dir::State::status={}", status.display()))
                .arg("-o")
                .arg(format!("Dir::Cache::archives={}", archives.display()))
                .args([
                    "-o",
                    "Debug::NoLocking=true",
                    "-o",
                    "APT::Sandbox::User=root",
                ])
                .args([
                    "--no-install-recommends",
                    "--download-only",
                    "-qqy",
                    "install",
                ]);
        } else {
            apt.args(["-o", "APT::Sandbox::User=root", "-qq", "download"]);
        }
        os::output(apt.args(self.packages)).map(drop)
    }
}

fn unpack(archives: &Path, root: &Path) -> Result<()> {
    for entry in std::fs::read_dir(archives)? {
        let package = entry?.path();
        if package.extension().is_some_and(|kind| kind == "deb") {
            let mut dpkg = os::command("dpkg");
            os::output(dpkg.arg("-x").arg(package).arg(root))?;
        }
    }
    Ok(())
}
