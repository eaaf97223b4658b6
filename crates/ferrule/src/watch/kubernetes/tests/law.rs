//! Whatever happens in between, in the end the tracker knows exactly what the server stores.

use super::super::pace::Random;
use super::server::{Ask, CIDRS, Fault, NODES, SERVICES, SLICES, Server};
use super::*;

const STEPS: usize = 400;

/// A number below `end`.
fn below(random: &mut Random, end: u64) -> u64 {
    random.within(&(0..end))
}

fn pick<T: Clone>(random: &mut Random, from: &[T]) -> T {
    let at = usize::try_from(below(random, from.len() as u64)).unwrap();
    from[at].clone()
}

/// Changes something that is stored.
fn change(server: &Server, random: &mut Random) {
    let name = format!("s{}", below(random, 12));
    let key = format!("default/{name}");
    let port = u16::try_from(1 + below(random, 3)).unwrap();
    match below(random, 10) {
        0..=2 => server.put(SERVICES, service(&name, port)),
        3 => server.delete(SERVICES, &key),
        4..=6 => {
            let owner = format!("s{}", below(random, 12));
            server.put(SLICES, slice(&name, &owner, &format!("10.0.0.{port}")));
        }
        7 => server.delete(SLICES, &key),
        8 => server.put(NODES, node("here", &format!("zone-{port}"))),
        _ if below(random, 2) == 0 => {
            server.put(CIDRS, service_cidr(&name, &format!("172.{port}.0.0/16")));
        }
        _ => server.delete(CIDRS, &name),
    }
}

/// Makes life hard for the watches.
async fn trouble(server: &mut Server, random: &mut Random) {
    match below(random, 12) {
        0 => server.cut(),
        1 => server.end_watches(),
        2 => server.compact(),
        3 => server.forget_pages(),
        4 => server.say_expired_as_answer(below(random, 2) == 0),
        5 => {
            server.stop().await;
            for _ in 0..below(random, 4) {
                change(server, random);
            }
            server.resume().await;
        }
        6 => server.page_size(usize::try_from(1 + below(random, 5)).unwrap()),
        7 => {
            server.compact();
            server.cut();
        }
        8 => server.bookmark(pick(random, &[SERVICES, SLICES, CIDRS])),
        _ => {
            let path = pick(random, &[SERVICES, SLICES, NODES, CIDRS]);
            let ask = pick(random, &[Ask::Stream, Ask::List, Ask::Continue, Ask::Watch]);
            let fault = pick(
                random,
                &[
                    Fault::Status(401, "Unauthorized"),
                    Fault::Status(410, "Expired"),
                    Fault::Status(429, "TooManyRequests"),
                    Fault::Status(500, "InternalError"),
                    Fault::Page(502, "<html>Bad Gateway</html>"),
                    Fault::ErrorEvent(410, "Expired"),
                    Fault::ErrorEvent(500, "InternalError"),
                    Fault::Half,
                    Fault::Half,
                    Fault::Silent,
                    Fault::Empty,
                ],
            );
            server.fail(path, ask, fault);
        }
    }
}

fn the_tracker_follows_the_server(seed: u64) {
    run(async {
        let mut random = Random::seeded(seed);
        let mut server = Server::start().await;
        if seed.is_multiple_of(3) {
            server.refuse_streams();
        }
        let mut settings = settings();
        // Silence is among the troubles, so it must be noticed soon.
        settings.timings.answer = Duration::from_millis(100);
        settings.timings.watch_seconds = 0..1;
        settings.timings.slack = Duration::from_millis(100);
        settings.streaming_lists = !seed.is_multiple_of(4);
        if seed.is_multiple_of(2) {
            settings.format = Format::Json;
        }
        // A server may answer in JSON though protobuf was asked for.
        if seed.is_multiple_of(5) {
            server.speak(Format::Json);
        }
        let mut consumer = Consumer::with(&api(&server), settings);
        for _ in 0..STEPS {
            match below(&mut random, 10) {
                0..=5 => change(&server, &mut random),
                6..=7 => trouble(&mut server, &mut random).await,
                8 => tokio::time::sleep(Duration::from_millis(1)).await,
                _ => {
                    // Now and then it must be right in the middle of it all.
                    if below(&mut random, 4) == 0 {
                        consumer.until_same(&server).await;
                    }
                }
            }
        }
        server.forgive();
        consumer.until_same(&server).await;
    });
}

#[test]
fn the_tracker_ends_with_what_the_server_stores() {
    for seed in 1..=12 {
        the_tracker_follows_the_server(seed);
    }
}
