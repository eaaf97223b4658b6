//! A small API server on loopback that does what it should, and anything else on request.
//!
//! Real TCP and HTTP, in this process. Objects have versions, lists come in pages or as streams,
//! and old history can be forgotten. It does not select: that is for the tests to look at.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::super::format::Format;
use super::super::protobuf::{MEDIA_TYPE, testing};
use super::LONG;

pub const SERVICES: &str = "/api/v1/services";
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub const ENDPOINTS: &str = "/api/v1/endpoints";
pub const NODES: &str = "/api/v1/nodes";
pub const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Stream,
    List,
    Continue,
    Watch,
    Probe,
    Post,
}

/// What to do instead of answering as asked, once.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A `Status` with this code and reason.
    Status(u16, &'static str),
    /// A `Status` that asks to be left alone for some seconds.
    Busy(u16, u64),
    /// A page that no API server wrote.
    Page(u16, &'static str),
    /// A watch that begins well, with an error inside.
    ErrorEvent(u16, &'static str),
    /// The same, behind the first event and in one piece with it.
    EventAndError(u16, &'static str),
    /// The connection breaks in the middle of the answer.
    Half,
    /// The answer begins and nothing follows.
    Silent,
    /// Nothing, ever.
    NoAnswer,
    /// The right answer, after [`Server::release`].
    Hold,
    /// The right answer, after a while.
    Slow(Duration),
    /// An empty answer.
    Empty,
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub ask: Ask,
    pub path: String,
    /// As it was on the wire.
    pub query: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    pub fn parameter(&self, name: &str) -> Option<String> {
        parameters(&self.query).remove(name)
    }
}

type Line = Result<Frame<Bytes>, io::Error>;
type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

struct State {
    version: u64,
    /// By path, then by `namespace/name`.
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    history: Vec<Change>,
    /// Nobody can watch from before this.
    oldest: u64,
    watchers: Vec<(String, mpsc::UnboundedSender<Line>)>,
    /// What is left of lists that came in pages.
    pages: BTreeMap<String, (u64, Vec<Value>)>,
    tokens: u64,
    page_size: usize,
    streams: bool,
    /// A server from before 1.31 selects Services by nothing but their names.
    selects_services: bool,
    missing: BTreeSet<&'static str>,
    /// Whether "too old" is an answer or an event.
    expired_as_answer: bool,
    /// The best it can answer in.
    format: Format,
    /// How lists are packed for who says that it can unpack.
    packing: Option<&'static str>,
    faults: Vec<(&'static str, Ask, Fault)>,
    seen: Vec<Seen>,
}

struct Change {
    version: u64,
    path: String,
    line: Bytes,
}

struct Shared {
    state: Mutex<State>,
    changed: Notify,
    cut: Notify,
    released: Notify,
}

pub struct Server {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Server {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                version: 100,
                objects: BTreeMap::new(),
                history: Vec::new(),
                oldest: 0,
                watchers: Vec::new(),
                pages: BTreeMap::new(),
                tokens: 0,
                page_size: 500,
                streams: true,
                selects_services: true,
                missing: BTreeSet::new(),
                expired_as_answer: false,
                format: Format::Protobuf,
                packing: None,
                faults: Vec::new(),
                seen: Vec::new(),
            }),
            changed: Notify::new(),
            cut: Notify::new(),
            released: Notify::new(),
        });
        Self {
            address: listener.local_addr().unwrap(),
            accepting: tokio::spawn(accept(listener, Arc::clone(&shared))),
            shared,
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn with<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        let result = with(&mut self.shared.state.lock().unwrap());
        self.shared.changed.notify_waiters();
        result
    }

    /// Stops listening and breaks all connections. What is stored stays.
    pub async fn stop(&mut self) {
        self.accepting.abort();
        _ = (&mut self.accepting).await;
        self.with(|state| state.watchers.clear());
    }

    /// Listens again, on the same port.
    pub async fn resume(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.accepting = tokio::spawn(accept(listener, Arc::clone(&self.shared)));
    }

    /// Stores an object and tells the watchers.
    pub fn put(&self, path: &str, object: Value) {
        self.with(|state| state.put(path, object));
    }

    /// Stores many objects that nobody watches yet.
    pub fn fill(&self, path: &str, objects: impl Iterator<Item = Value>) {
        self.with(|state| objects.for_each(|object| state.put(path, object)));
    }

    pub fn delete(&self, path: &str, key: &str) {
        self.with(|state| state.delete(path, key));
    }

    pub fn objects(&self, path: &str) -> Vec<Value> {
        self.with(|state| state.collection(path).values().cloned().collect())
    }

    pub fn version(&self) -> u64 {
        self.with(|state| state.version)
    }

    /// Tells the watchers how far the history has come.
    pub fn bookmark(&self, path: &str) {
        self.with(|state| {
            let line = bookmark(state.version, false);
            state.tell(path, &line);
        });
    }

    /// Forgets all history up to now.
    pub fn compact(&self) {
        self.with(|state| {
            state.version += 1;
            state.oldest = state.version;
            state.history.clear();
        });
    }

    /// Begins to count versions anew, as a server does whose storage was restored.
    pub fn restore(&self) {
        self.with(|state| {
            state.version = 10;
            state.oldest = 0;
            state.history.clear();
        });
    }

    pub fn forget_pages(&self) {
        self.with(|state| state.pages.clear());
    }

    /// Ends all watches in good order.
    pub fn end_watches(&self) {
        self.with(|state| state.watchers.clear());
    }

    /// Keeps all watches open and never says anything more, as a proxy does whose server died.
    pub fn freeze_watches(&self) {
        self.with(|state| {
            for (path, _) in &mut state.watchers {
                path.clear();
            }
        });
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        self.with(|state| state.watchers.clear());
        self.shared.cut.notify_waiters();
    }

    pub fn refuse_streams(&self) {
        self.with(|state| state.streams = false);
    }

    /// From now on no Service is selected by its cluster IP.
    pub fn refuse_fields(&self) {
        self.with(|state| state.selects_services = false);
    }

    pub fn page_size(&self, size: usize) {
        self.with(|state| state.page_size = size);
    }

    pub fn say_expired_as_answer(&self, answer: bool) {
        self.with(|state| state.expired_as_answer = answer);
    }

    /// From now on the best it can answer in.
    pub fn speak(&self, format: Format) {
        self.with(|state| state.format = format);
    }

    /// From now on lists are packed.
    pub fn pack(&self) {
        self.with(|state| state.packing = Some("gzip"));
    }

    pub fn do_not_offer(&self, path: &'static str) {
        self.with(|state| state.missing.insert(path));
    }

    pub fn offer(&self, path: &'static str) {
        self.with(|state| state.missing.remove(path));
    }

    /// The next request of this sort fails so. Several of one sort fail in turn.
    pub fn fail(&self, path: &'static str, ask: Ask, fault: Fault) {
        self.with(|state| state.faults.push((path, ask, fault)));
    }

    pub fn faults_left(&self) -> usize {
        self.with(|state| state.faults.len())
    }

    /// Forgets faults nobody ran into.
    pub fn forgive(&self) {
        self.with(|state| state.faults.clear());
    }

    /// Lets answers go that were held back.
    pub fn release(&self) {
        self.shared.released.notify_waiters();
    }

    /// All requests so far for a path.
    pub fn seen(&self, path: &str) -> Vec<Seen> {
        let state = self.shared.state.lock().unwrap();
        let seen = state.seen.iter().filter(|seen| seen.path == path);
        seen.cloned().collect()
    }

    pub fn asks(&self, path: &str) -> Vec<Ask> {
        self.seen(path).iter().map(|seen| seen.ask).collect()
    }

    /// Waits until so many requests of a sort have arrived.
    pub async fn until_asked(&self, path: &str, ask: Ask, count: usize) -> Seen {
        let arrived = |state: &State| {
            let matching = |seen: &&Seen| seen.path == path && seen.ask == ask;
            let nth = state.seen.iter().filter(matching).nth(count - 1);
            nth.cloned()
        };
        self.until(arrived).await
    }

    /// Waits until somebody watches a path.
    pub async fn until_watched(&self, path: &str) {
        let watched = |state: &State| {
            let mut watchers = state.watchers.iter();
            watchers
                .any(|(watched, sender)| watched == path && !sender.is_closed())
                .then_some(())
        };
        self.until(watched).await;
    }

    async fn until<T>(&self, reached: impl Fn(&State) -> Option<T>) -> T {
        loop {
            let changed = self.shared.changed.notified();
            if let Some(value) = reached(&self.shared.state.lock().unwrap()) {
                return value;
            }
            timeout(LONG, changed).await.expect("the state is reached");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl State {
    fn collection(&mut self, path: &str) -> &mut BTreeMap<String, Value> {
        self.objects.entry(path.to_owned()).or_default()
    }

    fn put(&mut self, path: &str, mut object: Value) {
        self.version += 1;
        let version = self.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let key = key(&object);
        let former = self.collection(path).insert(key, object.clone());
        let kind = if former.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        self.record(path, kind, &object);
    }

    fn delete(&mut self, path: &str, key: &str) {
        let Some(mut object) = self.collection(path).remove(key) else {
            return;
        };
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.record(path, "DELETED", &object);
    }

    fn record(&mut self, path: &str, kind: &str, object: &Value) {
        let line = line(kind, object);
        self.tell(path, &line);
        self.history.push(Change {
            version: self.version,
            path: path.to_owned(),
            line,
        });
    }

    fn tell(&mut self, path: &str, line: &Bytes) {
        self.watchers.retain(|(watched, sender)| {
            watched != path || sender.send(Ok(Frame::data(line.clone()))).is_ok()
        });
    }

    fn take_fault(&mut self, path: &str, ask: Ask) -> Option<Fault> {
        let mut faults = self.faults.iter();
        let at = faults.position(|(where_, when, _)| *where_ == path && *when == ask)?;
        Some(self.faults.remove(at).2)
    }

    fn answer(&mut self, seen: &Seen) -> Answer {
        if self.missing.contains(seen.path.as_str()) {
            return page(404, "404 page not found\n");
        }
        let parameters = parameters(&seen.query);
        let fields = parameters.get("fieldSelector");
        if !self.selects_services && fields.is_some_and(|text| text.contains("spec.clusterIP")) {
            return status(
                400,
                "BadRequest",
                "\"spec.clusterIP\" is not a known field selector: only \"metadata.name\", \
                 \"metadata.namespace\"",
            );
        }
        let version: u64 = parameters
            .get("resourceVersion")
            .map_or(0, |text| text.parse().unwrap());
        if version > self.version {
            return too_large(version, self.version);
        }
        match seen.ask {
            Ask::Post => full(201, &json!({})),
            Ask::Stream if !self.streams => status(
                422,
                "Invalid",
                "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless \
                 the WatchList feature gate is enabled",
            ),
            Ask::Stream => self.stream(&seen.path),
            Ask::Watch => self.watch(&seen.path, version),
            Ask::Continue => {
                let token = &parameters["continue"];
                match self.pages.remove(token) {
                    Some((version, rest)) => self.list(version, rest),
                    None => status(410, "Expired", "The provided continue parameter is too old"),
                }
            }
            Ask::List | Ask::Probe => {
                let objects: Vec<Value> = self.collection(&seen.path).values().cloned().collect();
                match parameters.get("limit") {
                    Some(_) => self.list(self.version, objects),
                    None => list(self.version, &objects, ""),
                }
            }
        }
    }

    fn stream(&mut self, path: &str) -> Answer {
        let (sender, answer) = streaming();
        for object in self.collection(path).values() {
            _ = sender.send(Ok(Frame::data(line("ADDED", object))));
        }
        _ = sender.send(Ok(Frame::data(bookmark(self.version, true))));
        self.watchers.push((path.to_owned(), sender));
        answer
    }

    fn watch(&mut self, path: &str, version: u64) -> Answer {
        if version < self.oldest {
            let message = format!("too old resource version: {version} ({})", self.oldest);
            return if self.expired_as_answer {
                status(410, "Expired", &message)
            } else {
                error_event(410, "Expired", &message)
            };
        }
        let (sender, answer) = streaming();
        let missed = |change: &&Change| change.path == path && change.version > version;
        for change in self.history.iter().filter(missed) {
            _ = sender.send(Ok(Frame::data(change.line.clone())));
        }
        self.watchers.push((path.to_owned(), sender));
        answer
    }

    fn list(&mut self, version: u64, mut objects: Vec<Value>) -> Answer {
        let rest = objects.split_off(objects.len().min(self.page_size));
        if rest.is_empty() {
            return list(version, &objects, "");
        }
        self.tokens += 1;
        let token = format!("page+{}/{}=", self.tokens, rest.len());
        self.pages.insert(token.clone(), (version, rest));
        list(version, &objects, &token)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Ends all connections when it is dropped.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = service_fn(|request| answer(&shared, request));
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                _ = connection => {}
                () = shared.cut.notified() => {}
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(shared: &Shared, request: Request<Incoming>) -> Result<Answer, Infallible> {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let seen = Seen {
        ask: ask(&parts.method, &query),
        path: parts.uri.path().to_owned(),
        query,
        headers: parts.headers,
        body: body.collect().await.unwrap().to_bytes().to_vec(),
    };
    let fault = {
        let mut state = shared.state.lock().unwrap();
        state.seen.push(seen.clone());
        state.take_fault(&seen.path, seen.ask)
    };
    let released = shared.released.notified();
    shared.changed.notify_waiters();
    let accept = seen.header("accept");
    let (format, packing) = {
        let state = shared.state.lock().unwrap();
        (state.format, state.packing)
    };
    let packs = matches!(seen.ask, Ask::List | Ask::Continue)
        && packing.is_some_and(|packing| seen.header("accept-encoding") == packing);
    let protobuf = accept.starts_with(MEDIA_TYPE) && format == Format::Protobuf;
    let kind = protobuf.then(|| kind_of(&seen.path));
    let plain = || shared.state.lock().unwrap().answer(&seen);
    let right = || {
        let answer = encoded(kind, plain());
        if packs { packed(answer) } else { answer }
    };
    let answer = match fault {
        None => right(),
        Some(Fault::Status(code, reason)) => {
            encoded(kind, status(code, reason, &format!("because of {reason}")))
        }
        Some(Fault::Busy(code, seconds)) => {
            let mut answer = encoded(kind, status(code, "TooManyRequests", "busy"));
            let headers = answer.headers_mut();
            headers.insert("retry-after", seconds.into());
            answer
        }
        Some(Fault::Page(code, text)) => page(code, text),
        Some(Fault::ErrorEvent(code, reason)) => encoded(kind, error_event(code, reason, "inside")),
        Some(Fault::EventAndError(code, reason)) => {
            let (parts, mut body) = plain().into_parts();
            let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
            let error = line("ERROR", &failure(code, reason, "inside"));
            let both = bytes([first, error].concat().into());
            encoded(kind, Response::from_parts(parts, both))
        }
        Some(Fault::Half) => half(kind, right()).await,
        Some(Fault::Silent) => {
            let (sender, answer) = streaming();
            let mut state = shared.state.lock().unwrap();
            // Kept open, and nothing is sent.
            state.watchers.push((String::new(), sender));
            answer
        }
        Some(Fault::NoAnswer) => std::future::pending().await,
        Some(Fault::Hold) => {
            released.await;
            right()
        }
        Some(Fault::Slow(delay)) => {
            tokio::time::sleep(delay).await;
            right()
        }
        Some(Fault::Empty) => full(200, &json!("")).map(|_| bytes(Bytes::new())),
    };
    shared.changed.notify_waiters();
    Ok(answer)
}

/// The first part of an answer, and then a broken connection.
async fn half(kind: Option<&str>, answer: Answer) -> Answer {
    let (parts, mut body) = answer.into_parts();
    let begun = timeout(Duration::from_millis(5), body.frame()).await;
    let first = if let Ok(Some(Ok(frame))) = begun {
        frame.into_data().unwrap()
    } else {
        // A watch with nothing to tell; begin with something that looks like an event.
        let line = line("ADDED", &json!({"metadata": {"name": "half"}}));
        kind.map_or(line.clone(), |kind| in_protobuf(kind, &line))
    };
    let first = first.slice(..=first.len() / 2);
    let lines = [
        Ok(Frame::data(first)),
        Err(io::Error::other("broken on purpose")),
    ];
    Response::from_parts(parts, StreamBody::new(stream::iter(lines)).boxed_unsync())
}

/// The kind of the objects at a path.
fn kind_of(path: &str) -> &'static str {
    match path {
        SERVICES => "Service",
        SLICES => "EndpointSlice",
        ENDPOINTS => "Endpoints",
        NODES => "Node",
        CIDRS => "ServiceCIDR",
        _ => "Status",
    }
}

/// The same answer in protobuf, if objects of this kind are wanted so.
fn encoded(kind: Option<&'static str>, answer: Answer) -> Answer {
    let Some(kind) = kind else { return answer };
    let (mut parts, body) = answer.into_parts();
    let media_type = "application/vnd.kubernetes.protobuf;stream=watch";
    let headers = &mut parts.headers;
    headers.insert("content-type", media_type.parse().unwrap());
    let body = body.map_frame(move |frame| frame.map_data(|data| in_protobuf(kind, &data)));
    Response::from_parts(parts, body.boxed_unsync())
}

/// The same answer, packed.
fn packed(answer: Answer) -> Answer {
    let (mut parts, body) = answer.into_parts();
    let headers = &mut parts.headers;
    headers.insert("content-encoding", "gzip".parse().unwrap());
    let pack = |data: Bytes| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&data).unwrap();
        Bytes::from(encoder.finish().unwrap())
    };
    let body = body.map_frame(move |frame| frame.map_data(pack));
    Response::from_parts(parts, body.boxed_unsync())
}

/// Lines of a watch, or a list, or a `Status`; what is none of them stays as it is.
fn in_protobuf(kind: &str, text: &[u8]) -> Bytes {
    let Ok(values) = serde_json::Deserializer::from_slice(text)
        .into_iter::<Value>()
        .collect::<Result<Vec<_>, _>>()
    else {
        return Bytes::copy_from_slice(text);
    };
    let encoded = values.iter().map(|value| {
        if value["object"].is_object() {
            testing::frame(kind, value)
        } else if value["items"].is_array() {
            testing::list(kind, value)
        } else {
            testing::message("Status", value)
        }
    });
    encoded.collect::<Vec<_>>().concat().into()
}

fn ask(method: &http::Method, query: &str) -> Ask {
    let parameters = parameters(query);
    let has = |name: &str| parameters.contains_key(name);
    match method.as_str() {
        "POST" => Ask::Post,
        _ if has("sendInitialEvents") => Ask::Stream,
        _ if has("watch") => Ask::Watch,
        _ if has("continue") => Ask::Continue,
        _ if parameters.get("limit").is_some_and(|limit| limit == "1") => Ask::Probe,
        _ => Ask::List,
    }
}

fn parameters(query: &str) -> BTreeMap<String, String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), decode(value)))
        .collect()
}

fn decode(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).unwrap()
}

fn key(object: &Value) -> String {
    let word = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    match word("namespace") {
        "" => word("name").to_owned(),
        namespace => format!("{namespace}/{}", word("name")),
    }
}

fn line(kind: &str, object: &Value) -> Bytes {
    // The type comes first, as API servers write it.
    Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"))
}

fn bookmark(version: u64, ends_list: bool) -> Bytes {
    let mut metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
    if ends_list {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    line("BOOKMARK", &json!({"metadata": metadata}))
}

fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

fn list(version: u64, objects: &[Value], next: &str) -> Answer {
    let list = json!({
        "kind": "List", "apiVersion": "v1", "items": objects,
        "metadata": {"resourceVersion": version.to_string(), "continue": next},
    });
    full(200, &list)
}

fn error_event(code: u16, reason: &str, message: &str) -> Answer {
    let line = line("ERROR", &failure(code, reason, message));
    full(200, &json!("")).map(|_| bytes(line))
}

fn too_large(version: u64, current: u64) -> Answer {
    let message = format!("Too large resource version: {version}, current: {current}");
    let mut failure = failure(504, "Timeout", &message);
    failure["details"] = json!({"causes": [{"reason": "ResourceVersionTooLarge"}]});
    full(504, &failure)
}

fn status(code: u16, reason: &str, message: &str) -> Answer {
    full(code, &failure(code, reason, message))
}

fn page(code: u16, text: &'static str) -> Answer {
    let mut answer = full(code, &json!(""));
    *answer.body_mut() = bytes(Bytes::from_static(text.as_bytes()));
    answer
}

fn full(code: u16, body: &Value) -> Answer {
    let mut answer = Response::new(bytes(Bytes::from(body.to_string())));
    *answer.status_mut() = StatusCode::from_u16(code).unwrap();
    answer
}

fn bytes(bytes: Bytes) -> UnsyncBoxBody<Bytes, io::Error> {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn streaming() -> (mpsc::UnboundedSender<Line>, Answer) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let lines = stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|line| (line, receiver))
    });
    (sender, Response::new(StreamBody::new(lines).boxed_unsync()))
}
