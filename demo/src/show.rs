//! What there is to see, in order: balanced requests, a rollout under load, and what it took.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::cluster::{Cluster, State};
use crate::load::{Client, Load, Tally};
use crate::metrics::Metrics;
use crate::pod::Pod;
use crate::proxy::Proxy;
use crate::stage::{self, NODE, Stage};

/// The Service, as the manifests have it.
const CLUSTER_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 80);
const NODE_PORT: u16 = 30080;

/// Pods of each version.
const PODS: u8 = 3;
/// Requests of each client before the rollout.
const REQUESTS: u64 = 300;
/// How long a pod goes on after it was taken out, for those who are still talking to it.
const GRACE: Duration = Duration::from_millis(500);

fn clients() -> [Client; 3] {
    let cluster_ip = SocketAddr::from((CLUSTER_IP, 80));
    [
        Client {
            name: "a pod",
            network: Some("client"),
            to: cluster_ip,
        },
        Client {
            name: "the node",
            network: None,
            to: cluster_ip,
        },
        Client {
            name: "outside",
            network: Some("outside"),
            to: SocketAddr::from((NODE, NODE_PORT)),
        },
    ]
}

/// Runs the show; whether all went as it should.
pub fn run(ferrule: &Path, manifests: &Path, keep: bool) -> Result<bool> {
    let stage = Stage::build()?;
    stage::connect("client", Ipv4Addr::new(10, 244, 1, 2))?;
    let mut cluster = Cluster::copy(manifests)?;
    let mut pods = Vec::new();
    for number in 1..=PODS {
        let pod = start(1, number)?;
        cluster.set(pod.address, State::Ready)?;
        pods.push(pod);
    }
    let mut proxy = Proxy::start(ferrule, cluster.folder())?;
    println!("\nService shop/web with {PODS} pods, on a node of its own.");
    println!("  in the cluster   {CLUSTER_IP}:80");
    println!("  from outside     {NODE}:{NODE_PORT}");

    println!("\nBalanced: {REQUESTS} requests of each client");
    let before = Load::start(&clients(), REQUESTS).finish()?;
    table(&before);

    println!("\nRollout: every pod is replaced, while all clients go on asking");
    let load = Load::start(&clients(), u64::MAX);
    for (number, old) in (1..=PODS).zip(pods) {
        replace(&mut proxy, &mut cluster, old, number)?;
    }
    let during = load.stop()?;
    table(&during);

    let good = verdict(&before, &during);
    syncs()?;
    if keep {
        stay(&stage);
    }
    println!("\nEverything vanishes with this process.");
    Ok(good)
}

fn start(version: u8, number: u8) -> Result<Pod> {
    let address = Ipv4Addr::new(10, 244, 1, 10 * version + number);
    Pod::start(&format!("web-v{version}-{number}"), address)
}

/// As a Deployment does it: the new pod comes, then the old one goes.
fn replace(proxy: &mut Proxy, cluster: &mut Cluster, old: Pod, number: u8) -> Result<()> {
    let new = start(2, number)?;
    let added = proxy.after(|| cluster.set(new.address, State::Ready))?;
    let drained = proxy.after(|| cluster.set(old.address, State::Terminating))?;
    println!(
        "  + {} in {} ms    - {} in {} ms",
        new.name,
        added.as_millis(),
        old.name,
        drained.as_millis()
    );
    std::thread::sleep(GRACE);
    proxy.after(|| cluster.remove(old.address))?;
    old.stop()
}

/// Who was answered by whom.
fn table(tallies: &[Tally]) {
    let pods: BTreeSet<&String> = tallies.iter().flat_map(|tally| tally.pods.keys()).collect();
    print!("  {:<10}", "");
    for pod in &pods {
        print!("{pod:>10}");
    }
    println!("{:>10}", "failed");
    for (client, tally) in clients().iter().zip(tallies) {
        print!("  {:<10}", client.name);
        for pod in &pods {
            print!("{:>10}", tally.pods.get(*pod).copied().unwrap_or_default());
        }
        println!("{:>10}", tally.failures.len());
    }
}

fn verdict(before: &[Tally], during: &[Tally]) -> bool {
    let mut sum = Tally::default();
    before.iter().chain(during).for_each(|tally| sum.add(tally));
    println!(
        "\n{} requests, {} failed, the slowest took {:.1} ms",
        sum.requests(),
        sum.failures.len(),
        sum.slowest.as_secs_f64() * 1e3
    );
    for failure in sum.failures.iter().take(10) {
        println!("  {failure}");
    }
    let all_served = sum.pods.len() == usize::from(2 * PODS);
    if !all_served {
        println!("  not every pod was asked");
    }
    sum.failures.is_empty() && all_served
}

fn syncs() -> Result<()> {
    let (count, seconds, steps) = Metrics::fetch()?.syncs();
    println!(
        "{count} syncs of ferrule with {steps} changes to the kernel, {:.2} ms each on average",
        seconds / count.max(1.0) * 1e3
    );
    Ok(())
}

/// Waits for a signal, which ends the process.
fn stay(stage: &Stage) {
    println!("\nStill there, until Ctrl-C. To look inside, from another terminal:");
    println!("  inside=\"{}\"", stage.way_in());
    println!("  $inside                                  # a shell on the node");
    println!("  $inside nft list ruleset                 # what ferrule programmed");
    println!("  $inside ip netns exec client curl -s {CLUSTER_IP}");
    println!("  $inside ip netns exec outside curl -s {NODE}:{NODE_PORT}");
    println!("  $inside cat /run/ferrule.log /run/manifests/slice.yaml");
    loop {
        std::thread::park();
    }
}
