//! What ferrule exposes at `/metrics`.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use anyhow::{Context as _, Result};

const CHANGES: &str = "kubeproxy_sync_proxy_rules_endpoint_changes_total";
const PENDING: &str = "kubeproxy_sync_proxy_rules_endpoint_changes_pending";
const SYNC_SUM: &str = "kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family=\"IPv4\"}";
const SYNC_COUNT: &str = "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";
const STEPS: &str = "ferrule_sync_steps_total{ip_family=\"IPv4\"}";

/// All samples by name and labels.
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Asks for them.
    pub fn fetch() -> Result<Self> {
        let answer = get(10249, "/metrics").context("ferrule does not serve its metrics")?;
        Ok(Self::parse(&answer))
    }

    fn parse(text: &str) -> Self {
        let samples = text.lines().filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Self(samples.collect())
    }

    fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// Changes of endpoints that it received.
    pub fn changes(&self) -> f64 {
        self.get(CHANGES)
    }

    /// Whether all of them are in the kernel.
    pub fn is_settled(&self) -> bool {
        self.get(PENDING) == 0.0
    }

    /// How often it programmed something, how long that took together in seconds, and how many
    /// operations it was.
    pub fn syncs(&self) -> (f64, f64, f64) {
        (self.get(SYNC_COUNT), self.get(SYNC_SUM), self.get(STEPS))
    }
}

/// Whether everything is programmed for the first time.
pub fn is_ready() -> bool {
    get(10256, "/readyz").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

fn get(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_by_name_and_labels() {
        let text = format!("# HELP x\n{SYNC_SUM} 0.5\n{SYNC_COUNT} 2\n{CHANGES} 7\n{PENDING} 1\n");
        let metrics = Metrics::parse(&text);
        assert_eq!(metrics.syncs(), (2.0, 0.5, 0.0));
        assert!(!metrics.is_settled());
    }
}
