//! How a list comes about: as a stream, in pages, in one piece, or not at all.

use super::log::Log;
use super::server::{Ask, CIDRS, ENDPOINTS, Fault, NODES, SERVICES, SLICES, Server};
use super::*;

#[test]
fn a_streamed_list_goes_over_into_its_watch() {
    run(async {
        let server = Server::start().await;
        server.put(SERVICES, service("a", 80));
        server.put(SERVICES, service("b", 80));
        let mut consumer = Consumer::of(&server);
        consumer.until_received("listed Service", 1).await;
        server.put(SERVICES, service("c", 80));
        server.delete(SERVICES, "default/a");
        consumer
            .until(|tracker| services(tracker) == ["default/b", "default/c"])
            .await;
        assert_eq!(server.asks(SERVICES), [Ask::Stream]);
        let received: Vec<&String> = consumer
            .received
            .iter()
            .filter(|t| t.contains("Service ") || t.ends_with("Service"))
            .collect();
        assert_eq!(
            received,
            [
                "listing Service",
                "put Service default/a",
                "put Service default/b",
                "listed Service",
                "put Service default/c",
                "gone Service default/a",
            ]
        );
    });
}

#[test]
fn core_052_nothing_leaves_before_services_and_slices_are_listed() {
    run(async {
        let server = Server::start().await;
        for name in ["a", "b", "c"] {
            server.put(SERVICES, service(name, 80));
            server.put(SLICES, slice(name, name, "10.0.0.1"));
        }
        server.fail(SLICES, Ask::Stream, Fault::Hold);
        let mut consumer = Consumer::of(&server);
        for kind in ["Service", "Node", "ServiceCIDR"] {
            consumer.until_received(&format!("listed {kind}"), 1).await;
        }
        server.put(SERVICES, service("a", 81));
        consumer.until_received("put Service default/a", 2).await;
        assert_eq!(services(&consumer.tracker).len(), 3);
        assert_eq!(consumer.tracker.take(), None);
        server.release();
        consumer.until(Tracker::is_ready).await;
        let changes = consumer.tracker.take().expect("everything at once");
        assert_eq!(changes.services.len(), 3);
        assert_eq!(consumer.tracker.take(), None);
    });
}

#[test]
fn core_053_requests_select_what_a_node_proxy_needs() {
    run(async {
        let server = Server::start().await;
        // Every sort of request must select, so make it use all of them.
        server.refuse_streams();
        server.page_size(1);
        for name in ["a", "b"] {
            server.put(SERVICES, service(name, 80));
            server.put(SLICES, slice(name, name, "10.0.0.1"));
            server.put(NODES, node(name, "z"));
            server.put(CIDRS, service_cidr(name, "172.30.0.0/16"));
        }
        let _consumer = Consumer::of(&server);
        let services = "fieldSelector=spec.clusterIP%21%3DNone\
                        &labelSelector=%21service.kubernetes.io%2Fservice-proxy-name";
        let slices = "labelSelector=%21service.kubernetes.io%2Fheadless\
                      %2C%21service.kubernetes.io%2Fservice-proxy-name";
        let nodes = "fieldSelector=metadata.name%3Dhere";
        for (path, selectors) in [
            (SERVICES, services),
            (SLICES, slices),
            (NODES, nodes),
            (CIDRS, ""),
        ] {
            let watch = server.until_asked(path, Ask::Watch, 1).await;
            let asks = [Ask::Stream, Ask::List, Ask::Continue, Ask::Watch];
            assert_eq!(server.asks(path), asks);
            for seen in server.seen(path) {
                let selectors_seen: Vec<&str> = seen
                    .query
                    .split('&')
                    .filter(|parameter| parameter.contains("Selector="))
                    .collect();
                assert_eq!(selectors_seen.join("&"), selectors, "{:?}", seen.ask);
                assert_eq!(
                    seen.header("accept"),
                    "application/vnd.kubernetes.protobuf, application/json;q=0.9"
                );
            }
            assert_eq!(watch.parameter("allowWatchBookmarks").unwrap(), "true");
        }
    });
}

#[test]
fn core_053_the_requests_are_those_of_the_reference() {
    run(async {
        let server = Server::start().await;
        server.put(NODES, node("here", "z"));
        server.refuse_streams();
        let _consumer = Consumer::of(&server);
        let watch = server.until_asked(NODES, Ask::Watch, 1).await;
        let seconds = |seen: &server::Seen| -> u64 {
            let text = seen.parameter("timeoutSeconds").unwrap();
            text.parse().unwrap()
        };
        let [stream, list, _] = &server.seen(NODES)[..] else {
            panic!("three requests");
        };
        assert!((300..600).contains(&seconds(stream)));
        assert_eq!(
            stream.query,
            format!(
                "allowWatchBookmarks=true&fieldSelector=metadata.name%3Dhere\
                 &resourceVersionMatch=NotOlderThan&sendInitialEvents=true&timeoutSeconds={}\
                 &watch=true",
                seconds(stream)
            )
        );
        assert_eq!(
            list.query,
            "fieldSelector=metadata.name%3Dhere&limit=500&resourceVersion=0"
        );
        assert_eq!(
            watch.query,
            format!(
                "allowWatchBookmarks=true&fieldSelector=metadata.name%3Dhere\
                 &resourceVersion={}&timeoutSeconds={}&watch=true",
                server.version(),
                seconds(&watch)
            )
        );
    });
}

#[test]
fn a_server_that_cannot_select_by_cluster_ip_is_asked_without() {
    run(async {
        for streams in [true, false] {
            let log = Log::new();
            let server = Server::start().await;
            server.refuse_fields();
            if !streams {
                server.refuse_streams();
            }
            let mut headless = service("headless", 80);
            headless["spec"]["clusterIP"] = json!("None");
            server.put(SERVICES, headless);
            server.put(SERVICES, service("a", 80));
            let mut consumer = Consumer::of(&server);
            server.until_watched(SERVICES).await;
            server.put(SERVICES, service("b", 80));
            consumer.until_same(&server).await;
            // A headless Service is of no use, whoever leaves it out.
            assert_eq!(services(&consumer.tracker), ["default/a", "default/b"]);
            assert!(log.warnings("services").is_empty());
            // The refusal is remembered for further lists and watches.
            server.compact();
            server.cut();
            consumer.until_received("listed Service", 2).await;
            server.until_watched(SERVICES).await;
            server.put(SERVICES, service("c", 80));
            consumer.until_same(&server).await;
            let seen = server.seen(SERVICES);
            let selecting = |seen: &&server::Seen| seen.query.contains("fieldSelector");
            assert_eq!(seen.iter().filter(selecting).count(), 1, "{seen:?}");
            let words = "does not support the field selector";
            let lines = log.lines();
            let lines: Vec<_> = lines.iter().filter(|line| line.contains(words)).collect();
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].contains("resource=services"), "{lines:?}");
        }
    });
}

#[test]
fn a_field_selector_refused_without_words_is_left_out_too() {
    run(async {
        let server = Server::start().await;
        server.refuse_streams();
        server.put(SERVICES, service("a", 80));
        server.fail(SERVICES, Ask::List, Fault::Page(400, "Bad Request\n"));
        let mut consumer = Consumer::of(&server);
        consumer.until_same(&server).await;
        let selects = |seen: &server::Seen| seen.query.contains("fieldSelector");
        let seen = server.seen(SERVICES);
        let lists = seen.iter().filter(|seen| seen.ask == Ask::List);
        assert_eq!(lists.map(selects).collect::<Vec<_>>(), [true, false]);
    });
}

/// Lists twice from a server whose first stream fails so. Returns how often a stream was tried.
async fn streams_tried(fault: Option<Fault>) -> usize {
    let server = Server::start().await;
    server.put(SERVICES, service("a", 80));
    let mut settings = settings();
    if matches!(fault, Some(Fault::Silent)) {
        settings.timings.answer = Duration::from_millis(50);
    }
    match fault {
        None => server.refuse_streams(),
        Some(fault) => server.fail(SERVICES, Ask::Stream, fault),
    }
    let mut consumer = Consumer::with(&api(&server), settings);
    server.until_watched(SERVICES).await;
    server.put(SERVICES, service("b", 80));
    consumer.until_same(&server).await;
    // The first list came in pages.
    assert_eq!(
        server.asks(SERVICES)[..3],
        [Ask::Stream, Ask::List, Ask::Watch]
    );
    // A new list is needed.
    server.compact();
    server.cut();
    consumer.until_received("listed Service", 2).await;
    server.until_watched(SERVICES).await;
    server.put(SERVICES, service("c", 80));
    consumer.until_same(&server).await;
    let asks = server.asks(SERVICES);
    asks.iter().filter(|ask| **ask == Ask::Stream).count()
}

#[test]
fn a_server_that_refuses_to_stream_is_asked_once() {
    run(async {
        // It may say so in an answer or in an event.
        for fault in [
            None,
            Some(Fault::Status(400, "BadRequest")),
            Some(Fault::ErrorEvent(422, "Invalid")),
        ] {
            assert_eq!(streams_tried(fault.clone()).await, 1, "{fault:?}");
        }
    });
}

#[test]
fn a_stream_that_ends_early_is_tried_again_with_the_next_list() {
    run(async {
        for fault in [
            Fault::ErrorEvent(500, "InternalError"),
            Fault::Empty,
            Fault::Silent,
        ] {
            assert_eq!(streams_tried(Some(fault.clone())).await, 2, "{fault:?}");
        }
    });
}

#[test]
fn other_refusals_do_not_end_streaming() {
    run(async {
        let server = Server::start().await;
        server.put(SERVICES, service("a", 80));
        let faults = [
            Fault::Status(401, "Unauthorized"),
            Fault::Status(403, "Forbidden"),
            Fault::Status(410, "Expired"),
            Fault::Status(429, "TooManyRequests"),
            Fault::Status(500, "InternalError"),
            Fault::ErrorEvent(410, "Expired"),
            Fault::ErrorEvent(429, "TooManyRequests"),
            Fault::Half,
        ];
        for fault in faults {
            server.fail(SERVICES, Ask::Stream, fault);
        }
        let mut consumer = Consumer::of(&server);
        consumer.until_same(&server).await;
        assert_eq!(server.faults_left(), 0);
        assert_eq!(server.asks(SERVICES), [Ask::Stream; 9]);
    });
}

#[test]
fn without_the_gate_nothing_is_streamed() {
    run(async {
        let server = Server::start().await;
        server.put(SERVICES, service("a", 80));
        let settings = Settings {
            streaming_lists: false,
            ..settings()
        };
        let mut consumer = Consumer::with(&api(&server), settings);
        server.until_watched(SERVICES).await;
        consumer.until_same(&server).await;
        assert_eq!(server.asks(SERVICES), [Ask::List, Ask::Watch]);
    });
}

#[test]
fn a_list_comes_in_as_many_pages_as_the_server_likes() {
    run(async {
        let server = Server::start().await;
        server.refuse_streams();
        server.page_size(2);
        let names: Vec<String> = (0..5).map(|number| format!("s{number}")).collect();
        server.fill(SERVICES, names.iter().map(|name| service(name, 80)));
        let mut consumer = Consumer::of(&server);
        consumer.until_same(&server).await;
        server.until_asked(SERVICES, Ask::Watch, 1).await;
        let asks = [
            Ask::Stream,
            Ask::List,
            Ask::Continue,
            Ask::Continue,
            Ask::Watch,
        ];
        assert_eq!(server.asks(SERVICES), asks);
        // It is one list, whatever the pages.
        assert_eq!(consumer.count("listing Service"), 1);
        assert_eq!(consumer.count("listed Service"), 1);
    });
}

#[test]
fn an_expired_page_begins_the_list_again_in_one_piece() {
    run(async {
        let server = Server::start().await;
        server.refuse_streams();
        server.page_size(2);
        let names: Vec<String> = (0..5).map(|number| format!("s{number}")).collect();
        server.fill(SERVICES, names.iter().map(|name| service(name, 80)));
        server.fail(SERVICES, Ask::Continue, Fault::Hold);
        let mut consumer = Consumer::of(&server);
        server.until_asked(SERVICES, Ask::Continue, 1).await;
        server.forget_pages();
        server.delete(SERVICES, "default/s0");
        server.release();
        consumer.until_same(&server).await;
        server.until_asked(SERVICES, Ask::Watch, 1).await;
        let again = server.until_asked(SERVICES, Ask::List, 2).await;
        assert_eq!(again.parameter("limit"), None);
        assert_eq!(again.parameter("resourceVersion"), None);
    });
}

#[test]
fn a_list_that_breaks_off_takes_nothing_away() {
    run(async {
        for streams in [true, false] {
            let server = Server::start().await;
            if !streams {
                server.refuse_streams();
            }
            for name in ["a", "b"] {
                server.put(SERVICES, service(name, 80));
            }
            let mut consumer = Consumer::of(&server);
            consumer.until_same(&server).await;
            consumer.tracker.take();
            server.compact();
            for ask in [Ask::Stream, Ask::List] {
                server.fail(SERVICES, ask, Fault::Half);
                server.fail(SERVICES, ask, Fault::Half);
            }
            server.cut();
            consumer.until_received("listed Service", 2).await;
            // Neither in between nor at the end was anything gone.
            assert_eq!(consumer.tracker.take(), None);
            assert!(
                !consumer
                    .received
                    .iter()
                    .any(|event| event.starts_with("gone"))
            );
        }
    });
}

#[test]
fn core_054_a_repeated_list_changes_nothing() {
    run(async {
        let server = Server::start().await;
        server.put(NODES, node("here", "z"));
        server.put(CIDRS, service_cidr("a", "172.30.0.0/16"));
        for name in ["a", "b"] {
            server.put(SERVICES, service(name, 80));
            server.put(SLICES, slice(name, name, "10.0.0.1"));
        }
        let mut consumer = Consumer::of(&server);
        consumer.until_same(&server).await;
        assert!(consumer.tracker.take().is_some());
        server.compact();
        server.cut();
        for kind in Kind::ALL {
            consumer
                .until_received(&format!("listed {}", kind.as_str()), 2)
                .await;
        }
        assert_eq!(consumer.tracker.take(), None);
    });
}

#[test]
fn a_repeated_list_is_not_older_than_what_is_known() {
    run(async {
        for streams in [true, false] {
            let server = Server::start().await;
            if !streams {
                server.refuse_streams();
            }
            let mut consumer = Consumer::of(&server);
            server.until_watched(SERVICES).await;
            server.put(SERVICES, service("a", 80));
            consumer.until_same(&server).await;
            let known = server.version().to_string();
            server.compact();
            server.end_watches();
            let ask = if streams { Ask::Stream } else { Ask::List };
            let again = server.until_asked(SERVICES, ask, 2).await;
            assert_eq!(again.parameter("resourceVersion"), Some(known));
            assert_eq!(again.parameter("limit"), None);
        }
    });
}

#[test]
fn a_server_that_was_restored_is_believed() {
    run(async {
        for streams in [true, false] {
            let mut server = Server::start().await;
            if !streams {
                server.refuse_streams();
            }
            server.put(SERVICES, service("a", 80));
            server.put(SERVICES, service("b", 80));
            let mut consumer = Consumer::of(&server);
            consumer.until_same(&server).await;
            server.stop().await;
            server.delete(SERVICES, "default/b");
            server.restore();
            server.resume().await;
            consumer.until_same(&server).await;
            server.put(SERVICES, service("c", 80));
            consumer.until_same(&server).await;
        }
    });
}

#[test]
fn a_missing_node_is_an_empty_list() {
    run(async {
        let server = Server::start().await;
        let mut consumer = Consumer::of(&server);
        consumer.until_received("listed Node", 1).await;
        assert!(consumer.tracker.node().is_none());
        server.put(NODES, node("elsewhere", "x"));
        server.put(NODES, node("here", "z"));
        consumer.until(|tracker| tracker.node().is_some()).await;
        assert_eq!(consumer.count("put Node here"), 1);
        assert_eq!(consumer.count("put Node elsewhere"), 0);
    });
}

#[test]
fn a_server_without_service_cidrs_has_none_until_it_does() {
    run(async {
        let server = Server::start().await;
        server.do_not_offer(CIDRS);
        server.put(CIDRS, service_cidr("a", "172.30.0.0/16"));
        let mut consumer = Consumer::of(&server);
        consumer.until_received("listed ServiceCIDR", 2).await;
        assert!(consumer.tracker.service_cidrs().is_empty());
        server.offer(CIDRS);
        consumer.until_same(&server).await;
        assert_eq!(consumer.tracker.service_cidrs().len(), 1);
        // Gone again, as after a downgrade.
        server.do_not_offer(CIDRS);
        server.cut();
        consumer
            .until(|tracker| tracker.service_cidrs().is_empty())
            .await;
    });
}

#[test]
fn a_server_without_slices_is_asked_for_endpoints_until_it_has_them() {
    run(async {
        let server = Server::start().await;
        server.do_not_offer(SLICES);
        server.put(SERVICES, service("web", 80));
        server.put(
            ENDPOINTS,
            json!({
                "metadata": {"namespace": "default", "name": "web"},
                "subsets": [{"addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}],
                             "ports": [{"name": "http", "port": 8080}]}],
            }),
        );
        let mut consumer = Consumer::of(&server);
        let web = ServiceKey::new("default", "web");
        let addresses = |tracker: &Tracker| -> Vec<String> {
            let entry = tracker.entry(&web);
            let slices = entry.into_iter().flat_map(|entry| &entry.slices);
            let endpoints = slices.flat_map(|slice| &slice.endpoints);
            endpoints.map(|endpoint| endpoint.ip.to_string()).collect()
        };
        consumer.until(Tracker::is_ready).await;
        assert_eq!(addresses(&consumer.tracker), ["10.0.0.1", "10.0.0.2"]);
        assert!(server.seen(ENDPOINTS)[0].query.contains("headless"));
        server.delete(ENDPOINTS, "default/web");
        consumer
            .until(|tracker| addresses(tracker).is_empty())
            .await;
        server.put(SLICES, slice("web-1", "web", "10.0.0.3"));
        server.offer(SLICES);
        // Seen when the watch of endpoints ends, as it does every few minutes.
        server.until_watched(ENDPOINTS).await;
        server.end_watches();
        consumer.until_same(&server).await;
        assert_eq!(addresses(&consumer.tracker), ["10.0.0.3"]);
    });
}

#[test]
fn a_single_404_for_slices_changes_nothing() {
    run(async {
        let log = Log::new();
        let server = Server::start().await;
        server.put(SERVICES, service("web", 80));
        server.put(SLICES, slice("web-1", "web", "10.0.0.3"));
        let mut settings = settings();
        settings.timings.absence = LONG;
        let mut consumer = Consumer::with(&api(&server), settings);
        consumer.until_same(&server).await;
        // The server hides them for a while: from a watch, then from lists.
        for ask in [Ask::Watch, Ask::Stream, Ask::Stream, Ask::Stream] {
            server.fail(SLICES, ask, Fault::Page(404, "404 page not found\n"));
        }
        server.cut();
        consumer.until_received("listed EndpointSlice", 2).await;
        assert_eq!(server.faults_left(), 0);
        server.until_watched(SLICES).await;
        server.put(SLICES, slice("web-2", "web", "10.0.0.4"));
        consumer.until_same(&server).await;
        assert!(server.seen(ENDPOINTS).is_empty());
        let warnings = log.warnings("endpointslices");
        let about_404 = warnings.iter().filter(|line| line.contains("404")).count();
        assert_eq!(about_404, 1, "{warnings:?}");
    });
}

#[test]
fn slices_that_stay_missing_are_replaced_by_endpoints_and_used_again_later() {
    run(async {
        let server = Server::start().await;
        server.put(SERVICES, service("web", 80));
        server.put(SLICES, slice("web-1", "web", "10.0.0.3"));
        server.put(
            ENDPOINTS,
            json!({
                "metadata": {"namespace": "default", "name": "web"},
                "subsets": [{"addresses": [{"ip": "10.0.0.1"}],
                             "ports": [{"name": "http", "port": 8080}]}],
            }),
        );
        let mut consumer = Consumer::of(&server);
        consumer.until_same(&server).await;
        server.do_not_offer(SLICES);
        server.cut();
        server.until_watched(ENDPOINTS).await;
        // Asked several times before, and for a short watch afterwards.
        let streams = |asks: Vec<Ask>| asks.iter().filter(|ask| **ask == Ask::Stream).count();
        assert!(server.asks(SLICES).len() >= 5, "{:?}", server.asks(SLICES));
        let seconds = server.seen(ENDPOINTS)[0]
            .parameter("timeoutSeconds")
            .unwrap();
        assert!((60..90).contains(&seconds.parse().unwrap()), "{seconds}");
        consumer.until_received("listed EndpointSlice", 2).await;
        assert_eq!(consumer.count("put EndpointSlice default/web"), 1);
        // A failure of the one does not bring back the doubt about the other.
        let before = streams(server.asks(SLICES));
        server.fail(ENDPOINTS, Ask::Watch, Fault::Status(500, "InternalError"));
        server.end_watches();
        server.until_asked(ENDPOINTS, Ask::Stream, 2).await;
        server.until_watched(ENDPOINTS).await;
        assert_eq!(streams(server.asks(SLICES)), before + 1);
        server.offer(SLICES);
        server.end_watches();
        consumer.until_same(&server).await;
    });
}

#[test]
fn a_server_without_slices_and_endpoints_is_asked_for_both_in_turn() {
    run(async {
        let server = Server::start().await;
        server.do_not_offer(SLICES);
        server.do_not_offer(ENDPOINTS);
        server.put(SLICES, slice("a", "a", "10.0.0.3"));
        let mut consumer = Consumer::of(&server);
        server.until_asked(ENDPOINTS, Ask::Stream, 3).await;
        server.offer(SLICES);
        consumer.until_same(&server).await;
    });
}
