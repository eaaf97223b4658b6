//! One open port: accepts connections and answers their requests until it is closed.
//!
//! Whoever connects is let in: when there are too many connections, the one that has been idle the
//! longest is cut. Clients that ask nothing, or do not take their answers, are cut in time.
//!
//! Closing is hard unless [`Server::finish`] is asked for: when [`Server::close`] returns, the
//! port is free again and nobody new is let in; connections are cut within a turn of the runtime.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use super::listen::{ListenError, Network, listen};
use super::stream::TimedWrites;
use super::{Handler, Request, Response, TEXT};

/// Bytes of a request before its body; more is answered with 431.
const HEAD_LIMIT: usize = 16 * 1024;
/// Bytes of a body that is read.
const BODY_LIMIT: usize = 64 * 1024;
/// How long a body may take.
const BODY_TIME: Duration = Duration::from_secs(10);
/// How long the first request may take to arrive: who connects has something to ask.
const FIRST: Duration = Duration::from_secs(10);
/// How long a connection may wait between requests, or dribble one. Longer than any usual
/// scrape interval, so that scrapers keep their connection.
const IDLE: Duration = Duration::from_mins(3);
/// How long a client may take to receive an answer.
const WRITE: Duration = Duration::from_secs(30);
/// Connections at a time; a further one takes the place of the longest idle one. Without a limit,
/// idle clients could use up the descriptors that talking to the kernel needs; if they had to be
/// waited for, they could silence a health check.
const CONNECTIONS: usize = 512;
/// The same for a server that only this machine's administrators reach.
const LOCAL_CONNECTIONS: usize = 32;
/// How long to wait for descriptors.
const PAUSE: Duration = Duration::from_millis(50);
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
            task: runtime.spawn(accept(listener, handler, stopped, CONNECTIONS)),
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

/// Answers with `handler` whoever connects to a Unix socket, until the future is dropped.
pub async fn serve_local(listener: UnixListener, handler: Handler) {
    let (_stop, stopped) = watch::channel(false);
    accept(listener, handler, stopped, LOCAL_CONNECTIONS).await;
}

/// Where connections come from.
trait Listener: Send + Sync {
    type Stream: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static;

    /// The next connection.
    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept().await?;
        let socket = SockRef::from(&stream);
        let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(15));
        // Both are courtesies; a connection works without.
        let _courtesies = (
            socket.set_tcp_nodelay(true),
            socket.set_tcp_keepalive(&keepalive),
        );
        Ok(stream)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}

/// Lets in at most so many at a time.
async fn accept(
    listener: impl Listener,
    handler: Handler,
    mut stopped: watch::Receiver<bool>,
    most: usize,
) {
    let mut connections = Connections::default();
    loop {
        tokio::select! {
            biased;
            _ = stopped.changed() => break,
            () = connections.ended() => {}
            accepted = listener.next() => match accepted {
                Ok(stream) => {
                    if connections.open.len() >= most {
                        connections.cut_longest_idle();
                    }
                    connections.add(stream, handler.clone(), stopped.clone());
                }
                // A peer that left before it was let in.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // No descriptor left: one that is cut gives its back at its next turn, and
                // without any a pause keeps us from spinning.
                Err(error) => {
                    tracing::debug!(err = %error, "Failed to accept a connection");
                    if connections.cut_longest_idle() {
                        tokio::task::yield_now().await;
                    } else {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            },
        }
    }
    drop(listener);
    let all_gone = async { while connections.tasks.join_next().await.is_some() {} };
    // What is not done by then is cut.
    let _in_time = tokio::time::timeout(GRACE, all_gone).await;
}

/// The connections of a port. Dropping them cuts them.
#[derive(Default)]
struct Connections {
    /// Each ends with its number.
    tasks: JoinSet<u64>,
    open: BTreeMap<u64, Connection>,
    /// Counts connections and requests: the order in which they came.
    count: Arc<AtomicU64>,
}

struct Connection {
    activity: Activity,
    task: AbortHandle,
}

impl Connections {
    fn add<S>(&mut self, stream: S, handler: Handler, stopped: watch::Receiver<bool>)
    where
        S: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static,
    {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let activity = Activity {
            accepted: number,
            latest: Arc::new(AtomicU64::new(number)),
            count: self.count.clone(),
        };
        let conversation = converse(stream, handler, activity.clone(), stopped);
        let task = self.tasks.spawn(async move {
            conversation.await;
            number
        });
        self.open.insert(number, Connection { activity, task });
    }

    /// Waits until one is over; never returns while there is none.
    async fn ended(&mut self) {
        match self.tasks.join_next().await {
            Some(Ok(number)) => drop(self.open.remove(&number)),
            // Cut, and forgotten with that.
            Some(Err(_)) => {}
            None => std::future::pending().await,
        }
    }

    /// Whether there was one.
    fn cut_longest_idle(&mut self) -> bool {
        let latest = |open: &Connection| open.activity.latest.load(Ordering::Relaxed);
        let idle = self.open.iter().min_by_key(|(_, open)| latest(open));
        let idle = idle.map(|(number, _)| *number);
        let cut = idle.and_then(|number| self.open.remove(&number));
        if let Some(connection) = &cut {
            connection.task.abort();
        }
        cut.is_some()
    }
}

/// When a connection was last used, relative to the others of its port.
#[derive(Clone)]
struct Activity {
    accepted: u64,
    /// Its latest request, or itself.
    latest: Arc<AtomicU64>,
    count: Arc<AtomicU64>,
}

impl Activity {
    fn asked(&self) {
        let now = self.count.fetch_add(1, Ordering::Relaxed);
        self.latest.store(now, Ordering::Relaxed);
    }

    fn has_asked(&self) -> bool {
        self.latest.load(Ordering::Relaxed) != self.accepted
    }
}

/// Serves one connection until either side has enough.
async fn converse<S: AsyncRead + AsyncWrite + AsFd + Unpin>(
    stream: S,
    handler: Handler,
    activity: Activity,
    mut stopped: watch::Receiver<bool>,
) {
    let service = service_fn(|request| {
        activity.asked();
        respond(&handler, request)
    });
    let stream = TimedWrites::new(stream, WRITE);
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
    let silent = async {
        tokio::time::sleep(FIRST).await;
        if activity.has_asked() {
            std::future::pending::<()>().await;
        }
    };
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = silent => {
            tracing::trace!("Connection without a request cut");
            return;
        }
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
    Ok(encode(handler(&request).response().await))
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
    use crate::http::handler;
    use crate::http::testing::{echo, loopback};

    fn open(handler: Handler) -> Server {
        Server::open(&Handle::current(), Network::Tcp, loopback(), handler).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_wait_too_long_are_closed() {
        let server = open(echo());
        for (request, limit) in [
            ("", FIRST),
            ("GET / HTTP/1.1\r\nHost: ", FIRST),
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", IDLE),
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /", IDLE),
        ] {
            let before = Instant::now();
            let mut client = TcpStream::connect(server.address()).await.unwrap();
            client.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert_eq!(
                answer.starts_with("HTTP/1.1 200"),
                request.contains("\r\n\r\n")
            );
            assert_eq!(before.elapsed().as_secs(), limit.as_secs(), "{request}");
        }
        server.finish().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_taken_in_time_is_cut() {
        // More than fits into the buffers of both sides.
        let large = Bytes::from(vec![b'x'; 32 << 20]);
        let length = large.len();
        let large = handler(move |_| Response::new(StatusCode::OK, TEXT, large.clone()));
        let server = open(large);
        // Reading a little now and then gains nothing.
        for (pauses, is_complete) in [(1, true), (4, false)] {
            let mut client = TcpStream::connect(server.address()).await.unwrap();
            client
                .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                .await
                .unwrap();
            let mut answer = vec![0; 1024];
            for _ in 0..pauses {
                tokio::time::sleep(WRITE / 3).await;
                client.read_exact(&mut answer[..512]).await.unwrap();
            }
            answer.clear();
            // What is in the buffers still comes, or is lost with the connection.
            let _cut = client.read_to_end(&mut answer).await;
            assert_eq!(answer.len() > length / 2, is_complete, "{}", answer.len());
        }
        server.finish().await;
    }
}
