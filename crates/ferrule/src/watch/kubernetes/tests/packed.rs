//! Long lists that come packed.

use super::server::{Ask, SERVICES, Server};
use super::*;

fn fill(server: &Server) {
    server.refuse_streams();
    server.page_size(40);
    let names: Vec<String> = (0..100).map(|number| format!("s{number}")).collect();
    server.fill(SERVICES, names.iter().map(|name| service(name, 80)));
}

#[test]
fn lists_may_come_packed_and_watches_may_not() {
    run(async {
        for format in [Format::Protobuf, Format::Json] {
            let server = Server::start().await;
            server.speak(format);
            server.pack();
            fill(&server);
            let mut consumer = Consumer::of(&server);
            server.until_watched(SERVICES).await;
            server.put(SERVICES, service("more", 80));
            consumer.until_same(&server).await;
            assert_eq!(services(&consumer.tracker).len(), 101);
            for seen in server.seen(SERVICES) {
                let packed = matches!(seen.ask, Ask::List | Ask::Continue);
                let accepted = if packed { "gzip" } else { "" };
                assert_eq!(seen.header("accept-encoding"), accepted, "{:?}", seen.ask);
            }
        }
    });
}

#[test]
fn a_packed_list_that_breaks_off_is_asked_for_again() {
    run(async {
        let server = Server::start().await;
        server.pack();
        fill(&server);
        server.fail(SERVICES, Ask::List, server::Fault::Half);
        let mut consumer = Consumer::of(&server);
        consumer.until_same(&server).await;
        assert_eq!(server.faults_left(), 0);
    });
}

#[test]
fn a_kubeconfig_may_turn_packing_off() {
    run(async {
        let server = Server::start().await;
        server.pack();
        fill(&server);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let url = server.url();
        let text = access::kubeconfig(&url, "{}").replace(
            &format!("server: \"{url}\""),
            &format!("server: \"{url}\", disable-compression: true"),
        );
        std::fs::write(&path, text).unwrap();
        let access = Access {
            kubeconfig: path.to_str().unwrap().to_owned(),
            ..Access::default()
        };
        let api = Api::open_in(access::nowhere(), access, Arc::new(())).unwrap();
        let mut consumer = Consumer::with(&api, settings());
        consumer.until_same(&server).await;
        let seen = server.seen(SERVICES);
        assert!(seen.iter().any(|seen| seen.ask == Ask::List));
        assert!(
            seen.iter()
                .all(|seen| seen.header("accept-encoding").is_empty())
        );
    });
}
