//! What iptables mode costs, in a network of its own: `iptables_cost <services> <endpoints> [way…]`.
//!
//! First everything is written, then looked at again, then single endpoints come and go, in the
//! legacy flavour, in the nft flavour directly, and in that one by programs. At last, beside all
//! these rules: what kube-proxy tells `iptables-restore` when one endpoint changes, and the least
//! that `nf_tables` can be told, without and with something that makes it look at all chains. Beside the time that
//! went by stands the time that this thread worked, which matters on a busy machine; what programs
//! worked is not in it. Run it as root.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement"
)]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferrule_core::desired::Desired;
use ferrule_core::facts::{DetectLocal, Settings};
use ferrule_core::model::{Family, Service, Slice};
use ferrule_dataplane::iptables::{self, Iptables, Options};
use ferrule_dataplane::{Dataplane, Scope, Work};
use ferrule_kernel::netns;
use ferrule_kernel::nft::{Batch, Chain, Expr, Nft, Rule, Verdict};
use ferrule_kernel::xt::{Flavour, Xt};
use ferrule_testbed::cluster::{self, Cluster, Objects, ep};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| words.get(at).map_or(default, |word| word.parse().unwrap());
    let (services, endpoints) = (number(0, 1000), number(1, 5));
    for way in ["legacy", "directly", "programs"] {
        if words.len() < 3 || words.iter().any(|word| word == way) {
            netns::isolated(|| measure(way, services, endpoints)).unwrap();
        }
    }
}

fn measure(way: &str, services: u32, endpoints: u32) {
    let flavour = match way {
        "legacy" => Flavour::Legacy,
        _ => Flavour::Nft,
    };
    let xt = Xt::open_as(flavour, ferrule_kernel::Family::V4).unwrap();
    let mut dataplane = Iptables::new(Family::V4, Options::default(), xt);
    if way == "programs" {
        dataplane = dataplane.by_programs();
    }
    let cidr = ["10.0.0.0/8".parse().unwrap()].into();
    let mut cluster = Cluster::with(Settings {
        detect_local: DetectLocal::ClusterCidr(cidr),
        ..Settings::default()
    });
    for number in 0..services {
        cluster
            .service(service(number))
            .slice(slice(number, 0, endpoints));
    }
    cluster.step();
    println!("{way}, {services} Services with {endpoints} endpoints");
    time("  everything", || {
        apply(&mut dataplane, &cluster, Scope::Full)
    });
    time("  again", || apply(&mut dataplane, &cluster, Scope::Full));
    for (what, first, count) in [
        ("  one endpoint replaced", 1, endpoints),
        ("  one endpoint less", 1, endpoints - 1),
        ("  no endpoint", 1, 0),
        ("  endpoints again", 1, endpoints),
    ] {
        cluster.slice(slice(services / 2, first, count));
        let delta = cluster.step();
        let scope = Scope::Delta(&delta.families.v4);
        time(what, || apply(&mut dataplane, &cluster, scope));
    }
    time("  is it intact", || {
        let mut watchers = dataplane.watch();
        usize::from(watchers[0].changed(Duration::ZERO).unwrap().is_some())
    });
    if way != "programs" {
        let xt = Xt::open_as(flavour, ferrule_kernel::Family::V4).unwrap();
        let text = as_kube_proxy(&cluster.desired, services / 2);
        time("  one endpoint, as kube-proxy writes it", || {
            xt.restore(&text).unwrap();
            text.lines().count()
        });
    }
    if way == "directly" {
        measure_kernel();
    }
}

/// What kube-proxy restores when this Service changes: the chains that all share, and its own.
fn as_kube_proxy(desired: &Desired, number: u32) -> String {
    let all = iptables::render(desired, Family::V4, Options::default(), &[]);
    let remark = format!("default/{}", name(number));
    let chain = |line: &str| match line.strip_prefix(':') {
        Some(rest) => rest.split(' ').next().map(str::to_owned),
        None => line.split(' ').nth(1).map(str::to_owned),
    };
    let told = |line: &&str| {
        let mut words = line.split(['"', ' ']);
        words.any(|word| word == remark)
    };
    let mut own: Vec<_> = all.lines().filter(told).filter_map(chain).collect();
    own.sort();
    let is_shared = |chain: &str| {
        let per_service = ["KUBE-SVC-", "KUBE-SEP-"];
        !per_service.iter().any(|prefix| chain.starts_with(prefix))
    };
    // Jumps from the chains of others are not among what is restored.
    let kept = all.lines().filter(|line| {
        !line.starts_with("-I")
            && chain(line).is_none_or(|chain| is_shared(&chain) || own.contains(&chain))
    });
    kept.flat_map(|line| [line, "\n"]).collect()
}

/// What a transaction costs that has nothing to do with us.
fn measure_kernel() {
    let mut nft = Nft::open().unwrap();
    let counter = Expr::Counter {
        packets: 0,
        bytes: 0,
    };
    let jump = Expr::Verdict(Verdict::Jump("NOWHERE".into()));
    for (what, expressions) in [
        ("  kernel: two chains", vec![]),
        ("  kernel: a rule that only counts", vec![counter]),
        ("  kernel: a rule with a jump", vec![jump]),
    ] {
        let mut batch = Batch::new(ferrule_kernel::Family::V4, "nat");
        batch.ensure_chain(&Chain::new("SOMEWHERE"));
        batch.ensure_chain(&Chain::new("NOWHERE"));
        if !expressions.is_empty() {
            batch.add_rule(&Rule::new("SOMEWHERE", expressions));
        }
        time(what, || {
            nft.commit(&batch).unwrap();
            batch.len()
        });
    }
}

fn time(what: &str, f: impl FnOnce() -> usize) {
    let (begun, worked) = (Instant::now(), work());
    let steps = f();
    let took = begun.elapsed().as_secs_f64() * 1000.0;
    let worked = work() - worked;
    println!("{what}: {took:.1} ms, of these {worked:.1} worked, {steps} steps");
}

/// How many milliseconds this thread has worked.
fn work() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanos: f64 = text.split(' ').next().unwrap().parse().unwrap();
    nanos / 1e6
}

fn apply(dataplane: &mut Iptables, cluster: &Cluster, scope: Scope<'_>) -> usize {
    let work = Work {
        desired: &cluster.desired,
        scope,
        local: &[],
    };
    dataplane.apply(&work).unwrap().steps
}

fn name(number: u32) -> String {
    format!("service-{number}")
}

fn service(number: u32) -> Service {
    let ip = IpAddr::from((0xac00_0000 + number).to_be_bytes());
    cluster::service(&format!("default/{}", name(number))).at(ip)
}

fn slice(number: u32, first: u32, count: u32) -> Slice {
    let endpoints = (first..first + count).map(|place| {
        let ip = 0x0a00_0000 + (number << 4) + place;
        ep(IpAddr::from(ip.to_be_bytes()))
    });
    Slice::of(&service(number), 8080, &endpoints.collect::<Vec<_>>())
}
