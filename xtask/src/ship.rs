//! `cargo xtask image-check` and `deploy-check`: what is shipped, tried out in the lab.
//!
//! In: the images in `target/packages` and the manifests in `deploy/`. The lab does the work
//! (`lab/src/ship`); here everything it needs is made ready.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::dist::debian;
use crate::{run, tools};

/// Runs the images, mode by mode.
pub(crate) fn images() -> Result<()> {
    hand_over("image", &[])
}

/// Compares the manifests and installs them.
pub(crate) fn manifests(renew: bool) -> Result<()> {
    tools::ensure_for(&[tools::Need::Lab])?;
    tools::go()?;
    hand_over("deploy", if renew { &["--renew"] } else { &[] })
}

fn hand_over(verb: &str, more: &[&str]) -> Result<()> {
    tools::ensure_for(&[tools::Need::Tests])?;
    let target = run::root().join("target");
    let images = target.join("packages");
    ensure!(
        images.join("ferrule-iptables-image.tar").is_file(),
        "there are no images in {}: `cargo xtask dist` makes them",
        images.display()
    );
    let runtime = debian::runtime(&target.join("runtime"))?;
    run::cargo(["build", "--locked", "-p", "ferrule", "-p", "ferrule-lab"])?;
    let program = std::env::current_exe()?.with_file_name("ferrule-lab");
    let (program, images) = (text(&program)?, flag("images", &images)?);
    let runtime = flag("runtime", &runtime)?;
    let words = [verb, &images, &runtime];
    run::program(program, words.into_iter().chain(more.iter().copied()), &[])
}

fn flag(name: &str, path: &Path) -> Result<String> {
    Ok(format!("--{name}={}", text(path)?))
}

fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .context("the path of the repository is not text")
}
