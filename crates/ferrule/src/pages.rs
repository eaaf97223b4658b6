//! The metrics server's pages: which path answers what.
//!
//! In: a request, and what the program says about itself. Out: the answer. Paths are exact; only
//! the two folders below `/debug` are prefixes. What is measured is counted in
//! [`crate::metrics`], not here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use http::header::{HeaderName, HeaderValue};
use http::{Method, StatusCode};
use jiff::tz::TimeZone;

use crate::admin::Questions;
use crate::clock::{Clock, Time};
use crate::http::{Answer, Handler, JSON, Request, Response, TEXT, handler};
use crate::metrics::{self, Metrics};
use crate::ui::Ui;

mod debug;
#[cfg(test)]
mod tests;
mod zpages;

use debug::Debug;
pub use debug::SetVerbosity;
pub use zpages::Versions;
use zpages::{Flagz, Statusz};

const PROCESS_START: HeaderName = HeaderName::from_static("process-start-time-unix");

/// The running configuration as the JSON of `/configz`.
pub type Configz = Box<dyn Fn() -> String + Send + Sync>;

/// What the pages are made of.
pub struct Pages {
    metrics: Arc<Metrics>,
    configz: Configz,
    flagz: Option<Flagz>,
    statusz: Option<Statusz>,
    debug: Option<Debug>,
    ui: Option<Ui>,
}

impl Pages {
    /// The pages that are always there.
    pub fn new(metrics: Arc<Metrics>, configz: Configz) -> Self {
        Self {
            metrics,
            configz,
            flagz: None,
            statusz: None,
            debug: None,
            ui: None,
        }
    }

    /// Adds `/flagz`: every flag with the value the command line gave it. For the feature gate
    /// `ComponentFlagz`.
    #[must_use]
    pub fn with_flagz(mut self, flags: BTreeMap<String, String>) -> Self {
        self.flagz = Some(Flagz::new(flags));
        self
    }

    /// Adds `/statusz`. For the feature gate `ComponentStatusz`.
    #[must_use]
    pub fn with_statusz(
        mut self,
        versions: Versions,
        started: Time,
        zone: TimeZone,
        clock: Clock,
    ) -> Self {
        self.statusz = Some(Statusz::new(versions, started, zone, clock));
        self
    }

    /// Adds `/debug`. For `enableProfiling`.
    #[must_use]
    pub fn with_debug(mut self, set_verbosity: SetVerbosity) -> Self {
        self.debug = Some(Debug::new(set_verbosity));
        self
    }

    /// Adds `/ui`, the page of the node. For `--ui`.
    #[must_use]
    pub fn with_ui(mut self, questions: Questions) -> Self {
        self.ui = Some(Ui::new(questions));
        self
    }

    /// Answers the requests of the metrics server.
    pub fn handler(self) -> Handler {
        handler(move |request| self.answer(request))
    }

    fn answer(&self, request: &Request) -> Answer {
        let ui = self.ui.as_ref().and_then(|ui| ui.answer(request));
        ui.unwrap_or_else(|| self.page(request).into())
    }

    fn page(&self, request: &Request) -> Response {
        let page = match request.path.as_str() {
            "/healthz" => Some(self.healthz(request)),
            "/healthz/ping" => Some(Response::new(StatusCode::OK, TEXT, "ok")),
            "/metrics" => Some(self.exposition(self.metrics.render())),
            "/metrics/slis" => Some(self.slis(request)),
            "/proxyMode" => {
                let mode = self.metrics.mode().name;
                Some(Response::new(StatusCode::OK, TEXT, mode).nosniff())
            }
            "/configz" => Some(Response::new(StatusCode::OK, JSON, (self.configz)()).nosniff()),
            "/flagz" => self.flagz.as_ref().map(|flagz| flagz.answer(request)),
            "/statusz" => {
                let paths = self.paths();
                let answer = |statusz: &Statusz| statusz.answer(request, &paths);
                self.statusz.as_ref().map(answer)
            }
            path => self
                .debug
                .as_ref()
                .and_then(|debug| debug.answer(path, request)),
        };
        page.unwrap_or_else(Response::not_found)
    }

    /// The paths `/statusz` lists: the first segment of each, without itself and `/debug`.
    fn paths(&self) -> Vec<&'static str> {
        let flagz = self.flagz.is_some().then_some("/flagz");
        ["/configz"]
            .into_iter()
            .chain(flagz)
            .chain(["/healthz", "/metrics", "/proxyMode"])
            .collect()
    }

    /// One check, `ping`, which passes as long as anything can answer.
    fn healthz(&self, request: &Request) -> Response {
        let mut excluded: BTreeSet<&str> = request.parameters("exclude").collect();
        let ping = if excluded.remove("ping") {
            "[+]ping excluded: ok\n"
        } else {
            self.metrics.observe_healthcheck("ping", true);
            "[+]ping ok\n"
        };
        let unknown: Vec<_> = excluded.iter().map(|name| format!("{name:?}")).collect();
        let warning = match unknown.as_slice() {
            [] => String::new(),
            names => format!(
                "warn: some health checks cannot be excluded: no matches for {}\n",
                names.join(", ")
            ),
        };
        let body = match request.parameters("verbose").next() {
            Some(_) => format!("{ping}{warning}healthz check passed\n"),
            None => "ok".to_owned(),
        };
        Response::new(StatusCode::OK, TEXT, body).nosniff()
    }

    fn slis(&self, request: &Request) -> Response {
        if request.method == Method::DELETE {
            self.metrics.reset_slis();
            return Response::new(StatusCode::OK, TEXT, "metrics reset\n");
        }
        self.exposition(self.metrics.render_slis())
    }

    fn exposition(&self, text: String) -> Response {
        Response::new(StatusCode::OK, metrics::CONTENT_TYPE, text).with(
            PROCESS_START,
            HeaderValue::from(self.metrics.start_second()),
        )
    }
}
