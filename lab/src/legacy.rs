//! The older flavour of iptables, for worlds that use it.
//!
//! Programs look `iptables` up on their search path, so a folder of links in front of it decides
//! which flavour a proxy finds.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// One program does everything; its name says what is wanted.
const PROGRAM: &str = "xtables-legacy-multi";
const NAMES: [&str; 6] = [
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
];

/// A search path that begins with links below `folder`.
pub fn search_path(folder: &Path) -> Result<OsString> {
    let path = std::env::var_os("PATH").context("PATH is not set")?;
    let links = folder.join("iptables-legacy");
    if !links.is_dir() {
        let program = find(&path)?;
        std::fs::create_dir_all(&links)?;
        for name in NAMES {
            symlink(&program, links.join(name))?;
        }
    }
    let folders = std::iter::once(links).chain(std::env::split_paths(&path));
    Ok(std::env::join_paths(folders)?)
}

fn find(path: &OsStr) -> Result<PathBuf> {
    std::env::split_paths(path)
        .map(|folder| folder.join(PROGRAM))
        .find(|file| file.is_file())
        .with_context(|| format!("{PROGRAM} is missing; it comes with iptables"))
}
