//! How endpoints are drawn: evenly, and without a change of verdicts when there is one more or less.

use std::net::{IpAddr, SocketAddr, TcpStream};

use ferrule_core::model::Family;
use ferrule_kernel::nft::Name;
use ferrule_testbed::feed;

use crate::layout::block;
use crate::support::*;

/// So many endpoints elsewhere.
fn pods(family: Family, count: u8) -> Vec<(IpAddr, bool)> {
    let pod = |y| (address(family, 1, y), false);
    (1..=count).map(pod).collect()
}

/// How many first packets came to each of so many endpoints.
fn arrivals(family: Family, count: u8) -> Vec<u32> {
    let text = run("nft", &["list", "chain", "inet", "arrivals", "input"]);
    let arrived = |(pod, _)| {
        let rule = format!(" daddr {pod} ct state new counter packets ");
        let (_, rest) = text.split_once(&rule)?;
        rest.split_whitespace().next()?.parse().ok()
    };
    let pods = pods(family, count).into_iter();
    pods.map(|pod| arrived(pod).unwrap_or_else(|| panic!("no counter in {text}")))
        .collect()
}

/// Lets this network be the endpoints too, and count what comes to each.
fn receive(family: Family, count: u8) {
    let mut rules = String::from(
        "add table inet arrivals\n\
         add chain inet arrivals input { type filter hook input priority 10; }\n",
    );
    let (ip, length) = match family {
        Family::V4 => ("ip", 32),
        Family::V6 => ("ip6", 128),
    };
    for (pod, _) in pods(family, count) {
        let here = format!("{pod}/{length}");
        run("ip", &["address", "add", &here, "dev", "lo", "nodad"]);
        let rule = format!("add rule inet arrivals input {ip} daddr {pod} ct state new counter\n");
        rules.push_str(&rule);
    }
    feed("nft", &["-f", "-"], &rules);
    let to = match family {
        Family::V4 => "10.96.0.0/16",
        Family::V6 => "fd00::60:0/112",
    };
    let source = address(family, 1, 1).to_string();
    run("ip", &["route", "add", to, "dev", "lo", "src", &source]);
}

/// The χ² statistic of counts that should be equal.
fn chi_squared(counts: &[u32]) -> f64 {
    let total: u32 = counts.iter().sum();
    let different = u32::try_from(counts.len()).expect("there are few counts");
    let expected = f64::from(total) / f64::from(different);
    let deviation = |count: &u32| (f64::from(*count) - expected).powi(2) / expected;
    counts.iter().map(deviation).sum()
}

#[test]
fn a_hundred_thousand_connections_are_spread_evenly_though_slots_are_empty() {
    both(|family| {
        // Five of eight slots are taken; χ² with four degrees of freedom is above 33 once in a million.
        let (count, connections) = (5, 100_000);
        receive(family, count);
        let mut scene = Scene::new(family);
        scene
            .service(service(family, "web", 1))
            .slice(slice(family, "web", &pods(family, count)));
        scene.whole();
        let to = SocketAddr::new(address(family, 96, 1), 80);
        for _ in 0..connections {
            // Nobody listens: every connection is refused at once, and was drawn before.
            TcpStream::connect(to).unwrap_err();
        }
        let counts = arrivals(family, count);
        assert_eq!(counts.iter().sum::<u32>(), connections, "{counts:?}");
        let chi_squared = chi_squared(&counts);
        assert!(chi_squared < 33.0, "{counts:?}: {chi_squared}");
    });
}

#[test]
fn however_many_endpoints_every_packet_finds_one() {
    both(|family| {
        receive(family, 17);
        let mut scene = Scene::new(family);
        scene.service(service(family, "web", 1));
        let to = SocketAddr::new(address(family, 96, 1), 80);
        let mut before = vec![0; 17];
        for count in (1..=17).chain((1..17).rev()) {
            let endpoints = pods(family, count);
            scene.slice(slice(family, "web", &endpoints)).step();
            for _ in 0..300 {
                TcpStream::connect(to).unwrap_err();
            }
            let after = arrivals(family, 17);
            let new: Vec<u32> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
            let (used, others) = new.split_at(count.into());
            assert_eq!(used.iter().sum::<u32>(), 300, "{count}: {new:?}");
            assert!(used.iter().all(|arrived| *arrived > 0), "{count}: {new:?}");
            assert!(
                others.iter().all(|arrived| *arrived == 0),
                "{count}: {new:?}"
            );
            before = after;
        }
    });
}

#[test]
fn one_endpoint_more_or_less_changes_no_verdict_up_to_the_next_power_of_two() {
    both(|family| {
        let mut scene = Scene::new(family);
        scene.service(service(family, "web", 1));
        let web = |scene: &mut Scene, count| {
            scene.slice(slice(family, "web", &pods(family, count)));
            scene.step();
            let verdicts = |elements: &[_]| elements.to_vec();
            verdicts(&scene.snapshot().elements[&Name::from("service-ips")])
        };
        for (first, last) in [(1, 4), (5, 8), (9, 16), (17, 32)] {
            let verdicts = web(&mut scene, first);
            for count in (first..=last).chain(first..last) {
                assert_eq!(web(&mut scene, count), verdicts, "{count}");
            }
        }
    });
}

#[test]
fn endpoints_behind_those_of_this_node_are_never_drawn_with_them() {
    both(|family| {
        receive(family, 6);
        let mut scene = Scene::new(family);
        let outside = address(family, 8, 1);
        let local = service(family, "web", 1)
            .external_ips(&[outside])
            .external_local();
        let mut endpoints = pods(family, 6);
        endpoints[..3].iter_mut().for_each(|(_, here)| *here = true);
        scene.service(local).slice(slice(family, "web", &endpoints));
        scene.whole();
        let text = run("nft", &["list", "ruleset"]);
        // Three local ones and three others behind them; inside the cluster all six.
        assert!(
            text.contains("goto pick-3\n") || text.contains("goto pick-3 "),
            "{text}"
        );
        assert!(text.contains("goto pick-up-to-8"), "{text}");
        let three = |slots| format!("numgen random mod {slots} map @ferrule-endpoints");
        let chain = block(&text, "chain pick-3");
        assert_eq!(chain.len(), 2, "{chain:?}");
        assert!(
            chain[0].ends_with(&three(3)) && chain[1].ends_with(&three(1)),
            "{chain:?}"
        );
    });
}
