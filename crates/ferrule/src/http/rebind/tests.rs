//! A server on real sockets; where it waits, the clock jumps.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::http::testing::{ask, echo, free_port, log, loopback, refuses, status};
use crate::http::{EVENT_ACTION, RebindingServer, Role, ServerError};

/// Runs a test on a clock that jumps whenever all wait.
fn block_on(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(test);
}

fn server(role: Role, address: SocketAddr, hard_fail: bool) -> RebindingServer {
    RebindingServer::open(
        &tokio::runtime::Handle::current(),
        role,
        address,
        hard_fail,
        echo(),
    )
}

async fn until_at(server: &mut RebindingServer, address: SocketAddr) {
    server
        .serving
        .wait_for(|serving| *serving == Some(address))
        .await
        .unwrap();
}

/// A request from another thread, because this one serves it.
async fn status_at(address: SocketAddr) -> String {
    tokio::task::spawn_blocking(move || status(&ask(address, "GET /")).to_owned())
        .await
        .unwrap()
}

async fn refused_at(address: SocketAddr) -> bool {
    tokio::task::spawn_blocking(move || refuses(address))
        .await
        .unwrap()
}

#[test]
fn core_065_an_address_in_use_is_tried_again_every_five_seconds() {
    block_on(async {
        log::collect();
        for (role, line) in [
            (
                Role::ProxyHealth,
                "Healthz server failed: failed to start proxy healthz on ADDRESS: \
             listen tcp ADDRESS: bind: address already in use",
            ),
            (
                Role::Metrics,
                "starting metrics server failed: \
             listen tcp ADDRESS: bind: address already in use",
            ),
        ] {
            let taken = TcpListener::bind(loopback()).unwrap();
            let address = taken.local_addr().unwrap();
            log::take();
            let mut server = server(role, address, false);
            sleep(Duration::from_secs(12)).await;
            let line = line.replace("ADDRESS", &address.to_string());
            assert_eq!(log::take(), [line.as_str(); 3], "at 0, 5 and 10 seconds");
            assert_eq!(server.address(), None);
            drop(taken);
            let before = Instant::now();
            until_at(&mut server, address).await;
            assert_eq!(
                before.elapsed().as_secs(),
                3,
                "the next attempt, at 15 seconds"
            );
            assert_eq!(log::take().len(), 0);
            server.close().await;
        }
    });
}

#[test]
fn core_065_with_hard_fail_the_first_failure_is_final_and_names_its_event() {
    block_on(async {
        let taken = TcpListener::bind(loopback()).unwrap();
        let address = taken.local_addr().unwrap();
        let cause = format!("listen tcp {address}: bind: address already in use");
        let mut failing = server(Role::ProxyHealth, address, true);
        let health: ServerError = failing.failed().await;
        failing.close().await;
        assert_eq!(
            health.to_string(),
            format!("healthz server failed: failed to start proxy healthz on {address}: {cause}")
        );
        let metrics = server(Role::Metrics, address, true).failed().await;
        assert_eq!(metrics.to_string(), cause);
        assert_eq!(
            (
                Role::ProxyHealth.event_reason(),
                Role::Metrics.event_reason(),
                EVENT_ACTION
            ),
            (
                "FailedToStartProxierHealthcheck",
                "FailedToStartMetricServer",
                "StartKubeProxy"
            )
        );
    });
}

#[tokio::test]
async fn a_station_answers_until_it_is_closed() {
    let mut server = server(Role::Metrics, loopback(), true);
    server.serving.wait_for(Option::is_some).await.unwrap();
    let address = server.address().unwrap();
    assert_eq!(status_at(address).await, "200");
    server.close().await;
    assert!(refused_at(address).await);
}

#[tokio::test]
async fn a_station_moves_while_it_runs() {
    let mut server = server(Role::Metrics, loopback(), true);
    server.serving.wait_for(Option::is_some).await.unwrap();
    let first = server.address().unwrap();
    let second = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port("127.0.0.1")));
    server.rebind(second);
    until_at(&mut server, second).await;
    assert_eq!(status_at(second).await, "200");
    assert!(refused_at(first).await);
    server.close().await;
}

#[tokio::test]
async fn a_station_can_grow_to_the_wildcard_of_its_own_port_and_shrink_again() {
    let port = free_port("127.0.0.1");
    let single = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let wildcard = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let mut server = server(Role::ProxyHealth, single, true);
    until_at(&mut server, single).await;
    server.rebind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
    until_at(&mut server, wildcard).await;
    assert_eq!(status_at((Ipv6Addr::LOCALHOST, port).into()).await, "200");
    server.rebind(single);
    until_at(&mut server, single).await;
    assert!(refused_at((Ipv6Addr::LOCALHOST, port).into()).await);
    assert_eq!(status_at(single).await, "200");
    server.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_move_to_an_address_in_use_keeps_the_old_one_and_tries_again() {
    let taken = TcpListener::bind(loopback()).unwrap();
    let wish = taken.local_addr().unwrap();
    // Hard failure is about the start.
    let mut server = server(Role::Metrics, loopback(), true);
    server.serving.wait_for(Option::is_some).await.unwrap();
    let first = server.address().unwrap();
    server.rebind(wish);
    sleep(Duration::from_secs(6)).await;
    assert_eq!(server.address(), Some(first));
    drop(taken);
    until_at(&mut server, wish).await;
    server.close().await;
}
