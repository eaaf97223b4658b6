//! What can go wrong between us and the API server, and what helps.
//!
//! A failure never ends a watch for good; it decides what is tried next and what is logged.

use ferrule_dataplane::error_chain;
use std::error::Error;
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use serde::Deserialize;

use super::protobuf;
use super::resource::Resource;
use super::route::ProxyFailure;

/// Why a request or a watch did not go well.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Nobody answered: no connection, no TLS, no valid credentials of ours to send.
    #[error("cannot reach the API server")]
    Unreachable(#[source] Cause),
    /// The request was sent and nothing came back.
    #[error("the API server did not answer within {0:?}")]
    NoAnswer(Duration),
    /// An answer began and broke off.
    #[error("the connection to the API server broke")]
    Broken(#[source] Cause),
    /// Nothing was received for longer than the server may be silent.
    #[error("nothing was received for {0:?}; the connection is considered dead")]
    Silent(Duration),
    /// The answer ended in good order, but in the middle.
    #[error("the answer ended before it was complete")]
    Incomplete,
    /// A watch ended as soon as it had begun.
    #[error("the watch ended as soon as it had begun")]
    Short,
    /// The server refused.
    #[error("{}", describe(refusal))]
    Refused {
        refusal: Refusal,
        /// As an event inside an answer that had begun well.
        inside: bool,
    },
    /// The answer is not one of an API server.
    #[error("the answer is not one of an API server: {what}")]
    Garbled {
        what: &'static str,
        #[source]
        source: Option<Cause>,
    },
}

/// Whatever lies below.
pub type Cause = Box<dyn Error + Send + Sync>;

/// A `Status` object, as far as it matters.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Refusal {
    pub code: u16,
    pub reason: String,
    pub message: String,
    pub details: Option<Details>,
}

/// Its `details`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Details {
    pub causes: Vec<Detail>,
    pub retry_after_seconds: u64,
}

/// One of its `causes`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Detail {
    pub reason: String,
}

impl Refusal {
    /// The refusal in the body of an answer with this code, which may be no `Status` at all.
    pub fn read(code: u16, retry_after: Option<u64>, body: &[u8]) -> Self {
        let status = if protobuf::is_message(body) {
            protobuf::open(body).and_then(protobuf::refusal).ok()
        } else {
            serde_json::from_slice(body).ok()
        };
        let mut refusal = status.unwrap_or_else(|| Self {
            message: first_line(body),
            ..Self::default()
        });
        refusal.code = code;
        if let Some(seconds) = retry_after {
            refusal.details.get_or_insert_default().retry_after_seconds = seconds;
        }
        refusal
    }

    /// How long the server wants to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    fn is_expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }

    /// We have seen a version that this server has not: its data was restored, or it lags behind.
    fn is_from_the_future(&self) -> bool {
        let caused = |details: &Details| {
            details
                .causes
                .iter()
                .any(|cause| cause.reason == "ResourceVersionTooLarge")
        };
        self.details.as_ref().is_some_and(caused)
            || self.message.contains("Too large resource version")
    }
}

/// The first line of a text from elsewhere, not too much of it.
fn first_line(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(400)]);
    let line = text.lines().next().unwrap_or_default().trim();
    line.chars().take(200).collect()
}

fn describe(refusal: &Refusal) -> String {
    let mut text = format!("the API server answered {}", refusal.code);
    if !refusal.reason.is_empty() {
        _ = write!(text, " {}", refusal.reason);
    }
    if !refusal.message.is_empty() {
        _ = write!(text, ": {}", refusal.message);
    }
    text
}

impl Failure {
    /// Nobody answered.
    pub fn unreachable(error: kube::Error) -> Self {
        Self::Unreachable(without_wrapper(error))
    }

    /// An answer broke off.
    pub fn broken(error: kube::Error) -> Self {
        Self::Broken(without_wrapper(error))
    }

    fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    /// The code the server refused with.
    pub fn code(&self) -> Option<u16> {
        self.refusal().map(|refusal| refusal.code)
    }

    /// The version we asked for is too old, so only a new list helps.
    pub fn is_expired(&self) -> bool {
        self.refusal().is_some_and(Refusal::is_expired)
    }

    /// The version we asked for is newer than anything the server has.
    fn is_from_the_future(&self) -> bool {
        self.refusal().is_some_and(Refusal::is_from_the_future)
    }

    /// Another version, or none, may be answered better.
    pub fn is_about_the_version(&self) -> bool {
        // To a server that counts otherwise, what we know is no version at all.
        let senseless = matches!(self.code(), Some(400 | 422));
        self.is_about_history() || senseless
    }

    /// The server cannot select by a field we named. Releases differ in their words.
    pub fn refuses_fields(&self) -> bool {
        let about_fields = |refusal: &Refusal| {
            let words = ["field selector", "field label", "spec.clusterIP"];
            refusal.code == 400 && words.iter().any(|word| refusal.message.contains(word))
        };
        self.refusal().is_some_and(about_fields)
    }

    /// The server does not know the collection.
    pub fn is_missing(&self) -> bool {
        self.code() == Some(404)
    }

    /// New credentials, or a new reading of the old ones, could help.
    pub fn is_about_access(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            other => other.code() == Some(401),
        }
    }

    /// The server does not begin watches with a list: it says that the request is wrong.
    pub fn refuses_streaming(&self) -> bool {
        !self.is_about_history() && matches!(self.code(), Some(400 | 402 | 405..=428 | 430..=499))
    }

    /// The server began to stream a list and did not end it.
    ///
    /// It says so as an event within the watch (seen with storage that lacks progress
    /// notifications), or by ending the watch, or by silence. The next list may end well.
    pub fn spoils_streaming(&self) -> bool {
        match self {
            Self::Refused { refusal, inside } => {
                *inside && refusal.code >= 500 && !self.is_about_history()
            }
            Self::Silent(_) | Self::Incomplete => true,
            _ => false,
        }
    }

    /// The version we asked for is too old or too new.
    fn is_about_history(&self) -> bool {
        self.is_expired() || self.is_from_the_future()
    }

    /// The same request may go well a little later.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Refused { refusal, .. } => refusal.code == 429 || refusal.code >= 500,
            Self::Garbled { .. } => false,
            _ => true,
        }
    }

    /// How long the server wants to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        self.refusal().and_then(Refusal::retry_after)
    }

    /// This failure with all its causes, each said once.
    pub fn whole(&self) -> String {
        error_chain(self)
    }

    /// What the operator should look at or change.
    pub fn advice(&self, resource: &Resource, host: &str) -> Option<String> {
        let advice = match self {
            Self::Unreachable(cause) => return unreachable_advice(&**cause, host),
            Self::NoAnswer(_) | Self::Silent(_) => format!(
                "check the load on the API server and whether firewalls on the way to {host} \
                 drop idle connections"
            ),
            Self::Garbled { .. } => {
                format!("check that {host} is an API server and not a proxy or a login page")
            }
            Self::Refused { refusal, .. } => match refusal.code {
                401 => "the credentials are not accepted: renew the token or client certificate, \
                        or name the right one in the kubeconfig"
                    .to_owned(),
                403 => format!(
                    "bind the user to a ClusterRole that allows the verbs list and watch on \
                     {} in API group {:?}",
                    resource.name, resource.group
                ),
                404 => format!(
                    "the server does not offer {}: check its version and that {host} is an API \
                     server",
                    resource.name
                ),
                _ => return None,
            },
            Self::Broken(_) | Self::Incomplete | Self::Short => return None,
        };
        Some(advice)
    }
}

/// The library's own error says nothing that its cause does not.
fn without_wrapper(error: kube::Error) -> Cause {
    match error {
        kube::Error::Service(cause) => cause,
        other => Box::new(other),
    }
}

/// What the depth of a connection error says about its remedy.
fn unreachable_advice(error: &(dyn Error + 'static), host: &str) -> Option<String> {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(ProxyFailure { proxy, .. }) = error.downcast_ref() {
            return Some(format!(
                "check the proxy {proxy} and whether it may reach {host}, or add {host} to NO_PROXY"
            ));
        }
        match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionRefused) => {
                return Some(format!(
                    "nothing listens on {host}: check that the API server runs and that the \
                     address in the kubeconfig or --master is right"
                ));
            }
            Some(
                io::ErrorKind::TimedOut
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable,
            ) => {
                return Some(format!(
                    "check the routes and firewalls from here to {host}"
                ));
            }
            _ => {}
        }
        _ = writeln!(text, "{error}");
        next = error.source();
    }
    // TLS errors are types of a library we do not name; their words are stable.
    let advice = [
        (
            "CertificateExpired",
            "the API server reports that the client certificate has expired: renew it",
        ),
        (
            "CertificateRequired",
            "the API server requires a client certificate: name one in the kubeconfig",
        ),
        (
            "received fatal alert",
            "the API server does not accept the client certificate: check who signed it",
        ),
        (
            "invalid peer certificate: Expired",
            "the API server's certificate has expired, or this node's clock is wrong",
        ),
        (
            "invalid peer certificate: certificate expired",
            "the API server's certificate has expired, or this node's clock is wrong",
        ),
        (
            "not valid yet",
            "the API server's certificate is not valid yet: check this node's clock",
        ),
        (
            "UnknownIssuer",
            "the certificate-authority of the kubeconfig did not sign the API server's certificate",
        ),
        (
            "not valid for name",
            "the API server's certificate is for another name: use that name, or set \
             tls-server-name in the kubeconfig",
        ),
        (
            "InvalidContentType",
            "the server does not speak TLS: the address should begin with http://, or the port \
             is wrong",
        ),
        (
            "failed to lookup address",
            "the name cannot be resolved on this node; cluster DNS does not work before this \
             proxy does, so use an address or a name the node itself knows",
        ),
        (
            "auth exec",
            "the credential plugin of the kubeconfig failed; run it by hand to see why",
        ),
    ];
    let known = advice.iter().find(|(words, _)| text.contains(words));
    known.map(|(_, advice)| (*advice).to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::resource::{ENDPOINT_SLICES, SERVICES};
    use super::*;

    fn refused(code: u16, body: &str) -> Failure {
        Failure::Refused {
            refusal: Refusal::read(code, None, body.as_bytes()),
            inside: false,
        }
    }

    fn inside(code: u16) -> Failure {
        let refusal = Refusal {
            code,
            ..Refusal::default()
        };
        Failure::Refused {
            refusal,
            inside: true,
        }
    }

    #[test]
    fn only_some_refusals_are_about_streaming() {
        for code in [400, 405, 406, 415, 422] {
            assert!(refused(code, "").refuses_streaming(), "{code}");
        }
        for code in [401, 403, 404, 410, 429, 500, 503, 504] {
            assert!(!refused(code, "").refuses_streaming(), "{code}");
        }
        for code in [400, 422] {
            assert!(inside(code).refuses_streaming(), "{code}");
            assert!(!inside(code).spoils_streaming(), "{code}");
        }
        for code in [500, 503] {
            assert!(!inside(code).refuses_streaming(), "{code}");
            assert!(inside(code).spoils_streaming(), "{code}");
            assert!(!refused(code, "").spoils_streaming(), "{code}");
        }
        for code in [401, 403, 410, 429] {
            assert!(!inside(code).refuses_streaming(), "{code}");
            assert!(!inside(code).spoils_streaming(), "{code}");
        }
        for failure in [Failure::Silent(Duration::ZERO), Failure::Incomplete] {
            assert!(failure.spoils_streaming() && !failure.refuses_streaming());
        }
        assert!(!Failure::Short.refuses_streaming() && !Failure::Short.spoils_streaming());
    }

    #[test]
    fn a_field_selector_is_refused_in_several_words() {
        // As kube-apiserver 1.30 says it, and as it does for kinds with fields of their own.
        for message in [
            r#"\"spec.clusterIP\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""#,
            "field label not supported: spec.clusterIP",
        ] {
            let status = |code: u16| {
                let body = format!(r#"{{"kind":"Status","message":"{message}","code":{code}}}"#);
                refused(code, &body)
            };
            assert!(status(400).refuses_fields(), "{message}");
            assert!(!status(500).refuses_fields(), "{message}");
        }
        assert!(!refused(400, "limit must be a number").refuses_fields());
    }

    #[test]
    fn a_version_may_be_too_old_or_too_new() {
        assert!(refused(410, "").is_expired());
        assert!(refused(410, r#"{"kind":"Status","reason":"Expired"}"#).is_expired());
        let future = r#"{"kind":"Status","code":504,"reason":"Timeout","message":
            "Too large resource version: 9, current: 3","details":{"retryAfterSeconds":1,
            "causes":[{"reason":"ResourceVersionTooLarge","message":"…"}]}}"#;
        let future = refused(504, future);
        assert!(future.is_from_the_future() && !future.is_expired());
        assert_eq!(future.retry_after(), Some(Duration::from_secs(1)));
        assert!(!refused(504, "").is_about_the_version());
        assert!(refused(400, "").is_about_the_version());
    }

    #[test]
    fn a_forbidden_request_names_the_missing_permission() {
        let body = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
            "message":"endpointslices.discovery.k8s.io is forbidden: User \"u\" cannot list …",
            "reason":"Forbidden","details":{"group":"discovery.k8s.io"},"code":403}"#;
        let failure = refused(403, body);
        assert_eq!(
            failure.whole(),
            "the API server answered 403 Forbidden: endpointslices.discovery.k8s.io is forbidden: \
             User \"u\" cannot list …"
        );
        assert_eq!(
            failure.advice(&ENDPOINT_SLICES, "h").as_deref(),
            Some(
                "bind the user to a ClusterRole that allows the verbs list and watch on \
                 endpointslices in API group \"discovery.k8s.io\""
            )
        );
    }

    #[test]
    fn an_answer_that_is_no_status_is_quoted_shortly() {
        let page = format!("<html>{}\nmore", "x".repeat(1000));
        let failure = refused(502, &page);
        let text = failure.whole();
        assert!(text.starts_with("the API server answered 502: <html>xxx"));
        assert!(text.len() < 250 && !text.contains('\n'));
        assert_eq!(failure.advice(&SERVICES, "h"), None);
        assert!(failure.is_passing() && !refused(403, "").is_passing());
    }

    #[test]
    fn connection_errors_say_what_to_change() {
        let connect = |words: &str| {
            let error = io::Error::other(words.to_owned());
            Failure::unreachable(kube::Error::Service(Box::new(error)))
        };
        // Words as they were seen on real connections.
        for (words, advice) in [
            (
                "invalid peer certificate: certificate expired: verification time 1794748380 \
                 (UNIX), but certificate is not valid after 1609459200 (185289180 seconds ago)",
                "clock",
            ),
            (
                "invalid peer certificate: certificate not valid yet: verification time …",
                "clock",
            ),
            (
                "invalid peer certificate: certificate not valid for name \"127.0.0.1\"; \
                 certificate is only valid for DnsName(\"elsewhere.example\")",
                "tls-server-name",
            ),
            (
                "invalid peer certificate: UnknownIssuer",
                "certificate-authority",
            ),
            (
                "received fatal alert: CertificateExpired",
                "expired: renew it",
            ),
            ("received fatal alert: CertificateRequired", "name one"),
            ("received fatal alert: UnknownCA", "who signed it"),
            (
                "failed to lookup address information: Name or service not known",
                "resolved",
            ),
        ] {
            let text = connect(words).advice(&SERVICES, "h").unwrap();
            assert!(text.contains(advice), "{text}");
        }
        assert_eq!(connect("something new").advice(&SERVICES, "h"), None);
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let failure = Failure::unreachable(kube::Error::Service(Box::new(refused)));
        let text = failure.advice(&SERVICES, "10.0.0.1:6443").unwrap();
        assert!(text.starts_with("nothing listens on 10.0.0.1:6443"));
    }
}
