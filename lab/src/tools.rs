//! The programs the lab runs: Kubernetes' own, built once from source, and ferrule.
//!
//! `lab/go.mod` names the version. What was built lies in the user's cache folder, one folder per
//! version, so that every checkout on a machine shares it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::os;

/// A program, and the package it is built from.
type Program = (&'static str, &'static str);

/// Something to build, in the version its module file names.
struct Edition {
    programs: &'static [Program],
    /// A program made of the tests in a package.
    tests: Option<Program>,
    /// What the build leaves out or takes in, in Go's words.
    tags: &'static str,
    /// The module with the version.
    of: &'static str,
    module: &'static str,
    folder: &'static str,
}

/// The reference: what stories run with.
const PINNED: Edition = Edition {
    // etcd of a distribution may be too old for the API server to stream lists.
    programs: &[
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        (
            "kube-controller-manager",
            "k8s.io/kubernetes/cmd/kube-controller-manager",
        ),
        ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
        ("etcd", "go.etcd.io/etcd/server/v3"),
    ],
    tests: None,
    tags: "",
    of: "k8s.io/kubernetes",
    module: include_str!("../go.mod"),
    folder: env!("CARGO_MANIFEST_DIR"),
};
/// The newest opponent in a race.
const NEWEST: Edition = Edition {
    programs: &[("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy")],
    module: include_str!("../newest/go.mod"),
    folder: concat!(env!("CARGO_MANIFEST_DIR"), "/newest"),
    ..PINNED
};
/// What installs manifests.
const KUBECTL: Edition = Edition {
    programs: &[("kubectl", "k8s.io/kubernetes/cmd/kubectl")],
    ..PINNED
};
const HELM: Edition = Edition {
    programs: &[("helm", "helm.sh/helm/v3/cmd/helm")],
    of: "helm.sh/helm/v3",
    module: include_str!("../helm/go.mod"),
    folder: concat!(env!("CARGO_MANIFEST_DIR"), "/helm"),
    ..PINNED
};
/// What makes a cluster of the lab one that runs pods, and upstream's tests of it.
const WHOLE: Edition = Edition {
    programs: &[
        ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
        ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        ("agnhost", "k8s.io/kubernetes/test/images/agnhost"),
        (
            "regression-issue-74839",
            "k8s.io/kubernetes/test/images/regression-issue-74839",
        ),
        ("ginkgo", "github.com/onsi/ginkgo/v2/ginkgo"),
    ],
    tests: Some(("e2e.test", "./suite")),
    module: include_str!("../e2e/go.mod"),
    folder: concat!(env!("CARGO_MANIFEST_DIR"), "/e2e"),
    ..PINNED
};
const CONTAINERD: Edition = Edition {
    programs: &[
        (
            "containerd",
            "github.com/containerd/containerd/v2/cmd/containerd",
        ),
        (
            "containerd-shim-runc-v2",
            "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
        ),
        ("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
    ],
    tags: "no_btrfs,no_devmapper,no_zfs,no_aufs",
    of: "github.com/containerd/containerd/v2",
    module: include_str!("../e2e/containerd/go.mod"),
    folder: concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/containerd"),
    ..PINNED
};
const COREDNS: Edition = Edition {
    programs: &[("coredns", "ferrule/lab/e2e/coredns")],
    of: "github.com/coredns/coredns",
    module: include_str!("../e2e/coredns/go.mod"),
    folder: concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/coredns"),
    ..PINNED
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

/// Where the programs are that only a cluster with pods needs.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// `kubectl` and all of [`WHOLE`].
    pub kubernetes: PathBuf,
    pub containerd: PathBuf,
    pub coredns: PathBuf,
}

/// What a cluster with pods needs, built unless it is there.
pub fn cluster() -> Result<Cluster> {
    KUBECTL.build()?;
    Ok(Cluster {
        kubernetes: WHOLE.build()?,
        containerd: CONTAINERD.build()?,
        coredns: COREDNS.build()?.join("coredns"),
    })
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
        let complete = || self.missing(&folder).is_empty();
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

    /// What is not in the folder, programs made of tests included.
    fn missing(&self, folder: &Path) -> Vec<Program> {
        let all = self.programs.iter().chain(&self.tests).copied();
        all.filter(|(name, _)| !folder.join(name).is_file())
            .collect()
    }

    /// Versions of Kubernetes stand for themselves.
    fn folder_name(&self) -> String {
        match self.of.strip_prefix("k8s.io/") {
            Some(_) => self.version().to_owned(),
            None => format!("{}-{}", self.programs[0].0, self.version()),
        }
    }

    fn compile(&self, folder: &Path) -> Result<()> {
        let unfinished = folder.join("unfinished");
        std::fs::create_dir_all(&unfinished)?;
        let (tests, programs): (Vec<_>, Vec<_>) = self
            .missing(folder)
            .into_iter()
            .partition(|program| self.tests == Some(*program));
        if !programs.is_empty() {
            // One call for all: they share most packages.
            let mut go = self.go("build");
            go.arg("-o").arg(&unfinished);
            go.args(programs.iter().map(|(_, package)| package));
            self.finish(&mut go, &programs)?;
        }
        for (name, package) in programs {
            std::fs::rename(unfinished.join(last(package)), folder.join(name))?;
        }
        for (name, package) in tests {
            let mut go = self.go("test");
            go.args(["-c", "-vet=off", "-o"]).arg(unfinished.join(name));
            self.finish(go.arg(package), &[(name, package)])?;
            std::fs::rename(unfinished.join(name), folder.join(name))?;
        }
        std::fs::remove_dir(unfinished)?;
        Ok(())
    }

    /// A verb of Go with everything but what it is for.
    fn go(&self, verb: &str) -> Command {
        let version = self.version();
        let numbers: Vec<_> = version.trim_start_matches('v').split('.').collect();
        let stamp = |module: &str| {
            let variable = |name: &str, value: &str| format!("-X k8s.io/{module}.{name}={value}");
            [
                variable("gitVersion", version),
                variable("gitMajor", numbers[0]),
                variable("gitMinor", numbers[1]),
            ]
            .join(" ")
        };
        let flags = format!(
            "-ldflags=-s -w {} {}",
            stamp("component-base/version"),
            stamp("client-go/pkg/version")
        );
        let mut go = os::command("nice");
        go.args(["go", verb, "-trimpath", "-buildvcs=false", &flags])
            .arg(format!("-tags={}", self.tags))
            .current_dir(self.folder)
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-mod=readonly");
        go
    }

    fn finish(&self, go: &mut Command, what: &[Program]) -> Result<()> {
        let status = go.status().context("`nice go` cannot be started")?;
        if !status.success() {
            let names: Vec<_> = what.iter().map(|(name, _)| name).collect();
            let version = self.version();
            bail!("{names:?} {version} were not built: `go` ended with {status}");
        }
        Ok(())
    }
}

/// The name that Go gives to a program of this package: the last word that is not a version.
fn last(package: &str) -> &str {
    let is_version = |word: &str| {
        let number = word.strip_prefix('v');
        number.is_some_and(|number| number.parse::<u8>().is_ok())
    };
    let mut words = package.rsplit('/');
    words.find(|word| !is_version(word)).unwrap_or(package)
}

/// Where what was built and fetched is kept for all checkouts.
pub fn cache() -> Result<PathBuf> {
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
        assert_eq!(last("go.etcd.io/etcd/server/v3"), "server");
        assert!(HELM.version().starts_with("v3."), "{}", HELM.version());
        assert_eq!(KUBECTL.folder_name(), version());
        // Their programs lie in one folder.
        assert_eq!(WHOLE.folder_name(), version());
        assert!(CONTAINERD.version().starts_with("v2."));
        assert!(COREDNS.folder_name().starts_with("coredns-v1."));
    }
}
