//! The programs the lab runs: Kubernetes' own, built once from source, and ferrule.
//!
//! `lab/go.mod` names the version. What was built lies in the user's cache folder, one folder per
//! version, so that every checkout on a machine shares it.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::os;

/// Something to build, in the version its module file names.
struct Edition {
    programs: &'static [&'static str],
    /// The module with the version.
    of: &'static str,
    module: &'static str,
    folder: &'static str,
}

/// The reference: what stories run with.
const PINNED: Edition = Edition {
    // etcd of a distribution may be too old for the API server to stream lists.
    programs: &[
        "kube-apiserver",
        "kube-controller-manager",
        "kube-proxy",
        "etcd",
    ],
    of: "k8s.io/kubernetes",
    module: include_str!("../go.mod"),
    folder: env!("CARGO_MANIFEST_DIR"),
};
/// The newest opponent in a race.
const NEWEST: Edition = Edition {
    programs: &["kube-proxy"],
    of: "k8s.io/kubernetes",
    module: include_str!("../newest/go.mod"),
    folder: concat!(env!("CARGO_MANIFEST_DIR"), "/newest"),
};
/// What installs manifests.
const KUBECTL: Edition = Edition {
    programs: &["kubectl"],
    ..PINNED
};
const HELM: Edition = Edition {
    programs: &["helm"],
    of: "helm.sh/helm/v3",
    module: include_str!("../helm/go.mod"),
    folder: concat!(env!("CARGO_MANIFEST_DIR"), "/helm"),
};

/// Where programs are.
#[derive(Clone, Debug)]
pub struct Tools {
    kubernetes: PathBuf,
    ferrule: PathBuf,
}

impl Tools {
    /// Finds the programs; builds those of Kubernetes when they are missing.
    ///
    /// `ferrule` is the program to test, by default the one beside this program.
    pub fn ensure(ferrule: Option<PathBuf>) -> Result<Self> {
        let kubernetes = build()?;
        let ferrule = match ferrule {
            Some(path) => path,
            None => std::env::current_exe()?.with_file_name("ferrule"),
        };
        Ok(Self {
            kubernetes,
            ferrule,
        })
    }

    /// One of Kubernetes' programs, or `ferrule`.
    pub fn program(&self, name: &str) -> PathBuf {
        match name {
            "ferrule" => self.ferrule.clone(),
            _ => self.kubernetes.join(name),
        }
    }

    /// Fails when ferrule was not built.
    pub fn require_ferrule(&self) -> Result<()> {
        ensure!(
            self.ferrule.is_file(),
            "{} is missing: `cargo build -p ferrule` makes it, `--ferrule` names another",
            self.ferrule.display()
        );
        Ok(())
    }
}

/// The version of Kubernetes that stories run with.
pub fn version() -> &'static str {
    PINNED.version()
}

/// The version of the newest kube-proxy.
pub fn newest_version() -> &'static str {
    NEWEST.version()
}

/// Builds Kubernetes' programs unless they are there, and returns their folder.
pub fn build() -> Result<PathBuf> {
    PINNED.build()
}

/// The newest kube-proxy, built unless it is there.
pub fn newest() -> Result<PathBuf> {
    Ok(NEWEST.build()?.join("kube-proxy"))
}

/// `kubectl` and `helm`, built unless they are there.
pub fn installers() -> Result<(PathBuf, PathBuf)> {
    Ok((KUBECTL.build()?.join("kubectl"), HELM.build()?.join("helm")))
}

impl Edition {
    fn version(&self) -> &'static str {
        let line = self.module.lines().find_map(|line| {
            line.trim()
                .trim_start_matches("require ")
                .strip_prefix(self.of)?
                .strip_prefix(' ')
        });
        let version = line.and_then(|rest| rest.split_whitespace().next());
        version.expect("the module file requires what it is for")
    }

    fn build(&self) -> Result<PathBuf> {
        let folder = cache()?.join(self.folder_name());
        let complete = || self.programs.iter().all(|name| folder.join(name).is_file());
        if complete() {
            return Ok(folder);
        }
        std::fs::create_dir_all(&folder)?;
        // Two checkouts may come here at once; the second then finds the work done.
        let lock = File::create(folder.join("lock"))?;
        lock.lock()?;
        if !complete() {
            self.compile(&folder)?;
        }
        Ok(folder)
    }

    /// Versions of Kubernetes stand for themselves.
    fn folder_name(&self) -> String {
        match self.of.strip_prefix("k8s.io/") {
            Some(_) => self.version().to_owned(),
            None => format!("{}-{}", self.programs[0], self.version()),
        }
    }

    fn compile(&self, folder: &Path) -> Result<()> {
        let unfinished = folder.join("unfinished");
        std::fs::create_dir_all(&unfinished)?;
        let programs = self.programs.iter().copied();
        let missing: Vec<_> = programs
            .filter(|name| !folder.join(name).is_file())
            .collect();
        let version = self.version();
        let stamp = |module: &str| format!("-X k8s.io/{module}/version.gitVersion={version}");
        let flags = format!(
            "-ldflags=-s -w {} {}",
            stamp("component-base"),
            stamp("client-go/pkg")
        );
        let package = |name: &&str| match *name {
            "etcd" => "go.etcd.io/etcd/server/v3".to_owned(),
            "helm" => format!("{}/cmd/helm", self.of),
            name => format!("k8s.io/kubernetes/cmd/{name}"),
        };
        // One call for all: they share most packages.
        let mut go = os::command("nice");
        go.args(["go", "build", "-trimpath", "-buildvcs=false", &flags, "-o"])
            .arg(&unfinished)
            .args(missing.iter().map(package))
            .current_dir(self.folder)
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-mod=readonly");
        let status = go.status().context("`nice go` cannot be started")?;
        if !status.success() {
            bail!("{missing:?} {version} were not built: `go build` ended with {status}");
        }
        for name in missing {
            let built = match name {
                "etcd" => "server",
                name => name,
            };
            std::fs::rename(unfinished.join(built), folder.join(name))?;
        }
        std::fs::remove_dir(unfinished)?;
        Ok(())
    }
}

fn cache() -> Result<PathBuf> {
    let named = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty());
    let base = match named {
        Some(path) => PathBuf::from(path),
        None => Path::new(&std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(base.join("ferrule-lab"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_one_in_the_module_file() {
        assert!(version().starts_with("v1."), "{}", version());
        assert!(newest_version().starts_with("v1."), "{}", newest_version());
        assert!(HELM.version().starts_with("v3."), "{}", HELM.version());
        assert_eq!(KUBECTL.folder_name(), version());
    }
}
