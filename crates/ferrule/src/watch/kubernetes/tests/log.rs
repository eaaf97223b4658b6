//! What would be in the log.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

/// Collects what this thread logs while it exists.
pub struct Log {
    lines: Lines,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn new() -> Self {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::registry().with(lines.clone());
        Self {
            lines,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    /// Our own lines of at least `INFO`, each `LEVEL name=value …`.
    pub fn lines(&self) -> Vec<String> {
        self.lines.0.lock().unwrap().clone()
    }

    /// The warnings about a resource.
    pub fn warnings(&self, resource: &str) -> Vec<String> {
        let about = format!("resource={resource}");
        let lines = self.lines().into_iter();
        lines
            .filter(|line| line.starts_with("WARN") && line.contains(&about))
            .collect()
    }
}

impl<S: tracing::Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if *metadata.level() > tracing::Level::INFO || !metadata.target().starts_with("ferrule") {
            return;
        }
        let mut line = Words(metadata.level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
}

struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        _ = write!(self.0, " {}={value:?}", field.name());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        _ = write!(self.0, " {}={value}", field.name());
    }
}
