//! `/flagz` and `/statusz`: what this process was started with, and what it is.
//!
//! Text for people, deliberately not quite the same on every start so that nobody parses it; a
//! versioned object for programs that ask for exactly that.

use std::collections::BTreeMap;

use http::StatusCode;
use http::header::{HeaderName, HeaderValue};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;
use serde_json::{Value, json};

use crate::clock::{Clock, Time};
use crate::http::{JSON, Request, Response, TEXT};

const GROUP: &str = "config.k8s.io";
const WARNING: HeaderName = HeaderName::from_static("warning");
/// kube-proxy's name, which is what clients look for.
const COMPONENT: &str = "kube-proxy";
/// What may stand between a key and its value.
const SEPARATORS: [&str; 4] = [":", ": ", "=", " "];

/// What `/statusz` says about the program.
#[derive(Clone, Debug)]
pub struct Versions {
    /// Shown as the Go version: what this was built with.
    pub toolchain: String,
    /// The Kubernetes release it stands for, `major.minor`.
    pub binary: String,
    /// The release it behaves like, `major.minor`.
    pub emulation: String,
}

/// The flags.
pub(super) struct Flagz {
    flags: BTreeMap<String, String>,
    separator: &'static str,
}

impl Flagz {
    pub(super) fn new(flags: BTreeMap<String, String>) -> Self {
        let seed: usize = flags.values().map(String::len).sum();
        Self {
            separator: separator(seed),
            flags,
        }
    }

    pub(super) fn answer(&self, request: &Request) -> Response {
        match negotiate(request.accept(), "Flagz") {
            Some(Form::Text) => {
                let separator = self.separator;
                let lines = self
                    .flags
                    .iter()
                    .map(|(name, value)| format!("{name}{separator}{value}\n"));
                text("flagz", &lines.collect::<String>())
            }
            Some(Form::Object(form)) => {
                let flags = &self.flags;
                object("Flagz", &form, &FlagzFields { flags })
            }
            None => not_acceptable(),
        }
    }
}

/// The status.
pub(super) struct Statusz {
    versions: Versions,
    started: Time,
    zone: TimeZone,
    clock: Clock,
    separator: &'static str,
}

impl Statusz {
    pub(super) fn new(versions: Versions, started: Time, zone: TimeZone, clock: Clock) -> Self {
        Self {
            separator: separator(started.wall.subsec_nanosecond().unsigned_abs() as usize),
            versions,
            started,
            zone,
            clock,
        }
    }

    pub(super) fn answer(&self, request: &Request, paths: &[&str]) -> Response {
        let now = (self.clock)().steady;
        let up = now.saturating_duration_since(self.started.steady).as_secs();
        match negotiate(request.accept(), "Statusz") {
            Some(Form::Text) => text("statusz", &self.lines(up, paths)),
            Some(Form::Object(form)) => {
                let whole = Timestamp::from_second(self.started.wall.as_second());
                let fields = StatuszFields {
                    start_time: whole.unwrap_or(Timestamp::UNIX_EPOCH).to_string(),
                    uptime_seconds: up,
                    go_version: &self.versions.toolchain,
                    binary_version: &self.versions.binary,
                    emulation_version: &self.versions.emulation,
                    paths,
                };
                object("Statusz", &form, &fields)
            }
            None => not_acceptable(),
        }
    }

    fn lines(&self, up: u64, paths: &[&str]) -> String {
        let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
        let started = self.started.wall.to_zoned(self.zone.clone());
        let started = started.strftime("%a %b %e %H:%M:%S %Z %Y");
        let lines = [
            ("Started", started.to_string()),
            (
                "Up",
                format!("{hours} hr {minutes:02} min {seconds:02} sec"),
            ),
            ("Go version", self.versions.toolchain.clone()),
            ("Binary version", self.versions.binary.clone()),
            ("Emulation version", self.versions.emulation.clone()),
            ("Paths", paths.join(" ")),
        ];
        let separator = self.separator;
        let lines = lines.map(|(key, value)| format!("{key}{separator} {value}\n"));
        format!("\n{}", lines.concat())
    }
}

/// Not random, but nothing to rely on either.
const fn separator(seed: usize) -> &'static str {
    SEPARATORS[seed % SEPARATORS.len()]
}

/// How an answer is written.
#[derive(Debug, PartialEq, Eq)]
enum Form {
    Text,
    Object(ObjectForm),
}

#[derive(Debug, PartialEq, Eq)]
struct ObjectForm {
    yaml: bool,
    version: &'static str,
}

/// What the client accepts, the most wanted first; `None` if that is nothing we have.
///
/// A bare `application/json` is not enough: who wants an object must say which.
fn negotiate(accept: &str, kind: &str) -> Option<Form> {
    if accept.trim().is_empty() {
        return Some(Form::Text);
    }
    let mut clauses: Vec<(f32, &str)> = accept
        .split(',')
        .map(|clause| (quality(clause), clause))
        .filter(|(quality, _)| *quality > 0.0)
        .collect();
    clauses.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    clauses
        .into_iter()
        .find_map(|(_, clause)| understand(clause, kind))
}

fn understand(clause: &str, kind: &str) -> Option<Form> {
    let yaml = match clause.split(';').next()?.trim() {
        "*/*" | "text/*" | "text/plain" => return Some(Form::Text),
        "application/json" => false,
        "application/yaml" => true,
        _ => return None,
    };
    let version = match parameter(clause, "v")? {
        "v1beta1" => "v1beta1",
        "v1alpha1" => "v1alpha1",
        _ => return None,
    };
    let named = parameter(clause, "g")? == GROUP && parameter(clause, "as")? == kind;
    named.then_some(Form::Object(ObjectForm { yaml, version }))
}

fn quality(clause: &str) -> f32 {
    parameter(clause, "q").map_or(1.0, |q| q.parse().unwrap_or(0.0))
}

fn parameter<'a>(clause: &'a str, name: &str) -> Option<&'a str> {
    clause
        .split(';')
        .skip(1)
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(key, value)| (key.trim() == name).then_some(value.trim()))
}

fn text(page: &str, lines: &str) -> Response {
    let body = format!(
        "\n{COMPONENT} {page}\nWarning: This endpoint is not meant to be machine parseable, has \
         no formatting compatibility guarantees and is for debugging purposes only.\n{lines}"
    );
    Response::new(StatusCode::OK, TEXT, body)
}

/// A versioned object. The order of keys is Kubernetes', here and below.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a, F> {
    kind: &'a str,
    api_version: String,
    metadata: Value,
    #[serde(flatten)]
    fields: &'a F,
}

#[derive(Serialize)]
struct FlagzFields<'a> {
    flags: &'a BTreeMap<String, String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatuszFields<'a> {
    start_time: String,
    uptime_seconds: u64,
    go_version: &'a str,
    binary_version: &'a str,
    emulation_version: &'a str,
    paths: &'a [&'a str],
}

fn object(kind: &str, form: &ObjectForm, fields: &impl Serialize) -> Response {
    let version = form.version;
    let object = Object {
        kind,
        api_version: format!("{GROUP}/{version}"),
        metadata: json!({ "name": COMPONENT }),
        fields,
    };
    let (encoding, body) = if form.yaml {
        ("yaml", to_yaml(&object))
    } else {
        ("json", to_json(&object))
    };
    let content_type = format!("application/{encoding};g={GROUP};v={version};as={kind}");
    let content_type = HeaderValue::try_from(content_type).expect("letters and signs of ours");
    let response = Response::new(StatusCode::OK, JSON, body).typed(content_type);
    if version == "v1beta1" {
        return response;
    }
    let page = kind.to_lowercase();
    let warning = format!(
        "299 - \"This version of the {page} endpoint is deprecated. Please use a newer version.\""
    );
    let warning = HeaderValue::try_from(warning).expect("letters and signs of ours");
    response.with(WARNING, warning)
}

fn not_acceptable() -> Response {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Failure {
        kind: &'static str,
        api_version: &'static str,
        metadata: Value,
        status: &'static str,
        message: &'static str,
        reason: &'static str,
        code: u16,
    }
    let failure = Failure {
        kind: "Status",
        api_version: "v1",
        metadata: json!({}),
        status: "Failure",
        message: "only the following media types are accepted: \
                  application/json, application/yaml, text/plain",
        reason: "NotAcceptable",
        code: 406,
    };
    Response::new(StatusCode::NOT_ACCEPTABLE, JSON, to_json(&failure))
}

fn to_json(object: &impl Serialize) -> String {
    serde_json::to_string_pretty(object).expect("strings and numbers are always JSON")
}

/// Keys are sorted, as Kubernetes does in YAML.
fn to_yaml(object: &impl Serialize) -> String {
    let sorted = serde_json::to_value(object).expect("strings and numbers are always JSON");
    serde_saphyr::to_string(&sorted).expect("strings and numbers are always YAML")
}
