//! Network namespaces by name, and work done inside them.
//!
//! A thread enters a namespace, does something there, and ends. Sockets it opened stay in that
//! namespace, and programs it started do too.

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns};

use crate::os;

/// A named network namespace.
pub struct Netns {
    name: String,
    file: File,
}

/// Which network the calling thread is in.
pub fn current() -> Result<PathBuf> {
    std::fs::read_link("/proc/thread-self/ns/net").context("cannot tell network namespaces apart")
}

impl Netns {
    /// Makes a namespace. Its loopback interface is up and addresses work at once.
    pub fn make(name: &str) -> Result<Self> {
        os::output(os::command("ip").args(["netns", "add", name]))?;
        let file = File::open(format!("/run/netns/{name}"))?;
        let namespace = Self {
            name: name.to_owned(),
            file,
        };
        namespace.run(|| {
            sysctl("ipv6/conf/default/accept_dad", "0")?;
            for scope in ["all", "default"] {
                for setting in ["rp_filter", "send_redirects", "accept_redirects"] {
                    sysctl(&format!("ipv4/conf/{scope}/{setting}"), "0")?;
                }
            }
            // A host that refuses many packets at once must not fall silent.
            sysctl("ipv4/icmp_ratelimit", "0")?;
            // Before Linux 6.13 these are the machine's, and not here.
            for setting in ["icmp_msgs_per_sec", "icmp_msgs_burst"] {
                drop(sysctl(&format!("ipv4/{setting}"), "1000000"));
            }
            sysctl("ipv6/icmp/ratelimit", "0")?;
            ip_here("link set lo up\n")
        })??;
        Ok(namespace)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same namespace for another owner.
    pub fn duplicate(&self) -> Result<Self> {
        Ok(Self {
            name: self.name.clone(),
            file: self.file.try_clone()?,
        })
    }

    /// Takes the name away. The network itself goes with its last process and socket.
    pub fn remove(&self) -> Result<()> {
        os::output(os::command("ip").args(["netns", "del", &self.name])).map(|_| ())
    }

    /// Runs `f` in a thread that is in this namespace.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(&self.file, CloneFlags::CLONE_NEWNET)
                    .with_context(|| format!("cannot enter the network of {}", self.name))?;
                Ok(f())
            });
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs lines of `ip` commands here.
    pub fn ip(&self, lines: &str) -> Result<()> {
        self.run(|| ip_here(lines))?
            .with_context(|| format!("in {}", self.name))
    }
}

/// Writes a setting below `net/` of the network the calling thread is in.
pub fn sysctl(name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/{name}");
    std::fs::write(&path, value).with_context(|| format!("cannot write {path}"))
}

/// Runs lines of `ip` commands in the network the calling thread is in.
pub fn ip_here(lines: &str) -> Result<()> {
    os::feed(os::command("ip").args(["-batch", "-"]), lines)
}
