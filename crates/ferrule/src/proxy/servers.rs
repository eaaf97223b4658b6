//! The two servers of the program: health and metrics.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, PoisonError, RwLock};

use jiff::tz::TimeZone;
use tokio::runtime::Handle;

use crate::admin::{self, Questions};
use crate::clock::{Clock, Time};
use crate::config::gates::Gate;
use crate::config::options::Options;
use crate::config::{Config, encode};
use crate::health::proxy::ProxyHealth;
use crate::http::{JSON, RebindingServer, Role, ServerError, TEXT};
use crate::logging;
use crate::metrics::{Build, Metrics};
use crate::pages::{Pages, Versions};
use crate::version;

/// Both servers, while they stand.
pub struct Servers {
    health: Option<RebindingServer>,
    metrics: Option<RebindingServer>,
}

/// A server that could not be opened though it must.
pub struct ServerFailure {
    pub role: Role,
    pub error: ServerError,
}

impl Servers {
    /// Opens both at their configured addresses.
    pub fn open(
        runtime: &Handle,
        options: &Options,
        metrics: &Arc<Metrics>,
        health: Option<&Arc<ProxyHealth>>,
        config: &Arc<RwLock<Config>>,
        clock: &Clock,
        questions: Option<&Questions>,
    ) -> Self {
        let hard_fail = options.config.bind_address_hard_fail;
        let open = |role, address, handler| {
            RebindingServer::open(runtime, role, address, hard_fail, handler)
        };
        let health = health
            .zip(options.config.healthz_address())
            .map(|(health, address)| {
                open(Role::ProxyHealth, address, health.handler(clock.clone()))
            });
        let mut pages = pages(options, metrics, config, clock);
        if let Some(questions) = questions.filter(|_| options.ui) {
            pages = pages.with_ui(questions.clone());
        }
        let metrics = options
            .config
            .metrics_address()
            .map(|address| open(Role::Metrics, address, pages.handler()));
        Self { health, metrics }
    }

    /// Moves to the addresses of a new configuration.
    pub fn adopt(&self, config: &Config) {
        for (server, address) in [
            (&self.health, config.healthz_address()),
            (&self.metrics, config.metrics_address()),
        ] {
            if let (Some(server), Some(address)) = (server, address) {
                server.rebind(address);
            }
        }
    }

    /// Waits for a failure that ends the process.
    pub async fn failed(&mut self) -> ServerFailure {
        async fn of(role: Role, server: Option<&mut RebindingServer>) -> ServerFailure {
            match server {
                Some(server) => ServerFailure {
                    role,
                    error: server.failed().await,
                },
                None => pending().await,
            }
        }
        tokio::select! {
            failure = of(Role::ProxyHealth, self.health.as_mut()) => failure,
            failure = of(Role::Metrics, self.metrics.as_mut()) => failure,
        }
    }
}

/// What the admin socket answers with besides what it knows itself: for support.
pub fn admin_pages(
    options: &Options,
    metrics: &Arc<Metrics>,
    config: &Arc<RwLock<Config>>,
) -> Vec<admin::Page> {
    let config = config.clone();
    let metrics = metrics.clone();
    let flags = options.flags.entries().into_iter();
    let flags: Vec<_> = flags
        .map(|(name, value)| format!("--{name}={value}\n"))
        .collect();
    let flags = flags.concat();
    let page = |path, content_type, text| admin::Page {
        path,
        content_type,
        text,
    };
    vec![
        page(
            "config",
            JSON,
            Box::new(move || {
                encode::configz(&config.read().unwrap_or_else(PoisonError::into_inner))
            }),
        ),
        page("flags", TEXT, Box::new(move || flags.clone())),
        page("metrics", TEXT, Box::new(move || metrics.render())),
        page("log", TEXT, Box::new(logging::recent)),
    ]
}

fn pages(
    options: &Options,
    metrics: &Arc<Metrics>,
    config: &Arc<RwLock<Config>>,
    clock: &Clock,
) -> Pages {
    let config = config.clone();
    let configz = move || encode::configz(&config.read().unwrap_or_else(PoisonError::into_inner));
    let mut pages = Pages::new(metrics.clone(), Box::new(configz));
    if options.gates.is_on(Gate::ComponentFlagz) {
        let flags = options.flags.entries().into_iter();
        pages = pages.with_flagz(
            flags
                .map(|(name, value)| (name.to_owned(), value))
                .collect::<BTreeMap<_, _>>(),
        );
    }
    if options.gates.is_on(Gate::ComponentStatusz) {
        let release = release(options.flags.reported_version());
        let versions = Versions {
            toolchain: TOOLCHAIN.to_owned(),
            binary: release.clone(),
            emulation: release,
        };
        pages = pages.with_statusz(versions, Time::now(), TimeZone::UTC, clock.clone());
    }
    if options.config.enable_profiling {
        pages = pages.with_debug(Box::new(logging::set_verbosity));
    }
    pages
}

/// What this was built with.
const TOOLCHAIN: &str = concat!("rustc ", env!("CARGO_PKG_RUST_VERSION"));

/// What the metrics say this program is.
pub fn build() -> Build {
    let (major, minor) = version::major_and_minor();
    Build {
        major,
        minor,
        git_version: version::KUBERNETES,
        // Set where a release is built.
        commit: option_env!("FERRULE_COMMIT").unwrap_or_default(),
        date: "",
        compiler: TOOLCHAIN,
        platform: match std::env::consts::ARCH {
            "x86_64" => "linux/amd64",
            "aarch64" => "linux/arm64",
            _ => "linux/other",
        },
        ferrule: env!("CARGO_PKG_VERSION"),
    }
}

/// `1.36` of `v1.36.4`.
fn release(version: &str) -> String {
    let numbers = version.trim_start_matches('v').split('.');
    numbers.take(2).collect::<Vec<_>>().join(".")
}
