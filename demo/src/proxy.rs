//! ferrule itself, as it runs on the node.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::metrics::{self, Metrics};
use crate::stage;

const LOG: &str = "/run/ferrule.log";
/// Nothing here takes so long.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The running proxy.
pub struct Proxy(Child);

impl Proxy {
    /// Starts it on a folder of manifests, and waits until the kernel has its rules.
    pub fn start(ferrule: &Path, manifests: &Path) -> Result<Self> {
        let log = File::create(LOG)?;
        let process = Command::new(ferrule)
            .args(["proxy", "--proxy-mode", "nftables", "--manifests"])
            .arg(manifests)
            .args(["--hostname-override", "node-a"])
            .args(["--cluster-cidr", stage::CLUSTER_CIDR])
            .args(["--iptables-min-sync-period", "100ms"])
            .arg("--admin-socket=")
            // The limit of tracked connections belongs to the machine.
            .args(["--conntrack-max-per-core", "0"])
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", ferrule.display()))?;
        let mut proxy = Self(process);
        proxy.until(metrics::is_ready)?;
        Ok(proxy)
    }

    /// Makes a change of endpoints, and waits until the kernel has it. How long that took.
    pub fn after(&mut self, change: impl FnOnce() -> Result<()>) -> Result<Duration> {
        let before = Metrics::fetch()?.changes();
        let begun = Instant::now();
        change()?;
        self.until(|| {
            let now = Metrics::fetch();
            now.is_ok_and(|now| now.changes() > before && now.is_settled())
        })?;
        Ok(begun.elapsed())
    }

    fn until(&mut self, mut holds: impl FnMut() -> bool) -> Result<()> {
        let begun = Instant::now();
        while !holds() {
            if let Some(status) = self.0.try_wait()? {
                bail!("ferrule ended with {status}:\n{}", fs::read_to_string(LOG)?);
            }
            if begun.elapsed() > TIMEOUT {
                bail!("ferrule takes too long:\n{}", fs::read_to_string(LOG)?);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}
