//! Isolation: processes, network and mounts of the lab are its own and end with it.
//!
//! The program starts itself again as the first process of a new process namespace. When that
//! process ends, in whatever way, the kernel ends every other one in it, and with the last of them
//! go the mounts and, held by those, the network namespaces. The first process in turn is killed
//! when the one outside ends. So `kill -9` on either leaves nothing behind.

use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result, bail, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;

use crate::netns;

/// Fails with advice unless this is root.
pub fn require_root() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("the lab makes network namespaces and loads rules: run it as root");
    }
    Ok(())
}

/// Starts `inner` as the first process of a new process namespace and waits for its end.
///
/// `started` gets its process id as seen from here.
pub fn run(inner: &mut Command, started: impl FnOnce(u32)) -> Result<ExitCode> {
    require_root()?;
    // Only children are affected. No thread can be started from here on, so the caller must not.
    unshare(CloneFlags::CLONE_NEWPID).context("cannot make a process namespace")?;
    let mut child = inner.spawn().context("cannot start the lab's inner half")?;
    started(child.id());
    Ok(exit_code(child.wait()?))
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// The inner half's first act: to be alone, and to end with the outer half.
pub fn enter() -> Result<()> {
    ensure!(
        std::process::id() == 1,
        "only the first process of a namespace of its own may go on"
    );
    prctl::set_pdeathsig(Signal::SIGKILL).context("cannot ask to end with the outer half")?;
    let outside = netns::current()?;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
        .context("cannot make network and mount namespaces")?;
    ensure!(
        netns::current()? != outside,
        "still in the network of the machine"
    );
    own("/", None, MsFlags::MS_REC | MsFlags::MS_PRIVATE)?;
    own("/proc", Some("proc"), MsFlags::empty())?;
    // Named network namespaces, lock files and etcd's data lie here, in memory.
    own("/run", Some("tmpfs"), MsFlags::empty())?;
    Ok(())
}

/// Makes a mount point private, or covers it with a new file system.
pub fn own(target: &str, kind: Option<&str>, flags: MsFlags) -> Result<()> {
    let target = Path::new(target);
    mount(kind, target, kind, flags, None::<&str>)
        .with_context(|| format!("cannot mount over {}", target.display()))
}
