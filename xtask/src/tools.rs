//! Makes sure the programs that the other steps run are there.
//!
//! Cargo's own tools are built from source in the versions named here; system programs come
//! from Debian packages. What cannot be installed is named together with the command that would.

use anyhow::{Context, Result, bail};

use crate::run;

/// A program, and the Debian package that brings it.
const DEBIAN: &[(&str, &str)] = &[
    // Crates with C parts; Rust itself also links with it.
    ("cc", "gcc"),
    // Tests look at what we wrote with the tools an operator has.
    ("nft", "nftables"),
    ("ip", "iproute2"),
    ("kill", "procps"),
    ("unshare", "util-linux"),
    // Counts instructions.
    ("valgrind", "valgrind"),
    // The lab: a key its control plane insists on, what kube-proxy runs.
    ("openssl", "openssl"),
    ("iptables", "iptables"),
    ("ipset", "ipset"),
    // A kernel with IPVS, its modules, and what an operator looks at it with.
    ("linux.uml", "user-mode-linux"),
    ("modprobe", "kmod"),
    ("ipvsadm", "ipvsadm"),
];

/// Only `cargo xtask uml` needs these, and not every machine can have them.
const ONLY_UML: [&str; 3] = ["linux.uml", "modprobe", "ipvsadm"];

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

/// Checks and installs everything that is needed.
pub(crate) fn ensure(cargo_tools: &[CargoTool]) -> Result<()> {
    components()?;
    debian(|program| !ONLY_UML.contains(&program))?;
    cargo_tools.iter().try_for_each(CargoTool::ensure)
}

/// Checks and installs only these programs.
pub(crate) fn ensure_programs(programs: &[&str]) -> Result<()> {
    debian(|program| programs.contains(&program))
}

impl CargoTool {
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

/// Whether packages can be installed and networks made without asking.
pub(crate) fn is_root() -> bool {
    run::capture("id", ["-u"]).is_ok_and(|output| output.stdout.trim() == "0")
}

fn debian(needed: impl Fn(&str) -> bool) -> Result<()> {
    let missing: Vec<_> = DEBIAN
        .iter()
        .filter(|(program, _)| needed(program))
        .filter(|(program, _)| run::find(program).is_none())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let programs: Vec<_> = missing.iter().map(|(program, _)| *program).collect();
    let mut packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();

    println!("   missing: {}", programs.join(", "));
    if !is_root() || run::find("apt-get").is_none() {
        bail!(
            "install {} first; on Debian: sudo apt-get install {}",
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
