//! `cargo xtask lab`: the real cluster that stories run in. The lab itself is a program of its
//! own, in `lab/`; here everything it needs is made ready.

use anyhow::{Context, Result};

use crate::test::{Outcome, skip};
use crate::{run, tools};

/// Builds ferrule and the lab, and hands the words to it.
pub(crate) fn lab(words: &[String]) -> Result<()> {
    build()?;
    // Not by `cargo run`, which would build its dependencies once more for it alone.
    let program = std::env::current_exe()?.with_file_name("ferrule-lab");
    let program = program
        .to_str()
        .context("the target folder's name is not text")?;
    run::program(program, words.iter().map(String::as_str), &[])
}

/// Builds ferrule and the lab.
pub(crate) fn build() -> Result<()> {
    tools::ensure_for(&[tools::Need::Tests, tools::Need::Lab])?;
    tools::go()?;
    // Both in one folder: the lab tests the program it lies beside.
    run::cargo(["build", "--locked", "-p", "ferrule", "-p", "ferrule-lab"])
}

/// The same with everything built for release, and a race instead of stories.
pub(crate) fn race(words: &[String]) -> Result<()> {
    tools::ensure_for(&[tools::Need::Tests, tools::Need::Lab])?;
    tools::go()?;
    let build = ["build", "--release", "--locked"];
    let packages = ["-p", "ferrule", "-p", "ferrule-lab"];
    run::cargo(build.into_iter().chain(packages))?;
    let cargo = ["run", "--release", "--quiet", "--locked", "-p"];
    let words = words.iter().map(String::as_str);
    run::cargo(
        cargo
            .into_iter()
            .chain(["ferrule-lab", "--", "race"])
            .chain(words),
    )
}

/// Random clusters: the same as `cargo xtask lab differ`.
pub(crate) fn differ(words: &[String]) -> Result<()> {
    verb("differ", words)
}

/// Upstream's tests: the same as `cargo xtask lab e2e`.
pub(crate) fn e2e(words: &[String]) -> Result<()> {
    verb("e2e", words)
}

fn verb(verb: &str, words: &[String]) -> Result<()> {
    let words = words.iter().cloned();
    lab(&std::iter::once(verb.to_owned())
        .chain(words)
        .collect::<Vec<_>>())
}

/// All stories, what does not take long of the rest, and a few random clusters, as a step of
/// `cargo xtask test`.
pub(crate) fn stories() -> Result<Outcome> {
    if let Some(reason) = unable() {
        return skip(format!("stories: {reason}"));
    }
    // The older flavour of iptables has the same rules and is left to `cargo xtask lab test`, as are
    // portals by iptables.
    let worlds = "ferrule/nftables,kube-proxy/nftables,ferrule/iptables,kube-proxy/iptables,\
                  ferrule/userspace";
    lab(&[
        "test".to_owned(),
        "--quick".to_owned(),
        format!("--worlds={worlds}"),
    ])?;
    Ok(Outcome::Done)
}

/// Why this machine cannot run a lab.
fn unable() -> Option<String> {
    let root = run::capture("id", ["-u"]).is_ok_and(|output| output.stdout.trim() == "0");
    if !root {
        return Some("the lab makes network namespaces, which needs root".to_owned());
    }
    if run::find("go").is_none() {
        return Some("the lab builds Kubernetes with `go`, which is missing".to_owned());
    }
    tools::missing(tools::Need::Lab)
}
