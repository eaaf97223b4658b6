//! Events as the API server receives them.

use super::super::recorder::{Recorder, Regarding, Report, Severity};
use super::server::{Ask, Fault, Seen, Server};
use super::*;

const DEFAULT: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

fn body(seen: &Seen) -> Value {
    serde_json::from_slice(&seen.body).unwrap()
}

pub fn recorder(server: &Server) -> Recorder {
    Recorder::start_with(api(server), "machine-7", quick())
}

fn warning() -> Report {
    Report {
        regarding: Regarding::Service {
            namespace: "shop".to_owned(),
            name: "lb1".to_owned(),
        },
        severity: Severity::Warning,
        reason: "FailedToStartServiceHealthcheck",
        action: "Listen",
        note: "node node-1 failed to start healthcheck".to_owned(),
        shared: false,
    }
}

#[test]
fn core_051_a_start_is_announced_on_the_node() {
    run(async {
        let server = Server::start().await;
        let recorder = recorder(&server);
        recorder.record(&Report::birth_cry("node-1"));
        let seen = server.until_asked(DEFAULT, Ask::Post, 1).await;
        assert_eq!(seen.header("content-type"), "application/json");
        let mut event = body(&seen);
        // The same moment, to the microsecond and in nanoseconds.
        let time = event["eventTime"].take();
        let time = time.as_str().unwrap();
        assert!(
            time.len() == "2026-11-15T09:19:13.867994Z".len() && time.ends_with('Z'),
            "{time}"
        );
        let at: jiff::Timestamp = time.parse().unwrap();
        let name = event["metadata"]["name"].take();
        let (node, nanoseconds) = name.as_str().unwrap().rsplit_once('.').unwrap();
        assert_eq!(node, "node-1");
        let nanoseconds = i128::from_str_radix(nanoseconds, 16).unwrap();
        assert_eq!(nanoseconds / 1000, i128::from(at.as_microsecond()));
        assert_eq!(
            event,
            json!({
                "kind": "Event", "apiVersion": "events.k8s.io/v1",
                "metadata": {"name": null, "namespace": "default"},
                "eventTime": null,
                "reportingController": "kube-proxy",
                "reportingInstance": "kube-proxy-machine-7",
                "action": "StartKubeProxy", "reason": "Starting", "type": "Normal",
                "regarding": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
            })
        );
    });
}

#[test]
fn a_warning_lives_beside_its_service() {
    run(async {
        let server = Server::start().await;
        recorder(&server).record(&warning());
        let path = "/apis/events.k8s.io/v1/namespaces/shop/events";
        let event = body(&server.until_asked(path, Ask::Post, 1).await);
        assert_eq!(event["type"], "Warning");
        assert_eq!(event["note"], "node node-1 failed to start healthcheck");
        assert_eq!(event["metadata"]["namespace"], "shop");
        assert_eq!(
            event["regarding"],
            json!({"apiVersion": "v1", "kind": "Service", "name": "lb1", "namespace": "shop"})
        );
    });
}

#[test]
fn what_every_node_reports_has_one_name_everywhere() {
    run(async {
        let server = Server::start().await;
        let path = "/apis/events.k8s.io/v1/namespaces/shop/events";
        let shared = |note: &str| Report {
            shared: true,
            note: note.to_owned(),
            ..warning()
        };
        for (machine, note) in [("a", "x"), ("b", "x"), ("b", "y")] {
            let recorder = Recorder::start_with(api(&server), machine, quick());
            recorder.record(&shared(note));
            assert!(recorder.flush(LONG).await);
        }
        let names: Vec<_> = server
            .seen(path)
            .iter()
            .map(|seen| body(seen)["metadata"]["name"].clone())
            .collect();
        assert_eq!(names[0], names[1]);
        assert_ne!(names[1], names[2]);
        assert!(names[0].as_str().unwrap().starts_with("lb1."));
    });
}

#[test]
fn a_long_note_is_cut_to_what_the_api_takes() {
    run(async {
        let server = Server::start().await;
        let mut report = Report::birth_cry("n");
        report.note = "ü".repeat(1000);
        recorder(&server).record(&report);
        let event = body(&server.until_asked(DEFAULT, Ask::Post, 1).await);
        assert_eq!(event["note"], "ü".repeat(512));
    });
}

#[test]
fn an_event_is_tried_again_while_that_can_help() {
    run(async {
        let server = Server::start().await;
        for fault in [
            Fault::Status(500, "InternalError"),
            Fault::Busy(429, 0),
            Fault::Page(502, "<html>Bad Gateway</html>"),
        ] {
            server.fail(DEFAULT, Ask::Post, fault);
        }
        let recorder = recorder(&server);
        recorder.record(&Report::birth_cry("n"));
        assert!(recorder.flush(LONG).await);
        let seen = server.seen(DEFAULT);
        assert_eq!(seen.len(), 4);
        assert!(seen.iter().all(|one| one.body == seen[0].body));

        server.fail(DEFAULT, Ask::Post, Fault::Status(403, "Forbidden"));
        recorder.record(&Report::birth_cry("n"));
        assert!(recorder.flush(LONG).await);
        assert_eq!(server.seen(DEFAULT).len(), 5);

        for _ in 0..9 {
            server.fail(DEFAULT, Ask::Post, Fault::Status(500, "InternalError"));
        }
        recorder.record(&Report::birth_cry("n"));
        assert!(recorder.flush(LONG).await);
        assert_eq!(server.seen(DEFAULT).len(), 10);
    });
}

#[test]
fn all_events_are_out_before_flush_returns() {
    run(async {
        let server = Server::start().await;
        let recorder = recorder(&server);
        for _ in 0..20 {
            recorder.record(&warning());
        }
        recorder.record(&Report::birth_cry("n"));
        assert!(recorder.flush(LONG).await);
        assert_eq!(server.seen(DEFAULT).len(), 1);
    });
}

#[test]
fn nobody_waits_for_a_server_that_is_away() {
    run(async {
        let server = Server::start().await;
        server.fail(DEFAULT, Ask::Post, Fault::NoAnswer);
        let recorder = recorder(&server);
        // More than the queue holds.
        for _ in 0..1000 {
            recorder.record(&Report::birth_cry("n"));
        }
        assert!(!recorder.flush(Duration::from_millis(20)).await);
    });
}
