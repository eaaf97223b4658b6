//! The API server is away, overloaded, or will not have us: what we do and what we say.

use super::log::Log;
use super::server::{Ask, Fault, NODES, SERVICES, Server};
use super::*;

#[test]
fn every_refusal_is_survived_on_list_and_watch() {
    run(async {
        let faults = [
            Fault::Status(400, "BadRequest"),
            Fault::Status(401, "Unauthorized"),
            Fault::Status(403, "Forbidden"),
            Fault::Page(404, "404 page not found\n"),
            Fault::Status(429, "TooManyRequests"),
            Fault::Status(500, "InternalError"),
            Fault::Status(503, "ServiceUnavailable"),
            Fault::Page(502, "<html>Bad Gateway</html>"),
            Fault::Page(200, "<html>Please log in</html>"),
            Fault::Empty,
            Fault::Half,
            Fault::Slow(Duration::from_millis(20)),
        ];
        let server = Server::start().await;
        server.refuse_streams();
        server.put(SERVICES, service("a", 80));
        for fault in &faults {
            server.fail(SERVICES, Ask::List, fault.clone());
        }
        let mut consumer = Consumer::of(&server);
        consumer.until_same(&server).await;
        assert_eq!(server.faults_left(), 0);
        for (port, fault) in (1000..).zip(&faults) {
            server.until_watched(SERVICES).await;
            server.fail(SERVICES, Ask::Watch, fault.clone());
            server.end_watches();
            server.put(SERVICES, service("a", port));
            consumer.until_same(&server).await;
            assert_eq!(server.faults_left(), 0, "{fault:?}");
        }
    });
}

#[test]
fn a_server_that_restarts_on_its_port_is_found_again() {
    run(async {
        let mut server = Server::start().await;
        server.put(SERVICES, service("a", 80));
        let mut consumer = Consumer::of(&server);
        consumer.until_same(&server).await;
        for port in 81..84 {
            server.stop().await;
            server.put(SERVICES, service("a", port));
            tokio::time::sleep(Duration::from_millis(10)).await;
            server.resume().await;
            consumer.until_same(&server).await;
        }
        // Its history was still there, so nothing was listed again.
        assert_eq!(consumer.count("listing Service"), 1);
    });
}

#[test]
fn a_server_that_comes_late_is_waited_for() {
    run(async {
        let log = Log::new();
        let mut server = Server::start().await;
        server.put(SERVICES, service("a", 80));
        server.stop().await;
        let mut consumer = Consumer::of(&server);
        while log.warnings("services").is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        server.resume().await;
        consumer.until_same(&server).await;
        // Said once, though it was tried more often, and taken back.
        let warnings = log.warnings("services");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let address = server.address.to_string();
        assert!(
            warnings[0].contains("cannot reach the API server"),
            "{warnings:?}"
        );
        assert!(
            warnings[0].contains(&format!("nothing listens on {address}")),
            "{warnings:?}"
        );
        assert!(warnings[0].contains("retry_in="), "{warnings:?}");
        let again = "The API server answers again";
        assert!(log.lines().iter().any(|line| line.contains(again)));
    });
}

#[test]
fn a_server_that_never_answers_is_asked_again() {
    run(async {
        let server = Server::start().await;
        server.put(SERVICES, service("a", 80));
        server.fail(SERVICES, Ask::Stream, Fault::NoAnswer);
        let mut settings = settings();
        settings.timings.answer = Duration::from_millis(50);
        let mut consumer = Consumer::with(&api(&server), settings);
        consumer.until_same(&server).await;
        assert_eq!(server.faults_left(), 0);
    });
}

#[test]
fn a_forbidden_watch_says_which_permission_is_missing() {
    run(async {
        let log = Log::new();
        let server = Server::start().await;
        server.fail(NODES, Ask::Stream, Fault::Status(403, "Forbidden"));
        let mut consumer = Consumer::of(&server);
        consumer.until_same(&server).await;
        let warnings = log.warnings("nodes");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].contains("403 Forbidden: because of Forbidden"),
            "{warnings:?}"
        );
        assert!(
            warnings[0].contains("the verbs list and watch on nodes in API group \"\""),
            "{warnings:?}"
        );
    });
}

#[test]
fn a_busy_server_is_left_alone_for_as_long_as_it_asks() {
    run(async {
        let log = Log::new();
        let server = Server::start().await;
        server.fail(SERVICES, Ask::Stream, Fault::Busy(429, 1));
        let mut consumer = Consumer::of(&server);
        consumer.until_same(&server).await;
        let warnings = log.warnings("services");
        assert!(warnings[0].contains("retry_in=1s"), "{warnings:?}");
    });
}

#[test]
fn one_object_that_makes_no_sense_does_not_stop_the_others() {
    run(async {
        for streams in [true, false] {
            let server = Server::start().await;
            if !streams {
                server.refuse_streams();
            }
            let mut bad = service("b", 80);
            bad["spec"] = json!("?");
            server.put(SERVICES, service("a", 80));
            server.put(SERVICES, bad.clone());
            server.put(SERVICES, service("c", 80));
            let mut consumer = Consumer::of(&server);
            consumer.until_received("listed Service", 1).await;
            assert_eq!(services(&consumer.tracker), ["default/a", "default/c"]);
            let issues: Vec<String> = consumer.tracker.issues().map(ToString::to_string).collect();
            assert_eq!(issues.len(), 1);
            assert!(issues[0].starts_with("Service default/b: "), "{issues:?}");
            server.until_watched(SERVICES).await;
            server.put(SERVICES, bad);
            server.put(SERVICES, service("d", 80));
            consumer.until_received("put Service default/d", 1).await;
            assert_eq!(consumer.count("listing Service"), 1);
        }
    });
}

#[test]
fn an_object_that_no_longer_decodes_keeps_its_last_good_state() {
    run(async {
        for streams in [true, false] {
            let server = Server::start().await;
            if !streams {
                server.refuse_streams();
            }
            let mut bad = service("a", 80);
            bad["spec"]["ports"] = json!("?");
            server.put(SERVICES, service("a", 80));
            let mut consumer = Consumer::of(&server);
            consumer.until_same(&server).await;
            consumer.tracker.take();
            server.until_watched(SERVICES).await;
            // In a watch.
            server.put(SERVICES, bad.clone());
            consumer.until_received("kept Service default/a", 1).await;
            // In a list.
            server.compact();
            server.cut();
            consumer.until_received("listed Service", 2).await;
            assert_eq!(consumer.count("kept Service default/a"), 2);
            assert_eq!(services(&consumer.tracker), ["default/a"]);
            assert_eq!(consumer.tracker.take(), None);
            let issues: Vec<String> = consumer.tracker.issues().map(ToString::to_string).collect();
            assert_eq!(issues.len(), 1, "{issues:?}");
            let [object, rest] = ["Service default/a", "its last valid state"];
            assert!(
                issues[0].starts_with(object) && issues[0].contains(rest),
                "{issues:?}"
            );
            // It decodes again.
            server.until_watched(SERVICES).await;
            server.put(SERVICES, service("a", 81));
            consumer.until_same(&server).await;
            assert_eq!(consumer.tracker.issues().count(), 0);
            assert!(consumer.tracker.take().is_some());
            // Or it is deleted.
            server.put(SERVICES, bad);
            server.delete(SERVICES, "default/a");
            consumer.until(|tracker| services(tracker).is_empty()).await;
            assert_eq!(consumer.tracker.issues().count(), 0);
        }
    });
}
