//! A conversation with the API server: requests out, answers or [`Failure`]s back.
//!
//! Connections, TLS and credential plugins are the client library's. Ours are the name we go by,
//! how long we wait, fresh credentials, and noticing when nobody is at the other end any more.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, PROXY_AUTHORIZATION, RETRY_AFTER,
    USER_AGENT,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, request};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use tokio::time::{Instant, timeout};
use tower::util::option_layer;
use tower::{BoxError, ServiceExt as _};

use super::access::{Access, AccessError, Pod, Recipe, Token};
use super::failure::{Failure, Refusal};
use super::format::Format;
use super::packing::{self, Packing};
use super::proxy::Proxy;
use super::{frames, route};
use crate::version::KUBERNETES;

/// So much of an answer waits at most on a connection to be taken in, each time the watch rests.
/// Each watch has one.
const READ_AHEAD: usize = 64 << 10;

/// Files are read again at most so often; behind one may be a plugin that takes its time.
const RENEW_EVERY: Duration = Duration::from_mins(1);

/// Of a refusal, so much is read.
const MOST_REFUSAL: usize = 64 << 10;

/// Observes what happens between us and the API server; metrics are made of it.
///
/// Called on the async side, so implementations only count.
pub trait Observer: Send + Sync {
    /// A request was answered with this code after so long, or not at all.
    fn answered(&self, method: &Method, code: Option<u16>, took: Duration) {
        _ = (method, code, took);
    }

    /// A full list of this resource begins.
    fn listing(&self, resource: &'static str) {
        _ = resource;
    }

    /// A watch of this resource ended, well or not, and another one will begin.
    fn watch_ended(&self, resource: &'static str, well: bool) {
        _ = (resource, well);
    }
}

/// Nobody listens.
impl Observer for () {}

/// The API server, for whoever has something to ask. Clones share everything.
#[derive(Clone)]
pub struct Api {
    shared: Arc<Shared>,
}

struct Shared {
    access: Access,
    pod: Pod,
    link: Mutex<Link>,
    observer: Arc<dyn Observer>,
}

/// The client and its credentials, replaced together.
struct Link {
    client: kube::Client,
    token: Option<Token>,
    host: String,
    /// Whether long answers may come packed.
    packs: bool,
    made: Instant,
}

/// An answer that begins.
pub(super) struct Answer {
    pub format: Format,
    pub packing: Packing,
    pub body: Body,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api")
            .field("access", &self.shared.access)
            .finish_non_exhaustive()
    }
}

impl Api {
    /// Reads the configuration and makes ready. Nothing is sent yet.
    ///
    /// A credential plugin is run, and waited for, here. Must be called within a runtime.
    pub fn open(access: Access, observer: Arc<dyn Observer>) -> Result<Self, AccessError> {
        Self::open_in(Pod::around_us(), access, observer)
    }

    /// [`Api::open`] for a process that is in this pod.
    pub(super) fn open_in(
        pod: Pod,
        access: Access,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, AccessError> {
        let recipe = access.read(&pod)?;
        log_proxy(&recipe);
        let link = Link::make(recipe)?;
        Ok(Self {
            shared: Arc::new(Shared {
                access,
                pod,
                link: Mutex::new(link),
                observer,
            }),
        })
    }

    /// `host:port` of the API server, as metrics name it.
    pub fn host(&self) -> String {
        self.with_link(|link| link.host.clone())
    }

    pub(super) fn observer(&self) -> &dyn Observer {
        &*self.shared.observer
    }

    /// The body of the answer to a GET, once it begins, and what it is in.
    pub(super) async fn get(
        &self,
        path: &str,
        wanted: Format,
        limit: Duration,
    ) -> Result<(Format, Body), Failure> {
        let answer = self.ask(path, wanted, None, limit).await?;
        match answer.packing {
            Packing::Plain => Ok((answer.format, answer.body)),
            Packing::Gzip(_) => Err(frames::garbled("it is packed, which was not asked for")),
        }
    }

    /// The same for an answer that may be packed, and how it is.
    pub(super) async fn get_packed(
        &self,
        path: &str,
        wanted: Format,
        limit: Duration,
    ) -> Result<Answer, Failure> {
        let packing = self.with_link(|link| link.packs.then_some(packing::ACCEPTED));
        self.ask(path, wanted, packing, limit).await
    }

    async fn ask(
        &self,
        path: &str,
        wanted: Format,
        packing: Option<&'static str>,
        limit: Duration,
    ) -> Result<Answer, Failure> {
        let request = Request::get(path).header(ACCEPT, wanted.accept());
        let request = match packing {
            Some(name) => request.header(ACCEPT_ENCODING, name),
            None => request,
        };
        let response = self.send(request, Vec::new(), limit).await?;
        let (parts, body) = response.into_parts();
        Ok(Answer {
            format: Format::of(&parts.headers),
            packing: Packing::of(&parts.headers)?,
            body,
        })
    }

    /// Creates an object.
    pub(super) async fn post(
        &self,
        path: &str,
        json: Vec<u8>,
        limit: Duration,
    ) -> Result<(), Failure> {
        let request = Request::post(path)
            .header(ACCEPT, Format::Json.accept())
            .header(CONTENT_TYPE, "application/json");
        self.send(request, json, limit).await?;
        Ok(())
    }

    async fn send(
        &self,
        mut request: request::Builder,
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<Response<Body>, Failure> {
        let (client, token) = self.with_link(|link| {
            let token = link.token.as_mut().and_then(Token::header);
            (link.client.clone(), token)
        });
        let unsendable = |error| Failure::unreachable(kube::Error::HttpError(error));
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Body::from(body)).map_err(unsendable)?;
        let method = request.method().clone();
        let began = Instant::now();
        let answer = timeout(limit, client.send(request)).await;
        let code = match &answer {
            Ok(Ok(response)) => Some(response.status().as_u16()),
            _ => None,
        };
        self.observer().answered(&method, code, began.elapsed());
        let response = answer
            .map_err(|_| Failure::NoAnswer(limit))?
            .map_err(Failure::unreachable)?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(Failure::Refused {
            refusal: refusal(response, limit).await,
            inside: false,
        })
    }

    /// Reads kubeconfig, certificates and all anew, unless that was done a moment ago.
    ///
    /// Whoever replaces them on a node does not restart us. If they make no sense now, the old
    /// ones stay in use.
    pub(super) async fn renew(&self) {
        let due = self.with_link(|link| {
            let due = link.made.elapsed() >= RENEW_EVERY;
            if due {
                link.made = Instant::now();
            }
            due
        });
        if !due {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let make = move || Link::make(shared.access.read(&shared.pod)?);
        match tokio::task::spawn_blocking(make).await {
            Ok(Ok(link)) => self.with_link(|old| *old = link),
            Ok(Err(error)) => tracing::warn!(
                err = &error as &dyn std::error::Error,
                "Reloading the API client configuration failed; keeping the previous one"
            ),
            // The runtime is going down.
            Err(_) => {}
        }
    }

    fn with_link<T>(&self, with: impl FnOnce(&mut Link) -> T) -> T {
        // Nothing is ever left half done in there.
        let link = self.shared.link.lock();
        with(&mut link.unwrap_or_else(PoisonError::into_inner))
    }
}

impl Link {
    fn make(recipe: Recipe) -> Result<Self, AccessError> {
        let Recipe {
            mut config,
            token,
            proxy,
            ignored: _,
        } = recipe;
        let host = config.cluster_url.authority().map(ToString::to_string);
        config.headers.push((USER_AGENT, user_agent()));
        let packs = !config.disable_compression;
        Ok(Self {
            client: client(config, proxy.as_ref()).map_err(AccessError::Client)?,
            token,
            host: host.unwrap_or_default(),
            packs,
            made: Instant::now(),
        })
    }
}

/// Says once how the API server is reached, if not directly.
fn log_proxy(recipe: &Recipe) {
    let server = recipe.config.cluster_url.to_string();
    if let Some(proxy) = &recipe.proxy {
        tracing::info!(server, %proxy, "Using a proxy for the API server");
    }
    if let Some((variable, error)) = &recipe.ignored {
        tracing::warn!(
            variable,
            err = error as &dyn std::error::Error,
            server,
            "The environment names no usable proxy; connecting directly"
        );
    }
}

/// The client library's client, on our own connections.
fn client(mut config: Config, proxy: Option<&Proxy>) -> Result<kube::Client, kube::Error> {
    if let Some(proxy) = proxy
        && route::is_forwarding(&config, proxy)
        && let Some(header) = &proxy.basic
    {
        config.headers.push((PROXY_AUTHORIZATION, header.clone()));
    }
    let route = route::connector(&config, proxy)?;
    let connector = config.rustls_https_connector_with_connector(route)?;
    let http = HttpClient::builder(TokioExecutor::new())
        .http1_max_buf_size(READ_AHEAD)
        .build::<_, Body>(connector)
        // The layer that runs credential plugins has errors of this type, so what is below it must.
        .map_err(BoxError::from);
    // Basic authentication and plugins; tokens are ours.
    let credentials = option_layer(config.auth_layer()?);
    Ok(ClientBuilder::new(http, &config.default_namespace)
        .with_layer(&credentials)
        .with_layer(&config.extra_headers_layer()?)
        .with_layer(&config.base_uri_layer())
        .build())
}

/// Why the server refused, as far as it can be read in time.
async fn refusal(response: Response<Body>, limit: Duration) -> Refusal {
    let code = response.status().as_u16();
    let retry_after = retry_after(response.headers());
    let mut body = response.into_body();
    let mut text = Vec::new();
    while text.len() < MOST_REFUSAL
        && let Ok(Some(piece)) = frames::next(&mut body, limit).await
    {
        text.extend_from_slice(&piece);
    }
    Refusal::read(code, retry_after, &text)
}

/// The header's seconds; the form with a date is not used by API servers.
fn retry_after(headers: &HeaderMap) -> Option<u64> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

/// Who we are, in the form that audit logs and priority rules know.
fn user_agent() -> HeaderValue {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let own = env!("CARGO_PKG_VERSION");
    let text = format!("kube-proxy/{KUBERNETES} (linux/{architecture}) ferrule/{own}");
    HeaderValue::try_from(text).expect("versions and architectures are plain words")
}
