//! Files out of Debian packages, without installing them.
//!
//! In: names of packages. Out: a folder with their files. Their versions are those that the building
//! machine's sources offer.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{remove, run, text};

/// The iptables programs of both flavours with every library they load.
pub(super) const IPTABLES: &[&str] = &[
    "iptables",
    "libc6",
    "libip4tc2",
    "libip6tc2",
    "libmnl0",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libnftnl11",
    "libxtables12",
];

/// What starts a container, and the profile of system calls that others take for their default.
const RUNTIME: &[&str] = &["golang-github-containers-common", "runc"];

/// What no program reads at run time.
const LEFT_OUT: &[&str] = &[
    "usr/share",
    "usr/lib/x86_64-linux-gnu/gconv",
    "etc/ld.so.conf.d",
];

/// Programs that exist in two flavours. ferrule looks which one the node uses and runs that.
const PROGRAMS: &[&str] = &[
    "iptables",
    "iptables-restore",
    "iptables-save",
    "ip6tables",
    "ip6tables-restore",
    "ip6tables-save",
];

/// Unpacks packages into a new folder, for an image that runs iptables.
pub(super) fn unpack(folder: &Path, packages: &[&str]) -> Result<PathBuf> {
    let root = folder.join("root");
    extract(folder, &root, packages)?;
    for unused in LEFT_OUT {
        remove(&root.join(unused))?;
    }
    // Debian makes these links while it installs.
    for program in PROGRAMS {
        let link = root.join("usr/sbin").join(program);
        remove(&link)?;
        std::os::unix::fs::symlink("xtables-nft-multi", &link)
            .with_context(|| (*program).to_owned())?;
    }
    Ok(root)
}

/// Unpacks what runs a container into a new folder.
pub(crate) fn runtime(folder: &Path) -> Result<PathBuf> {
    let root = folder.join("root");
    extract(folder, &root, RUNTIME)?;
    Ok(root)
}

/// The certificates that Mozilla trusts, in one file. Those of the building machine are none of an
/// image's business.
pub(super) fn certificates(folder: &Path) -> Result<Vec<u8>> {
    let root = folder.join("root");
    extract(folder, &root, &["ca-certificates"])?;
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(root.join("usr/share/ca-certificates/mozilla"))? {
        files.push(entry?.path());
    }
    files.sort_unstable();
    ensure!(
        files.len() > 50,
        "the package ca-certificates has only {} certificates",
        files.len()
    );
    let mut bundle = Vec::new();
    for file in files {
        bundle.extend(fs::read(file)?);
    }
    remove(folder)?;
    Ok(bundle)
}

fn extract(folder: &Path, root: &Path, packages: &[&str]) -> Result<()> {
    remove(folder)?;
    fs::create_dir_all(root)?;
    let command = format!(
        "cd '{}' && apt-get download -qq {} && for package in *.deb; do dpkg -x \"$package\" '{}'; done",
        text(folder)?,
        packages.join(" "),
        text(root)?
    );
    run::program("sh", ["-ec", &command], &[]).context(
        "Debian packages could not be fetched; this needs apt-get and up-to-date package lists",
    )
}
