//! For tests: a runtime on a thread of its own, and a client that shows every byte.
//!
//! The runtime runs beside the test as it does beside sync, so a test may block.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderName, HeaderValue};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::{Handler, Response, TEXT, handler};

/// How long a test waits for something that should happen at once.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// A current-thread runtime that runs until it is dropped.
pub struct Runtime {
    pub handle: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Runtime {
    pub fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ended = runtime.block_on(ended);
        });
        Self {
            handle,
            end: Some(end),
            thread: Some(thread),
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.end.take());
        let _joined = self.thread.take().map(JoinHandle::join);
    }
}

/// One connection.
pub struct Client {
    stream: TcpStream,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { stream }
    }

    /// The whole answer to a request with this start line and these further headers; the date is
    /// checked and masked.
    pub fn ask_with(&mut self, line: &str, headers: &str, body: &str) -> String {
        let length = match body.len() {
            0 => String::new(),
            length => format!("Content-Length: {length}\r\n"),
        };
        let request = format!("{line} HTTP/1.1\r\nHost: test\r\n{headers}{length}\r\n{body}");
        self.send(&request);
        self.receive(line.starts_with("HEAD "))
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.ask_with(line, "", "")
    }

    pub fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
    }

    pub fn receive(&mut self, head_only: bool) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; if head_only { 0 } else { length }];
        self.stream.read_exact(&mut body).unwrap();
        mask_date(&head) + &String::from_utf8(body).unwrap()
    }

    /// Waits until the other side closes; whether anything still came.
    pub fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0; 64]) {
            Ok(read) => read == 0,
            // Cut instead of closed; a timeout is neither.
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// The answer to one request on a connection of its own.
pub fn ask(address: SocketAddr, line: &str) -> String {
    Client::connect(address).ask(line)
}

/// The status line's code.
pub fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap()
}

/// What follows the headers.
pub fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

/// A port of `ip` that is free, and that nobody gets by chance: it is below those the kernel
/// gives away, and no other test in this process is given it.
pub fn free_port(ip: &str) -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    (0..10_000)
        .map(|_| {
            let offset = NEXT.fetch_add(1, Ordering::Relaxed) + std::process::id() * 37;
            20_000 + u16::try_from(offset % 10_000).unwrap()
        })
        .find(|port| TcpListener::bind((ip, *port)).is_ok())
        .unwrap()
}

pub fn refuses(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err()
}

/// Waits for a state, not for a time.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never: {what}");
}

/// Says what it was asked.
pub fn echo() -> Handler {
    handler(|request| {
        if request.path == "/nowhere" {
            return Response::not_found();
        }
        let text = format!(
            "{} {} {:?} {}",
            request.method,
            request.path,
            request.parameters("a").collect::<Vec<_>>(),
            String::from_utf8_lossy(&request.body)
        );
        Response::new(StatusCode::OK, TEXT, text)
            .with(HeaderName::from_static("x-own"), HeaderValue::from(7))
    })
}

/// Any port of this machine.
pub fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn mask_date(head: &str) -> String {
    head.split_inclusive("\r\n")
        .map(|line| match line.strip_prefix("Date: ") {
            Some(date) => {
                assert_eq!(date.len(), "Sun, 06 Nov 1994 08:49:37 GMT\r\n".len());
                assert!(date.ends_with(" GMT\r\n"), "{date}");
                "Date: now\r\n"
            }
            None => line,
        })
        .collect()
}

/// What this thread logged as errors, as `message: err`.
pub mod log {
    use std::cell::RefCell;
    use std::fmt::Debug;

    use tracing::field::{Field, Visit};
    use tracing::{Event, Level, Subscriber};
    use tracing_subscriber::layer::{Context, Layer};

    thread_local! {
        static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    /// Begins to collect.
    pub fn collect() {
        crate::test_log::install();
    }

    /// The lines since the last call.
    pub fn take() -> Vec<String> {
        LINES.take()
    }

    /// Keeps the errors of each thread.
    pub struct Collect;

    impl<S: Subscriber> Layer<S> for Collect {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            if *event.metadata().level() == Level::ERROR {
                let mut line = Line::default();
                event.record(&mut line);
                let line = format!("{}: {}", line.message, line.err);
                LINES.with_borrow_mut(|lines| lines.push(line));
            }
        }
    }

    #[derive(Default)]
    struct Line {
        message: String,
        err: String,
    }

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            match field.name() {
                "message" => self.message = format!("{value:?}"),
                "err" => self.err = format!("{value:?}"),
                _ => {}
            }
        }
    }
}
