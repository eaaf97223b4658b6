//! The admin socket: answers questions about the running proxy, and changes nothing.
//!
//! In: what sync publishes, over a channel that never makes it wait. Out: HTTP on a Unix socket,
//! with JSON, and the same answers to [`Questions`] of other threads. Everything here happens on a
//! thread of its own, so that an answer that takes long delays neither sync nor the watches nor health.
//!
//! Whoever cannot listen, because the folder cannot be made or something else has the name, logs it
//! once and tries again: the proxy works without.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{pending, poll_fn};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use ferrule_core::desired::Change;
use ferrule_core::desired::explain::News;
use ferrule_core::facts::Settings;
use ferrule_core::issue::Issue;
use ferrule_core::model::{Family, PortKey, ServiceKey};
use ferrule_core::track::{Changes, Tracker};
use ferrule_dataplane::{ApplyError, Refusal, error_chain};
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use tokio::net::UnixListener;
use tokio::runtime;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::clock::Time;
use crate::desired::rows::rows;
use crate::explain::answer::{Question, VERSION, answer};
use crate::explain::ask::decoded;
use crate::explain::target::{self, Target};
use crate::http::{Answer, Handler, JSON, Request, Response, TEXT, handler, serve_local};
use crate::sync::{Repair, Synced};

pub mod history;
mod node;
mod services;
mod socket;
mod state;
#[cfg(test)]
mod tests;

use history::Ended;
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

/// Questions that wait for the thread at a time. Each costs at most some tens of milliseconds.
const WAITING: usize = 64;

/// A question and who waits for its answer.
type Asked = (Request, oneshot::Sender<Response>);

/// The end in the hands of other threads that have something to ask.
#[derive(Clone, Debug)]
pub struct Questions(mpsc::Sender<Asked>);

impl Questions {
    /// Asks for a path as on the socket, such as `/v1/node`. Never waits.
    pub fn ask(&self, request: Request) -> Answer {
        let (reply, answer) = oneshot::channel();
        if self.0.try_send((request, reply)).is_ok() {
            return Answer::Later(answer);
        }
        let text = "too many questions at a time, or nobody answers any more\n";
        Response::new(StatusCode::SERVICE_UNAVAILABLE, TEXT, text).into()
    }
}

/// A page whose text others make: its path below the version, its content type, and how it is made.
pub struct Page {
    pub path: &'static str,
    pub content_type: &'static str,
    pub text: Box<dyn Fn() -> String + Send + Sync>,
}

/// Answers at `path`, if there is one, and to questions, until the publisher is dropped.
///
/// # Errors
/// There is no thread to be had.
pub fn open(
    path: Option<PathBuf>,
    about: About,
    settings: Settings,
    pages: Vec<Page>,
) -> std::io::Result<(Publisher, Questions)> {
    let (updates, received) = mpsc::unbounded_channel();
    let (questions, asked) = mpsc::channel(WAITING);
    let shared = Shared {
        inner: Arc::new(Mutex::new(Inner {
            state: State::new(about, settings),
            updates: received,
        })),
        pages: pages.into(),
    };
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || runtime.block_on(shared.serve(path.as_deref(), asked)))?;
    let publisher = Publisher {
        updates,
        local: Vec::new(),
    };
    Ok((publisher, Questions(questions)))
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

    /// A sync ended at this time.
    pub fn ended(&self, synced: &Synced<'_>, at: Timestamp) {
        let result = synced.result;
        self.send(Update::Ended(Ended {
            family: synced.family,
            at,
            took: synced.took,
            full: synced.full,
            result: result
                .map(|applied| (applied.steps, applied.refused.len()))
                .map_err(|error| error_chain(error)),
        }));
    }

    /// The sync that ended undid external changes.
    pub fn repaired(&self, family: Family, repair: &Repair) {
        self.send(Update::Repaired(family, repair.process.clone()));
    }

    fn send(&self, update: Update) {
        // Without a thread at the other end nobody asks.
        _ = self.updates.send(update);
    }
}

/// What the tasks of the thread share; only they lock it.
#[derive(Clone)]
struct Shared {
    inner: Arc<Mutex<Inner>>,
    pages: Arc<[Page]>,
}

struct Inner {
    state: State,
    updates: UnboundedReceiver<Update>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes updates and answers, until no more updates can come.
    async fn serve(self, path: Option<&Path>, mut asked: mpsc::Receiver<Asked>) {
        let updates = self.follow();
        let socket = async {
            match path {
                Some(path) => self.listen(path).await,
                None => pending().await,
            }
        };
        let questions = async {
            while let Some((request, reply)) = asked.recv().await {
                // Whoever asked may have left.
                _ = reply.send(self.answer(&request));
            }
            pending::<()>().await;
        };
        tokio::select! {
            () = updates => {}
            () = socket => {}
            () = questions => {}
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
        handler(move |request| shared.answer(request))
    }

    fn answer(&self, request: &Request) -> Response {
        if request.method != Method::GET {
            return Response::new(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n");
        }
        let path = request.path.strip_prefix('/');
        let path = path.and_then(|path| path.strip_prefix(VERSION)?.strip_prefix('/'));
        match path {
            Some("node") => json(&self.state(State::node)),
            Some("services") => self.once_begun(|state, now| json(&state.services(now))),
            Some("desired") => self.once_begun(|state, _| {
                let (desired, families) = state.desired();
                json(&rows(&desired, families))
            }),
            Some("explain") => match question(request) {
                Ok(question) => self.once_begun(|state, now| {
                    json(&state.view(now, |view| answer(view, &question)))
                }),
                Err(text) => Response::new(StatusCode::BAD_REQUEST, TEXT, text),
            },
            path => {
                let page = self.pages.iter().find(|page| Some(page.path) == path);
                page.map_or_else(Response::not_found, |page| {
                    Response::new(StatusCode::OK, page.content_type, (page.text)())
                })
            }
        }
    }

    /// What follows from the state now: what sync published before counts.
    fn state<T>(&self, answer: impl FnOnce(&State, Instant) -> T) -> T {
        let mut inner = self.lock();
        let now = Time::now().steady;
        while let Ok(update) = inner.updates.try_recv() {
            inner.state.take(update, now);
        }
        answer(&inner.state, now)
    }

    /// The same once the cluster is known.
    fn once_begun(&self, answer: impl FnOnce(&State, Instant) -> Response) -> Response {
        self.state(|state, now| {
            if state.begun {
                return answer(state, now);
            }
            let text = "the cluster is not known yet: the first lists of Services, EndpointSlices and Nodes are not complete\n";
            Response::new(StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
        })
    }
}

fn json(answer: &impl Serialize) -> Response {
    match serde_json::to_vec(answer) {
        Ok(body) => Response::new(StatusCode::OK, JSON, body).nosniff(),
        Err(error) => Response::new(StatusCode::INTERNAL_SERVER_ERROR, TEXT, error.to_string()),
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
