//! What it costs to compare the kernel with what is desired, in a network of its own:
//! `verify_cost <services> <endpoints> [mode…]`.
//!
//! In modes nftables and iptables, the latter in the nft flavour: everything is written, then
//! compared, first as it is and then with one piece of damage. Beside it stands what the mode's own tool
//! needs to print the rules. Run it as root.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement"
)]

use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Instant;

use ferrule_core::facts::{DetectLocal, Settings};
use ferrule_core::model::Family;
use ferrule_dataplane::iptables::{self, Iptables};
use ferrule_dataplane::nftables::{self, Nftables};
use ferrule_dataplane::verify::Report;
use ferrule_dataplane::{Dataplane, Scope, Work};
use ferrule_kernel::netns;
use ferrule_kernel::xt::{Flavour, Xt};
use ferrule_testbed::cluster::{self, Cluster, Objects, ep};

type Measure = fn(&Cluster);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| words.get(at).map_or(default, |word| word.parse().unwrap());
    let (services, endpoints) = (number(0, 10_000), number(1, 2));
    for (mode, measure) in [
        ("nftables", by_nftables as Measure),
        ("iptables", by_iptables as Measure),
    ] {
        if words.len() < 3 || words.iter().any(|word| word == mode) {
            netns::isolated(|| measure(&cluster(services, endpoints))).unwrap();
        }
    }
}

fn cluster(services: u32, endpoints: u32) -> Cluster {
    let cidr = ["10.0.0.0/8".parse().unwrap()].into();
    let mut cluster = Cluster::with(Settings {
        detect_local: DetectLocal::ClusterCidr(cidr),
        ..Settings::default()
    });
    for number in 0..services {
        let name = format!("s{number}");
        let [_, _, high, low] = number.to_be_bytes();
        let service = cluster::service(&name).at(IpAddr::from([172, 16, high, low]));
        let pods: Vec<_> = (0..endpoints)
            .map(|pod| {
                let [_, a, b, c] = (number * endpoints + pod).to_be_bytes();
                ep(&format!("10.{a}.{b}.{c}"))
            })
            .collect();
        cluster.serving(&service, 8080, &pods);
    }
    cluster.step();
    println!("{services} Services with {endpoints} endpoints");
    cluster
}

fn write(dataplane: &mut impl Dataplane, cluster: &Cluster) {
    let work = Work {
        desired: &cluster.desired,
        scope: Scope::Full,
        local: &[],
    };
    let steps = dataplane.apply(&work).unwrap().steps;
    println!("  {steps} steps");
}

fn by_nftables(cluster: &Cluster) {
    println!("mode nftables");
    let options = nftables::Options::default();
    let mut dataplane = Nftables::open(Family::V4, options).unwrap();
    write(&mut dataplane, cluster);
    let verify = || nftables::verify(&cluster.desired, Family::V4, options).unwrap();
    compare("as it is", 0, verify);
    run(
        "nft",
        "delete element ip kube-proxy service-ips { 172.16.0.7 . tcp . 80 }",
    );
    compare("with an element less", 1, verify);
    time("nft list ruleset", || run("nft", "list ruleset"));
}

fn by_iptables(cluster: &Cluster) {
    println!("mode iptables, nft flavour");
    let options = iptables::Options::default();
    let open = || Xt::open_as(Flavour::Nft, ferrule_kernel::Family::V4).unwrap();
    let mut dataplane = Iptables::new(Family::V4, options, open());
    write(&mut dataplane, cluster);
    let verify = || {
        let desired = &cluster.desired;
        iptables::verify_by(open(), desired, Family::V4, options, &[]).unwrap()
    };
    compare("as it is", 0, verify);
    run("iptables-nft", "-t nat -D KUBE-MARK-MASQ 1");
    compare("with a rule less", 1, verify);
    time("iptables-nft-save", || run("iptables-nft-save", ""));
}

fn compare(what: &str, differences: usize, verify: impl Fn() -> Report) {
    for _ in 0..3 {
        time(&format!("verify, {what}"), || {
            assert_eq!(verify().discrepancies.len(), differences);
        });
    }
}

fn run(program: &str, arguments: &str) {
    let words = arguments.split(' ').filter(|word| !word.is_empty());
    let status = Command::new(program)
        .args(words)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{program} {arguments}");
}

fn time(what: &str, f: impl FnOnce()) {
    let begun = Instant::now();
    f();
    println!("  {what}: {:.0} ms", begun.elapsed().as_secs_f64() * 1000.0);
}
