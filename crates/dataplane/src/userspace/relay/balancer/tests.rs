//! Choices, without sockets and without waiting.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ferrule_core::desired::Pool;

use super::{Attempts, Balancer};

fn endpoint(number: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 0, 0, number]), 80)
}

fn client(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, number])
}

fn endpoints(count: u8) -> Vec<SocketAddr> {
    (1..=count).map(endpoint).collect()
}

fn balancer(count: u8, affinity: Option<u64>) -> Balancer {
    let mut balancer = Balancer::default();
    balancer.set(&endpoints(count), &[], affinity.map(Duration::from_secs), 1);
    balancer
}

#[expect(clippy::disallowed_methods, reason = "any moment will do")]
fn start() -> Instant {
    Instant::now()
}

/// Serves a client, as if every endpoint answered.
fn serve(balancer: &mut Balancer, who: u8, now: Instant) -> SocketAddr {
    let chosen = balancer
        .pick(Pool::Cluster, client(who), &Attempts::NONE, now)
        .unwrap();
    balancer.answered(&chosen);
    balancer.assign(client(who), chosen, now);
    chosen
}

fn serve_many(balancer: &mut Balancer, count: usize, now: Instant) -> Vec<SocketAddr> {
    (0..count).map(|_| serve(balancer, 1, now)).collect()
}

#[test]
fn usp_026_every_endpoint_has_one_turn_per_round() {
    let (mut balancer, now) = (balancer(5, None), start());
    let first = serve_many(&mut balancer, 5, now);
    let distinct: BTreeSet<_> = first.iter().collect();
    assert_eq!(distinct.len(), 5);
    assert_eq!(serve_many(&mut balancer, 5, now), first);
}

#[test]
fn usp_027_the_same_endpoints_in_another_order_keep_whose_turn_it_is() {
    let (mut balancer, now) = (balancer(5, None), start());
    let order = serve_many(&mut balancer, 5, now);
    serve_many(&mut balancer, 2, now);
    let mut reversed = endpoints(5);
    reversed.reverse();
    balancer.set(&reversed, &[], None, 99);
    assert_eq!(serve_many(&mut balancer, 3, now), order[2..]);
}

#[test]
fn usp_027_other_endpoints_begin_a_new_round() {
    let (mut balancer, now) = (balancer(5, None), start());
    serve_many(&mut balancer, 2, now);
    balancer.set(&endpoints(6), &[], None, 1);
    let round: BTreeSet<_> = serve_many(&mut balancer, 6, now).into_iter().collect();
    assert_eq!(round.len(), 6);
}

#[test]
fn usp_028_each_update_shuffles_anew() {
    let now = start();
    let orders: BTreeSet<_> = (0..20)
        .map(|seed| {
            let mut balancer = Balancer::default();
            balancer.set(&endpoints(8), &[], None, seed);
            serve_many(&mut balancer, 8, now)
        })
        .collect();
    assert!(orders.len() >= 19, "{} orders of 20", orders.len());
    // Each endpoint comes first sometimes: nobody gets the first client of every node.
    let first: BTreeSet<_> = orders.iter().map(|order| order[0]).collect();
    assert!(first.len() >= 4);
}

#[test]
fn pools_take_turns_of_their_own() {
    let now = start();
    let mut balancer = Balancer::default();
    balancer.set(&endpoints(3), &[endpoint(1), endpoint(2)], None, 1);
    let cluster = serve_many(&mut balancer, 1, now)[0];
    for _ in 0..5 {
        let local = balancer.pick(Pool::Local, client(1), &Attempts::NONE, now);
        assert!(local.is_some());
    }
    let rest = serve_many(&mut balancer, 2, now);
    assert!(!rest.contains(&cluster) && rest[0] != rest[1]);
}

#[test]
fn usp_030_a_client_stays_while_its_time_lasts_and_each_use_renews_it() {
    let (mut balancer, start) = (balancer(5, Some(100)), start());
    let first = serve(&mut balancer, 1, start);
    for seconds in [99, 198, 297] {
        let now = start + Duration::from_secs(seconds);
        assert_eq!(serve(&mut balancer, 1, now), first);
    }
    // Others take their turns meanwhile.
    let others: BTreeSet<_> = (2..=5)
        .map(|who| serve(&mut balancer, who, start))
        .collect();
    assert_eq!(others.len(), 4);
}

#[test]
fn usp_031_affinity_ends_after_the_configured_time() {
    let (mut balancer, start) = (balancer(5, Some(100)), start());
    let first = serve(&mut balancer, 1, start);
    let late = start + Duration::from_secs(100);
    assert_ne!(serve(&mut balancer, 1, late), first);
}

#[test]
fn usp_032_another_time_holds_at_once_and_for_everybody() {
    let (mut balancer, start) = (balancer(5, Some(100)), start());
    let (first, second) = (
        serve(&mut balancer, 1, start),
        serve(&mut balancer, 2, start),
    );
    let later = start + Duration::from_secs(50);
    balancer.set(&endpoints(5), &[], Some(Duration::from_secs(200)), 2);
    assert_eq!(serve(&mut balancer, 1, later), first);
    balancer.set(&endpoints(5), &[], Some(Duration::from_secs(10)), 3);
    assert_ne!(serve(&mut balancer, 2, later), second);
}

#[test]
fn usp_033_without_affinity_a_client_meets_every_endpoint() {
    let (mut balancer, now) = (balancer(4, None), start());
    let met: BTreeSet<_> = serve_many(&mut balancer, 4, now).into_iter().collect();
    assert_eq!(met.len(), 4);
}

#[test]
fn usp_034_an_endpoint_that_leaves_frees_its_clients_and_only_them() {
    let (mut balancer, now) = (balancer(5, Some(100)), start());
    let (first, second) = (serve(&mut balancer, 1, now), serve(&mut balancer, 2, now));
    let rest: Vec<_> = endpoints(5).into_iter().filter(|e| *e != first).collect();
    balancer.set(&rest, &[], Some(Duration::from_secs(100)), 2);
    assert_ne!(serve(&mut balancer, 1, now), first);
    assert_eq!(serve(&mut balancer, 2, now), second);
    // Coming back does not bring the old clients back.
    balancer.set(&endpoints(5), &[], Some(Duration::from_secs(100)), 3);
    assert_ne!(serve(&mut balancer, 1, now), first);
}

#[test]
fn usp_035_a_failed_attempt_leaves_the_record_until_another_succeeds() {
    let (mut balancer, now) = (balancer(3, Some(100)), start());
    let first = serve(&mut balancer, 1, now);
    balancer.failed(first, now);
    let attempts = Attempts {
        refused: &[],
        silent: &[first],
    };
    let next = balancer.pick(Pool::Cluster, client(1), &attempts, now);
    let next = next.unwrap();
    assert_ne!(next, first);
    // Nothing came of that one yet, so the client still belongs to the first.
    let again = balancer.pick(Pool::Cluster, client(1), &Attempts::NONE, now);
    assert_eq!(again, Some(first));
    balancer.assign(client(1), next, now);
    assert_eq!(serve(&mut balancer, 1, now), next);
}

#[test]
fn endpoints_that_were_asked_in_vain_come_last_and_those_that_refused_never() {
    let (mut balancer, now) = (balancer(3, None), start());
    let attempts = Attempts {
        refused: &[endpoint(1)],
        silent: &[endpoint(2)],
    };
    for _ in 0..3 {
        let chosen = balancer.pick(Pool::Cluster, client(1), &attempts, now);
        assert_eq!(chosen, Some(endpoint(3)));
    }
    let attempts = Attempts {
        refused: &[endpoint(1), endpoint(3)],
        silent: &[endpoint(2)],
    };
    let chosen = balancer.pick(Pool::Cluster, client(1), &attempts, now);
    assert_eq!(chosen, Some(endpoint(2)));
    let attempts = Attempts {
        refused: &endpoints(3),
        silent: &[],
    };
    assert_eq!(
        balancer.pick(Pool::Cluster, client(1), &attempts, now),
        None
    );
}

#[test]
fn endpoints_that_fail_again_and_again_are_passed_over_for_a_while() {
    let (mut balancer, now) = (balancer(4, None), start());
    for _ in 0..3 {
        balancer.failed(endpoint(1), now);
    }
    assert_eq!(balancer.ejected(now), 1);
    assert!(!serve_many(&mut balancer, 12, now).contains(&endpoint(1)));
    let later = now + Duration::from_secs(5);
    assert!(serve_many(&mut balancer, 4, later).contains(&endpoint(1)));
}

#[test]
fn a_pool_never_loses_more_than_half_of_its_endpoints() {
    let (mut balancer, now) = (balancer(5, None), start());
    for number in 1..=5 {
        for _ in 0..10 {
            balancer.failed(endpoint(number), now);
        }
    }
    assert_eq!(balancer.ejected(now), 2);
    let mut single = self::balancer(1, None);
    for _ in 0..10 {
        single.failed(endpoint(1), now);
    }
    assert_eq!(serve(&mut single, 1, now), endpoint(1));
}

#[test]
fn the_memory_for_clients_is_limited() {
    let (mut balancer, start) = (balancer(2, Some(3600)), start());
    for number in 0..600_000_u32 {
        let who = IpAddr::from(number.to_be_bytes());
        balancer.assign(
            who,
            endpoint(1),
            start + Duration::from_millis(number.into()),
        );
    }
    let clients = &balancer.affinity.clients;
    assert!(clients.len() <= super::MOST_CLIENTS, "{}", clients.len());
    // Those who came last are still known.
    assert!(clients.contains_key(&IpAddr::from(599_999_u32.to_be_bytes())));
}
