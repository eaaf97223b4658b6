//! The admin socket: answers questions about the running proxy, and changes nothing.
//!
//! In: what sync publishes, over a channel that never makes it wait. Out: HTTP on a Unix socket,
//! with JSON. Everything here happens on a thread of its own, so that an answer that takes long
//! delays neither sync nor the watches nor health.
//!
//! Whoever cannot listen, because the folder cannot be made or something else has the name, logs it
//! once and tries again: the proxy works without.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use ferrule_core::desired::Change;
use ferrule_core::desired::explain::News;
use ferrule_core::facts::Settings;
use ferrule_core::issue::Issue;
use ferrule_core::model::{Family, PortKey, ServiceKey};
use ferrule_core::track::{Changes, Tracker};
use ferrule_dataplane::{ApplyError, Refusal, error_chain};
use http::{Method, StatusCode};
use tokio::net::UnixListener;
use tokio::runtime;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::sleep;

use crate::clock::Time;
use crate::explain::answer::{Question, VERSION, answer};
use crate::explain::ask::decoded;
use crate::explain::target::{self, Target};
use crate::http::{Handler, JSON, Request, Response, TEXT, serve_local};

mod socket;
mod state;
#[cfg(test)]
mod tests;

pub use state::About;
use state::{State, Update};

/// Where it is unless configured otherwise.
pub const SOCKET: &str = "/run/ferrule/proxy.sock";

/// How long to wait before the path is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The end in the hands of sync. Publishing costs what changed, and never waits.
#[derive(Clone, Debug)]
pub struct Publisher {
    updates: UnboundedSender<Update>,
    local: Vec<IpAddr>,
}

/// Answers at `path` until the publisher is dropped.
///
/// # Errors
/// There is no thread to be had.
pub fn open(path: PathBuf, about: About, settings: Settings) -> std::io::Result<Publisher> {
    let (updates, received) = mpsc::unbounded_channel();
    let shared = Shared(Arc::new(Mutex::new(Inner {
        state: State::new(about, settings),
        updates: received,
    })));
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || runtime.block_on(shared.serve(&path)))?;
    Ok(Publisher {
        updates,
        local: Vec::new(),
    })
}

impl Publisher {
    /// What the tracker handed over.
    pub fn news(&self, tracker: &Tracker, changes: &Changes) {
        self.send(Update::News(News::of(tracker, changes)));
    }

    /// The configuration was changed.
    pub fn settings(&self, settings: &Settings) {
        self.send(Update::Settings(Box::new(settings.clone())));
    }

    /// Everything that is wrong in objects.
    pub fn issues(&self, issues: &[&Issue]) {
        let issues = issues.iter().copied().cloned().collect();
        self.send(Update::Issues(issues));
    }

    /// The addresses of this machine.
    pub fn addresses(&mut self, local: &[IpAddr]) {
        if self.local != local {
            local.clone_into(&mut self.local);
            self.send(Update::Addresses(local.to_vec()));
        }
    }

    /// What is to be programmed anew.
    pub fn changed(&self, family: Family, changes: &BTreeMap<PortKey, Change>) {
        let services: BTreeSet<&ServiceKey> = changes.keys().map(|key| &key.service).collect();
        let services = services.into_iter().cloned().collect();
        self.send(Update::Changed(family, services));
    }

    /// A sync ended well, and the kernel refuses these.
    pub fn programmed(&self, family: Family, refused: &[Refusal]) {
        let refused = refused.iter().map(|r| (r.key.clone(), r.message.clone()));
        self.send(Update::Synced(family, Ok(refused.collect())));
    }

    /// A sync failed.
    pub fn failed(&self, family: Family, error: &ApplyError) {
        self.send(Update::Synced(family, Err(error_chain(error))));
    }

    /// All Services of a family whose health check port cannot be opened.
    pub fn health(&self, family: Family, failed: BTreeMap<ServiceKey, String>) {
        self.send(Update::Health(family, failed));
    }

    fn send(&self, update: Update) {
        // Without a thread at the other end nobody asks.
        _ = self.updates.send(update);
    }
}

/// What the tasks of the thread share; only they lock it.
#[derive(Clone)]
struct Shared(Arc<Mutex<Inner>>);

struct Inner {
    state: State,
    updates: UnboundedReceiver<Update>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes updates and answers, until no more updates can come.
    async fn serve(self, path: &Path) {
        let updates = self.follow();
        let answers = self.listen(path);
        tokio::select! {
            () = updates => {}
            () = answers => {}
        }
    }

    /// Takes updates as they come; ends with the publisher.
    async fn follow(&self) {
        poll_fn(|context| {
            let mut inner = self.lock();
            loop {
                match inner.updates.poll_recv(context) {
                    Poll::Ready(Some(update)) => inner.state.take(update, Time::now().steady),
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
    }

    async fn listen(&self, path: &Path) {
        let mut logged = None;
        loop {
            let opened = socket::listen(path).map_err(|error| error_chain(&error));
            let opened = opened.and_then(|listener| {
                UnixListener::from_std(listener).map_err(|error| error.to_string())
            });
            match opened {
                Ok(listener) => {
                    tracing::info!(socket = %path.display(), "Answering on the admin socket");
                    serve_local(listener, self.handler()).await;
                    return;
                }
                Err(err) if logged.as_ref() != Some(&err) => {
                    tracing::error!(socket = %path.display(), err, "Failed to open the admin socket; ferrule explain cannot ask this proxy, will retry");
                    logged = Some(err);
                }
                Err(_) => {}
            }
            sleep(RETRY).await;
        }
    }

    fn handler(&self) -> Handler {
        let shared = self.clone();
        Arc::new(move |request| shared.answer(request))
    }

    fn answer(&self, request: &Request) -> Response {
        if request.method != Method::GET {
            return Response::new(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n");
        }
        if request.path.strip_prefix('/') != Some(&format!("{VERSION}/explain")) {
            return Response::not_found();
        }
        let question = match question(request) {
            Ok(question) => question,
            Err(text) => return Response::new(StatusCode::BAD_REQUEST, TEXT, text),
        };
        let mut inner = self.lock();
        let now = Time::now().steady;
        // What sync published before the question counts.
        while let Ok(update) = inner.updates.try_recv() {
            inner.state.take(update, now);
        }
        if !inner.state.begun {
            let text = "the cluster is not known yet: the first lists of Services, EndpointSlices and Nodes are not complete\n";
            return Response::new(StatusCode::SERVICE_UNAVAILABLE, TEXT, text);
        }
        let answer = inner.state.view(now, |view| answer(view, &question));
        match serde_json::to_vec(&answer) {
            Ok(body) => Response::new(StatusCode::OK, JSON, body),
            Err(error) => Response::new(StatusCode::INTERNAL_SERVER_ERROR, TEXT, error.to_string()),
        }
    }
}

/// Reads `?target=…&from=…`.
fn question(request: &Request) -> Result<Question, String> {
    let parameter = |name: &str| {
        let mut values = request.parameters(name);
        let value = values.next().map(decoded);
        match (value, values.next()) {
            (None, _) => Ok(None),
            (Some(Some(value)), None) => Ok(Some(value)),
            _ => Err(format!(
                "{name}: given twice, or not encoded as it must be\n"
            )),
        }
    };
    let target = parameter("target")?.ok_or("target: missing\n")?;
    let target = target
        .parse::<Target>()
        .map_err(|error| format!("target: {error}\n"))?;
    let from = parameter("from")?;
    let from = from.map(|text| target::client(&text)).transpose();
    let from = from.map_err(|error| format!("from: {error}\n"))?;
    Question::new(target, from).map_err(|error| format!("from: {error}\n"))
}
