//! The page over real sockets. What it shows is tested with a browser, in `tests/page`.

use std::sync::Arc;

use super::*;
use crate::admin::{self, About};
use crate::http::testing::{Client, Runtime, body, loopback, status};
use crate::http::{Network, Server, handler};

/// A server with the page.
struct Bench {
    client: Client,
    _publisher: admin::Publisher,
    _server: Server,
    _runtime: Runtime,
}

fn bench() -> Bench {
    let about = About {
        node: "here".to_owned(),
        mode: "nftables",
        families: Vec::new(),
    };
    let log = admin::Page {
        path: "log",
        content_type: TEXT,
        text: Box::new(|| "private".to_owned()),
    };
    let settings = ferrule_core::facts::Settings::default();
    let (publisher, questions) = admin::open(None, about, settings, vec![log]).unwrap();
    let ui = Arc::new(Ui::new(questions));
    let handler = handler(move |request| {
        let answer = ui.answer(request);
        answer.unwrap_or_else(|| Response::not_found().into())
    });
    let runtime = Runtime::start();
    let server = Server::open(&runtime.handle, Network::Tcp, loopback(), handler).unwrap();
    Bench {
        client: Client::connect(server.address()),
        _publisher: publisher,
        _server: server,
        _runtime: runtime,
    }
}

#[test]
fn the_page_admits_its_own_code_only_and_nobody_else_frames_it() {
    let mut bench = bench();
    let answer = bench.client.ask("GET /ui");
    assert_eq!(status(&answer), "200");
    let policy = answer
        .lines()
        .find_map(|line| line.strip_prefix("Content-Security-Policy: "))
        .unwrap();
    let (_, rest) = policy.split_once("script-src 'nonce-").unwrap();
    let (nonce, _) = rest.split_once('\'').unwrap();
    assert_eq!(nonce.len(), 32);
    for word in [
        "default-src 'none'",
        "frame-ancestors 'none'",
        "form-action 'none'",
    ] {
        assert!(policy.contains(word), "{policy}");
    }
    let page = body(&answer);
    assert_eq!(page.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
    assert!(!page.contains(NONCE));
    let again = bench.client.ask("GET /ui");
    assert!(!again.contains(nonce), "another one each time");
}

#[test]
fn only_what_the_page_shows_is_served_and_only_to_be_read() {
    let mut bench = bench();
    for (request, expected) in [
        ("GET /ui", "200"),
        ("GET /ui/v1/node", "200"),
        // Nothing is known yet.
        ("GET /ui/v1/explain?target=shop/web", "503"),
        ("GET /ui/v1/explain?target=nonsense", "400"),
        ("GET /ui/v1/log", "404"),
        ("GET /ui/v1/config", "404"),
        ("GET /ui/v1/", "404"),
        ("GET /ui/v2/node", "404"),
        ("GET /ui/", "404"),
        ("GET /uix", "404"),
        ("POST /ui", "405"),
        ("DELETE /ui/v1/node", "405"),
    ] {
        let answer = bench.client.ask(request);
        assert_eq!(status(&answer), expected, "{request}: {answer}");
    }
}

#[test]
fn the_page_needs_nothing_else_and_never_makes_markup_of_data() {
    let script = PAGE.split_once("<script").unwrap().1;
    for word in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
    ] {
        assert!(!script.contains(word), "{word}");
    }
    // Names of vocabularies are no requests.
    let named = PAGE.replace("http://www.w3.org/2000/svg", "");
    for word in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!named.contains(word), "{word}");
    }
    // A policy with nonces admits no style attributes, and no code in attributes.
    for word in [" style=", " onclick=", " onload="] {
        assert!(!PAGE.contains(word), "{word}");
    }
}
