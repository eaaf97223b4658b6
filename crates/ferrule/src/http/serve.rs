//! One open port: accepts connections and answers their requests until it is closed.
//!
//! Closing is hard unless [`Server::finish`] is asked for: when [`Server::close`] returns, the
//! port is free again and nobody new is let in; connections are cut within a turn of the runtime.

use std::convert::Infallible;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, DATE, HeaderValue};
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use socket2::{SockRef, Socket, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::listen::{ListenError, Network, listen};
use super::{Handler, Request, Response, TEXT};

/// Bytes of a request before its body; more is answered with 431.
const HEAD_LIMIT: usize = 16 * 1024;
/// Bytes of a body that is read.
const BODY_LIMIT: usize = 64 * 1024;
/// How long a body may take.
const BODY_TIME: Duration = Duration::from_secs(10);
/// How long a connection may wait between requests, or dribble one. Longer than any usual
/// scrape interval, so that scrapers keep their connection.
const IDLE: Duration = Duration::from_mins(3);
/// Connections at a time; further ones wait in the kernel. Without a limit, idle clients could
/// use up the descriptors that talking to the kernel needs.
const CONNECTIONS: usize = 512;
/// How long unfinished answers may take after a friendly close.
const GRACE: Duration = Duration::from_secs(2);

/// An open port.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    /// The listening socket once more: the other one lives in the task.
    socket: Socket,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    /// Listens on `address` and answers with `handler`. May be called from any thread.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn open(
        runtime: &Handle,
        network: Network,
        address: SocketAddr,
        handler: Handler,
    ) -> Result<Self, ListenError> {
        let socket = listen(network, address)?;
        Self::start(runtime, socket, handler)
            .map_err(|cause| ListenError::late(network, address, cause))
    }

    fn start(runtime: &Handle, socket: Socket, handler: Handler) -> io::Result<Self> {
        let _context = runtime.enter();
        let listener = TcpListener::from_std(socket.try_clone()?.into())?;
        let (stop, stopped) = watch::channel(false);
        Ok(Self {
            address: listener.local_addr()?,
            socket,
            stop,
            task: runtime.spawn(accept(listener, handler, stopped)),
        })
    }

    /// Where it listens; the port is the real one even if 0 was asked for.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the port and cuts every connection.
    #[cfg_attr(not(test), expect(dead_code, reason = "dropping it does the same"))]
    pub fn close(self) {
        drop(self);
    }

    /// Closes the port at once and lets answers under way finish; the future ends when they are
    /// out.
    pub fn finish(mut self) -> impl Future<Output = ()> + Send + 'static {
        self.refuse();
        self.stop.send_replace(true);
        async move {
            // It ends by itself within the grace period; if it was cut, it ended as well.
            let _ended = (&mut self.task).await;
        }
    }

    /// From here on nobody can connect, and the port can be bound again: a listening socket
    /// stops at once when it is shut down, while a task ends only when its runtime gets to it.
    fn refuse(&self) {
        // The only way this fails is a socket that does not listen any more.
        let _already = self.socket.shutdown(Shutdown::Both);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.refuse();
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, handler: Handler, mut stopped: watch::Receiver<bool>) {
    // Dropping the set cuts the connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = stopped.changed() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(stream, handler.clone(), stopped.clone()));
                }
                // A peer that left before it was let in, or no descriptor left: neither is a
                // reason to stop, and the pause keeps the second from spinning.
                Err(error) => {
                    tracing::debug!(err = %error, "Failed to accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    drop(listener);
    let all_gone = async { while connections.join_next().await.is_some() {} };
    // What is not done by then is cut.
    let _in_time = tokio::time::timeout(GRACE, all_gone).await;
}

/// Serves one connection until either side has enough.
async fn converse(stream: TcpStream, handler: Handler, mut stopped: watch::Receiver<bool>) {
    let socket = SockRef::from(&stream);
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(15));
    // Both are courtesies; a connection works without.
    let _courtesies = (
        socket.set_tcp_nodelay(true),
        socket.set_tcp_keepalive(&keepalive),
    );
    let service = service_fn(|request| respond(&handler, request));
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .max_header_size(HEAD_LIMIT)
            .max_buf_size(BODY_LIMIT)
            .title_case_headers(true)
            .auto_date_header(false)
            // A client may close its half after asking and still wants the answer.
            .half_close(true)
            .serve_connection(TokioIo::new(stream), service)
    );
    let result = tokio::select! {
        result = connection.as_mut() => result,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::trace!(err = %error, "Connection ended early");
    }
}

async fn respond(
    handler: &Handler,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = match read(&head.method, body).await {
        Ok(body) => body,
        Err(refusal) => return Ok(encode(refusal)),
    };
    let request = Request {
        method: head.method,
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: head.headers,
        body,
    };
    Ok(encode(handler(&request)))
}

/// The body, if the method is one whose body matters.
async fn read(method: &Method, body: Incoming) -> Result<Bytes, Response> {
    if method != Method::PUT {
        return Ok(Bytes::new());
    }
    match tokio::time::timeout(BODY_TIME, Limited::new(body, BODY_LIMIT).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => Err(Response::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            TEXT,
            "the body is too long or broken\n",
        )),
        Err(_) => Err(Response::new(
            StatusCode::REQUEST_TIMEOUT,
            TEXT,
            "the body did not arrive\n",
        )),
    }
}

/// The answer as hyper sends it. A header map keeps the order of insertion, and hyper leaves out
/// the body of an answer to HEAD.
fn encode(response: Response) -> hyper::Response<Full<Bytes>> {
    let length = response.body.len();
    let mut encoded = hyper::Response::new(Full::new(response.body));
    *encoded.status_mut() = response.status;
    let headers = encoded.headers_mut();
    for (name, value) in response.headers {
        headers.append(name, value);
    }
    if let Some(date) = date(Timestamp::now()) {
        headers.insert(DATE, date);
    }
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    encoded
}

/// `None` only in years that HTTP cannot write.
fn date(now: Timestamp) -> Option<HeaderValue> {
    let text = DateTimePrinter::new()
        .timestamp_to_rfc9110_string(&now)
        .ok()?;
    HeaderValue::try_from(text).ok()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    use super::*;
    use crate::http::testing::{echo, loopback};

    #[tokio::test(start_paused = true)]
    async fn connections_that_wait_too_long_are_closed() {
        let runtime = Handle::current();
        let server = Server::open(&runtime, Network::Tcp, loopback(), echo()).unwrap();
        for request in [
            "",
            "GET / HTTP/1.1\r\nHost: ",
            "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        ] {
            let before = Instant::now();
            let mut client = TcpStream::connect(server.address()).await.unwrap();
            client.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert_eq!(
                answer.starts_with("HTTP/1.1 200"),
                request.ends_with("\r\n\r\n")
            );
            assert_eq!(before.elapsed().as_secs(), IDLE.as_secs(), "{request}");
        }
        server.finish().await;
    }
}
