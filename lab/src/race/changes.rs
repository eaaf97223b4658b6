//! Changes one endpoint after the other and measures how long each takes to the kernel: alone,
//! and a hundred per second.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::TryStreamExt as _;
use http::Request;
use kube::core::{DynamicObject, WatchEvent};
use serde_json::Value;
use tokio::task::JoinHandle;

use super::arrivals::{Arrivals, lock};
use super::lane::Lane;
use super::latency_log::LatencyLog;
use super::load::{Cluster, FRESH};
use super::spread::{Spread, middle};
use super::{Figures, usage};
use crate::os;
use crate::process::Process;

/// Longer than the rest after a sync, so that every single change finds the program idle.
const SPACING: Duration = Duration::from_millis(1500);
/// No change may take longer than that.
const TIMEOUT: Duration = Duration::from_mins(5);
/// Between two changes of a churn.
const BEAT: Duration = Duration::from_millis(10);

/// Single changes of Services all over the cluster.
pub fn single(lane: &Lane, mode: &str, cluster: &Cluster, count: u32) -> Result<Figures> {
    let arrivals = Arrivals::watch(lane, mode)?;
    let echo = Echo::listen(cluster, arrivals.share());
    std::thread::sleep(SPACING);
    let bytes = lane.received()?;
    for turn in 0..count {
        let service = scattered(turn, cluster.services());
        let number = cluster.fresh()?;
        arrivals.log().send(number, service, os::now());
        cluster
            .runtime()
            .block_on(cluster.change(service, number))?;
        settle(&arrivals)?;
        std::thread::sleep(SPACING);
    }
    let bytes = (lane.received()? - bytes) / f64::from(count);
    echo.task.abort();
    let log = arrivals.end()?;
    let part = middle(log.parts()).map_or(f64::NAN, |(middle, ..)| middle);
    let (lags, echoes) = (Spread::new(log.lags()), Spread::new(log.echoes()));
    Ok(Figures::from([
        ("change p50", lags.seconds(50)),
        ("change p99", lags.seconds(99)),
        ("change least", lags.seconds(0)),
        ("change most", lags.seconds(100)),
        ("part p50", part),
        ("change bytes", bytes),
        ("echo p50", echoes.seconds(50)),
        ("echo p99", echoes.seconds(99)),
    ]))
}

/// A hundred changes per second for so many seconds, each of another Service as far as there are
/// enough.
pub fn churn(
    lane: &Lane,
    mode: &str,
    cluster: &Cluster,
    process: &Process,
    seconds: u32,
    server: u32,
) -> Result<Figures> {
    let arrivals = Arrivals::watch(lane, mode)?;
    let count = seconds * 100;
    std::thread::sleep(SPACING);
    let (cpu, before) = (usage::cpu(process.id())?, usage::syncs(lane)?);
    let server_cpu = usage::cpu(server)?;
    let begun = os::now();
    let answers = cluster
        .runtime()
        .block_on(send_all(cluster, arrivals.share(), count, begun))?;
    settle(&arrivals)?;
    let took = begun.elapsed().as_secs_f64();
    let cpu = usage::cpu(process.id())? - cpu;
    let server_cpu = usage::cpu(server)? - server_cpu;
    let after = usage::syncs(lane)?;
    let lags = Spread::new(arrivals.end()?.lags());
    let syncs = after
        .zip(before)
        .map_or(0.0, |(after, before)| after.count - before.count);
    Ok(Figures::from([
        ("churn p50", lags.seconds(50)),
        ("churn p99", lags.seconds(99)),
        ("churn cpu", cpu),
        ("churn server cpu", server_cpu),
        ("churn seconds", took),
        ("churn rate", f64::from(count) / answers.as_secs_f64()),
        ("churn syncs", syncs),
    ]))
}

/// Sends changes on the beat, whether or not earlier ones are answered; returns how long it took
/// until all were.
async fn send_all(
    cluster: &Cluster,
    log: Arc<Mutex<LatencyLog>>,
    count: u32,
    begun: Instant,
) -> Result<Duration> {
    let mut running = tokio::task::JoinSet::new();
    for turn in 0..count {
        tokio::time::sleep_until((begun + BEAT * turn).into()).await;
        let service = scattered(turn, cluster.services());
        let number = cluster.fresh()?;
        lock(&log).send(number, service, os::now());
        let cluster = cluster.clone();
        running.spawn(async move { cluster.change(service, number).await });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(begun.elapsed())
}

/// Returns when everything has arrived.
fn settle(arrivals: &Arrivals) -> Result<()> {
    let settled = || arrivals.log().is_settled().then_some(());
    match os::poll(TIMEOUT, settled) {
        Some(()) => Ok(()),
        None => bail!("changes that do not arrive: {:?}", arrivals.log().waiting()),
    }
}

/// Services far apart, each once before the first comes again.
fn scattered(turn: u32, services: u32) -> u32 {
    // A prime that divides no size anybody asks for.
    let stride = 7919 % services;
    let stride = if stride == 0 { 1 } else { stride };
    let at = u64::from(turn) * u64::from(stride) % u64::from(services);
    u32::try_from(at).expect("below the number of Services")
}

/// A watch of EndpointSlices that does nothing: when it receives a change, the API server has done
/// its part.
struct Echo {
    task: JoinHandle<Result<()>>,
}

impl Echo {
    fn listen(cluster: &Cluster, log: Arc<Mutex<LatencyLog>>) -> Self {
        let client = cluster.client().clone();
        let task = cluster.runtime().spawn(async move {
            let path = "/apis/discovery.k8s.io/v1/endpointslices";
            let request = Request::get(format!("{path}?limit=1")).body(Vec::new())?;
            let list: Value = client.request(request).await?;
            let version = list["metadata"]["resourceVersion"].as_str();
            let version = version.context("a list without version")?;
            let query = format!("watch=true&timeoutSeconds=3600&resourceVersion={version}");
            let request = Request::get(format!("{path}?{query}")).body(Vec::new())?;
            let events = client.request_events::<DynamicObject>(request).await?;
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.try_next().await? {
                let (WatchEvent::Modified(slice), now) = (event, os::now()) else {
                    continue;
                };
                if let Some(number) = changed(&slice) {
                    lock(&log).see(number, now);
                }
            }
            Ok(())
        });
        Self { task }
    }
}

/// The number of the changed endpoint in a slice.
fn changed(slice: &DynamicObject) -> Option<u32> {
    let address = slice.data["endpoints"][0]["addresses"][0].as_str()?;
    let address: std::net::Ipv4Addr = address.parse().ok()?;
    address.to_bits().checked_sub(FRESH)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_service_has_its_turn_before_one_has_two() {
        for services in [100, 1000, 5000, 7919, 20000] {
            let turns: BTreeSet<_> = (0..100).map(|turn| scattered(turn, services)).collect();
            assert_eq!(turns.len(), 100, "{services}");
        }
    }
}
