//! The page of the node: `/ui` on the metrics server.
//!
//! In: a request. Out: one HTML file that needs nothing else, and below `/ui/v1` those answers of the
//! admin thread that the page shows, as on the socket. Everything is read-only. The page is constant; what
//! objects say goes into it as text alone, and its Content-Security-Policy admits no other code and no
//! other host.

use std::hash::{BuildHasher as _, RandomState};

use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY,
};
use http::{Method, StatusCode};

use crate::admin::Questions;
use crate::explain::answer::VERSION;
use crate::http::{Answer, HTML, Request, Response, TEXT};

#[cfg(test)]
mod tests;

/// The page; `NONCE` stands where browsers look for the word that makes its code ours.
const PAGE: &str = include_str!("ui/page.html");
const NONCE: &str = "NONCE";

/// What the page asks for. Logs, configuration and metrics stay on the socket.
const ANSWERS: [&str; 3] = ["node", "services", "explain"];

/// Answers for `/ui` and what is below.
pub struct Ui {
    questions: Questions,
}

impl Ui {
    /// Asks the admin thread.
    pub const fn new(questions: Questions) -> Self {
        Self { questions }
    }

    /// The answer; `None` for paths that are not of the page.
    pub fn answer(&self, request: &Request) -> Option<Answer> {
        let rest = request.path.strip_prefix("/ui")?;
        if !rest.is_empty() && !rest.starts_with('/') {
            return None;
        }
        if !matches!(request.method, Method::GET | Method::HEAD) {
            let refusal = Response::new(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n");
            return Some(refusal.into());
        }
        if rest.is_empty() {
            return Some(page(&nonce()).into());
        }
        let answer = rest.strip_prefix('/')?.strip_prefix(VERSION)?;
        let answer = answer.strip_prefix('/')?;
        ANSWERS.contains(&answer).then(|| {
            self.questions.ask(Request {
                method: Method::GET,
                path: format!("/{VERSION}/{answer}"),
                query: request.query.clone(),
                ..Request::default()
            })
        })
    }
}

fn page(nonce: &str) -> Response {
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let policy = HeaderValue::try_from(policy).expect("a nonce is hexadecimal");
    Response::new(StatusCode::OK, HTML, PAGE.replace(NONCE, nonce))
        .nosniff()
        .with(CONTENT_SECURITY_POLICY, policy)
        .with(CACHE_CONTROL, HeaderValue::from_static("no-store"))
        .with(REFERRER_POLICY, HeaderValue::from_static("no-referrer"))
        .with(
            HeaderName::from_static("cross-origin-resource-policy"),
            HeaderValue::from_static("same-origin"),
        )
}

/// Another word each time, that nobody guesses: the standard library seeds its hashes from the kernel.
fn nonce() -> String {
    let number = || RandomState::new().hash_one(());
    format!("{:016x}{:016x}", number(), number())
}
