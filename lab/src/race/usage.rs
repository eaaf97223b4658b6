//! What a running program costs: processor time, memory, and what it says in its metrics.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};

use super::lane::Lane;
use crate::{os, probe};

/// The unit of processor time in /proc, the same on every Linux that Rust knows.
const TICKS_PER_SECOND: f64 = 100.0;
const MIB: f64 = 1024.0;
/// How often memory is sampled while a program works.
const SAMPLING: Duration = Duration::from_millis(25);
const METRICS: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 10249);
/// A program that lists 20,000 chains answers late.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Processor seconds of a program and of its children that have ended.
pub fn cpu(id: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
    parse_cpu(&stat).with_context(|| format!("not what /proc should say: {stat}"))
}

/// User and system time, own and of children: the 14th to 17th field. The second may contain
/// anything but ends with the last bracket.
fn parse_cpu(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let times = rest.split_whitespace().skip(11).take(4);
    let ticks = times
        .map(|word| word.parse::<u32>().ok())
        .sum::<Option<u32>>()?;
    Some(f64::from(ticks) / TICKS_PER_SECOND)
}

/// One memory figure of a program, in MiB: `VmHWM` at most, `VmRSS` now.
pub fn memory(id: u32, field: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find(|line| line.starts_with(field));
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    let kibibytes: f64 = word.context("no memory in /proc")?.parse()?;
    Ok(kibibytes / MIB)
}

/// Bytes received by an interface, from what /proc says of all.
pub fn received(text: &str, interface: &str) -> Option<f64> {
    let numbers = text.lines().find_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        (name.trim() == interface).then_some(numbers)
    });
    numbers?.split_whitespace().next()?.parse().ok()
}

/// Watches the memory of a program and its children.
pub struct Sampler {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Samples>,
}

/// Memory over time.
pub struct Samples {
    /// The program alone, MiB.
    own: Vec<(Instant, f64)>,
    /// The most that it and its children had at one moment, MiB.
    pub tree: f64,
}

impl Sampler {
    pub fn start(id: u32) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            let mut samples = Samples {
                own: Vec::new(),
                tree: 0.0,
            };
            while !ending.load(Ordering::Relaxed) {
                let own = memory(id, "VmRSS").unwrap_or(0.0);
                // A child may end while it is looked at.
                let rss = |child: &u32| memory(*child, "VmRSS").unwrap_or(0.0);
                let tree = own + children(id).iter().map(rss).sum::<f64>();
                samples.own.push((os::now(), own));
                samples.tree = samples.tree.max(tree);
                std::thread::sleep(SAMPLING);
            }
            samples
        });
        Self { ended, thread }
    }

    pub fn end(self) -> Samples {
        self.ended.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Samples {
    /// The program's memory at this moment.
    pub fn at(&self, moment: Instant) -> f64 {
        let later = self.own.iter().find(|(at, _)| *at >= moment);
        later.or(self.own.last()).map_or(0.0, |(_, size)| *size)
    }
}

/// Processes that any thread of a program started.
fn children(id: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{id}/task")) else {
        return Vec::new();
    };
    let text = |thread: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.ok()?.path().join("children")).ok()
    };
    let texts: Vec<_> = threads.filter_map(text).collect();
    let words = texts.iter().flat_map(|text| text.split_whitespace());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// What the program said about its syncs of one family.
#[derive(Clone, Copy, Debug)]
pub struct Syncs {
    pub count: f64,
    /// Seconds altogether.
    pub seconds: f64,
    /// When the last one ended, as Unix time.
    pub last: f64,
}

impl Syncs {
    /// When the last one ended, after a moment.
    pub fn ended_after(&self, moment: SystemTime) -> f64 {
        let since = moment.duration_since(SystemTime::UNIX_EPOCH);
        self.last - since.map_or(0.0, |time| time.as_secs_f64())
    }
}

/// Asks the program; nothing when it does not answer or has not synced yet.
pub fn syncs(lane: &Lane) -> Result<Option<Syncs>> {
    let ask = || probe::get(SocketAddr::from(METRICS), "/metrics", TIMEOUT).ok();
    let answer = lane.node.run(ask)?;
    Ok(answer.and_then(|(_, text)| parse_syncs(&text)))
}

fn parse_syncs(text: &str) -> Option<Syncs> {
    const PREFIX: &str = "kubeproxy_sync_proxy_rules_";
    let value = |name: &str| {
        let line = text.lines().find(|line| {
            let rest = line.strip_prefix(PREFIX).and_then(|l| l.strip_prefix(name));
            rest.is_some_and(|rest| rest.starts_with("{ip_family=\"IPv4\"}"))
        })?;
        line.split_whitespace().last()?.parse::<f64>().ok()
    };
    let syncs = Syncs {
        count: value("duration_seconds_count")?,
        seconds: value("duration_seconds_sum")?,
        last: value("last_timestamp_seconds")?,
    };
    (syncs.count >= 1.0 && syncs.last > 0.0).then_some(syncs)
}

/// How many processes wanted a processor over the last minute.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let word = text.split_whitespace().next();
    word.and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 100 50 25 25 20 0 8";
        assert_eq!(parse_cpu(stat), Some(2.0));
        assert_eq!(parse_cpu("7 (a"), None);
    }

    #[test]
    fn bytes_are_read_of_one_interface() {
        let text = "Inter-|   Receive\n face |bytes    packets\n\
                    \x20   lo: 1 2 3\n  mgmt: 4096 7 0 0 0 0 0 0 512 6\n";
        assert_eq!(received(text, "mgmt"), Some(4096.0));
        assert_eq!(received(text, "eth0"), None);
    }

    #[test]
    fn syncs_are_read_for_one_family() {
        let text = "kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family=\"IPv6\"} 9\n\
                    kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family=\"IPv4\"} 0.5\n\
                    kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 2\n\
                    kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 1.5e+09\n";
        let syncs = parse_syncs(text).unwrap();
        assert!((syncs.seconds - 0.5).abs() < 1e-9 && syncs.count > 1.5);
        assert!(syncs.ended_after(SystemTime::UNIX_EPOCH) > 1.4e9);
        assert!(parse_syncs("").is_none());
    }
}
