//! Over real sockets: what goes over the wire, who may connect, how a port closes and moves.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use http::StatusCode;

use super::testing::{Client, Runtime, ask, body, echo, eventually, loopback, refuses, status};
use super::*;

fn serve(runtime: &Runtime, network: Network, address: SocketAddr) -> Server {
    Server::open(&runtime.handle, network, address, echo()).unwrap()
}

#[test]
fn headers_keep_their_order_and_connections_stay_open() {
    let runtime = Runtime::start();
    let server = serve(&runtime, Network::Tcp, loopback());
    let mut client = Client::connect(server.address());
    assert_eq!(
        client.ask("GET /x?a=1&b=2&a"),
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nX-Own: 7\r\n\
         Date: now\r\nContent-Length: 17\r\n\r\nGET /x [\"1\", \"\"] "
    );
    assert_eq!(
        body(&client.ask_with("PUT /y", "", "five")),
        "PUT /y [] five"
    );
    assert_eq!(
        body(&client.ask_with("POST /y", "", "left alone")),
        "POST /y [] "
    );
    assert_eq!(body(&client.ask("GET /z")), "GET /z [] ");
}

#[test]
fn head_has_the_length_and_no_body() {
    let runtime = Runtime::start();
    let server = serve(&runtime, Network::Tcp, loopback());
    let mut client = Client::connect(server.address());
    assert_eq!(
        client.ask("HEAD /x"),
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nX-Own: 7\r\n\
         Date: now\r\nContent-Length: 11\r\n\r\n"
    );
    assert_eq!(status(&client.ask("GET /x")), "200");
}

#[test]
fn an_unknown_path_is_answered_like_gos_server_does() {
    let runtime = Runtime::start();
    let server = serve(&runtime, Network::Tcp, loopback());
    assert_eq!(
        ask(server.address(), "GET /nowhere"),
        "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain; charset=utf-8\r\n\
         X-Content-Type-Options: nosniff\r\nDate: now\r\nContent-Length: 19\r\n\r\n\
         404 page not found\n"
    );
}

#[test]
fn oversized_requests_are_refused() {
    let runtime = Runtime::start();
    let server = serve(&runtime, Network::Tcp, loopback());
    let padding = format!("X-Padding: {}\r\n", "x".repeat(20_000));
    let mut client = Client::connect(server.address());
    assert_eq!(status(&client.ask_with("GET /", &padding, "")), "431");
    let mut client = Client::connect(server.address());
    let long = "y".repeat(70_000);
    assert_eq!(status(&client.ask_with("PUT /", "", &long)), "413");
}

#[test]
fn clients_that_leave_make_room_for_others() {
    let runtime = Runtime::start();
    let server = serve(&runtime, Network::Tcp, loopback());
    // More than may be connected at a time.
    for number in 0..700 {
        let mut client = Client::connect(server.address());
        match number % 3 {
            0 => assert_eq!(status(&client.ask("GET /")), "200"),
            1 => client.send("GET / HT"),
            _ => {}
        }
    }
    assert_eq!(status(&ask(server.address(), "GET /")), "200");
}

#[test]
fn clients_that_ask_nothing_or_never_read_do_not_keep_others_from_an_answer() {
    const CLIENTS: usize = 2000;
    // Both ends of a connection are open files of this process.
    let process = std::process::id().to_string();
    ferrule_testbed::run("prlimit", &["--pid", &process, "--nofile=16384:"]);
    let runtime = Runtime::start();
    // More than the buffers of a connection hold.
    let large = bytes::Bytes::from(vec![b'x'; 16 << 20]);
    let handler = handler(move |request| match request.path.as_str() {
        "/large" => Response::new(StatusCode::OK, TEXT, large.clone()),
        _ => Response::new(StatusCode::OK, TEXT, "ok"),
    });
    let server = Server::open(&runtime.handle, Network::Tcp, loopback(), handler).unwrap();
    let mut others = Vec::with_capacity(CLIENTS);
    for number in 0..CLIENTS {
        let mut client = Client::connect(server.address());
        match number % 50 {
            // Each keeps megabytes in the kernel.
            0 => client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n"),
            1..=20 => client.send("GET /healthz HTTP/1.1\r\nHo"),
            21..=40 => {}
            _ => assert_eq!(body(&client.ask("GET /")), "ok"),
        }
        others.push(client);
    }
    for _ in 0..10 {
        assert_eq!(body(&ask(server.address(), "GET /healthz")), "ok");
    }
    // Those that were used last are still connected.
    let last = others.last_mut().unwrap();
    assert_eq!(body(&last.ask("GET /")), "ok");
    // The oldest that asked nothing is not; the others have answers to read first.
    assert!(others[21].is_closed());
}

#[test]
fn a_closed_port_is_free_at_once_and_its_connections_are_cut() {
    let runtime = Runtime::start();
    let mut server = serve(&runtime, Network::Tcp4, loopback());
    let address = server.address();
    let mut clients = Vec::new();
    for _ in 0..50 {
        let mut client = Client::connect(address);
        assert_eq!(status(&client.ask("GET /")), "200");
        clients.push(client);
        server.close();
        // No pause: the port passes to the next owner while the old task may still run.
        server = serve(&runtime, Network::Tcp4, address);
    }
    server.close();
    assert!(refuses(address));
    assert!(clients.iter_mut().all(Client::is_closed));
}

#[test]
fn a_friendly_close_lets_the_answer_out() {
    let runtime = Runtime::start();
    let (asked, was_asked) = std::sync::mpsc::channel();
    let slow = handler(move |_| {
        asked.send(()).unwrap();
        // The handler holds the runtime's thread, so the close must wait for it.
        std::thread::sleep(std::time::Duration::from_millis(50));
        Response::new(StatusCode::OK, TEXT, "done")
    });
    let server = Server::open(&runtime.handle, Network::Tcp, loopback(), slow).unwrap();
    let address = server.address();
    let mut client = Client::connect(address);
    let mut idle = Client::connect(address);
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    was_asked.recv().unwrap();
    let closing = runtime.handle.spawn(server.finish());
    assert_eq!(body(&client.receive(false)), "done");
    assert!(client.is_closed() && idle.is_closed());
    eventually("the close ends", || closing.is_finished());
    assert!(refuses(address));
}

#[test]
fn core_064_the_wildcard_answers_both_families_through_one_socket() {
    let runtime = Runtime::start();
    for wildcard in ["0.0.0.0:0", "[::]:0"] {
        let server = serve(&runtime, Network::Tcp, wildcard.parse().unwrap());
        let port = server.address().port();
        assert!(server.address().is_ipv6());
        for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
            let answer = ask(SocketAddr::new(ip, port), "GET /");
            assert_eq!(status(&answer), "200", "{wildcard} at {ip}");
        }
    }
}

#[test]
fn a_single_address_or_family_answers_nowhere_else() {
    let runtime = Runtime::start();
    let v6 = |port| SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    let v4 = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let single = serve(&runtime, Network::Tcp, loopback());
    assert!(refuses(v6(single.address().port())));
    let only_v4 = serve(&runtime, Network::Tcp4, "0.0.0.0:0".parse().unwrap());
    let port = only_v4.address().port();
    assert!(refuses(v6(port)));
    // The same port of the other family is free.
    let only_v6 = serve(
        &runtime,
        Network::Tcp6,
        (Ipv6Addr::UNSPECIFIED, port).into(),
    );
    assert_eq!(status(&ask(v6(port), "GET /")), "200");
    only_v4.close();
    assert!(refuses(v4(port)));
    only_v6.close();
}

#[test]
fn an_address_in_use_is_named() {
    let runtime = Runtime::start();
    let taken = TcpListener::bind(loopback()).unwrap();
    let address = taken.local_addr().unwrap();
    let error = Server::open(&runtime.handle, Network::Tcp, address, echo()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("listen tcp {address}: bind: address already in use")
    );
}
