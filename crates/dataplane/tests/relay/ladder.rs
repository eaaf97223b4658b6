//! Endpoints that do not answer, and Services without any.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::channel;
use std::time::Duration;

use ferrule_core::desired::Pool;
use ferrule_core::model::Protocol;
use ferrule_dataplane::userspace::relay::{Backends, Failure, Route};
use ferrule_testbed::{in_namespace, run};

use crate::support::{Scene, backends, closed, named, now, options, outcome};

/// A network in which packets to 10.9.0.100 and up arrive nowhere.
fn with_silence(test: impl FnOnce() + Send) {
    in_namespace(|| {
        for line in [
            "link add v0 type veth peer name v1",
            "address add 10.9.0.1/24 dev v0",
            "link set v0 up",
            "link set v1 up",
        ] {
            run("ip", &line.split(' ').collect::<Vec<_>>());
        }
        for last in 100..108 {
            let ip = format!("10.9.0.{last}");
            let mac = "02:00:00:00:00:99";
            let permanent = ["neighbour", "add", &ip, "lladdr", mac, "dev", "v0"];
            run("ip", &permanent);
        }
        test();
    });
}

fn silent(number: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 9, 0, 100 + number]), 80)
}

#[test]
fn usp_036_silent_endpoints_cost_the_four_steps_of_the_ladder() {
    with_silence(|| {
        let endpoints: Vec<_> = (0..6).map(silent).collect();
        let scene = Scene::tcp(&endpoints);
        let begun = now();
        assert_eq!(outcome(scene.connect()), Err(ErrorKind::ConnectionReset));
        let passed = begun.elapsed();
        assert!(
            passed >= Duration::from_millis(3750),
            "gave up after {passed:?}"
        );
        let stats = scene.stats();
        assert_eq!(stats.failures[&Failure::TimedOut], 4);
        assert_eq!((stats.retries, stats.given_up), (3, 1));
    });
}

#[test]
fn usp_036_a_single_silent_endpoint_is_asked_four_times() {
    with_silence(|| {
        let scene = Scene::tcp(&[silent(0)]);
        assert_eq!(outcome(scene.connect()), Err(ErrorKind::ConnectionReset));
        assert_eq!(scene.stats().failures[&Failure::TimedOut], 4);
    });
}

#[test]
fn usp_038_a_silent_endpoint_does_not_delay_other_clients() {
    with_silence(|| {
        let good = named();
        let scene = Scene::tcp(&[silent(0), silent(1), good]);
        // Some are on their way to silence; those who came later overtake them.
        let clients: Vec<_> = (0..30).map(|_| scene.connect()).collect();
        let (sender, finished) = channel();
        for (number, client) in clients.into_iter().enumerate() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                assert!(outcome(client).is_ok());
                sender.send(number).unwrap();
            });
        }
        drop(sender);
        let order: Vec<usize> = finished.iter().collect();
        assert_eq!(order.len(), 30);
        let overtaken = |(at, number): (usize, &usize)| {
            let earlier = order[..at].iter();
            earlier.filter(|other| *other > number).count()
        };
        let most = order.iter().enumerate().map(overtaken).max().unwrap();
        assert!(most >= 5, "at most {most} overtook one: {order:?}");
        // Nobody was refused, and those that failed are passed over now.
        assert_eq!(scene.stats().given_up, 0);
    });
}

#[test]
fn usp_037_a_refusal_leads_to_the_next_endpoint_at_once() {
    let good = named();
    let scene = Scene::tcp(&[closed(), good, closed()]);
    for _ in 0..6 {
        assert_eq!(scene.ask(), good.port().to_string());
    }
    let stats = scene.stats();
    assert!(stats.failures[&Failure::Refused] >= 2);
    assert_eq!(stats.failures[&Failure::TimedOut], 0);
    assert_eq!(stats.given_up, 0);
}

#[test]
fn usp_039_without_endpoints_clients_are_reset() {
    let scene = Scene::tcp(&[]);
    assert_eq!(outcome(scene.connect()), Err(ErrorKind::ConnectionReset));
    let stats = scene.stats();
    assert_eq!((stats.no_endpoint, stats.given_up), (1, 0));
}

#[test]
fn usp_035_a_sticky_client_moves_on_when_its_endpoint_fails_and_stays_there() {
    let (first, second) = (named(), named());
    let sticky = |endpoints: &[SocketAddr]| Backends {
        affinity: Some(Duration::from_mins(10)),
        ..backends(endpoints)
    };
    let scene = Scene::new(options(), Protocol::Tcp, sticky(&[first, second]));
    let served = scene.ask();
    assert_eq!(scene.ask(), served);
    // The same set with a dead endpoint beside it changes nothing for this client.
    let dead = closed();
    scene.set(sticky(&[first, second, dead]));
    for _ in 0..6 {
        assert_eq!(scene.ask(), served);
    }
    // When its endpoint leaves, the client gets one of the others, not the dead one, and stays.
    let other = if served == first.port().to_string() {
        second
    } else {
        first
    };
    scene.set(sticky(&[other, dead]));
    for _ in 0..6 {
        assert_eq!(scene.ask(), other.port().to_string());
    }
}

#[test]
fn clients_inside_the_cluster_have_a_pool_of_their_own() {
    let (cluster, local) = (named(), named());
    let split = Backends {
        cluster: vec![cluster],
        local: vec![local],
        internal: Route {
            pool: Some(Pool::Local),
            inside: Some(Pool::Cluster),
        },
        ..Backends::default()
    };
    let scene = Scene::new(options(), Protocol::Tcp, split);
    assert_eq!(scene.ask(), local.port().to_string());
    scene.relay.set_inside(vec!["127.0.0.0/8".parse().unwrap()]);
    assert_eq!(scene.ask(), cluster.port().to_string());
}
