//! Proxies on the way to the API server, each a small one in this process.

use std::fs;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::super::access::Pod;
use super::super::proxy::{SecretText, Variables};
use super::access::{kubeconfig, nowhere};
use super::log::Log;
use super::server::{SERVICES, Server};
use super::*;

/// A name that only the proxies know.
const TARGET: &str = "api.example:6443";

/// What to do with who connects.
#[derive(Clone, Copy)]
enum Manner {
    /// `CONNECT`, or requests that name their target in full.
    Http,
    /// Says no to everyone.
    Refusing,
    Socks5,
}

/// A proxy that knows one server, whatever it is asked for.
struct TestProxy {
    address: SocketAddr,
    /// The head of every request to the proxy itself, or the target of a SOCKS request.
    asked: Arc<Mutex<Vec<String>>>,
    accepting: JoinHandle<()>,
}

impl TestProxy {
    async fn start(manner: Manner, server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let (heads, server) = (Arc::clone(&asked), server.address);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(manner, client, server, Arc::clone(&heads)));
            }
        });
        Self {
            address,
            asked,
            accepting,
        }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for TestProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn relay(
    manner: Manner,
    mut client: TcpStream,
    server: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
) {
    let mut server = TcpStream::connect(server).await.unwrap();
    let request = match manner {
        Manner::Socks5 => socks_target(&mut client).await,
        Manner::Http | Manner::Refusing => head(&mut client).await,
    };
    asked.lock().unwrap().push(request.clone());
    let reply: &[u8] = match manner {
        Manner::Refusing => b"HTTP/1.1 403 Forbidden\r\n\r\n",
        Manner::Http if request.starts_with("CONNECT ") => b"HTTP/1.1 200 OK\r\n\r\n",
        // The server understands such requests as they are.
        Manner::Http => {
            server.write_all(request.as_bytes()).await.unwrap();
            b""
        }
        Manner::Socks5 => &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0],
    };
    client.write_all(reply).await.unwrap();
    if !matches!(manner, Manner::Refusing) {
        // Either side may leave at any time.
        _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}

/// Everything up to the blank line.
async fn head(client: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(client.read_u8().await.unwrap());
    }
    String::from_utf8(bytes).unwrap()
}

/// `user:password@host:port` of a SOCKS request (RFC 1928 and 1929).
async fn socks_target(client: &mut TcpStream) -> String {
    async fn counted(client: &mut TcpStream) -> Vec<u8> {
        let length = client.read_u8().await.unwrap();
        let mut bytes = vec![0; usize::from(length)];
        client.read_exact(&mut bytes).await.unwrap();
        bytes
    }
    async fn text(client: &mut TcpStream) -> String {
        String::from_utf8(counted(client).await).unwrap()
    }
    assert_eq!(client.read_u8().await.unwrap(), 5);
    let methods = counted(client).await;
    assert!(methods.contains(&2), "{methods:?}");
    client.write_all(&[5, 2]).await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), 1);
    let (user, password) = (text(client).await, text(client).await);
    client.write_all(&[1, 0]).await.unwrap();
    let mut request = [0; 4];
    client.read_exact(&mut request).await.unwrap();
    assert_eq!(request[..3], [5, 1, 0], "connect");
    let host = match request[3] {
        3 => text(client).await,
        4 => {
            let mut address = [0; 16];
            client.read_exact(&mut address).await.unwrap();
            format!("[{}]", std::net::Ipv6Addr::from(address))
        }
        kind => panic!("an address of kind {kind}"),
    };
    let port = client.read_u16().await.unwrap();
    format!("{user}:{password}@{host}:{port}")
}

/// The environment's proxies.
fn environment(https: &str, http: &str, no: &str) -> Pod {
    Pod {
        proxies: Variables {
            https: SecretText(https.to_owned()),
            http: SecretText(http.to_owned()),
            no: no.to_owned(),
        },
        ..nowhere()
    }
}

fn api_at(pod: Pod, master: &str) -> Api {
    let access = Access {
        master: master.to_owned(),
        ..Access::default()
    };
    Api::open_in(pod, access, Arc::new(())).unwrap()
}

/// An API server behind `proxy-url`.
fn api_behind(proxy_url: &str, server: &str) -> Api {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let content = kubeconfig(server, "{}")
        .replace("server:", &format!("proxy-url: \"{proxy_url}\", server:"));
    fs::write(&path, content).unwrap();
    let access = Access {
        kubeconfig: path.to_str().unwrap().to_owned(),
        ..Access::default()
    };
    // With a proxy of its own the kubeconfig does not ask the environment.
    let pod = environment("http://10.0.0.1:1", "http://10.0.0.1:1", "*");
    Api::open_in(pod, access, Arc::new(())).unwrap()
}

/// Sees everything through this client, also what changes later.
async fn watches(api: &Api, server: &Server) {
    let mut consumer = Consumer::with(api, settings());
    consumer.until_same(server).await;
    server.until_watched(SERVICES).await;
    server.put(SERVICES, service("later", 80));
    consumer.until_same(server).await;
}

#[test]
fn a_tls_connection_is_tunnelled_through_connect() {
    run(async {
        let log = Log::new();
        let server = Server::start().await;
        let proxy = TestProxy::start(Manner::Http, &server).await;
        let pod = environment(
            &format!("http://me:secret@{}", proxy.address),
            "",
            "10.0.0.0/8",
        );
        let api = api_at(pod, &format!("https://{TARGET}"));
        let failure = api.get(SERVICES, Format::Protobuf, LONG).await.unwrap_err();
        let asked = proxy.asked();
        let request = format!("CONNECT {TARGET} HTTP/1.1\r\nHost: {TARGET}\r\n");
        assert!(asked[0].starts_with(&request), "{asked:?}");
        assert!(
            asked[0].contains("Proxy-Authorization: Basic bWU6c2VjcmV0\r\n"),
            "{asked:?}"
        );
        // The server at the end of the tunnel does not speak TLS, and its answer came back.
        assert!(
            failure.whole().contains("InvalidContentType"),
            "{}",
            failure.whole()
        );
        let lines = log.lines();
        let line = lines.iter().find(|line| line.contains("Using a proxy"));
        let line = line.expect("it is logged");
        assert!(
            line.contains(&format!("http://{} (HTTPS_PROXY)", proxy.address)),
            "{line}"
        );
        assert!(!lines.concat().contains("secret"), "{lines:?}");
    });
}

#[test]
fn a_plain_connection_is_forwarded_request_by_request() {
    run(async {
        let server = Server::start().await;
        let proxy = TestProxy::start(Manner::Http, &server).await;
        let pod = environment("", &format!("me:secret@{}", proxy.address), "");
        let api = api_at(pod, &format!("http://{TARGET}"));
        watches(&api, &server).await;
        let asked = proxy.asked();
        let request = format!("GET http://{TARGET}/api/v1/");
        assert!(
            asked.iter().any(|head| head.starts_with(&request)),
            "{asked:?}"
        );
        assert!(
            asked
                .iter()
                .all(|head| head.contains("Basic bWU6c2VjcmV0\r\n")),
            "{asked:?}"
        );
    });
}

#[test]
fn a_proxy_url_is_used_whatever_the_environment_says() {
    run(async {
        let server = Server::start().await;
        let proxy = TestProxy::start(Manner::Http, &server).await;
        // Also for a loopback address.
        let api = api_behind(&format!("http://{}", proxy.address), &server.url());
        watches(&api, &server).await;
        assert!(proxy.asked().len() >= 4);
    });
}

#[test]
fn a_socks_proxy_resolves_the_name_and_checks_the_password() {
    run(async {
        let server = Server::start().await;
        let proxy = TestProxy::start(Manner::Socks5, &server).await;
        let url = format!("socks5://me:p%40ss@{}", proxy.address);
        watches(&api_behind(&url, &format!("http://{TARGET}")), &server).await;
        let asked = proxy.asked();
        assert!(
            asked
                .iter()
                .all(|target| *target == format!("me:p@ss@{TARGET}")),
            "{asked:?}"
        );
    });
}

#[test]
fn a_socks_proxy_is_given_an_ipv6_address_as_such() {
    run(async {
        let server = Server::start().await;
        let proxy = TestProxy::start(Manner::Socks5, &server).await;
        let url = format!("socks5://me:pass@{}", proxy.address);
        watches(&api_behind(&url, "http://[2001:db8::1]:6443"), &server).await;
        let asked = proxy.asked();
        let wanted = "me:pass@[2001:db8::1]:6443";
        assert!(asked.iter().all(|target| target == wanted), "{asked:?}");
    });
}

#[test]
fn the_environments_proxies_are_not_for_loopback() {
    run(async {
        let server = Server::start().await;
        let proxy = TestProxy::start(Manner::Refusing, &server).await;
        let url = format!("http://{}", proxy.address);
        let api = api_at(environment(&url, &url, ""), &server.url());
        watches(&api, &server).await;
        assert!(proxy.asked().is_empty());
    });
}

#[test]
fn a_proxy_that_refuses_is_named() {
    run(async {
        let server = Server::start().await;
        let proxy = TestProxy::start(Manner::Refusing, &server).await;
        let named = format!("proxy http://{} (HTTPS_PROXY)", proxy.address);
        let pod = environment(&format!("http://{}", proxy.address), "", "");
        let api = api_at(pod, &format!("https://{TARGET}"));
        let failure = api.get(SERVICES, Format::Protobuf, LONG).await.unwrap_err();
        assert!(failure.whole().contains(&named), "{}", failure.whole());
        let resource = super::super::resource::Resource::of(Kind::Service);
        let advice = failure.advice(resource, TARGET).unwrap();
        assert!(
            advice.contains(&named) && advice.contains("NO_PROXY"),
            "{advice}"
        );
    });
}

#[test]
fn a_variable_that_names_no_proxy_is_logged_and_ignored() {
    run(async {
        for (wrong, reason) in [
            ("http//me:secret@nowhere", "could not parse"),
            ("ftp://me:secret@10.0.0.9", "unsupported scheme"),
        ] {
            let log = Log::new();
            // Nothing is sent yet, so the target need not exist.
            api_at(environment(wrong, "", ""), &format!("https://{TARGET}"));
            let lines = log.lines();
            let line = lines.iter().find(|line| line.starts_with("WARN"));
            let line = line.expect("it is logged");
            for words in [
                "variable=HTTPS_PROXY",
                reason,
                "connecting directly",
                TARGET,
            ] {
                assert!(line.contains(words), "{line}");
            }
            assert!(!line.contains("secret"), "{line}");
        }
    });
}
