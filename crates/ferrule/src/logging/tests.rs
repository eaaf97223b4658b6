//! Events in, lines out. The verbosity belongs to the process, so these tests take turns.

use std::sync::Arc;

use tracing::{debug, error, info, warn};

use super::*;
use crate::config::options::Notice;
use crate::config::v1alpha1::Oddities;

static TURN: Mutex<()> = Mutex::new(());

/// A stream to look at afterwards.
#[derive(Clone, Default)]
struct Stream(Arc<Mutex<Vec<u8>>>);

impl Stream {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The lines without what differs from run to run.
    fn lines(&self) -> Vec<String> {
        let text = self.text();
        let line = |line: &str| match line.split_once("] ") {
            Some((head, rest)) => format!("{} {rest}", &head[..1]),
            None => line.to_owned(),
        };
        text.lines().map(line).collect()
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn logged(format: Format, verbosity: u32, sink: Sink, events: impl FnOnce()) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    LEVELS.set_verbosity(verbosity);
    let lines = Lines {
        format,
        sink: Box::leak(Box::new(Mutex::new(sink))),
        levels: &LEVELS,
    };
    let sink = lines.sink;
    tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
        set_verbosity(verbosity);
        events();
    });
    lock(sink).flush();
    set_verbosity(0);
}

fn lines(verbosity: u32, events: impl FnOnce()) -> Vec<String> {
    let stream = Stream::default();
    logged(
        Format::Text,
        verbosity,
        Sink::single(Box::new(stream.clone())),
        events,
    );
    stream.lines()
}

#[test]
fn severities_and_fields_keep_their_order() {
    let logged = lines(0, || {
        info!(first = 1, second = "two", third = %"three", fourth = true, "Hello");
        warn!("Careful");
        let cause = io::Error::other("inner");
        error!(object = "a/b", err = %cause, "Failed");
    });
    assert_eq!(
        logged,
        [
            "I \"Hello\" first=1 second=\"two\" third=\"three\" fourth=true",
            "W \"Careful\"",
            "E \"Failed\" err=\"inner\" object=\"a/b\"",
        ]
    );
}

#[test]
fn verbosity_is_a_threshold_that_may_change_at_run_time() {
    let events = || {
        info_v!(1, "One");
        info_v!(2, n = 2, "Two");
        info!(v = 3, "Three");
    };
    assert_eq!(lines(0, events), Vec::<String>::new());
    assert_eq!(lines(2, events), ["I \"One\"", "I \"Two\" n=2"]);
    let logged = lines(0, || {
        events();
        set_verbosity(9);
        assert_eq!(verbosity(), 9);
        events();
    });
    assert_eq!(logged.len(), 3);
}

#[test]
fn patterns_ask_for_more_from_some_files() {
    let logged = lines(0, || {
        LEVELS.set_patterns(&[crate::config::v1alpha1::VModuleItem {
            file_pattern: "test?".to_owned(),
            verbosity: 4,
        }]);
        info_v!(4, "Four");
        info_v!(5, "Five");
        LEVELS.set_patterns(&[]);
        info_v!(4, "Again");
    });
    assert_eq!(logged, ["I \"Four\""]);
}

#[test]
fn libraries_are_quiet_until_much_is_wanted() {
    let event = || debug!("Details");
    assert_eq!(lines(7, event), Vec::<String>::new());
    assert_eq!(lines(8, event), ["I \"Details\""]);
}

#[test]
fn notices_of_the_configuration_read_like_kube_proxys() {
    let flag = Notice::Flag {
        name: "v",
        value: "1".to_owned(),
    };
    let lenient = Notice::Lenient(Oddities {
        message: "strict decoding error: unknown field \"bogus\"".to_owned(),
        places: "bogus: line 3, column 1".to_owned(),
    });
    let logged = lines(1, || {
        Notice::DefaultMode.log();
        flag.log();
        lenient.log();
    });
    assert_eq!(
        logged,
        [
            "I \"Using iptables proxy\"",
            "I FLAG: --v=\"1\"",
            "I \"Using lenient decoding as strict decoding failed\" err=\"strict decoding error: \
             unknown field \\\"bogus\\\"\" places=\"bogus: line 3, column 1\"",
        ]
    );
    assert_eq!(lines(0, || flag.log()), Vec::<String>::new());
}

#[test]
fn an_error_is_told_with_its_causes() {
    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);
    let logged = lines(0, || {
        let outer = Outer(io::Error::other("inner"));
        error!(err = &outer as &dyn std::error::Error, "Failed");
    });
    assert_eq!(logged, ["E \"Failed\" err=\"outer: inner\""]);
}

#[test]
fn json_events_carry_their_verbosity() {
    let stream = Stream::default();
    logged(
        Format::Json,
        2,
        Sink::single(Box::new(stream.clone())),
        || {
            info_v!(2, key = "value", "Hello");
        },
    );
    let line: serde_json::Value = serde_json::from_str(&stream.text()).unwrap();
    assert_eq!(line["msg"], "Hello");
    assert_eq!(line["v"], 2);
    assert_eq!(line["key"], "value");
    let caller = line["caller"].as_str().unwrap();
    assert!(caller.starts_with("logging/tests.rs:"), "{caller}");
}

#[test]
fn split_streams_keep_errors_apart_and_in_step() {
    let (info, rest) = (Stream::default(), Stream::default());
    let sink = Sink::split(4096, Box::new(info.clone()), Box::new(rest.clone()));
    logged(Format::Text, 0, sink, || {
        info!("One");
        assert_eq!(info.text(), "", "it waits in the buffer");
        error!("Two");
        assert_eq!(info.lines(), ["I \"One\""], "an error writes it out");
        info!("Three");
    });
    assert_eq!(info.lines(), ["I \"One\"", "I \"Three\""]);
    assert_eq!(rest.lines(), ["E \"Two\""]);
}

#[test]
fn without_a_buffer_lines_are_written_at_once() {
    let info = Stream::default();
    let sink = Sink::split(0, Box::new(info.clone()), Box::new(Stream::default()));
    logged(Format::Text, 0, sink, || {
        info!("One");
        assert_eq!(info.lines(), ["I \"One\""]);
    });
}
