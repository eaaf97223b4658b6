//! The machine we run on: its kernel settings, families and addresses.
//!
//! Settings are written only where they differ, and what cannot be written says which file and
//! what to change. Everything is reached through a root folder, so that tests need no kernel.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ferrule_core::model::Family;
pub use ferrule_kernel::memory::limit_arenas;

mod addresses;
#[cfg(test)]
mod tests;

pub use addresses::Addresses;

/// A machine, seen through its `/proc` and `/sys`.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

/// What the configuration says about connection tracking. Zero means: leave the kernel's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// Entries per processor.
    pub max_per_core: u32,
    /// Entries at least.
    pub min: u32,
    /// `nf_conntrack_tcp_timeout_established`
    pub tcp_established: Duration,
    /// `nf_conntrack_tcp_timeout_close_wait`
    pub tcp_close_wait: Duration,
    /// `nf_conntrack_tcp_be_liberal`; only ever switched on.
    pub tcp_be_liberal: bool,
    /// `nf_conntrack_udp_timeout`
    pub udp: Duration,
    /// `nf_conntrack_udp_timeout_stream`
    pub udp_stream: Duration,
}

/// Kernels of this size of table are as large as kube-proxy makes them.
const CONNTRACK_CEILING: u64 = 1 << 20;

/// A kernel setting that could not be brought to its value.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot set {name} to {wanted} (present value: {}): set it beforehand, by a privileged init \
     container with --init-only and otherwise the same options or on the host itself, or run \
     privileged",
    present.as_deref().unwrap_or("unknown")
)]
pub struct SettingError {
    name: String,
    wanted: u64,
    present: Option<String>,
    #[source]
    source: io::Error,
}

/// Why this machine has no IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFamily {
    /// The kernel was built or started without it.
    #[error("the kernel has no IPv6: /proc/net/if_inet6 does not exist")]
    Missing,
    /// The administrator does not want it.
    #[error("IPv6 is disabled: net.ipv6.conf.all.disable_ipv6 is 1")]
    Disabled,
}

/// A version of Linux: its first two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl Version {
    /// Reads the beginning of a release such as `6.1.0-18-amd64`.
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit());
        let mut number = || numbers.next()?.parse().ok();
        Some(Self(number()?, number()?))
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new("/")
    }
}

impl Host {
    /// The machine whose files are below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Number of processors that are switched on.
    pub fn processors(&self) -> u64 {
        let listed = self
            .read("sys/devices/system/cpu/online")
            .ok()
            .and_then(|list| count_processors(list.trim()));
        listed.filter(|count| *count > 0).unwrap_or_else(|| {
            std::thread::available_parallelism().map_or(1, |count| count.get() as u64)
        })
    }

    /// Whether the kernel has this family, and has it switched on. IPv4 is always there.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(&self, family: Family) -> Result<(), NoFamily> {
        if family == Family::V4 {
            return Ok(());
        }
        if !self.path("proc/net/if_inet6").exists() {
            return Err(NoFamily::Missing);
        }
        match self.read("proc/sys/net/ipv6/conf/all/disable_ipv6") {
            Ok(value) if value.trim() == "1" => Err(NoFamily::Disabled),
            _ => Ok(()),
        }
    }

    /// Sets up connection tracking. Returns what could not be done but does not matter enough to
    /// stop.
    ///
    /// # Errors
    /// The first setting that could not be written.
    pub fn set_conntrack(&self, wanted: &Conntrack) -> Result<Vec<SettingError>, SettingError> {
        let mut warnings = Vec::new();
        let max = conntrack_max(wanted.max_per_core, wanted.min, self.processors());
        if max > 0 {
            self.set_netfilter("nf_conntrack_max", max)?;
            // Too few buckets make a large table slow, not wrong.
            warnings.extend(self.raise_hash_size(max / 4).err());
        }
        let timeouts = [
            (
                "nf_conntrack_tcp_timeout_established",
                wanted.tcp_established,
            ),
            ("nf_conntrack_tcp_timeout_close_wait", wanted.tcp_close_wait),
        ];
        for (name, timeout) in timeouts {
            self.set_timeout(name, timeout)?;
        }
        if wanted.tcp_be_liberal {
            self.set_netfilter("nf_conntrack_tcp_be_liberal", 1)?;
        }
        self.set_timeout("nf_conntrack_udp_timeout", wanted.udp)?;
        self.set_timeout("nf_conntrack_udp_timeout_stream", wanted.udp_stream)?;
        Ok(warnings)
    }

    /// Lets packets to localhost be translated to addresses elsewhere.
    ///
    /// # Errors
    /// The setting could not be written.
    pub fn route_localnet(&self) -> Result<(), SettingError> {
        self.set_sysctl("net/ipv4/conf/all/route_localnet", 1)
    }

    /// Gives a sysctl this value, unless it has it. The name is its path below `/proc/sys`.
    ///
    /// # Errors
    /// It could not be written.
    pub fn set_sysctl(&self, name: &str, value: u64) -> Result<(), SettingError> {
        let path = self.path("proc/sys").join(name);
        set(&path, &name.replace('/', "."), value, |now| now == value)
    }

    /// The number that a sysctl has; `None` if it has none, or does not exist.
    pub fn sysctl(&self, name: &str) -> Option<u64> {
        let text = self.read(&format!("proc/sys/{name}")).ok()?;
        text.trim().parse().ok()
    }

    /// The kernel's version.
    ///
    /// # Errors
    /// It cannot be read, or is no version.
    pub fn kernel_version(&self) -> io::Result<Version> {
        let release = self.read("proc/sys/kernel/osrelease")?;
        Version::parse(&release).ok_or_else(|| {
            let text = format!("{:?} is no version of Linux", release.trim());
            io::Error::new(io::ErrorKind::InvalidData, text)
        })
    }

    /// Whether connection tracking takes packets outside of the window for good ones.
    pub fn is_tcp_liberal(&self) -> bool {
        let value = self.read("proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal");
        value.is_ok_and(|value| value.trim() != "0")
    }

    /// How willingly the kernel ends us when memory runs out.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn set_oom_score(&self, adjustment: i32) -> io::Result<()> {
        std::fs::write(self.path("proc/self/oom_score_adj"), adjustment.to_string())
    }

    fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    fn read(&self, below: &str) -> io::Result<String> {
        std::fs::read_to_string(self.path(below))
    }

    fn set_timeout(&self, name: &str, timeout: Duration) -> Result<(), SettingError> {
        if timeout.is_zero() {
            return Ok(());
        }
        // The kernel counts whole seconds, and 0 would mean at once.
        self.set_netfilter(name, timeout.as_secs().max(1))
    }

    fn set_netfilter(&self, name: &str, value: u64) -> Result<(), SettingError> {
        self.set_sysctl(&format!("net/netfilter/{name}"), value)
    }

    fn raise_hash_size(&self, least: u64) -> Result<(), SettingError> {
        let name = "/sys/module/nf_conntrack/parameters/hashsize";
        set(&self.path(&name[1..]), name, least, |now| now >= least)
    }
}

/// Writes a value unless the present one is good already.
fn set(
    path: &Path,
    name: &str,
    wanted: u64,
    good: impl Fn(u64) -> bool,
) -> Result<(), SettingError> {
    let present = std::fs::read_to_string(path).ok();
    let present = present.map(|text| text.trim().to_owned());
    let number = present.as_deref().and_then(|text| text.parse().ok());
    if number.is_some_and(good) {
        return Ok(());
    }
    // `write` would create a file where the kernel has none.
    std::fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, wanted.to_string().as_bytes()))
        .map_err(|source| SettingError {
            name: name.to_owned(),
            wanted,
            present,
            source,
        })
}

/// Size of the connection table; 0 means: leave it.
fn conntrack_max(per_core: u32, min: u32, processors: u64) -> u64 {
    if per_core == 0 {
        return 0;
    }
    let scaled = u64::from(per_core) * processors;
    // The ceiling wins even over a larger minimum, as in kube-proxy.
    if scaled > CONNTRACK_CEILING {
        CONNTRACK_CEILING
    } else {
        scaled.max(min.into())
    }
}

/// Counts a list such as `0-3,8,10-11`.
fn count_processors(ranges: &str) -> Option<u64> {
    ranges.split(',').try_fold(0_u64, |count, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}
