//! A large cluster through the real thing.

use super::server::{SERVICES, SLICES, Server};
use super::*;

/// An object with everything that makes real ones long.
fn padded(mut object: Value) -> Value {
    let padding = "x".repeat(600);
    object["metadata"]["annotations"] =
        json!({"kubectl.kubernetes.io/last-applied-configuration": padding});
    object["metadata"]["managedFields"] =
        json!([{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:ports": {}}}}]);
    object
}

#[test]
fn twenty_thousand_objects_arrive() {
    run(async {
        let server = Server::start().await;
        let names: Vec<String> = (0..10_000).map(|number| format!("s{number}")).collect();
        server.fill(SERVICES, names.iter().map(|name| padded(service(name, 80))));
        server.fill(
            SLICES,
            names
                .iter()
                .map(|name| padded(slice(name, name, "10.0.0.1"))),
        );
        let expected = expected(&server);
        for streaming_lists in [true, false] {
            let settings = Settings {
                streaming_lists,
                // The server of these tests takes its time to write protobuf.
                format: Format::Json,
                ..settings()
            };
            let mut consumer = Consumer::with(&api(&server), settings);
            consumer.until(Tracker::is_ready).await;
            assert!(same(&consumer.tracker, &expected));
            assert!(consumer.largest < 500, "{}", consumer.largest);
        }
        // Without pages, as servers answer that ignore the limit.
        server.page_size(usize::MAX);
        let settings = Settings {
            streaming_lists: false,
            ..settings()
        };
        let mut consumer = Consumer::with(&api(&server), settings);
        consumer.until(Tracker::is_ready).await;
        assert!(same(&consumer.tracker, &expected));
        assert!(consumer.largest < 500, "{}", consumer.largest);
    });
}
