//! A small HTTP server: plain functions answer requests, one connection costs one task.
//!
//! In: an address and a function from [`Request`] to [`Response`]. Out: HTTP/1.1 with
//! keep-alive, headers in the order the function gave them, then `Date` and `Content-Length`.
//! What a function answers is decided elsewhere; here is no path and no body but the one of 404.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, Method, StatusCode};
use tokio::sync::oneshot;

mod listen;
mod rebind;
mod serve;
mod stream;
#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;

pub use listen::{ListenError, Network};
pub use rebind::{EVENT_ACTION, RebindingServer, Role, ServerError};
pub use serve::{Server, serve_local};

/// Answers requests. Never blocks: it runs on the thread that serves everybody.
pub type Handler = Arc<dyn Fn(&Request) -> Answer + Send + Sync>;

/// A handler made of a function that gives responses or answers.
pub fn handler<A: Into<Answer>>(answer: impl Fn(&Request) -> A + Send + Sync + 'static) -> Handler {
    Arc::new(move |request| answer(request).into())
}

/// Plain text as Go's server labels it.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// A web page.
pub const HTML: &str = "text/html; charset=utf-8";
/// JSON.
pub const JSON: &str = "application/json";

/// What a client asked.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The path, as sent.
    pub path: String,
    /// What follows the question mark, as sent.
    pub query: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body of a PUT; other bodies are not read.
    pub body: Bytes,
}

impl Request {
    /// The values of one query parameter, in order; a parameter without `=` has an empty one.
    pub fn parameters<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .filter_map(move |(key, value)| (key == name).then_some(value))
    }

    /// The `Accept` header; empty when there is none that is text.
    pub fn accept(&self) -> &str {
        self.headers
            .get(ACCEPT)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }
}

/// What a handler gives.
#[derive(Debug)]
pub enum Answer {
    /// At once.
    Now(Response),
    /// From a thread that may take its time.
    Later(oneshot::Receiver<Response>),
}

impl From<Response> for Answer {
    fn from(response: Response) -> Self {
        Self::Now(response)
    }
}

impl Answer {
    /// The response, once it is there.
    async fn response(self) -> Response {
        match self {
            Self::Now(response) => response,
            Self::Later(response) => response.await.unwrap_or_else(|_| {
                let text = "whoever answers this has ended\n";
                Response::new(StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
            }),
        }
    }
}

/// What a client gets.
#[derive(Clone, Debug)]
pub struct Response {
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
}

impl Response {
    /// An answer of this type; further headers follow in the order they are added.
    pub fn new(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            headers: vec![(CONTENT_TYPE, HeaderValue::from_static(content_type))],
            body: body.into(),
        }
    }

    /// The answer for a path that does not exist, as Go's server gives it.
    pub fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, TEXT, "404 page not found\n").nosniff()
    }

    /// Makes browsers trust the content type.
    #[must_use]
    pub fn nosniff(self) -> Self {
        self.with(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: impl Into<HeaderValue>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Changes the type to one that is composed.
    #[must_use]
    pub fn typed(mut self, content_type: HeaderValue) -> Self {
        if let Some((_, value)) = self.headers.first_mut() {
            *value = content_type;
        }
        self
    }
}
