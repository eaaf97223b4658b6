//! Labs that stay up, and how to look inside.
//!
//! A folder beside the built programs holds what a run leaves for its reader: logs, the proxies'
//! configuration, a kubeconfig. The lab itself is in memory and in the kernel only.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lab::Lab;
use crate::tools::Tools;
use crate::world::WorldKey;
use crate::{cage, os};

/// The control plane takes a few seconds; a busy machine takes more.
const TIMEOUT: Duration = Duration::from_mins(3);

/// Where a run with this name keeps its files.
pub fn folder(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.parent().and_then(Path::parent);
    let target = target.context("the program does not lie in a target folder")?;
    Ok(target.join("lab").join(name))
}

/// An empty folder for a run, and a lock that keeps others out of it as long as it is held.
pub fn claim(name: &str) -> Result<(PathBuf, File)> {
    let folder = folder(name)?;
    std::fs::create_dir_all(&folder)?;
    let lock = File::create(folder.with_extension("lock"))?;
    if lock.try_lock().is_err() {
        bail!("another lab is running from {}", folder.display());
    }
    std::fs::remove_dir_all(&folder)?;
    std::fs::create_dir_all(&folder)?;
    Ok((folder, lock))
}

/// Starts a lab in the background and returns when it is ready.
pub fn up(arguments: &[String]) -> Result<()> {
    cage::require_root()?;
    if let Some(pid) = running()? {
        bail!("a lab is up already (process {pid}); `cargo xtask lab down` ends it");
    }
    let log = folder("up.log")?;
    std::fs::create_dir_all(log.parent().context("a log lies in a folder")?)?;
    let file = File::create(&log)?;
    let begun = os::now();
    let mut supervisor = os::command(std::env::current_exe()?)
        .arg("supervise")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .process_group(0)
        .spawn()?;
    let ready = folder("up")?.join("ready");
    let outcome = os::poll(TIMEOUT, || match supervisor.try_wait() {
        Ok(None) => ready.is_file().then_some(true),
        _ => Some(false),
    });
    if outcome != Some(true) {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        let _ended = supervisor.kill();
        bail!("the lab did not come up; {} says:\n{said}", log.display());
    }
    println!("up in {:.1} s", begun.elapsed().as_secs_f64());
    status()
}

/// The outer half of a lab that stays up. `inner` becomes its inner half.
pub fn supervise(inner: &mut std::process::Command) -> Result<ExitCode> {
    let (folder, _lock) = claim("up")?;
    std::fs::write(folder.join("pid"), std::process::id().to_string())?;
    let file = folder.join("inner");
    cage::run(inner, |pid| {
        // Without it only `status` is less helpful.
        let _unwritten = std::fs::write(&file, pid.to_string());
    })
}

/// The inner half: a lab that does nothing but be there.
pub fn stay(tools: &Tools, keys: &[WorldKey]) -> Result<()> {
    let folder = folder("up")?;
    let _lab = Lab::start(tools, keys, &folder)?;
    std::fs::write(folder.join("ready"), "")?;
    loop {
        std::thread::park();
    }
}

/// Ends a lab that is up.
pub fn down() -> Result<()> {
    let Some(pid) = running()? else {
        println!("no lab is up");
        return Ok(());
    };
    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    let gone = || running().ok().filter(Option::is_none);
    os::poll(TIMEOUT, gone).context("the lab does not end")?;
    println!("down");
    Ok(())
}

/// Prints whether a lab is up and how to inspect it.
pub fn status() -> Result<()> {
    let Some(pid) = running()? else {
        println!("no lab is up; `cargo xtask lab up` starts one");
        return Ok(());
    };
    let folder = folder("up")?;
    let inner = std::fs::read_to_string(folder.join("inner"))?;
    let enter = format!("nsenter -t {inner} -m -n -p");
    println!(
        "a lab is up (process {pid}); logs and configuration: {}",
        folder.display()
    );
    println!("  all hosts:     {enter} ip netns list");
    println!("  on a host:     {enter} ip netns exec kube-proxy-nftables.node1 nft list ruleset");
    println!(
        "  API server:    {enter} curl -sk -H 'Authorization: Bearer {}' \
         https://172.31.0.1:6443/api/v1/services",
        crate::api::TOKEN
    );
    println!("  kubeconfig:    {}", folder.join("kubeconfig").display());
    println!("`cargo xtask lab down` ends it");
    Ok(())
}

/// The process id of the lab that is up.
fn running() -> Result<Option<i32>> {
    let file = folder("up")?.join("pid");
    let Ok(text) = std::fs::read_to_string(file) else {
        return Ok(None);
    };
    let pid: i32 = text.trim().parse()?;
    // The number may belong to another process by now.
    let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    Ok(words
        .split('\0')
        .any(|word| word == "supervise")
        .then_some(pid))
}
