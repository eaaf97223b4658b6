//! How a watch ends and goes on.

use std::{fs, thread};

use super::log::Log;
use super::server::{Ask, Fault, SERVICES, SLICES, Server};
use super::*;

#[test]
fn a_watch_that_ends_goes_on_from_where_it_was() {
    run(async {
        let server = Server::start().await;
        server.put(SERVICES, service("a", 80));
        let mut consumer = Consumer::of(&server);
        server.until_watched(SERVICES).await;
        server.put(SERVICES, service("b", 80));
        consumer.until_same(&server).await;
        for round in 1..=3 {
            let known = server.version().to_string();
            server.end_watches();
            // While nobody listens.
            server.put(SERVICES, service("c", 80 + round));
            let watch = server
                .until_asked(SERVICES, Ask::Watch, usize::from(round))
                .await;
            assert_eq!(watch.parameter("resourceVersion"), Some(known));
            consumer.until_same(&server).await;
        }
        assert_eq!(consumer.count("listing Service"), 1);
    });
}

#[test]
fn bookmarks_move_the_version_on() {
    run(async {
        let server = Server::start().await;
        let mut consumer = Consumer::of(&server);
        server.until_watched(SERVICES).await;
        // Changes elsewhere make history without telling us.
        server.put("/elsewhere", service("x", 80));
        server.put("/elsewhere", service("y", 80));
        server.bookmark(SERVICES);
        server.put(SERVICES, service("a", 80));
        consumer.until_same(&server).await;
        server.put("/elsewhere", service("z", 80));
        server.bookmark(SERVICES);
        let known = server.version().to_string();
        server.end_watches();
        let watch = server.until_asked(SERVICES, Ask::Watch, 1).await;
        assert_eq!(watch.parameter("resourceVersion"), Some(known));
    });
}

#[test]
fn history_that_is_gone_means_a_new_list() {
    run(async {
        for as_answer in [true, false] {
            let server = Server::start().await;
            server.say_expired_as_answer(as_answer);
            for name in ["a", "b"] {
                server.put(SERVICES, service(name, 80));
            }
            let mut consumer = Consumer::of(&server);
            consumer.until_same(&server).await;
            server.cut();
            server.delete(SERVICES, "default/a");
            server.put(SERVICES, service("c", 80));
            server.compact();
            consumer.until_same(&server).await;
            assert_eq!(services(&consumer.tracker), ["default/b", "default/c"]);
            assert_eq!(consumer.count("listed Service"), 2);
        }
    });
}

#[test]
fn a_connection_that_breaks_within_an_event_loses_nothing() {
    run(async {
        let server = Server::start().await;
        server.put(SERVICES, service("a", 80));
        let mut consumer = Consumer::of(&server);
        consumer.until_same(&server).await;
        for port in 81..86 {
            // The change is cut in half on its way, twice.
            server.fail(SERVICES, Ask::Watch, Fault::Half);
            server.fail(SERVICES, Ask::Watch, Fault::Half);
            server.cut();
            server.put(SERVICES, service("a", port));
            consumer.until_same(&server).await;
        }
        assert_eq!(server.faults_left(), 0);
        assert_eq!(consumer.count("listing Service"), 1);
        assert_eq!(consumer.count("put Service default/a"), 6);
    });
}

#[test]
fn what_came_before_an_error_in_a_watch_counts() {
    run(async {
        let server = Server::start().await;
        let mut consumer = Consumer::of(&server);
        consumer.until_same(&server).await;
        // A change and the error in one piece; the change is not sent again.
        server.fail(
            SERVICES,
            Ask::Watch,
            Fault::EventAndError(500, "InternalError"),
        );
        server.end_watches();
        server.put(SERVICES, service("a", 80));
        consumer.until_same(&server).await;
        assert_eq!(server.faults_left(), 0);
        assert_eq!(consumer.count("listing Service"), 1);
        assert_eq!(consumer.count("put Service default/a"), 1);
    });
}

#[test]
fn a_watch_that_is_silent_for_too_long_is_given_up() {
    run(async {
        let server = Server::start().await;
        let mut settings = settings();
        settings.timings.watch_seconds = 0..1;
        settings.timings.slack = Duration::from_millis(30);
        let counts = Arc::new(Counts::default());
        let api = api_observed(&server, counts.clone());
        let mut consumer = Consumer::with(&api, settings);
        consumer.until_same(&server).await;
        // Open, and nobody at the other end.
        server.fail(SERVICES, Ask::Watch, Fault::Silent);
        server.end_watches();
        server.put(SERVICES, service("a", 80));
        consumer.until_same(&server).await;
        assert_eq!(server.faults_left(), 0);
        assert!(counts.get("watch of services ended false") >= 1);
        assert_eq!(consumer.count("listing Service"), 1);
    });
}

#[test]
fn silence_after_a_bookmark_means_a_dead_connection() {
    run(async {
        let log = Log::new();
        let server = Server::start().await;
        let mut settings = settings();
        settings.timings.bookmarks = Duration::from_millis(50);
        let mut consumer = Consumer::with(&api(&server), settings);
        consumer.until_same(&server).await;
        server.until_watched(SERVICES).await;
        server.bookmark(SERVICES);
        let known = server.version().to_string();
        server.freeze_watches();
        server.put(SERVICES, service("a", 80));
        consumer.until_same(&server).await;
        // It went on from the bookmark, and nothing was listed again.
        let watch = server.until_asked(SERVICES, Ask::Watch, 1).await;
        assert_eq!(watch.parameter("resourceVersion"), Some(known));
        assert_eq!(consumer.count("listing Service"), 1);
        assert_eq!(log.warnings("services").len(), 1);
        // Without a bookmark nobody knows how long silence may last.
        assert_eq!(server.asks(SLICES), [Ask::Stream]);
        assert!(log.warnings("endpointslices").is_empty());
    });
}

#[test]
fn a_plain_thread_can_be_at_the_other_end() {
    let (sink, mut batches) = mpsc::channel::<Vec<Event>>(1);
    let plain = thread::spawn(move || {
        let mut tracker = Tracker::new(SystemTime::UNIX_EPOCH);
        while services(&tracker).len() < 1001 {
            for event in batches.blocking_recv().expect("it goes on") {
                tracker.on(event);
            }
        }
    });
    run(async {
        let server = Server::start().await;
        server.fill(SERVICES, (0..1000).map(|n| service(&format!("s{n}"), 80)));
        let _watch = watch(&api(&server), settings(), &sink);
        server.until_watched(SERVICES).await;
        server.put(SERVICES, service("last", 80));
        timeout(LONG, sink.closed()).await.expect("all arrives");
    });
    plain.join().unwrap();
}

#[test]
fn a_slow_consumer_makes_the_watch_wait_and_misses_nothing() {
    run(async {
        let server = Server::start().await;
        server.fill(SERVICES, (0..3000).map(|n| service(&format!("s{n}"), 80)));
        let mut consumer = Consumer::with_room(&api(&server), settings(), 2);
        server.until_watched(SERVICES).await;
        // Time for everything to be sent that could be.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(consumer.batches.len(), consumer.batches.max_capacity());
        consumer.until_same(&server).await;
        assert_eq!(services(&consumer.tracker).len(), 3000);
    });
}

#[test]
fn dropping_either_end_ends_it_all() {
    run(async {
        let server = Server::start().await;
        let mut consumer = Consumer::of(&server);
        consumer.until_same(&server).await;
        drop(consumer.watch);
        let mut batches = consumer.batches;
        // The tasks are gone when their senders are.
        let end = timeout(LONG, async { while batches.recv().await.is_some() {} });
        end.await.expect("the channel closes");

        let (sink, batches) = mpsc::channel::<Vec<Event>>(1);
        let _watch = watch(&api(&server), settings(), &sink);
        server.until_watched(SERVICES).await;
        drop(batches);
        // Only our own sender is left when all tasks have ended.
        let end = timeout(LONG, async {
            while sink.strong_count() > 1 {
                tokio::task::yield_now().await;
            }
        });
        end.await.expect("all tasks end");
    });
}

#[test]
fn requests_and_restarts_are_counted() {
    run(async {
        let server = Server::start().await;
        let counts = Arc::new(Counts::default());
        let api = api_observed(&server, counts.clone());
        assert_eq!(api.host(), server.address.to_string());
        let mut consumer = Consumer::with(&api, settings());
        server.until_watched(SERVICES).await;
        consumer.until_same(&server).await;
        server.fail(
            SERVICES,
            Ask::Watch,
            Fault::Status(503, "ServiceUnavailable"),
        );
        server.end_watches();
        server.until_asked(SERVICES, Ask::Watch, 2).await;
        server.put(SERVICES, service("a", 80));
        consumer.until_same(&server).await;
        assert_eq!(counts.get("GET 503"), 1);
        assert!(counts.get("GET 200") >= 5);
        assert_eq!(counts.get("listing services"), 1);
        assert_eq!(counts.get("watch of services ended true"), 1);
    });
}

/// Whether the kernel probes the other side of an idle connection to this port.
fn is_kept_alive(port: u16) -> bool {
    let table = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let mut rows = table.lines().map(|row| row.split_whitespace().collect());
    rows.any(|columns: Vec<&str>| {
        // Remote address, state and timer; 01 is established and 02 waits to probe.
        let [remote, state, timer] = [2, 3, 5].map(|at| columns.get(at).copied().unwrap_or(""));
        remote.ends_with(&format!(":{port:04X}")) && state == "01" && timer.starts_with("02:")
    })
}

/// Waits until connections to this port are probed.
async fn until_kept_alive(port: u16) {
    // Until what was sent is acknowledged, another timer runs.
    let probed = timeout(LONG, async {
        while !is_kept_alive(port) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    probed.await.expect("the connection is probed");
}

#[test]
fn a_dead_connection_would_be_noticed_by_probes() {
    run(async {
        let server = Server::start().await;
        let mut consumer = Consumer::of(&server);
        consumer.until_same(&server).await;
        until_kept_alive(server.address.port()).await;
    });
}

#[test]
fn connections_of_users_with_passwords_and_plugins_are_probed_too() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        access::write_plugin(folder.path());
        for user in [access::BASIC, access::PLUGIN] {
            let server = Server::start().await;
            let api = access::api_of(folder.path(), &server, user);
            let mut consumer = Consumer::with(&api, settings());
            consumer.until_same(&server).await;
            until_kept_alive(server.address.port()).await;
        }
    });
}
