//! What would be in the log.

use std::cell::RefCell;
use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

thread_local! {
    /// What this thread logged; a test and all its tasks share one.
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Collects what this thread logs from now on.
pub struct Log(());

impl Log {
    pub fn new() -> Self {
        crate::test_log::install();
        LINES.with_borrow_mut(Vec::clear);
        Self(())
    }

    /// Our own lines of at least `INFO`, each `LEVEL name=value …`.
    pub fn lines(&self) -> Vec<String> {
        let Self(()) = self;
        LINES.with_borrow(Clone::clone)
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

/// Keeps our own lines of each thread.
pub struct ToThread;

impl<S: tracing::Subscriber> Layer<S> for ToThread {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if *metadata.level() > tracing::Level::INFO || !metadata.target().starts_with("ferrule") {
            return;
        }
        let mut line = Words(metadata.level().to_string());
        event.record(&mut line);
        LINES.with_borrow_mut(|lines| lines.push(line.0));
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
