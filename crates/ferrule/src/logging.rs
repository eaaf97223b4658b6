//! Log lines as kube-proxy writes them, on top of `tracing`.
//!
//! In: `tracing` events, from this program and from the libraries it uses. Out: lines in klog's
//! text or in JSON, on stderr or split over both streams. Times are UTC: containers have no
//! other zone, and lines of several nodes can be put side by side.
//!
//! Events say what happened in their message and the particulars in fields:
//!
//! ```text
//! error!(err = %error, "Sync failed");              always, severity E
//! warn!(...)  info!(...)                            always, severities W and I
//! info_v!(2, service = %key, "Endpoints changed");  when verbosity is 2 or more
//! ```
//!
//! How much is wanted may change while the program runs; a file pattern (`--vmodule`) asks for
//! more from some source files. `debug!` and `trace!` are left to libraries.

use ferrule_dataplane::error_chain;
use std::io::{self, BufWriter, Write};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::config::v1alpha1::LoggingConfiguration;

mod filter;
mod line;
mod recent;

use filter::Levels;
use line::{Format, Record, Severity, Value};
use recent::Recent;

/// How much is wanted, for the whole process.
static LEVELS: Levels = Levels::new();

/// Where lines go once logging is installed, so that they can be flushed.
static SINK: OnceLock<&'static Mutex<Sink>> = OnceLock::new();

/// The last lines, for whoever asks later.
static RECENT: Mutex<Recent> = Mutex::new(Recent::new());

/// Verbosity from which lines of libraries meant for finding faults are wanted.
const DEBUG: u32 = 8;
/// Verbosity from which everything libraries say is wanted.
const TRACE: u32 = 10;

/// Writes an information that only counts from some verbosity on: `info_v!(2, key = value, "…")`.
macro_rules! info_v {
    ($verbosity:literal, $($event:tt)+) => {
        if $crate::logging::wants($verbosity, file!()) {
            ::tracing::info!(v = $verbosity, $($event)+);
        }
    };
}
pub(crate) use info_v;

/// Starts logging as configured. Only the first call of a process has an effect; says whether
/// this was it.
pub fn install(config: &LoggingConfiguration) -> bool {
    let (format, routing) = match config.format.as_str() {
        "json" => (Format::Json, config.options.json),
        _ => (Format::Text, config.options.text),
    };
    set_verbosity(config.verbosity);
    set_vmodule(config);
    let sink = if routing.split_stream {
        let capacity = usize::try_from(routing.info_buffer_size.value()).unwrap_or(0);
        Sink::split(capacity, Box::new(io::stdout()), Box::new(io::stderr()))
    } else {
        Sink::single(Box::new(io::stderr()))
    };
    let sink: &'static Mutex<Sink> = Box::leak(Box::new(Mutex::new(sink)));
    let lines = Lines {
        format,
        sink,
        levels: &LEVELS,
    };
    let subscriber = tracing_subscriber::registry().with(lines);
    let first = tracing::subscriber::set_global_default(subscriber).is_ok();
    if first {
        SINK.get_or_init(|| sink);
    }
    first
}

/// Whether lines of this verbosity are wanted from this source file.
pub fn wants(verbosity: u32, file: &str) -> bool {
    LEVELS.wants(verbosity, file)
}

/// How much is wanted everywhere.
#[cfg_attr(not(test), expect(dead_code, reason = "only tests ask"))]
pub fn verbosity() -> u32 {
    LEVELS.verbosity()
}

/// Changes how much is wanted everywhere.
pub fn set_verbosity(verbosity: u32) {
    LEVELS.set_verbosity(verbosity);
    tracing::callsite::rebuild_interest_cache();
}

/// Changes from which source files more is wanted. Only text has such patterns.
pub fn set_vmodule(config: &LoggingConfiguration) {
    LEVELS.set_patterns(&config.vmodule);
    tracing::callsite::rebuild_interest_cache();
}

/// Writes out what waits in a buffer.
pub fn flush() {
    if let Some(sink) = SINK.get() {
        lock(sink).flush();
    }
}

/// The last lines that were written, oldest first.
pub fn recent() -> String {
    RECENT.lock().unwrap_or_else(PoisonError::into_inner).text()
}

/// A panic while writing a line leaves at worst half a line.
fn lock(sink: &Mutex<Sink>) -> MutexGuard<'_, Sink> {
    sink.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The streams lines are written to.
struct Sink {
    /// For information, where that has a stream of its own.
    info: Option<BufWriter<Box<dyn Write + Send>>>,
    /// For everything else.
    rest: Box<dyn Write + Send>,
}

impl Sink {
    fn single(rest: Box<dyn Write + Send>) -> Self {
        Self { info: None, rest }
    }

    fn split(capacity: usize, info: Box<dyn Write + Send>, rest: Box<dyn Write + Send>) -> Self {
        let info = Some(BufWriter::with_capacity(capacity, info));
        Self { info, rest }
    }

    /// Errors of writing are dropped: there is nowhere left to tell them.
    fn write(&mut self, severity: Severity, line: &str) {
        let bytes = line.as_bytes();
        match &mut self.info {
            Some(info) if severity == Severity::Info => {
                let _ = info.write_all(bytes);
                if info.capacity() == 0 {
                    let _ = info.flush();
                }
            }
            // What led to an error is worth seeing before it.
            _ => {
                self.flush();
                let _ = self.rest.write_all(bytes);
                let _ = self.rest.flush();
            }
        }
    }

    fn flush(&mut self) {
        if let Some(info) = &mut self.info {
            let _ = info.flush();
        }
    }
}

/// Turns events into lines.
struct Lines {
    format: Format,
    sink: &'static Mutex<Sink>,
    levels: &'static Levels,
}

impl Lines {
    fn is_wanted(&self, metadata: &Metadata<'_>) -> bool {
        let verbosity = match *metadata.level() {
            Level::DEBUG => DEBUG,
            Level::TRACE => TRACE,
            _ => return true,
        };
        self.levels
            .wants(verbosity, metadata.file().unwrap_or_default())
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // Asked again whenever the verbosity changes.
        if self.is_wanted(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.is_wanted(metadata)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let file = metadata.file().unwrap_or("unknown");
        let mut seen = Seen::default();
        event.record(&mut seen);
        let verbosity = match *metadata.level() {
            Level::DEBUG => DEBUG,
            Level::TRACE => TRACE,
            _ => seen.verbosity,
        };
        if !self.levels.wants(verbosity, file) {
            return;
        }
        let record = Record {
            severity: match *metadata.level() {
                Level::ERROR => Severity::Error,
                Level::WARN => Severity::Warning,
                _ => Severity::Info,
            },
            verbosity,
            time: now(),
            process: std::process::id(),
            file,
            line: metadata.line().unwrap_or(0),
            message: seen.message,
            plain: seen.plain,
            fields: seen.fields,
        };
        let line = record.format(self.format);
        RECENT
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(&line);
        lock(self.sink).write(record.severity, &line);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a log line says when it was written; this is the program's edge"
)]
fn now() -> Timestamp {
    Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// What an event carries.
#[derive(Default)]
struct Seen {
    message: String,
    verbosity: u32,
    plain: bool,
    fields: Vec<(&'static str, Value)>,
}

impl Seen {
    fn push(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::Text(text)) => self.message = text,
            ("v", Value::Integer(verbosity)) => {
                self.verbosity = u32::try_from(verbosity).unwrap_or(0);
            }
            ("plain", Value::Bool(plain)) => self.plain = plain,
            // An error stands before everything else, whatever the order in the source.
            ("err", value) => self.fields.insert(0, ("err", value)),
            (name, value) => self.fields.push((name, value)),
        }
    }
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.push(field, Value::Text(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, Value::Text(value.to_owned()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, Value::Bool(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, Value::Integer(value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, Value::Integer(value.into()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, Value::Float(value));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.push(field, Value::Text(error_chain(value)));
    }
}

#[cfg(test)]
mod tests;
