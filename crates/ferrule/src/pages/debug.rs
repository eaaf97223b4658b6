//! Pages for whoever looks for a fault: how much is logged, and what this process uses.
//!
//! The paths are kube-proxy's. Go's profiles are not among them: this is no Go program, and a
//! profile of something else would only mislead. What the kernel knows is offered instead.

use std::fmt::Write as _;
use std::fs;

use http::header::{HeaderValue, LOCATION};
use http::{Method, StatusCode};

use crate::http::{HTML, Request, Response, TEXT};

/// Sets how much is logged.
pub type SetVerbosity = Box<dyn Fn(u32) + Send + Sync>;

/// Go's handler leaves the character set out here.
const BARE_TEXT: &str = "text/plain";

/// One page below `/debug/pprof/`.
struct Page {
    name: &'static str,
    about: &'static str,
    read: fn() -> String,
}

const PAGES: [Page; 4] = [
    Page {
        name: "cmdline",
        about: "the command line, arguments separated by NUL",
        read: || own("cmdline").trim_end_matches('\0').to_owned(),
    },
    Page {
        name: "memory",
        about: "memory in use, from /proc/self/smaps_rollup",
        read: || own("smaps_rollup"),
    },
    Page {
        name: "status",
        about: "state, memory and signals, from /proc/self/status",
        read: || own("status"),
    },
    Page {
        name: "threads",
        about: "every thread with its state and processor time in ticks",
        read: threads,
    },
];

/// The pages below `/debug`.
pub(super) struct Debug {
    set_verbosity: SetVerbosity,
}

impl Debug {
    pub(super) const fn new(set_verbosity: SetVerbosity) -> Self {
        Self { set_verbosity }
    }

    /// `None` for a path that is not below `/debug`.
    pub(super) fn answer(&self, path: &str, request: &Request) -> Option<Response> {
        if path == "/debug/pprof" {
            return Some(redirect());
        }
        if let Some(name) = path.strip_prefix("/debug/pprof/") {
            return Some(profile(name));
        }
        if path == "/debug/flags/v" {
            return Some(self.verbosity(request));
        }
        (path == "/debug/flags" || path.starts_with("/debug/flags/")).then(flags)
    }

    fn verbosity(&self, request: &Request) -> Response {
        if request.method != Method::PUT {
            let text = "unsupported http method\n";
            return Response::new(StatusCode::NOT_ACCEPTABLE, BARE_TEXT, text).nosniff();
        }
        let body = String::from_utf8_lossy(&request.body);
        let (status, text) = match level(&body) {
            Ok(level) => {
                (self.set_verbosity)(level);
                let text = format!("successfully set klog.logging.verbosity to {body}\n");
                (StatusCode::OK, text)
            }
            Err(reason) => {
                let text = format!("strconv.ParseUint: parsing {body:?}: {reason}\n");
                (StatusCode::BAD_REQUEST, text)
            }
        };
        Response::new(status, BARE_TEXT, text).nosniff()
    }
}

/// Digits and nothing else: no sign, no blank, no newline.
fn level(text: &str) -> Result<u32, &'static str> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("invalid syntax");
    }
    text.parse().map_err(|_| "value out of range")
}

fn redirect() -> Response {
    let body = "<a href=\"/debug/pprof/\">Found</a>.\n\n";
    Response::new(StatusCode::FOUND, HTML, body)
        .with(LOCATION, HeaderValue::from_static("/debug/pprof/"))
}

fn flags() -> Response {
    let body = "<!DOCTYPE html>\n<html><head><title>/debug/flags/</title></head><body>\n\
                <h1>/debug/flags/</h1>\n<p>PUT a number to change a flag while running:</p>\n\
                <ul><li><a href=\"/debug/flags/v\">v</a>: how much is logged</li></ul>\n\
                </body></html>\n";
    Response::new(StatusCode::OK, HTML, body)
}

fn profile(name: &str) -> Response {
    if name.is_empty() {
        return Response::new(StatusCode::OK, HTML, index()).nosniff();
    }
    if let Some(page) = PAGES.iter().find(|page| page.name == name) {
        return Response::new(StatusCode::OK, TEXT, (page.read)()).nosniff();
    }
    let known: Vec<_> = PAGES.iter().map(|page| page.name).collect();
    let body = format!(
        "There are no Go profiles here, because this is not a Go program.\n\
         There is: {}.\nProcessor profiles: perf record -g -p <pid>.\n",
        known.join(", ")
    );
    Response::new(StatusCode::NOT_FOUND, TEXT, body).nosniff()
}

fn index() -> String {
    let mut body = "<!DOCTYPE html>\n<html><head><title>/debug/pprof/</title></head><body>\n\
                    <h1>/debug/pprof/</h1>\n<p>What the kernel knows about this process. Go \
                    profiles do not exist here.</p>\n<ul>\n"
        .to_owned();
    for page in &PAGES {
        // Writing to a string cannot fail.
        let _ = writeln!(
            body,
            "<li><a href=\"{0}\">{0}</a>: {1}</li>",
            page.name, page.about
        );
    }
    body + "</ul>\n</body></html>\n"
}

/// A file about this process, or why it cannot be read.
fn own(file: &str) -> String {
    fs::read_to_string(format!("/proc/self/{file}"))
        .unwrap_or_else(|error| format!("/proc/self/{file}: {error}\n"))
}

fn threads() -> String {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return "/proc/self/task cannot be read\n".to_owned();
    };
    let mut rows: Vec<(u32, String)> = tasks
        .filter_map(Result::ok)
        .filter_map(|task| {
            let id = task.file_name().to_str()?.parse().ok()?;
            // A thread may end while it is being looked at.
            let stat = fs::read_to_string(task.path().join("stat")).ok()?;
            Some((id, thread(&stat)?))
        })
        .collect();
    rows.sort_unstable();
    let rows = rows.into_iter().map(|(id, row)| format!("{id}\t{row}\n"));
    format!(
        "id\tname\tstate\tuser\tsystem\n{}",
        rows.collect::<String>()
    )
}

/// Name, state, user and system time of one thread.
fn thread(stat: &str) -> Option<String> {
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // Fields 3, 14 and 15 of proc(5); the first here is the third there.
    let [state, user, system] = [0, 11, 12].map(|at| fields.get(at).copied());
    Some(format!("{name}\t{}\t{}\t{}", state?, user?, system?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_read_past_any_name() {
        let stat = "7 (a) (b)) R 1 7 7 0 -1 4194304 1 0 0 0 21 22 0 0";
        assert_eq!(thread(stat).as_deref(), Some("a) (b)\tR\t21\t22"));
    }

    #[test]
    fn this_process_has_threads() {
        assert!(threads().lines().count() > 1);
    }

    #[test]
    fn a_level_is_digits_only() {
        assert_eq!(level("4"), Ok(4));
        for text in ["", "+4", "-1", " 4", "4\n", "abc"] {
            assert_eq!(level(text), Err("invalid syntax"), "{text:?}");
        }
        assert_eq!(level("99999999999"), Err("value out of range"));
    }
}
