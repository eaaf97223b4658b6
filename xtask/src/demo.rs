//! `cargo xtask demo`: a node, pods and a rollout to watch, without root and without a cluster.
//!
//! Builds what is shown and starts it in namespaces of its own; what happens there is in `demo/`.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{run, tools};

/// Namespaces for everything that the demo changes; it is ended with them.
const NAMESPACES: [&str; 5] = ["--net", "--mount", "--pid", "--fork", "--kill-child"];
/// In which one is root without being it. Root goes there too, so that nothing of the machine is
/// within reach.
const ROOT: [&str; 2] = ["--user", "--map-root-user"];

pub(crate) fn run(keep: bool) -> Result<()> {
    tools::ensure_programs(&["cc", "ip", "unshare"])?;
    let namespaces = namespaces()?;
    let build = ["build", "--locked", "-p", "ferrule", "-p", "ferrule-demo"];
    run::cargo(build)?;
    let own = std::env::current_exe()?;
    let folder = own.parent().context("xtask lies in a folder")?;
    let program = |name: &str| path(&folder.join(name));
    let (demo, ferrule) = (program("ferrule-demo")?, program("ferrule")?);
    let show = [
        "--",
        &demo,
        "show",
        "--manifests",
        "examples/demo",
        "--ferrule",
        &ferrule,
    ];
    let words = namespaces.into_iter().chain(show);
    run::program("unshare", words.chain(keep.then_some("--keep")), &[])
}

fn path(file: &Path) -> Result<String> {
    let text = file.to_str().context("the path is not UTF-8")?;
    Ok(text.to_owned())
}

/// The namespaces that this machine lets us have.
fn namespaces() -> Result<Vec<&'static str>> {
    let all: Vec<_> = ROOT.into_iter().chain(NAMESPACES).collect();
    let Some(refused) = trial(&all)? else {
        return Ok(all);
    };
    let without_user = NAMESPACES.to_vec();
    if tools::is_root() && trial(&without_user)?.is_none() {
        return Ok(without_user);
    }
    bail!(
        "this machine does not let you make namespaces ({refused}). Run as root, or ask its \
         administrator to allow user namespaces: user.max_user_namespaces must not be 0, and \
         where they exist kernel.unprivileged_userns_clone must be 1 and \
         kernel.apparmor_restrict_unprivileged_userns 0. In a container, its seccomp profile must \
         allow them too"
    )
}

/// `None` if it can be done, otherwise what it printed.
fn trial(namespaces: &[&str]) -> Result<Option<String>> {
    let words = namespaces.iter().copied().chain(["true"]);
    let output = run::capture("unshare", words)?;
    Ok((!output.success).then(|| output.stderr.trim().to_owned()))
}
