//! Makes sure the programs that the other steps run are there.
//!
//! System programs come from Debian packages; what cannot be installed is named together with the
//! command that would. Cargo's own tools are built from source in the versions named here, in CI
//! alone: that takes longer than all tests, and there are ways without them.

use anyhow::{Context, Result, bail};

use crate::run;

/// What a program is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Building, and so everything.
    Build,
    /// Tests: they look at what we wrote with the tools that an operator has.
    Tests,
    /// Looking at the page of the node.
    Page,
    /// Counting instructions.
    Counts,
    /// The lab: a key that its control plane insists on.
    Lab,
    /// A kernel with IPVS: only `cargo xtask uml` needs it, and not every machine can have it.
    Ipvs,
}

/// A program, the Debian package that brings it, and what it is needed for.
const DEBIAN: &[(&str, &str, Need)] = &[
    // Crates with C parts; Rust itself also links with it.
    ("cc", "gcc", Need::Build),
    ("nft", "nftables", Need::Tests),
    ("iptables", "iptables", Need::Tests),
    ("ipset", "ipset", Need::Tests),
    ("ip", "iproute2", Need::Tests),
    ("kill", "procps", Need::Tests),
    ("unshare", "util-linux", Need::Tests),
    ("chromium", "chromium", Need::Page),
    ("valgrind", "valgrind", Need::Counts),
    ("openssl", "openssl", Need::Lab),
    // The kernel, its modules, and what an operator looks at it with.
    ("linux.uml", "user-mode-linux", Need::Ipvs),
    ("modprobe", "kmod", Need::Ipvs),
    ("ipvsadm", "ipvsadm", Need::Ipvs),
];

/// A cargo subcommand, and the oldest version that will do. A newer one counts while only its
/// last number differs: before 1.0 the middle number announces breaking changes.
pub(crate) struct CargoTool {
    name: &'static str,
    version: &'static str,
}

pub(crate) const DENY: CargoTool = CargoTool {
    name: "cargo-deny",
    version: "0.20.2",
};
pub(crate) const NEXTEST: CargoTool = CargoTool {
    name: "cargo-nextest",
    version: "0.9.151",
};

/// Makes sure that `cargo xtask test` can begin. What tests need must be there before anything is
/// built; steps that need more are skipped where that is missing. CI needs everything.
pub(crate) fn ensure() -> Result<()> {
    components()?;
    if run::is_ci() || can_install() {
        ensure_for(&[Need::Tests, Need::Page, Need::Counts, Need::Lab])?;
    } else {
        ensure_for(&[Need::Tests])?;
    }
    if run::is_ci() {
        DENY.ensure()?;
        NEXTEST.ensure()?;
    }
    Ok(())
}

/// Checks and installs what these need.
pub(crate) fn ensure_for(needs: &[Need]) -> Result<()> {
    debian(|_, need| need == Need::Build || needs.contains(&need))
}

/// Checks and installs only these programs.
pub(crate) fn ensure_programs(programs: &[&str]) -> Result<()> {
    debian(|program, _| programs.contains(&program))
}

/// Why something cannot be done, if programs are missing for it.
pub(crate) fn missing(need: Need) -> Option<String> {
    let mut programs = DEBIAN.iter().filter(|(_, _, of)| *of == need);
    let (program, package, _) = programs.find(|(program, ..)| run::find(program).is_none())?;
    Some(format!("`{program}` is missing (Debian package {package})"))
}

impl CargoTool {
    /// Whether a version that will do can be run.
    pub(crate) fn is_installed(&self) -> bool {
        let version = self.installed();
        version.is_some_and(|version| satisfies(&version, self.version))
    }

    /// The command that builds it.
    pub(crate) fn install_command(&self) -> String {
        format!("`cargo install --locked {}@{}`", self.name, self.version)
    }

    fn ensure(&self) -> Result<()> {
        let Self { name, version } = self;
        if let Some(printed) = self.installed()
            && satisfies(&printed, version)
        {
            println!("   {name} {printed}");
            return Ok(());
        }
        println!("   {name} {version} is missing; building it takes a few minutes, once");
        run::cargo(["install", "--locked", &format!("{name}@{version}")])?;
        match self.installed() {
            Some(printed) if satisfies(&printed, version) => Ok(()),
            Some(printed) => bail!(
                "{name} {version} was installed, but `{name}` on PATH is still {printed}: \
                 remove that one, or put cargo's bin folder first"
            ),
            None => bail!("{name} was installed, but is not on PATH: add cargo's bin folder"),
        }
    }

    /// The version on `PATH`, as printed.
    fn installed(&self) -> Option<String> {
        run::find(self.name)?;
        // As `cargo deny`, not `cargo-deny`: that is how the steps will call it.
        let output =
            run::capture("cargo", [self.name.strip_prefix("cargo-")?, "--version"]).ok()?;
        output.stdout.split_whitespace().nth(1).map(str::to_owned)
    }
}

/// Whether `found` can stand in for `wanted`: first numbers equal, last one not smaller.
fn satisfies(found: &str, wanted: &str) -> bool {
    let numbers = |text: &str| -> Option<[u32; 3]> {
        let parts: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
        parts?.try_into().ok()
    };
    match (numbers(found), numbers(wanted)) {
        (Some(found), Some(wanted)) => found[..2] == wanted[..2] && found[2] >= wanted[2],
        _ => false,
    }
}

/// The compiler for Kubernetes' own programs. Debian's is too old to be installed for it.
pub(crate) fn go() -> Result<()> {
    if run::find("go").is_none() {
        bail!(
            "`go` is missing: the lab builds kube-apiserver, kube-controller-manager and \
             kube-proxy with it; lab/go.mod says which version, https://go.dev/doc/install how"
        );
    }
    Ok(())
}

/// rustfmt and clippy: rustup reads rust-toolchain.toml and brings both; other installations
/// may not have them.
fn components() -> Result<()> {
    for (verb, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !run::capture("cargo", [verb, "--version"])?.success {
            bail!("`cargo {verb}` is missing: run `rustup component add {component}`");
        }
    }
    Ok(())
}

/// Whether networks can be made without asking.
pub(crate) fn is_root() -> bool {
    run::capture("id", ["-u"]).is_ok_and(|output| output.stdout.trim() == "0")
}

/// Whether missing packages can be installed without asking.
fn can_install() -> bool {
    is_root() && run::find("apt-get").is_some()
}

fn debian(needed: impl Fn(&str, Need) -> bool) -> Result<()> {
    let missing: Vec<_> = DEBIAN
        .iter()
        .filter(|(program, _, need)| needed(program, *need))
        .filter(|(program, ..)| run::find(program).is_none())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let programs: Vec<_> = missing.iter().map(|(program, ..)| *program).collect();
    let mut packages: Vec<_> = missing.iter().map(|(_, package, _)| *package).collect();
    packages.sort_unstable();
    packages.dedup();

    println!("   missing: {}", programs.join(", "));
    if !can_install() {
        bail!(
            "{} must be installed first, by root; on Debian: sudo apt-get install {}",
            programs.join(", "),
            packages.join(" ")
        );
    }
    let quiet = [("DEBIAN_FRONTEND", "noninteractive")];
    run::program("apt-get", ["update"], &quiet)
        .and_then(|()| {
            run::program(
                "apt-get",
                ["install", "-y"].into_iter().chain(packages),
                &quiet,
            )
        })
        .context("the Debian packages could not be installed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_newer_last_number_can_stand_in() {
        assert!(satisfies("0.20.2", "0.20.2"));
        assert!(satisfies("0.20.11", "0.20.2"));
        for found in ["0.20.1", "0.21.0", "1.20.2", "0.20", "0.20.2-rc.1", ""] {
            assert!(!satisfies(found, "0.20.2"), "{found:?}");
        }
    }
}
