//! Proves what is shipped: images as a container runtime runs them, and manifests as an API server
//! takes them.
//!
//! In: the images of `cargo xtask dist`, a runtime, the manifests in `deploy/`. Out: an error that
//! says what is not as it should be. `node` needs no API server: one node per mode, served from
//! files by a container with the rights that `deploy/rendered` lists. `cluster` compares manifests,
//! has an API server check them, and gives the container the service account.

mod bundle;
mod cluster;
mod image;
mod manifests;
mod node;
mod seccomp;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use cluster::{prepare, run as cluster};
pub use node::run as node;

/// Where everything is that is shipped and that runs it.
#[derive(clap::Args, Clone)]
pub struct Options {
    /// The folder with the images of `cargo xtask dist`.
    #[arg(long)]
    images: PathBuf,
    /// The folder into which the packages `runc` and `golang-github-containers-common` were unpacked.
    #[arg(long)]
    runtime: PathBuf,
    /// Writes `deploy/rendered` anew instead of comparing with it.
    #[arg(long)]
    renew: bool,
}

impl Options {
    /// The same as words of a command line.
    pub fn arguments(&self) -> Vec<String> {
        let mut words = vec![
            format!("--images={}", self.images.display()),
            format!("--runtime={}", self.runtime.display()),
        ];
        words.extend(self.renew.then(|| "--renew".to_owned()));
        words
    }
}

/// The folder `deploy/`.
fn deploy() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().context("the lab lies in the repository")?;
    Ok(root.join("deploy"))
}

/// What is expected of a world's network and image in one of the folders of `deploy/`.
struct Case {
    /// The folder, which is the mode.
    mode: &'static str,
    /// The node uses the older flavour of iptables.
    legacy: bool,
    /// The capabilities without which nothing works.
    needed: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        mode: "nftables",
        legacy: false,
        needed: &["NET_ADMIN"],
    },
    Case {
        mode: "iptables",
        legacy: false,
        needed: &["NET_ADMIN"],
    },
    Case {
        mode: "iptables",
        legacy: true,
        needed: &["NET_ADMIN", "NET_RAW"],
    },
    Case {
        mode: "userspace",
        legacy: false,
        needed: &["NET_ADMIN"],
    },
];

/// All folders of `deploy/` that install ferrule.
const MODES: [&str; 4] = ["iptables", "ipvs", "nftables", "userspace"];
